"""POOL, PIN: the pages, their reference counts, the free ones and the cached ones, which are found by their content.

State lies in arrays with one entry a page: the reference count, the place in the free order (`FreeLog`) and the
place in the index of cached pages (`PrefixIndex`); 33 bytes a page in all. Calls read their pages as ids, refuse,
and then change whole arrays; a call about one page takes a scalar path through the same structures.

Pins and priorities cost nothing where they are not used: a flag is set while no page is pinned and freed pages go to
the back, and the free order is a `FreeLog` until a priority is first set (`PriorityOrder`).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Unpack

import numpy as np
from numpy.typing import NDArray

from kvproof.spec.declarations import EngineRequest, PoolOptions, takes_options
from kvproof.spec.declarations.uncopied import Uncopied

from ..reading.arguments import attribute, id_array, index, integer, listed, real, refusal, shown
from ..reading.extra_keys import extra_segments
from ..reading.tokens import token_view
from .free_log import FreeLog
from .free_queue import PoolFreeQueue
from .hashing import PageHash, PageHashWithGroupId, read_page_hash
from .held_pages import HeldPages
from .page_keys import CachedMap, require_own_keys
from .pages import CachePage, PageList, PageView, page_list
from .priorities import PriorityOrder

__all__ = ["PagePool"]


class PagePool(HeldPages, Uncopied):
    """A pool of pages: allocates them, counts references to them, frees them, and finds cached ones again.

    Not thread-safe: calls come from one thread at a time.

    Args:
        num_pages: how many pages, the null page included; at least 2 (POOL-1).
        enable_caching: whether full pages can be cached and found again.
        options: see `PoolOptions`; with another hash than SHA-256 the pool keeps keys from the start.

    Attributes:
        pages: every page, the null page first.
        null_page: page 0 (POOL-1).
        free_page_queue: the free pages in eviction order, read-only (POOL-3).
        cached_page_hash_to_page: the cached map, read-only (POOL-7).
        now: the last time passed to `advance_time`; None before the first.
    """

    @takes_options
    def __init__(self, num_pages: int, enable_caching: bool, **options: Unpack[PoolOptions]) -> None:
        super().__init__(num_pages, enable_caching, options)
        self.null_page: CachePage = PageView(self, 0)
        self.free_page_queue = PoolFreeQueue(self)
        self.cached_page_hash_to_page: Mapping[PageHashWithGroupId, Sequence[CachePage]] = CachedMap(self)

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
        cached = self.key_map().pages
        found = [cached.get(PageHashWithGroupId(key, group)) for group in groups]
        return page_list(self, tuple(next(iter(pages)) for pages in found if pages)) if all(found) else None

    # -- Handing out and taking back --------------------------------------------------------------

    def get_new_pages(self, num_pages: int) -> PageList:
        """Takes pages from the front of the free queue, each with a count of 1, their hashes evicted (POOL-3).

        Args:
            num_pages: the number of pages; 0 gives an empty list (POOL-4).

        Returns:
            The pages, in queue order. O(num_pages), in array operations.

        Raises:
            ValueError: fewer pages are free; nothing is taken (POOL-4).
        """
        free = self._free
        if (
            type(num_pages) is int and num_pages == 1 and free.num_free
        ):  # `take_one` and `page_list` inlined: a fifth less
            if type(free) is FreeLog and (page := free.log_cell[free.head]):
                free.head += 1
                free.num_free -= 1
            else:
                page = free.take_one()
            self._count_cell[page] = 1
            if self._run_cell[page]:
                self._evict_one(page)
            self.clock += 1
            taken = PageList()
            taken._pool = self
            taken._held = page
            return taken
        if type(num_pages) is not int or not 0 <= num_pages < 2**63:
            num_pages = integer("num_pages", num_pages, clause="POOL-4")
        if num_pages > free.num_free:
            raise refusal(ValueError, "POOL-4", f"num_pages={num_pages} asked for, {free.num_free} free")
        return page_list(self, self.take(num_pages))

    def touch(self, pages: Iterable[Iterable[CachePage]]) -> None:
        """Raises the count of each page once per mention, taking free ones out of the queue (POOL-6).

        Args:
            pages: one list of pages a group.

        Raises:
            ValueError: a page is free and has no hash, so that its content is not defined.
        """
        ids = self._read_groups(pages)
        free = ids[self._count_of[ids] == 0]
        empty = free[~self.index.cached(free)]
        if len(empty):
            raise refusal(ValueError, "POOL-6", f"pages: page {empty[0]} is free and has no hash")
        self.hold_mentioned(ids)

    def free_pages(self, ordered_pages: Iterable[CachePage]) -> None:
        """Lowers the count of each page once per mention; a page at 0 goes to the back (POOL-3, POOL-5).

        Args:
            ordered_pages: the pages, in the order in which they are to be evicted. O(pages), in array operations.

        Raises:
            ValueError: a page is mentioned more often than it has references other than pins; nothing changes.
        """
        if type(ordered_pages) is PageList and ordered_pages._pool is self:
            page = ordered_pages._held
            if type(page) is int:
                free = self._free
                if (
                    self._count_cell[page] != 1
                    or not self._is_plain
                    or type(free) is not FreeLog
                    or (tail := free.tail) == free.capacity
                ):
                    self._free_one(page)
                else:  # as `FreeLog.put_one`
                    self._count_cell[page] = 0
                    free.log_cell[tail] = page
                    free.position_cell[page] = tail
                    free.tail = tail + 1
                    free.num_free += 1
                    if not page % self.counter_sampling:
                        self._freed_cell[page // self.counter_sampling] = self.clock
                return
        pages = self.read_pages("ordered_pages", ordered_pages)
        counts = self._count_of[pages]
        if self._is_plain and np.count_nonzero(counts == 1) == len(pages) and self._free.note_places(pages):
            self._count_of[pages] = 0
            self._free.put_noted(pages)
            self._sampling.freed(pages, self.clock)
            return
        pages = pages[pages != 0]  # POOL-1
        mentions: NDArray[np.int64] | int = 1
        self._require_held(pages, mentions)
        if not self._free.note_places(pages):
            pages, mentions = _mentions(pages)
            self._require_held(pages, mentions)
        self.release(pages, mentions)

    def _free_one(self, page: int) -> None:
        """`free_pages` for one page, in every case that `free_pages` does not treat itself."""
        count = self._count_cell[page]
        if count > 1 and not self._pins.num_pinned:
            self._count_cell[page] = count - 1
        elif page:  # POOL-1
            self._require_held(np.array((page,)), 1)
            self.release(np.array((page,)))

    def _require_held(self, pages: NDArray[np.int64], mentions: NDArray[np.int64] | int) -> None:
        """Refuses to free distinct pages more often than they have references other than pins (POOL-5)."""
        held = self._count_of[pages].astype(np.int64)
        if self._pins.num_pinned:
            held -= self._pins.counts()[pages]
        missing = mentions - held
        if missing.size and missing.max() > 0:
            worst = int(missing.argmax())
            raise refusal(
                ValueError,
                "POOL-5",
                f"ordered_pages: page {pages[worst]} mentioned {missing[worst] + held[worst]} times, "
                f"held {held[worst]} times",
            )

    # -- Pins and priorities ----------------------------------------------------------------------

    def pin(self, pages: Iterable[Iterable[CachePage]]) -> None:
        """Raises the count of each page once per mention, as `touch` does, for the pool itself (PIN-1).

        Only `unpin` removes these references, and a pinned page keeps its hash unless its content is withdrawn.

        Args:
            pages: one list of cached pages a group; null pages are passed over. O(pages log pages).

        Raises:
            ValueError: a page is not cached, or more distinct pages would be pinned than ``max_pinned_pages`` or, of
                one salt, ``max_pinned_pages_per_salt``; nothing changes.
        """
        ids = self._read_groups(pages)
        uncached = ids[~self.index.cached(ids)]
        if len(uncached):
            raise refusal(ValueError, "PIN-1", f"pages: page {uncached[0]} is not cached")
        self._pins.add(ids)
        self.hold_mentioned(ids)
        self._note_pins()

    def unpin(self, pages: Iterable[Iterable[CachePage]]) -> None:
        """Takes one pin of each page per mention; pages at 0 are freed in the order given (PIN-1).

        Args:
            pages: one list of pages a group; null pages are passed over. O(pages log pages).

        Raises:
            ValueError: a page is mentioned more often than it is pinned; nothing changes.
        """
        ids, mentions = _mentions(self._read_groups(pages))
        self._pins.remove(ids, mentions)
        self._note_pins()
        self.release(ids, mentions)

    def pins_of(self, page_id: int) -> int:
        """The number of pins of a page. O(1)."""
        return self._pins.of(index("page_id", page_id, self.num_pages))

    def set_priority(self, pages: Iterable[CachePage], priority: int, expires_at: float | None = None) -> None:
        """Sets the priority of pages: free pages of a low one are taken before those of a high one (PIN-2).

        A priority ends when the page is handed out, and when it is freed without a hash. A free page whose priority
        changes goes behind the free pages of the new one.

        Args:
            pages: cached pages; null pages are passed over. O(pages).
            priority: an int32; pages have priority 0 by default.
            expires_at: the time at which the pages get priority 0 again; None: never.

        Raises:
            ValueError: a page is not cached, or the priority would end at once; nothing changes.
        """
        ids = self.read_pages("pages", pages)
        value = integer("priority", priority, minimum=None)
        if not -(2**31) <= value < 2**31:
            raise refusal(ValueError, "R1", f"priority={value} does not fit an int32")
        end = None if expires_at is None else real("expires_at", expires_at)
        ids = ids[ids != 0]  # POOL-1
        uncached = ids[~self.index.cached(ids)]
        if len(uncached):
            raise refusal(ValueError, "PIN-2", f"pages: page {uncached[0]} is not cached")
        if end is not None and self.now is not None and end <= self.now:
            raise refusal(ValueError, "PIN-2", f"expires_at={end} does not lie after now={self.now}")
        if not isinstance(self._free, PriorityOrder):
            if not value:
                return
            self._free = PriorityOrder(self._free, self._run_cell)
        for page in ids.tolist():
            self._free.set(page, value, end, not self._count_cell[page])

    def get_priority(self, page_id: int) -> int:
        """A page's priority (PIN-2). O(1)."""
        page = index("page_id", page_id, self.num_pages)
        return self._free.priority(page) if isinstance(self._free, PriorityOrder) else 0

    def advance_time(self, now: float) -> None:
        """Sets the time; priorities that expire by then end, in the order of their ends (PIN-2).

        Args:
            now: the time, on any scale; not before the last one. O(log pages) for each priority that ends.

        Raises:
            ValueError: it is earlier than the last one, or not finite.
        """
        time = real("now", now)
        if self.now is not None and time < self.now:
            raise refusal(ValueError, "PIN-2", f"now={time} is earlier than {self.now}")
        self.now = time
        if isinstance(self._free, PriorityOrder):
            self._free.expire(time)

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
            page_hashes: keys of the request's pages from its first on, computed before; the list may be short
                or empty. A key that is not the request's is refused, since it would be found by a request
                with other tokens (R2).
            num_cached_pages: the number of leading pages that are cached already.
            num_full_pages: the number of leading pages that are cached after the call.
            page_size: tokens in a page.
            kv_cache_group_id: the group that the pages belong to.

        Raises:
            ValueError: a page is free, has a hash already (POOL-8), is pinned for content that was withdrawn
                (PIN-1) or is named twice; the counts exceed the pages or the request's tokens; a key is not the
                request's own; caching is off.
        """
        ids = self.read_pages("pages", pages)
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
        require_own_keys(page_hashes, self.hash_function, self.none_hash, tokens, segments, page_size)
        new = ids[first:end]
        self._require_cacheable(new if np.count_nonzero(new) == len(new) else new[new != 0])  # POOL-1
        entered = new
        if first:
            entered = np.zeros(end, np.int64)
            entered[first:] = new
        tree = self.index.tree(group, page_size)
        keys = self.keys_to_be(tree, tokens, segments)
        self.index.publish(tree, tokens, segments, entered)
        self.note_keys(entered, keys)

    def _require_cacheable(self, pages: NDArray[np.int64]) -> None:
        """Refuses pages that are free, cached or pinned, or named twice (POOL-8, PIN-1)."""
        if (
            np.count_nonzero(self._count_of[pages]) == len(pages)
            and not self.index.num_cached(pages)
            and not (self._pins.num_pinned and self._pins.counts()[pages].any())
            and self._free.note_places(pages)
        ):
            return
        seen = set()
        for page in pages.tolist():  # the message names the first one that is wrong
            if not self._count_cell[page]:
                raise refusal(ValueError, "POOL-8", f"pages: page {page} is free, its content is nobody's")
            if self._run_cell[page]:
                raise refusal(ValueError, "POOL-8", f"pages: page {page} has a hash already")
            if page in seen:
                raise refusal(ValueError, "POOL-8", f"pages: page {page} is named twice")
            if self._pins.of(page):
                raise refusal(ValueError, "PIN-1", f"pages: page {page} is pinned, for content that was withdrawn")
            seen.add(page)

    def evict_pages(self, page_ids: Iterable[int]) -> None:
        """Drops the hashes of pages, wherever they stand (POOL-11); the null page and unhashed pages are passed over.

        Args:
            page_ids: the pages' ids; their events are in this order. O(pages log pages).

        Raises:
            IndexError: an id is not of this pool.
            ValueError: a page is pinned (PIN-1).
        """
        ids = id_array("page_ids", page_ids, self.num_pages)
        ids = ids[np.sort(np.unique(ids, return_index=True)[1])]
        if self._pins.num_pinned:
            pinned = ids[self._pins.counts()[ids] > 0]
            if len(pinned):
                raise refusal(ValueError, "PIN-1", f"page_ids: page {pinned[0]} is pinned")
        self.withdraw(ids)

    # -- Reading arguments (R1) -------------------------------------------------------------------

    def read_pages(self, name: str, pages: object) -> NDArray[np.int64]:
        """Reads pages of this pool as ids, `i64[pages]`, read-only (R1). O(1) for a `PageList`, else O(pages)."""
        if type(pages) is PageList and pages._pool is self:
            held = pages._held
            return held if type(held) is np.ndarray else pages.id_array
        if isinstance(pages, reversed):
            pages = list(pages)
        given = listed(name, pages)
        for page in given:
            if not isinstance(page, CachePage):
                raise refusal(TypeError, "R1", f"{name} has {shown(page)}, which is no CachePage")
            if not isinstance(page, PageView) or page._pool is not self:
                raise refusal(ValueError, "R1", f"{name}: page {page.page_id} belongs to another pool")
        return np.array([page._id for page in given], np.int64)

    def _read_groups(self, pages: object) -> NDArray[np.int64]:
        """Reads one list of pages a group as ids of pages, null pages left out (POOL-1)."""
        groups = [self.read_pages("pages", group) for group in listed("pages", pages)]
        ids = np.concatenate(groups) if groups else np.empty(0, np.int64)
        held: NDArray[np.int64] = ids[ids != 0]
        return held


def _mentions(pages: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The distinct pages in the order of their last mentions (POOL-3), and the number of mentions of each."""
    # read backwards, the first mention is the last one
    distinct, last, mentions = np.unique(pages[::-1], return_index=True, return_counts=True)
    order = np.argsort(-last)
    return distinct[order], mentions[order]
