"""Faults of the cached map: a page's hash and the map's entries say different things.

The fast backend finds prefixes by their tokens and shows the map to those who ask; the faults lie in what it shows,
which is where a backend that finds prefixes by their keys would have them.
"""

from collections.abc import Iterable
from functools import cached_property
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from .patching import with_pool
from .registry import seeded

__all__: list[str] = []


def _new_dict(_: Any) -> dict[Any, Any]:
    return {}


def _new_set(_: Any) -> set[int]:
    return set()


def _is_first(pool: Any, page: int) -> bool:
    """Whether a page is the first that was cached under its key."""
    run, place = pool.index.place(page)
    return bool(run.pages[place] == page)


@seeded(18, "POOL-3", "pool", also=("POOL-8", "POOL-11"))
def hash_kept_on_eviction(fast: ModuleType) -> SimpleNamespace:
    """An evicted page leaves the map and keeps its hash, while it is allocated again (kvcached 362)."""
    pool = fast.PagePool

    def evict(self: Any, pages: Any) -> Any:
        keys = {page: pool.key_of_page(self, page) for page in pages.tolist()}
        self.kept.update({page: key for page, key in keys.items() if key is not None})
        return pool._evict(self, pages)

    def evict_one(self: Any, page: int) -> None:
        evict(self, np.array([page]))

    def key_of_page(self: Any, page_id: int) -> Any:
        return pool.key_of_page(self, page_id) or self.kept.get(page_id)

    return with_pool(fast, kept=cached_property(_new_dict), _evict=evict, _evict_one=evict_one, key_of_page=key_of_page)


@seeded(18, "POOL-3", "pool", also=("POOL-7", "POOL-11"))
def evicted_page_stays_in_map(fast: ModuleType) -> SimpleNamespace:
    """An evicted page stays in the map and is found there, while it is allocated again (vLLM 4764)."""
    pool = fast.PagePool

    def note_keys(self: Any, pages: Any, keys: Any) -> None:
        pool.note_keys(self, pages, keys)
        self.get_cached_page(fast.PageHash(b"", ()), [])  # a first look-up makes the map

    def evict(self: Any, pages: Any) -> Any:
        keys, self.keys._map = self.keys._map, None  # the map is not told
        evicted = pool._evict(self, pages)
        self.keys._map = keys
        for page in pages.tolist() if keys is not None else ():
            keys.key_of.pop(page, None)
        return evicted

    def evict_one(self: Any, page: int) -> None:
        evict(self, np.array([page]))

    return with_pool(fast, note_keys=note_keys, _evict=evict, _evict_one=evict_one)


@seeded(19, "POOL-7", "pool")
def duplicates_collapse(fast: ModuleType) -> SimpleNamespace:
    """The map holds one page a key; a second one is skipped and left without a hash (kvcached 401).

    A check that every page of a cached prefix has a hash then ended the engine.
    """
    pool = fast.PagePool

    def note_keys(self: Any, pages: Iterable[int], keys: Iterable[Any]) -> None:
        entered = []
        for page in pages:
            first = not page or _is_first(self, page)
            if not first:
                self.index.evict_one(page)
                self.num_withdrawals += 1
            entered.append(page if first else 0)
        pool.note_keys(self, entered, keys)

    return with_pool(fast, note_keys=note_keys)


@seeded(20, "POOL-7", "pool")
def hash_without_entry(fast: ModuleType) -> SimpleNamespace:
    """A page gets its hash and no entry in the map, so that it is never found (vLLM 53498).

    Here it is the page of a key that another page has already: once that one is evicted, the key misses for ever.
    """
    pool = fast.PagePool

    def note_keys(self: Any, pages: Iterable[int], keys: Iterable[Any]) -> None:
        entered = list(pages)
        pool.note_keys(self, entered, keys)
        self.missing -= set(entered)
        self.missing |= {page for page in entered if page and not _is_first(self, page)}

    def pages_by_key(self: Any) -> dict[Any, list[int]]:
        found = {
            key: [page for page in pages if page not in self.missing] for key, pages in pool.pages_by_key(self).items()
        }
        return {key: pages for key, pages in found.items() if pages}

    def get_cached_page(self: Any, page_hash: Any, kv_cache_group_ids: Iterable[int]) -> Any:
        groups = list(kv_cache_group_ids)
        missing, self.missing = self.missing, set()  # the pages' own keys are all there
        try:
            pool.get_cached_page(self, page_hash, groups)
        finally:
            self.missing = missing
        found = [self.pages_by_key().get(fast.PageHashWithGroupId(page_hash, group)) for group in groups]
        return fast.pool.pages.page_list(self, tuple(pages[0] for pages in found if pages)) if all(found) else None

    return with_pool(
        fast,
        missing=cached_property(_new_set),
        note_keys=note_keys,
        pages_by_key=pages_by_key,
        get_cached_page=get_cached_page,
    )
