"""The free queue as an intrusive doubly linked list: the links lie in the pages, so no call allocates.

It serves pages that belong to no pool. A `PagePool` keeps its order in a `FreeLog`, which measures better in bulk, and
shows it through `PoolFreeQueue` with the same interface.
"""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NoReturn

from kvproof.spec.declarations.page_calls import OwnedQueue, PageOwner, require_page
from kvproof.spec.declarations.showing import ShownQueue

from ..reading.arguments import integer, listed, refusal
from .free_order import FreeOrder
from .pages import NOWHERE, CachePage, PageList, PageView, page_list

__all__ = ["FreeCachePageQueue", "PoolFreeQueue"]


class FreeCachePageQueue(ShownQueue):
    """Pages in a row: taken at the front, put back at the end, removable from the middle, each in O(1).

    A page is in at most one queue, at most once.

    Args:
        pages: the pages, first the one to be taken first.
    """

    __slots__ = ("_count", "_head", "_tail")

    def __init__(self, pages: Iterable[CachePage]) -> None:
        self._head, self._tail = _QueueEnd(self), _QueueEnd(self)
        self._head.after, self._tail.before = self._tail, self._head
        self._count = 0
        self.append_n(pages)

    @property
    def num_free_pages(self) -> int:
        """The number of pages in the queue."""
        return self._count

    @property
    def fake_free_list_head(self) -> CachePage:
        """The end before the first page: no page, its id is -1."""
        return self._head

    @property
    def fake_free_list_tail(self) -> CachePage:
        """The end behind the last page: no page, its id is -1."""
        return self._tail

    def popleft(self) -> CachePage:
        """Takes the first page; refused if the queue is empty (POOL-4). O(1)."""
        head = self._head
        page = head.after
        if page is self._tail:
            raise refusal(ValueError, "POOL-4", "n=1 pages asked for, 0 free")
        after = page.after
        head.after = after
        after.before = head
        page.before = page.after = NOWHERE
        page.queue = None
        self._count -= 1
        return page

    def popleft_n(self, n: int) -> list[CachePage]:
        """Takes the first ``n`` pages, in order; refused, with nothing taken, when there are fewer (POOL-4). O(n)."""
        n = integer("n", n, clause="POOL-4")
        if n > self._count:
            raise refusal(ValueError, "POOL-4", f"n={n} pages asked for, {self._count} free")
        head = self._head
        page = head.after
        taken: list[CachePage] = []
        for _ in range(n):
            taken.append(page)
            after = page.after
            page.before = page.after = NOWHERE
            page.queue = None
            page = after
        head.after = page
        page.before = head
        self._count -= n
        return taken

    def remove(self, page: CachePage) -> None:
        """Takes one page out of the middle; refused when it is not in this queue (POOL-2). O(1)."""
        require_page("page", page)
        if isinstance(page, PageView | _QueueEnd) or page.queue is not self:
            raise refusal(ValueError, "POOL-2", f"page {page.page_id} is not in this queue")
        before, after = page.before, page.after
        before.after = after
        after.before = before
        page.before = page.after = NOWHERE
        page.queue = None
        self._count -= 1

    def append(self, page: CachePage) -> None:
        """Puts a page behind the last; refused when it is in a queue already (POOL-2). O(1)."""
        if (type(page) is not CachePage and not _is_own(page)) or page.queue is not None:
            self._refuse("page", page)
        tail = self._tail
        last = tail.before
        last.after = tail.before = page
        page.before = last
        page.after = tail
        page.queue = self
        self._count += 1

    def append_n(self, pages: Iterable[CachePage]) -> None:
        """Puts pages behind the last, in the order given; refused as a whole if one is in a queue already (POOL-2)."""
        self._insert(self._tail.before, self._claim(pages), self._tail)

    def prepend_n(self, pages: Iterable[CachePage]) -> None:
        """Puts pages before the first, in the order given (POOL-13); refused like `append_n`."""
        self._insert(self._head, self._claim(pages), self._head.after)

    def get_all_free_pages(self) -> list[CachePage]:
        """Every page of the queue, first the one to be taken first. O(pages)."""
        return list(self)

    def __iter__(self) -> Iterator[CachePage]:
        page = self._head.after
        while page is not self._tail:
            yield page
            page = page.after

    def _claim(self, pages: Iterable[CachePage]) -> list[CachePage]:
        """Marks pages as this queue's, or leaves them as they were (R1); a page listed twice is found by its mark."""
        given = listed("pages", pages)
        for place, page in enumerate(given):
            if (type(page) is not CachePage and not _is_own(page)) or page.queue is not None:
                for claimed in given[:place]:
                    claimed.queue = None
                self._refuse("pages", page)
            page.queue = self
        return given

    def _refuse(self, name: str, page: object) -> NoReturn:
        require_page(name, page)
        raise refusal(
            ValueError, "POOL-2", f"{name}: {page} is in a queue already, belongs to a pool or is named twice"
        )

    def _insert(self, before: CachePage, pages: list[CachePage], after: CachePage) -> None:
        for page in pages:
            before.after = page
            page.before = before
            before = page
        before.after = after
        after.before = before
        self._count += len(pages)

    def check(self) -> None:
        """Verifies that links, membership and count agree; O(pages).

        Raises:
            AssertionError: they don't; the message shows the whole queue.
        """
        row = [self._head, *self, self._tail]
        good = self._count == len(row) - 2 and self._head.before is NOWHERE and self._tail.after is NOWHERE
        good = good and all(page.queue is self for page in row)
        good = good and all(b.before is a and a.after is b for a, b in pairwise(row))
        assert good, f"POOL-2: count {self._count}, row {row}"


