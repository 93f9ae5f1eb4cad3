"""Witnesses, as in `catalogue_witnesses`, of the seeded bugs that are about swapping."""

from collections.abc import Callable
from typing import Any

import numpy as np

from kvproof.conformance.replay.groups import read_groups
from kvproof.spec.declarations import Request

from .catalogue_witnesses import SEED, tried
from .group_witnesses import manager_with

__all__ = ["SWAP_WITNESSES"]


def swapped_out(names: Any) -> tuple[Any, Request, Any]:
    """A manager, a request of five tokens on its way out, and the plan."""
    manager = manager_with(names, "full:2", num_host_pages=8)
    request = Request("a", [1, 2, 3, 4, 5])
    manager.allocate_slots(request, 5)
    request.num_computed_tokens = 5
    return manager, request, manager.swap_out(request)


def freed_before_the_fence(names: Any) -> object:
    manager, _, _ = swapped_out(names)
    return manager.page_pool.get_num_free_pages()


def hits_copied_over(names: Any) -> object:
    manager, request, plan = swapped_out(names)
    manager.swap_done(plan.swap_id)
    return list(map(tuple, manager.swap_in(request).copies))


def dead_slots_leave(names: Any) -> object:
    return [copy.num_slots for copy in swapped_out(names)[2].copies]


def host_freed_before_the_fence(names: Any) -> object:
    manager, request, plan = swapped_out(names)
    manager.swap_done(plan.swap_id)
    manager.swap_in(request)
    return manager.num_free_host_pages


def aborted_on_the_host(names: Any) -> object:
    manager, request, plan = swapped_out(names)
    manager.swap_done(plan.swap_id)
    manager.free(request)
    return manager.num_free_host_pages


def back_in_part_of_a_page(names: Any) -> object:
    manager = manager_with(names, "full:2,full:3", num_host_pages=8)
    request = Request("a", [1, 2, 3, 4, 5])
    manager.allocate_slots(request, 5)
    request.num_computed_tokens = 5
    for swap in (manager.swap_out, manager.swap_in):
        manager.swap_done(swap(request).swap_id)
    return tried(lambda: names.CacheManager.restore(manager.snapshot(), [request]).get_page_ids("a"))


def freed_on_the_first_shard(names: Any) -> object:
    manager = names.ShardedCacheManager(2, 8, read_groups("full:2", 1), 32, hash_seed=SEED, num_host_pages=8)
    for name in ("a", "b"):  # b goes to the second shard, where no tokens wait
        request = Request(name, [1, 2, 3])
        manager.allocate_slots(request, 3)
        request.num_computed_tokens = 3
    manager.swap_done(manager.swap_out(request).swap_id)
    manager.free(request)
    return [shard.num_free_host_pages for shard in manager.shards]


def waiting_tokens_do_not_count(names: Any) -> object:
    manager = names.ShardedCacheManager(2, 8, read_groups("full:2", 1), 32, hash_seed=SEED)
    for name in ("a", "b"):
        request = Request(name, [1, 2, 3, 4, 5])
        pages, found = manager.get_computed_pages(request)
        manager.allocate_slots(request, 1, found, pages)
    return manager.shard_of("b")


def pages_exported_whole(names: Any) -> object:
    pages = np.ones((2, 4, 1), np.float32)
    return np.asarray(names.export_pages(pages, np.array([1], np.int32), np.array([3], np.int32))).tolist()


SWAP_WITNESSES: dict[str, Callable[[Any], object]] = {
    witness.__name__: witness
    for witness in (
        freed_before_the_fence,
        hits_copied_over,
        dead_slots_leave,
        host_freed_before_the_fence,
        aborted_on_the_host,
        back_in_part_of_a_page,
        freed_on_the_first_shard,
        waiting_tokens_do_not_count,
        pages_exported_whole,
    )
}
"""What each of these bugs shows that the backend behind it does not."""
