"""Faults of the cached map, in which a page's hash and the map's entries say different things, and of the index.

The fast backend finds prefixes by their tokens and shows the map to those who ask; the faults lie in what it shows,
which is where a backend that finds prefixes by their keys would have them.
"""

from collections.abc import Callable, Iterable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from .patching import derived, fresh, with_pool, with_pools
from .registry import FORESEEN, OWN, seeded

__all__: list[str] = []


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

    return with_pool(fast, kept=fresh(dict), _evict=evict, _evict_one=evict_one, key_of_page=key_of_page)


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


@seeded(19, "POOL-7", "pool", by="PagePool.note_keys")
def duplicates_collapse(fast: ModuleType, self: Any, pages: Iterable[int], keys: Iterable[Any]) -> None:
    """The map holds one page a key; a second one is skipped and left without a hash (kvcached 401).

    A check that every page of a cached prefix has a hash then ended the engine.
    """
    entered = []
    for page in pages:
        first = not page or _is_first(self, page)
        if not first:
            self.index.evict_one(page)
            self.num_withdrawals += 1
        entered.append(page if first else 0)
    fast.PagePool.note_keys(self, entered, keys)


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
        missing=fresh(set),
        note_keys=note_keys,
        pages_by_key=pages_by_key,
        get_cached_page=get_cached_page,
    )


# -- The index, a tree of runs, which are joined where one is all that follows at another's end ------------------------


def _with_index(fast: ModuleType, members: Callable[[type[Any]], dict[str, Any]]) -> SimpleNamespace:
    """A backend whose pools' index, a manager's included, has some members replaced, made of those that it has."""

    def spoil(pool: Any) -> None:
        # The pool makes its index itself, and others have noted it: the object stays, its class changes.
        base = type(pool.index)
        pool.index.__class__ = derived(base, members(base))

    return with_pools(fast, spoil)


@seeded(
    FORESEEN,
    "HASH-2",
    "manager",
    also=("R2", "HASH-1", "MAN-1", "MAN-2", "MAN-3", "MAN-6", "POOL-7", "POOL-8"),
    by=_with_index,
)
def joined_across_extra_keys(base: type[Any]) -> dict[str, Any]:
    """What follows at a run's end is joined to it by its tokens alone, though it stands under other extra keys.

    So that text hits the pages of an image of the same placeholder tokens.
    """

    def tidy(self: Any, run: Any) -> None:
        base._tidy(self, run)
        is_there = self._runs[run.number] is run and run.parent is not None
        siblings = run.others.get(run.end) if is_there and run.others else None
        for key, child in list(siblings.items()) if siblings else ():
            if not isinstance(child, int):
                run.detach(run.end, child.extra, key)
                child.extra, child.extra_keys = run.extra, run.extra_keys
                self._join(run, key, child)
                return

    return {"_tidy": tidy}


@seeded(OWN, "POOL-7", "pool", also=("R1", "R2"), by=_with_index)
def branch_ends_in_holes(base: type[Any]) -> dict[str, Any]:
    """A branch whose own end is evicted in the same call as the run's before it is joined to the run with its holes.

    Our own: the run then ended in places without pages, which are never taken away.
    """

    def tidy(self: Any, run: Any) -> None:
        if self._runs[run.number] is not run:
            return
        while run.parent is not None and not run.pages[-1]:
            dead = run.num_dead()
            if dead < len(run.pages):
                run.holes -= dead
                run.cut(dead)
                break
            run = self._remove(run)
        if run.parent is None:
            return
        while run.children is not None and run.end in run.children:
            run = self._join(run, *run.take_newest(run.end))
        if not run.holes:
            base._tidy(self, run)  # one page alone

    return {"_tidy": tidy}


@seeded(FORESEEN, "POOL-7", "batch", also=("R1", "MAN-1", "MAN-2", "MAN-3", "MAN-11"), by=_with_index)
def map_made_amid_decoding(_: type[Any]) -> dict[str, Any]:
    """A map that the first look-up by a key makes while requests decode never learns of the pages that they fill."""
    return {"leave_tails": lambda _: None}
