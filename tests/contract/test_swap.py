"""SWAP-1: what plans say, when pages are held and published, and that a request that was away goes on as ever."""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof import fast, spec
from kvproof.conformance import record, replay_log
from kvproof.conformance.replay.groups import read_groups
from kvproof.spec.declarations import CacheSalt, Request, SwapCopy, SwapPlan

MIXED = "full:4,window:4:6,mamba:4:align"


def manager_of(package: ModuleType, groups: str = "full:4", num_pages: int = 20, host: int = 12, **options: Any) -> Any:
    return package.CacheManager(
        num_pages, read_groups(groups, 1), 64, hash_seed=b"seed", num_host_pages=host, **options
    )


def running(manager: Any, name: str = "a", length: int = 10) -> Request:
    """A request whose prompt was just computed."""
    request = Request(name, list(range(length)))
    pages, found = manager.get_computed_pages(request)
    assert manager.allocate_slots(request, length - found, found, pages) is not None
    request.num_computed_tokens = length
    return request


def away(manager: Any, request: Request) -> None:
    """A request goes to host memory, and its copies end."""
    manager.swap_done(manager.swap_out(request).swap_id)


def shown(manager: Any) -> Any:
    pool = manager.page_pool
    return (
        [page.page_id for page in pool.free_page_queue.get_all_free_pages()],
        [(page.page_id, page.ref_cnt, page.page_hash) for page in pool.pages],
        manager.num_free_host_pages,
        manager.get_page_ids("a"),
        manager.get_host_page_ids("a"),
    )


def test_the_plans_of_a_mixed_model(package: ModuleType) -> None:
    """Live slots of what the next step can read; on the way back what is still cached is not copied (SWAP-1)."""
    manager = manager_of(package, MIXED)
    request = running(manager)
    out = manager.swap_out(request)
    assert out == SwapPlan(
        swap_id=0,
        request_id="a",
        direction="out",
        num_tokens=10,
        copies=(
            *(SwapCopy(0, 1, 0, 4), SwapCopy(0, 2, 1, 4), SwapCopy(0, 3, 2, 2)),  # all that was computed
            *(SwapCopy(1, 5, 3, 4), SwapCopy(1, 6, 4, 2)),  # a window of 6: position 10 reads from 5 on
            SwapCopy(2, 7, 5, 4),  # a state is copied whole
        ),
    )
    assert manager.get_page_ids("a") == ([], [], [])
    manager.check()
    manager.swap_done(out.swap_id)
    assert manager.usage == 0.0
    manager.evict_pages([2])
    back = manager.swap_in(request)
    assert back.direction == "in"
    assert [copy[0] for copy in back.copies] == [0, 0, 1, 2]
    assert [copy[2:] for copy in back.copies] == [(1, 4), (2, 2), (4, 2), (5, 4)]
    manager.check()
    manager.swap_done(back.swap_id)
    lists = manager.get_page_ids("a")
    assert lists[0][0] == 1  # hit
    assert lists[1][:2] == [0, 5]  # before the window; hit
    assert lists[2][:2] == [0, 0]
    assert [copy.device_page for copy in back.copies] == [*lists[0][1:], lists[1][2], lists[2][2]]
    assert manager.num_free_host_pages == 12
    manager.check()


def test_none_changes_nothing(package: ModuleType) -> None:
    manager = manager_of(package, num_pages=7, host=2)
    request = running(manager)
    before = shown(manager)
    assert manager.swap_out(request) is None  # three pages, room for two
    assert shown(manager) == before
    manager = manager_of(package, num_pages=5)
    request = running(manager)
    away(manager, request)
    running(manager, "b", 16)
    before = shown(manager)
    assert manager.swap_in(request) is None
    assert shown(manager) == before
    manager.check()


def test_pages_are_held_until_the_fence_and_then_free_tail_first(package: ModuleType) -> None:
    manager = manager_of(package, num_pages=4)
    plan = manager.swap_out(running(manager))
    assert manager.page_pool.get_num_free_pages() == 0
    assert manager.allocate_slots(Request("b", [1]), 1) is None
    manager.swap_done(plan.swap_id)
    assert [page.page_id for page in manager.page_pool.free_page_queue.get_all_free_pages()] == [3, 2, 1]


@pytest.mark.parametrize("stage", ["going", "out", "coming"])
def test_an_abort_frees_both_sides_at_the_fence_at_the_latest(package: ModuleType, stage: str) -> None:
    manager = manager_of(package)
    request = running(manager)
    plan = manager.swap_out(request)
    if stage != "going":
        manager.swap_done(plan.swap_id)
    if stage == "coming":
        manager.evict_pages(range(1, 20))
        plan = manager.swap_in(request)
    assert manager.free(request) == []
    manager.check()
    assert manager.get_host_page_ids("a") == ([],)
    assert manager.num_free_host_pages == (12 if stage == "out" else 9)
    other = running(manager, "a", 5)  # the id is free again, whatever is under way
    manager.check()
    if stage != "out":
        manager.swap_done(plan.swap_id)
    manager.free(other)
    assert (manager.usage, manager.num_free_host_pages) == (0.0, 12)
    assert manager.counters.preemptions == 0  # another request than the one that was freed
    manager.check()


