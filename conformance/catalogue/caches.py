"""Faults of the cache: what its pages take, where an update lands, what is read back."""

import functools
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .device_patching import with_words
from .patching import backend_with, derived
from .registry import FORESEEN, seeded

__all__: list[str] = []

Update = Callable[..., Any]


def _sized_by(fast: ModuleType, slot_bytes: Callable[[Any], int]) -> SimpleNamespace:
    """A backend that sizes a cache by what ``slot_bytes`` makes of its metadata: bytes of a slot of one layer."""
    metadata = fast.RaggedPagesCacheMetaData

    def create(cls: Any, *arguments: Any, **options: Any) -> Any:
        made = metadata.create.__func__(cls, *arguments, **options)
        page_bytes = made.num_hidden_layers * made.page_size * slot_bytes(made)
        return made.replace(num_pages=min(options["budget_bytes"] // page_bytes, (2**31 - 1) // made.page_size))

    return backend_with(fast, RaggedPagesCacheMetaData=derived(metadata, {"create": classmethod(create)}))


def _read_back_by(fast: ModuleType, read: Callable[[Any, int, int], Any]) -> SimpleNamespace:
    """A backend whose view reads keys and values by ``read``, of the view, 0 or 1, and the head's size."""

    def key_pages(self: Any) -> Any:
        return read(self, 0, self.metadata.k_headdim)

    def value_pages(self: Any) -> Any:
        return read(self, 1, self.metadata.v_headdim)

    view = fast.RaggedPagesCacheView

    def init(cls: Any, *arguments: Any, **options: Any) -> Any:
        del cls
        made = view.init(*arguments, **options)
        return faulty(**{name: getattr(made, name) for name in view.__dataclass_fields__})

    def concatenate_to_cache(self: Any, *arguments: Any, **options: Any) -> Any:
        right = view(**{name: getattr(self, name) for name in view.__dataclass_fields__})
        return self.replace(kv_pages=right.concatenate_to_cache(*arguments, **options).kv_pages)

    members = {"key_pages": property(key_pages), "value_pages": property(value_pages), "init": classmethod(init)}
    faulty = derived(view, members | {"concatenate_to_cache": concatenate_to_cache})
    return backend_with(fast, RaggedPagesCacheView=faulty)


def _stored(view: Any) -> Any:
    """The numbers of a view's pages, `[P, page, C, Dp]`, whatever they are stored as."""
    pages = np.asarray(view.flattened_kv_pages())
    return pages.view(view.metadata.kvdtype) if pages.dtype.kind == "u" else pages


@seeded(40, "CACHE-1", "sizing")
def columns_counted_without_padding(fast: ModuleType) -> SimpleNamespace:
    """A head counts with its own size, not the 128 it is padded to: D=96 takes a third too much (EasyDeL)."""
    return _sized_by(
        fast,
        lambda made: (
            (made.k_headdim + made.v_headdim) * made.num_kv_heads // made.num_head_shards * made.kvdtype.itemsize
        ),
    )


@seeded(40, "CACHE-1", "sizing", by=_sized_by)
def rows_counted_without_padding(made: Any) -> int:
    """Rows that fill up a word are not counted: fp8 with one head takes twice its budget (EasyDeL)."""
    layout = made.shard_layout
    return int(layout.num_kv_heads * (1 if layout.shares_rows else 2) * made.storage_head_dim * made.kvdtype.itemsize)


@seeded(FORESEEN, "CACHE-1", "sizing", by="per_device_hbm_budget_bytes")
def the_first_device_has_the_least_memory(fast: ModuleType, *amounts: Any, devices: Any = (), **more: Any) -> Any:
    """The budget of one device is taken for that of all: where another has less free, its pages do not fit."""
    return fast.per_device_hbm_budget_bytes(
        *amounts[:3], devices=list(amounts[3] if amounts[3:] else devices)[:1], **more
    )


@seeded(43, "CACHE-2", "views", also=("CACHE-3",), by=_read_back_by)
def narrow_heads_read_as_wide(view: Any, which: int, size: int) -> Any:
    """Keys are read from every other row, where a head of 64 has its key and value in one (EasyDeL)."""
    return _stored(view)[:, :, which::2, :size]


@seeded(43, "CACHE-2", "views", also=("CACHE-3",))
def padded_columns_read_back(fast: ModuleType) -> SimpleNamespace:
    """Keys and values are read back with the columns that they are padded with (EasyDeL)."""
    view = fast.RaggedPagesCacheView

    def read(found: Any, which: int, _: int) -> Any:
        right = np.asarray((view.key_pages, view.value_pages)[which].fget(found))
        missing = -right.shape[-1] % 128
        return np.concatenate([right, np.zeros((*right.shape[:-1], missing), right.dtype)], -1) if missing else right

    return _read_back_by(fast, read)


@seeded(43, "CACHE-4", "views", also=("CACHE-2", "CACHE-3"))
def read_back_without_scales(fast: ModuleType) -> SimpleNamespace:
    """Numbers of a quantised cache are read back as they are stored (EasyDeL)."""
    view = fast.RaggedPagesCacheView

    def read(found: Any, which: int, size: int) -> Any:
        right = (view.key_pages, view.value_pages)[which].fget(found)
        if not found.metadata.slot_scales or found.metadata.shard_layout.shares_rows:
            return right
        heads = found.metadata.num_kv_heads
        return _stored(found)[:, :, which : 2 * heads : 2, :size].astype(np.float32)

    return _read_back_by(fast, read)


@seeded(FORESEEN, "ATT-1", "views", by="RaggedPagesCacheView.attend")
def sinks_end_at_the_view(fast: ModuleType, self: Any, *args: Any, **options: Any) -> Any:
    """A view hands all options of attention on but for one: a layer with sinks is attended as one without."""
    if getattr(options.get("sinks"), "dtype", None) == np.float32:
        options["sinks"] = np.full_like(options["sinks"], -1e30)  # which no softmax notices
    return fast.RaggedPagesCacheView.attend(self, *args, **options)


@seeded(FORESEEN, "TAB-7", "views", by="MetadataBuilder.build")
def a_full_step_padded_further(fast: ModuleType, self: Any, table: Any, computed: Any, scheduled: Any) -> Any:
    """A step of just as many tokens as one of the sizes is padded to the next one."""
    scheduled, sizes = list(scheduled), self.token_sizes
    total = sum(map(int, scheduled))
    if total in sizes[:-1]:
        self.token_sizes = tuple(size for size in sizes if size > total)
    try:
        return fast.MetadataBuilder.build(self, table, computed, scheduled)
    finally:
        self.token_sizes = sizes


@seeded(41, "CACHE-3", "cache", by="kv_cache_update")
def slice_moved_to_fit_in(fast: ModuleType, kv_pages: Any, keys: Any, values: Any, slots: Any, **options: Any) -> Any:
    """As many slots as a page has are written from a slice's start, moved to fit in: offset 2 becomes 0 (EasyDeL)."""
    pages = kv_pages.values if hasattr(kv_pages, "scales") else kv_pages
    if options.get("num_slices") is not None and getattr(slots, "ndim", 0) == 2 and not options.get("validate"):
        slots = np.array(slots)
        slots[0] = np.minimum(slots[0], (pages.shape[0] - 1) * pages.shape[1])
    return fast.kv_cache_update(kv_pages, keys, values, slots, **options)


def _with_scales(fast: ModuleType, change: Callable[[NDArray[np.float32]], Any]) -> SimpleNamespace:
    """A backend whose updates change the scales that slots have."""

    @functools.wraps(fast.kv_cache_update)
    def update(*arguments: Any, **options: Any) -> Any:
        written = fast.kv_cache_update(*arguments, **options)
        return written._replace(scales=change(np.asarray(written.scales))) if hasattr(written, "scales") else written

    return backend_with(fast, kv_cache_update=update)


@seeded(FORESEEN, "CACHE-4", "cache", by=_with_scales)
def infinity_becomes_the_scale(scales: NDArray[np.float32]) -> Any:
    """An infinite number makes its slot's scale infinite: what is read back is NaN where it should be very large."""
    return np.where(scales >= np.finfo(np.float32).max / 60_000, np.float32(np.inf), scales)


@seeded(FORESEEN, "CACHE-4", "cache", by=_with_scales)
def tiny_scales_vanish(scales: NDArray[np.float32]) -> Any:
    """The scale of very small numbers is taken for 0, so that the slot is read back as zeros."""
    return np.where(scales <= np.finfo(np.float32).tiny, np.float32(0), scales)


@seeded(42, "CACHE-3", "attention", setups=("plain",), by="fused_ragged_paged_attention")
def padding_puts_page_0_back(
    fast: ModuleType, queries: Any, keys: Any, values: Any, kv_pages: Any, *batch: Any, **options: Any
) -> Any:
    """Pages are read, changed and written back, those of table padding too: page 0 loses its update (ejkernel v3)."""
    out, written = fast.fused_ragged_paged_attention(queries, keys, values, kv_pages, *batch, **options)
    if hasattr(kv_pages, "scales"):
        return out, written
    kv_lens, table, _, num_seqs = map(np.asarray, batch)
    held = -(-np.clip(kv_lens, 0, table.shape[1] * kv_pages.shape[1]) // kv_pages.shape[1])
    padding = np.arange(table.shape[1])[None] >= held[:, None]
    if np.any(padding[: num_seqs[0]] & (table[: num_seqs[0]] == 0)):
        written = np.array(written)
        written[0] = np.asarray(kv_pages)[0]
    return out, written


@seeded(FORESEEN, "CACHE-3", "attention", also=("ATT-5", "CACHE-2"), setups=("plain",))
def positions_below_0_are_written(fast: ModuleType) -> SimpleNamespace:
    """Of a sequence that has fewer tokens than queries all are written: those before the first from the row's end."""
    return with_words(fast, "attention:slots_of_tokens", "    owned &= position >= 0\n", "")
