"""The pages of one request by cache group, as the manager and a scheduler exchange them."""

from collections.abc import Iterable

from ..pool.pages import CachePage, PageList
from ..reading.arguments import refusal

__all__ = ["CachePages"]


class CachePages:
    """Pages of one request, a list for each cache group. Cheap to make: the lists hold ids.

    Args:
        pages: one list of pages a group.
    """

    __slots__ = ("pages",)

    def __init__(self, pages: Iterable[Iterable[CachePage]]) -> None:
        self.pages: tuple[PageList, ...] = tuple(map(PageList.of, pages))

    def __add__(self, other: "CachePages") -> "CachePages":
        """The pages of both, group by group; refused if their numbers of groups differ (R1)."""
        if not isinstance(other, CachePages):
            return NotImplemented
        if len(self.pages) != len(other.pages):
            raise refusal(ValueError, "R1", f"other has {len(other.pages)} groups, these pages have {len(self.pages)}")
        return CachePages(mine + theirs for mine, theirs in zip(self.pages, other.pages, strict=True))

    def __eq__(self, other: object) -> bool:
        return self.pages == other.pages if isinstance(other, CachePages) else NotImplemented

    def __repr__(self) -> str:
        return f"CachePages({self.get_page_ids()})"

    def get_page_ids(self) -> tuple[list[int], ...]:
        """The pages' ids, a list for each group."""
        return tuple(group.page_ids for group in self.pages)

    def get_unhashed_page_ids(self) -> list[int]:
        """The ids of the pages that have no hash, null pages left out (POOL-1); for a single group only (R1)."""
        if len(self.pages) != 1:
            raise refusal(
                ValueError, "R1", f"get_unhashed_page_ids serves one group, these pages have {len(self.pages)}"
            )
        return [page.page_id for page in self.pages[0] if page.page_hash is None and not page.is_null]

    def new_empty(self) -> "CachePages":
        """An empty list for each group."""
        return CachePages([] for _ in self.pages)
