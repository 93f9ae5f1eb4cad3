"""CACHE-1: how many pages fit into the memory of a device.

Everything here is in bytes of one device, with the padding of the layout that is stored, and counts the null page: a
budget holds ``budget // page_bytes`` pages, and one more would not fit.
"""

import os
from collections.abc import Iterable, Sequence
from typing import Any

import jax

from kvproof.spec.declarations.pool_size import PoolSize, read_budget, read_page_bytes

from ..reading.arguments import integer, listed, refusal

__all__ = ["per_device_hbm_budget_bytes", "size_pool"]


def per_device_hbm_budget_bytes(
    util: float = 0.9, mode: str = "free", safety_margin: int = 268435456, devices: Iterable[Any] = ()
) -> int:
    """The bytes of memory that the cache may take on each device of this process (CACHE-1). O(devices).

    For a device that does not report its memory, such as a CPU, its share of the host's memory is used.

    Args:
        util: the part of the memory that may be used, above 0 and at most 1.
        mode: ``free``: that part of what is free now. ``total``: that part of all, less what is in use now.
        safety_margin: bytes that are left alone in either mode.
        devices: the devices; none given: those of this process.

    Returns:
        The budget of the device that has the least.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: one is out of its bounds, or nothing is left (R1).
    """
    part, is_of_free, margin = read_budget(util, mode, safety_margin)
    asked = listed("devices", devices) or jax.local_devices()
    budgets = []
    for device in asked:
        limit, used = _memory(device, len(asked))
        left = (limit - used - margin) * part if is_of_free else limit * part - used - margin
        budgets.append(int(left))
    if min(budgets) <= 0:
        raise refusal(ValueError, "CACHE-1", f"safety_margin={margin}: no device memory is left for the cache")
    return min(budgets)


def _memory(device: jax.Device, num_devices: int) -> tuple[int, int]:
    """The bytes that a device has, and those in use."""
    stats: dict[str, Any] | None = device.memory_stats()
    if stats and "bytes_limit" in stats:
        return int(stats["bytes_limit"]), int(stats.get("bytes_in_use", 0))
    page = os.sysconf("SC_PAGE_SIZE")
    limit = os.sysconf("SC_PHYS_PAGES") * page // num_devices
    return limit, max(0, limit - os.sysconf("SC_AVPHYS_PAGES") * page // num_devices)


def size_pool(budget_bytes: int, group_page_bytes: Sequence[int]) -> PoolSize:
    """The number of pages that fit into a budget if groups share one pool (CACHE-1). O(groups).

    A page of the pool serves any group, so that it is as large as the largest group's.

    Args:
        budget_bytes: bytes of one device.
        group_page_bytes: for each group the bytes of one page over all of its layers, on one device.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: no group, a page of no bytes, or a budget of less than two pages (POOL-1).
    """
    budget = integer("budget_bytes", budget_bytes)
    sizes = read_page_bytes(group_page_bytes)
    page_bytes = max(sizes)
    num_pages, unused = divmod(budget, page_bytes)
    if num_pages < 2:
        raise refusal(ValueError, "CACHE-1", f"budget_bytes={budget} must hold at least 2 pages of {page_bytes} bytes")
    return PoolSize(num_pages, page_bytes, unused, tuple(page_bytes - size for size in sizes))