def test_what_comes_back_is_published_at_the_fence(package: ModuleType) -> None:
    """A look-up before would promise what no step writes (MAN-4, ATT-5)."""
    manager = manager_of(package, enable_events=True)
    follower = package.CacheFollower()
    request = running(manager)
    away(manager, request)
    manager.evict_pages(range(1, 20))
    plan = manager.swap_in(request)
    assert manager.get_computed_pages(Request("b", list(range(10))))[1] == 0
    manager.swap_done(plan.swap_id)
    assert manager.get_computed_pages(Request("b", list(range(10))))[1] == 8
    follower.apply(manager.take_events())
    assert len(follower.cached_page_hash_to_page) == len(manager.page_pool.cached_page_hash_to_page) == 2


@pytest.mark.parametrize("groups", ["full:4", "window:4:6", "chunk:4:8", "mamba:4:align", "mamba:4:none", MIXED])
def test_a_request_that_was_away_goes_on_as_ever(package: ModuleType, groups: str) -> None:
    """Beside a manager on which nothing happened: as many pages, nulls at the same places, the same hits."""
    for length in (7, 8, 12):
        here, there = manager_of(package, groups, 40), manager_of(package, groups, 40)
        stays, goes = running(here, length=length), running(there, length=length)
        away(there, goes)
        there.swap_done(there.swap_in(goes).swap_id)
        there.check()
        for step in range(10):
            for manager, request in ((here, stays), (there, goes)):
                request.append(step)
                assert manager.allocate_slots(request, 1) is not None
                request.num_computed_tokens += 1
                manager.check()
            nulls = [[page == 0 for page in pages] for pages in here.get_page_ids("a")]
            assert [[page == 0 for page in pages] for pages in there.get_page_ids("a")] == nulls
        again = [Request("b", stays.all_token_ids.copy()) for _ in range(2)]
        assert here.get_computed_pages(again[0])[1] == there.get_computed_pages(again[1])[1]


def test_nothing_is_forgotten_and_no_snapshot_taken_while_a_request_is_away(package: ModuleType) -> None:
    """POOL-9, MAN-14."""
    manager = manager_of(package)
    request = running(manager)
    plan = manager.swap_out(request)
    for done in (lambda: manager.swap_done(plan.swap_id), lambda: None):
        assert not manager.reset_prefix_cache()
        with pytest.raises(ValueError, match=r"\[MAN-14\]$"):
            manager.snapshot()
        done()
    manager.free(request)
    assert manager.reset_prefix_cache()


def test_snapshots_know_host_memory_and_the_next_plan(package: ModuleType) -> None:
    manager = manager_of(package)
    request = running(manager)
    away(manager, request)
    manager.swap_done(manager.swap_in(request).swap_id)
    for other in (spec, fast):
        restored = other.CacheManager.restore(manager.snapshot(), [request])
        assert restored.snapshot() == manager.snapshot()
        assert restored.num_free_host_pages == 12
        assert restored.swap_out(request).swap_id == 2


@pytest.mark.parametrize("groups", ["full:4,window:2:5", "full:4,full:3,mamba:2:align", "full:4,mamba:4", MIXED])
@given(length=st.integers(1, 24), more=st.integers(1, 6))
def test_what_came_back_is_restored_whatever_the_page_sizes(
    package: ModuleType, groups: str, length: int, more: int
) -> None:
    """MAN-14: a swap ends amid a page of one group and at the end of another's, or a group publishes nothing."""
    manager = manager_of(package, groups, num_pages=60, host=60)
    request = running(manager, length=length)
    away(manager, request)
    manager.swap_done(manager.swap_in(request).swap_id)
    shot = manager.snapshot()
    managers = [manager, *(other.CacheManager.restore(shot, [request]) for other in (spec, fast))]
    for token in range(more):
        request.append(token)
    assert [other.allocate_slots(request, more) is None for other in managers] == [False] * 3
    first, *others = (other.snapshot() for other in managers)
    assert others == [first] * 2


def test_who_is_on_the_way_with_a_withdrawn_page_is_told(package: ModuleType) -> None:
    """MAN-4."""
    manager = manager_of(package)
    first = running(manager, "a")
    second = running(manager, "b")
    plan = manager.swap_out(second)
    assert manager.free(first, 0) == ["b"]
    manager.swap_done(plan.swap_id)
    manager.check()


