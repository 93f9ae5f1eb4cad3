"""Pages, and the lists of pages that calls return.

A pool keeps no object for a page: its state lies in arrays with one entry a page. The page objects of the interface are
views, made when they are read, and a page list stores ids until it is iterated.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol, overload

import numpy as np
from numpy.typing import NDArray

from ..reading.arguments import integer, listed, refusal, shown
from .hashing import PageHashWithGroupId

__all__ = ["NOWHERE", "CachePage", "Owner", "PageList", "PageView", "page_list", "read_groups", "read_pages"]


class Queue(Protocol):
    """What a page asks the free queue of its pool."""

    def neighbour(self, page_id: int, step: int) -> "CachePage | None":
        """The page before (``step`` -1) or after (+1) a free page, or an end of the queue."""


class Owner(Protocol):
    """What a page asks the pool that it belongs to: see `PagePool`."""

    @property
    def free_page_queue(self) -> Queue:
        """The free pages in eviction order."""

    def ref_count(self, page_id: int) -> int:
        """The reference count of a page."""

    def set_ref_count(self, page_id: int, count: int) -> None:
        """Sets the reference count of a page in use."""

    def key_of_page(self, page_id: int) -> PageHashWithGroupId | None:
        """The key of a cached page, None for any other."""

    def evict_pages(self, page_ids: Iterable[int]) -> None:
        """Drops the hashes of pages."""


class CachePage:
    """One page: its id, its reference count, its hash while it has one, and its links in a free queue.

    A page made by this constructor belongs to no pool: its count and hash can be set freely, and it can be put into a
    `FreeCachePageQueue`. The pages of a `PagePool` are `PageView`s, which can be changed only as the pool's clauses
    allow.

    Args:
        page_id: the page's number.
        ref_cnt: its reference count.
        _page_hash: its hash, None if it has none.
        prev_free_page: must be None: a page gets its neighbours from the queue it is in.
        next_free_page: must be None, as ``prev_free_page``.
        is_null: True for a null page (POOL-1).

    Attributes:
        queue: the `FreeCachePageQueue` that the page is in, which alone sets this and the links; None: it is in none.
        before: the page before this one in the queue; `NOWHERE` in none.
        after: the page after this one in the queue; `NOWHERE` in none.
    """

    __slots__ = ("_hash", "_is_null", "_page_id", "_ref_cnt", "after", "before", "queue")

    def __init__(
        self,
        page_id: int,
        ref_cnt: int = 0,
        _page_hash: PageHashWithGroupId | None = None,
        prev_free_page: "CachePage | None" = None,
        next_free_page: "CachePage | None" = None,
        is_null: bool = False,
    ) -> None:
        if prev_free_page is not None or next_free_page is not None:
            raise refusal(ValueError, "POOL-2", "prev_free_page and next_free_page come from the queue a page is in")
        self._page_id = integer("page_id", page_id)
        self._ref_cnt = integer("ref_cnt", ref_cnt)
        self._hash = _page_hash
        self._is_null = is_null
        self.before: CachePage = NOWHERE
        self.after: CachePage = NOWHERE
        self.queue: object = None

    @property
    def page_id(self) -> int:
        """The page's number."""
        return self._page_id

    @property
    def pool(self) -> Owner | None:
        """The pool that the page belongs to; None if it belongs to none."""
        return None

    @property
    def is_null(self) -> bool:
        """True for a null page: a placeholder without content (POOL-1)."""
        return self._is_null

    @property
    def ref_cnt(self) -> int:
        """The reference count; 0 if the page is free. On a null page it never changes (POOL-1)."""
        return self._ref_cnt

    @ref_cnt.setter
    def ref_cnt(self, count: int) -> None:
        count = _count(count)
        if not self._is_null:
            self._ref_cnt = count

    def incr_ref(self) -> None:
        """Raises the count by one; refused on a pool's page where that would break POOL-2."""
        self.ref_cnt = self.ref_cnt + 1

    def decr_ref(self) -> None:
        """Lowers the count by one; refused below 0, and on a pool's page where that would break POOL-2."""
        if not self.is_null:
            self.ref_cnt = self.ref_cnt - 1

    @property
    def page_hash(self) -> PageHashWithGroupId | None:
        """The page's hash, None while it has none (POOL-8)."""
        return self._hash

    @page_hash.setter
    def page_hash(self, page_hash: PageHashWithGroupId) -> None:
        if self._is_null:
            raise refusal(ValueError, "POOL-7", f"page_hash of page {self._page_id}: a null page is never cached")
        if self._hash is not None:
            raise refusal(ValueError, "POOL-8", f"page_hash: page {self._page_id} has a hash already")
        self._hash = page_hash

    def reset_hash(self) -> None:
        """Drops the page's hash; a pool's page leaves the cached map with it (POOL-11)."""
        self._hash = None

    @property
    def prev_free_page(self) -> "CachePage | None":
        """The page before this one in the free queue it is in (the queue's fake head before the first); else None."""
        return None if self.before is NOWHERE else self.before

    @property
    def next_free_page(self) -> "CachePage | None":
        """The page after this one in the free queue it is in (the queue's fake tail after the last); else None."""
        return None if self.after is NOWHERE else self.after

    def __repr__(self) -> str:
        before, after = self.prev_free_page, self.next_free_page
        return (
            f"CachePage(page_id={self.page_id}, ref_cnt={self.ref_cnt}, _page_hash={self.page_hash}, "
            f"prev_free_page={before and before.page_id}, next_free_page={after and after.page_id})"
        )


