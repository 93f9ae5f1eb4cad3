"""CACHE-1: the size of a pool, and how the arguments that it is computed from are read."""

from typing import NamedTuple

from .reading import integer, listed, real, refusal

__all__ = ["PoolSize", "read_budget", "read_page_bytes", "read_utilization"]


class PoolSize(NamedTuple):
    """The size of a pool that several cache groups share (CACHE-1).

    Attributes:
        num_pages: number of pages, the null page included.
        page_bytes: bytes of a page, the most that any group needs.
        unused_bytes: bytes of the budget that are left over, less than a page.
        group_waste: bytes of a page that are not used, for each group.
    """

    num_pages: int
    page_bytes: int
    unused_bytes: int
    group_waste: tuple[int, ...]


def read_utilization(name: str, value: object) -> float:
    """Reads a fraction, above 0 and at most 1 (R1). O(1)."""
    part = real(name, value)
    if not 0 < part <= 1:
        raise refusal(ValueError, "R1", f"{name}={part} must be above 0 and at most 1")
    return part


def read_budget(util: object, mode: object, safety_margin: object) -> tuple[float, bool, int]:
    """Reads how much of a device's memory a cache may use (R1).

    Returns:
        The fraction, whether it is one of what is free (not of all), and the margin in bytes.
    """
    part = read_utilization("util", util)
    if mode not in ("free", "total"):
        raise refusal(ValueError, "R1", f"mode={mode!r} must be 'free' or 'total'")
    return part, mode == "free", integer("safety_margin", safety_margin)


def read_page_bytes(group_page_bytes: object) -> list[int]:
    """Reads the bytes of a page of each group, of which there is at least one (R1)."""
    sizes = [integer("group_page_bytes", size, minimum=1) for size in listed("group_page_bytes", group_page_bytes)]
    if not sizes:
        raise refusal(ValueError, "R1", "group_page_bytes=[] names no group")
    return sizes
