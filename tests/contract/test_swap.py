"""SWAP-1: what plans say, what is refused, and what snapshots and logs know of requests that are away.

When pages are held and published, and what a request that was away has, the machine `swap` draws.
"""

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
