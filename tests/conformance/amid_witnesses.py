"""Witnesses, as in `catalogue_witnesses`, of the seeded bugs of hits that end amid a page."""

from collections.abc import Callable
from typing import Any

import numpy as np

from kvproof.spec.declarations import Request

from .catalogue_witnesses import cached
from .group_witnesses import manager_with

__all__ = ["AMID_WITNESSES"]


def _admitted(names: Any, *more: int) -> tuple[Any, Request, int]:
    """A manager, and a live request that hits the first 6 of 8 tokens which another one left in pages of 4."""
    manager, first = manager_with(names, "full:4", match_unit=1, num_host_pages=8), Request("a", range(8))
    manager.allocate_slots(first, 8)
    manager.free(first)
    second = Request("b", [*range(6), *more])
    pages, found = manager.get_computed_pages(second)
    manager.allocate_slots(second, second.num_tokens - found, found, pages)
    return manager, second, found


def the_last_slot_is_not_copied(names: Any) -> object:
    return list(map(tuple, _admitted(names, 9)[0].take_page_copies()))


def slots_behind_those_named_are_copied(names: Any) -> object:
    pages = np.arange(24, dtype=np.float32).reshape(3, 4, 2)
    orders = (np.array([number], np.int32) for number in (1, 2, 2))
    return np.asarray(names.copy_pages(pages, *orders)).tolist()


def sources_are_let_go_before_the_copy(names: Any) -> object:
    return _admitted(names, 9)[0].page_pool.get_num_free_pages()


def hits_are_counted_in_whole_pages(names: Any) -> object:
    return _admitted(names, 9)[2]


def copies_inherit_the_key(names: Any) -> object:
    return cached(_admitted(names, 9)[0].page_pool)


def what_waits_for_a_copy_is_swapped_out(names: Any) -> object:
    manager, request, found = _admitted(names, 9)
    request.num_computed_tokens = found
    return list(map(tuple, manager.swap_out(request).copies))


AMID_WITNESSES: dict[str, Callable[[Any], object]] = {
    witness.__name__: witness
    for witness in (
        the_last_slot_is_not_copied,
        slots_behind_those_named_are_copied,
        sources_are_let_go_before_the_copy,
        hits_are_counted_in_whole_pages,
        copies_inherit_the_key,
        what_waits_for_a_copy_is_swapped_out,
    )
}
"""By the name of the bug."""
