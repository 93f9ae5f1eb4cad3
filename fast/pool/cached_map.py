"""POOL-7: the cached map, from keys to pages, and the view of it that a pool shows."""

from collections import OrderedDict
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, ValuesView

from kvproof.spec.declarations.page_calls import PageOwner
from kvproof.spec.declarations.uncopied import Uncopied

from .hashing import PageHashWithGroupId
from .pages import PageList, page_list

__all__ = ["CachedMap", "KeyMap"]


class KeyMap:
    """The cached map by page ids; built when it is first asked for, and updated from then on.

    Attributes:
        pages: the pages under each key, in the order in which they were cached.
        key_of: the key of each cached page.
    """

    __slots__ = ("key_of", "pages")

    def __init__(self) -> None:
        self.pages: dict[PageHashWithGroupId, OrderedDict[int, None]] = {}
        self.key_of: dict[int, PageHashWithGroupId] = {}

    def add(self, key: PageHashWithGroupId, page: int) -> None:
        """Adds a page behind those of the same key."""
        same = self.pages.get(key)
        if same is None:
            same = self.pages[key] = OrderedDict()
        same[page] = None
        self.key_of[page] = key

    def remove(self, pages: Iterable[int]) -> None:
        """Removes pages; those that are not in the map are skipped. O(1) each."""
        for page in pages:
            key = self.key_of.pop(page, None)
            if key is not None:
                same = self.pages[key]
                del same[page]
                if not same:
                    del self.pages[key]


class CachedMap(Uncopied, Mapping[PageHashWithGroupId, PageList]):
    """A pool's cached map, live and read-only: key to pages in the order in which they were cached (POOL-7).

    Each reading costs O(cached pages), and a digest for each page that has none yet.

    Args:
        pool: the pool.
        pages_by_key: returns the map as it is, by page ids.
    """

    __slots__ = ("_pages_by_key", "_pool")

    def __init__(
        self, pool: PageOwner, pages_by_key: Callable[[], Mapping[PageHashWithGroupId, Iterable[int]]]
    ) -> None:
        self._pool = pool
        self._pages_by_key = pages_by_key

    def _snapshot(self) -> dict[PageHashWithGroupId, PageList]:
        return {key: page_list(self._pool, tuple(pages)) for key, pages in self._pages_by_key().items()}

    def __getitem__(self, key: PageHashWithGroupId) -> PageList:
        return self._snapshot()[key]

    def __iter__(self) -> Iterator[PageHashWithGroupId]:
        return iter(self._snapshot())

    def __len__(self) -> int:
        return len(self._snapshot())

    def items(self) -> ItemsView[PageHashWithGroupId, PageList]:
        """Keys and pages, as they are now."""
        return self._snapshot().items()

    def values(self) -> ValuesView[PageList]:
        """The pages under each key, as they are now."""
        return self._snapshot().values()

    def __repr__(self) -> str:
        return f"CachedMap({self._snapshot()})"
