"""Pages, and the lists of pages that calls return.

A pool keeps no object for a page: its state lies in arrays with one entry a page. The page objects of the interface are
views, made when they are read, and a page list stores ids until it is iterated.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from kvproof.spec.declarations.page_calls import Page, PageOwner, PooledPage

from ..reading.arguments import listed, refusal, shown
from .hashing import PageHashWithGroupId

__all__ = ["NOWHERE", "CachePage", "PageList", "PageView", "page_list", "read_groups", "read_pages"]


class CachePage(Page):
    """One page: its id, its reference count, its hash while it has one, and its links in a free queue.

    A page made by this constructor belongs to no pool: its count and hash can be set freely, and it can be put into a
    `FreeCachePageQueue`. The pages of a `PagePool` are `PageView`s, which change only as the pool's clauses allow.
    Arguments: see `Page`.

    Attributes:
        before: the page before this one in the queue; `NOWHERE` in none.
        after: the page after this one in the queue; `NOWHERE` in none.
    """

    __slots__ = ("after", "before", "queue")

    def __init__(
        self,
        page_id: int,
        ref_cnt: int = 0,
        _page_hash: PageHashWithGroupId | None = None,
        prev_free_page: "CachePage | None" = None,
        next_free_page: "CachePage | None" = None,
        is_null: bool = False,
    ) -> None:
        super().__init__(page_id, ref_cnt, _page_hash, prev_free_page, next_free_page, is_null)
        self.before: CachePage = NOWHERE
        self.after: CachePage = NOWHERE

    def _beside(self, step: int) -> "CachePage | None":
        beside = self.before if step < 0 else self.after
        return None if beside is NOWHERE else beside


NOWHERE = CachePage.__new__(CachePage)
"""The target of the links of a page that is in no queue, and of the outer links of a queue's ends."""


class PageView(PooledPage, CachePage):
    """A live view of one page of a pool: equal to every other view of it, and hashable.

    Made by the pool; nothing is computed until it is read.
    """

    __slots__ = ("pool",)

    pool: PageOwner

    def __init__(self, pool: PageOwner, page_id: int) -> None:
        self.pool = pool
        self._page_id = page_id
        self._is_null = page_id == 0

    def _beside(self, step: int) -> CachePage | None:
        beside: CachePage | None = self.pool.free_page_queue.neighbour(self._page_id, step)
        return beside

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PageView):
            return self._page_id == other.page_id and self.pool is other.pool
        return NotImplemented

    def __hash__(self) -> int:
        return hash((id(self.pool), self._page_id))


class PageList(Sequence[CachePage]):
    """An immutable list of pages, equal to lists of the same pages and addable with them.

    Pages of a pool are stored as ids (an int for a single page, else a tuple or an int64 array), and views are made
    when the list is read: O(1) to make from ids, see `page_list`, and to slice. Pages without a pool, or of
    several, are stored as objects.

    Args:
        pages: the pages. O(pages); O(1) if they are a list of this kind.
    """

    __slots__ = ("held", "pool")

    pool: PageOwner | None
    held: Any

    def __init__(self, pages: Iterable[CachePage] = ()) -> None:
        if isinstance(pages, PageList):
            self.pool, self.held = pages.pool, pages.held
            return
        given = tuple(listed("pages", pages))
        for page in given:
            if not isinstance(page, CachePage):
                raise refusal(TypeError, "R1", f"pages has {shown(page)}, which is no CachePage")
        pools = {id(page.pool) for page in given}
        self.pool = given[0].pool if len(pools) == 1 else None
        self.held = given if self.pool is None else tuple(page.page_id for page in given)

    @property
    def _items(self) -> Any:
        held = self.held
        return (held,) if type(held) is int else held

    @property
    def page_ids(self) -> list[int]:
        """The pages' ids."""
        items = self._items
        if self.pool is None:
            return [page.page_id for page in items]
        return items.tolist() if type(items) is np.ndarray else list(items)

    @property
    def id_array(self) -> "NDArray[np.int64]":
        """The pages' ids, `i64[len]`; read-only."""
        items = self._items
        ids: NDArray[np.int64] = items.view() if type(items) is np.ndarray else np.array(self.page_ids, np.int64)
        ids.flags.writeable = False
        return ids

    @property
    def pools(self) -> set[PageOwner | None]:
        """The pools of its pages, None for pages without a pool. O(1) for the pages of one pool, else O(pages)."""
        if self.pool is not None:
            return {self.pool} if len(self._items) else set()
        return {page.pool for page in self._items}

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, place: int) -> CachePage: ...
    @overload
    def __getitem__(self, place: slice) -> "PageList": ...
    def __getitem__(self, place: int | slice) -> "CachePage | PageList":
        if isinstance(place, slice):
            return page_list(self.pool, self._items[place])
        item = self._items[place]
        return item if self.pool is None else PageView(self.pool, int(item))

    def __iter__(self) -> Iterator[CachePage]:
        pool = self.pool
        return iter(self._items if pool is None else [PageView(pool, page_id) for page_id in self.page_ids])

    def __reversed__(self) -> Iterator[CachePage]:
        return iter(self[::-1])

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PageList) and self.pool is other.pool and self.pool is not None:
            return self.page_ids == other.page_ids
        return list(self) == list(other) if isinstance(other, PageList | list) else NotImplemented

    def __add__(self, other: object) -> "PageList":
        if isinstance(other, PageList) and self.pool is other.pool and self.pool is not None:
            return page_list(self.pool, np.concatenate((self.id_array, other.id_array)))
        return PageList((*self, *other)) if isinstance(other, PageList | list) else NotImplemented

    def __radd__(self, other: object) -> list[CachePage]:
        # a list, since Python calls this for ``pages += page_list`` too, where ``pages`` is to stay a list
        return [*other, *self] if isinstance(other, list) else NotImplemented

    def __repr__(self) -> str:
        return f"PageList({self.page_ids})"


def page_list(
    pool: PageOwner | None, held: "int | tuple[int, ...] | NDArray[np.int64] | tuple[CachePage, ...]"
) -> PageList:
    """A list of pages of a pool by their ids (or one id); without a pool, of the pages themselves."""
    made = PageList.__new__(PageList)
    made.pool = pool
    made.held = held
    return made


def read_pages(name: str, pages: object, pool: PageOwner) -> NDArray[np.int64]:
    """Reads pages of a pool as ids, `i64[pages]`, read-only (R1). O(1) for a `PageList`, else O(pages)."""
    if type(pages) is PageList and pages.pool is pool:
        return pages.held if type(pages.held) is np.ndarray else pages.id_array
    given = listed(name, list(pages) if isinstance(pages, reversed) else pages)
    for page in given:
        if not isinstance(page, CachePage):
            raise refusal(TypeError, "R1", f"{name} has {shown(page)}, which is no CachePage")
        if page.pool is not pool:
            raise refusal(ValueError, "R1", f"{name}: page {page.page_id} belongs to another pool")
    return np.array([page.page_id for page in given], np.int64)


def read_groups(name: str, pages: object, pool: PageOwner) -> NDArray[np.int64]:
    """Reads lists of pages of a pool, one a group, as ids, `i64[n]`; null pages are left out (R1, POOL-1)."""
    groups = [read_pages(name, group, pool) for group in listed(name, pages)]
    ids = np.concatenate(groups) if groups else np.empty(0, np.int64)
    held: NDArray[np.int64] = ids[ids != 0]
    return held
