"""RET-3: the free pages of priority 0 where some are of second class: taken before all other cached pages.

Pages without a hash at the front of the log hold nothing, and are taken before those of second class.
"""

import numpy as np
from numpy.typing import NDArray

from .eviction import ReuseOrder
from .free_log import FreeLog

__all__ = ["RetainedLog"]


class RetainedLog:
    """A `FreeLog` in which some pages have been put back as second class; it has the methods of one.

    Args:
        num_pages: pages of the pool; all but the null page are free at first, by id.
        run_cell: 0 for each page that is not cached.
        policy: the order of the pages that are not of second class (EVICT-1); None: the least recently freed first.

    Attributes:
        first: the pages that are not of second class.
        second: those that are, in the order in which they are taken.
    """

    __slots__ = ("_is_second", "_policy", "_run_of", "first", "second")

    def __init__(self, num_pages: int, run_cell: "memoryview[int]", policy: ReuseOrder | None) -> None:
        self._policy = policy
        self.first = FreeLog(num_pages, front_room=True) if policy is None else policy
        self.second = FreeLog(num_pages)
        self.second.take(self.second.num_free)
        self._is_second: NDArray[np.bool_] = np.zeros(num_pages, bool)
        self._run_of: NDArray[np.uint32] = np.frombuffer(run_cell, np.uint32)

    @property
    def num_free(self) -> int:
        """The number of free pages."""
        return self.first.num_free + self.second.num_free

    def is_second(self, page: int) -> bool:
        """True if a page is free and of second class. O(1)."""
        return bool(self._is_second[page])

    # -- Taking -----------------------------------------------------------------------------------

    def take_one(self) -> int:
        """Takes the first page; at least one must be free. O(1) amortised."""
        first = self.first
        if not self.second.num_free or (first.num_free and first.num_leading(self._run_of, 1)):
            return first.take_one()
        page = self.second.take_one()
        self._is_second[page] = False
        if self._policy is not None:
            self._policy.evicted_one(page)
        return page

    def take(self, count: int) -> NDArray[np.int64]:
        """Takes the first ``count`` pages, `i64[count]`; at least ``count`` must be free. O(count) amortised."""
        first, second = self.first, self.second
        if not second.num_free:
            return first.take(count)
        num_empty = first.num_leading(self._run_of, min(count, first.num_free))
        if num_empty == count:
            return first.take(count)
        empty = first.take(num_empty)
        taken = second.take(min(count - num_empty, second.num_free))
        self._is_second[taken] = False
        if self._policy is not None:
            self._policy.evicted(taken)
        return np.concatenate([empty, taken, first.take(count - num_empty - len(taken))])

    def remove(self, pages: NDArray[np.int64]) -> None:
        """Removes distinct free pages from any places. O(pages)."""
        if self.second.num_free:
            own = self._is_second[pages]
            if np.count_nonzero(own):
                self._leave_second(pages[own])
                pages = pages[~own]
        self.first.remove(pages)

    def remove_one(self, page: int) -> None:
        """Removes one free page from any place. O(1)."""
        if self._is_second[page]:
            self._is_second[page] = False
            self.second.remove_one(page)
        else:
            self.first.remove_one(page)

    def _leave_second(self, pages: NDArray[np.int64]) -> None:
        self._is_second[pages] = False
        self.second.remove(pages)

    # -- Putting back -----------------------------------------------------------------------------

    def put_one(self, page: int) -> None:
        """Puts a page behind the last. O(1) amortised."""
        self.first.put_one(page)

    def put(self, pages: NDArray[np.int64]) -> None:
        """Puts distinct pages behind the last, in order. O(pages) amortised."""
        self.first.put(pages)

    def are_distinct(self, pages: NDArray[np.int64]) -> bool:
        """True if no page is listed twice; the pages are not free. O(pages) amortised."""
        return self.first.are_distinct(pages)

    def put_distinct(self, pages: NDArray[np.int64]) -> bool:
        """`put`, unless a page is listed twice; True if it was done. O(pages) amortised."""
        return self.first.put_distinct(pages)

    def put_front(self, pages: NDArray[np.int64]) -> None:
        """Puts distinct pages before the first, in order. O(pages) amortised."""
        self.first.put_front(pages)

    def put_front_one(self, page: int) -> None:
        """Puts a page before the first. O(1) amortised."""
        if isinstance(self.first, FreeLog):
            self.first.put_front_one(page)
        else:
            self.first.put_front(np.array((page,)))

    def put_second_one(self, page: int) -> None:
        """Puts a cached page behind those of second class. O(1) amortised."""
        if self._policy is not None:
            self._policy.settle()
        self._is_second[page] = True
        self.second.put_one(page)

    def put_second(self, pages: NDArray[np.int64]) -> None:
        """Puts distinct cached pages behind those of second class, in order. O(pages) amortised."""
        if self._policy is not None:
            self._policy.settle()
        self._is_second[pages] = True
        self.second.put(pages)

    def put_first(self, pages: NDArray[np.int64]) -> None:
        """Puts those of distinct pages that are of second class behind the last, in order. O(pages) amortised."""
        pages = pages[self._is_second[pages]]
        if pages.size:
            self._leave_second(pages)
            self.first.put(pages)

    # -- Looking ----------------------------------------------------------------------------------

    def order(self, before: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """The free pages, first the one to be taken first, `i64[num_free]`, after pages ``before``. O(free pages)."""
        second = self.second.order()
        if self._policy is not None:
            first = self._policy.order(second if before is None else np.concatenate([before, second]))
        else:
            first = self.first.order()
        num_empty = self.first.num_leading(self._run_of, self.first.num_free) if second.size else 0
        return np.concatenate([first[:num_empty], second, first[num_empty:]])

    def check(self) -> None:
        """Verifies that both queues and what is noted of the second one agree.

        Raises:
            AssertionError: they don't.
        """
        self.first.check()
        self.second.check()
        first, second = self.first.order(), self.second.order()
        assert sorted(second.tolist()) == self._is_second.nonzero()[0].tolist(), (
            f"RET-3: second class {second.tolist()}"
        )
        noted = [] if self._policy is None else self._policy.noted_pages()
        assert not self._is_second[noted].any(), f"EVICT-1: marks of {noted} are needed, {second.tolist()} are free"
        assert not np.isin(first, second).any(), f"POOL-2: free twice: {first.tolist()}, {second.tolist()}"
