"""POOL, PIN: the pages, their reference counts, the free ones and the cached ones, which are found by their content.

State lies in arrays with one entry a page: the reference count, the place in the free order (`FreeLog`) and the
place in the index of cached pages (`PrefixIndex`); 33 bytes a page in all. Calls of an engine read their pages as ids
and refuse. The calls below them, which the manager makes as well, trust their caller, take and return ids, and change
whole arrays; `take_one` takes a scalar path through the same structures.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvproof.spec.declarations import (
    CacheCounters,
    EngineRequest,
    HashFunction,
)
from kvproof.spec.declarations.codec import Part
from kvproof.spec.declarations.eviction import EvictionCounters
from kvproof.spec.declarations.keys import read_page_hash
from kvproof.spec.declarations.pool_calls import PoolCalls
from kvproof.spec.declarations.snapshots import POOL_ARGUMENTS, unit_of

from ..index.prefix_index import PrefixIndex
from ..reading.arguments import attribute, id_array, integer, listed, refusal
from ..reading.extra_keys import extra_segments
from ..reading.tokens import token_view
from .cached_map import CachedMap
from .contents import SavedContents, cached_state
from .eviction import ReuseOrder
from .free_order import FreeOrder
from .free_queue import PoolFreeQueue
from .hashing import PageHash, PageHashWithGroupId, root_of
from .page_keys import PageKeys
from .pages import CachePage, PageList, PageView, page_list, read_groups, read_pages
from .pins import Pins
from .pool_log import KeyStretch, PoolLog
from .ref_counts import RefCounts, mentions_of

__all__ = ["PagePool"]


class PagePool(PoolCalls):
    """A pool of pages: allocates, counts references, frees, finds cached pages again. Calls come from one thread.

    Args:
        num_pages: how many pages, the null page included; at least 2 (POOL-1).
        enable_caching: whether full pages can be cached and found again.
        options: see `PoolOptions`; with another hash than SHA-256 the pool keeps keys from the start.

    Attributes:
        counts: the reference count of each page (POOL-5).
        free_order: the free pages in eviction order, and priorities (POOL-3, PIN-2).
        policy: what an eviction policy knows of the pages' contents; None with ``lru``, which knows nothing.
        index: the cached pages, found by their tokens (POOL-7).
        keys: the keys of cached pages (HASH-3).
        pins: the pins of each page (PIN-1).
        log: events and counters (MAN-12).
        lasting: True for each cached page that is never of second class, `bool[num_pages]`; None: none is (RET-3).
        num_unreachable: see `EvictionCounters`.
        num_withdrawals: times a page in use lost its hash; 'published up to here' is valid while this is unchanged.
        null_page: page 0 (POOL-1).
        free_page_queue: the free pages in eviction order, read-only (POOL-3).
        cached_page_hash_to_page: the cached map, read-only (POOL-7).
    """

    keys: PageKeys
    free_order: FreeOrder
    pins: Pins
    log: PoolLog

    def _make_parts(self, hash_seed: bytes | None, hash_function: HashFunction) -> None:
        root = root_of("hash_seed", hash_seed, hash_function)
        self.index = PrefixIndex(self.num_pages)
        self._run_cell = self.index.run_cell
        watches = self.eviction != "lru"
        self.policy = ReuseOrder(self.num_pages, self._run_cell, self.eviction, root) if watches else None
        self.free_order = FreeOrder(self.num_pages, self._run_cell, self.unhashed_first, self.policy)
        self.log = PoolLog(self.num_pages, self.enable_events, self.counter_sampling)
        self.keys = PageKeys(self.index, self.log, hash_function, root)
        self.pins = Pins(self.num_pages, self.max_pinned_pages, self.max_pinned_pages_per_salt, self.index)
        self.counts = RefCounts(self.num_pages)
        self.num_withdrawals = 0
        self.lasting: NDArray[np.bool_] | None = None
        self.num_unreachable = 0
        self.null_page: CachePage = PageView(self, 0)
        self.free_page_queue = PoolFreeQueue(self, self.free_order)
        self.cached_page_hash_to_page: Mapping[PageHashWithGroupId, Sequence[CachePage]] = CachedMap(
            self, lambda: self.pages_by_key()
        )

    # -- Looking ----------------------------------------------------------------------------------

    @property
    def pages(self) -> PageList:
        """Every page, the null page first. O(pages)."""
        return page_list(self, np.arange(self.num_pages))

    def get_cached_page(self, page_hash: PageHash, kv_cache_group_ids: Iterable[int]) -> PageList | None:
        """The first page cached under a key, for each of several groups (POOL-7).

        The first call on a pool computes the key of every cached page; from then on keys are updated with every change,
        and a call is O(groups).

        Args:
            page_hash: the key.
            kv_cache_group_ids: the groups.

        Returns:
            One page a group, or None if any group has none.
        """
        key = read_page_hash("page_hash", page_hash)
        groups = [integer("kv_cache_group_ids", group) for group in listed("kv_cache_group_ids", kv_cache_group_ids)]
        cached = self.keys.map().pages
        found = [cached.get(PageHashWithGroupId(key, group)) for group in groups]
        return page_list(self, tuple(next(iter(pages)) for pages in found if pages)) if all(found) else None

    def key_of_page(self, page_id: int) -> PageHashWithGroupId | None:
        """A page's key; None if it is not cached. Computes a digest for each page before it that has none yet."""
        return self.keys.of(page_id)

    def pages_by_key(self) -> Mapping[PageHashWithGroupId, Iterable[int]]:
        """The cached map, by ids (POOL-7). O(cached pages)."""
        return self.keys.pages_by_key()

    def ref_count(self, page_id: int) -> int:
        """A page's reference count, its pins included. O(1)."""
        return self.counts.cell[page_id]

    def set_ref_count(self, page_id: int, count: int) -> None:
        """Sets the count of a page in use; see `RefCounts.set`."""
        self.counts.set(page_id, count, self.pins.of(page_id))

    @property
    def counters(self) -> CacheCounters:
        """The counters of the pool: evictions, lifetimes and reuse gaps (MAN-12)."""
        return self.log.counters()

    @property
    def eviction_counters(self) -> EvictionCounters:
        """What the eviction policy has seen (EVICT-1)."""
        seen = EvictionCounters() if self.policy is None else self.policy.counters()
        return replace(seen, unreachable=self.num_unreachable)

    # -- Allocating and freeing -------------------------------------------------------------------

    def get_new_pages(self, num_pages: int) -> PageList:
        """Takes pages from the front of the free queue, each with a count of 1, their hashes evicted (POOL-3).

        Args:
            num_pages: the number of pages; 0 gives an empty list (POOL-4).

        Returns:
            The pages, in queue order. O(num_pages), in array operations.

        Raises:
            ValueError: fewer pages are free; nothing is taken (POOL-4).
        """
        if num_pages == 1 and type(num_pages) is int and self.free_order.num_free:
            return page_list(self, self.take_one())
        count, num_free = integer("num_pages", num_pages, clause="POOL-4"), self.free_order.num_free
        if count > num_free:
            raise refusal(ValueError, "POOL-4", f"num_pages={count} asked for, {num_free} free")
        return page_list(self, self.take(count))

    def touch(self, pages: Iterable[Iterable[CachePage]]) -> None:
        """Raises the count of each page once per mention, taking free ones out of the queue (POOL-6).

        Args:
            pages: one list of pages a group.

        Raises:
            ValueError: a page is free and has no hash, so that its content is not defined.
        """
        ids = read_groups("pages", pages, self)
        free = ids[self.counts.of[ids] == 0]
        empty = free[~self.index.cached(free)]
        if len(empty):
            raise refusal(ValueError, "POOL-6", f"pages: page {empty[0]} is free and has no hash")
        self.hold(ids, are_distinct=False)

    def free_pages(self, ordered_pages: Iterable[CachePage]) -> None:
        """Lowers the count of each page once per mention; a page at 0 goes to the back (POOL-3, POOL-5).

        Args:
            ordered_pages: the pages, in the order in which they are to be evicted. O(pages), in array operations.

        Raises:
            ValueError: a page is mentioned more often than it has references other than pins; nothing changes.
        """
        appends = not self.unhashed_first and not self.pins.num_pinned and self.policy is None
        if appends and type(ordered_pages) is PageList and ordered_pages.pool is self:
            page = ordered_pages.held
            if type(page) is int and self.counts.cell[page] == 1:
                self.counts.cell[page] = 0
                self.free_order.put_one(page)
                if not page % self.counter_sampling:
                    self.log.ages.freed(np.array((page,)), self.log.clock)
                return
        pages = read_pages("ordered_pages", ordered_pages, self)
        counts = self.counts.of[pages]
        if appends and np.count_nonzero(counts == 1) == len(pages) and self.free_order.put_distinct(pages):
            self.counts.of[pages] = 0
            self.log.ages.freed(pages, self.log.clock)
            return
        pages, mentions = mentions_of(pages[pages != 0])  # POOL-1
        self.counts.require(pages, mentions, self.pins.of_each(pages))
        self.release(pages, mentions)

    # -- Pins and priorities ----------------------------------------------------------------------

    def pin(self, pages: Iterable[Iterable[CachePage]]) -> None:
        """Raises the count of each page once per mention, as `touch` does, for the pool itself (PIN-1).

        Only `unpin` removes these references, and a pinned page keeps its hash unless its content is withdrawn.

        Args:
            pages: one list of cached pages a group; null pages are skipped. O(pages log pages).

        Raises:
            ValueError: a page is not cached, or more distinct pages would be pinned than ``max_pinned_pages`` or, of
                one salt, ``max_pinned_pages_per_salt``; nothing changes.
        """
        ids = read_groups("pages", pages, self)
        uncached = ids[~self.index.cached(ids)]
        if len(uncached):
            raise refusal(ValueError, "PIN-1", f"pages: page {uncached[0]} is not cached")
        self.pins.add(ids)
        self.hold(ids, are_distinct=False)

    def unpin(self, pages: Iterable[Iterable[CachePage]]) -> None:
        """Takes one pin of each page per mention; pages at 0 are freed in the order given (PIN-1).

        Args:
            pages: one list of pages a group; null pages are skipped. O(pages log pages).

        Raises:
            ValueError: a page is mentioned more often than it is pinned; nothing changes.
        """
        ids, mentions = mentions_of(read_groups("pages", pages, self))
        self.pins.remove(ids, mentions)
        self.release(ids, mentions)

    def set_priority(self, pages: Iterable[CachePage], priority: int, expires_at: float | None = None) -> None:
        """Sets the priority of pages: free pages of a low one are taken before those of a high one (PIN-2).

        A priority ends when the page is allocated, and when it is freed without a hash. A free page whose priority
        changes goes behind the free pages of the new one.

        Args:
            pages: cached pages; null pages are skipped. O(pages).
            priority: an int32; pages have priority 0 by default.
            expires_at: the time at which the pages get priority 0 again; None: never.

        Raises:
            ValueError: a page is not cached, or the priority would end at once; nothing changes.
        """
        ids = read_pages("pages", pages, self)
        value, end = self.free_order.read_priority(priority, expires_at)
        ids = ids[ids != 0]  # POOL-1
        uncached = ids[~self.index.cached(ids)]
        if len(uncached):
            raise refusal(ValueError, "PIN-2", f"pages: page {uncached[0]} is not cached")
        for page in ids.tolist():
            self.free_order.set(page, value, end, not self.counts.cell[page])

    def advance_time(self, now: float) -> None:
        """Sets the time; priorities that expire by then end, in the order of their ends (PIN-2).

        Args:
            now: the time, on any scale; not before the last one. O(log pages) for each priority that ends.

        Raises:
            ValueError: it is earlier than the last one, or not finite.
        """
        self.free_order.advance(now)

    # -- Caching ----------------------------------------------------------------------------------

    def cache_full_pages(
        self,
        request: EngineRequest,
        pages: Sequence[CachePage],
        page_hashes: Sequence[PageHash],
        num_cached_pages: int,
        num_full_pages: int,
        page_size: int,
        kv_cache_group_id: int,
    ) -> None:
        """Caches the pages ``[num_cached_pages, num_full_pages)`` of a request (POOL-7, POOL-8).

        Null pages among them are skipped (POOL-1), but their tokens count in the chain of keys (HASH-3). No digest is
        computed where ``page_hashes`` is empty or came from `hash_request_tokens`.

        Args:
            request: the request with the tokens and extra keys of the pages.
            pages: the request's pages from its first on.
            page_hashes: keys of the request's pages from its first on, as many as are known. A key that is not the
                request's is refused, since it would be found by a request with other tokens (R2).
            num_cached_pages: the number of leading pages that are cached already.
            num_full_pages: the number of leading pages that are cached after the call.
            page_size: tokens in a page.
            kv_cache_group_id: the group that the pages belong to.

        Raises:
            ValueError: a page is free, has a hash already (POOL-8), is pinned for content that was withdrawn
                (PIN-1) or is named twice; the counts exceed the pages or the request's tokens; a key is not the
                request's own; caching is off.
        """
        ids = read_pages("pages", pages, self)
        page_size = integer("page_size", page_size, minimum=1)
        group = integer("kv_cache_group_id", kv_cache_group_id)
        first = integer("num_cached_pages", num_cached_pages)
        end = integer("num_full_pages", num_full_pages)
        tokens = token_view("request.all_token_ids", attribute(request, "all_token_ids"))
        segments = extra_segments(attribute(request, "extra_keys"), page_size)
        if not self.enable_caching:
            raise refusal(ValueError, "R1", "enable_caching=False: this pool caches no pages")
        if not first <= end <= len(ids):
            raise refusal(
                ValueError, "R1", f"num_cached_pages={first} <= num_full_pages={end} <= {len(ids)} pages must hold"
            )
        if end * page_size * 4 > len(tokens):
            raise refusal(ValueError, "HASH-3", f"num_full_pages={end}: the request has only {len(tokens) // 4} tokens")
        tokens = tokens[: end * page_size * 4]
        self.keys.require_own(page_hashes, tokens, segments, page_size)
        new = ids[first:end]
        held = new if np.count_nonzero(new) == len(new) else new[new != 0]  # POOL-1
        distinct = not self.counts.num_free(held) and self.free_order.are_distinct(held)
        self.counts.require_cacheable(held, self.index.cached(held), self.pins.of_each(held), distinct)
        entered = np.concatenate([np.zeros(first, np.int64), new])
        tree = self.index.tree(group, page_size)
        keys = self.keys.ahead(tree, tokens, segments)
        self.index.publish(tree, tokens, segments, entered)
        self.note_keys(entered, keys)
        if self.policy is not None:
            self.policy.note_pages(tree, entered, tokens, segments)

    def evict_pages(self, page_ids: Iterable[int]) -> None:
        """Drops the hashes of pages, free or not (POOL-11); the null page and pages without a hash are skipped.

        Args:
            page_ids: the pages' ids; their events are in this order. O(pages log pages).

        Raises:
            IndexError: an id is not of this pool.
            ValueError: a page is pinned (PIN-1).
        """
        ids = id_array("page_ids", page_ids, self.num_pages)
        ids = ids[np.sort(np.unique(ids, return_index=True)[1])]
        pinned = ids[self.pins.of_each(ids) > 0]
        if len(pinned):
            raise refusal(ValueError, "PIN-1", f"page_ids: page {pinned[0]} is pinned")
        self.withdraw(ids)

    def reset_prefix_cache(self) -> bool:
        """Forgets every hash, if no page is in use (POOL-9).

        Returns:
            True if it did.
        """
        if self.free_order.num_free != self.num_pages - 1:
            return False
        if self.policy is not None:
            self.policy.forgotten(np.arange(self.num_pages))
        self.index.reset()
        if self.lasting is not None:
            self.lasting.fill(False)
        self.keys.clear()
        self.log.cleared()
        return True

    # -- By ids: allocating and holding -----------------------------------------------------------

    @property
    def appends_only(self) -> bool:
        """True if freed pages always go to the back of the queue: there are neither priorities nor a policy."""
        return not self.unhashed_first and not self.free_order.num_prioritised and self.policy is None

    def take_one(self) -> int:
        """`PagePool.get_new_pages` of one page; at least one must be free. Returns its id."""
        page = self.free_order.take_one()
        self.counts.cell[page] = 1
        if self._run_cell[page]:
            self._evict_one(page)
        self.log.clock += 1
        return page

    def take(self, count: int) -> NDArray[np.int64]:
        """`PagePool.get_new_pages`; at least ``count`` pages must be free. Returns their ids, `i64[count]`."""
        pages = self.free_order.take(count)
        self.counts.of[pages] = 1
        self._evict(pages)
        self.log.clock += count
        return pages

    def hold(self, pages: NDArray[np.int64], are_distinct: bool = True) -> None:
        """`touch` for pages that are in use or cached; O(pages) where they are known to be distinct."""
        free = self.counts.add(pages) if are_distinct else self.counts.add_mentioned(pages)
        if free.size:
            self.free_order.remove(free)
            self.log.ages.reused(free, self.log.clock)

    def release(self, pages: NDArray[np.int64], mentions: NDArray[np.int64] | int = 1) -> None:
        """`free_pages` for distinct pages in use, each mentioned ``mentions`` times, in the order given. O(pages)."""
        if self.policy is not None:
            self.policy.released(pages)
        self._put_back(self.counts.remove(pages, mentions))

    def give_back(self, pages: NDArray[np.int64]) -> None:
        """`release` for pages of which the eviction policy knows already that they are let go (EVICT-1). O(pages)."""
        self._put_back(self.counts.remove(pages, 1))

    def _put_back(self, pages: NDArray[np.int64]) -> None:
        self.log.ages.freed(pages, self.log.clock)
        if self.unhashed_first:
            cached = self.index.cached(pages)
            self.free_order.put_front(pages[~cached])
            pages = pages[cached]
        self.free_order.put(pages)

    # -- By ids: publishing and losing hashes -----------------------------------------------------

    def note_keys(self, pages: NDArray[np.int64] | Sequence[int], keys: KeyStretch | None) -> None:
        """Records the time and the keys of pages that were just published; null pages are skipped.

        Args:
            pages: the pages.
            keys: the result of `PageKeys.ahead`. Where that is None, pages whose ids are not multiples of
                `counter_sampling` may be left out.
        """
        ids = np.asarray(pages, np.int64)
        self.log.ages.stored(ids, self.log.clock)
        if keys is not None:
            self.keys.add(ids.tolist(), keys)

    def _evict_one(self, page: int) -> None:
        """`_evict` for one cached page."""
        if self.keys.kept:
            self.keys.remove((page,))
        if self.lasting is not None:
            self.lasting[page] = False
        self.index.evict_one(page)
        self.log.evictions += 1
        if not page % self.counter_sampling:
            self.log.ages.evicted(np.array((page,)), self.log.clock)

    def _evict(self, pages: NDArray[np.int64]) -> None:
        """Removes the cached ones of distinct pages that are being allocated, in this order."""
        if self.keys.kept:
            self.keys.remove(pages)
        if self.lasting is not None:
            self.lasting[pages] = False
        num_cached = self.index.evict(pages)
        if num_cached:
            self.log.evicted(pages, num_cached)

    def withdraw(self, pages: NDArray[np.int64]) -> None:
        """Drops the hashes of distinct pages, pinned ones too, whose content no longer matches them (MAN-4). O(pages).

        Pages without a hash are skipped; the others get an event each, in order.
        """
        if (self.index.cached(pages) & (self.counts.of[pages] > 0)).any():
            self.num_withdrawals += 1
        self.forget_hashes(pages)

    def forget_hashes(self, pages: NDArray[np.int64]) -> None:
        """`withdraw` for pages whose users the caller updates itself: `num_withdrawals` stays as it is."""
        self.pins.forget_salts(pages)
        if self.keys.kept:
            self.keys.remove(pages)
        if self.policy is not None:
            self.policy.forgotten(pages)
        if self.lasting is not None:
            self.lasting[pages] = False
        self.index.evict(pages)
        self.log.ages.forgotten(pages)

    # -- Snapshots (MAN-14) and check -------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What a snapshot has of the pool; counts and pins follow from their holders. O(pages and cached tokens)."""
        cached = cached_state(self.index, self.keys.alike())
        made = {name: getattr(self, name) for name in POOL_ARGUMENTS} | {"none_hash": self.none_hash.hex()}
        return made | self.free_order.state() | cached | self.log.state(self.counts.of == 0)

    def restore_cached(self, parts: Mapping[str, Part], sizes: Sequence[int]) -> None:
        """Caches the cached pages of a snapshot, in a pool that has cached none.

        Args:
            parts: the snapshot's.
            sizes: tokens in a page of each group; 0 for a group that caches none.

        Raises:
            ValueError: a part is damaged (MAN-14); here and below this leaves a pool that is not to be used.
        """
        self.keys.none_hash = parts["none_hash"].digest()
        saved = SavedContents(parts["contents"], parts["cached"], self.num_pages, sizes, unit_of(parts))
        if len(saved) and not self.enable_caching:
            raise parts["cached"].damaged("must be empty with caching off")
        saved.publish(self.index)
        if self.policy is not None:
            self.policy.restore_marks(self.none_hash, saved)
        self.keys.restore(saved.keys(self.hash_function, self.none_hash))

    def restore_held(self, parts: Mapping[str, Part], held: NDArray[np.int64], pinned: NDArray[np.int64]) -> None:
        """Sets counts, pins, the free queue, priorities and the time of a pool without pages in use.

        Args:
            parts: the snapshot's.
            held: times that requests hold each page, `i64[num_pages]`; 0 for the null page.
            pinned: the number of pins of each page, `i64[num_pages]`; 0 for the null page.
        """
        self.counts.of[:] = held + pinned
        self.pins.restore(pinned, self.index.cached(np.arange(self.num_pages)))
        self.free_order.restore(parts, held + pinned)

    def restore_log(self, parts: Mapping[str, Part], sizes: Sequence[int]) -> None:
        """Sets the events that wait, the counters and the clock; ``sizes`` as for `restore_cached`."""
        self.log.restore(parts, sizes, self.counts.of == 0)

    def check(self) -> None:
        """Verifies every redundancy of the state; O(pages and cached tokens).

        Raises:
            AssertionError: a check fails; the message shows the whole state.
        """
        pins, is_cached = self.pins.counts(), self.index.cached(np.arange(self.num_pages))
        try:
            self.free_order.check()
            free = np.zeros(self.num_pages, bool)
            free[self.free_order.order()] = True
            self.index.check()
            self.log.check(is_cached, free)
            self.keys.check()
            assert not self._run_cell[0], "POOL-1: the null page is cached"
            self.counts.check(free, pins)
            self.pins.check(is_cached)
            if self.policy is not None:
                self.policy.check_contents(self.log.evictions)
        except AssertionError as error:
            order, counts = self.free_order.order().tolist(), self.counts.of.tolist()
            raise AssertionError(f"{error}\nfree: {order}\ncounts: {counts}\npins: {pins.tolist()}") from None
