"""POOL: what a page shows and refuses, declared once; its place in a free queue is written in each package."""

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from .keys import PageHashWithGroupId
from .reading import integer, refusal
from .showing import ShownQueue

__all__ = ["OwnedQueue", "Page", "PageOwner", "PagesByGroup", "PooledPage", "require_page"]


class PageOwner(Protocol):
    """What a page asks the pool that it belongs to: see `PagePool`."""

    @property
    def free_page_queue(self) -> Any:
        """The free pages in eviction order."""

    def ref_count(self, page_id: int) -> int:
        """The reference count of a page."""

    def set_ref_count(self, page_id: int, count: int) -> None:
        """Sets the reference count of a page in use."""

    def key_of_page(self, page_id: int) -> PageHashWithGroupId | None:
        """The key of a cached page, None for any other."""

    def evict_pages(self, page_ids: Iterable[int]) -> None:
        """Drops the hashes of pages."""


class Page:
    """The fields of a page without a pool: its id, its reference count, its hash while it has one.

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

    __slots__ = ("_hash", "_is_null", "_page_id", "_ref_cnt")  # ``queue``: each package's own

    queue: Any

    def __init__(
        self,
        page_id: int,
        ref_cnt: int = 0,
        _page_hash: PageHashWithGroupId | None = None,
        prev_free_page: "Page | None" = None,
        next_free_page: "Page | None" = None,
        is_null: bool = False,
    ) -> None:
        if prev_free_page is not None or next_free_page is not None:
            raise refusal(ValueError, "POOL-2", "prev_free_page and next_free_page come from the queue a page is in")
        self._page_id = integer("page_id", page_id)
        self._ref_cnt = integer("ref_cnt", ref_cnt)
        self._hash = _page_hash
        self._is_null = is_null
        self.queue = None

    @property
    def page_id(self) -> int:
        """The page's number."""
        return self._page_id

    @property
    def pool(self) -> Any:
        """The pool that the page belongs to; None if it belongs to none."""
        return None

    @property
    def is_null(self) -> bool:
        """Whether this is a null page: a placeholder without content (POOL-1)."""
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
        """Raises the count by one; refused on a pool's page where that would break POOL-2."""
        self.ref_cnt = self.ref_cnt + 1

    def decr_ref(self) -> None:
        """Lowers the count by one; refused below 0, and on a pool's page where that would break POOL-2 or PIN-1."""
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
        """Drops the page's hash; a page of a pool leaves the cached map with it (POOL-11)."""
        self._hash = None

    @property
    def prev_free_page(self) -> Any:
        """The page before this one in the free queue it is in (the queue's fake head before the first); else None."""
        return self._beside(-1)

    @property
    def next_free_page(self) -> Any:
        """The page after this one in the free queue it is in (the queue's fake tail after the last); else None."""
        return self._beside(+1)

    def _beside(self, step: int) -> Any:
        """The page before (``step`` -1) or after (+1) this one in its queue, or an end of the queue; None in none."""
        raise NotImplementedError

    def __repr__(self) -> str:
        before, after = self.prev_free_page, self.next_free_page
        return (
            f"CachePage(page_id={self.page_id}, ref_cnt={self.ref_cnt}, _page_hash={self.page_hash}, "
            f"prev_free_page={before and before.page_id}, next_free_page={after and after.page_id})"
        )


class PooledPage(Page):
    """A page of a pool: shows its count and hash, which the pool keeps, and refuses what breaks the pool's clauses."""

    __slots__ = ()

    @property
    def ref_cnt(self) -> int:
        """The reference count; 0 if the page is free.

        A value that would break POOL-2 or PIN-1 is refused; setting the null page's does nothing (POOL-1).
        """
        count: int = self.pool.ref_count(self._page_id)
        return count

    @ref_cnt.setter
    def ref_cnt(self, count: int) -> None:
        self.pool.set_ref_count(self._page_id, _count(count))

    @property
    def page_hash(self) -> PageHashWithGroupId | None:
        """The page's hash, None while it has none; it gets one from `PagePool.cache_full_pages` only (POOL-7)."""
        key: PageHashWithGroupId | None = self.pool.key_of_page(self._page_id)
        return key

    @page_hash.setter
    def page_hash(self, page_hash: PageHashWithGroupId) -> None:
        del page_hash  # it has token ids (SEC-2)
        raise refusal(ValueError, "POOL-7", f"page_hash of page {self._page_id}: use cache_full_pages of its pool")

    def reset_hash(self) -> None:
        """Drops the page's hash, and with it its place in the cached map (POOL-11)."""
        self.pool.evict_pages([self._page_id])