def test_what_is_refused_changes_nothing(package: ModuleType) -> None:
    """R1, MAN-6."""
    manager = manager_of(package)
    request = running(manager)
    waiting = Request("b", [1, 2])

    def refused(match: str, call: Any, *args: Any) -> None:
        before = shown(manager)
        with pytest.raises(ValueError, match=rf"{match}.*\[[A-Z]+-?\d+\]$"):
            call(*args)
        assert shown(manager) == before

    refused("'b' is not live", manager.swap_out, waiting)
    refused("'a' is not swapped out", manager.swap_in, request)
    refused("swap_id=0", manager.swap_done, 0)
    request.num_computed_tokens = 0
    refused("num_computed_tokens=0", manager.swap_out, request)
    request.num_computed_tokens = 11
    refused("num_computed_tokens=11", manager.swap_out, request)
    request.num_computed_tokens = 10
    plan = manager.swap_out(request)
    refused("'a' is not live", manager.swap_out, request)
    refused("'a'.* swap 0", manager.swap_in, request)
    manager.swap_done(plan.swap_id)
    refused("swap_id=0", manager.swap_done, 0)
    refused("'a' is swapped out", manager.allocate_slots, request, 1)
    refused("'a' is not swapped out", manager.swap_in, Request("a", list(range(10))))
    refused("'a' is live for another", manager.get_computed_pages, Request("a", list(range(10))))
    request.extra_keys = (CacheSalt("s"),)
    refused("'a'", manager.swap_in, request)
    request.extra_keys = ()
    with pytest.raises(TypeError, match="swap_id=True"):
        manager.swap_done(True)
    with pytest.raises(ValueError, match="num_host_pages=-1"):
        manager_of(package, host=-1)
    manager.check()


def test_without_host_memory_nothing_goes_and_with_a_lot_none_is_made(package: ModuleType) -> None:
    manager = manager_of(package, host=0)
    assert manager.swap_out(running(manager)) is None
    manager = manager_of(package, host=2**40)
    away(manager, running(manager))
    assert manager.num_free_host_pages == manager.num_host_pages - 3


def test_swaps_are_recorded_and_replayed(package: ModuleType, tmp_path: Path) -> None:
    """A log has every plan, and a replay on the specification comes to the same ones."""
    with record(manager_of(package, MIXED), tmp_path / "log") as manager:
        request = running(manager)
        away(manager, request)
        manager.evict_pages([2])
        manager.swap_done(manager.swap_in(request).swap_id)
        manager.free(request)
    replayed = replay_log(tmp_path / "log")
    assert replayed.wrong is None


def test_pages_from_elsewhere_are_hit_behind_the_fence(package: ModuleType) -> None:
    """SWAP-2: those that a hit needs, but for what is cached; the id is taken until then, and free gives them up."""
    manager = manager_of(package, MIXED)
    away(manager, running(manager, "a", 5))  # the first page of full attention and of the window stay cached
    request = Request("b", list(range(13)))
    plan = manager.receive_pages(request, 12)
    assert [(copy.group_id, copy.host_page, copy.num_slots) for copy in plan.copies] == [
        *((0, 1, 4), (0, 2, 4)),  # three places of full attention, the first of them a hit
        *((1, 3, 4), (1, 4, 4)),  # two of the window
        (2, 5, 4),
    ]
    assert manager.get_computed_pages(request)[1] == 0
    with pytest.raises(ValueError, match=r"\[SWAP-1\]$"):
        manager.allocate_slots(request, 13)
    manager.check()
    manager.swap_done(plan.swap_id)
    assert manager.get_computed_pages(request)[1] == 12
    assert manager.usage == 0.0
    manager.evict_pages(range(20))
    plan = manager.receive_pages(request, 12)
    manager.free(request)
    manager.swap_done(plan.swap_id)
    assert (manager.usage, manager.get_computed_pages(request)[1]) == (0.0, 0)
    assert manager.num_free_host_pages == 12 - 5  # what went of the request "a" is still there
    manager.check()


def test_what_can_not_be_received(package: ModuleType) -> None:
    """R1, SWAP-2."""
    manager = manager_of(package)
    live, waiting = running(manager), Request("b", list(range(10)))
    for request, tokens in ((live, 8), (waiting, 6), (waiting, 12), (waiting, 0)):
        before = shown(manager)
        with pytest.raises(ValueError, match=r"\[[A-Z]+-?\d+\]$"):
            manager.receive_pages(request, tokens)
        assert shown(manager) == before
    assert manager_of(package, num_pages=2).receive_pages(waiting, 8) is None
    for groups, options in (("mamba:4:none", {}), ("full:4", {"enable_caching": False})):
        with pytest.raises(ValueError, match=r"\[SWAP-2\]$"):
            manager_of(package, groups, **options).receive_pages(waiting, 8)
