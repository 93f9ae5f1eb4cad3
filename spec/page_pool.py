"""POOL: the pages, who holds them, which of them are free, and which can be found again by their content."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from .arguments import attribute, flag, index, integer, listed, refusal, token_list
from .declarations import EngineRequest, ExtraKey, HashFunction
from .free_queue import FreeCachePageQueue, PoolFreeQueue
from .hashing import (
    PageHash,
    PageHashWithGroupId,
    hash_page_tokens,
    init_none_hash,
    page_extra_keys,
    request_extra_keys,
    sha256,
)
from .pages import CachePage, PageList

__all__ = ["PagePool"]

Content = tuple[int | None, tuple[int, ...], tuple[Any, ...] | None]
"""What a full page holds: (content id of the page before, its tokens, its extra keys)."""


class PagePool:
    """A pool of pages: hands them out, counts who holds them, takes them back, and finds cached ones by their keys.

    Beside what an implementation must keep, it keeps each page's *ghost content* (R2): whose K/V the page
    holds, as an id of (content of the page before, tokens, extra keys). Equal ids mean equal content from the
    first token on, with no hash involved.

    Args:
        num_pages: how many pages, the null page included; at least 2 (POOL-1).
        enable_caching: whether full pages can be cached and found again.
        hash_seed: the seed of the keys; None draws one (HASH-1).
        hash_function: the hash of the keys, bytes in, bytes out.
        unhashed_first: freed pages that carry no hash go to the front of the queue (POOL-13).

    Attributes:
        pages: every page, the null page first.
        null_page: page 0.
        free_page_queue: the free pages in eviction order, read-only (POOL-3).
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
        self.null_page = CachePage(0, is_null=True)
        self.pages = PageList([self.null_page, *(CachePage(page_id) for page_id in range(1, self.num_pages))])
        self._free = FreeCachePageQueue(self.pages[1:])
        self.free_page_queue = PoolFreeQueue(self._free)
        self._cached: dict[PageHashWithGroupId, list[CachePage]] = {}
        self._content_ids: dict[Content, int] = {}
        self._content_of: dict[int, int] = {}
        self._free._pool = self
        for page in self.pages:
            page._pool = self

    # -- Looking ----------------------------------------------------------------------------------

    @property
    def cached_page_hash_to_page(self) -> Mapping[PageHashWithGroupId, Sequence[CachePage]]:
        """The cached map: key to pages, in the order in which they were cached (POOL-7). Read-only."""
        return MappingProxyType({key: PageList(pages) for key, pages in self._cached.items()})

    def cached_under(self, page_hash: PageHash, group_id: int) -> PageList:
        """The pages cached under a key, in the order in which they were cached (POOL-7)."""
        return PageList(self._cached.get(PageHashWithGroupId(page_hash, group_id), ()))

    def get_num_free_pages(self) -> int:
        """How many pages can be handed out."""
        return self._free.num_free_pages

    def get_usage(self) -> float:
        """The share of pages in use, from 0.0 to 1.0; the null page counts on neither side (POOL-10)."""
        return (self.num_pages - 1 - self.get_num_free_pages()) / (self.num_pages - 1)

    def get_cached_page(self, page_hash: PageHash, kv_cache_group_ids: Iterable[int]) -> PageList | None:
        """The first page cached under a key, for each of several groups (POOL-7).

        Args:
            page_hash: the key.
            kv_cache_group_ids: the groups.

        Returns:
            One page a group, or None if any group has none.
        """
        key = _page_hash("page_hash", page_hash)
        groups = [integer("kv_cache_group_ids", group) for group in listed("kv_cache_group_ids", kv_cache_group_ids)]
        found = [self.cached_under(key, group) for group in groups]
        return PageList(pages[0] for pages in found) if all(found) else None

    def content_id(self, parent: int | None, tokens: Sequence[int], extra_keys: tuple[Any, ...] | None) -> int:
        """The id of the content of a full page (R2): the same for the same content, another for any other."""
        return self._content_ids.setdefault((parent, tuple(tokens), extra_keys), len(self._content_ids))

    def content_of(self, page: CachePage) -> int | None:
        """The id of what a cached page holds; None for a page that is not cached (R2)."""
        return self._content_of.get(page.page_id)

    # -- Handing out and taking back --------------------------------------------------------------

    def get_new_pages(self, num_pages: int) -> PageList:
        """Takes pages from the front of the free queue, each with a count of 1, their hashes evicted (POOL-3).

        Args:
            num_pages: how many; 0 gives an empty list (POOL-4).

        Returns:
            The pages, in queue order.

        Raises:
            ValueError: there are not so many; nothing is taken (POOL-4).
        """
        num_pages = integer("num_pages", num_pages, clause="POOL-4")
        if num_pages > self.get_num_free_pages():
            raise refusal(ValueError, "POOL-4", f"num_pages={num_pages} asked for, {self.get_num_free_pages()} free")
        pages = self._free.popleft_n(num_pages)
        for page in pages:
            self._forget(page)
            page._ref_cnt = 1
        return PageList(pages)

    def touch(self, pages: Iterable[Iterable[CachePage]]) -> None:
        """Raises the count of each page once per mention, taking free ones out of the queue (POOL-6).

        Args:
            pages: one list of pages a group.

        Raises:
            ValueError: a page is free and has no hash, so that it holds nothing.
        """
        mentioned = [page for group in listed("pages", pages) for page in self._own("pages", group)]
        for page in mentioned:
            if not page.is_null and page.ref_cnt == 0 and page.page_hash is None:
                raise refusal(ValueError, "POOL-6", f"pages: page {page.page_id} is free and has no hash")
        for page in mentioned:
            if page.is_null:
                continue  # POOL-1
            if page.ref_cnt == 0:
                self._free.remove(page)
            page._ref_cnt += 1

    def free_pages(self, ordered_pages: Iterable[CachePage]) -> None:
        """Lowers the count of each page once per mention; a page at 0 goes to the back of the queue (POOL-3, POOL-5).

        Args:
            ordered_pages: the pages, the one to be evicted first in front.

        Raises:
            ValueError: a page is mentioned more often than it is held; nothing changes.
        """
        mentioned = [page for page in self._own("ordered_pages", ordered_pages) if not page.is_null]
        for page, mentions in Counter(mentioned).items():
            if mentions > page.ref_cnt:
                raise refusal(
                    ValueError,
                    "POOL-5",
                    f"ordered_pages: page {page.page_id} mentioned {mentions} times, its count is {page.ref_cnt}",
                )
        freed = []
        for page in mentioned:  # the last mention is the one that brings the count to 0
            page._ref_cnt -= 1
            if page.ref_cnt == 0:
                freed.append(page)
        self._free.prepend_n([page for page in freed if self._goes_first(page)])
        self._free.append_n([page for page in freed if not self._goes_first(page)])

    def _goes_first(self, page: CachePage) -> bool:
        """Whether a freed page is to be taken before all others (POOL-13)."""
        return self.unhashed_first and page.page_hash is None

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

        Null pages among them are passed over (POOL-1); the keys' chain runs over them (HASH-3).

        Args:
            request: whose tokens and extra keys the pages hold.
            pages: the request's pages from its first on.
            page_hashes: keys of the request's pages from its first on, computed before; the list may be short
                or empty, the rest is computed here. A key that is not the request's is refused, since it
                would be found by a request with other tokens (R2).
            num_cached_pages: how many leading pages are cached already.
            num_full_pages: how many leading pages are to be cached after the call.
            page_size: tokens in a page.
            kv_cache_group_id: the group that the pages belong to.

        Raises:
            ValueError: a page is free, has a hash already (POOL-8) or is named twice; the counts exceed the pages
                or the request's tokens; a key is not the request's own; caching is off.
        """
        given = self._own("pages", pages)
        page_size = integer("page_size", page_size, minimum=1)
        group = integer("kv_cache_group_id", kv_cache_group_id)
        first = integer("num_cached_pages", num_cached_pages)
        end = integer("num_full_pages", num_full_pages)
        tokens = token_list("request.all_token_ids", attribute(request, "all_token_ids"))
        extra_keys = request_extra_keys(request)
        if not self.enable_caching:
            raise refusal(ValueError, "R1", "enable_caching=False: this pool caches no pages")
        if not first <= end <= len(given):
            raise refusal(
                ValueError,
                "R1",
                f"num_cached_pages={first} <= num_full_pages={end} <= {len(given)} pages must hold",
            )
        if end * page_size > len(tokens):
            raise refusal(ValueError, "HASH-3", f"num_full_pages={end}: the request has only {len(tokens)} tokens")
        chain = self.extend_chain([], tokens, extra_keys, page_size, end)
        for place, (key, known) in enumerate(zip(chain, listed("page_hashes", page_hashes), strict=False)):
            if _page_hash(f"page_hashes[{place}]", known) != key[0]:
                raise refusal(ValueError, "R2", f"page_hashes[{place}] is not the key of the request's page {place}")
        for page, mentions in Counter(page for page in given[first:end] if not page.is_null).items():
            if page.ref_cnt == 0:
                raise refusal(ValueError, "POOL-8", f"pages: page {page.page_id} is free, its content is nobody's")
            if page.page_hash is not None or mentions > 1:
                raise refusal(ValueError, "POOL-8", f"pages: page {page.page_id} has a hash already or is named twice")
        self.publish(given[first:end], chain[first:end], group)

    def publish(self, pages: Sequence[CachePage], chain: Sequence[tuple[PageHash, int]], group_id: int) -> None:
        """Enters pages, null pages passed over, in the cached map, each with its key and content (POOL-7, R2)."""
        for page, (key, content) in zip(pages, chain, strict=True):
            if not page.is_null:
                page._hash = PageHashWithGroupId(key, group_id)
                self._cached.setdefault(page._hash, []).append(page)
                self._content_of[page.page_id] = content

    def extend_chain(
        self,
        chain: list[tuple[PageHash, int]],
        tokens: Sequence[int],
        extra_keys: Iterable[ExtraKey],
        page_size: int,
        num_pages: int,
    ) -> list[tuple[PageHash, int]]:
        """Adds (key, content id) of the pages up to ``num_pages`` to those of a sequence's first pages (HASH-3, R2).

        Args:
            chain: of the first ``len(chain)`` pages; it is extended in place.
            tokens: of the whole sequence.
            extra_keys: of the whole sequence.
            page_size: tokens in a page.
            num_pages: how long the chain is to be.

        Returns:
            The chain.
        """
        for start in range(len(chain) * page_size, num_pages * page_size, page_size):
            parent, content = (chain[-1][0].hash_value, chain[-1][1]) if chain else (None, None)
            page_tokens = tokens[start : start + page_size]
            touching = page_extra_keys(extra_keys, start, start + page_size)
            key = hash_page_tokens(self.hash_function, parent, page_tokens, touching, none_hash=self.none_hash)
            chain.append((key, self.content_id(content, page_tokens, touching)))
        return chain

    def evict_pages(self, page_ids: Iterable[int]) -> None:
        """Drops the hashes of pages, wherever they stand (POOL-11). The null page and unhashed pages are passed over.

        Args:
            page_ids: the pages' ids.

        Raises:
            IndexError: there is no such page.
        """
        ids = [index("page_ids", page_id, self.num_pages) for page_id in listed("page_ids", page_ids)]
        for page_id in ids:
            self._forget(self.pages[page_id])

    def reset_prefix_cache(self) -> bool:
        """Forgets every hash, if no page is in use (POOL-9).

        Returns:
            Whether it did.
        """
        if self.get_num_free_pages() != self.num_pages - 1:
            return False
        for page in self.pages:
            self._forget(page)
        return True

    def _forget(self, page: CachePage) -> None:
        """Takes a page out of the cached map; those cached under the same key stay, in order (POOL-7)."""
        if page._hash is None:
            return
        duplicates = self._cached[page._hash]
        duplicates.remove(page)
        if not duplicates:
            del self._cached[page._hash]
        page._hash = None
        del self._content_of[page.page_id]

    # -- Inside -----------------------------------------------------------------------------------

    def _own(self, name: str, pages: object) -> list[CachePage]:
        given = listed(name, pages)
        for page in given:
            if not isinstance(page, CachePage):
                raise refusal(TypeError, "R1", f"{name} has {page!r}, which is no CachePage")
            if page._pool is not self:
                raise refusal(ValueError, "R1", f"{name}: page {page.page_id} belongs to another pool")
        return given

    def check(self) -> None:
        """Verifies every redundancy of the state; O(pages).

        Raises:
            AssertionError: one does not hold; the message shows the whole state.
        """
        try:
            free = self._free.get_all_free_pages()
            assert len(free) == len({page.page_id for page in free}), "POOL-2: a page is in the queue twice"
            assert all(0 < page.page_id < self.num_pages for page in free), "POOL-1: the null page is in the queue"
            for page in self.pages[1:]:
                assert (page._queue is self._free) == (page.ref_cnt == 0), f"POOL-2: page {page.page_id}"
            assert len(free) == sum(page.ref_cnt == 0 for page in self.pages[1:]), "POOL-2: free pages and queue differ"
            assert self.null_page.ref_cnt == 0, "POOL-1: the null page is held"
            assert self.null_page.page_hash is None, "POOL-1: the null page is cached"
            hashed = {page.page_id: page.page_hash for page in self.pages if page.page_hash is not None}
            mapped = {page.page_id: key for key, pages in self._cached.items() for page in pages}
            assert hashed == mapped, "POOL-7: the cached map and the pages' hashes differ"
            assert len(mapped) == sum(map(len, self._cached.values())), "POOL-8: a page has two hashes"
            assert all(self._cached.values()), "POOL-7: a key without pages"
            assert self._content_of.keys() == hashed.keys(), "R2: content and hashes differ"
        except AssertionError as error:
            state = "\n".join(
                f"page {page.page_id}: count {page.ref_cnt}, in the queue {page._queue is self._free}, {page.page_hash}"
                for page in self.pages
            )
            raise AssertionError(
                f"{error}\nfree: {[page.page_id for page in self._free.get_all_free_pages()]}\n{state}"
            ) from None


def _page_hash(name: str, value: object) -> PageHash:
    if not (
        isinstance(value, tuple) and len(value) == 3 and isinstance(value[0], bytes) and isinstance(value[1], tuple)
    ):
        raise refusal(TypeError, "R1", f"{name} must be a PageHash, not {type(value).__name__}")
    return PageHash(*value)
