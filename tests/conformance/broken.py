"""Backends that are the specification but for one fault each; the suite must say which clause each breaks.

The catalogue of seeded bugs has those that real systems had; these are others, so that every clause has one. None here
is one of the catalogue's in another place.
"""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY, patch

import kvproof.spec
from kvproof.conformance.backends.loading import Backend
from kvproof.spec import CacheManager, CachePage, CachePages, FreeCachePageQueue, PageHash, PagePool, PageTable
from kvproof.spec.pool.pages import PageList

from . import broken_managers as managers
from . import broken_tables as tables
from .broken_device import BROKEN_DEVICE

__all__ = ["BROKEN", "backend"]


def backend(name: str, **replaced: Any) -> Backend:
    """The specification under another name, with some of its public names replaced."""
    names = {public: getattr(kvproof.spec, public) for public in kvproof.spec.__all__}
    return Backend(name, SimpleNamespace(**{**names, **replaced}))


# -- Pool -------------------------------------------------------------------------------------------


class ShortOfPages(PagePool):
    def get_new_pages(self, num_pages: int) -> PageList:
        try:
            return super().get_new_pages(num_pages)
        except ValueError:
            raise RuntimeError("no pages") from None


class Mute(PagePool):
    def get_new_pages(self, num_pages: int) -> PageList:
        try:
            return super().get_new_pages(num_pages)
        except ValueError:
            raise ValueError from None


class FreesBackwards(PagePool):
    def free_pages(self, ordered_pages: Iterable[CachePage]) -> None:
        super().free_pages(list(ordered_pages)[::-1])


class TouchesAnything(PagePool):
    def touch(self, pages: Iterable[Iterable[CachePage]]) -> None:
        groups = [list(group) for group in pages]
        fine = [
            page
            for group in groups
            for page in group
            if not isinstance(page, CachePage)
            or page.is_null
            or page.ref_cnt
            or page.page_hash
            or page.pool is not self
        ]
        super().touch([fine])


class EvictingFrees(PagePool):
    def evict_pages(self, page_ids: Iterable[int]) -> None:
        ids = list(page_ids)
        super().evict_pages(ids)
        for page in [self.pages[page_id] for page_id in ids]:
            if page.ref_cnt == 0 and not page.is_null:
                self.free_order.remove(page.page_id)
                self.free_order.put([page.page_id])


class AlwaysResets(PagePool):
    def reset_prefix_cache(self) -> bool:
        self.evict_pages(range(self.num_pages))
        return True


class CountsNullInUse(PagePool):
    def get_usage(self) -> float:
        return (self.num_pages - self.get_num_free_pages()) / self.num_pages


class LastOfDuplicates(PagePool):
    def get_cached_page(self, page_hash: PageHash, kv_cache_group_ids: Iterable[int]) -> PageList | None:
        found = super().get_cached_page(page_hash, kv_cache_group_ids)
        keys = [page.page_hash for page in found or () if page.page_hash]
        return None if found is None else PageList([self.pages[self.index.pages_of[key][-1]] for key in keys])


class PlainLists(PagePool):
    def get_new_pages(self, num_pages: int) -> Any:
        return list(super().get_new_pages(num_pages))


class NeverUnhashedFirst(PagePool):
    def give_back(self, pages: Iterable[int]) -> None:
        with patch.object(self, "unhashed_first", False):
            super().give_back(pages)


class TrustsKeys(PagePool):
    def cache_full_pages(self, request: Any, pages: Any, page_hashes: Any, *numbers: Any, **named: Any) -> None:
        trusted = [key for key in page_hashes if not isinstance(key, tuple)]
        super().cache_full_pages(request, pages, trusted, *numbers, **named)


class BackwardQueue(FreeCachePageQueue):
    def append_n(self, pages: Iterable[CachePage]) -> None:
        super().append_n(list(pages)[::-1] if hasattr(self, "_built") else pages)
        self._built = True


# -- Manager ----------------------------------------------------------------------------------------


