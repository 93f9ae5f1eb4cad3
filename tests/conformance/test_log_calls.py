"""A log as calls on what earlier ones gave: any backend makes them, at level exact and at level safe."""

import json
import random
import runpy
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import kvproof.fast
from kvproof.conformance import LogError, catalogue, record, replay_log
from kvproof.conformance.backends.loading import Backend
from kvproof.conformance.calls.simplest import thinned
from kvproof.conformance.cli import main
from kvproof.conformance.emitting import write_test
from kvproof.conformance.emitting.calls import script_of_calls
from kvproof.conformance.log.reading_calls import read_calls
from kvproof.conformance.log.shrinking_calls import shorten
from kvproof.conformance.trying.trial import Said, Trial
from kvproof.spec.declarations import CacheSalt, Request

from .backends_under_test import ordered, radix
from .small_engine import GROUPS, full
from .test_log import FAST, recorded

REVERSED = "kvproof.conformance.catalogue:deferred_free_reversed"
"""A manager that frees pages in another order: wrong at level exact, right at level safe."""


def made_again(path: Path, backend: Backend, level: Any) -> list[Said]:
    return list(Trial(backend, level).run(read_calls(path, backend, level).entries()))


# -- What is right ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("redact", [False, True])
@pytest.mark.parametrize("seed", [0, 3])
def test_what_a_right_engine_did_can_be_made_again(tmp_path: Path, seed: int, groups: str, redact: bool) -> None:
    """Batched steps, hits, pins, tables, refusals: all of it conforms at both levels."""
    path = recorded(tmp_path / "a.log", seed=seed, groups=groups, states_every=int(not redact), redact=redact)
    operations = replay_log(path).operations
    for level in ("exact", "safe"):
        said = made_again(path, FAST, level)
        assert {each.verdict for each in said} == {"conforms", ""}
        assert sum(each.entry.place.startswith("operation") and bool(each.verdict) for each in said) == operations
    result = replay_log(path, level="safe")
    assert (result.wrong, result.strayed_at, result.operations) == (None, None, operations)
    assert (result.states > 0) == (not redact)


def test_keys_pages_and_rewritten_requests_are_named_by_what_gave_them(tmp_path: Path) -> None:
    """A key by its request's page, a page by its call; tokens that are taken back, extra keys that come."""
    manager = record(kvproof.fast.CacheManager(9, [full(2)], 16), tmp_path / "a.log")
    pool = record(kvproof.fast.PagePool(5, True), manager)
    with manager:
        request = Request("a", [1, 2, 3, 4])
        pages = pool.get_new_pages(2)
        keys = kvproof.fast.hash_request_tokens(kvproof.fast.sha256, 2, request, none_hash=pool.none_hash)
        pool.cache_full_pages(request, pages, keys, 0, 2, 2, kv_cache_group_id=0)
        assert pool.get_cached_page(pages[1].page_hash.page_hash, [0]) is not None
        assert pool.get_cached_page(kvproof.fast.PageHash(b"none", (), None), [0]) is None
        pool.touch([pages, [pool.null_page]])
        pool.free_pages(iter(pages))
        with suppress(TypeError):
            pool.free_pages([object()])
        request = Request("b", [1, 2, 3, 4, 5])
        manager.allocate_slots(request, 5)
        manager.free(request)
        request.num_tokens = 2
        for token in (9, 4, 5):
            request.append(token)
        request.extra_keys = (CacheSalt("salt"),)
        found, hit = manager.get_computed_pages(request)
        manager.allocate_slots(request, 5 - hit, hit, found)
    for level in ("exact", "safe"):
        said = made_again(tmp_path / "a.log", FAST, level)
        assert {each.verdict for each in said} == {"conforms", ""}
    texts = [each.entry.text for each in said]
    assert any(text.endswith(".touch(pages=[[r3[0], r6[0]], [r2.null_page]])") for text in texts), str(texts[8:12])
    assert any(".num_tokens = 2" in text for text in texts)
    assert any("num_new_tokens=5 - r" in text for text in texts)
    assert replay_log(tmp_path / "a.log", level="safe").wrong is None


