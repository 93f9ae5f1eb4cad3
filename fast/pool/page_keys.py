"""HASH-3: the keys of cached pages, computed on demand: the index finds pages by their tokens and needs no keys.

Digests are computed when they are first wanted and kept in their runs. A map from key to pages is built when a
look-up by key first happens, and kept up from then on: an engine that finds its prefixes by `CacheManager` never
pays for it. Where keys are kept, or events carry them, the keys of a `KeyStretch` are worked out before its pages
are published.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from kvproof.spec.declarations import HashFunction
from kvproof.spec.declarations.keys import read_page_hash

from ..index.parts import PART, extra_at
from ..index.prefix_index import PrefixIndex
from ..index.runs import Run, RunTree
from ..reading.arguments import listed, refusal
from ..reading.extra_keys import ExtraSegment
from ..reading.tokens import TokenBytes
from .cached_map import KeyMap
from .hashing import (
    PageHash,
    PageHashes,
    PageHashWithGroupId,
    digest_chain,
    page_digest,
    sha256,
    token_tuple,
)
from .pool_log import KeyStretch, PoolLog

__all__ = ["PageKeys"]


class PageKeys:
    """The keys of a pool's cached pages.

    Keys are *kept* where a digest is computed for each page that is published: once a map from keys to pages was asked
    for, and for events, which carry digests.

    Args:
        index: the index of the cached pages.
        log: the log that events go to.
        hash_function: the hash of the keys.
        none_hash: the digest at the root of every chain of keys (HASH-1).

    Attributes:
        kept: True if every cached page has its key computed.
    """

    __slots__ = ("_digests", "_index", "_log", "_map", "hash_function", "kept", "none_hash")

    def __init__(self, index: PrefixIndex, log: PoolLog, hash_function: HashFunction, none_hash: bytes) -> None:
        self.hash_function = hash_function
        self.none_hash = none_hash
        self._index = index
        self._log = log
        # Only a map kept from the start knows the order in which pages with colliding keys were cached.
        self._map: KeyMap | None = None if hash_function is sha256 else KeyMap()
        self._digests: dict[int, tuple[int, bytes]] | None = {} if log.keeps_events else None
        """Group and digest of each cached page, for events."""
        self.kept = self._map is not None or log.keeps_events

    # -- Looking ----------------------------------------------------------------------------------

    def of(self, page: int) -> PageHashWithGroupId | None:
        """A page's key; None if it is not cached. Computes a digest for each page before it that has none yet."""
        if self._map is not None:
            return self._map.key_of.get(page)
        place = self._index.place(page)
        return None if place is None else self._key(*place)

    def pages_by_key(self) -> Mapping[PageHashWithGroupId, Iterable[int]]:
        """The cached map. O(cached pages)."""
        if self._map is not None:
            return self._map.pages
        return {self._key(run, place): pages for run, place, pages in self._index.places()}

    def map(self) -> KeyMap:
        """The map from keys to pages, built by the first call and updated from then on."""
        if self._map is None:
            keys = KeyMap()
            for same, pages in self.pages_by_key().items():
                for page in pages:
                    keys.add(same, page)
            self._map = keys
            self.kept = True
            self._index.leave_tails()  # whose pages would be entered without a key
        return self._map

    def alike(self) -> list[list[int]]:
        """The cached pages, one list for each key, in the order in which they were cached (POOL-7)."""
        if self._map is not None:
            return [list(pages) for pages in self._map.pages.values()]
        return [pages for _, _, pages in self._index.places()]  # then no two contents have one key

    def _key(self, run: Run, place: int) -> PageHashWithGroupId:
        """The key of one page of a run."""
        tokens = token_tuple(run.page_tokens(place))
        return PageHashWithGroupId(PageHash(self._digest(run, place), tokens, run.extra_keys), run.tree.group_id)

    def _digest(self, run: Run, place: int) -> bytes:
        chain = [(run, place)]  # (run, its last place wanted)
        while not run.digests and (above := run.parent) is not None and above.parent is not None:
            run, place = above, run.start - 1 - above.start
            chain.append((run, place))
        digest = self.none_hash
        for step, last in reversed(chain):
            known = step.digests = step.digests or []
            for inner in range(len(known), last + 1):
                before = known[-1] if known else digest
                extra = step.extra.removeprefix(PART)
                known.append(page_digest(self.hash_function, before, extra, step.page_tokens(inner)))
            digest = known[last]
        return digest

    # -- Coming and going -------------------------------------------------------------------------

    def require_own(
        self, page_hashes: object, tokens: TokenBytes, segments: Sequence[ExtraSegment], page_size: int
    ) -> None:
        """Refuses keys that are not those of the tokens (R2): compares tokens where the keys have them, else digests.

        Args:
            page_hashes: keys of the tokens' first pages.
            tokens: token bytes of whole pages.
            segments: the request's extra keys over its pages.
            page_size: tokens in a page.
        """
        if (
            type(page_hashes) is PageHashes
            and page_hashes.hash_function is self.hash_function
            and page_hashes.none_hash == self.none_hash
            and page_hashes.page_size == page_size
        ):
            if not page_hashes.agrees(tokens, segments, len(tokens) // (4 * page_size)):
                raise refusal(ValueError, "R2", "page_hashes are not the keys of the request's pages")
            return
        given = listed("page_hashes", page_hashes)[: len(tokens) // (4 * page_size)]
        if not given:
            return
        own = PageHashes(
            self.hash_function, self.none_hash, page_size, bytes(tokens[: len(given) * 4 * page_size]), segments
        )
        for place, (known, key) in enumerate(zip(given, own, strict=True)):
            if read_page_hash(f"page_hashes[{place}]", known) != key:
                raise refusal(ValueError, "R2", f"page_hashes[{place}] is not the key of the request's page {place}")

    def ahead(
        self, tree: RunTree, tokens: TokenBytes, segments: Sequence[ExtraSegment], start: int = 0, after: int = 0
    ) -> KeyStretch | None:
        """The keys of pages about to be published, if keys are kept; else None, and nothing is computed.

        A hash function that raises does so here, before anything has changed (R1).

        Args:
            tree: the tree in which they will be published.
            tokens: their token bytes.
            segments: the request's extra keys over its pages.
            start: the place of the first of them in the request.
            after: the cached page that holds the request's page ``start - 1``; 0 where ``start`` is 0.
        """
        if not self.kept:
            return None
        tokens = bytes(tokens)  # an event is made of them only when it is taken
        before = self._known_digest(after) if after else None
        root = self.none_hash if before is None else before
        if 0 < len(tokens) < tree.page_bytes:  # one page that is not full (MAN-17)
            digest = page_digest(self.hash_function, root, extra_at(segments, start).extra, tokens)
            return KeyStretch(tree.group_id, before, [digest], tokens, segments, start)
        digests = digest_chain(self.hash_function, root, tree.page_bytes, tokens, segments, start)
        return KeyStretch(tree.group_id, before, digests, tokens, segments, start)

    def _known_digest(self, page: int) -> bytes:
        """A cached page's digest, where keys are kept."""
        if self._digests is not None:
            return self._digests[page][1]
        assert self._map is not None, "keys are kept"
        return self._map.key_of[page].get_hash_value()

    def add(self, pages: Sequence[int], keys: KeyStretch) -> None:
        """Keeps the keys of pages that were published, and records the event; null pages are skipped."""
        if self._map is not None:
            for page, key in zip(pages, keys.keys(), strict=True):
                if page:
                    self._map.add(key, page)
        if self._digests is not None:
            group = keys.group_id
            for page, digest in zip(pages, keys.digests, strict=True):
                if page:
                    self._digests[page] = group, digest
            self._log.stored(pages, keys)

    def remove(self, pages: Sequence[int] | NDArray[np.int64]) -> None:
        """Drops the keys of pages that lose their hashes, and records the events; those without a hash are skipped."""
        ids = np.asarray(pages).tolist()
        if self._map is not None:
            self._map.remove(ids)
        if self._digests is not None:
            pop = self._digests.pop
            self._log.removed([(key[0], page, key[1]) for page in ids if (key := pop(page, None)) is not None])

    def clear(self) -> None:
        """Drops all keys."""
        if self._map is not None:
            self._map = KeyMap()
        if self._digests is not None:
            self._digests.clear()

    def restore(self, keys: Iterable[tuple[int, PageHashWithGroupId]]) -> None:
        """Keeps the keys of pages that an index was filled with, in the order in which they were cached (MAN-14)."""
        for page, key in keys if self.kept else ():
            if self._map is not None:
                self._map.add(key, page)
            if self._digests is not None:
                self._digests[page] = key.group_id, key.get_hash_value()

    def check(self) -> None:
        """Verifies that the keys kept are those of the index; O(cached tokens).

        Raises:
            AssertionError: they don't agree.
        """
        assert self.kept == (self._map is not None or self._digests is not None), "whether keys are kept"
        if not self.kept:
            return
        walked = {page: self._key(run, place) for run, place, pages in self._index.places() for page in pages}
        if self._map is not None:
            mapped = {page: key for key, pages in self._map.pages.items() for page in pages}
            assert walked == mapped == self._map.key_of, "POOL-7: keys and index differ"
        if self._digests is not None:
            digests = {page: (key.group_id, key.get_hash_value()) for page, key in walked.items()}
            assert digests == self._digests, "MAN-12: the digests of events and the index differ"
