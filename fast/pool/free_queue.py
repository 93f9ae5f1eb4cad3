"""The free queue as an intrusive doubly linked list: the links lie in the pages, so no call allocates.

It serves pages that belong to no pool. A `PagePool` keeps its order in a `FreeLog`, which measures better in bulk, and
shows it through `PoolFreeQueue` with the same interface.
"""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, NoReturn

from kvproof.spec.declarations.uncopied import Uncopied

from ..reading.arguments import integer, listed, refusal
from .pages import NOWHERE, CachePage, PageList, PageView, page_list

if TYPE_CHECKING:
    from .page_pool import PagePool

__all__ = ["FreeCachePageQueue", "PoolFreeQueue"]


def _end(queue: "FreeCachePageQueue | None") -> CachePage:
    """A sentinel at an end of the list, so that every page in it has two neighbours."""
    end = CachePage(0)
    end._id = -1
    end._queue = queue
    return end


class FreeCachePageQueue(Uncopied):
    """Pages in a row: taken at the front, put back at the end, removable from the middle, each in O(1).

    A page is in at most one queue, at most once.

    Args:
        pages: the pages, first the one to be taken first.
    """

    __slots__ = ("_count", "_head", "_tail")

    def __init__(self, pages: Iterable[CachePage]) -> None:
        self._head, self._tail = _end(self), _end(self)
        self._head._next, self._tail._prev = self._tail, self._head
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
        page = head._next
        if page is self._tail:
            raise refusal(ValueError, "POOL-4", "n=1 pages asked for, 0 free")
        after = page._next
        head._next = after
        after._prev = head
        page._prev = page._next = NOWHERE
        page._queue = None
        self._count -= 1
        return page

    def popleft_n(self, n: int) -> list[CachePage]:
        """Takes the first ``n`` pages, in order; refused, with nothing taken, when there are fewer (POOL-4). O(n)."""
        n = integer("n", n, clause="POOL-4")
        if n > self._count:
            raise refusal(ValueError, "POOL-4", f"n={n} pages asked for, {self._count} free")
        head = self._head
        page = head._next
        taken: list[CachePage] = []
        for _ in range(n):
            taken.append(page)
            after = page._next
            page._prev = page._next = NOWHERE
            page._queue = None
            page = after
        head._next = page
        page._prev = head
        self._count -= n
        return taken

    def remove(self, page: CachePage) -> None:
        """Takes one page out of the middle; refused when it is not in this queue (POOL-2). O(1)."""
        _require_page("page", page)
        if isinstance(page, PageView) or page._queue is not self or page._id < 0:
            raise refusal(ValueError, "POOL-2", f"page {page.page_id} is not in this queue")
        before, after = page._prev, page._next
        before._next = after
        after._prev = before
        page._prev = page._next = NOWHERE
        page._queue = None
        self._count -= 1

    def append(self, page: CachePage) -> None:
        """Puts a page behind the last; refused when it is in a queue already (POOL-2). O(1)."""
        if (type(page) is not CachePage and not _is_own(page)) or page._queue is not None:
            self._refuse(page)
        tail = self._tail
        last = tail._prev
        last._next = tail._prev = page
        page._prev = last
        page._next = tail
        page._queue = self
        self._count += 1

    def append_n(self, pages: Iterable[CachePage]) -> None:
        """Puts pages behind the last, in the order given; refused as a whole if one is in a queue already (POOL-2)."""
        self._insert(self._tail._prev, self._claim(pages), self._tail)

    def prepend_n(self, pages: Iterable[CachePage]) -> None:
        """Puts pages before the first, in the order given (POOL-13); refused like `append_n`."""
        self._insert(self._head, self._claim(pages), self._head._next)

    def get_all_free_pages(self) -> list[CachePage]:
        """Every page of the queue, first the one to be taken first. O(pages)."""
        return list(self)

    def __iter__(self) -> Iterator[CachePage]:
        page = self._head._next
        while page is not self._tail:
            yield page
            page = page._next

    def _claim(self, pages: Iterable[CachePage]) -> list[CachePage]:
        """Marks pages as this queue's, or leaves them as they were (R1); a page listed twice is found by its mark."""
        given = listed("pages", pages)
        for place, page in enumerate(given):
            if (type(page) is not CachePage and not _is_own(page)) or page._queue is not None:
                for claimed in given[:place]:
                    claimed._queue = None
                self._refuse(page)
            page._queue = self
        return given

    def _refuse(self, page: object) -> NoReturn:
        _require_page("pages", page)
        raise refusal(ValueError, "POOL-2", f"pages: {page} is in a queue already, belongs to a pool or is named twice")

    def _insert(self, before: CachePage, pages: list[CachePage], after: CachePage) -> None:
        for page in pages:
            before._next = page
            page._prev = before
            before = page
        before._next = after
        after._prev = before
        self._count += len(pages)

    def check(self) -> None:
        """Verifies that links, membership and count agree; O(pages).

        Raises:
            AssertionError: they don't; the message shows the whole queue.
        """
        row = [self._head, *self, self._tail]
        good = self._count == len(row) - 2 and self._head._prev is NOWHERE and self._tail._next is NOWHERE
        good = good and all(page._queue is self for page in row)
        good = good and all(b._prev is a and a._next is b for a, b in pairwise(row))
        assert good, f"POOL-2: count {self._count}, row {row}"