def test_sec_2_no_token_of_a_log_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with record(kvproof.fast.CacheManager(9, [full(2)], 16), tmp_path / "a.log", show_tokens=True) as manager:
        request = Request("a", [4321, 4322])
        manager.allocate_slots(request, 2)
        request.append(4323)
        manager.allocate_slots(request, 1)
    assert main(["try", str(tmp_path / "a.log")]) == 0
    out = capsys.readouterr().out
    assert "Request('a', 2 tokens)" in out
    assert "432" not in out


# -- Another order of eviction ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reversed_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("logs")
    for seed in range(20):
        path = recorded(folder / "reversed.log", catalogue.deferred_free_reversed, seed, states_every=1)
        if replay_log(path).wrong is not None:
            return path
    raise AssertionError("no log in which the order shows")


def test_another_order_of_eviction_is_right_at_level_safe(
    reversed_log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """MAN-5 says the order in which pages are freed: a matter of level exact."""
    log = str(reversed_log)
    assert main(["replay", log]) == 1
    assert main(["replay", log, "--level", "safe"]) == 0
    assert "level safe\nno difference\n" in capsys.readouterr().out
    assert main(["try", log, "--backend", REVERSED]) == 1
    assert main(["try", log, "--backend", REVERSED, "--level", "safe"]) == 0
    assert "undecided" not in capsys.readouterr().out
    assert main(["shrink", log, "--backend", REVERSED, "--level", "safe"]) == 2
    assert "does all of it right\n" in capsys.readouterr().err


def served(manager: Any, *, looks: bool = True) -> None:
    """Requests with common beginnings come, grow and go in a small pool."""
    draw = random.Random(2)
    live: list[Request] = []
    for count in range(40):
        if len(live) < 3:
            request = Request(str(count), [draw.choice([1, 2]) for _ in range(draw.randint(1, 9))])
            found, hit = manager.get_computed_pages(request)
            manager.allocate_slots(request, request.num_tokens - hit, hit, found)
            request.num_computed_tokens = request.num_tokens
            live.append(request)
        for request in live:
            request.append(draw.choice([1, 2]))
            manager.allocate_slots(request, 1)
            request.num_computed_tokens += 1
        if looks:
            assert 0 <= manager.usage <= 1
        if live and (draw.random() < 0.5 or live[0].num_tokens > 20):
            manager.free(live.pop(0))


@pytest.mark.parametrize("backend", [Backend("ordered", ordered), Backend("radix", radix)], ids=lambda own: own.name)
def test_backends_that_are_built_otherwise_make_a_logs_calls(backend: Backend, tmp_path: Path) -> None:
    """They take fewer options, and show no pool, or its usage with other last digits."""
    with record(kvproof.fast.CacheManager(24, [full(2)], 32), tmp_path / "a.log") as manager:
        served(manager)
    verdicts = [said.verdict for said in made_again(tmp_path / "a.log", backend, "safe")]
    assert "deviates" not in verdicts
    assert verdicts.count("conforms") > 20
    if backend.name == "ordered":  # which evicts by the same order
        assert {said.verdict for said in made_again(tmp_path / "a.log", backend, "exact")} == {"conforms", ""}
    with record(kvproof.fast.CacheManager(24, [full(2)], 32, enable_events=True), tmp_path / "b.log") as manager:
        served(manager, looks=False)
    with pytest.raises(LogError, match=rf"with enable_events=True, which {backend.name}'s CacheManager does not take"):
        read_calls(tmp_path / "b.log", backend, "safe")


class Forgetful(kvproof.fast.CacheManager):
    """Finds nothing, as a pool in which everything was evicted."""

    def get_computed_pages(self, request: Any) -> Any:
        return self.create_empty_page_list(), 0


class Forgets:
    CacheManager, MultiGroupPageTable = Forgetful, kvproof.fast.MultiGroupPageTable
    PagePool, CachePages = kvproof.fast.PagePool, kvproof.fast.CachePages


def test_behind_a_look_up_that_finds_less_nothing_is_accused(tmp_path: Path) -> None:
    """MAN-1 at level exact; at level safe a replay goes on as the engine did: fewer pages are shared, more are taken.

    Where the calls are made again, on a backend whose pages have other ids, what follows is undecided.
    """

    def serve(manager: Any) -> None:
        for name in "abcd":
            request = Request(name, [1, 2, 3, 4, 5])
            found, hit = manager.get_computed_pages(request)
            manager.allocate_slots(request, 5 - hit, hit, found)
            request.num_computed_tokens = 5
            manager.page_pool.get_num_free_pages()

    with record(Forgetful(20, [full(2)], 16), tmp_path / "a.log", states_every=1) as manager:
        serve(manager)
    wrong, safe = replay_log(tmp_path / "a.log").wrong, replay_log(tmp_path / "a.log", level="safe")
    assert wrong is not None
    assert wrong.clause == "MAN-1"
    assert (safe.wrong, safe.strayed_at, safe.operations) == (None, None, 12)
    said = made_again(tmp_path / "a.log", Backend("forgets", Forgets), "safe")
    verdicts = [each.verdict for each in said if each.verdict]
    assert "deviates" not in verdicts
    assert verdicts == ["conforms"] * 4 + ["undecided"] * 9
    with pytest.raises(LogError, match="up to a look-up that finds something else"):
        shorten(tmp_path / "a.log", Backend("forgets", Forgets), "safe")


@pytest.mark.parametrize(
    ("bug", "clause"),
    [("salt_ignored", "MAN-1"), ("unwritten_pages_stay_cached", "MAN-4"), ("reused_id_keeps_keys", "PIN-1")],
)
def test_what_pages_hold_is_told_at_level_safe(bug: str, clause: str, tmp_path: Path) -> None:
    """The specification has the engine's pages, and knows what is on them."""
    wrong = []
    for seed in range(4):
        path = recorded(tmp_path / "a.log", getattr(catalogue, bug), seed, states_every=1)
        found, exact = replay_log(path, level="safe").wrong, replay_log(path).wrong
        assert found is None or exact is not None
        wrong += [found.clause] if found is not None else []
    assert clause in wrong


def test_a_page_that_no_call_gave_is_one_of_its_id_at_level_exact_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with record(kvproof.fast.PagePool(8, True), tmp_path / "a.log") as pool:
        pool.evict_pages([3])
    assert main(["try", str(tmp_path / "a.log")]) == 0
    capsys.readouterr()
    assert main(["replay", str(tmp_path / "a.log"), "--level", "safe"]) == 0
    capsys.readouterr()
    assert main(["try", str(tmp_path / "a.log"), "--level", "safe"]) == 2
    error = capsys.readouterr().err
    assert "operation 1: page 3 was given by no call of the log" in error
    assert error.count("\n") == 1


# -- What is wrong at every level -------------------------------------------------------------------------------------


class Leaky(kvproof.fast.CacheManager):
    """Keeps a page of each request of more than two pages, in a free order of its own."""

    def free(self, request: Any, num_written: int | None = None) -> Any:
        if sum(map(len, self.get_page_ids(request.request_id))) > 2:
            self.page_pool.get_new_pages(1)
        return super().free(request, num_written)


class Short(kvproof.fast.CacheManager):
    """Gives no page for the last token of a prompt of five."""

    def allocate_slots(self, request: Any, num_new_tokens: int, *more: Any, **options: Any) -> Any:
        return super().allocate_slots(request, num_new_tokens - (num_new_tokens == 5), *more, **options)


@pytest.fixture
def leaky(monkeypatch: pytest.MonkeyPatch) -> str:
    module = ModuleType("a_leaky_backend")
    module.__dict__.update(vars(Forgets) | {"CacheManager": Leaky})
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module.__name__


def test_a_leak_is_found_at_level_safe_and_becomes_short(
    leaky: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """MAN-5: all pages come back, in any order."""
    log, small = tmp_path / "a.log", tmp_path / "small.json"
    module: Any = sys.modules[leaky]
    recorded(log, module, 4, states_every=1)
    wrong = replay_log(log, level="safe").wrong
    assert wrong is not None
    assert wrong.clause == "MAN-5"
    assert ".free(" in wrong.call
    assert wrong.earlier
    assert wrong.after
    assert main(["replay", str(log), "--level", "safe", "--json", str(tmp_path / "r.json")]) == 1
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["level"], report["deviates"], report["wrong"]["clause"]) == ("safe", True, "MAN-5")
    later = replay_log(log, level="safe", ignore=frozenset({"MAN-5"})).wrong
    assert later is not None
    assert (later.number, later.clause) == (wrong.number, "POOL-10"), "the same leak, by the next field"
    short = tmp_path / "recorded.log"
    assert main(["shrink", str(log), "--level", "safe", "-o", str(short)]) == 1
    assert main(["replay", str(short), "--level", "safe"]) == 1
    assert replay_log(short, level="safe").operations < replay_log(log, level="safe").operations / 2
    shrink = ["shrink", str(log), "--backend", leaky, "--level", "safe"]
    assert main([*shrink, "-o", str(small), "--json", str(tmp_path / "s.json")]) == 1
    found = json.loads((tmp_path / "s.json").read_text())
    assert found["clause"] == "MAN-5"
    assert found["left"] <= 3
    assert len(found["calls"]) <= 5
    assert main(["try", str(small), "--backend", leaky, "--level", "safe"]) == 1
    assert main(["try", str(small), "--backend", "kvproof.fast", "--level", "safe"]) == 0
    assert main([*shrink, "-o", str(tmp_path / "small.log")]) == 1
    assert replay_log(tmp_path / "small.log", level="safe").wrong is not None
    capsys.readouterr()


class ShortBackend:
    CacheManager = Short


def test_a_test_at_level_safe_asks_how_many_pages_there_are(tmp_path: Path) -> None:
    """MAN-2: it fails on the backend that gives too few, and passes with any ids."""
    with record(Short(20, [full(2)], 16), tmp_path / "a.log") as manager:
        manager.allocate_slots(Request("a", [1, 2, 3]), 3)
        manager.allocate_slots(Request("b", [1, 2, 3, 4, 5]), 5)
    backend, emitted = Backend(f"{__name__}:ShortBackend", ShortBackend), tmp_path / "test_emitted.py"
    calls = [said.entry.call for said in made_again(tmp_path / "a.log", backend, "safe")]
    assert write_test(emitted, [script_of_calls(calls, backend, "safe", "a test")]) == []
    text = emitted.read_text()
    assert "assert [len(group) for group in new.get_page_ids()] == [3]" in text
    with pytest.raises(AssertionError):
        runpy.run_path(str(emitted))["test_man_2"]()
    named = f"from {__name__} import ShortBackend"
    right = text.replace(named, "from kvproof.conformance.catalogue import deferred_free_reversed")
    (tmp_path / "test_right.py").write_text(right)
    runpy.run_path(str(tmp_path / "test_right.py"))["test_man_2"]()


def test_what_goes_with_no_level_is_refused(
    reversed_log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = str(reversed_log)
    for command, message in (
        (["shrink", log, "-o", str(tmp_path / "a.json")], "a.json needs --backend"),
        (["replay", log, "--level", "safe", "--backend", "kvproof.fast"], "there is kvproof try"),
        (["replay", "--synthetic", "--level", "safe"], "--level safe says nothing without --lockstep"),
    ):
        assert main(command) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    with pytest.raises(ValueError, match="level='sound'"):
        replay_log(reversed_log, level="sound")


def test_thinned_keeps_what_is_needed_in_few_tries() -> None:
    left, tries = list(range(100)), 0

    def leave_out(start: int, end: int) -> bool:
        nonlocal tries
        tries += 1
        needed = {17, 63}
        if needed & set(left[start:end]):
            return False
        del left[start:end]
        return True

    thinned(lambda: len(left), leave_out, len(left))
    assert left == [17, 63]
    assert tries < 50
