"""POOL: a page, and the immutable list of pages that calls return."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol, overload

from ..declarations.page_calls import Page, PageOwner, PooledPage
from ..reading.arguments import listed, refusal, shown

__all__ = ["CachePage", "PageList", "PageView"]


class Queue(Protocol):
    """What a page asks the free queue that it is in."""

    def neighbour(self, page: "CachePage", step: int) -> "CachePage | None":
        """The page before (``step=-1``) or after (``step=+1``) a page of the queue, or an end of the queue."""


class CachePage(Page):
    """One page: its id, its reference count, its hash while it has one, and its place in a free queue.

    A page made by this constructor belongs to no pool: its count and hash can be set freely, and it can be put into a
    `FreeCachePageQueue`. The pages of a `PagePool` are `PageView`s, which change only as the pool's clauses allow.
    Arguments: see `Page`.
    """

    queue: Queue | None

    def _beside(self, step: int) -> "CachePage | None":
        return None if self.queue is None else self.queue.neighbour(self, step)


class PageView(PooledPage, CachePage):
    """A page of a pool, which has one object for each: shows its count, hash and place, which the pool keeps.

    Args:
        pool: the pool.
        page_id: the page's number; 0 is the null page (POOL-1).
    """

    def __init__(self, pool: PageOwner, page_id: int) -> None:
        super().__init__(page_id, is_null=page_id == 0)
        self._pool = pool

    @property
    def pool(self) -> PageOwner:
        """The pool that the page belongs to."""
        return self._pool

    def _beside(self, step: int) -> CachePage | None:
        queue: Queue = self._pool.free_page_queue
        return queue.neighbour(self, step)


class PageList(Sequence[CachePage]):
    """An immutable list of pages; it compares and adds with lists of pages.

    Args:
        pages: the pages.
    """

    __slots__ = ("_pages",)

    def __init__(self, pages: Iterable[CachePage] = ()) -> None:
        self._pages: tuple[CachePage, ...] = tuple(listed("pages", pages))
        for page in self._pages:
            if not isinstance(page, CachePage):
                raise refusal(TypeError, "R1", f"pages has {shown(page)}, which is no CachePage")

    @property
    def page_ids(self) -> list[int]:
        """The pages' ids."""
        return [page.page_id for page in self._pages]

    def __len__(self) -> int:
        return len(self._pages)

    @overload
    def __getitem__(self, place: int) -> CachePage: ...
    @overload
    def __getitem__(self, place: slice) -> "PageList": ...
    def __getitem__(self, place: int | slice) -> "CachePage | PageList":
        if isinstance(place, slice):
            return PageList(self._pages[place])
        return self._pages[place]

    def __iter__(self) -> Iterator[CachePage]:
        return iter(self._pages)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PageList | list):
            return list(self) == list(other)
        return NotImplemented

    def __add__(self, other: Iterable[Any]) -> "PageList":
        return PageList((*self._pages, *other)) if isinstance(other, PageList | list) else NotImplemented

    def __radd__(self, other: Iterable[Any]) -> list[CachePage]:
        # a list: Python asks here for ``pages += page_list`` too, and what was a list is to stay one
        return [*other, *self._pages] if isinstance(other, list) else NotImplemented

    def __repr__(self) -> str:
        return f"PageList({self.page_ids})"
