"""POOL-3, PIN-2, RET-3: the order in which free pages are evicted: by priority, lowest first, then as they were freed.

Within priority 0 pages of second class, which only a passed resume point needs, go before all other cached ones.
"""

from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

from ..declarations.codec import Part
from ..declarations.eviction import SavedEviction
from .eviction import LruQueue

__all__ = ["FreeOrder"]


class FreeOrder:
    """The ids of the free pages in eviction order, and the priorities of all pages. It trusts its caller.

    Args:
        num_pages: pages of the pool; at first all but the null page are free, in the order of their ids.
        queue: the free pages of priority 0, of a policy (EVICT-1).
        cached: the pages that have a hash.

    Attributes:
        now: the time of the last `advance`; None before the first.
        wanted: the pages that `take` takes before the first in the order, as far as they are free: they are set to
            follow another implementation's choices, and empty otherwise.
        queue: the free pages of priority 0 but for those of second class.
    """

    def __init__(self, num_pages: int, queue: LruQueue, cached: Container[int]) -> None:
        self.now: float | None = None
        self.wanted: list[int] = []
        self.queue = queue
        self._cached = cached
        self._second: OrderedDict[int, None] = OrderedDict()
        """The free pages of second class, all of priority 0 and cached when they became free (RET-3)."""
        self._num_pages = num_pages
        self._levels: dict[int, OrderedDict[int, None]] = {}
        """The free pages of each priority but 0, in the order in which they joined; no level is empty."""
        self._priority: dict[int, tuple[int, float | None]] = {}
        """Priority and expiry time (None: never) of each page whose priority is not 0, by page id."""

    @property
    def num_free(self) -> int:
        """How many pages are free."""
        return len(self.queue) + len(self._second) + sum(map(len, self._levels.values()))

    def order(self) -> list[int]:
        """The free pages, the one to evict first in front: those of second class behind what holds nothing (RET-3)."""
        low, high = self._ranked(lambda priority: priority < 0), self._ranked(lambda priority: priority > 0)
        middle, num_empty = self.queue.order([*low, *self._second]), self.queue.num_empty(self._cached)
        return [*low, *middle[:num_empty], *self._second, *middle[num_empty:], *high]

    def _ranked(self, wanted: Callable[[int], bool]) -> list[int]:
        return [page for priority in sorted(filter(wanted, self._levels)) for page in self._levels[priority]]

    def __contains__(self, page: int) -> bool:
        return page in self.queue or page in self._second or page in self._levels.get(self.priority(page), ())

    def take(self, count: int) -> list[int]:
        """Takes the first ``count`` pages, whose priorities end (PIN-2)."""
        taken: list[int] = []
        for _ in range(count):
            lowest = min([*self._levels, *([0] if len(self.queue) or self._second else [])])
            if self.wanted and self.wanted[0] in self:
                taken.append(self.wanted.pop(0))
                self.remove(taken[-1])
            elif lowest:
                taken.append(next(iter(self._levels[lowest])))
                self.remove(taken[-1])
            elif self._second and not self.queue.num_empty(self._cached):
                taken.append(self._second.popitem(last=False)[0])
            else:
                taken.append(self.queue.take())
            self._priority.pop(taken[-1], None)
            self.queue.evicted(taken[-1])
        return taken

    def remove(self, page: int) -> None:
        """Takes one page out of the middle."""
        priority = self.priority(page)
        if page in self._second:
            del self._second[page]
            return
        if priority == 0:
            self.queue.remove(page)
            return
        del self._levels[priority][page]
        if not self._levels[priority]:
            del self._levels[priority]

    def put(self, pages: Iterable[int]) -> None:
        """Puts each page behind the free pages of its priority, in order; those of priority 0 where the policy says."""
        given = list(pages)
        self.queue.put([page for page in given if self.priority(page) == 0])
        for page in given:
            if self.priority(page) != 0:
                self._levels.setdefault(self.priority(page), OrderedDict())[page] = None

    def put_front(self, pages: Iterable[int]) -> None:
        """Puts pages before all free pages of priority 0, in order (POOL-13)."""
        self.queue.put_front(pages)

    # -- Second class (RET-3) ---------------------------------------------------------------------

    def put_second(self, pages: Iterable[int]) -> None:
        """Puts pages of priority 0 behind those of second class, in order."""
        self._second.update(OrderedDict.fromkeys(pages))

    def is_second(self, page: int) -> bool:
        """Whether a page is free and of second class."""
        return page in self._second

    @property
    def second(self) -> list[int]:
        """The free pages of second class, in order."""
        return list(self._second)

    # -- Priorities (PIN-2) -----------------------------------------------------------------------

    def priority(self, page: int) -> int:
        """The priority of a page."""
        return self._priority.get(page, (0, None))[0]

    def set_priority(self, page: int, priority: int, end: float | None) -> None:
        """Sets a page's priority and expiry time; a free page whose priority changes goes behind those of the new."""
        moves = priority != self.priority(page) and page in self
        if moves:
            self.remove(page)
        self._priority.pop(page, None)
        if priority != 0:
            self._priority[page] = (priority, end)
        if moves:
            self.put([page])

    def advance(self, time: float) -> None:
        """Sets the time: priorities that expire by then end, in the order of expiry time, then of page id."""
        self.now = time
        ends = [(end, page) for page, (_, end) in self._priority.items() if end is not None and end <= time]
        for _, page in sorted(ends):
            self.set_priority(page, 0, None)

    # -- Snapshots (MAN-14) and check -------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What a snapshot has of the free pages, the priorities and the time."""
        priorities = [[page, *given] for page, given in sorted(self._priority.items())]
        return {"now": self.now, "free": self.order(), "priorities": priorities}

    def restore(
        self, parts: Mapping[str, Part], saved: SavedEviction | None, evictions: int, second: Sequence[int]
    ) -> None:
        """Sets the state; `check` verifies that it fits the rest.

        Args:
            parts: the snapshot's.
            saved: what it has of the policy.
            evictions: the number of pages evicted so far.
            second: the free pages of second class, in order.

        Raises:
            ValueError: a part is damaged (MAN-14).
        """
        free = [part.integer(1, self._num_pages) for part in parts["free"].items()]
        if len(set(free)) < len(free):
            raise parts["free"].damaged("names a page twice")
        self.now = parts["now"].optional_time()
        for part in parts["priorities"].items():
            page, priority, end = part.items(3)
            entry = priority.integer(-(2**31), 2**31), end.optional_time()
            self._priority[page.integer(1, self._num_pages)] = entry
        self._second = OrderedDict.fromkeys(second)
        first = [own for own in free if self.priority(own) == 0 and own not in self._second]
        self.queue.restore(first, saved, evictions)
        for own in free:
            if self.priority(own) != 0:
                self._levels.setdefault(self.priority(own), OrderedDict())[own] = None

    def check(self, counts: Sequence[int]) -> None:
        """Verifies that the pages with a count of 0 are free, each where its priority says."""
        assert 0 not in self, "POOL-1: the null page is in the queue"
        for page in self._second:
            assert page not in self.queue, f"POOL-2: page {page} is free twice"
            assert self.priority(page) == 0, f"RET-3: page {page} has a priority and is of second class"
        for priority, level in self._levels.items():
            assert level, f"PIN-2: an empty level of priority {priority}"
            assert all(self.priority(page) == priority for page in level), f"PIN-2: pages of another priority: {level}"
        for page, count in enumerate(counts[1:], 1):
            assert (page in self) == (count == 0), f"POOL-2: page {page}"
        assert self.num_free == counts[1:].count(0), "POOL-2: free pages and queue differ"
        for page, (priority, end) in self._priority.items():
            assert 0 < page < self._num_pages, f"PIN-2: page {page} has a priority"
            assert priority != 0, f"PIN-2: page {page} is noted for the priority that all have"
            assert end is None or self.now is None or end > self.now, f"PIN-2: the priority of page {page} has ended"

    def __repr__(self) -> str:
        return f"free: {self.order()}, priorities at {self.now}: {self._priority}"