NOWHERE = CachePage.__new__(CachePage)
"""The target of the links of a page that is in no queue, and of the outer links of a queue's ends."""


class PageView(CachePage):
    """A live view of one page of a pool: equal to every other view of it, and hashable.

    Made by the pool; nothing is computed until it is read.
    """

    __slots__ = ("pool",)

    pool: Owner

    def __init__(self, pool: Owner, page_id: int) -> None:
        self.pool = pool
        self._page_id = page_id
        self._is_null = page_id == 0

    @property
    def ref_cnt(self) -> int:
        """The reference count; 0 if free, and always of a null page (POOL-1). Values that break POOL-2 are refused."""
        return self.pool.ref_count(self._page_id)

    @ref_cnt.setter
    def ref_cnt(self, count: int) -> None:
        self.pool.set_ref_count(self._page_id, _count(count))

    @property
    def page_hash(self) -> PageHashWithGroupId | None:
        """The page's hash, None while it has none; it gets one from `PagePool.cache_full_pages` only (POOL-7)."""
        return self.pool.key_of_page(self._page_id)

    @page_hash.setter
    def page_hash(self, page_hash: PageHashWithGroupId) -> None:
        del page_hash  # it has token ids (SEC-2)
        raise refusal(ValueError, "POOL-7", f"page_hash of page {self._page_id}: use cache_full_pages of its pool")

    def reset_hash(self) -> None:
        """Drops the page's hash, and with it its place in the cached map (POOL-11)."""
        self.pool.evict_pages((self._page_id,))

    @property
    def prev_free_page(self) -> CachePage | None:
        """The page before this one in the pool's free queue (its fake head before the first); None if in use."""
        return self.pool.free_page_queue.neighbour(self._page_id, -1)

    @property
    def next_free_page(self) -> CachePage | None:
        """The page after this one in the pool's free queue (its fake tail after the last); None if in use."""
        return self.pool.free_page_queue.neighbour(self._page_id, +1)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PageView):
            return self._page_id == other.page_id and self.pool is other.pool
        return NotImplemented

    def __hash__(self) -> int:
        return hash((id(self.pool), self._page_id))


def _count(value: object) -> int:
    count = integer("ref_cnt", value)
    if count >= 2**31:
        raise refusal(ValueError, "R1", f"ref_cnt={count} does not fit an int32")
    return count


class PageList(Sequence[CachePage]):
    """An immutable list of pages, equal to lists of the same pages and addable with them.

    Pages of a pool are stored as ids (an int for a single page, else a tuple or an int64 array), and views are made
    when the list is read: O(1) to make and to slice. Pages without a pool are stored as objects.
    """

    __slots__ = ("held", "pool")

    # set by `page_list` and not changed: without an `__init__` a list costs half
    pool: Owner | None
    held: Any

    @property
    def _items(self) -> Any:
        held = self.held
        return (held,) if type(held) is int else held

    @classmethod
    def of(cls, pages: Iterable[CachePage]) -> "PageList":
        """A list of pages: stored by their ids, if they are all of one pool. O(pages)."""
        if type(pages) is PageList:
            return pages
        given = tuple(pages)
        for page in given:
            if not isinstance(page, CachePage):
                raise refusal(TypeError, "R1", f"pages has {shown(page)}, which is no CachePage")
        pools = {id(page.pool) for page in given}
        if len(pools) == 1 and given[0].pool is not None:
            return page_list(given[0].pool, tuple(page.page_id for page in given))
        return page_list(None, given)

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
    def pools(self) -> set[Owner | None]:
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
        return PageList.of((*self, *other)) if isinstance(other, PageList | list) else NotImplemented

    def __radd__(self, other: object) -> list[CachePage]:
        # a list, since Python calls this for ``pages += page_list`` too, where ``pages`` is to stay a list
        return [*other, *self] if isinstance(other, list) else NotImplemented

    def __repr__(self) -> str:
        return f"PageList({self.page_ids})"


def page_list(
    pool: Owner | None, held: "int | tuple[int, ...] | NDArray[np.int64] | tuple[CachePage, ...]"
) -> PageList:
    """A list of pages of a pool by their ids (or one id); without a pool, of the pages themselves."""
    made = PageList()
    made.pool = pool
    made.held = held
    return made


def read_pages(name: str, pages: object, pool: Owner) -> NDArray[np.int64]:
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


def read_groups(name: str, pages: object, pool: Owner) -> NDArray[np.int64]:
    """Reads lists of pages of a pool, one a group, as ids, `i64[n]`; null pages are left out (R1, POOL-1)."""
    groups = [read_pages(name, group, pool) for group in listed(name, pages)]
    ids = np.concatenate(groups) if groups else np.empty(0, np.int64)
    held: NDArray[np.int64] = ids[ids != 0]
    return held
