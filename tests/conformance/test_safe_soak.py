"""The soak of level safe: correct managers of any policy conform, and faults that need size are found there, too."""

from pathlib import Path
from typing import Any

import pytest

import kvproof.fast
import kvproof.spec
from kvproof.conformance.backends.loading import Backend, load_backend
from kvproof.conformance.calls.following import taken
from kvproof.conformance.catalogue import SEEDED_BUGS
from kvproof.conformance.emitting import write_test
from kvproof.conformance.machines import MACHINES
from kvproof.conformance.machines.safe.soak import SafeSoak
from kvproof.conformance.search.runner import MachineReport, run_machine

from .soaked_managers import CORRECT, fast_with

SEEDS = (1, 0, 2, 3)
"""A run is a sample: what one seed misses the next may find."""

NEEDS_SIZE = (
    *("references_counted_in_a_byte", "holders_among_the_first_64", "common_pages_end_at_32"),
    *("hits_end_at_512_pages", "events_past_512_are_dropped"),
)
"""Bugs of the catalogue that machine `soak` finds, and that are none of order."""


def soaked(backend: Backend, seed: int, examples: int = 2, **search: Any) -> MachineReport:
    return run_machine(SafeSoak, backend, seed, examples=examples, level="safe", shrinking=0.2, **search)


# -- Correct managers -------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", CORRECT, ids=lambda backend: backend.name)
def test_correct_managers_of_any_policy_conform(backend: Backend) -> None:
    """The clauses that `SafeSoak.always` lists: whoever is evicted first, and however much is kept (RET-4)."""
    found = soaked(backend, SEEDS[0])
    assert [str(deviation) for deviation in found.deviations] == []
    assert (found.missing, found.undeclared, found.ended) == ([], [], True)
    assert found.hits > 20
    assert found.wasted < found.steps * 0.2


def test_the_order_of_eviction_is_no_part_of_it() -> None:
    """Managers that differ by it alone are told apart at level exact, by the clauses of order."""
    (last_first,) = (backend for backend in CORRECT if backend.name == "LastFirst")
    found = run_machine(MACHINES["soak"], last_first, 1, examples=1, shrinking=0.1)
    assert {deviation.clause for deviation in found.deviations} & {"MAN-2", "MAN-11", "POOL-3"}


def test_behind_a_pin_of_another_prefix_nothing_is_decided() -> None:
    """PIN-1: how much was cached is the backend's affair, and it holds other pages from then on."""
    pinned = []

    class PinsLess(kvproof.fast.CacheManager):
        def pin_prefix(self, request: Any, num_tokens: int | None = None) -> Any:
            unit = max(group.kv_cache_spec.page_size for group in self.kv_cache_groups)
            pinned.append(num_tokens)
            return super().pin_prefix(request, unit if num_tokens is None else min(unit, num_tokens))

    found = soaked(fast_with("pins less", PinsLess), SEEDS[0], 4)
    assert [str(deviation) for deviation in found.deviations] == []
    assert None in pinned


def test_what_took_no_pages_took_none() -> None:
    """The specification goes on after any answer of an engine."""
    assert taken("allocate_slots", [[0, 3], [5]]) == [3, 5]
    assert taken("get_computed_pages", [[[1]], 4]) == []
    assert [taken("allocate_slots", odd) for odd in (None, 3, "pages", [[None]])] == [[], [], [], []]


# -- Faults -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NEEDS_SIZE)
def test_a_seeded_bug_that_needs_size_is_caught(name: str) -> None:
    backend = load_backend(f"kvproof.conformance.catalogue:{name}")
    found = next(found for seed in SEEDS if (found := soaked(backend, seed, 4)).deviations)
    assert SEEDED_BUGS[name].clauses & {deviation.clause for deviation in found.deviations}
    assert found.deviations[0].num_calls <= 15, "\n".join(found.deviations[0].calls)
    assert found.unrepeated == ""


def test_a_hit_of_a_page_of_another_request_is_charged() -> None:
    """R2: what is found is compared by content, whichever pages they are."""

    class FindsMore(kvproof.fast.CacheManager):
        def get_computed_pages(self, request: Any) -> Any:
            pages, length = super().get_computed_pages(request)
            size = self.kv_cache_groups[0].kv_cache_spec.page_size
            cached = [page for page in self.page_pool.pages if page.page_hash is not None]
            if len(self.kv_cache_groups) == 1 and cached and length + size < request.num_tokens and not length:
                return kvproof.fast.CachePages([[cached[0]]]), size
            return pages, length

    found = next(found for seed in SEEDS if (found := soaked(fast_with("finds more", FindsMore), seed)).deviations)
    assert {deviation.clause for deviation in found.deviations} == {"R2"}


def test_a_page_that_somebody_holds_is_not_given_again() -> None:
    """MAN-2: the specification follows to free pages only."""

    class GivesHeld(kvproof.spec.CacheManager):
        def allocate_slots(self, request: Any, *more: Any, **options: Any) -> Any:
            given = super().allocate_slots(request, *more, **options)
            held = [page for page in self.page_pool.pages if page.ref_cnt and page.page_id]
            if given is None or len(held) < 3 or not given.pages[0]:
                return given
            return kvproof.spec.CachePages([[held[0]] * len(pages) for pages in given.pages])

    names = {**vars(kvproof.spec), "CacheManager": GivesHeld}
    backend = Backend("gives held pages", type("Names", (), names))
    found = next(found for seed in SEEDS if (found := soaked(backend, seed)).deviations)
    assert {deviation.clause for deviation in found.deviations} == {"MAN-2"}
    assert "nobody holds" in found.deviations[0].expected


def test_a_counterexample_becomes_a_test(tmp_path: Path) -> None:
    backend = load_backend("kvproof.conformance.catalogue:common_pages_end_at_32")
    found = next(found for seed in SEEDS if (found := soaked(backend, seed, 4, found_by="kvproof check")).deviations)
    assert write_test(tmp_path / "test_found.py", found.scripts) == []
    assert "MAN-10" in (tmp_path / "test_found.py").read_text()