class PoolFreeQueue(OwnedQueue):
    """A read-only view of a pool's free queue: calls that would change it are refused (POOL-2).

    Args:
        pool: the pool.
        order: its free pages.
    """

    __slots__ = ("_head", "_order", "_pool", "_tail")

    def __init__(self, pool: PageOwner, order: FreeOrder) -> None:
        self._pool = pool
        self._order = order
        self._head, self._tail = _PoolQueueEnd(self, +1), _PoolQueueEnd(self, -1)

    @property
    def num_free_pages(self) -> int:
        """The number of free pages."""
        return self._order.num_free

    @property
    def fake_free_list_head(self) -> CachePage:
        """The end before the first page: no page, its id is -1."""
        return self._head

    @property
    def fake_free_list_tail(self) -> CachePage:
        """The end behind the last page: no page, its id is -1."""
        return self._tail

    def get_all_free_pages(self) -> PageList:
        """The free pages in eviction order (POOL-3). O(free pages)."""
        return page_list(self._pool, self._order.order())

    def neighbour(self, page_id: int, step: int) -> CachePage | None:
        """The neighbour before (``step`` -1) or after (+1) a page, or an end; None if it is in use. O(free pages)."""
        order = self._order.order().tolist()
        return self._at(order, order.index(page_id) + step) if page_id in order else None

    def beyond(self, step: int) -> CachePage:
        """The first page behind the head (``step`` +1) or before the tail (-1), or the other end. O(free pages)."""
        order = self._order.order().tolist()
        return self._at(order, 0 if step > 0 else len(order) - 1)

    def _at(self, order: list[int], place: int) -> CachePage:
        if 0 <= place < len(order):
            return PageView(self._pool, order[place])
        return self._head if place < 0 else self._tail


class _QueueEnd(CachePage):
    """An end of a queue, so that every page in it has two neighbours; no page."""

    __slots__ = ()

    def __init__(self, queue: object) -> None:
        super().__init__(0)
        self.queue = queue

    @property
    def page_id(self) -> int:
        """-1, which no page has."""
        return -1


class _PoolQueueEnd(_QueueEnd):
    """An end of a pool's queue; its neighbour is computed from the free order.

    Args:
        queue: the queue.
        step: the direction in which the pages lie.
    """

    __slots__ = ("_pages", "_step")

    def __init__(self, queue: PoolFreeQueue, step: int) -> None:
        super().__init__(queue)
        self._pages = queue
        self._step = step

    def _beside(self, step: int) -> CachePage | None:
        return self._pages.beyond(step) if step == self._step else None


def _is_own(page: object) -> bool:
    """True for a page that belongs to no pool (subclasses of `CachePage` included) and is not a queue's end."""
    return isinstance(page, CachePage) and page.pool is None and not isinstance(page, _QueueEnd)
