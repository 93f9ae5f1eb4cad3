"""Level safe: correct backends of any policy conform, broken ones are charged by the clause that they break."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import kvproof.fast
import kvproof.spec
from kvproof.conformance import replay_log
from kvproof.conformance.backends.loading import Backend, load_backend
from kvproof.conformance.calls.datum import Call
from kvproof.conformance.calls.documents import calls_to_json
from kvproof.conformance.catalogue import SEEDED_BUGS
from kvproof.conformance.cli import main
from kvproof.conformance.emitting import write_test
from kvproof.conformance.emitting.calls import calls_alone
from kvproof.conformance.log.recording_calls import record_calls
from kvproof.conformance.machines import MACHINES
from kvproof.conformance.machines.session import Session
from kvproof.conformance.search.runner import MachineReport, machines_for, run_machine
from kvproof.spec import CLAUSES, CacheGroupSpec, FullAttentionSpec, MLAAttentionSpec, Request
from kvproof.spec.groups import coordinator, part_hits
from kvproof.spec.pool.hashing import page_extra_keys

from .backends_under_test import ordered, radix
from .backends_under_test.ordered_pool import Page, PagePool, Pages
from .backends_under_test.ordered_reading import number
from .backends_under_test.radix_broken import BROKEN
from .backends_under_test.radix_tree import RadixTree

SPEC = Backend("kvproof.spec", kvproof.spec)
FAST = Backend("kvproof.fast", kvproof.fast)
ORDERED = Backend("ordered", ordered)
RADIX = Backend("radix", radix)
SAFE = [name for name, machine in MACHINES.items() if machine.levels == {"safe"}]

SEEDS = range(8)
"""A run is a sample: what one seed misses the next may find."""


def held(
    machine: str,
    backend: Backend,
    examples: int | None = None,
    seed: int = 1,
    level: Any = "safe",
    shrink_seconds: float = 0.2,
) -> MachineReport:
    """How short a counterexample becomes in that time depends on the computer: who asks for its length gives more."""
    return run_machine(MACHINES[machine], backend, seed, examples=examples, shrink_seconds=shrink_seconds, level=level)


# -- Correct backends -------------------------------------------------------------------------------


@pytest.mark.parametrize("machine", SAFE)
@pytest.mark.parametrize("backend", [SPEC, FAST], ids=["spec", "fast"])
def test_correct_backends_conform(machine: str, backend: Backend) -> None:
    found = held(machine, backend, examples=3 if "soak" in machine else 8)
    assert [str(deviation) for deviation in found.deviations] == []
    assert not found.missing
    assert found.unrepeated == "", "it is deterministic"
    assert not found.undeclared, "a step compares by a clause that it does not declare"
    assert found.wasted <= 0.15 * found.steps
    assert found.steps >= 10 * found.examples


class Denser(kvproof.fast.CacheManager):
    """Keeps every page of windows, chunks and states, and evicts what was not hit before what was."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{**options, "retention_interval": None, "eviction": "reuse"})


class Sparser(kvproof.fast.CacheManager):
    """Forgets the pages of windows, chunks and states when a request ends, as HIT-1 lets it."""

    def free(self, request: Any, num_written: int | None = None) -> list[str]:
        lists = self.get_page_ids(request.request_id)
        losers = super().free(request, num_written)
        if any(map(any, self.get_page_ids(request.request_id))):
            return losers  # another request with the id of a live one
        kept = [isinstance(group.kv_cache_spec, FullAttentionSpec | MLAAttentionSpec) for group in self.kv_cache_groups]
        self.evict_pages(
            {page for keeps, pages in zip(kept, lists, strict=True) for page in pages if page and not keeps}
        )
        return losers


@pytest.mark.parametrize("manager", [Denser, Sparser])
def test_how_much_of_windows_and_states_is_kept_is_nobodys_fault(manager: type) -> None:
    """RET-4: what is hit is right, and as long as what is resident allows."""
    backend = Backend("other keeping", SimpleNamespace(**{**vars(kvproof.fast), "CacheManager": manager}))
    found = held("safe-groups", backend, examples=12)
    assert [str(deviation) for deviation in found.deviations] == []
    assert not found.undeclared


