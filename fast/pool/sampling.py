"""MAN-12: the ages of pages, measured on a sample of them. Times are counted in pages allocated (the pool's clock).

A sampled page's times stand in small arrays, at its id divided by the sampling interval. A later time of the same kind
overwrites an earlier one; a time of freeing is read only while the page is free, a time of storing only while it is
cached.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from kvproof.spec.declarations import NUM_BUCKETS

__all__ = ["Sampling"]

_NEVER = -1


class Sampling:
    """The times of the pages whose ids are multiples of a number, and histograms of their ages.

    It trusts its caller: pages are distinct, and each change is recorded at the time it happens.

    Args:
        num_pages: pages of the pool.
        every: the sampling interval: pages whose id is a multiple of it are sampled, but for the null page.

    Attributes:
        lifetimes: histogram of the times from storing to eviction, of evicted pages.
        reuse_gaps: histogram of the times from freeing to the next use, of cached pages that were used again.
    """

    __slots__ = (
        "_every",
        "_freed_at",
        "_is_sampled",
        "_stored_at",
        "_stored_cell",
        "lifetimes",
        "reuse_gaps",
    )

    def __init__(self, num_pages: int, every: int) -> None:
        self._every = every
        # a byte a page: gathering from it costs 1 us for a thousand pages, their remainders 5 (measured)
        self._is_sampled: NDArray[np.bool_] = np.zeros(num_pages, bool)
        self._is_sampled[every::every] = True
        num_sampled = 1 + (num_pages - 1) // every
        self._stored_at: NDArray[np.int64] = np.full(num_sampled, _NEVER)
        self._stored_cell = self._stored_at.data
        self._freed_at: NDArray[np.int64] = np.zeros(num_sampled, np.int64)
        self.lifetimes = [0] * NUM_BUCKETS
        self.reuse_gaps = [0] * NUM_BUCKETS

    def stored(self, pages: NDArray[np.int64], clock: int) -> None:
        """Records that pages were cached; null pages are skipped. O(pages)."""
        some = self._is_sampled[pages].nonzero()[0]
        if some.size:
            self._stored_at[pages[some] // self._every] = clock

    def freed(self, pages: NDArray[np.int64], clock: int) -> None:
        """Records that pages became free. O(pages)."""
        some = self._is_sampled[pages].nonzero()[0]
        if some.size:
            self._freed_at[pages[some] // self._every] = clock

    def reused(self, pages: NDArray[np.int64], clock: int) -> None:
        """Records the gaps of free pages that are in use again. O(pages)."""
        some = self._is_sampled[pages].nonzero()[0]
        if some.size:
            _count(self.reuse_gaps, (clock - self._freed_at[pages[some] // self._every]).tolist())

    def evicted(self, pages: NDArray[np.int64], clock: int) -> None:
        """Records the lifetimes of the cached ones of pages that are allocated, the first at ``clock``. O(pages)."""
        some = self._is_sampled[pages].nonzero()[0]
        if some.size:  # one in 64: taken one by one they cost half of what eight array operations do
            every, stored_at = self._every, self._stored_cell
            lifetimes: list[int] = []
            for place, page in zip(some.tolist(), pages[some].tolist(), strict=True):
                slot = page // every
                if stored_at[slot] != _NEVER:
                    lifetimes.append(clock + place - stored_at[slot])
                    stored_at[slot] = _NEVER
            _count(self.lifetimes, lifetimes)

    def forgotten(self, pages: NDArray[np.int64]) -> None:
        """Records that pages lost their hashes without being allocated. O(pages)."""
        some = self._is_sampled[pages].nonzero()[0]
        self._stored_at[pages[some] // self._every] = _NEVER

    def cleared(self) -> None:
        """Records that all pages lost their hashes."""
        self._stored_at.fill(_NEVER)

    # -- Snapshots (MAN-14) -----------------------------------------------------------------------

    def state(self, is_free: NDArray[np.bool_]) -> dict[str, list[list[int]]]:
        """[page, time], by page: when sampled cached pages were stored, and when the free ones became free."""
        stored = (self._stored_at != _NEVER).nonzero()[0]
        freed = stored[is_free[stored * self._every]]
        times = (("stored_at", stored, self._stored_at), ("freed_at", freed, self._freed_at))
        return {name: np.stack([slots * self._every, at[slots]], axis=1).tolist() for name, slots, at in times}

    def restore(self, stored: NDArray[np.int64], freed: NDArray[np.int64]) -> None:
        """Sets times: `i64[n, 2]` each, rows of a sampled page and its time."""
        self._stored_at[stored[:, 0] // self._every] = stored[:, 1]
        self._freed_at[freed[:, 0] // self._every] = freed[:, 1]

    def check(self, is_cached: NDArray[np.bool_], is_free: NDArray[np.bool_], clock: int, evictions: int) -> None:
        """Verifies times and histograms.

        Args:
            is_cached: True for each page that is cached, `bool[num_pages]`.
            is_free: True for each page that is free, `bool[num_pages]`.
            clock: the time now.
            evictions: the number of pages ever evicted.

        Raises:
            AssertionError: they contradict each other; the message shows them.
        """
        stored, freed, every = self._stored_at, self._freed_at, self._every

        def state() -> str:
            return f"stored at {stored.tolist()}, freed at {freed.tolist()}, clock {clock}, evictions {evictions}"

        assert (self._is_sampled.nonzero()[0] == np.arange(every, len(is_cached), every)).all(), state()
        assert ((stored != _NEVER) == is_cached[::every])[1:].all(), (
            f"MAN-12: times of other pages than cached: {state()}"
        )
        assert stored.min() >= _NEVER and stored.max() <= clock, f"MAN-12: {state()}"  # noqa: PT018
        assert freed.min() >= 0 and freed.max() <= clock, f"MAN-12: {state()}"  # noqa: PT018
        both = (is_cached & is_free)[::every]
        assert (freed[both] >= stored[both]).all(), f"MAN-12: freed before it was stored: {state()}"
        assert sum(self.lifetimes) <= evictions <= clock, f"MAN-12: lifetimes {self.lifetimes}, {state()}"


def _count(histogram: list[int], values: Iterable[int]) -> None:
    lengths = list(map(int.bit_length, values))
    for length in set(lengths):  # many pages that are evicted together have few distinct lengths
        histogram[length if length < NUM_BUCKETS else -1] += lengths.count(length)
