"""Arguments that are wrong and are taken all the same: for what Python makes of them, or for what they begin with."""

from collections.abc import Iterable
from types import ModuleType
from typing import Any

import numpy as np

from .registry import FORESEEN, seeded


def _as_int(value: Any) -> Any:
    """What Python makes of a bool or of a whole float."""
    return int(value) if isinstance(value, bool | float) else value


@seeded(FORESEEN, "R1", "manager", also=("MAN-2",), by="CacheManager.allocate_slots")
def true_is_a_lookahead_of_one(
    fast: ModuleType,
    self: Any,
    request: Any,
    num_new_tokens: Any,
    num_new_computed_tokens: Any = 0,
    new_computed_pages: Any = None,
    num_lookahead_tokens: Any = 0,
    delay_cache_pages: Any = False,
) -> Any:
    """A look-ahead that is a bool or a float is taken for a number of tokens: a flag in the wrong place goes unseen."""
    return fast.CacheManager.allocate_slots(
        self,
        request,
        num_new_tokens,
        num_new_computed_tokens,
        new_computed_pages,
        _as_int(num_lookahead_tokens),
        delay_cache_pages,
    )


@seeded(FORESEEN, "R1", "manager", also=("POOL-11",), by="CacheManager.evict_pages")
def page_ids_are_truncated(fast: ModuleType, self: Any, page_ids: Any) -> None:
    """Page ids that are floats are cut to ints, so that the hash of another page is dropped than was meant."""
    if isinstance(page_ids, Iterable) and not isinstance(page_ids, str | bytes | np.ndarray):
        page_ids = list(map(_as_int, page_ids))
    fast.CacheManager.evict_pages(self, page_ids)


@seeded(FORESEEN, "R1", "manager", also=("MAN-4", "MAN-5", "POOL-5"), by="CacheManager.free")
def freed_before_the_count_is_read(fast: ModuleType, self: Any, request: Any, num_written: Any = None) -> Any:
    """The number of written tokens is read last: a call that is refused for it has given the request's pages back."""
    try:
        return fast.CacheManager.free(self, request, num_written)
    except (TypeError, ValueError):
        fast.CacheManager.free(self, request)
        raise


@seeded(FORESEEN, "R1", "views", also=("CACHE-2",), by="RaggedPagesCache.copy_pages")
def page_ids_of_64_bits_wrap_round(
    fast: ModuleType, self: Any, sources: Any, destinations: Any, num_slots: Any = None
) -> Any:
    """Page ids that no int32 holds are cut to 32 bits: another page is copied than was meant."""

    def cut(ids: Any) -> Any:
        if not isinstance(ids, list) or not all(type(page) is int for page in ids):
            return ids
        return [(page + 2**31) % 2**32 - 2**31 for page in ids]

    return fast.RaggedPagesCache.copy_pages(self, cut(sources), cut(destinations), num_slots)


@seeded(FORESEEN, "PIN-1", "pins", by="page_pool.counts.require_cacheable")
def withdrawn_pages_are_cached_anew(
    fast: ModuleType, self: Any, pages: Any, is_cached: Any, pins: Any, are_distinct: bool
) -> None:
    """A page that is pinned for content which was withdrawn is cached under other content: the pin now holds that."""
    fast.pool.ref_counts.RefCounts.require_cacheable(self, pages, is_cached, np.zeros_like(pins), are_distinct)