def test_level_safe_has_machines_of_its_own_and_those_without_a_policy() -> None:
    chosen = {machine.name for machine in machines_for(CLAUSES, level="safe")}
    assert set(SAFE) == {"safe-pool", "safe-manager", "safe-groups", "safe-amid", "safe-soak"}
    assert set(SAFE) | {"table", "hash"} <= chosen
    assert not {"pool", "manager"} & chosen


@pytest.mark.parametrize("machine", ["pool", "manager", "hash", "table", "multi_table"])
def test_another_implementation_conforms_at_level_exact(machine: str) -> None:
    found = held(machine, ORDERED, examples=10, level="exact")
    assert [str(deviation) for deviation in found.deviations] == []
    assert not found.missing
    assert found.steps >= 10 * found.examples


def test_a_radix_tree_conforms_at_level_safe() -> None:
    found = held("safe-manager", RADIX, examples=20)
    assert [str(deviation) for deviation in found.deviations] == []
    assert not found.undeclared
    assert found.tried["MAN-1"] > 10 * found.examples, "without a pool it tells what is resident by a name of its own"


@pytest.mark.parametrize("backend", [RADIX, ORDERED], ids=["a manager that shows no pool", "page objects"])
def test_every_machine_of_a_check_takes_another_design(backend: Backend) -> None:
    """Every machine that the backend offers enough for: none asks for a part that a backend may lack."""
    ran = [machine.name for machine in machines_for(CLAUSES, level="safe") if not machine.missing(backend)]
    assert {"secrets", "safe-manager"} <= set(ran)
    for name in ran:
        for seed in SEEDS[:2]:
            found = held(name, backend, examples=2 if "soak" in name else 6, seed=seed)
            assert [str(deviation) for deviation in found.deviations] == [], name


def test_publishing_before_slots_are_looked_for_conforms() -> None:
    """MAN-2: what a request has computed may be published by its next call, also where that gets no slots."""

    class Sooner(radix.CacheManager):
        def take(self, request: Any, count: int, hits: list[int]) -> list[int] | None:
            live = self.live.get(request.request_id)
            if live is not None:
                self.publish(live, request.num_computed_tokens)
            return super().take(request, count, hits)

    names = SimpleNamespace(CacheManager=Sooner, CachePages=radix.CachePages, kvproof_lacks=radix.kvproof_lacks)
    for seed in SEEDS[:3]:
        found = held("safe-manager", Backend("sooner", names), examples=20, seed=seed)
        assert [str(deviation) for deviation in found.deviations] == []


def test_other_pages_of_equal_content_may_be_held_at_the_admission() -> None:
    """MAN-2: it is handed one page of several that hold the prefix, and takes another; the specification does, too."""
    others: list[bool] = []

    class TakesOthers(kvproof.spec.CacheManager):
        def allocate_slots(
            self,
            request: Any,
            num_new_tokens: Any,
            num_new_computed_tokens: Any = 0,
            new_computed_pages: Any = None,
            *more: Any,
            **options: Any,
        ) -> Any:
            if new_computed_pages is not None:
                handed = new_computed_pages.pages
                taken = [[self.last_alike(page) for page in group] for group in handed]
                others.append(taken != list(map(list, handed)))
                new_computed_pages = kvproof.spec.CachePages(taken)
            hits = num_new_computed_tokens, new_computed_pages
            return super().allocate_slots(request, num_new_tokens, *hits, *more, **options)

        def last_alike(self, page: Any) -> Any:
            pool = self.page_pool
            key, content = pool.key_of_page(page.page_id), pool.content_of(page)
            alike = [] if key is None else pool.cached_under(key.page_hash, key.group_id)
            return next((other for other in reversed(alike) if pool.content_of(other) == content), page)

    names = SimpleNamespace(**{**vars(kvproof.spec), "CacheManager": TakesOthers})
    for seed in SEEDS[:2]:
        found = held("safe-manager", Backend("takes others", names), examples=20, seed=seed)
        assert [str(deviation) for deviation in found.deviations] == []
    assert any(others)


