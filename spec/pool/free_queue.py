"""POOL-3: the free queue: free pages in eviction order."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import islice

from ..declarations.page_calls import OwnedQueue, require_page
from ..declarations.showing import ShownQueue
from ..reading.arguments import integer, listed, refusal
from .free_order import FreeOrder
from .pages import CachePage, PageList, Queue

__all__ = ["FreeCachePageQueue", "PoolFreeQueue"]


class FreeCachePageQueue(ShownQueue):
    """A queue of pages without a pool: taken at the front, put back at the end, removable from the middle.

    A page is in one queue at most, and once.

    Args:
        pages: the pages, the one to take first in front.
    """

    def __init__(self, pages: Iterable[CachePage]) -> None:
        self._pages: OrderedDict[int, CachePage] = OrderedDict()  # by identity
        self._head, self._tail = _QueueEnd(self), _QueueEnd(self)
        self.append_n(pages)

    @property
    def num_free_pages(self) -> int:
        """How many pages are in the queue."""
        return len(self._pages)

    @property
    def fake_free_list_head(self) -> CachePage:
        """The end before the first page: no page, its id is -1."""
        return self._head

    @property
    def fake_free_list_tail(self) -> CachePage:
        """The end behind the last page: no page, its id is -1."""
        return self._tail

    def popleft(self) -> CachePage:
        """Takes the first page; refused when there is none (POOL-4)."""
        return self.popleft_n(1)[0]

    def popleft_n(self, n: int) -> list[CachePage]:
        """Takes the first ``n`` pages, in order; refused, with nothing taken, when there are fewer (POOL-4)."""
        n = integer("n", n, clause="POOL-4")
        if n > len(self._pages):
            raise refusal(ValueError, "POOL-4", f"n={n} pages asked for, {len(self._pages)} free")
        taken = [self._pages.popitem(last=False)[1] for _ in range(n)]
        for page in taken:
            page.queue = None
        return taken

    def remove(self, page: CachePage) -> None:
        """Takes one page out of the middle; refused when it is not in this queue (POOL-2)."""
        require_page("page", page)
        if id(page) not in self._pages:
            raise refusal(ValueError, "POOL-2", f"page {page.page_id} is not in this queue")
        del self._pages[id(page)]
        page.queue = None

    def append(self, page: CachePage) -> None:
        """Puts a page at the back; refused when it is in a queue already (POOL-2)."""
        self._join(self._outside("page", [page]))

    def append_n(self, pages: Iterable[CachePage]) -> None:
        """Puts pages at the back, in order; all are refused if one of them is in a queue already (POOL-2)."""
        self._join(self._outside("pages", pages))

    def prepend_n(self, pages: Iterable[CachePage]) -> None:
        """Puts pages at the front, in order (POOL-13); refused like `append_n`."""
        num_behind = len(self._pages)
        self.append_n(pages)
        for page in list(islice(reversed(self._pages.values()), len(self._pages) - num_behind)):
            self._pages.move_to_end(id(page), last=False)

    def get_all_free_pages(self) -> list[CachePage]:
        """The pages of the queue, in order."""
        return list(self._pages.values())

    def neighbour(self, page: CachePage, step: int) -> CachePage | None:
        """The page before (``step=-1``) or after (``step=+1``) a page of the queue, which may be a fake end."""
        return _beside([self._head, *self._pages.values(), self._tail], page, step)

    def _join(self, pages: list[CachePage]) -> None:
        for page in pages:
            self._pages[id(page)] = page
            page.queue = self

    def _outside(self, name: str, pages: Iterable[CachePage]) -> list[CachePage]:
        """Reads pages that are in no queue yet, each once (R1, POOL-2)."""
        outside = listed(name, pages)
        for page in outside:
            require_page(name, page)
            if page.queue is not None or page.pool is not None:
                message = f"{name}: page {page.page_id} is in a queue already, or belongs to a pool"
                raise refusal(ValueError, "POOL-2", message)
        if len({id(page) for page in outside}) < len(outside):
            raise refusal(ValueError, "POOL-2", f"pages={[page.page_id for page in outside]} names a page twice")
        return outside


class PoolFreeQueue(OwnedQueue):
    """A read-only view of a pool's free queue: calls that would change it are refused (POOL-2).

    Args:
        order: the ids of the free pages.
        pages: every page of the pool, by id.
    """

    def __init__(self, order: FreeOrder, pages: PageList) -> None:
        self._order = order
        self._pages = pages
        self._head, self._tail = _QueueEnd(self), _QueueEnd(self)

    @property
    def num_free_pages(self) -> int:
        """How many pages are free."""
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
        """The free pages in eviction order (POOL-3)."""
        return PageList(self._pages[page_id] for page_id in self._order.order())

    def neighbour(self, page: CachePage, step: int) -> CachePage | None:
        """The page before (``step=-1``) or after (``step=+1``) a free page, which may be a fake end; else None."""
        return _beside([self._head, *self.get_all_free_pages(), self._tail], page, step)


class _QueueEnd(CachePage):
    """An end of a queue: no page."""

    def __init__(self, queue: Queue) -> None:
        super().__init__(0)
        self.queue = queue

    @property
    def page_id(self) -> int:
        """-1, which no page has."""
        return -1


def _beside(row: Sequence[CachePage], page: CachePage, step: int) -> CachePage | None:
    """What stands beside a page in a row; None where nothing does, and where the page is not in the row."""
    place = next((place + step for place, other in enumerate(row) if other is page), -1)
    return row[place] if 0 <= place < len(row) else None