def _count(value: object) -> int:
    count = integer("ref_cnt", value)
    if count >= 2**31:
        raise refusal(ValueError, "R1", f"ref_cnt={count} does not fit an int32")
    return count


def require_page(name: str, page: object) -> None:
    """Refuses anything but a page (R1)."""
    if not isinstance(page, Page):
        raise refusal(TypeError, "R1", f"{name}={page!r} must be a CachePage")


class OwnedQueue(ShownQueue):
    """The calls of a free queue that a pool's refuses: the pool's own calls move its pages (POOL-2)."""

    __slots__ = ()

    def popleft(self) -> Any:
        """Refused: `PagePool.get_new_pages` takes pages."""
        raise _owned("popleft")

    def popleft_n(self, n: int) -> Any:
        """Refused: `PagePool.get_new_pages` takes pages."""
        raise _owned(f"popleft_n(n={n})")

    def remove(self, page: Page) -> None:
        """Refused: `PagePool.touch` takes a page out of the middle."""
        raise _owned(f"remove(page={page!r})")

    def append(self, page: Page) -> None:
        """Refused: `PagePool.free_pages` puts pages back."""
        raise _owned(f"append(page={page!r})")

    def append_n(self, pages: Iterable[Page]) -> None:
        """Refused: `PagePool.free_pages` puts pages back."""
        raise _owned(f"append_n(pages={pages!r})")


def _owned(call: str) -> Exception:
    return refusal(ValueError, "POOL-2", f"{call}: this queue belongs to a pool, whose calls move pages")


class _ListOfGroup(Protocol):
    @property
    def page_ids(self) -> list[int]: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __add__(self, other: Any, /) -> Any: ...


List = TypeVar("List", bound=_ListOfGroup)


class PagesByGroup(Generic[List]):
    """Pages of one request, a list for each cache group, as the manager and a scheduler exchange them.

    Args:
        pages: one list of pages a group.
    """

    __slots__ = ("pages",)

    _list_of: ClassVar[type[Any]]

    def __init__(self, pages: Iterable[Iterable[Any]]) -> None:
        try:
            groups = iter(pages)
        except TypeError:
            raise refusal(TypeError, "R1", f"pages={pages!r} must be an iterable of lists of pages") from None
        self.pages: tuple[List, ...] = tuple(map(self._list_of, groups))

    def __add__(self, other: Self) -> Self:
        """The pages of both, group by group; refused unless both have the same number of groups (R1)."""
        if not isinstance(other, type(self)):
            return NotImplemented
        if len(self.pages) != len(other.pages):
            raise refusal(ValueError, "R1", f"other has {len(other.pages)} groups, these pages have {len(self.pages)}")
        return type(self)(mine + theirs for mine, theirs in zip(self.pages, other.pages, strict=True))

    def __eq__(self, other: object) -> bool:
        return self.pages == other.pages if isinstance(other, type(self)) else NotImplemented

    def __repr__(self) -> str:
        return f"CachePages({self.get_page_ids()})"

    def get_page_ids(self) -> tuple[list[int], ...]:
        """The pages' ids, a list for each group."""
        return tuple(group.page_ids for group in self.pages)

    def get_unhashed_page_ids(self) -> list[int]:
        """The ids of the pages without a hash, null pages left out (POOL-1); refused for several groups (R1)."""
        if len(self.pages) != 1:
            raise refusal(
                ValueError, "R1", f"get_unhashed_page_ids serves one group, these pages have {len(self.pages)}"
            )
        return [page.page_id for page in self.pages[0] if page.page_hash is None and not page.is_null]

    def new_empty(self) -> Self:
        """An empty page list for each of these groups."""
        return type(self)([] for _ in self.pages)
