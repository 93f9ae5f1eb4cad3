"""PIN-1, PIN-2, MAN-12 on a manager: pinned and ranked prefixes, the events of all groups, what is counted."""

from types import ModuleType
from typing import Any

import pytest

from kvproof import spec

from ..cache_groups import full, states, window
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


def _free_ids(manager: Any) -> list[int]:
    return [page.page_id for page in manager.page_pool.free_page_queue.get_all_free_pages()]


# -- Pins (PIN-1) -----------------------------------------------------------------------------------


def test_a_pinned_prefix_outlives_everything_until_it_is_unpinned(package: ModuleType) -> None:
    """PIN-1: it is the longest that all groups hold, the last token included, null pages where nothing is read."""
    manager = _manager(package, full(2), window(2, 2))
    request = _gone(manager, "a", [1, 2, 3, 4, 5])
    assert manager.get_computed_pages(PlainRequest("b", [1, 2, 3, 4]))[1] == 2, "a token is left to compute"
    pinned = manager.pin_prefix(PlainRequest("b", [1, 2, 3, 4]))
    assert pinned is not None
    assert (pinned.pin_id, pinned.num_tokens, pinned.pages.get_page_ids()) == (0, 4, ([1, 2], [0, 5]))
    assert manager.page_pool.num_pinned_pages == 3
    _gone(manager, "c", list(range(10, 26)))
    assert manager.get_computed_pages(request)[1] == 4
    assert not manager.reset_prefix_cache()
    with pytest.raises(ValueError, match=r"page 5 is pinned \[PIN-1\]$"):
        manager.evict_pages([5])
    before = _free_ids(manager)
    manager.unpin_prefix(pinned.pin_id)
    assert _free_ids(manager) == [*before, 2, 1, 5]
    manager.evict_pages([5])
    assert manager.get_computed_pages(request)[1] == 0, "the window's page for 2 tokens was not pinned"
    with pytest.raises(ValueError, match=r"pin_id=0 is no pin \[PIN-1\]$"):
        manager.unpin_prefix(0)
    manager.check()


def test_eagle_demands_nothing_of_a_pin(package: ModuleType) -> None:
    """PIN-1, MAN-9: a pin keeps what is there."""
    manager = _manager(package, use_eagle=True)
    request = _gone(manager, "a", [1, 2, 3, 4, 5])
    assert manager.get_computed_pages(request)[1] == 2
    pinned = manager.pin_prefix(request)
    assert pinned is not None
    assert pinned.num_tokens == 4


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


def test_what_was_never_written_loses_its_hash_though_it_is_pinned(package: ModuleType) -> None:
    """MAN-4, PIN-1: the pin holds the page, but nobody finds it any more."""
    manager = _manager(package)
    request = _computed(manager, "a", [1, 2, 3, 4, 5])
    pinned = manager.pin_prefix(request)
    assert pinned is not None
    manager.free(request, 2)
    request.num_computed_tokens = 0
    assert manager.get_computed_pages(request)[1] == 2
    assert manager.page_pool.pages[2].ref_cnt == 1
    manager.check()
    manager.unpin_prefix(pinned.pin_id)
    assert manager.usage == 0
    manager.check()


def test_a_pin_is_no_request(package: ModuleType) -> None:
    """PIN-1, MAN-10: it does not count among those that share a prefix, nor does it keep them from it."""
    manager = _manager(package)
    request = _computed(manager, "a", [1, 2, 3, 4, 5])
    manager.pin_prefix(request)
    assert manager.get_num_common_prefix_pages(request, 1) == [3]


# -- Priorities (PIN-2) -------------------------------------------------------------------------------


def test_a_ranked_prefix_is_evicted_in_its_turn_and_from_its_end(package: ModuleType) -> None:
    """PIN-2, MAN-5: those of a low priority first; of one prefix the last page first, group by group."""
    manager = _manager(package, full(2), window(2, 9), num_pages=12)
    requests = [_gone(manager, name, [place] * 4) for place, name in enumerate("ab")]
    assert manager.set_prefix_priority(requests[0], 2) == 4
    assert manager.set_prefix_priority(requests[1], -1, 2) == 2
    low, high = manager.pin_prefix(requests[1], 2), manager.pin_prefix(requests[0])
    assert low is not None
    assert high is not None
    manager.unpin_prefix(low.pin_id)
    manager.unpin_prefix(high.pin_id)
    first, last = low.pages.get_page_ids(), high.pages.get_page_ids()
    assert _free_ids(manager)[:2] == [first[0][0], first[1][0]]
    assert _free_ids(manager)[-4:] == [*last[0][::-1], *last[1][::-1]]


def test_setting_a_priority_orders_free_pages_tail_first(package: ModuleType) -> None:
    """PIN-2: as `free` does."""
    manager = _manager(package, num_pages=8)
    request = _gone(manager, "a", [1, 2, 3, 4, 5, 6])
    manager.set_prefix_priority(request, 3, None, 5.0)
    assert _free_ids(manager) == [4, 5, 6, 7, 3, 2, 1]
    manager.advance_time(5)
    assert [manager.page_pool.get_priority(page_id) for page_id in (1, 2, 3)] == [0, 0, 0]
    assert manager.page_pool.now == 5.0


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


def test_a_pages_parent_is_the_one_of_the_chain(package: ModuleType) -> None:
    """MAN-12, HASH-3: also where the page before it is a null page, or was never cached."""
    manager = _manager(package, window(2, 1), states(2), enable_events=True)
    request = _computed(manager, "a", [1, 2, 3, 4, 5, 6], 2, 1, 3)
    keys = [key.hash_value for key in manager.req_to_page_hashes["a"]]
    told = [
        (event.group_id, event.page_hash, event.parent_hash, event.token_ids)
        for event in manager.take_events()
        if isinstance(event, spec.PageStored)
    ]
    assert told == [
        (0, keys[0], None, (1, 2)),
        (1, keys[0], None, (1, 2)),
        (0, keys[1], keys[0], (3, 4)),
        (0, keys[2], keys[1], (5, 6)),
        (1, keys[2], keys[1], (5, 6)),
    ]
    assert manager.get_page_ids("a")[0][0] == 0
    assert manager.take_events() == []
    manager.free(request)


def test_withdrawn_pages_are_told_and_refused_calls_are_not(package: ModuleType) -> None:
    """MAN-4, MAN-12."""
    manager = _manager(package, enable_events=True)
    request = _computed(manager, "a", [1, 2, 3, 4, 5])
    keys = [key.hash_value for key in manager.req_to_page_hashes["a"]]
    manager.take_events()
    with pytest.raises(ValueError, match="MAN-2"):
        manager.allocate_slots(request, 99)
    assert manager.take_events() == []
    manager.free(request, 0)
    assert manager.take_events() == [spec.PageRemoved(0, 1, keys[0]), spec.PageRemoved(0, 2, keys[1])]
    assert manager.reset_prefix_cache()
    assert manager.take_events() == [spec.CacheCleared()]


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
