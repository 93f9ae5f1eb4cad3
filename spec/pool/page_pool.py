"""POOL: allocates pages, counts references to them, frees them, and finds cached ones by their keys."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Unpack

from ..declarations import CacheCleared, CacheSalt, EngineRequest, PoolOptions, takes_options
from ..declarations.codec import Part
from ..reading.arguments import attribute, index, integer, listed, refusal, token_list
from ..reading.uncopied import Uncopied
from .cached_map import CachedMap, read_page_hash
from .eviction_order import EvictionOrder
from .hashing import PageHash, request_extra_keys
from .pages import CachePage, PageList

__all__ = ["PagePool"]


class PagePool(EvictionOrder, CachedMap, Uncopied):
    """A pool of pages: allocates them, counts references, frees them, and finds cached ones by their keys.

    It has three parts: `EvictionOrder` keeps the free pages in the order in which they will be evicted, `CachedMap`
    finds pages by their keys, and this class counts references and moves pages into and out of the free queue.

    Args:
        num_pages: how many pages, the null page included; at least 2 (POOL-1).
        enable_caching: whether full pages can be cached and found again.
        options: see `PoolOptions`.

    Attributes:
        pages: every page, the null page first.
        null_page: page 0.
        free_page_queue: the free pages in eviction order, read-only (POOL-3).
        now: the time of the last `advance_time`; None before the first (PIN-2).
    """

    @takes_options
    def __init__(self, num_pages: int, enable_caching: bool, **options: Unpack[PoolOptions]) -> None:
        EvictionOrder.__init__(self, num_pages, options)
        CachedMap.__init__(self, enable_caching, options)
        self.max_pinned_pages = integer("max_pinned_pages", options["max_pinned_pages"])
        per_salt = options["max_pinned_pages_per_salt"]
        self.max_pinned_pages_per_salt = None if per_salt is None else integer("max_pinned_pages_per_salt", per_salt)
        self._pins: Counter[int] = Counter()
        """Number of pins of each pinned page, by page id."""
        self._free._pool = self
        for page in self.pages:
            page._pool = self

    # -- Looking ----------------------------------------------------------------------------------

    def get_num_free_pages(self) -> int:
        """How many pages can be allocated."""
        return self._free.num_free_pages

    def get_usage(self) -> float:
        """The share of pages in use, from 0.0 to 1.0; the null page counts on neither side (POOL-10)."""
        return (self.num_pages - 1 - self.get_num_free_pages()) / (self.num_pages - 1)

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
        pages = self._free.popleft_n(num_pages)
        for page in pages:
            self._count_allocated(page)
            self._forget(page, emit=True)
            self._priority.pop(page.page_id, None)  # PIN-2
            page._ref_cnt = 1
        return PageList(pages)

    def touch(self, pages: Iterable[Iterable[CachePage]]) -> None:
        """Raises the count of each page once per mention, taking free ones out of the queue (POOL-6).

        Args:
            pages: one list of pages a group.

        Raises:
            ValueError: a page is free and has no hash, so that it has no content.
        """
        mentioned = self._mentioned(pages)
        for page in mentioned:
            if page.ref_cnt == 0 and page.page_hash is None:
                raise refusal(ValueError, "POOL-6", f"pages: page {page.page_id} is free and has no hash")
        self._hold(mentioned)

    def free_pages(self, ordered_pages: Iterable[CachePage]) -> None:
        """Lowers the count of each page once per mention; a page at 0 goes to the back of the queue (POOL-3, POOL-5).

        Args:
            ordered_pages: the pages, the one to evict first in front.

        Raises:
            ValueError: a page is mentioned more often than it is referenced, pins not counted; nothing changes.
        """
        mentioned = [page for page in self._own("ordered_pages", ordered_pages) if not page.is_null]
        for page, mentions in Counter(mentioned).items():
            held = page.ref_cnt - self.pins_of(page.page_id)
            if mentions > held:
                raise refusal(
                    ValueError,
                    "POOL-5",
                    f"ordered_pages: page {page.page_id} mentioned {mentions} times, held {held} times but for pins",
                )
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
            if page.page_hash is None:
                raise refusal(ValueError, "PIN-1", f"pages: page {page.page_id} is not cached")
        excess = self._beyond_bounds({*self._pins, *(page.page_id for page in mentioned)})
        if excess is not None:
            raise refusal(ValueError, "PIN-1", f"pages={[page.page_id for page in mentioned]}: {excess}")
        self._hold(mentioned)
        self._pins.update(page.page_id for page in mentioned)

    def unpin(self, pages: Iterable[Iterable[CachePage]]) -> None:
        """Removes a pin's reference from each page, once per mention; null pages are skipped (PIN-1).

        Args:
            pages: one list of pages a group; pages whose count falls to 0 join the queue in this order (POOL-3).

        Raises:
            ValueError: a page is mentioned more often than it is pinned; nothing changes.
        """
        mentioned = self._mentioned(pages)
        for page, mentions in Counter(mentioned).items():
            pins = self.pins_of(page.page_id)
            if mentions > pins:
                raise refusal(
                    ValueError, "PIN-1", f"pages: page {page.page_id} mentioned {mentions} times, pinned {pins} times"
                )
        self._pins = self._pins - Counter(page.page_id for page in mentioned)
        self._release(mentioned)

    def pins_of(self, page_id: int) -> int:
        """The number of pins of a page; IndexError where there is no such page."""
        return self._pins[index("page_id", page_id, self.num_pages)]

    @property
    def num_pinned_pages(self) -> int:
        """How many pages are pinned (PIN-1)."""
        return len(self._pins)

    def _beyond_bounds(self, page_ids: Iterable[int]) -> str | None:
        """What is wrong with having those pages pinned, if anything is (PIN-1).

        A page whose hash was withdrawn has no extra keys any more, so it counts for the first bound only.
        """
        pinned = [self.pages[page_id] for page_id in page_ids]
        if len(pinned) > self.max_pinned_pages:
            return f"{len(pinned)} pinned pages, max_pinned_pages={self.max_pinned_pages}"
        salts = Counter(_salt(page.page_hash.page_hash) for page in pinned if page.page_hash is not None)
        most = max(salts.values(), default=0)
        if self.max_pinned_pages_per_salt is not None and most > self.max_pinned_pages_per_salt:
            return f"{most} pinned pages of one salt, max_pinned_pages_per_salt={self.max_pinned_pages_per_salt}"
        return None

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
        own = self._own("pages", pages)
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
        chain = self.extend_chain([], tokens, extra_keys, page_size, end)
        for place, (key, known) in enumerate(zip(chain, listed("page_hashes", page_hashes), strict=False)):
            if read_page_hash(f"page_hashes[{place}]", known) != key[0]:
                raise refusal(ValueError, "R2", f"page_hashes[{place}] is not the key of the request's page {place}")
        for page, mentions in Counter(page for page in own[first:end] if not page.is_null).items():
            if page.ref_cnt == 0:
                raise refusal(ValueError, "POOL-8", f"pages: page {page.page_id} is free, its content is nobody's")
            if page.page_id in self._pins and page.page_hash is None:
                raise refusal(ValueError, "PIN-1", f"pages: page {page.page_id} is pinned for what was withdrawn")
            if page.page_hash is not None or mentions > 1:
                raise refusal(ValueError, "POOL-8", f"pages: page {page.page_id} has a hash already or is named twice")
        self.publish(own[first:end], chain[first:end], group, chain[first - 1][0].hash_value if first else None)

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
            if page_id in self._pins:
                raise refusal(ValueError, "PIN-1", f"page_ids: page {page_id} is pinned")
        self.withdraw(self.pages[page_id] for page_id in ids)

    def reset_prefix_cache(self) -> bool:
        """Drops the hashes of all pages, if no page is in use (POOL-9).

        Returns:
            True if it did, False if a page is in use: then nothing changed.
        """
        if self.get_num_free_pages() != self.num_pages - 1:
            return False
        for page in self.pages:
            self._forget(page, emit=False)
        self._emit(CacheCleared())
        return True

    # -- Inside -----------------------------------------------------------------------------------

    def _mentioned(self, pages: object) -> list[CachePage]:
        """Reads lists of this pool's pages, one a group, and leaves out null pages (R1, POOL-1)."""
        return [page for group in listed("pages", pages) for page in self._own("pages", group) if not page.is_null]

    def _hold(self, pages: Iterable[CachePage]) -> None:
        """Raises the count of each page once per mention, and takes free ones out of the queue (POOL-6)."""
        for page in pages:
            if page.ref_cnt == 0:
                self._free.remove(page)
                self._count_reused(page)
            page._ref_cnt += 1

    def _release(self, pages: Iterable[CachePage]) -> None:
        """Lowers the count of each page once per mention; those at 0 join the queue (POOL-3, POOL-5)."""
        freed = []
        for page in pages:  # the last mention is the one that brings the count to 0
            page._ref_cnt -= 1
            if page.ref_cnt == 0:
                self._count_freed(page)
                freed.append(page)
        self._queue_up(freed)

    # -- Snapshots (MAN-14) -----------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What a snapshot has of the pool beside its options; reference counts and pins follow from their holders."""
        return self.order_state() | self.cached_state() | self.log_state()

    def restore_cached(self, parts: Mapping[str, Part], sizes: Sequence[int]) -> None:
        """Caches the cached pages of a snapshot, in a pool that has cached none.

        Args:
            parts: the snapshot's.
            sizes: tokens in a page of each group; 0 for a group that caches none.

        Raises:
            ValueError: a part is damaged (MAN-14); here and below this leaves a pool that is not to be used.
        """
        self.none_hash = parts["none_hash"].digest()
        self._restore_cached(parts["contents"], parts["cached"], self.pages, sizes)

    def restore_held(self, parts: Mapping[str, Part], held: Iterable[CachePage], pinned: Iterable[CachePage]) -> None:
        """Sets counts, pins, the free queue, priorities and the time of a pool without pages in use.

        Args:
            parts: the snapshot's.
            held: the pages that requests hold, once for each reference; null pages are skipped.
            pinned: the pages that are pinned, once for each pin; null pages are skipped.
        """
        pins = [page for page in pinned if not page.is_null]
        for page in (*held, *pins):
            page._ref_cnt += not page.is_null
        self._pins.update(page.page_id for page in pins)
        self._restore_order(parts)

    def restore_log(self, parts: Mapping[str, Part], sizes: Sequence[int]) -> None:
        """Sets the events that wait, the counters and the clock; ``sizes`` as for `restore_cached`."""
        self._restore_log(parts, sizes, self.num_pages)

    def check(self) -> None:
        """Verifies every redundancy of the state; O(pages).

        Raises:
            AssertionError: one does not hold; the message has the whole state.
        """
        try:
            self._check_order()
            self._check_map(self.pages)
            for page_id, pins in self._pins.items():
                assert 0 < page_id < self.num_pages, f"PIN-1: page {page_id} is pinned"
                assert 1 <= pins <= self.pages[page_id].ref_cnt, f"PIN-1: pins of page {page_id} and its count"
            assert self._beyond_bounds(self._pins) is None, f"PIN-1: {self._beyond_bounds(self._pins)}"
            self._check_log(self.pages)
        except AssertionError as error:
            state = "\n".join(
                f"page {page.page_id}: count {page.ref_cnt}, in the queue {page._queue is self._free}, {page.page_hash}"
                for page in self.pages
            )
            raise AssertionError(
                f"{error}\nfree: {[page.page_id for page in self._free.get_all_free_pages()]}\n"
                f"pins: {dict(self._pins)}, priorities at {self.now}: {self._priority}\n"
                f"clock: {self._clock}, stored at {self._stored_at}, freed at {self._freed_at}\n{state}"
            ) from None


def _salt(page_hash: PageHash) -> CacheSalt | None:
    """The cache salt of a page, None if it has none (PIN-1)."""
    return next((key for key in page_hash.extra_keys or () if isinstance(key, CacheSalt)), None)