class PoolFreeQueue:
    """A read-only view of a pool's free queue: calls that would change it are refused (POOL-2).

    Args:
        pool: the pool.
    """

    __slots__ = ("_head", "_pool", "_tail")

    def __init__(self, pool: "PagePool") -> None:
        self._pool = pool
        self._head, self._tail = _QueueEnd(pool, -1), _QueueEnd(pool, -1)
        self._head._step, self._tail._step = +1, -1

    @property
    def num_free_pages(self) -> int:
        """The number of free pages."""
        return self._pool.get_num_free_pages()

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
        return page_list(self._pool, self._pool.free_order())

    def neighbour(self, page_id: int, step: int) -> CachePage | None:
        """The neighbour before (``step`` -1) or after (+1) a page, or an end; None if it is in use. O(free pages)."""
        order = self._pool.free_order().tolist()
        if page_id not in order:
            return None
        place = order.index(page_id) + step
        if 0 <= place < len(order):
            return PageView(self._pool, order[place])
        return self._head if step < 0 else self._tail

    def popleft(self) -> CachePage:
        """Refused: `PagePool.get_new_pages` takes pages."""
        raise _owned("popleft")

    def popleft_n(self, n: int) -> list[CachePage]:
        """Refused: `PagePool.get_new_pages` takes pages."""
        raise _owned(f"popleft_n(n={n})")

    def remove(self, page: CachePage) -> None:
        """Refused: `PagePool.touch` takes a page out of the middle."""
        raise _owned(f"remove(page={page!r})")

    def append(self, page: CachePage) -> None:
        """Refused: `PagePool.free_pages` puts pages back."""
        raise _owned(f"append(page={page!r})")

    def append_n(self, pages: Iterable[CachePage]) -> None:
        """Refused: `PagePool.free_pages` puts pages back."""
        raise _owned(f"append_n(pages={pages!r})")


class _QueueEnd(CachePage):
    """An end of a pool's queue; its links are computed from the pool's free order."""

    __slots__ = ("_pool", "_step")

    def __init__(self, pool: "PagePool", page_id: int) -> None:
        super().__init__(0)
        self._id = page_id
        self._pool = pool
        self._step = 0

    @property
    def prev_free_page(self) -> CachePage | None:
        """The last free page, or the head, from the tail; None from the head."""
        return self._beside(-1)

    @property
    def next_free_page(self) -> CachePage | None:
        """The first free page, or the tail, from the head; None from the tail."""
        return self._beside(+1)

    def _beside(self, step: int) -> CachePage | None:
        if step != self._step:
            return None
        order = self._pool.free_order()
        if len(order):
            return PageView(self._pool, int(order[0 if step > 0 else -1]))
        queue = self._pool.free_page_queue
        return queue.fake_free_list_tail if step > 0 else queue.fake_free_list_head


def _is_own(page: object) -> bool:
    """True for a page that belongs to no pool (subclasses of `CachePage` included) and is not a queue's end."""
    return isinstance(page, CachePage) and not isinstance(page, PageView | _QueueEnd)


def _owned(call: str) -> Exception:
    return refusal(ValueError, "POOL-2", f"{call}: this queue belongs to a pool, whose calls move pages")


def _require_page(name: str, page: object) -> None:
    if not isinstance(page, CachePage):
        raise refusal(TypeError, "R1", f"{name}={page!r} must be a CachePage")
