"""Witnesses, as in `catalogue_witnesses`, of the seeded bugs of what is kept of windows, chunks and states."""

from collections.abc import Callable
from typing import Any

from kvproof.spec.declarations import Request

from .catalogue_witnesses import free
from .group_witnesses import grown, manager_with

__all__ = ["RETENTION_WITNESSES"]

FIRST, SECOND, THIRD = [1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 9, 9, 9, 9], [1, 2, 3, 4, 0, 0, 0, 0]


def _parted(names: Any) -> Any:
    """A manager of full attention and windows, and a live request that parted from an earlier one at 4 tokens."""
    manager, first, second = manager_with(names, "full:2,window:2:3"), Request("a", FIRST), Request("b", SECOND)
    manager.allocate_slots(first, 8)
    manager.free(first)
    manager.allocate_slots(second, 8)
    return manager, first, second


def junctions_are_found_in_the_longest_group(names: Any) -> object:
    manager, again = _parted(names)[0], Request("c", FIRST)
    return manager.get_junction(again)


def junctions_end_with_a_restart(names: Any) -> object:
    manager, first, second = _parted(names)
    return names.CacheManager.restore(manager.snapshot(), [first, second]).get_junction(second)


def a_junction_is_kept_once(names: Any) -> object:
    manager, _, second = _parted(names)
    manager.free(second)
    third = Request("c", THIRD)
    pages, hit = manager.get_computed_pages(third)
    manager.allocate_slots(third, 8 - hit, hit, pages)
    manager.free(third)
    return hit, free(manager.page_pool)


def the_end_of_a_prompt_outlives_others(names: Any) -> object:
    manager, other, request = manager_with(names, "full:2,window:2:3"), Request("o", SECOND), Request("a", FIRST)
    manager.allocate_slots(other, 8)
    manager.free(other)
    manager.allocate_slots(request, 8)
    manager.allocate_slots(grown(request, 1, 1, 1, 1), 4)
    return free(manager.page_pool)


def an_interval_keeps_its_last_multiple(names: Any) -> object:
    manager, request = manager_with(names, "full:2,window:2:3", retention_interval=4), Request("a", FIRST + FIRST)
    manager.allocate_slots(request, 16)
    manager.allocate_slots(grown(request, 1), 1)
    return free(manager.page_pool)


RETENTION_WITNESSES: dict[str, Callable[[Any], object]] = {
    witness.__name__: witness
    for witness in (
        junctions_are_found_in_the_longest_group,
        junctions_end_with_a_restart,
        a_junction_is_kept_once,
        the_end_of_a_prompt_outlives_others,
        an_interval_keeps_its_last_multiple,
    )
}
"""By the name of the bug."""
