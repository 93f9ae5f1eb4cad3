"""MAN-1, PIN-1, PIN-2, MAN-12 on a manager: hits that are only counted, bounds of pins, and what is counted.

Machines `pins` and `events` draw pins, the order in which pages are freed after them, and the events of both.
"""

from types import ModuleType
from typing import Any

import pytest

from kvproof import spec

from ..cache_groups import full
from ..strategies import PlainRequest


def _manager(package: ModuleType, *groups: spec.CacheGroupSpec, **options: Any) -> Any:
    options.setdefault("max_pinned_pages", 6)
    return package.CacheManager(
        options.pop("num_pages", 20),
        groups or [full(2)],
        20,
        hash_seed=b"s",
        **({"retention_interval": None} | options),
    )


def _computed(manager: Any, name: str, tokens: list[int], *steps: int) -> PlainRequest:
    """A request that computed its tokens in steps of the given sizes, and is live."""
    request = PlainRequest(name, tokens)
    for step in steps or (len(tokens),):
        assert manager.allocate_slots(request, step) is not None
        request.num_computed_tokens += step
    return request


def _gone(manager: Any, name: str, tokens: list[int], *steps: int) -> PlainRequest:
    """A request that computed its tokens and was freed."""
    request = _computed(manager, name, tokens, *steps)
    manager.free(request)
    request.num_computed_tokens = 0
    return request


# -- Hits that are asked for (MAN-1) ----------------------------------------------------------------


@pytest.mark.parametrize("eviction", ["lru", "reuse", "adaptive"])
def test_asking_how_much_would_be_hit_leaves_everything_as_it_is(package: ModuleType, eviction: str) -> None:
    """MAN-1, MAN-12, EVICT-1: no counter and no policy hears of it, and the request is not remembered."""
    manager = _manager(package, eviction=eviction, enable_events=True)
    _gone(manager, "a", [1, 2, 3, 4, 5])
    waiting = PlainRequest("b", [1, 2, 3, 4, 6])
    before, counters = manager.snapshot(), manager.counters
    assert manager.get_num_hit_tokens(waiting) == 4
    assert manager.get_num_hit_tokens(PlainRequest("c", [1, 2])) == 0, "the last token is left to compute"
    assert (manager.snapshot(), manager.counters) == (before, counters)
    assert "b" not in manager.req_to_page_hashes
    assert manager.get_computed_pages(waiting)[1] == 4


# -- Pins (PIN-1) -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("most", "tokens"), [(None, 4), (9, 4), (4, 4), (3, 2), (1, 0), (0, 0)])
def test_a_pin_is_no_longer_than_asked_for(package: ModuleType, most: int | None, tokens: int) -> None:
    """PIN-1: None where no page fits, and then there is no pin."""
    manager = _manager(package)
    request = _gone(manager, "a", [1, 2, 3, 4, 5])
    pinned = manager.pin_prefix(request, most)
    assert (pinned.num_tokens if pinned else 0) == tokens
    assert manager.set_prefix_priority(request, 1, most) == tokens
    assert manager.page_pool.num_pinned_pages == tokens // 2


def test_a_pin_too_many_changes_nothing(package: ModuleType) -> None:
    """PIN-1, R1: nor is its id used up; pages pinned twice count once."""
    manager = _manager(package, max_pinned_pages=2)
    request = _gone(manager, "a", [1, 2, 3, 4, 5])
    other = _gone(manager, "b", [9, 9])
    for pin_id in range(2):
        pinned = manager.pin_prefix(request)
        assert pinned is not None
        assert pinned.pin_id == pin_id
    before = manager.snapshot()
    with pytest.raises(ValueError, match=r"max_pinned_pages=2 \[PIN-1\]$"):
        manager.pin_prefix(other)
    assert manager.snapshot() == before
    manager.unpin_prefix(0)
    with pytest.raises(ValueError, match=r"max_pinned_pages=2 \[PIN-1\]$"):
        manager.pin_prefix(other)
    manager.unpin_prefix(1)
    pinned = manager.pin_prefix(other)
    assert pinned is not None
    assert pinned.pin_id == 2


# -- Priorities (PIN-2) -------------------------------------------------------------------------------


def test_a_priority_is_read_also_where_nothing_is_cached(package: ModuleType) -> None:
    """R1, PIN-2."""
    manager = _manager(package, enable_caching=False)
    request = PlainRequest("a", [1, 2, 3])
    assert manager.set_prefix_priority(request, 1) == 0
    assert manager.pin_prefix(request) is None
    with pytest.raises(TypeError, match=r"priority='high' must be an int \[R1\]$"):
        manager.set_prefix_priority(request, "high")
    with pytest.raises(ValueError, match=r"num_tokens=-1 must be at least 0 \[R1\]$"):
        manager.pin_prefix(request, -1)
    with pytest.raises(TypeError, match=r"pin_id=None must be an int \[R1\]$"):
        manager.unpin_prefix(None)
    _computed(manager, "a", [1])
    with pytest.raises(ValueError, match=r"live for another request \[MAN-6\]$"):
        manager.pin_prefix(request)


# -- Events and counters (MAN-12) ---------------------------------------------------------------------


def test_admissions_hits_and_preemptions_are_counted(package: ModuleType) -> None:
    """MAN-12: what is admitted without a look-up is a query too; a request whose keys were dropped is a new one."""
    manager = _manager(package)
    request = _gone(manager, "a", [1, 2, 3, 4, 5])
    pages, found = manager.get_computed_pages(request)
    assert manager.counters.requests == 1
    manager.allocate_slots(request, 1, found, pages)
    counters = manager.counters
    assert (counters.requests, counters.queried_tokens, counters.hit_tokens) == (2, 10, 4)
    assert (counters.preemptions, counters.preempted_tokens) == (1, 5)
    assert (counters.resumed_hit_tokens, counters.junction_hit_tokens) == (4, 0)
    manager.free(request)
    manager.free_page_hashes(request)
    manager.allocate_slots(request, 1)
    manager.free(request)
    manager.allocate_slots(PlainRequest("a", [1, 2, 3, 4, 5]), 1)
    assert manager.counters.preemptions == 1, "its keys were dropped; another object is another request"
    assert manager.counters.requests == 4
