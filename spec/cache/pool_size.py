"""CACHE-1: how many pages a device has room for."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ..reading.arguments import integer, listed, real, refusal

__all__ = ["PoolSize", "per_device_hbm_budget_bytes", "read_utilization", "size_pool"]

_UNKNOWN_BUDGET = 4 * 2**30


class PoolSize(NamedTuple):
    """The pool that fits into a budget.

    Attributes:
        num_pages: its pages, the null page among them.
        page_bytes: bytes of a page: as many as the group with the largest pages needs.
        unused_bytes: what is left of the budget; less than a page.
        group_waste: for each group, the bytes of a page that it does not use.
    """

    num_pages: int
    page_bytes: int
    unused_bytes: int
    group_waste: tuple[int, ...]


def size_pool(budget_bytes: int, group_page_bytes: Sequence[int]) -> PoolSize:
    """The pool that several groups share, as large as a budget permits (CACHE-1).

    A page id means one page in every group, as any page may come to serve any group.

    Args:
        budget_bytes: the bytes of one device that the cache may take.
        group_page_bytes: for each group the bytes of one page on one device, over all layers of the group.

    Raises:
        TypeError: an argument of a wrong type.
        ValueError: no group, a page without bytes, or a budget of less than two pages (POOL-1).
    """
    budget = integer("budget_bytes", budget_bytes)
    sizes = [integer("group_page_bytes", size, minimum=1) for size in listed("group_page_bytes", group_page_bytes)]
    if not sizes:
        raise refusal(ValueError, "R1", "group_page_bytes=[] names no group")
    largest = max(sizes)
    if budget < 2 * largest:
        raise refusal(ValueError, "CACHE-1", f"budget_bytes={budget} must hold 2 pages of {largest} bytes")
    pages = budget // largest
    return PoolSize(pages, largest, budget - pages * largest, tuple(largest - size for size in sizes))


def read_utilization(name: str, value: object) -> float:
    """Reads a part of a whole, above 0 and at most 1 (R1)."""
    part = real(name, value)
    if not 0 < part <= 1:
        raise refusal(ValueError, "R1", f"{name}={part} must be above 0 and at most 1")
    return part


def per_device_hbm_budget_bytes(
    util: float = 0.9, mode: str = "free", safety_margin: int = 268435456, devices: Iterable[Any] = ()
) -> int:
    """The bytes that a cache may take on each device (CACHE-1).

    Args:
        util: the part of the memory that may be used.
        mode: ``free``: of what is free now, less the margin. ``total``: of all, less what is in use and the margin.
        safety_margin: bytes that are left alone.
        devices: objects with ``memory_stats()``, which gives ``bytes_limit`` and ``bytes_in_use``, or None where
            nothing is known.

    Returns:
        The least of the devices' budgets; 4 GiB where there are no devices of which anything is known.

    Raises:
        TypeError: an argument of a wrong type.
        ValueError: an argument out of its bounds, or a device with nothing left.
    """
    part = read_utilization("util", util)
    if mode not in ("free", "total"):
        raise refusal(ValueError, "R1", f"mode={mode!r} must be 'free' or 'total'")
    margin = integer("safety_margin", safety_margin)
    budgets = []
    for device in listed("devices", devices):
        stats = device.memory_stats()
        if stats and "bytes_limit" in stats:
            limit, used = stats["bytes_limit"], stats.get("bytes_in_use", 0)
            budgets.append(int((limit - used - margin) * part if mode == "free" else limit * part - used - margin))
    if not budgets:
        return _UNKNOWN_BUDGET
    if min(budgets) <= 0:
        raise refusal(ValueError, "CACHE-1", f"safety_margin={margin}: no memory is left on a device")
    return min(budgets)
