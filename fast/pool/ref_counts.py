"""POOL-5, POOL-6: how often each page of a pool is referenced."""

import numpy as np
from numpy.typing import NDArray

from ..reading.arguments import refusal

__all__ = ["RefCounts", "mentions_of"]


class RefCounts:
    """The reference counts of a pool's pages, pins included. The caller moves pages into and out of the free queue.

    Args:
        num_pages: pages of the pool; all counts begin at 0.

    Attributes:
        of: the counts, `i32[num_pages]`.
        cell: the same memory, for scalar access.
    """

    __slots__ = ("cell", "of")

    def __init__(self, num_pages: int) -> None:
        self.of: NDArray[np.int32] = np.zeros(num_pages, np.int32)
        self.cell = self.of.data

    def num_free(self, pages: NDArray[np.int64]) -> int:
        """The number of ``pages`` that are free. O(pages)."""
        return len(pages) - int(np.count_nonzero(self.of[pages]))

    def set(self, page: int, count: int, pins: int) -> None:
        """Sets the count of a page in use; the null page's stays 0 (POOL-1).

        Args:
            page: the page.
            count: its new count, pins included.
            pins: the number of its pins.

        Raises:
            ValueError: the page would leave or enter the free queue (POOL-2), or lose a pin's reference (PIN-1).
        """
        if page == 0:
            return
        held = self.cell[page]
        if (count == 0) != (held == 0):
            raise refusal(ValueError, "POOL-2", f"ref_cnt={count} on page {page} at {held}: use touch or free_pages")
        if count < pins:
            raise refusal(ValueError, "PIN-1", f"ref_cnt={count} on page {page}, which is pinned {pins} times")
        self.cell[page] = count

    def add(self, pages: NDArray[np.int64]) -> NDArray[np.int64]:
        """Adds a reference to each of distinct pages; returns those that had none, in order. O(pages)."""
        counts = self.of[pages]
        num_held = np.count_nonzero(counts)
        self.of[pages] = counts + 1
        if num_held == pages.size:
            return pages[:0]
        return pages[counts == 0] if num_held else pages

    def add_mentioned(self, pages: NDArray[np.int64]) -> NDArray[np.int64]:
        """Adds a reference for each mention; returns the pages that had none, by id. O(pages log pages)."""
        free = np.unique(pages[self.of[pages] == 0])
        np.add.at(self.of, pages, 1)
        return free

    def remove(self, pages: NDArray[np.int64], mentions: NDArray[np.int64] | int) -> NDArray[np.int64]:
        """Removes ``mentions`` references from each of distinct pages; returns those left without, in order. O(pages).

        Args:
            pages: pages in use.
            mentions: the number of references to remove from each, at most as many as it has.
        """
        counts = self.of[pages] - mentions
        self.of[pages] = counts
        return pages[counts == 0] if np.count_nonzero(counts) else pages

    def require(self, pages: NDArray[np.int64], mentions: NDArray[np.int64], pins: NDArray[np.int64]) -> None:
        """Refuses to remove more references than pages have beside their pins (POOL-5).

        Args:
            pages: distinct pages.
            mentions: the number of references to remove from each.
            pins: the number of pins of each.
        """
        held = self.of[pages] - pins
        missing = mentions - held
        if missing.size and missing.max() > 0:
            worst = int(missing.argmax())
            raise refusal(
                ValueError,
                "POOL-5",
                f"ordered_pages: page {pages[worst]} mentioned {missing[worst] + held[worst]} times, "
                f"held {held[worst]} times",
            )

    def require_cacheable(
        self, pages: NDArray[np.int64], is_cached: NDArray[np.bool_], pins: NDArray[np.int64], are_distinct: bool
    ) -> None:
        """Refuses pages that are free, cached or pinned, or named twice (POOL-8, PIN-1).

        Args:
            pages: the pages.
            is_cached: True for each of them that is cached.
            pins: the number of pins of each.
            are_distinct: True if none is free, and none named twice.
        """
        if are_distinct and not is_cached.any() and not pins.any():
            return
        seen = set()
        for page, has_hash, num_pins in zip(pages.tolist(), is_cached.tolist(), pins.tolist(), strict=True):
            if not self.cell[page]:  # the message names the first one that is wrong
                raise refusal(ValueError, "POOL-8", f"pages: page {page} is free, its content is nobody's")
            if has_hash:
                raise refusal(ValueError, "POOL-8", f"pages: page {page} has a hash already")
            if page in seen:
                raise refusal(ValueError, "POOL-8", f"pages: page {page} is named twice")
            if num_pins:
                raise refusal(ValueError, "PIN-1", f"pages: page {page} is pinned, for content that was withdrawn")
            seen.add(page)

    def check(self, is_free: NDArray[np.bool_], pins: NDArray[np.int64]) -> None:
        """Verifies that exactly the free pages have no references, and that pins are references.

        Args:
            is_free: True for each page in the free queue, `bool[num_pages]`.
            pins: the number of pins of each page, `i64[num_pages]`.

        Raises:
            AssertionError: they don't agree.
        """
        assert not is_free[0], "POOL-1: the null page is free"
        assert self.of[0] == 0, "POOL-1: the null page is held"
        assert (self.of >= 0).all(), "POOL-5: a count below 0"
        assert (is_free[1:] == (self.of[1:] == 0)).all(), "POOL-2: free pages and counts differ"
        assert (pins <= self.of).all(), "PIN-1: more pins than references"


def mentions_of(pages: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The distinct pages in the order of their last mentions (POOL-3), and the number of mentions of each."""
    # read backwards, the first mention is the last one
    distinct, last, mentions = np.unique(pages[::-1], return_index=True, return_counts=True)
    order = np.argsort(-last)
    return distinct[order], mentions[order]