class HitsAll(CacheManager):
    """The last token is served from the cache as well."""

    def get_computed_pages(self, request: Any) -> tuple[CachePages, int]:
        pages, count = super().get_computed_pages(request)
        size = self.page_size
        if size is not None and count == request.num_tokens - size and self._wants_no_logprobs(request):
            full = request.num_tokens // size
            chain = self.page_pool.keys.extend_chain([], list(request.all_token_ids), request.extra_keys, size, full)
            content = chain[full - 1][1]
            more = [page for page in self.page_pool.pages if self.page_pool.content_of(page) == content][:1]
            return pages + CachePages([more]), count + len(more) * size
        return pages, count

    def _wants_no_logprobs(self, request: Any) -> bool:
        return request.sampling_params.prompt_logprobs is None


class TrustsHashes(CacheManager):
    """A weak hash function's collisions are hits."""

    def get_computed_pages(self, request: Any) -> tuple[CachePages, int]:
        with patch.object(self.page_pool, "content_of", lambda _: ANY):
            return super().get_computed_pages(request)


class PublishesAtOnce(CacheManager):
    def allocate_slots(self, *arguments: Any, **named: Any) -> Any:
        late = named.get("delay_cache_pages") is True
        return super().allocate_slots(*arguments, **named | ({"delay_cache_pages": False} if late else {}))


class AllowsGaps(CacheManager):
    """Computed tokens that have no slots are let through."""

    def allocate_slots(self, request: Any, *arguments: Any, **named: Any) -> Any:
        try:
            return super().allocate_slots(request, *arguments, **named)
        except ValueError as error:
            live = self.coordinator.live.by_id.get(request.request_id)
            if live is None or "have slots [MAN-8]" not in str(error):
                raise
            with patch.object(request, "num_computed_tokens", live.num_computed):
                return super().allocate_slots(request, *arguments, **named)


_POOLS: list[tuple[type[PagePool], str]] = [
    (ShortOfPages, "R1"),
    (Mute, "R1"),
    (FreesBackwards, "POOL-3"),
    (TouchesAnything, "POOL-6"),
    (EvictingFrees, "POOL-11"),
    (AlwaysResets, "POOL-9"),
    (CountsNullInUse, "POOL-10"),
    (LastOfDuplicates, "POOL-7"),
    (PlainLists, "POOL-3"),
    (NeverUnhashedFirst, "POOL-13"),
    (TrustsKeys, "R2"),
]
_MANAGERS: list[tuple[type[CacheManager], str]] = [
    (HitsAll, "MAN-1"),
    (TrustsHashes, "R2"),
    (PublishesAtOnce, "MAN-3"),
    (AllowsGaps, "MAN-8"),
]
_TABLES: list[tuple[type[PageTable], str]] = [
    (tables.Changeable, "TAB-6"),
    (tables.SwapsPagesOnly, "TAB-3"),
    (tables.StaysAtVersion, "TAB-8"),
    (tables.PadsWithZero, "TAB-7"),
    (tables.WideTable, "TAB-1"),
]

BROKEN: list[tuple[str, Backend, str]] = [
    *(("pool", backend(pool.__name__, PagePool=pool), clause) for pool, clause in _POOLS),
    *(("manager", backend(manager.__name__, CacheManager=manager), clause) for manager, clause in _MANAGERS),
    *(("table", backend(table.__name__, PageTable=table), clause) for table, clause in _TABLES),
    *((machine, backend(pool.__name__, PagePool=pool), clause) for machine, pool, clause in managers.POOLS),
    *(
        (machine, backend(next(iter(names.values())).__name__, **names), clause)
        for machine, names, clause in managers.GROUPS
    ),
    *((machine, backend(name, **names), clause) for machine, name, names, clause in BROKEN_DEVICE),
    ("queue", backend("BackwardQueue", FreeCachePageQueue=BackwardQueue), "POOL-3"),
]
"""(machine, broken backend, the clause that it breaks)."""
