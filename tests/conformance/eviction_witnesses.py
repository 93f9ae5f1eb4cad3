"""Witnesses of the seeded bugs of eviction policies, see `catalogue_witnesses`: pools of pages of one token."""

from collections.abc import Callable
from typing import Any

from kvproof.spec.declarations import Request

from .group_witnesses import manager_with

__all__ = ["EVICTION_WITNESSES"]


def _pool(names: Any, num_pages: int) -> Any:
    return names.PagePool(num_pages, True, eviction="reuse", hash_seed=b"kvproof")


def _published(pool: Any, *tokens: int) -> Any:
    """Pages of a new request."""
    pages = pool.get_new_pages(len(tokens))
    pool.cache_full_pages(Request("r", tokens), pages, [], 0, len(tokens), 1, 0)
    return pages


def _free(pool: Any) -> list[int]:
    return [page.page_id for page in pool.free_page_queue.get_all_free_pages()]


def _child_is_hit(names: Any) -> object:
    pool = _pool(names, 3)
    parent, child = _published(pool, 1, 2)
    pool.touch([[child]])
    pool.free_pages([child])
    pool.free_pages([child, parent])
    return _free(pool)


def _hit_while_free(names: Any) -> object:
    pool = _pool(names, 3)
    first = _published(pool, 1)
    pool.free_pages(first)
    pool.touch([first])
    second = _published(pool, 2)
    pool.free_pages(first)
    pool.free_pages(second)
    return _free(pool)


def _holds_another(names: Any) -> object:
    pool = _pool(names, 3)
    first = _published(pool, 1)
    pool.touch([first])
    pool.evict_pages([page.page_id for page in first])
    pool.cache_full_pages(Request("r", (2,)), first, [], 0, 1, 1, 0)
    second = _published(pool, 3)
    for pages in (first, first, second):
        pool.free_pages(pages)
    return _free(pool)


def _seen_by_policy(names: Any) -> object:
    """What a snapshot has of a policy after a page alone came, went, and came again."""
    manager = manager_with(names, "full:1", num_pages=4, eviction="reuse")
    for number, tokens in enumerate(([1, 2, 3], [4], [5], [6], [1], [7, 8], [1, 2])):
        request = Request(f"r{number}", tokens)
        manager.allocate_slots(request, len(tokens))
        manager.free(request)
    return manager.snapshot()["eviction"]


EVICTION_WITNESSES: dict[str, Callable[[Any], object]] = {
    "parent_goes_before_child": _child_is_hit,
    "hits_of_free_pages_do_not_count": _hit_while_free,
    "pages_taken_alone_leave_no_ghosts": _seen_by_policy,
    "protection_outlives_the_hash": _holds_another,
}
