"""POOL-3, PIN-2: the order in which free pages are evicted: by priority, lowest first, then least recently freed.

Most pages always have priority 0; the free ones among them stand in a `FreeLog`. Free pages of another priority stand
in levels, one ordered dict for each priority. Nothing is allocated for these before a priority is first set, and while
no page has one, every call goes to the log.
"""

from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvproof.spec.declarations.codec import Part
from kvproof.spec.declarations.eviction import eviction_of, eviction_to_json
from kvproof.spec.declarations.json_kinds import counters_of
from kvproof.spec.declarations.snapshots import retention_of

from ..reading.arguments import integer, real, refusal
from .eviction import ReuseOrder
from .free_log import FreeLog
from .retained_log import RetainedLog

__all__ = ["FreeOrder"]

_SPARE_ENTRIES = 64
"""The void entries that a small heap may have; a large heap is rebuilt when more than half of its entries are void."""


class FreeOrder:
    """The free pages of a pool in eviction order, and the priorities of all pages. It trusts its caller.

    Args:
        num_pages: pages of the pool; at first all but the null page are free, in the order of their ids.
        run_cell: 0 for each page that is not cached; a page that is freed without a hash loses its priority.
        front_room: True if pages will also be put in front (POOL-13); it costs 8 bytes a page.
        policy: the order of the free pages of priority 0 (EVICT-1); None: the least recently freed first.

    Attributes:
        now: the last time passed to `advance`; None before the first.
        num_prioritised: the number of pages, free or in use, whose priority is not 0.
    """

    __slots__ = (
        "_end_of",
        "_ends",
        "_level_heap",
        "_levels",
        "_log",
        "_num_in_levels",
        "_policy",
        "_priority_cell",
        "_priority_of",
        "_run_cell",
        "_run_of",
        "now",
        "num_prioritised",
    )

    def __init__(
        self, num_pages: int, run_cell: "memoryview[int]", front_room: bool = False, policy: ReuseOrder | None = None
    ) -> None:
        self._policy = policy
        self._log: FreeLog | ReuseOrder | RetainedLog = FreeLog(num_pages, front_room) if policy is None else policy
        self._run_cell = run_cell
        self._run_of: NDArray[np.uint32] = np.frombuffer(run_cell, np.uint32)
        self._priority_cell = array("i")
        self._priority_of: NDArray[np.int32] = np.empty(0, np.int32)
        self._levels: dict[int, OrderedDict[int, None]] = {}
        self._level_heap: list[int] = []  # a heap of their priorities; entries without a level are void
        self._num_in_levels = 0
        self._end_of: dict[int, float] = {}
        self._ends: list[tuple[float, int]] = []  # a heap; entries that ``_end_of`` does not confirm are void
        self.num_prioritised = 0
        self.now: float | None = None

    # -- Second class (RET-3) ---------------------------------------------------------------------

    def retain(self) -> None:
        """Makes room for pages of second class, in an order in which all pages are free, by id."""
        self._log = RetainedLog(len(self._run_cell), self._run_cell, self._policy)

    @property
    def second(self) -> NDArray[np.int64]:
        """The free pages of second class, the one to be taken first in front, `i64[n]`. O(log)."""
        return self._log.second.order() if isinstance(self._log, RetainedLog) else np.empty(0, np.int64)

    def is_second(self, page: int) -> bool:
        """True if a page is free and of second class. O(1)."""
        return isinstance(self._log, RetainedLog) and self._log.is_second(page)

    def put_front_one(self, page: int) -> None:
        """`put_front` for one page, after `retain`. O(1) amortised."""
        assert isinstance(self._log, RetainedLog)
        if self.num_prioritised and self._priority_cell[page]:
            self._note(page, 0, None)
        self._log.put_front_one(page)

    def put_second_one(self, page: int) -> None:
        """`put_second` for one page. O(1) amortised."""
        assert isinstance(self._log, RetainedLog)
        self._log.put_second_one(page)

    def put_second(self, pages: NDArray[np.int64]) -> None:
        """Puts distinct cached pages of priority 0 behind those of second class, in order; after `retain`."""
        assert isinstance(self._log, RetainedLog)
        self._log.put_second(pages)

    def put_first(self, pages: NDArray[np.int64]) -> None:
        """Puts those of distinct pages that are of second class to the back of priority 0, in order; after `retain`."""
        assert isinstance(self._log, RetainedLog)
        self._log.put_first(pages)

    def has_priority(self, pages: NDArray[np.int64]) -> NDArray[np.bool_]:
        """True for each of some pages whose priority is not 0, `bool[n]`."""
        if not self.num_prioritised:
            return np.zeros(len(pages), bool)
        ranked: NDArray[np.bool_] = self._priority_of[pages] != 0
        return ranked

    # -- Priorities -------------------------------------------------------------------------------

    def priority(self, page: int) -> int:
        """A page's priority. O(1)."""
        return self._priority_cell[page] if self.num_prioritised else 0

    def set(self, page: int, priority: int, end: float | None, is_free: bool) -> None:
        """Sets the priority of a page; a free page whose priority changes goes behind the free pages of the new one.

        Args:
            page: the page.
            priority: its new priority; 0, the default, has no end.
            end: the time at which it ends; None: never.
            is_free: True if the page is free.
        """
        if not self._priority_cell:
            if not priority:
                return
            self._priority_cell = array("i", (0,)) * len(self._run_cell)
            self._priority_of = np.frombuffer(self._priority_cell, np.int32)
        changes = priority != self._priority_cell[page]
        if changes and is_free:
            self._leave(page)
        self._note(page, priority, end)
        if changes and is_free:
            self._enter(page)

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

    def read_priority(self, priority: object, expires_at: object) -> tuple[int, float | None]:
        """Reads a priority and its end; refuses one that would end at once (R1, PIN-2)."""
        value = integer("priority", priority, minimum=None)
        if not -(2**31) <= value < 2**31:
            raise refusal(ValueError, "R1", f"priority={value} does not fit an int32")
        end = None if expires_at is None else real("expires_at", expires_at)
        if end is not None and self.now is not None and end <= self.now:
            raise refusal(ValueError, "PIN-2", f"expires_at={end} does not lie after now={self.now}")
        return value, end

    def advance(self, now: object) -> None:
        """Sets the time, if it is not before the last one (R1, PIN-2); see `PagePool.advance_time`."""
        time = real("now", now)
        if self.now is not None and time < self.now:
            raise refusal(ValueError, "PIN-2", f"now={time} is earlier than {self.now}")
        self.now = time
        while self._ends and self._ends[0][0] <= time:
            end, page = heappop(self._ends)
            if self._end_of.get(page) == end:
                is_free = page in self._levels.get(self._priority_cell[page], ())
                self.set(page, 0, None, is_free)

    # -- The order --------------------------------------------------------------------------------

    @property
    def num_free(self) -> int:
        """The number of free pages."""
        return self._log.num_free + self._num_in_levels

    def take_one(self) -> int:
        """Takes the first page, whose priority ends; at least one must be free. O(log levels) amortised."""
        if not self.num_prioritised:
            return self._log.take_one()
        lowest = self._lowest()
        if not lowest or (lowest > 0 and self._log.num_free):
            return self._log.take_one()
        page = next(iter(self._levels[lowest]))
        self._leave(page)
        self._note(page, 0, None)
        if self._policy is not None:
            self._policy.evicted_one(page)
        return page

    def take(self, count: int) -> NDArray[np.int64]:
        """Takes the first ``count`` pages, `i64[count]`, whose priorities end; at least ``count`` must be free.

        O(count), and O(log levels) amortised for each page whose priority is not 0.
        """
        if not self.num_prioritised:
            return self._log.take(count)
        before: list[int] = []
        while len(before) < count and self._lowest() < 0:
            before.append(self.take_one())
        middle = self._log.take(min(count - len(before), self._log.num_free))
        behind = [self.take_one() for _ in range(count - len(before) - len(middle))]
        return np.concatenate([np.array(before, np.int64), middle, np.array(behind, np.int64)])

    def put_one(self, page: int) -> None:
        """Puts a page behind the last of its priority, which ends if the page has no hash. O(1) amortised."""
        if not self.num_prioritised:
            self._log.put_one(page)
            return
        if self._priority_cell[page] and not self._run_cell[page]:
            self._note(page, 0, None)
        self._enter(page)

    def put(self, pages: NDArray[np.int64]) -> None:
        """Puts distinct pages behind the last of their priorities, in order; see `put_one`. O(pages) amortised."""
        if self.num_prioritised:
            in_level = self._priority_of[pages] != 0
            ended = in_level & (self._run_of[pages] == 0)
            for page in pages[ended].tolist():
                self._note(page, 0, None)
            in_level &= ~ended
            for page in pages[in_level].tolist():
                self._enter(page)
            pages = pages[~in_level]
        self._log.put(pages)

    def put_distinct(self, pages: NDArray[np.int64]) -> bool:
        """`put`, unless a page is listed twice; True if it was done. The pages are not free. O(pages) amortised."""
        if not self.num_prioritised:
            return self._log.put_distinct(pages)
        if not self._log.are_distinct(pages):
            return False
        self.put(pages)
        return True

    def are_distinct(self, pages: NDArray[np.int64]) -> bool:
        """True if no page is listed twice; the pages are not free. O(pages) amortised."""
        return self._log.are_distinct(pages)

    def put_front(self, pages: NDArray[np.int64]) -> None:
        """Puts distinct pages without a hash before the first of priority 0, in order. O(pages) amortised."""
        if self.num_prioritised:
            for page in pages[self._priority_of[pages] != 0].tolist():
                self._note(page, 0, None)
        self._log.put_front(pages)

    def remove(self, pages: NDArray[np.int64]) -> None:
        """Removes distinct free pages from any places. O(pages)."""
        if self.num_prioritised:
            in_log = self._priority_of[pages] == 0
            for page in pages[~in_log].tolist():
                self._leave(page)
            pages = pages[in_log]
        self._log.remove(pages)

    def order(self) -> NDArray[np.int64]:
        """The free pages, first the one to be taken first, `i64[num_free]`. O(free pages + levels log levels)."""
        if not self._levels:
            return self._log.order()
        priorities = sorted(self._levels)
        low = np.array([page for priority in priorities if priority < 0 for page in self._levels[priority]], np.int64)
        high = np.array([page for priority in priorities if priority > 0 for page in self._levels[priority]], np.int64)
        middle = self._log.order() if isinstance(self._log, FreeLog) else self._log.order(low)
        return np.concatenate([low, middle, high])

    def _enter(self, page: int) -> None:
        priority = self._priority_cell[page]
        if not priority:
            self._log.put_one(page)
            return
        if self._policy is not None:
            self._policy.settle()
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
        if not priority:
            self._log.remove_one(page)
            return
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

    # -- Snapshots (MAN-14) and check -------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What a snapshot has of the free pages, the priorities and the time. O(pages)."""
        ranked: list[int] = self._priority_of.nonzero()[0].tolist()
        priorities = [[page, self._priority_cell[page], self._end_of.get(page)] for page in ranked]
        state = {"now": self.now, "free": self.order().tolist(), "priorities": priorities}
        if self._policy is not None:
            state["eviction"] = eviction_to_json(self._policy.policy, self._policy.saved())
        return state

    def restore(self, parts: Mapping[str, Part], counts: NDArray[np.int64]) -> None:
        """Sets the state of an order in which no page has a priority.

        Args:
            parts: the snapshot's.
            counts: the pages' reference counts, `i64[num_pages]`.

        Raises:
            ValueError: a part is damaged or doesn't fit the counts (MAN-14).
        """
        free = parts["free"].integers(1, len(counts))
        if sorted(free.tolist()) != (1 + (counts[1:] == 0).nonzero()[0]).tolist():
            raise parts["free"].damaged("must name once each page that nobody holds, and no other")
        self.now = parts["now"].optional_time()
        of_page = _read_priorities(parts["priorities"], len(counts), self.now)
        second = retention_of(parts)["second"]
        ranked = second.integers(1, len(counts))
        if len(np.unique(ranked)) < len(ranked) or not np.isin(ranked, free).all():
            raise second.damaged("must name free pages, each once")
        if len(ranked) and not isinstance(self._log, RetainedLog):
            raise second.damaged("names pages where no group needs only part of a prefix")
        if self._policy is None:
            self._log.take(self._log.num_free)
            self._log.put(free[~np.isin(free, ranked)])
        else:
            self._policy.restore(eviction_of(parts["eviction"], len(counts)), counters_of(parts["counters"]).evictions)
        if len(ranked):
            self.put_second(ranked)
        for page in [*free.tolist(), *counts.nonzero()[0].tolist()] if of_page else ():
            if page in of_page:
                # the queues of a policy have no page of another priority
                self.set(page, *of_page[page], self._policy is None and not counts[page])
                if self._policy is not None and not counts[page]:
                    self._enter(page)
        order = self.order()
        if len(order) != len(free) or (order != free).any():
            raise parts["free"].damaged("must name pages of a low priority first")

    def check(self) -> None:
        """Verifies that levels, priorities and their ends agree.

        Raises:
            AssertionError: they don't; the message shows them.
        """
        self._log.check()
        priorities = {int(page): int(self._priority_of[page]) for page in self._priority_of.nonzero()[0]}

        def state() -> str:
            levels = {priority: list(pages) for priority, pages in self._levels.items()}
            return f"priorities {priorities}, ends {self._end_of}, levels {levels}"

        assert self.num_prioritised == len(priorities), f"PIN-2: {self.num_prioritised} prioritised: {state()}"
        assert self._levels.keys() <= set(self._level_heap), f"PIN-2: heap of levels {self._level_heap}: {state()}"
        assert _is_heap(self._level_heap), f"PIN-2: no heap of levels {self._level_heap}: {state()}"
        assert all(self._levels.values()), f"PIN-2: an empty level: {state()}"
        assert self._num_in_levels == sum(map(len, self._levels.values())), f"PIN-2: {self._num_in_levels}: {state()}"
        noted = [] if self._policy is None else self._policy.noted_pages()
        assert not any(page in level for page in noted for level in self._levels.values()), (
            f"EVICT-1: marks of {noted} are needed, and some of them are free: {state()}"
        )
        for priority, level in self._levels.items():
            assert all(priorities.get(page) == priority for page in level), f"PIN-2: {state()}"
        assert not any(priorities.get(page) for page in self._log.order().tolist()), (
            f"PIN-2: a page in the log has a priority: {state()}"
        )
        assert self._end_of.keys() <= priorities.keys(), f"PIN-2: an end of priority 0: {state()}"
        ends = {(end, page) for page, end in self._end_of.items()}
        assert ends <= set(self._ends), f"PIN-2: heap {self._ends}: {state()}"
        assert _is_heap(self._ends), f"PIN-2: no heap of ends {self._ends}: {state()}"
        assert 0 not in priorities, f"PIN-2: the null page has a priority: {state()}"
        ended = [page for page, end in self._end_of.items() if self.now is not None and end <= self.now]
        assert not ended, f"PIN-2: priorities of pages {ended} have ended by {self.now}"


def _is_heap(values: Sequence[Any]) -> bool:
    """True if no value is less than its parent in the heap."""
    return all(values[(place - 1) // 2] <= value for place, value in enumerate(values) if place)


def _read_priorities(part: Part, num_pages: int, now: float | None) -> dict[int, tuple[int, float | None]]:
    """The priorities of a snapshot and their ends, by page."""
    priorities: dict[int, tuple[int, float | None]] = {}
    last = 0
    for item in part.items():
        page, priority, end = item.items(3)
        until = end.optional_time()
        if until is not None and now is not None and until <= now:
            raise end.damaged("has passed")
        if priority.value == 0:
            raise priority.damaged("must not be 0, which every page has")
        last = page.integer(last + 1, num_pages)
        priorities[last] = priority.integer(-(2**31), 2**31), until
    return priorities
