"""POOL-7, POOL-8: the cached map, from keys to pages, and the content of each cached page."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ..declarations import ExtraKey, PageRemoved, PageStored, PoolOptions, Request
from ..declarations.codec import Part
from ..declarations.json_kinds import extra_keys_of, extra_keys_to_json
from ..reading.arguments import flag, integer, listed, refusal
from .cache_log import CacheLog
from .hashing import (
    PageHash,
    PageHashWithGroupId,
    hash_page_tokens,
    init_none_hash,
    page_extra_keys,
    request_extra_keys,
)
from .pages import CachePage, PageList

__all__ = ["CachedMap", "read_page_hash"]

Content = tuple[int | None, tuple[int, ...], tuple[Any, ...] | None]
"""The content of a full page: (content id of the page before, its tokens, its extra keys)."""


class CachedMap(CacheLog):
    """The cached map: finds pages by their keys, and emits an event for each change (MAN-12).

    It also keeps the *ghost content* of each cached page: an id of (content of the page before, tokens, extra keys).
    Equal ids mean equal content from the first token on. No hash is involved, so that hits are verified even
    with a weak hash function (R2).

    Args:
        enable_caching: whether full pages can be cached and found again.
        options: the pool's.
    """

    def __init__(self, enable_caching: bool, options: PoolOptions) -> None:
        super().__init__(options)
        self.enable_caching = flag("enable_caching", enable_caching)
        self.hash_function = options["hash_function"]
        self.none_hash = init_none_hash(options["hash_seed"], self.hash_function)
        self._cached: dict[PageHashWithGroupId, list[CachePage]] = {}
        self._content_ids: dict[Content, int] = {}
        self._content_of: dict[int, int] = {}
        """Content id of each cached page, by page id."""

    # -- Looking ----------------------------------------------------------------------------------

    @property
    def cached_page_hash_to_page(self) -> Mapping[PageHashWithGroupId, Sequence[CachePage]]:
        """The cached map: key to pages, in the order in which they were cached (POOL-7). Read-only."""
        return MappingProxyType({key: PageList(pages) for key, pages in self._cached.items()})

    def cached_under(self, page_hash: PageHash, group_id: int) -> PageList:
        """The pages cached under a key, in the order in which they were cached (POOL-7)."""
        return PageList(self._cached.get(PageHashWithGroupId(page_hash, group_id), ()))

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
        found = [self.cached_under(key, group) for group in groups]
        return PageList(pages[0] for pages in found) if all(found) else None

    def content_id(self, parent: int | None, tokens: Sequence[int], extra_keys: tuple[Any, ...] | None) -> int:
        """The id of a full page's content: equal ids if and only if the contents are equal (R2)."""
        return self._content_ids.setdefault((parent, tuple(tokens), extra_keys), len(self._content_ids))

    def content_of(self, page: CachePage) -> int | None:
        """The content id of a cached page; None for a page that is not cached (R2)."""
        return self._content_of.get(page.page_id)

    # -- Caching and evicting ---------------------------------------------------------------------

    def extend_chain(
        self,
        chain: list[tuple[PageHash, int]],
        tokens: Sequence[int],
        extra_keys: Iterable[ExtraKey],
        page_size: int,
        num_pages: int,
    ) -> list[tuple[PageHash, int]]:
        """Extends a sequence's chain of (key, content id), an entry a full page, to ``num_pages`` pages (HASH-3, R2).

        Args:
            chain: the entries of the sequence's first pages; extended in place.
            tokens: the tokens of the whole sequence.
            extra_keys: the extra keys of the whole sequence.
            page_size: tokens in a page.
            num_pages: length of the chain after the call.

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

    def publish(
        self,
        pages: Sequence[CachePage],
        chain: Sequence[tuple[PageHash, int]],
        group_id: int,
        parent: bytes | None = None,
    ) -> None:
        """Caches pages, each under its key and with its content, and emits their events (POOL-7, R2, MAN-12).

        Args:
            pages: consecutive pages of a request; null pages among them are skipped.
            chain: key and content id of each page.
            group_id: the cache group of the pages.
            parent: the digest of the key before the first of them; None where that is the request's first page.
        """
        for page, (key, content) in zip(pages, chain, strict=True):
            if not page.is_null:
                page._hash = PageHashWithGroupId(key, group_id)
                self._cached.setdefault(page._hash, []).append(page)
                self._content_of[page.page_id] = content
                self._count_stored(page)
                self._emit(PageStored(group_id, page.page_id, key.hash_value, parent, key.token_ids, key.extra_keys))
            parent = key.hash_value

    def withdraw(self, pages: Iterable[CachePage]) -> None:
        """Drops the hashes of pages whose promised content was never written, pinned pages too, in order (MAN-4)."""
        for page in pages:
            self._forget(page, emit=True)

    def _forget(self, page: CachePage, emit: bool) -> None:
        """Removes a page from the cached map; others cached under the same key stay, in order (POOL-7).

        Args:
            page: the page; one without a hash is skipped.
            emit: whether a `PageRemoved` event is emitted.
        """
        if page._hash is None:
            return
        if emit:
            self._emit(PageRemoved(page._hash.group_id, page.page_id, page._hash.get_hash_value()))
        duplicates = self._cached[page._hash]
        duplicates.remove(page)
        if not duplicates:
            del self._cached[page._hash]
        page._hash = None
        del self._content_of[page.page_id]
        self._count_forgotten(page)

    # -- Snapshots (MAN-14) -----------------------------------------------------------------------

    def cached_state(self) -> dict[str, Any]:
        """What a snapshot has of the cached pages: ``contents``, with all that comes before them, and ``cached``."""
        content_of_id = {content_id: content for content, content_id in self._content_ids.items()}
        contents: list[list[Any]] = []
        cached: list[list[int]] = []
        place_of: dict[int, int] = {}
        # keys by their first pages: equal maps give equal snapshots, whichever key came first
        for key, pages in sorted(self._cached.items(), key=lambda entry: entry[1][0].page_id):
            for page in pages:
                chain: list[int] = []
                content_id: int | None = self._content_of[page.page_id]
                while content_id is not None and content_id not in place_of:
                    chain.append(content_id)
                    content_id = content_of_id[content_id][0]
                for known in reversed(chain):
                    parent, tokens, extra_keys = content_of_id[known]
                    place_of[known] = len(contents)
                    before = -1 if parent is None else place_of[parent]
                    contents.append([before, list(tokens), extra_keys_to_json(extra_keys)])
                cached.append([key.group_id, page.page_id, place_of[self._content_of[page.page_id]]])
        return {"contents": contents, "cached": cached}

    def _restore_cached(self, contents: Part, cached: Part, pages: Sequence[CachePage], sizes: Sequence[int]) -> None:
        """Fills an empty map with the cached pages of a snapshot, their keys computed from their contents (HASH-1).

        Args:
            contents: the contents.
            cached: the pages that have them.
            pages: the pages of the pool.
            sizes: tokens in a page of each group; 0 for a group that caches none.
        """
        chain: list[tuple[PageHash, int]] = []
        depths: list[int] = []
        for place, part in enumerate(contents.items()):
            before_part, tokens_part, extra_part = part.items(3)
            before = before_part.integer(-1, place)
            ids = tuple(token.integer(-(2**31), 2**31) for token in tokens_part.items())
            extra_keys = extra_keys_of(extra_part)
            parent, content = (None, None) if before < 0 else (chain[before][0].hash_value, chain[before][1])
            if before >= 0 and len(chain[before][0].token_ids) != len(ids):
                raise part.damaged("has another number of tokens than the content before it")
            depths.append(0 if before < 0 else depths[before] + 1)
            if not _can_touch(extra_keys, depths[-1] * len(ids), (depths[-1] + 1) * len(ids)):
                raise part.damaged("has extra keys that no request has at its place")
            key = hash_page_tokens(self.hash_function, parent, ids, extra_keys, none_hash=self.none_hash)
            chain.append((key, self.content_id(content, ids, extra_keys)))
        for part in cached.items():
            group_part, page_part, known = part.items(3)
            group, page = group_part.integer(below=len(sizes)), pages[page_part.integer(1, len(pages))]
            key, content = chain[known.integer(below=len(chain))]
            if page.page_hash is not None:
                raise cached.damaged(f"names page {page.page_id} twice")
            if len(key.token_ids) != sizes[group] or not sizes[group]:
                raise part.damaged(f"names page {page.page_id} for what group {group} can't cache")
            if not self.enable_caching:
                raise part.damaged("names pages with caching off")
            self.publish([page], [(key, content)], group)

    def _check_map(self, pages: Sequence[CachePage]) -> None:
        """Verifies that the cached map agrees with the hashes and the contents of all pages."""
        hashed = {page.page_id: page.page_hash for page in pages if page.page_hash is not None}
        mapped = {page.page_id: key for key, duplicates in self._cached.items() for page in duplicates}
        assert 0 not in hashed, "POOL-1: the null page is cached"
        assert hashed == mapped, "POOL-7: the cached map and the pages' hashes differ"
        assert len(mapped) == sum(map(len, self._cached.values())), "POOL-8: a page has two hashes"
        assert all(self._cached.values()), "POOL-7: a key without pages"
        assert self._content_of.keys() == hashed.keys(), "R2: content and hashes differ"


def read_page_hash(name: str, value: object) -> PageHash:
    """Reads a key (R1)."""
    if not (isinstance(value, tuple) and len(value) == 3):
        raise refusal(TypeError, "R1", f"{name} must be a PageHash, not {type(value).__name__}")
    for field, kind, own in zip(("hash_value", "token_ids"), (bytes, tuple), value, strict=False):
        if not isinstance(own, kind):
            raise refusal(TypeError, "R1", f"{name}: {field} must be {kind.__name__}, is {type(own).__name__}")
    return PageHash(*value)


def _can_touch(extra_keys: tuple[ExtraKey, ...] | None, start: int, end: int) -> bool:
    """True if a request can have these extra keys touch its tokens ``[start, end)`` (HASH-2)."""
    try:
        of_request = request_extra_keys(Request("any", [], extra_keys or ()))
    except (TypeError, ValueError):
        return False
    return page_extra_keys(of_request, start, end) == extra_keys