def test_a_radix_tree_does_not_conform_at_level_exact() -> None:
    """The page that was freed last is taken first, and what it has computed is published with the next call."""
    group = CacheGroupSpec(FullAttentionSpec(page_size=1, num_kv_heads=1, head_size=8, dtype="float32"), ("layer",))
    given = []
    for names in (kvproof.spec, radix):
        pages = names.CacheManager(4, [group], 8).allocate_slots(Request("a", [0, 1]), 2)
        assert pages is not None
        given.append(pages.get_page_ids())
    assert given == [([1, 2],), ([3, 2],)]
    assert held("manager", RADIX, examples=5, level="exact").deviations


class LastFreedFirst(PagePool):
    """Another eviction order, all else being the ordered backend's."""

    def get_new_pages(self, num_pages: int) -> Pages:
        if number(num_pages) <= len(self.free):
            for page in list(self.free.values())[-num_pages:] if num_pages else []:
                self.free.move_to_end(page.page_id, last=False)
        return super().get_new_pages(num_pages)


class ForgetsAtOnce(PagePool):
    """Another policy: what nobody holds is evicted when it is given back."""

    def free_pages(self, ordered_pages: Any) -> None:
        given: Sequence[Page] = list(ordered_pages)
        super().free_pages(given)
        for page in given:
            if not page.holders:
                self.forget(page)


@pytest.mark.parametrize("pool", [LastFreedFirst, ForgetsAtOnce])
def test_the_levels_differ_by_policy_alone(pool: type[PagePool]) -> None:
    names = SimpleNamespace(PagePool=pool, kvproof_lacks=ordered.kvproof_lacks)
    backend = Backend(pool.__name__, names)
    assert not held("safe-pool", backend, examples=15).deviations
    exact = {found.clause for found in held("pool", backend, examples=40, level="exact").deviations}
    assert exact
    assert exact <= {"POOL-3", "POOL-5", "POOL-6", "POOL-7"}, "by the clauses that are about order and eviction"


def test_a_pool_that_guards_nothing_is_charged() -> None:
    class Trusting(PagePool):
        def touch(self, pages: Any) -> None:
            for page in [page for group in pages for page in group]:
                self.free.pop(page.page_id, None)
                page.holders += not page.is_null

    found = held("safe-pool", Backend("trusting", SimpleNamespace(PagePool=Trusting)), seed=2, shrink_seconds=60)
    assert {"POOL-6"} == {deviation.clause for deviation in found.deviations}
    assert found.deviations[0].num_calls <= 3


# -- Hits that end amid a page (MAN-17) -------------------------------------------------------------


def other_parts(
    chosen: list[int], pick: Callable[..., Any] = min, *, behind_any: bool = False, with_any_keys: bool = False
) -> Callable[..., Any]:
    """The specification's `find_part`, which finds other pages to copy from.

    Args:
        chosen: is appended how many there were to choose from.
        pick: chooses one by its tokens; the specification takes the first.
        behind_any: whether what comes before the page is not looked at.
        with_any_keys: whether the extra keys that touch it are not looked at.
    """

    def find_part(pool: Any, rules: Any, chains: Any, end: int) -> Any:
        size, place = rules.page_size, end // rules.page_size
        if end > len(chains.tokens):
            return None
        parent = chains[size][place - 1][1] if place else None
        touching = page_extra_keys(chains.extra_keys, place * size, (place + 1) * size)
        own = tuple(chains.tokens[place * size : end])
        found = []
        for key, ids in pool.index.pages_of.items():
            for page in pool.pages_of_ids(ids if key.group_id == rules.group_id else ()):
                before, tokens, extra_keys = pool.keys.content_of_id[pool.index.content_of[page.page_id]]
                follows = before == parent or (behind_any and (before is None) == (parent is None))
                if follows and tokens[: len(own)] == own and (with_any_keys or extra_keys == touching):
                    found.append((tokens, page.page_id, page))
        chosen.append(len(found))
        return pick(found)[-1] if found else None

    return find_part


