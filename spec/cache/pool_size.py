"""CACHE-1: the number of pages that a device has room for."""

from collections.abc import Iterable, Sequence
from typing import Any

from ..declarations.pool_size import PoolSize, read_budget, read_page_bytes
from ..reading.arguments import integer, listed, refusal

__all__ = ["per_device_hbm_budget_bytes", "size_pool"]

_UNKNOWN_BUDGET = 4 * 2**30


def size_pool(budget_bytes: int, group_page_bytes: Sequence[int]) -> PoolSize:
    """The largest pool that fits a budget, shared by several groups (CACHE-1).

    Any page may be allocated for any group, so every page has the size that the group with the largest pages needs.

    Args:
        budget_bytes: the bytes of one device that the cache may use.
        group_page_bytes: for each group the bytes of one page on one device, over all layers of the group.

    Raises:
        TypeError: an argument of a wrong type.
        ValueError: no group, a page without bytes, or a budget of less than two pages (POOL-1).
    """
    budget = integer("budget_bytes", budget_bytes)
    sizes = read_page_bytes(group_page_bytes)
    largest = max(sizes)
    if budget < 2 * largest:
        raise refusal(ValueError, "CACHE-1", f"budget_bytes={budget} must hold 2 pages of {largest} bytes")
    pages = budget // largest
    return PoolSize(pages, largest, budget - pages * largest, tuple(largest - size for size in sizes))


def per_device_hbm_budget_bytes(
    util: float = 0.9, mode: str = "free", safety_margin: int = 268435456, devices: Iterable[Any] = ()
) -> int:
    """The bytes that a cache may use on each device (CACHE-1).

    Args:
        util: the fraction of the memory that may be used.
        mode: ``free``: the fraction of the free memory less the margin. ``total``: the fraction of all memory, less
            the memory in use and the margin.
        safety_margin: bytes that stay unused.
        devices: objects with ``memory_stats()``, which returns ``bytes_limit`` and ``bytes_in_use``, or None if these
            are not known.

    Returns:
        The smallest budget of any device; 4 GiB if no device has known memory.

    Raises:
        TypeError: an argument of a wrong type.
        ValueError: an argument out of its bounds, or a device with nothing left.
    """
    part, is_of_free, margin = read_budget(util, mode, safety_margin)
    budgets = []
    for device in listed("devices", devices):
        stats = device.memory_stats()
        if stats and "bytes_limit" in stats:
            limit, used = stats["bytes_limit"], stats.get("bytes_in_use", 0)
            budgets.append(int((limit - used - margin) * part if is_of_free else limit * part - used - margin))
    if not budgets:
        return _UNKNOWN_BUDGET
    if min(budgets) <= 0:
        raise refusal(ValueError, "CACHE-1", f"safety_margin={margin}: no memory is left on a device")
    return min(budgets)
