"""POOL-3, PIN-2: the order in which free pages are evicted: by priority, lowest first, then least recently freed."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from ..declarations.codec import Part

__all__ = ["FreeOrder"]


class FreeOrder:
    """The ids of the free pages in eviction order, and the priorities of all pages. It trusts its caller.

    Args:
        num_pages: pages of the pool; at first all but the null page are free, in the order of their ids.

    Attributes:
        now: the time of the last `advance`; None before the first.
    """

    def __init__(self, num_pages: int) -> None:
        self.now: float | None = None
        self._num_pages = num_pages
        self._free = OrderedDict.fromkeys(range(1, num_pages))
        self._priority: dict[int, tuple[int, float | None]] = {}
        """Priority and expiry time (None: never) of each page whose priority is not 0, by page id."""

    @property
    def num_free(self) -> int:
        """How many pages are free."""
        return len(self._free)

    def order(self) -> Iterator[int]:
        """The free pages, the one to evict first in front."""
        return iter(self._free)

    def take(self, count: int) -> list[int]:
        """Takes the first ``count`` pages, whose priorities end (PIN-2)."""
        taken = [self._free.popitem(last=False)[0] for _ in range(count)]
        for page in taken:
            self._priority.pop(page, None)
        return taken

    def remove(self, page: int) -> None:
        """Takes one page out of the middle."""
        del self._free[page]

    def put(self, pages: Iterable[int]) -> None:
        """Puts each page behind the free pages of its priority, in order."""
        for page in pages:
            self._insert(self._num_below(self.priority(page) + 1), [page])

    def put_front(self, pages: Iterable[int]) -> None:
        """Puts pages before all free pages of priority 0, in order (POOL-13)."""
        self._insert(self._num_below(0), pages)

    def _insert(self, place: int, pages: Iterable[int]) -> None:
        """Puts pages behind the first ``place`` free pages, in order."""
        behind = list(islice(reversed(self._free), self.num_free - place))
        self._free.update(OrderedDict.fromkeys(pages))
        for page in reversed(behind):
            self._free.move_to_end(page)

    def _num_below(self, priority: int) -> int:
        """How many free pages have a lower priority; O(pages whose priority is not 0)."""
        priorities = [value for page, (value, _) in self._priority.items() if page in self._free]
        if priority <= 0:  # a page that has no entry is of priority 0, which is not lower
            return sum(value < priority for value in priorities)
        return self.num_free - sum(value >= priority for value in priorities)

    # -- Priorities (PIN-2) -----------------------------------------------------------------------

    def priority(self, page: int) -> int:
        """The priority of a page."""
        return self._priority.get(page, (0, None))[0]

    def set_priority(self, page: int, priority: int, end: float | None) -> None:
        """Sets a page's priority and expiry time; a free page whose priority changes goes behind those of the new."""
        before = self.priority(page)
        self._priority.pop(page, None)
        if priority != 0:
            self._priority[page] = (priority, end)
        if priority != before and page in self._free:
            self.remove(page)
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
        return {"now": self.now, "free": list(self._free), "priorities": priorities}

    def restore(self, parts: Mapping[str, Part]) -> None:
        """Sets the state; `check` verifies that it fits the rest.

        Raises:
            ValueError: a part is damaged (MAN-14).
        """
        free = [part.integer(1, self._num_pages) for part in parts["free"].items()]
        if len(set(free)) < len(free):
            raise parts["free"].damaged("names a page twice")
        self._free = OrderedDict.fromkeys(free)
        self.now = parts["now"].optional_time()
        for part in parts["priorities"].items():
            page, priority, end = part.items(3)
            entry = priority.integer(-(2**31), 2**31), end.optional_time()
            self._priority[page.integer(1, self._num_pages)] = entry

    def check(self, counts: Sequence[int]) -> None:
        """Verifies that the queue holds the pages with a count of 0, in the order of their priorities."""
        assert 0 not in self._free, "POOL-1: the null page is in the queue"
        for page, count in enumerate(counts[1:], 1):
            assert (page in self._free) == (count == 0), f"POOL-2: page {page}"
        assert self.num_free == counts[1:].count(0), "POOL-2: free pages and queue differ"
        for page, (priority, end) in self._priority.items():
            assert 0 < page < self._num_pages, f"PIN-2: page {page} has a priority"
            assert priority != 0, f"PIN-2: page {page} is noted for the priority that all have"
            assert end is None or self.now is None or end > self.now, f"PIN-2: the priority of page {page} has ended"
        priorities = [self.priority(page) for page in self._free]
        assert priorities == sorted(priorities), "PIN-2: a page stands before one of a lower priority"

    def __repr__(self) -> str:
        return f"free: {list(self._free)}, priorities at {self.now}: {self._priority}"
