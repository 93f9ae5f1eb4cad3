"""POOL-3, PIN-2: the order in which free pages are evicted: by priority, lowest first, then least recently freed."""

from collections.abc import Iterable, Mapping
from typing import Any

from ..declarations import PoolOptions
from ..declarations.codec import Part
from ..reading.arguments import flag, index, integer, listed, real, refusal, shown
from .free_queue import FreeCachePageQueue, PoolFreeQueue
from .pages import CachePage, PageList

__all__ = ["EvictionOrder"]


class EvictionOrder:
    """The pages of a pool, their priorities, and the free pages in eviction order.

    Args:
        num_pages: how many pages, the null page included; at least 2 (POOL-1).
        options: the pool's.
    """

    def __init__(self, num_pages: int, options: PoolOptions) -> None:
        self.num_pages = integer("num_pages", num_pages, minimum=2, clause="POOL-1", below=2**31)
        self.unhashed_first = flag("unhashed_first", options["unhashed_first"])
        self.null_page = CachePage(0, is_null=True)
        self.pages = PageList([self.null_page, *(CachePage(page_id) for page_id in range(1, self.num_pages))])
        self._free = FreeCachePageQueue(self.pages[1:])
        self.free_page_queue = PoolFreeQueue(self._free)
        self.now: float | None = None
        self._priority: dict[int, tuple[int, float | None]] = {}
        """Priority and expiry time (None: never) of each page whose priority is not 0, by page id."""

    def get_priority(self, page_id: int) -> int:
        """The priority of a page (PIN-2).

        Args:
            page_id: the page's id.

        Raises:
            IndexError: there is no such page.
        """
        return self._priority.get(index("page_id", page_id, self.num_pages), (0, None))[0]

    def set_priority(self, pages: Iterable[CachePage], priority: int, expires_at: float | None = None) -> None:
        """Sets the priority of cached pages; null pages are skipped (PIN-2).

        A free page whose priority changes goes behind the free pages of its new priority. No other page moves.

        Args:
            pages: the pages.
            priority: an int32; pages of the lowest priority are evicted first. Every page begins with 0.
            expires_at: the time at which the priority falls back to 0, in the unit of `advance_time`; None: never
                by time. Without effect for priority 0.

        Raises:
            ValueError: a page is not cached, or ``expires_at`` does not lie after ``now``; nothing changes.
        """
        cached = [page for page in self._own("pages", pages) if not page.is_null]
        priority = integer("priority", priority, minimum=None)
        end = None if expires_at is None else real("expires_at", expires_at)
        if not -(2**31) <= priority < 2**31:
            raise refusal(ValueError, "R1", f"priority={priority} does not fit an int32")
        if end is not None and self.now is not None and end <= self.now:
            raise refusal(ValueError, "PIN-2", f"expires_at={end} does not lie after now={self.now}")
        for page in cached:
            if page.page_hash is None:
                raise refusal(ValueError, "PIN-2", f"pages: page {page.page_id} is not cached")
        for page in cached:
            self._prioritise(page, priority, end)

    def advance_time(self, now: float) -> None:
        """Sets the time: priorities that expire by ``now`` end, in order of expiry time, then of page id (PIN-2).

        Args:
            now: the time, in any unit, from any start.

        Raises:
            ValueError: it is earlier than the last one.
        """
        time = real("now", now)
        if self.now is not None and time < self.now:
            raise refusal(ValueError, "PIN-2", f"now={time} is earlier than {self.now}")
        self.now = time
        ends = [(end, page_id) for page_id, (_, end) in self._priority.items() if end is not None and end <= time]
        for _, page_id in sorted(ends):
            self._prioritise(self.pages[page_id], 0, None)

    def _prioritise(self, page: CachePage, priority: int, end: float | None) -> None:
        """Sets a page's priority and expiry time, and moves the page in the queue if it is free."""
        before = self.get_priority(page.page_id)
        self._priority.pop(page.page_id, None)
        if priority != 0:
            self._priority[page.page_id] = (priority, end)
        if priority != before and page._queue is self._free:
            self._free.remove(page)
            self._free._insert_n(self._num_free_below(priority + 1), [page])

    def _queue_up(self, pages: Iterable[CachePage]) -> None:
        """Puts freed pages into the queue, each behind the free pages of its priority, in order (POOL-3, POOL-13)."""
        freed = list(pages)
        for page in freed:
            if page.page_hash is None:
                self._priority.pop(page.page_id, None)  # PIN-2
        self._free._insert_n(self._num_free_below(0), [page for page in freed if self._goes_first(page)])
        for page in freed:
            if not self._goes_first(page):
                self._free._insert_n(self._num_free_below(self.get_priority(page.page_id) + 1), [page])

    def _goes_first(self, page: CachePage) -> bool:
        """Whether a freed page goes before all free pages of priority 0 (POOL-13)."""
        return self.unhashed_first and page.page_hash is None

    def _num_free_below(self, priority: int) -> int:
        """How many free pages have a lower priority; O(pages whose priority is not 0)."""
        priorities = [
            value for page_id, (value, _) in self._priority.items() if self.pages[page_id]._queue is self._free
        ]
        if priority <= 0:  # a page that has no entry is of priority 0, which is not lower
            return sum(value < priority for value in priorities)
        return self._free.num_free_pages - sum(value >= priority for value in priorities)

    def _own(self, name: str, pages: object) -> list[CachePage]:
        """Reads a list of pages of this pool (R1)."""
        own = listed(name, pages)
        for page in own:
            if not isinstance(page, CachePage):
                raise refusal(TypeError, "R1", f"{name} has {shown(page)}, which is no CachePage")
            if page._pool is not self:
                raise refusal(ValueError, "R1", f"{name}: page {page.page_id} belongs to another pool")
        return own

    # -- Snapshots (MAN-14) -----------------------------------------------------------------------

    def order_state(self) -> dict[str, Any]:
        """What a snapshot has of the free pages, the priorities and the time."""
        return {
            "now": self.now,
            "free": [page.page_id for page in self._free.get_all_free_pages()],
            "priorities": [[page_id, *given] for page_id, given in sorted(self._priority.items())],
        }

    def _restore_order(self, parts: Mapping[str, Part]) -> None:
        """Sets the free pages, the priorities and the time; `_check_order` verifies that they fit the rest."""
        free = [part.integer(1, self.num_pages) for part in parts["free"].items()]
        if len(set(free)) < len(free):
            raise parts["free"].damaged("names a page twice")
        self._free.popleft_n(self._free.num_free_pages)
        self._free.append_n(self.pages[page_id] for page_id in free)
        self.now = parts["now"].optional_time()
        for part in parts["priorities"].items():
            page_id, priority, end = part.items(3)
            entry = priority.integer(-(2**31), 2**31), end.optional_time()
            self._priority[page_id.integer(1, self.num_pages)] = entry

    def _check_order(self) -> None:
        """Verifies that the queue holds the free pages, once each, in the order of their priorities."""
        free = self._free.get_all_free_pages()
        assert len(free) == len({page.page_id for page in free}), "POOL-2: a page is in the queue twice"
        assert all(0 < page.page_id < self.num_pages for page in free), "POOL-1: the null page is in the queue"
        for page in self.pages[1:]:
            assert (page._queue is self._free) == (page.ref_cnt == 0), f"POOL-2: page {page.page_id}"
        assert len(free) == sum(page.ref_cnt == 0 for page in self.pages[1:]), "POOL-2: free pages and queue differ"
        assert self.null_page.ref_cnt == 0, "POOL-1: the null page is held"
        for page_id, (priority, end) in self._priority.items():
            assert 0 < page_id < self.num_pages, f"PIN-2: page {page_id} has a priority"
            assert priority != 0, f"PIN-2: page {page_id} is noted for the priority that all have"
            assert end is None or self.now is None or end > self.now, f"PIN-2: the priority of page {page_id} has ended"
        priorities = [self.get_priority(page.page_id) for page in free]
        assert priorities == sorted(priorities), "PIN-2: a page stands before one of a lower priority"
