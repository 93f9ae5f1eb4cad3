"""PIN-2: the free order of a pool whose pages have priorities.

Most pages always have priority 0; the free ones among them stay in the `FreeLog`. Free pages of another priority stand
in levels, one ordered dict for each priority. Until a priority is first set the pool has no `PriorityOrder` and uses
the log itself.
"""

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .free_log import FreeLog

__all__ = ["PriorityOrder"]

_SPARE_ENTRIES = 64
"""The void entries that a small heap may have; a large heap is rebuilt when more than half of its entries are void."""


class PriorityOrder:
    """The free pages of a pool by priority, low ones first, and by arrival within one. It trusts its caller.

    Has the methods of `FreeLog`, which it replaces.

    Args:
        log: the free pages, which all have priority 0.
        run_cell: 0 for each page that is not cached; a page that is freed without a hash loses its priority.

    Attributes:
        num_prioritised: the number of pages, free or in use, whose priority is not 0.
    """

    __slots__ = (
        "_end_of",
        "_ends",
        "_level_heap",
        "_levels",
        "_log",
        "_num_in_levels",
        "_priority_cell",
        "_priority_of",
        "_run_cell",
        "_run_of",
        "num_prioritised",
    )

    def __init__(self, log: FreeLog, run_cell: "array[int]") -> None:
        self._log = log
        self._run_cell = run_cell
        self._run_of: NDArray[np.uint32] = np.frombuffer(run_cell, np.uint32)
        self._priority_cell = array("i", bytes(4 * len(run_cell)))
        self._priority_of: NDArray[np.int32] = np.frombuffer(self._priority_cell, np.int32)
        self._levels: dict[int, OrderedDict[int, None]] = {}
        self._level_heap: list[int] = []  # a heap of their priorities; entries without a level are void
        self._num_in_levels = 0
        self._end_of: dict[int, float] = {}
        self._ends: list[tuple[float, int]] = []  # a heap; entries that ``_end_of`` does not confirm are void
        self.num_prioritised = 0

    # -- Priorities -------------------------------------------------------------------------------

    def priority(self, page: int) -> int:
        """A page's priority. O(1)."""
        return self._priority_cell[page]

    def set(self, page: int, priority: int, end: float | None, is_free: bool) -> None:
        """Sets the priority of a page; a free page whose priority changes goes behind the free pages of the new one.

        Args:
            page: the page.
            priority: its new priority; 0, the default, has no end.
            end: the time at which it ends; None: never.
            is_free: True if the page is free.
        """
        changes = priority != self._priority_cell[page]
        if changes and is_free:
            self.remove_one(page)
        self._note(page, priority, end)
        if changes and is_free:
            self._enter(page)

    def given(self) -> list[tuple[int, int, float | None]]:
        """(page, priority, its end) of the pages whose priority is not 0, by page. O(pages)."""
        return [
            (page, self._priority_cell[page], self._end_of.get(page))
            for page in self._priority_of.nonzero()[0].tolist()
        ]

    def _note(self, page: int, priority: int, end: float | None) -> None:
        self.num_prioritised += (priority != 0) - (self._priority_cell[page] != 0)
        self._priority_cell[page] = priority
        if end is None or not priority:
            self._end_of.pop(page, None)
            return
        self._end_of[page] = end
        heappush(self._ends, (end, page))
        if len(self._ends) > 2 * len(self._end_of) + _SPARE_ENTRIES:
            self._ends = [(until, other) for other, until in self._end_of.items()]
            heapify(self._ends)

    def expire(self, now: float) -> None:
        """Ends the priorities that last until ``now``, in the order of (end, page). O(log pages) for each."""
        while self._ends and self._ends[0][0] <= now:
            end, page = heappop(self._ends)
            if self._end_of.get(page) == end:
                is_free = page in self._levels.get(self._priority_cell[page], ())
                self.set(page, 0, None, is_free)

    def have_ended(self, now: float) -> list[int]:
        """The pages whose priorities should have ended by ``now``; O(pages)."""
        return [page for page, end in self._end_of.items() if end <= now]

    # -- The order --------------------------------------------------------------------------------

    @property
    def num_free(self) -> int:
        """The number of free pages."""
        return self._log.num_free + self._num_in_levels

    def take_one(self) -> int:
        """Takes the first page, whose priority ends; at least one must be free. O(log levels) amortised."""
        lowest = self._lowest()
        if not lowest or (lowest > 0 and self._log.num_free):
            return self._log.take_one()
        page = next(iter(self._levels[lowest]))
        self._leave(page)
        self._note(page, 0, None)
        return page

    def take(self, count: int) -> NDArray[np.int64]:
        """Takes the first ``count`` pages, `i64[count]`, whose priorities end; at least ``count`` must be free.

        O(count), and O(log levels) amortised for each page whose priority is not 0.
        """
        before: list[int] = []
        while len(before) < count and self._lowest() < 0:
            before.append(self.take_one())
        middle = self._log.take(min(count - len(before), self._log.num_free))
        behind = [self.take_one() for _ in range(count - len(before) - len(middle))]
        return np.concatenate([np.array(before, np.int64), middle, np.array(behind, np.int64)])

    def take_few(self, count: int) -> list[int]:
        """`take`, as a list."""
        taken: list[int] = self.take(count).tolist()
        return taken

    def put_one(self, page: int) -> None:
        """Puts a page behind the last of its priority, which ends if the page has no hash. O(1) amortised."""
        if self._priority_cell[page] and not self._run_cell[page]:
            self._note(page, 0, None)
        self._enter(page)

    def put(self, pages: NDArray[np.int64]) -> None:
        """Puts distinct pages behind the last of their priorities, in order; see `put_one`. O(pages) amortised."""
        in_level = self._priority_of[pages] != 0
        if in_level.any():
            ended = in_level & (self._run_of[pages] == 0)
            for page in pages[ended].tolist():
                self._note(page, 0, None)
            in_level &= ~ended
            for page in pages[in_level].tolist():
                self._enter(page)
            pages = pages[~in_level]
        self._log.put(pages)

    def note_places(self, pages: NDArray[np.int64]) -> bool:
        """True if no page is listed twice; the pages are not free. O(pages) amortised."""
        return self._log.note_places(pages)

    def put_noted(self, pages: NDArray[np.int64]) -> None:
        """`put` for pages that were just passed to `note_places`."""
        self.put(pages)

    def put_front(self, pages: NDArray[np.int64]) -> None:
        """Puts distinct pages without a hash before the first of priority 0, in order. O(pages) amortised."""
        for page in pages[self._priority_of[pages] != 0].tolist():
            self._note(page, 0, None)
        self._log.put_front(pages)

    def remove(self, pages: NDArray[np.int64]) -> None:
        """Removes distinct free pages from any places. O(pages)."""
        in_log = self._priority_of[pages] == 0
        self._log.remove(pages[in_log])
        for page in pages[~in_log].tolist():
            self._leave(page)

    def remove_one(self, page: int) -> None:
        """Removes one free page from any place. O(1)."""
        if self._priority_cell[page]:
            self._leave(page)
        else:
            self._log.remove_one(page)

    def order(self) -> NDArray[np.int64]:
        """The free pages, first the one to be taken first, `i64[num_free]`. O(free pages + levels log levels)."""
        priorities = sorted(self._levels)
        low = [page for priority in priorities if priority < 0 for page in self._levels[priority]]
        high = [page for priority in priorities if priority > 0 for page in self._levels[priority]]
        return np.concatenate([np.array(low, np.int64), self._log.order(), np.array(high, np.int64)])

    def _enter(self, page: int) -> None:
        priority = self._priority_cell[page]
        if not priority:
            self._log.put_one(page)
            return
        level = self._levels.get(priority)
        if level is None:
            level = self._levels[priority] = OrderedDict()
            heappush(self._level_heap, priority)
            if len(self._level_heap) > 2 * len(self._levels) + _SPARE_ENTRIES:
                self._level_heap = sorted(self._levels)
        level[page] = None
        self._num_in_levels += 1

    def _leave(self, page: int) -> None:
        priority = self._priority_cell[page]
        level = self._levels[priority]
        del level[page]
        if not level:
            del self._levels[priority]
        self._num_in_levels -= 1

    def _lowest(self) -> int:
        """The lowest priority other than 0 of a free page; 0 if there is none."""
        heap = self._level_heap
        while heap and heap[0] not in self._levels:
            heappop(heap)
        return heap[0] if heap else 0

    def check(self) -> None:
        """Verifies that levels, priorities and their ends agree.

        Raises:
            AssertionError: they don't; the message shows them.
        """
        self._log.check()
        priorities = {int(page): int(self._priority_of[page]) for page in self._priority_of.nonzero()[0]}
        state = (
            f"priorities {priorities}, ends {self._end_of}, levels { {p: list(v) for p, v in self._levels.items()} }"
        )
        assert self.num_prioritised == len(priorities), f"PIN-2: {self.num_prioritised} prioritised: {state}"
        assert self._levels.keys() <= set(self._level_heap), f"PIN-2: heap of levels {self._level_heap}: {state}"
        assert _is_heap(self._level_heap), f"PIN-2: no heap of levels {self._level_heap}: {state}"
        assert all(self._levels.values()), f"PIN-2: an empty level: {state}"
        assert self._num_in_levels == sum(map(len, self._levels.values())), f"PIN-2: {self._num_in_levels}: {state}"
        for priority, level in self._levels.items():
            assert all(priorities.get(page) == priority for page in level), f"PIN-2: {state}"
        assert not self._priority_of[self._log.order()].any(), f"PIN-2: a page in the log has a priority: {state}"
        assert self._end_of.keys() <= priorities.keys(), f"PIN-2: an end of priority 0: {state}"
        ends = {(end, page) for page, end in self._end_of.items()}
        assert ends <= set(self._ends), f"PIN-2: heap {self._ends}: {state}"
        assert _is_heap(self._ends), f"PIN-2: no heap of ends {self._ends}: {state}"
        assert 0 not in priorities, f"PIN-2: the null page has a priority: {state}"


def _is_heap(values: Sequence[Any]) -> bool:
    """True if no value is less than its parent in the heap."""
    return all(values[(place - 1) // 2] <= value for place, value in enumerate(values) if place)
