"""POOL: the pages, who holds them, which of them are free, and which can be found again by their content.

State lies in arrays with one entry a page: the reference count, the place in the free order (`FreeLog`) and the
place in the index of cached pages (`PrefixIndex`); 36 bytes a page in all. Calls read their pages as ids, refuse,
and then change whole arrays; a call about one page takes a scalar path through the same structures.
"""

from array import array
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from kvproof.spec.declarations import EngineRequest, HashFunction

from .arguments import attribute, flag, id_array, integer, listed, refusal
from .extra_keys import ExtraSegment, extra_segments
from .free_log import FreeLog
from .free_queue import PoolFreeQueue
from .hashing import PageHash, PageHashes, PageHashWithGroupId, init_none_hash, page_digest, sha256, token_tuple
from .page_keys import CachedMap, KeyMap, page_key
from .pages import CachePage, PageList, PageView
from .prefix_index import PrefixIndex
from .runs import RunTree
from .tokens import token_bytes

__all__ = ["PagePool"]


class PagePool:
    """A pool of pages: hands them out, counts who holds them, takes them back, and finds cached ones again.

    Not thread-safe: calls come from one thread at a time.

    Args:
        num_pages: how many pages, the null page included; at least 2 (POOL-1).
        enable_caching: whether full pages can be cached and found again.
        hash_seed: the seed of the keys; None draws one (HASH-1).
        hash_function: the hash of the keys, bytes in, bytes out. Another than SHA-256 makes the pool keep keys
            from the start.
        unhashed_first: freed pages that carry no hash go to the front of the queue (POOL-13).

    Attributes:
        pages: every page, the null page first.
        null_page: page 0.
        free_page_queue: the free pages in eviction order, read-only (POOL-3).
        cached_page_hash_to_page: the cached map, read-only (POOL-7).
        index: the index of cached pages.
        num_withdrawals: how often a page in use lost its hash: what was published before it may since have been
            published anew, with other content.
    """

    def __init__(
        self,
        num_pages: int,
        enable_caching: bool,
        *,
        hash_seed: bytes | None = None,
        hash_function: HashFunction = sha256,
        unhashed_first: bool = False,
    ) -> None:
        self.num_pages = integer("num_pages", num_pages, minimum=2, clause="POOL-1")
        self.enable_caching = flag("enable_caching", enable_caching)
        self.unhashed_first = flag("unhashed_first", unhashed_first)
        self.hash_function = hash_function
        self.none_hash = init_none_hash(hash_seed, hash_function)
        self.index = PrefixIndex(self.num_pages)
        self._run_cell = self.index.run_cell
        self._free = FreeLog(self.num_pages, front_room=self.unhashed_first)
        self._count_cell = array("i", bytes(4 * self.num_pages))
        self._count_of: NDArray[np.int32] = np.frombuffer(self._count_cell, np.int32)
        self.num_withdrawals = 0
        # Keys that collide are told apart by the order in which their pages were cached: only a map that was
        # there from the start knows it.
        self._keys: KeyMap | None = None if hash_function is sha256 else KeyMap()
        self.free_page_queue = PoolFreeQueue(self)
        self.cached_page_hash_to_page: Mapping[PageHashWithGroupId, Sequence[CachePage]] = CachedMap(self)

    # -- Looking ----------------------------------------------------------------------------------

    @property
    def pages(self) -> PageList:
        """Every page, the null page first. O(pages)."""
        return PageList(self, np.arange(self.num_pages))

    @property
    def null_page(self) -> CachePage:
        """Page 0 (POOL-1)."""
        return PageView(self, 0)

    def get_num_free_pages(self) -> int:
        """How many pages can be handed out. O(1)."""
        return self._free.num_free

    def get_usage(self) -> float:
        """The share of pages in use, from 0.0 to 1.0; the null page counts on neither side (POOL-10). O(1)."""
        return (self.num_pages - 1 - self._free.num_free) / (self.num_pages - 1)

    def num_free_of(self, pages: NDArray[np.int64]) -> int:
        """How many of ``pages`` are free. O(pages)."""
        return len(pages) - int(np.count_nonzero(self._count_of[pages]))

    def free_order(self) -> NDArray[np.int64]:
        """The ids of the free pages in eviction order, `i64[free]` (POOL-3). O(free pages)."""
        return self._free.order()

    def ref_count(self, page_id: int) -> int:
        """A page's reference count. O(1)."""
        return self._count_cell[page_id]

    def set_ref_count(self, page_id: int, count: int) -> None:
        """Sets the count of a page in use; one that would leave or enter the free queue is refused (POOL-2)."""
        if page_id == 0:
            return  # POOL-1
        held = self._count_cell[page_id]
        if (count == 0) != (held == 0):
            raise refusal(ValueError, "POOL-2", f"ref_cnt={count} on page {page_id} at {held}: use touch or free_pages")
        self._count_cell[page_id] = count

    def key_of_page(self, page_id: int) -> PageHashWithGroupId | None:
        """A page's key; None if it is not cached. A digest for each page before it that has none yet."""
        if self._keys is not None:
            return self._keys.key_of.get(page_id)
        place = self.index.place(page_id)
        if place is None:
            return None
        return page_key(self.hash_function, self.none_hash, *place)

    def pages_by_key(self) -> dict[PageHashWithGroupId, list[int]]:
        """The cached map, by ids (POOL-7). O(cached pages)."""
        if self._keys is not None:
            return self._keys.pages
        return {
            page_key(self.hash_function, self.none_hash, run, place): pages for run, place, pages in self.index.places()
        }

    def get_cached_page(self, page_hash: PageHash, kv_cache_group_ids: Iterable[int]) -> PageList | None:
        """The first page cached under a key, for each of several groups (POOL-7).

        The first call of a pool's life computes the key of every cached page; from then on keys are kept up as
        pages come and go, and a call is O(groups).

        Args:
            page_hash: the key.
            kv_cache_group_ids: the groups.

        Returns:
            One page a group, or None if any group has none.
        """
        key = _page_hash("page_hash", page_hash)
        groups = [integer("kv_cache_group_ids", group) for group in listed("kv_cache_group_ids", kv_cache_group_ids)]
        if self._keys is None:
            keys = KeyMap()
            for same, pages in self.pages_by_key().items():
                for page in pages:
                    keys.add(same, page)
            self._keys = keys
        found = [self._keys.pages.get(PageHashWithGroupId(key, group)) for group in groups]
        return PageList(self, tuple(pages[0] for pages in found if pages)) if all(found) else None

    # -- Handing out and taking back --------------------------------------------------------------

    def get_new_pages(self, num_pages: int) -> PageList:
        """Takes pages from the front of the free queue, each with a count of 1, their hashes evicted (POOL-3).

        Args:
            num_pages: how many; 0 gives an empty list (POOL-4).

        Returns:
            The pages, in queue order. O(num_pages), in array operations.

        Raises:
            ValueError: there are not so many; nothing is taken (POOL-4).
        """
        if type(num_pages) is not int or num_pages < 0:
            num_pages = integer("num_pages", num_pages, clause="POOL-4")
        free = self._free
        if num_pages > free.num_free:
            raise refusal(ValueError, "POOL-4", f"num_pages={num_pages} asked for, {free.num_free} free")
        if num_pages == 1:  # as `take_one`, whose call would be a twentieth of the whole
            page = free.take_one()
            self._count_cell[page] = 1
            if self._run_cell[page]:
                self._evict_one(page)
            return PageList(self, (page,))
        return PageList(self, self.take(num_pages))

    def take_one(self) -> int:
        """`get_new_pages(1)` for a caller that has looked at the free count: the page's id."""
        page = self._free.take_one()
        self._count_cell[page] = 1
        if self._run_cell[page]:
            self._evict_one(page)
        return page

    def take(self, count: int) -> NDArray[np.int64]:
        """`get_new_pages(count)` for a caller that has looked at the free count: the pages' ids, `i64[count]`."""
        pages = self._free.take(count)
        self._count_of[pages] = 1
        self._evict(pages)
        return pages

    def touch(self, pages: Iterable[Iterable[CachePage]]) -> None:
        """Raises the count of each page once per mention, taking free ones out of the queue (POOL-6).

        Args:
            pages: one list of pages a group.

        Raises:
            ValueError: a page is free and has no hash, so that it holds nothing.
        """
        groups = [self.read_pages("pages", group) for group in listed("pages", pages)]
        ids = np.concatenate(groups) if groups else np.empty(0, np.int64)
        ids = ids[ids != 0]  # POOL-1
        free = ids[self._count_of[ids] == 0]
        if len(free):
            empty = free[~self.index.cached(free)]
            if len(empty):
                raise refusal(ValueError, "POOL-6", f"pages: page {empty[0]} is free and has no hash")
            self._free.remove(np.unique(free))
        np.add.at(self._count_of, ids, 1)

    def hold(self, pages: NDArray[np.int64]) -> None:
        """`touch` for distinct cached pages that the caller has checked. O(pages)."""
        counts = self._count_of[pages]
        free = pages[counts == 0]
        if len(free):
            self._free.remove(free)
        self._count_of[pages] = counts + 1

    def free_pages(self, ordered_pages: Iterable[CachePage]) -> None:
        """Lowers the count of each page once per mention; a page at 0 goes to the back (POOL-3, POOL-5).

        Args:
            ordered_pages: the pages, the one to be evicted first in front. O(pages), in array operations.

        Raises:
            ValueError: a page is mentioned more often than it is held; nothing changes.
        """
        if type(ordered_pages) is PageList and ordered_pages._pool is self:
            items = ordered_pages._items
            if type(items) is tuple and len(items) == 1:
                self._free_one(items[0])
                return
        pages = self.read_pages("ordered_pages", ordered_pages)
        counts = self._count_of[pages]
        if len(pages) and counts.min() < 1:
            held = pages != 0  # POOL-1
            pages, counts = pages[held], counts[held]
            if len(pages) and counts.min() < 1:
                worst = int(pages[counts.argmin()])
                raise refusal(ValueError, "POOL-5", f"ordered_pages: page {worst} mentioned once, its count is 0")
        if not len(pages):
            return
        if not self._free.note_places(pages):
            self._release_repeated(pages)
        elif counts.max() == 1 and not self.unhashed_first:
            self._count_of[pages] = 0
            self._free.put_noted(pages)
        else:
            self._lower(pages, counts)

    def _free_one(self, page: int) -> None:
        count = self._count_cell[page]
        if count > 1:
            self._count_cell[page] = count - 1
        elif count == 1:
            self._count_cell[page] = 0
            if self.unhashed_first and not self._run_cell[page]:
                self._free.put_front(np.array((page,)))
            else:
                self._free.put_one(page)
        elif page:  # POOL-1
            raise refusal(ValueError, "POOL-5", f"ordered_pages: page {page} mentioned once, its count is 0")

    def release(self, pages: NDArray[np.int64]) -> None:
        """`free_pages` for distinct held pages. O(pages)."""
        self._lower(pages, self._count_of[pages])

    def _lower(self, pages: NDArray[np.int64], counts: NDArray[np.int32]) -> None:
        counts = counts - 1
        self._count_of[pages] = counts
        self._put_back(pages[counts == 0] if counts.any() else pages)

    def _release_repeated(self, pages: NDArray[np.int64]) -> None:
        # read backwards, the first mention is the last one, which decides the order (POOL-3)
        distinct, last, mentions = np.unique(pages[::-1], return_index=True, return_counts=True)
        left = self._count_of[distinct] - mentions
        if left.min() < 0:
            worst = int(left.argmin())
            raise refusal(
                ValueError,
                "POOL-5",
                f"ordered_pages: page {distinct[worst]} mentioned {mentions[worst]} times, "
                f"its count is {self._count_of[distinct[worst]]}",
            )
        self._count_of[distinct] = left
        freed = left == 0
        self._put_back(distinct[freed][np.argsort(-last[freed])])

    def _put_back(self, pages: NDArray[np.int64]) -> None:
        if self.unhashed_first:
            cached = self.index.cached(pages)
            self._free.put_front(pages[~cached])
            pages = pages[cached]
        self._free.put(pages)

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

        Null pages among them are passed over (POOL-1); the keys' chain runs over them (HASH-3). No digest is
        computed where ``page_hashes`` is empty or came from `hash_request_tokens`.

        Args:
            request: whose tokens and extra keys the pages hold.
            pages: the request's pages from its first on.
            page_hashes: keys of the request's pages from its first on, computed before; the list may be short
                or empty. A key that is not the request's is refused, since it would be found by a request
                with other tokens (R2).
            num_cached_pages: how many leading pages are cached already.
            num_full_pages: how many leading pages are to be cached after the call.
            page_size: tokens in a page.
            kv_cache_group_id: the group that the pages belong to.

        Raises:
            ValueError: a page is free, has a hash already (POOL-8) or is named twice; the counts exceed the pages
                or the request's tokens; a key is not the request's own; caching is off.
        """
        ids = self.read_pages("pages", pages)
        page_size = integer("page_size", page_size, minimum=1)
        group = integer("kv_cache_group_id", kv_cache_group_id)
        first = integer("num_cached_pages", num_cached_pages)
        end = integer("num_full_pages", num_full_pages)
        tokens = token_bytes("request.all_token_ids", attribute(request, "all_token_ids"))
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
        self._check_keys(page_hashes, tokens, segments, page_size)
        new = ids[first:end]
        held = new[new != 0]  # POOL-1
        if len(held):
            if self._count_of[held].min() == 0:
                worst = int(held[self._count_of[held].argmin()])
                raise refusal(ValueError, "POOL-8", f"pages: page {worst} is free, its content is nobody's")
            if self.index.cached(held).any() or not self._free.note_places(held):
                raise refusal(ValueError, "POOL-8", "pages: a page has a hash already or is named twice")
        entered = np.zeros(end, np.int64)
        entered[first:] = new
        tree = self.index.tree(group, page_size)
        keys = self.keys_to_be(tree, tokens, segments)
        self.index.publish(tree, tokens, segments, entered)
        self.note_keys(entered.tolist(), keys)

    def keys_to_be(
        self, tree: RunTree, tokens: bytes, segments: Sequence[ExtraSegment], start: int = 0, after: int = 0
    ) -> list[PageHashWithGroupId]:
        """The keys of pages about to be published, if keys are kept; else none, and nothing is computed.

        A hash function that fails does so here, before anything changed (R1).

        Args:
            tree: where they are going to be published.
            tokens: their token bytes.
            segments: the request's extra keys over its pages.
            start: the place of the first of them in the request.
            after: the cached page that holds the request's page ``start - 1``; 0 where ``start`` is 0.
        """
        if self._keys is None:
            return []
        digest = self._keys.key_of[after].get_hash_value() if after else self.none_hash
        size = tree.page_bytes
        keys: list[PageHashWithGroupId] = []
        for offset in range(0, len(tokens), size):
            page_tokens = tokens[offset : offset + size]
            segment = next(segment for segment in segments if start + offset // size < segment.end)
            digest = page_digest(self.hash_function, digest, segment.extra, page_tokens)
            key = PageHash(digest, token_tuple(page_tokens), segment.extra_keys)
            keys.append(PageHashWithGroupId(key, tree.group_id))
        return keys

    def note_keys(self, pages: Iterable[int], keys: Iterable[PageHashWithGroupId]) -> None:
        """Enters pages just published under their keys, see `keys_to_be`; a page 0 enters nothing."""
        if self._keys is not None:
            for page, key in zip(pages, keys, strict=True):
                if page:
                    self._keys.add(key, page)

    def evict_pages(self, page_ids: Iterable[int]) -> None:
        """Drops the hashes of pages, wherever they stand (POOL-11); the null page and unhashed pages are passed over.

        Args:
            page_ids: the pages' ids. O(pages).

        Raises:
            IndexError: there is no such page.
        """
        ids = np.unique(id_array("page_ids", page_ids, self.num_pages))
        if (self.index.cached(ids) & (self._count_of[ids] > 0)).any():
            self.num_withdrawals += 1
        self._evict(ids)

    def _evict_one(self, page: int) -> None:
        if self._keys is not None:
            self._keys.remove((page,))
        self.index.evict_one(page)

    def _evict(self, pages: NDArray[np.int64]) -> None:
        if self._keys is not None:
            self._keys.remove(pages.tolist())
        self.index.evict(pages)

    def reset_prefix_cache(self) -> bool:
        """Forgets every hash, if no page is in use (POOL-9).

        Returns:
            Whether it did.
        """
        if self._free.num_free != self.num_pages - 1:
            return False
        self.index.reset()
        if self._keys is not None:
            self._keys = KeyMap()
        return True

    # -- Reading arguments (R1) -------------------------------------------------------------------

    def read_pages(self, name: str, pages: object) -> NDArray[np.int64]:
        """Reads pages of this pool as ids, `i64[pages]` (R1). O(1) for a `PageList`, else O(pages)."""
        if type(pages) is PageList and pages._pool is self:
            return pages.id_array
        if isinstance(pages, reversed):
            pages = list(pages)
        given = listed(name, pages)
        for page in given:
            if not isinstance(page, CachePage):
                raise refusal(TypeError, "R1", f"{name} has {page!r}, which is no CachePage")
            if not isinstance(page, PageView) or page._pool is not self:
                raise refusal(ValueError, "R1", f"{name}: page {page.page_id} belongs to another pool")
        return np.array([page._id for page in given], np.int64)

    def _check_keys(self, page_hashes: object, tokens: bytes, segments: Sequence[ExtraSegment], page_size: int) -> None:
        """Refuses keys that are not those of the tokens (R2): by their own tokens where they tell, else by digests."""
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
        own = PageHashes(self.hash_function, self.none_hash, page_size, tokens[: len(given) * 4 * page_size], segments)
        for place, (known, key) in enumerate(zip(given, own, strict=True)):
            if _page_hash(f"page_hashes[{place}]", known) != key:
                raise refusal(ValueError, "R2", f"page_hashes[{place}] is not the key of the request's page {place}")

    def check(self) -> None:
        """Verifies every redundancy of the state; O(pages and cached tokens).

        Raises:
            AssertionError: one does not hold; the message shows the whole state.
        """
        try:
            self._free.check()
            self.index.check()
            free = np.zeros(self.num_pages, bool)
            free[self._free.order()] = True
            assert not free[0], "POOL-1: the null page is free"
            assert self._count_cell[0] == 0, "POOL-1: the null page is held"
            assert not self._run_cell[0], "POOL-1: the null page is cached"
            assert (self._count_of >= 0).all(), "POOL-5: a count below 0"
            assert (free[1:] == (self._count_of[1:] == 0)).all(), "POOL-2: free pages and counts differ"
            if self._keys is not None:
                walked = {
                    page: page_key(self.hash_function, self.none_hash, run, place)
                    for run, place, pages in self.index.places()
                    for page in pages
                }
                mapped = {page: key for key, pages in self._keys.pages.items() for page in pages}
                assert walked == mapped, "POOL-7: keys and index differ"
        except AssertionError as error:
            counts = self._count_of.tolist()
            raise AssertionError(f"{error}\nfree: {self._free.order().tolist()}\ncounts: {counts}") from None


def _page_hash(name: str, value: object) -> PageHash:
    if not (
        isinstance(value, tuple) and len(value) == 3 and isinstance(value[0], bytes) and isinstance(value[1], tuple)
    ):
        raise refusal(TypeError, "R1", f"{name} must be a PageHash, not {type(value).__name__}")
    return PageHash(*value)
