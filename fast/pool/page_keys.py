"""Keys of cached pages, computed on demand: the index itself finds pages by their tokens and needs no keys.

Digests are computed when they are first wanted and kept in their runs. A map from key to pages is built when a
look-up by key first happens, and kept up from then on: an engine that finds its prefixes by `CacheManager` never
pays for it. Where keys are kept, or events carry them, the keys of a `KeyStretch` are worked out before its pages
are published.
"""

from collections import OrderedDict
from collections.abc import ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from typing import TYPE_CHECKING, Any, NamedTuple

from kvproof.spec.declarations import HashFunction

from ..index.runs import Run
from ..reading.arguments import listed, refusal
from ..reading.extra_keys import ExtraSegment
from ..reading.tokens import TokenBytes
from .hashing import PageHash, PageHashes, PageHashWithGroupId, page_digest, read_page_hash, token_tuple, token_tuples
from .pages import PageList, page_list

if TYPE_CHECKING:
    from .page_pool import PagePool

__all__ = ["CachedMap", "KeyMap", "KeyStretch", "page_key", "require_own_keys"]


def page_key(hash_function: HashFunction, none_hash: bytes, run: Run, place: int) -> PageHashWithGroupId:
    """The key of one page of a run. Computes a digest for each page before it that has none yet."""
    tokens = token_tuple(run.page_tokens(place))
    return PageHashWithGroupId(
        PageHash(_digest(hash_function, none_hash, run, place), tokens, run.extra_keys), run.tree.group_id
    )


def _digest(hash_function: HashFunction, none_hash: bytes, run: Run, place: int) -> bytes:
    chain = [(run, place)]  # (run, its last place wanted)
    while not run.digests and (above := run.parent) is not None and above.parent is not None:
        run, place = above, run.start - 1 - above.start
        chain.append((run, place))
    digest = none_hash
    for step, last in reversed(chain):
        known = step.digests = step.digests or []
        for inner in range(len(known), last + 1):
            before = known[-1] if known else digest
            known.append(page_digest(hash_function, before, step.extra, step.page_tokens(inner)))
        digest = known[last]
    return digest


class KeyStretch(NamedTuple):
    """The keys of pages in a row of one request, worked out before the pages are published.

    Attributes:
        group_id: the cache group.
        before: the digest of the page before the first, cached or not; None if there is none.
        digests: the pages' digests.
        tokens: the token bytes of the pages.
        segments: the request's extra keys over its pages.
        start: the place of the first page in the request.
    """

    group_id: int
    before: bytes | None
    digests: list[bytes]
    tokens: bytes
    segments: Sequence[ExtraSegment]
    start: int

    def extra_keys(self) -> list[tuple[Any, ...] | None]:
        """The extra keys that touch each page."""
        place, end = self.start, self.start + len(self.digests)
        extra_keys: list[tuple[Any, ...] | None] = []
        for segment in self.segments:
            extra_keys += [segment.extra_keys] * (min(segment.end, end) - place)
            place = max(place, min(segment.end, end))
        return extra_keys

    def keys(self) -> list[PageHashWithGroupId]:
        """The keys. O(tokens)."""
        parts = zip(self.digests, token_tuples(self.tokens, len(self.digests)), self.extra_keys(), strict=True)
        return [PageHashWithGroupId(PageHash(*part), self.group_id) for part in parts]


def require_own_keys(
    page_hashes: object,
    hash_function: HashFunction,
    none_hash: bytes,
    tokens: TokenBytes,
    segments: Sequence[ExtraSegment],
    page_size: int,
) -> None:
    """Refuses keys that are not those of the tokens (R2), comparing tokens where the keys have them, else digests.

    Args:
        page_hashes: keys of the tokens' first pages.
        hash_function: the hash of the keys.
        none_hash: the root of the chain.
        tokens: token bytes of whole pages.
        segments: the request's extra keys over its pages.
        page_size: tokens in a page.
    """
    if (
        type(page_hashes) is PageHashes
        and page_hashes.hash_function is hash_function
        and page_hashes.none_hash == none_hash
        and page_hashes.page_size == page_size
    ):
        if not page_hashes.agrees(tokens, segments, len(tokens) // (4 * page_size)):
            raise refusal(ValueError, "R2", "page_hashes are not the keys of the request's pages")
        return
    given = listed("page_hashes", page_hashes)[: len(tokens) // (4 * page_size)]
    if not given:
        return
    own = PageHashes(hash_function, none_hash, page_size, bytes(tokens[: len(given) * 4 * page_size]), segments)
    for place, (known, key) in enumerate(zip(given, own, strict=True)):
        if read_page_hash(f"page_hashes[{place}]", known) != key:
            raise refusal(ValueError, "R2", f"page_hashes[{place}] is not the key of the request's page {place}")


class KeyMap:
    """The cached map by key, updated from its first use on (POOL-7).

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


class CachedMap(Mapping[PageHashWithGroupId, PageList]):
    """A pool's cached map, live and read-only: key to pages in the order in which they were cached (POOL-7).

    Each reading costs O(cached pages), and a digest for each page that has none yet.
    """

    __slots__ = ("_pool",)

    def __init__(self, pool: "PagePool") -> None:
        self._pool = pool

    def _snapshot(self) -> dict[PageHashWithGroupId, PageList]:
        return {key: page_list(self._pool, tuple(pages)) for key, pages in self._pool.pages_by_key().items()}

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
