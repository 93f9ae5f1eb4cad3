"""POOL-7, POOL-8, MAN-12: what the pages of a pool hold: the index of cached pages, their keys, events and counters.

The half of a pool that does not care who holds a page; `PagePool` is the other half. Pages enter the index by
`PrefixIndex.publish`, with `keys_to_be` called before it and `note_keys` behind it, and leave it by `_evict`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvproof.spec.declarations import CacheCounters, CacheEvent, CacheSalt, PoolOptions
from kvproof.spec.declarations.codec import Part
from kvproof.spec.declarations.json_kinds import counters_of, event_of, event_to_json

from ..index.prefix_index import PrefixIndex
from ..index.runs import RunTree
from ..reading.arguments import flag, integer
from ..reading.extra_keys import ExtraSegment
from ..reading.tokens import TokenBytes
from .contents import SavedContents, contents_of
from .hashing import PageHashWithGroupId, digest_chain, init_none_hash, sha256
from .page_keys import KeyMap, KeyStretch, page_key
from .pool_events import EventLog
from .sampling import Sampling

__all__ = ["CachedPages"]

_LATEST = 1 << 62
"""The bound of a clock in a snapshot: it goes on."""

_TIMES = "stored_at", "freed_at"


class CachedPages:
    """The cached pages of a pool; see `PagePool`, whose arguments these are.

    Attributes:
        num_pages: the number of pages, the null page included.
        enable_caching: True if full pages can be cached and found again.
        enable_events: True if events are kept for `take_events`.
        counter_sampling: the sampling interval n of the histograms of `counters`: pages whose id is a multiple of n.
        hash_function: the hash of the keys.
        none_hash: the digest at the root of every chain of keys (HASH-1).
        index: the index of cached pages.
        keeps_keys: True if every cached page has its key computed, so that publishing a page computes its digest.
        clock: the number of pages ever handed out.
        num_withdrawals: times a page in use lost its hash. A remembered 'published up to here' is valid only while this
            is unchanged.
    """

    def __init__(self, num_pages: int, enable_caching: bool, options: PoolOptions) -> None:
        self.num_pages = integer("num_pages", num_pages, minimum=2, clause="POOL-1", below=2**31)
        self.enable_caching = flag("enable_caching", enable_caching)
        self.enable_events = flag("enable_events", options["enable_events"])
        self.counter_sampling = integer("counter_sampling", options["counter_sampling"], minimum=1)
        self.hash_function = options["hash_function"]
        self.none_hash = init_none_hash(options["hash_seed"], self.hash_function)
        self.index = PrefixIndex(self.num_pages)
        self._run_cell = self.index.run_cell
        self.num_withdrawals = 0
        # Only a map kept from the start knows the order in which pages with colliding keys were cached.
        self._keys: KeyMap | None = None if self.hash_function is sha256 else KeyMap()
        self._log: EventLog | None = EventLog() if self.enable_events else None
        self.keeps_keys = self._keys is not None or self._log is not None
        self.clock = 0
        self._evictions = 0
        self._sampling = Sampling(self.num_pages, self.counter_sampling)

    # -- Keys -------------------------------------------------------------------------------------

    def key_of_page(self, page_id: int) -> PageHashWithGroupId | None:
        """A page's key; None if it is not cached. Computes a digest for each page before it that has none yet."""
        if self._keys is not None:
            return self._keys.key_of.get(page_id)
        place = self.index.place(page_id)
        if place is None:
            return None
        return page_key(self.hash_function, self.none_hash, *place)

    def pages_by_key(self) -> Mapping[PageHashWithGroupId, Iterable[int]]:
        """The cached map, by ids (POOL-7). O(cached pages)."""
        if self._keys is not None:
            return self._keys.pages
        return {
            page_key(self.hash_function, self.none_hash, run, place): pages for run, place, pages in self.index.places()
        }

    def key_map(self) -> KeyMap:
        """The map from keys to pages, built by the first call and updated from then on."""
        if self._keys is None:
            keys = KeyMap()
            for same, pages in self.pages_by_key().items():
                for page in pages:
                    keys.add(same, page)
            self._keys = keys
            self.keeps_keys = True
            self.index.leave_tails()  # whose pages would be entered without a key
        return self._keys

    def salt_of(self, page_id: int) -> CacheSalt | None:
        """A cached page's salt; None if it has none (PIN-1)."""
        place = self.index.place(page_id)
        assert place is not None, f"page {page_id} is cached"
        return next((key for key in place[0].extra_keys or () if isinstance(key, CacheSalt)), None)

    # -- Coming and going -------------------------------------------------------------------------

    def keys_to_be(
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
        if not self.keeps_keys:
            return None
        tokens = bytes(tokens)  # an event is made of them only when it is taken
        before = self._digest_of(after) if after else None
        digests = digest_chain(
            self.hash_function, self.none_hash if before is None else before, tree.page_bytes, tokens, segments, start
        )
        return KeyStretch(tree.group_id, before, digests, tokens, segments, start)

    def _digest_of(self, page: int) -> bytes:
        """A cached page's digest, where keys are kept."""
        if self._log is not None:
            return self._log.key_of[page][1]
        assert self._keys is not None, "keys are kept"
        return self._keys.key_of[page].get_hash_value()

    def note_keys(self, pages: NDArray[np.int64] | Sequence[int], keys: KeyStretch | None) -> None:
        """Records the time and the keys of pages that were just published; null pages are skipped.

        Args:
            pages: the pages.
            keys: the result of `keys_to_be`. Where that is None, pages whose ids are not multiples of
                `counter_sampling` may be left out.
        """
        if len(pages) == 1:
            page = int(pages[0])
            if page and not page % self.counter_sampling:
                self._sampling.stored_one(page, self.clock)
            listed = [page]
        else:
            ids = np.asarray(pages, np.int64)
            self._sampling.stored(ids, self.clock)
            listed = ids.tolist() if keys is not None else []
        if keys is None:
            return
        if self._keys is not None:
            for page, key in zip(listed, keys.keys(), strict=True):
                if page:
                    self._keys.add(key, page)
        if self._log is not None:
            self._log.stored(listed, keys)

    def _evict_one(self, page: int) -> None:
        """Removes a cached page that is being handed out from index, keys and counters."""
        if self.keeps_keys:
            self._drop_keys((page,))
        self.index.evict_one(page)
        self._evictions += 1
        if not page % self.counter_sampling:
            self._sampling.evicted_one(page, self.clock)

    def _evict(self, pages: NDArray[np.int64]) -> None:
        """Removes the cached ones of distinct pages that are being handed out, in this order."""
        if self.keeps_keys:
            self._drop_keys(pages.tolist())
        evicted = self.index.evict(pages)
        if evicted:
            self._evictions += evicted
            self._sampling.evicted(pages, self.clock)

    def _forget(self, pages: NDArray[np.int64]) -> None:
        """Removes the hashes of the cached ones of distinct pages, which are not handed out."""
        if self.keeps_keys:
            self._drop_keys(pages.tolist())
        self.index.evict(pages)
        self._sampling.forgotten(pages)

    def _drop_keys(self, pages: Iterable[int]) -> None:
        if self._keys is not None:
            self._keys.remove(pages)
        if self._log is not None:
            self._log.removed(pages)

    def _clear(self) -> None:
        """Drops every hash."""
        self.index.reset()
        self._sampling.cleared()
        if self._keys is not None:
            self._keys = KeyMap()
        if self._log is not None:
            self._log.cleared()

    # -- Telling ----------------------------------------------------------------------------------

    def take_events(self) -> list[CacheEvent]:
        """The events since the last call, in order (MAN-12); empty if events are disabled. O(events)."""
        return [] if self._log is None else self._log.take()

    @property
    def counters(self) -> CacheCounters:
        """The counters of the pool: evictions, lifetimes and reuse gaps (MAN-12)."""
        return CacheCounters(
            evictions=self._evictions,
            page_lifetimes=tuple(self._sampling.lifetimes),
            reuse_gaps=tuple(self._sampling.reuse_gaps),
        )

    # -- Snapshots (MAN-14) -----------------------------------------------------------------------

    def cached_state(self) -> dict[str, Any]:
        """What a snapshot has of the cached pages: ``contents``, with all that comes before them, and ``cached``."""
        contents, cached = contents_of(self.index, self.alike())
        return {"contents": contents, "cached": cached}

    def alike(self) -> list[list[int]]:
        """The cached pages, one list for each key, in the order in which they were cached (POOL-7)."""
        if self._keys is not None:
            return [list(pages) for pages in self._keys.pages.values()]
        return [pages for _, _, pages in self.index.places()]  # then no two contents have one key

    def restore_cached(self, parts: Mapping[str, Part], sizes: Sequence[int]) -> None:
        """Caches the cached pages of a snapshot, in a pool that has cached none.

        Args:
            parts: the snapshot's.
            sizes: tokens in a page of each group; 0 for a group that caches none.

        Raises:
            ValueError: a part is damaged (MAN-14); this leaves a pool that is not to be used.
        """
        self.none_hash = parts["none_hash"].digest()
        saved = SavedContents(parts["contents"], parts["cached"], self.num_pages, sizes)
        if len(saved) and not self.enable_caching:
            raise parts["cached"].damaged("must be empty with caching off")
        saved.publish(self.index)
        for page, key in saved.keys(self.hash_function, self.none_hash) if self.keeps_keys else ():
            if self._keys is not None:
                self._keys.add(key, page)
            if self._log is not None:
                self._log.key_of[page] = key.group_id, key.get_hash_value()

    def log_state(self) -> dict[str, Any]:
        """What a snapshot has of events and times, but for the counters, which the manager completes."""
        return {
            "events": [] if self._log is None else [event_to_json(event) for event in self._log.waiting()],
            "clock": self.clock,
        }

    def _restore_log(self, parts: Mapping[str, Part], sizes: Sequence[int]) -> None:
        """Sets events, counters and times."""
        events = [event_of(part, list(sizes), self.num_pages) for part in parts["events"].items()]
        if self._log is not None:
            self._log.restore(events)
        elif events:
            raise parts["events"].damaged("must be empty: events are off")
        counters = counters_of(parts["counters"])
        self.clock = parts["clock"].integer(below=_LATEST)
        self._evictions = counters.evictions
        self._sampling.lifetimes[:] = counters.page_lifetimes
        self._sampling.reuse_gaps[:] = counters.reuse_gaps
        self._sampling.restore(*(parts[name].table(self.num_pages, self.clock + 1) for name in _TIMES))

    def check_cached(self, is_free: NDArray[np.bool_]) -> None:
        """Verifies index, keys, events and counters; O(pages and cached tokens).

        Args:
            is_free: True for each page that is free, `bool[num_pages]`.

        Raises:
            AssertionError: they don't agree.
        """
        self.index.check()
        is_cached = self.index.cached(np.arange(self.num_pages))
        self._sampling.check(is_cached, is_free, self.clock, self._evictions)
        assert self.keeps_keys == (self._keys is not None or self._log is not None), "whether keys are kept"
        assert self.enable_events == (self._log is not None), "MAN-12: whether events are kept"
        if not self.keeps_keys:
            return
        walked = {
            page: page_key(self.hash_function, self.none_hash, run, place)
            for run, place, pages in self.index.places()
            for page in pages
        }
        if self._keys is not None:
            mapped = {page: key for key, pages in self._keys.pages.items() for page in pages}
            assert walked == mapped == self._keys.key_of, "POOL-7: keys and index differ"
        if self._log is not None:
            told = {page: (key.group_id, key.get_hash_value()) for page, key in walked.items()}
            assert told == self._log.key_of, "MAN-12: keys told and index differ"
