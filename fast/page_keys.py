"""Keys of cached pages, for those who ask: the index itself finds pages by their tokens and needs none.

Digests are computed when they are first wanted and kept in their runs. A map from key to pages is built when a
look-up by key first happens, and kept up from then on: an engine that finds its prefixes by `CacheManager` never
pays for it.
"""

from collections.abc import ItemsView, Iterable, Iterator, Mapping, ValuesView
from typing import TYPE_CHECKING

from kvproof.spec.declarations import HashFunction

from .hashing import PageHash, PageHashWithGroupId, page_digest, token_tuple
from .pages import PageList
from .runs import Run

if TYPE_CHECKING:
    from .page_pool import PagePool

__all__ = ["CachedMap", "KeyMap", "page_key"]


def page_key(hash_function: HashFunction, none_hash: bytes, run: Run, place: int) -> PageHashWithGroupId:
    """The key of one page of a run. One digest for each page before it that has none yet."""
    tokens = token_tuple(run.page_tokens(place))
    return PageHashWithGroupId(
        PageHash(_digest(hash_function, none_hash, run, place), tokens, run.extra_keys), run.tree.group_id
    )


def _digest(hash_function: HashFunction, none_hash: bytes, run: Run, place: int) -> bytes:
    chain: list[Run] = []
    above: Run | None = run
    while above is not None and above.parent is not None:
        if above is not run and len(above.digests or ()) == len(above.pages):
            break
        chain.append(above)
        above = above.parent
    digest = above.digests[-1] if above is not None and above.digests else none_hash
    known: list[bytes] = []
    for step in reversed(chain):
        known = step.digests = step.digests or []
        digest = known[-1] if known else digest
        for inner in range(len(known), place + 1 if step is run else len(step.pages)):
            digest = page_digest(hash_function, digest, step.extra, step.page_tokens(inner))
            known.append(digest)
    return known[place]


class KeyMap:
    """The cached map by key, kept up from its first use on (POOL-7).

    Attributes:
        pages: the pages under each key, in the order in which they were cached.
        key_of: the key of each cached page.
    """

    __slots__ = ("key_of", "pages")

    def __init__(self) -> None:
        self.pages: dict[PageHashWithGroupId, list[int]] = {}
        self.key_of: dict[int, PageHashWithGroupId] = {}

    def add(self, key: PageHashWithGroupId, page: int) -> None:
        """Enters a page behind those of the same key."""
        self.pages.setdefault(key, []).append(page)
        self.key_of[page] = key

    def remove(self, pages: Iterable[int]) -> None:
        """Takes pages out, those that are there."""
        for page in pages:
            key = self.key_of.pop(page, None)
            if key is not None:
                same = self.pages[key]
                same.remove(page)
                if not same:
                    del self.pages[key]


class CachedMap(Mapping[PageHashWithGroupId, PageList]):
    """A pool's cached map, live and read-only: key to pages in the order in which they were cached (POOL-7).

    Each reading costs O(cached pages), and a digest for each page that has none yet.
    """

    __slots__ = ("_pool",)

    def __init__(self, pool: "PagePool") -> None:
        self._pool = pool

    def _snapshot(self) -> dict[PageHashWithGroupId, PageList]:
        return {key: PageList(self._pool, tuple(pages)) for key, pages in self._pool.pages_by_key().items()}

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
