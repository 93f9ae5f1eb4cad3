"""POOL: a page, and the immutable list of pages that calls return."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol, overload

from ..reading.arguments import integer, refusal, shown
from .hashing import PageHashWithGroupId

__all__ = ["CachePage", "PageList", "PageView"]


class Queue(Protocol):
    """What a page asks the free queue that it is in."""

    def neighbour(self, page: "CachePage", step: int) -> "CachePage | None":
        """The page before (``step=-1``) or after (``step=+1``) a page of the queue, or an end of the queue."""


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
    """One page: its id, its reference count, its hash while it has one, and its place in a free queue.

    A page made by this constructor belongs to no pool: its count and hash can be set freely, and it can be put into a
    `FreeCachePageQueue`. The pages of a `PagePool` are `PageView`s, which change only as the pool's clauses allow.

    Args:
        page_id: the page's number.
        ref_cnt: the reference count.
        _page_hash: the hash; None: the page has none.
        prev_free_page: must be None: the neighbours of a page come from the queue it is in.
        next_free_page: must be None, for the same reason.
        is_null: whether this is a null page (POOL-1).

    Attributes:
        queue: the `FreeCachePageQueue` that the page is in, which alone sets this; None: it is in none.
    """

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
        self.queue: Queue | None = None

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
        """Whether this is a null page: a placeholder that holds nothing (POOL-1)."""
        return self._is_null

    @property
    def ref_cnt(self) -> int:
        """The reference count; 0 if the page is free. Setting the null page's does nothing (POOL-1)."""
        return self._ref_cnt

    @ref_cnt.setter
    def ref_cnt(self, count: int) -> None:
        count = _count(count)
        if not self._is_null:
            self._ref_cnt = count

    def incr_ref(self) -> None:
        """Raises the count by one; refused where that would break POOL-2."""
        self.ref_cnt = self.ref_cnt + 1

    def decr_ref(self) -> None:
        """Lowers the count by one; refused below 0 and where that would break POOL-2 or PIN-1."""
        if not self._is_null:
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
        """Drops the page's hash; a page of a pool leaves the cached map, too (POOL-11)."""
        self._hash = None

    @property
    def prev_free_page(self) -> "CachePage | None":
        """The page before this one in the free queue it is in (the queue's fake head before the first); else None."""
        return None if self.queue is None else self.queue.neighbour(self, -1)

    @property
    def next_free_page(self) -> "CachePage | None":
        """The page after this one in the free queue it is in (the queue's fake tail after the last); else None."""
        return None if self.queue is None else self.queue.neighbour(self, +1)

    def __repr__(self) -> str:
        before, after = self.prev_free_page, self.next_free_page
        return (
            f"CachePage(page_id={self.page_id}, ref_cnt={self.ref_cnt}, _page_hash={self.page_hash}, "
            f"prev_free_page={before and before.page_id}, next_free_page={after and after.page_id})"
        )


class PageView(CachePage):
    """A page of a pool, which has one object for each: shows its count, hash and place, which the pool keeps.

    Args:
        pool: the pool.
        page_id: the page's number; 0 is the null page (POOL-1).
    """

    def __init__(self, pool: Owner, page_id: int) -> None:
        super().__init__(page_id, is_null=page_id == 0)
        self._pool = pool

    @property
    def pool(self) -> Owner:
        """The pool that the page belongs to."""
        return self._pool

    @property
    def ref_cnt(self) -> int:
        """The reference count; 0 if the page is free.

        A value that would break POOL-2 or PIN-1 is refused; setting the null page's does nothing (POOL-1).
        """
        return self._pool.ref_count(self.page_id)

    @ref_cnt.setter
    def ref_cnt(self, count: int) -> None:
        self._pool.set_ref_count(self.page_id, _count(count))

    @property
    def page_hash(self) -> PageHashWithGroupId | None:
        """The page's hash, None while it has none; it gets one from `PagePool.cache_full_pages` only (POOL-7)."""
        return self._pool.key_of_page(self.page_id)

    @page_hash.setter
    def page_hash(self, page_hash: PageHashWithGroupId) -> None:
        del page_hash  # it has token ids (SEC-2)
        raise refusal(ValueError, "POOL-7", f"page_hash of page {self.page_id}: use cache_full_pages of its pool")

    def reset_hash(self) -> None:
        """Drops the page's hash, and with it its place in the cached map (POOL-11)."""
        self._pool.evict_pages([self.page_id])

    @property
    def prev_free_page(self) -> CachePage | None:
        """The page before this one in the pool's free queue (its fake head before the first); None if in use."""
        return self._pool.free_page_queue.neighbour(self, -1)

    @property
    def next_free_page(self) -> CachePage | None:
        """The page after this one in the pool's free queue (its fake tail after the last); None if in use."""
        return self._pool.free_page_queue.neighbour(self, +1)


def _count(value: object) -> int:
    count = integer("ref_cnt", value)
    if count >= 2**31:
        raise refusal(ValueError, "R1", f"ref_cnt={count} does not fit an int32")
    return count


class PageList(Sequence[CachePage]):
    """An immutable list of pages; it compares and adds with lists of pages.

    Args:
        pages: the pages.
    """

    __slots__ = ("_pages",)

    def __init__(self, pages: Iterable[CachePage] = ()) -> None:
        self._pages = tuple(pages)
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
