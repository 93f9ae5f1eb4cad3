"""What a search leaves out, and how it goes on after a deviation: levels, capabilities, clauses that are known."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

import kvproof.spec
from kvproof.conformance.backends.capabilities import CAPABILITIES, OF_OPTION
from kvproof.conformance.backends.levels import LEVELS
from kvproof.conformance.backends.loading import Backend, BackendError
from kvproof.conformance.machines import MACHINES
from kvproof.conformance.report.verdicts import Report
from kvproof.conformance.search.runner import machines_for, run_machine
from kvproof.spec import CLAUSES, CachePage, PagePool
from kvproof.spec.pool.pages import PageList

from .broken import backend


class Asserts(PagePool):
    """Refuses by assertions, which is no refusal by kind (R1)."""

    def get_new_pages(self, num_pages: int) -> PageList:
        try:
            return super().get_new_pages(num_pages)
        except (TypeError, ValueError):
            raise AssertionError from None


class CountsNull(PagePool):
    """Counts the null page among those in use, and forgives a mention too many."""

    def get_usage(self) -> float:
        return 1 - self.get_num_free_pages() / self.num_pages

    def free_pages(self, ordered_pages: Iterable[CachePage]) -> None:
        pages = list(ordered_pages)
        left = {page: page.ref_cnt for page in pages if isinstance(page, CachePage)}
        if len(left) == len(set(pages)) and any(pages.count(page) > count for page, count in left.items() if page):
            pages = list(dict.fromkeys(page for page in pages if left[page]))
        super().free_pages(pages)


class Shut:
    """A pool that shows no queue, and gives plain lists."""

    def __init__(self, num_pages: int, enable_caching: bool) -> None:
        self._pool = PagePool(num_pages, enable_caching)
        self.null_page = self._pool.null_page
        for name in ("cache_full_pages", "evict_pages", "free_pages", "get_cached_page", "get_num_free_pages"):
            setattr(self, name, getattr(self._pool, name))
        for name in ("get_usage", "reset_prefix_cache", "touch"):
            setattr(self, name, getattr(self._pool, name))

    @property
    def cached_page_hash_to_page(self) -> Any:
        return self._pool.cached_page_hash_to_page

    def get_new_pages(self, num_pages: int) -> list[CachePage]:
        return list(self._pool.get_new_pages(num_pages))


def test_a_deviation_hides_no_other() -> None:
    broken = backend("two faults", PagePool=CountsNull)
    alone = run_machine(MACHINES["pool"], broken, 3, examples=12, shrink_seconds=0.2)
    found = run_machine(MACHINES["pool"], broken, 3, examples=12, shrink_seconds=0.2, seconds=30.0)
    assert alone.ended is False
    assert {"POOL-10", "POOL-5"} <= {deviation.clause for deviation in found.deviations}
    assert found.ended
    report = Report("two faults", 3, tuple(CLAUSES), [found])
    assert {report.verdict(clause) for clause in ("POOL-2", "POOL-3", "POOL-7")} == {"conforms"}
    assert found.steps > alone.steps


def test_a_refusal_of_another_kind_counts_where_r1_is_not_looked_at() -> None:
    broken = backend("asserts", PagePool=Asserts)
    strict = run_machine(MACHINES["pool"], broken, 3, examples=12, shrink_seconds=0.2)
    lenient = run_machine(MACHINES["pool"], broken, 3, clauses=["POOL-4", "POOL-2"], examples=12)
    assert [found.clause for found in strict.deviations] == ["R1"]
    assert not lenient.deviations
    assert lenient.tried["POOL-4"], "the example goes on"


def test_machines_have_levels() -> None:
    named = {level: {machine.name for machine in machines_for(CLAUSES, level=level)} for level in LEVELS}
    assert {"pool", "manager", "queue"} <= named["exact"] - named["safe"]
    assert {"table", "hash", "cache", "attention"} <= named["exact"] & named["safe"]
    assert named["exact"] | named["safe"] == set(MACHINES)


def test_every_capability_is_known_by_name() -> None:
    assert {machine.capability for machine in MACHINES.values()} - {""} <= set(CAPABILITIES)


def test_what_a_backend_lacks_is_left_out() -> None:
    """``kvproof_lacks`` of the holder, or ``without`` of who asks."""
    shut = SimpleNamespace(PagePool=Shut, kvproof_lacks=["queue", "keys"])
    found = run_machine(
        MACHINES["pool"], Backend("shut", shut, frozenset({"views"})), 3, examples=12, shrink_seconds=0.2
    )
    assert [str(deviation) for deviation in found.deviations] == []
    assert {"queue", "keys", "views"} <= set(found.lacks)
    assert found.tried["POOL-5"]
    lacking = Backend("spec", kvproof.spec, frozenset({"events", "tables"}))
    assert run_machine(MACHINES["events"], lacking, 3).missing == ["capability events"]
    assert MACHINES["table"].missing(lacking) == ["capability tables"]


def test_without_groups_there_is_one_of_full_attention() -> None:
    calls: list[Any] = []

    class Noted(kvproof.spec.CacheManager):
        def __init__(self, num_pages: int, kv_cache_groups: Any, *args: Any, **options: Any) -> None:
            calls.append((list(kv_cache_groups), options))
            super().__init__(num_pages, kv_cache_groups, *args, **options)

    names = {name: getattr(kvproof.spec, name) for name in kvproof.spec.__all__} | {"CacheManager": Noted}
    without = frozenset({"groups", "events", "counters"})
    found = run_machine(MACHINES["batch"], Backend("plain", SimpleNamespace(**names), without), 0, examples=12)
    assert not found.deviations
    built = [groups for groups, options in calls if "hash_seed" in options]
    assert {len(groups) for groups in built} == {1}
    assert {type(groups[0].kv_cache_spec).__name__ for groups in built} == {"FullAttentionSpec"}
    assert not any("enable_events" in options for _, options in calls)
    assert {"groups", "events"} <= set(found.lacks)


@pytest.mark.parametrize(("option", "capability"), OF_OPTION.items())
def test_an_option_of_what_is_lacked_is_not_handed_over(option: str, capability: str) -> None:
    """Neither right nor wrong: a constructor may take it and do nothing with it."""
    assert Backend("spec", kvproof.spec).accepts("CacheManager", option)
    assert not Backend("spec", kvproof.spec, frozenset({capability})).accepts("CacheManager", option)


@pytest.mark.parametrize("said", ["queue", 3, ["queues"], [3]])
def test_a_list_of_what_there_is_not(said: object) -> None:
    with pytest.raises(BackendError, match="kvproof_lacks names"):
        run_machine(MACHINES["pool"], Backend("odd", SimpleNamespace(PagePool=PagePool, kvproof_lacks=said)), 3)