def with_parts(find_part: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Backend:
    """A backend that is the specification but for the pages that it finds to copy from."""
    pools: list[Any] = []
    right = part_hits.find_part

    class OtherParts(kvproof.spec.CacheManager):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            pools.append(self.page_pool)

    def find(pool: Any, *more: Any) -> Any:
        return (find_part if any(pool is own for own in pools) else right)(pool, *more)

    monkeypatch.setattr(coordinator, "find_part", find)
    return Backend("other parts", SimpleNamespace(**{**vars(kvproof.spec), "CacheManager": OtherParts}))


def test_any_page_that_begins_with_the_tokens_may_be_copied_from(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[int] = []
    found = held("safe-amid", with_parts(other_parts(chosen, max), monkeypatch), examples=12)
    assert [str(deviation) for deviation in found.deviations] == []
    assert max(chosen) > 1


@pytest.mark.parametrize("wrong", ["tokens", "extra keys"])
def test_a_page_that_belongs_elsewhere_is_charged(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind other tokens, or under other extra keys, among them salts, its content is another request's."""
    found_parts = other_parts([], behind_any=wrong == "tokens", with_any_keys=wrong == "extra keys")
    backend = with_parts(found_parts, monkeypatch)
    found = next(found for seed in SEEDS if (found := held("safe-amid", backend, seed=seed)).deviations)
    assert {deviation.clause for deviation in found.deviations} & {"MAN-17"}, list(map(str, found.deviations))


class LeavesNone(kvproof.fast.CacheManager):
    """Forgets the unfilled page with which a request ends."""

    def free(self, request: Any, num_written: int | None = None) -> list[str]:
        cached = self.page_pool.cached_page_hash_to_page
        before = {page.page_id for pages in cached.values() for page in pages}
        losers = super().free(request, num_written)
        after = {page.page_id for pages in cached.values() for page in pages}
        self.evict_pages(after - before)
        return losers


def test_how_much_of_unfilled_pages_is_kept_is_nobodys_fault() -> None:
    backend = Backend("leaves none", SimpleNamespace(**{**vars(kvproof.fast), "CacheManager": LeavesNone}))
    found = held("safe-amid", backend, examples=12)
    assert [str(deviation) for deviation in found.deviations] == []
    exact = held("amid", backend, examples=12, level="exact")
    assert exact.deviations


@pytest.mark.parametrize(
    "name",
    ["the_last_slot_is_not_copied", "hits_are_counted_in_whole_pages", "sources_are_let_go_before_the_copy"],
)
def test_a_seeded_bug_of_hits_amid_a_page_is_caught(name: str) -> None:
    """Those that machine `amid` catches at level exact, see `test_catalogue`."""
    backend, clauses = load_backend(f"kvproof.conformance.catalogue:{name}"), SEEDED_BUGS[name].clauses
    found = next(found for seed in SEEDS if (found := held("safe-amid", backend, seed=seed)).deviations)
    assert clauses & {deviation.clause for deviation in found.deviations}, list(map(str, found.deviations))


# -- What is not shown ------------------------------------------------------------------------------


@pytest.mark.parametrize("finds", [True, False])
def test_where_nothing_shows_what_is_resident_what_was_just_served_is_found(finds: bool) -> None:
    """HIT-1: beyond that nothing is guessed."""

    class Silent(radix.CacheManager):
        resident_page_ids = property()

        def get_computed_pages(self, request: Any) -> tuple[radix.CachePages, int]:
            found = super().get_computed_pages(request)
            return found if finds else (radix.CachePages([[]]), 0)

        def reset_prefix_cache(self) -> bool:
            if not self.usage:
                self.free_ids += [page for node in self.tree.nodes() for page in node.pages]
                self.tree = RadixTree()
            return not self.usage

    names = SimpleNamespace(CacheManager=Silent, CachePages=radix.CachePages, kvproof_lacks=radix.kvproof_lacks)
    found = held("safe-manager", Backend("silent", names), examples=24)
    assert [deviation.clause for deviation in found.deviations] == ([] if finds else ["HIT-1"])
    assert bool(found.hits) == finds
    assert "what shows which pages are cached" in found.lacks


# -- Broken backends --------------------------------------------------------------------------------


@pytest.mark.parametrize(("broken", "clauses"), BROKEN, ids=[broken.name for broken, _ in BROKEN])
def test_a_fault_is_charged(broken: Backend, clauses: set[str]) -> None:
    for seed in SEEDS:
        found = held("safe-manager", broken, examples=40, seed=seed)
        if found.deviations:
            break
    # what shortening comes upon beside what was found first depends on the computer's speed
    assert clauses & {deviation.clause for deviation in found.deviations}, list(map(str, found.deviations))
    assert not found.undeclared


@pytest.mark.parametrize("seed", range(4))
def test_a_page_that_gave_way_and_is_handed_out_again_is_no_fault_of_content(seed: int) -> None:
    """MAN-2, and not R2: nobody reads or writes another's page where the tables are made of the whole lists."""
    (swaps,) = (broken for broken, _ in BROKEN if broken.name == "SwapsAndHandsOut")
    found = held("safe-manager", swaps, examples=60, seed=seed)
    assert {deviation.clause for deviation in found.deviations} <= {"MAN-2"}, list(map(str, found.deviations))


def test_what_a_deviation_shows() -> None:
    broken = next(broken for broken, _ in BROKEN if broken.name == "LeaksOnAbort")
    found = run_machine(MACHINES["safe-manager"], broken, 1, shrink_seconds=60, level="safe").deviations[0]
    assert found.calls[0].startswith("manager = CacheManager(")
    assert "manager.free(" in found.calls[-1]
    assert found.num_calls <= 5
    assert {"pages of requests", "usage", "cached pages"} <= found.before.keys()
    assert found.after["usage"] == "0.0"
    assert found.observed_after["usage"] != "0.0"


# -- What becomes of counterexamples ----------------------------------------------------------------


def counterexample(bug: str) -> tuple[Backend, MachineReport, list[Call]]:
    """What machine `safe-manager` finds first of a seeded bug, and its calls, which need no machine."""
    backend = load_backend(f"kvproof.conformance.catalogue:{bug}")
    machine = MACHINES["safe-manager"]
    found = run_machine(machine, backend, 1, examples=60, shrink_seconds=5, level="safe", found_by="a test")
    bound = type("Bound", (machine,), {"session": Session(backend, CLAUSES, level="safe")})
    return backend, found, calls_alone(bound, found.deviations[0].trace)


def test_a_counterexample_is_calls(tmp_path: Path) -> None:
    """MAN-6: they are a file for `kvproof try`, and a log, which a replay at level safe finds wrong."""
    backend, found, calls = counterexample("reused_id_keeps_keys")
    assert found.deviations[0].clause == "MAN-6"
    log, file = tmp_path / "engine.log", tmp_path / "calls.json"
    record_calls(log, calls, backend, "safe", show_tokens=True)
    wrong = replay_log(log, level="safe").wrong
    assert wrong is not None
    assert wrong.clause == "MAN-1", "a log says nothing of earlier requests"
    file.write_text(json.dumps(calls_to_json(calls)))
    assert main(["try", str(file), "--backend", backend.name]) == 1
    assert main(["try", str(file), "--backend", "kvproof.fast", "--level", "safe"]) == 0


@pytest.mark.parametrize(
    ("bug", "clause", "said"),
    [
        ("resumed_before_its_hit_is_counted", "MAN-2", "manager = backend.CacheManager("),
        ("reused_id_keeps_keys", "MAN-6", "[1] <= 0"),
        ("forgotten_when_freed", "HIT-1", "[1] >= "),
    ],
)
def test_a_counterexample_becomes_a_test(bug: str, clause: str, said: str, tmp_path: Path) -> None:
    """It demands no page that a right backend need not choose: how much may be hit, how much is hit at least."""
    _, found, _ = counterexample(bug)
    assert found.deviations[0].clause == clause
    assert write_test(tmp_path / "test_bug.py", found.scripts[:1]) == []
    assert said in (tmp_path / "test_bug.py").read_text()
