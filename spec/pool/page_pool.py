"""POOL: allocates pages, counts references to them, frees them, and finds cached ones by their keys."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from ..declarations import (
    CacheCleared,
    CacheCounters,
    EngineRequest,
    HashFunction,
    PageRemoved,
    PageStored,
)
from ..declarations.codec import Part
from ..declarations.eviction import EvictionCounters, EvictionPolicy, eviction_of, eviction_to_json
from ..declarations.json_kinds import counters_of
from ..declarations.keys import read_page_hash
from ..declarations.pool_calls import PoolCalls
from ..declarations.snapshots import POOL_ARGUMENTS, retention_of, unit_of
from ..reading.arguments import attribute, index, integer, listed, real, refusal, shown, token_list
from .cached_map import CachedMap
from .contents import cached_state, restore_cached
from .eviction import LruQueue, ReuseQueue
from .free_order import FreeOrder
from .free_queue import PoolFreeQueue
from .hashing import PageHash, PageHashWithGroupId, request_extra_keys, root_of
from .marks import Marks
from .page_keys import PageKeys
from .pages import CachePage, PageList, PageView
from .pins import Pins
from .pool_log import PoolLog
from .ref_counts import RefCounts
from .shadows import AdaptiveQueue

__all__ = ["PagePool"]

_QUEUES: dict[EvictionPolicy, type[LruQueue]] = {"lru": LruQueue, "reuse": ReuseQueue, "adaptive": AdaptiveQueue}


class PagePool(PoolCalls):
    """A pool of pages: allocates them, counts references, frees them, and finds cached ones by their keys.

    Its parts deal with page ids and trust it: it reads arguments and refuses, counts references, and tells each part
    what happens to a page.

    Args:
        num_pages: how many pages, the null page included; at least 2 (POOL-1).
        enable_caching: whether full pages can be cached and found again.
        options: see `PoolOptions`.

    Attributes:
        counts: the reference count of each page (POOL-5).
        free_order: the free pages in eviction order, and priorities (POOL-3, PIN-2).
        index: the cached pages by their keys (POOL-7).
        keys: computes keys and content ids (HASH-3, R2).
        marks: computes the marks by which an eviction policy knows contents (EVICT-1).
        pins: the pins of each page (PIN-1).
        log: events and counters (MAN-12).
        lasting: cached pages that go to the back of the queue whoever lets go of them (RET-3).
        num_unreachable: see `EvictionCounters`.
        pages: every page, the null page first.
        null_page: page 0.
        free_page_queue: the free pages in eviction order, read-only (POOL-3).
    """

    keys: PageKeys
    free_order: FreeOrder
    pins: Pins
    log: PoolLog

    def _make_parts(self, hash_seed: bytes | None, hash_function: HashFunction) -> None:
        self.index = CachedMap()
        self.free_order = FreeOrder(self.num_pages, _QUEUES[self.eviction](self.num_pages), self.index.key_of)
        self.lasting: set[int] = set()
        self.num_unreachable = 0
        self.keys = PageKeys(hash_function, root_of("hash_seed", hash_seed, hash_function))
        self.marks = Marks(self.keys)
        self.pins = Pins(self.max_pinned_pages, self.max_pinned_pages_per_salt, self.index.key_of)
        self.log = PoolLog(self.enable_events, self.counter_sampling)
        self.counts = RefCounts(self.num_pages, self.pins)
        self.pages = PageList(PageView(self, page_id) for page_id in range(self.num_pages))
        self.null_page = self.pages[0]
        self.free_page_queue = PoolFreeQueue(self.free_order, self.pages)

    # -- Looking ----------------------------------------------------------------------------------

    @property
    def cached_page_hash_to_page(self) -> Mapping[PageHashWithGroupId, Sequence[CachePage]]:
        """The cached map: key to pages, in the order in which they were cached (POOL-7). Read-only."""
        return MappingProxyType({key: self._listed(pages) for key, pages in self.index.pages_of.items()})

    def cached_under(self, page_hash: PageHash, group_id: int) -> PageList:
        """The pages cached under a key, in the order in which they were cached (POOL-7)."""
        return self._listed(self.index.under(page_hash, group_id))

    def get_cached_page(self, page_hash: PageHash, kv_cache_group_ids: Iterable[int]) -> PageList | None:
        """The first page cached under a key, for each of several groups (POOL-7).

        Args:
            page_hash: the key.
            kv_cache_group_ids: the groups.

        Returns:
            One page a group, or None if any group has none.
        """
        key = read_page_hash("page_hash", page_hash)
        groups = [integer("kv_cache_group_ids", group) for group in listed("kv_cache_group_ids", kv_cache_group_ids)]
        found = [self.index.under(key, group) for group in groups]
        return self._listed(pages[0] for pages in found) if all(found) else None

    def key_of_page(self, page_id: int) -> PageHashWithGroupId | None:
        """The key of a cached page; None for a page that is not cached."""
        return self.index.key_of.get(page_id)

    def content_of(self, page: CachePage) -> int | None:
        """The content id of a cached page; None for a page that is not cached (R2)."""
        return self.index.content_of.get(page.page_id)

    def ref_count(self, page_id: int) -> int:
        """The reference count of a page, its pins included."""
        return self.counts.of[page_id]

    def set_ref_count(self, page_id: int, count: int) -> None:
        """Sets the count of a page in use; see `RefCounts.set`."""
        self.counts.set(page_id, count)

    @property
    def counters(self) -> CacheCounters:
        """The pool's counters: evictions, and the lifetimes and reuse gaps of sampled pages (MAN-12).

        Only a page that is allocated while it has a hash counts as evicted; one that loses its hash in another way
        counts nowhere.
        """
        return self.log.counters()

    @property
    def eviction_counters(self) -> EvictionCounters:
        """What the eviction policy has seen (EVICT-1)."""
        return replace(self.free_order.queue.counters(), unreachable=self.num_unreachable)

    # -- Allocating and freeing -------------------------------------------------------------------

    def get_new_pages(self, num_pages: int) -> PageList:
        """Allocates the pages at the front of the free queue: evicts their hashes, sets their counts to 1 (POOL-3).

        Args:
            num_pages: how many; 0 gives an empty list (POOL-4).

        Returns:
            The pages, in queue order.

        Raises:
            ValueError: fewer pages are free; nothing changes (POOL-4).
        """
        num_pages = integer("num_pages", num_pages, clause="POOL-4")
        if num_pages > self.get_num_free_pages():
            raise refusal(ValueError, "POOL-4", f"num_pages={num_pages} asked for, {self.get_num_free_pages()} free")
        pages = self.free_order.take(num_pages)
        for page in pages:
            self.log.allocated(page, page in self.index.key_of)
            self._forget(page, is_evicted=True)
            self.counts.of[page] = 1
        return self._listed(pages)

    def touch(self, pages: Iterable[Iterable[CachePage]]) -> None:
        """Raises the count of each page once per mention, taking free ones out of the queue (POOL-6).

        Args:
            pages: one list of pages a group.

        Raises:
            ValueError: a page is free and has no hash, so that it has no content.
        """
        mentioned = self._mentioned(pages)
        for page in mentioned:
            if self.counts.of[page] == 0 and page not in self.index.key_of:
                raise refusal(ValueError, "POOL-6", f"pages: page {page} is free and has no hash")
        self._hold(mentioned)

    def free_pages(self, ordered_pages: Iterable[CachePage]) -> None:
        """Lowers the count of each page once per mention; a page at 0 goes to the back of the queue (POOL-3, POOL-5).

        Args:
            ordered_pages: the pages, the one to evict first in front.

        Raises:
            ValueError: a page is mentioned more often than it is referenced, pins not counted; nothing changes.
        """
        mentioned = [page for page in self._read_pages("ordered_pages", ordered_pages) if page != 0]
        self.counts.require(mentioned)
        self._release(mentioned)

    # -- Pins -------------------------------------------------------------------------------------

    def pin(self, pages: Iterable[Iterable[CachePage]]) -> None:
        """Pins cached pages: adds a reference per mention that only `unpin` removes; skips null pages (PIN-1).

        A pinned page is not evicted.

        Args:
            pages: one list of pages a group.

        Raises:
            ValueError: a page is not cached, or more pages would be pinned than the bounds allow; nothing changes.
        """
        mentioned = self._mentioned(pages)
        for page in mentioned:
            if page not in self.index.key_of:
                raise refusal(ValueError, "PIN-1", f"pages: page {page} is not cached")
        self.pins.add(mentioned)
        self._hold(mentioned)

    def unpin(self, pages: Iterable[Iterable[CachePage]]) -> None:
        """Removes a pin's reference from each page, once per mention; null pages are skipped (PIN-1).

        Args:
            pages: one list of pages a group; pages whose count falls to 0 join the queue in this order (POOL-3).

        Raises:
            ValueError: a page is mentioned more often than it is pinned; nothing changes.
        """
        mentioned = self._mentioned(pages)
        self.pins.remove(mentioned)
        self._release(mentioned)

    # -- Priorities -------------------------------------------------------------------------------

    def set_priority(self, pages: Iterable[CachePage], priority: int, expires_at: float | None = None) -> None:
        """Sets the priority of cached pages; null pages are skipped (PIN-2).

        A free page whose priority changes goes behind the free pages of its new priority. No other page moves.

        Args:
            pages: the pages.
            priority: an int32; pages of the lowest priority are evicted first. Every page begins with 0.
            expires_at: the time at which the priority falls back to 0, in the unit of `advance_time`; None: never
                by time. Without effect for priority 0.

        Raises:
            ValueError: a page is not cached, or ``expires_at`` does not lie after ``now``; nothing changes.
        """
        ranked = [page for page in self._read_pages("pages", pages) if page != 0]
        priority = integer("priority", priority, minimum=None)
        end = None if expires_at is None else real("expires_at", expires_at)
        if not -(2**31) <= priority < 2**31:
            raise refusal(ValueError, "R1", f"priority={priority} does not fit an int32")
        if end is not None and self.now is not None and end <= self.now:
            raise refusal(ValueError, "PIN-2", f"expires_at={end} does not lie after now={self.now}")
        for page in ranked:
            if page not in self.index.key_of:
                raise refusal(ValueError, "PIN-2", f"pages: page {page} is not cached")
        for page in ranked:
            self.free_order.set_priority(page, priority, end)

    def advance_time(self, now: float) -> None:
        """Sets the time: priorities that expire by ``now`` end, in order of expiry time, then of page id (PIN-2).

        Args:
            now: the time, in any unit, from any start.

        Raises:
            ValueError: it is earlier than the last one.
        """
        time = real("now", now)
        if self.now is not None and time < self.now:
            raise refusal(ValueError, "PIN-2", f"now={time} is earlier than {self.now}")
        self.free_order.advance(time)

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

        Null pages among them are skipped (POOL-1), but the chain of keys runs over them (HASH-3).

        Args:
            request: the request whose tokens and extra keys the pages hold.
            pages: the request's pages, from the first on.
            page_hashes: known keys of the request's pages, from the first on; keys that the list lacks are computed
                here. A key that is not the request's is refused, since a request with other tokens would hit it (R2).
            num_cached_pages: how many leading pages are cached already.
            num_full_pages: how many leading pages are cached after the call.
            page_size: tokens in a page.
            kv_cache_group_id: the cache group of the pages.

        Raises:
            ValueError: a page is free, has a hash already (POOL-8) or is named twice; the counts exceed the pages
                or the request's tokens; a key is not the request's own; caching is off.
        """
        own = self._read_pages("pages", pages)
        page_size = integer("page_size", page_size, minimum=1)
        group = integer("kv_cache_group_id", kv_cache_group_id)
        first = integer("num_cached_pages", num_cached_pages)
        end = integer("num_full_pages", num_full_pages)
        tokens = token_list("request.all_token_ids", attribute(request, "all_token_ids"))
        extra_keys = request_extra_keys(request)
        if not self.enable_caching:
            raise refusal(ValueError, "R1", "enable_caching=False: this pool caches no pages")
        if not first <= end <= len(own):
            raise refusal(
                ValueError,
                "R1",
                f"num_cached_pages={first} <= num_full_pages={end} <= {len(own)} pages must hold",
            )
        if end * page_size > len(tokens):
            raise refusal(ValueError, "HASH-3", f"num_full_pages={end}: the request has only {len(tokens)} tokens")
        chain = self.keys.extend_chain([], tokens, extra_keys, page_size, end)
        for place, (key, known) in enumerate(zip(chain, listed("page_hashes", page_hashes), strict=False)):
            if read_page_hash(f"page_hashes[{place}]", known) != key[0]:
                raise refusal(ValueError, "R2", f"page_hashes[{place}] is not the key of the request's page {place}")
        for page, mentions in Counter(page for page in own[first:end] if page != 0).items():
            if self.counts.of[page] == 0:
                raise refusal(ValueError, "POOL-8", f"pages: page {page} is free, its content is not defined")
            if page in self.index.key_of or mentions > 1:
                raise refusal(ValueError, "POOL-8", f"pages: page {page} has a hash already or is named twice")
            if self.pins.of(page):
                raise refusal(ValueError, "PIN-1", f"pages: page {page} is pinned for what was withdrawn")
        parent = chain[first - 1][0].hash_value if first else None
        self._publish(own[first:end], chain[first:end], group, parent)

    def publish(
        self,
        pages: Sequence[CachePage],
        chain: Sequence[tuple[PageHash, int]],
        group_id: int,
        parent: bytes | None = None,
    ) -> None:
        """`cache_full_pages` for pages and keys that the manager knows to be sound (POOL-7, POOL-8).

        Args:
            pages: the pages; null pages are skipped (POOL-1).
            chain: their keys and content ids, see `PageKeys.extend_chain`.
            group_id: the cache group.
            parent: the digest of the page before the first; None if there is none.
        """
        self._publish([page.page_id for page in pages], chain, group_id, parent)

    def _publish(
        self, pages: Sequence[int], chain: Sequence[tuple[PageHash, int]], group_id: int, parent: bytes | None
    ) -> None:
        for page, (key, content) in zip(pages, chain, strict=True):
            if page != 0:
                self.index.add(page, PageHashWithGroupId(key, group_id), content)
                self.log.stored(page)
                if self.free_order.queue.watches:
                    self.free_order.queue.published(page, self.marks.of(content, group_id))
                self.log.emit(PageStored(group_id, page, key.hash_value, parent, key.token_ids, key.extra_keys))
            parent = key.hash_value

    def evict_pages(self, page_ids: Iterable[int]) -> None:
        """Drops the hashes of pages, free or not, in order (POOL-11).

        The null page and pages without a hash are skipped.

        Args:
            page_ids: the pages' ids.

        Raises:
            IndexError: there is no such page.
            ValueError: a page is pinned (PIN-1); nothing changes.
        """
        ids = [index("page_ids", page_id, self.num_pages) for page_id in listed("page_ids", page_ids)]
        for page_id in ids:
            if self.pins.of(page_id):
                raise refusal(ValueError, "PIN-1", f"page_ids: page {page_id} is pinned")
        for page_id in ids:
            self._forget(page_id)

    def withdraw(self, pages: Iterable[CachePage]) -> None:
        """Drops the hashes of pages whose promised content was never written, pinned pages too, in order (MAN-4)."""
        for page in pages:
            self._forget(page.page_id)

    def reset_prefix_cache(self) -> bool:
        """Drops the hashes of all pages, if no page is in use (POOL-9).

        Returns:
            True if it did, False if a page is in use: then nothing changed.
        """
        if self.get_num_free_pages() != self.num_pages - 1:
            return False
        for page in list(self.index.key_of):
            self._forget(page, emit=False)
        self.log.emit(CacheCleared())
        return True

    # -- Inside -----------------------------------------------------------------------------------

    def pages_of_ids(self, pages: Iterable[int]) -> PageList:
        """Pages by their ids."""
        return self._listed(pages)

    def _listed(self, pages: Iterable[int]) -> PageList:
        return PageList(self.pages[page] for page in pages)

    def _read_pages(self, name: str, pages: object) -> list[int]:
        """Reads a list of pages of this pool as ids (R1)."""
        own = listed(name, pages)
        for page in own:
            if not isinstance(page, CachePage):
                raise refusal(TypeError, "R1", f"{name} has {shown(page)}, which is no CachePage")
            if page.pool is not self:
                raise refusal(ValueError, "R1", f"{name}: page {page.page_id} belongs to another pool")
        return [page.page_id for page in own]

    def _mentioned(self, pages: object) -> list[int]:
        """Reads lists of this pool's pages, one a group, as ids, and leaves out null pages (R1, POOL-1)."""
        return [page for group in listed("pages", pages) for page in self._read_pages("pages", group) if page != 0]

    def _hold(self, pages: Iterable[int]) -> None:
        """Raises the count of each page once per mention, and takes free ones out of the queue (POOL-6)."""
        for page in pages:
            if self.counts.add([page]):
                self.free_order.remove(page)
                self.log.reused(page)

    def _release(self, pages: Iterable[int]) -> None:
        """Lowers the count of each page once per mention; those at 0 join the queue (POOL-3, POOL-5, POOL-13)."""
        mentioned = list(pages)
        self.free_order.queue.released(list(dict.fromkeys(reversed(mentioned)))[::-1])
        self.give_back(mentioned)

    def give_back(self, pages: Iterable[int]) -> None:
        """`free_pages` for pages of which the eviction policy knows already that they are let go (EVICT-1)."""
        freed = self.counts.remove(pages)
        for page in freed:
            self.log.freed(page)
        unhashed = [page for page in freed if page not in self.index.key_of]
        for page in unhashed:
            self.free_order.set_priority(page, 0, None)  # PIN-2
        if self.unhashed_first:
            self.free_order.put_front(unhashed)
            freed = [page for page in freed if page in self.index.key_of]
        self.free_order.put(freed)

    def _forget(self, page: int, emit: bool = True, is_evicted: bool = False) -> None:
        """Drops a page's hash; a page without one is skipped.

        Args:
            page: the page.
            emit: whether a `PageRemoved` event is emitted.
            is_evicted: whether it was taken, which its queue knows.
        """
        if page in self.index.key_of:
            key = self.index.remove(page)
            self.lasting.discard(page)
            self.log.forgotten(page)
            if not is_evicted:
                self.free_order.queue.forgotten(page)
            if emit:
                self.log.emit(PageRemoved(key.group_id, page, key.get_hash_value()))

    # -- Snapshots (MAN-14) -----------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What a snapshot has of the pool; reference counts and pins follow from their holders."""
        made = {name: getattr(self, name) for name in POOL_ARGUMENTS} | {"none_hash": self.none_hash.hex()}
        saved = self.free_order.queue.saved()
        made |= {} if saved is None else {"eviction": eviction_to_json(self.eviction, saved)}
        return made | self.free_order.state() | cached_state(self.index, self.keys) | self.log.state()

    def restore_cached(self, parts: Mapping[str, Part], sizes: Sequence[int]) -> None:
        """Caches the cached pages of a snapshot, in a pool that has cached none.

        Args:
            parts: the snapshot's.
            sizes: tokens in a page of each group; 0 for a group that caches none.

        Raises:
            ValueError: a part is damaged (MAN-14); here and below this leaves a pool that is not to be used.
        """
        self.keys.none_hash = parts["none_hash"].digest()
        if len(parts["cached"]) and not self.enable_caching:
            raise parts["cached"].damaged("names pages with caching off")
        restore_cached(self.index, self.keys, parts["contents"], parts["cached"], self.num_pages, sizes, unit_of(parts))
        for page, content in self.index.content_of.items() if self.free_order.queue.watches else ():
            self.free_order.queue.published(page, self.marks.of(content, self.index.key_of[page].group_id))

    def restore_held(self, parts: Mapping[str, Part], held: Sequence[CachePage], pinned: Sequence[CachePage]) -> None:
        """Sets counts, pins, the free queue, priorities and the time of a pool without pages in use.

        Args:
            parts: the snapshot's.
            held: the pages that requests hold, once for each reference; null pages are skipped.
            pinned: the pages that are pinned, once for each pin; null pages are skipped.
        """
        self.pins.restore(page.page_id for page in pinned if not page.is_null)
        self.counts.add(page.page_id for page in (*held, *pinned) if not page.is_null)
        saved = eviction_of(parts["eviction"], self.num_pages) if "eviction" in parts else None
        retained = retention_of(parts)
        second = [page.integer(1, self.num_pages) for page in retained["second"].items()]
        self.free_order.restore(parts, saved, counters_of(parts["counters"]).evictions, second)
        self.lasting = {page.integer(1, self.num_pages) for page in retained["kept"].items()}

    def restore_log(self, parts: Mapping[str, Part], sizes: Sequence[int]) -> None:
        """Sets the events that wait, the counters and the clock; ``sizes`` as for `restore_cached`."""
        self.log.restore(parts, sizes, self.num_pages)

    def check(self) -> None:
        """Verifies every redundancy of the state; O(pages).

        Raises:
            AssertionError: one does not hold; the message has the whole state.
        """
        try:
            assert self.counts.of[0] == 0, "POOL-1: the null page is held"
            self.free_order.check(self.counts.of)
            self.index.check()
            self.free_order.queue.check(self.index.key_of.keys(), self.counts.of, self.counters.evictions)
            assert self.lasting <= self.index.key_of.keys(), f"RET-3: pages without a hash are kept: {self.lasting}"
            self.pins.check(self.counts.of)
            self.log.check(self.index.key_of.keys(), self.counts.of)
        except AssertionError as error:
            pages = enumerate(self.counts.of)
            state = "\n".join(f"page {page}: count {count}, {self.key_of_page(page)}" for page, count in pages)
            raise AssertionError(f"{error}\n{self.free_order}\n{self.pins}\n{self.log}\n{state}") from None
