"""Faults of the cache: what its pages take, where an update lands, what is read back."""

from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from .device_patching import with_function
from .registry import seeded

__all__: list[str] = []

Update = Callable[..., Any]


@seeded(41, "CACHE-3", "cache")
def slice_moved_to_fit_in(fast: ModuleType) -> SimpleNamespace:
    """As many slots as a page has are written from a slice's start, moved to fit in: offset 2 becomes 0 (EasyDeL)."""

    def build(update: Update) -> Update:
        def update_moved(kv_pages: Any, keys: Any, values: Any, slots: Any, **options: Any) -> Any:
            pages = kv_pages.values if hasattr(kv_pages, "scales") else kv_pages
            if options.get("num_slices") is not None and getattr(slots, "ndim", 0) == 2 and not options.get("validate"):
                slots = np.array(slots)
                slots[0] = np.minimum(slots[0], (pages.shape[0] - 1) * pages.shape[1])
            return update(kv_pages, keys, values, slots, **options)

        return update_moved

    return with_function(fast, "kv_cache_update", build)


@seeded(42, "CACHE-3", "attention")
def padding_puts_page_0_back(fast: ModuleType) -> SimpleNamespace:
    """Pages are read, changed and written back, those of table padding too: page 0 loses its update (ejkernel v3)."""

    def build(fused: Update) -> Update:
        def write_back(queries: Any, keys: Any, values: Any, kv_pages: Any, *batch: Any, **options: Any) -> Any:
            out, written = fused(queries, keys, values, kv_pages, *batch, **options)
            if hasattr(kv_pages, "scales"):
                return out, written
            kv_lens, table, _, num_seqs = map(np.asarray, batch)
            held = -(-np.clip(kv_lens, 0, table.shape[1] * kv_pages.shape[1]) // kv_pages.shape[1])
            padding = np.arange(table.shape[1])[None] >= held[:, None]
            if np.any(padding[: num_seqs[0]] & (table[: num_seqs[0]] == 0)):
                written = np.array(written)
                written[0] = np.asarray(kv_pages)[0]
            return out, written

        return write_back

    return with_function(fast, "fused_ragged_paged_attention", build)
