"""Witnesses, as in `catalogue_witnesses`, of the seeded bugs that are about documents."""

from collections.abc import Callable
from typing import Any

from kvproof.spec.declarations import Request

from .catalogue_witnesses import tried
from .group_witnesses import manager_with

__all__ = ["DOCUMENT_WITNESSES"]


def restored_under_anothers_prefix(names: Any) -> object:
    manager = manager_with(names, "full:2")
    request = Request("a", [1, 2, 3])
    manager.allocate_slots(request, 3)
    shot = manager.snapshot()
    shot["contents"][0][1] = [1, 9]
    return tried(lambda: names.CacheManager.restore(shot, [request]).get_page_ids("a"))


def restore_mends_lists(names: Any) -> object:
    manager = manager_with(names, "full:2", counter_sampling=1)
    request = Request("a", [1, 2, 3, 4, 5])
    manager.allocate_slots(request, 5)
    shot = manager.snapshot()
    shot["stored_at"].reverse()
    return tried(lambda: names.CacheManager.restore(shot, [request]).get_page_ids("a"))


DOCUMENT_WITNESSES: dict[str, Callable[[Any], object]] = {
    witness.__name__: witness for witness in (restored_under_anothers_prefix, restore_mends_lists)
}
"""By the name of the bug."""
