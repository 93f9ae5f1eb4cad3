"""Paged attention in plain JAX, over every layout and dtype that a cache can have."""

from typing import Any

import jax
import jax.numpy as jnp

from ..options import AttentionOptions
from ..ragged import ragged
from ..storage import ScaledPages, from_bits, page_values
from .flash import Cache, Read, attend_ragged

__all__ = ["attend"]


def attend(
    queries: jax.Array,  # [T, Hq, D]
    kv_pages: Any,
    kv_lens: jax.Array,  # i32[S]
    page_table: jax.Array,  # i32[S, pages_per_seq]
    cu_q_lens: jax.Array,  # i32[S + 1]
    num_seqs: jax.Array,  # i32[1]
    sinks: jax.Array | None,  # f32[Hq]
    *,
    options: AttentionOptions,
) -> jax.Array:
    """Attention of a ragged batch over the pages of a cache (ATT-1 to ATT-6). O(keys read * Hq * (D + Dv)).

    Args:
        queries: `[T, Hq, D]`, float32, bfloat16 or float16.
        kv_pages: `[P, page, ...]` or `[P, ..., page]`, as the layout has them, bits too, or ScaledPages.
        kv_lens: `i32[S]`, new tokens included.
        page_table: `i32[S, pages_per_seq]`. Keys on pages that don't exist are not read.
        cu_q_lens: `i32[S + 1]`.
        num_seqs: `i32[1]`.
        sinks: `f32[Hq]`, or None.
        options: the rest.

    Returns:
        `[T, Hq, Dv]` in the queries' dtype.
    """
    layout = options.layout
    tokens, q_heads, dim = queries.shape
    num_pages, page_size = layout.sizes(page_values(kv_pages))
    group = q_heads // layout.num_kv_heads
    batch = ragged(kv_lens, cu_q_lens, num_seqs, tokens, page_size * page_table.shape[1])
    reader = _column_reader if layout.slots_last else _reader
    cache = Cache(reader(kv_pages, options), page_table, num_pages, page_size, layout.v_head_dim)
    grouped = queries.reshape(tokens, layout.num_kv_heads, group, dim)
    if sinks is not None:
        sinks = sinks.reshape(layout.num_kv_heads, group)
    return attend_ragged(grouped, batch, cache, sinks, options).reshape(tokens, q_heads, layout.v_head_dim)


def _reader(kv_pages: Any, options: AttentionOptions) -> Read:
    """Reads heads rather than slots: out come keys and values as the products want them, without another copy."""
    layout = options.layout
    stored = page_values(kv_pages)
    scales = kv_pages.scales if isinstance(kv_pages, ScaledPages) else None
    head = jnp.arange(layout.num_kv_heads, dtype=jnp.int32)[None, :, None]
    step = layout.rows_per_head
    k_columns = slice(0, layout.head_dim)
    v_columns = slice(layout.head_dim, None) if layout.shares_rows else slice(0, layout.v_head_dim)

    def rows(page: jax.Array, offset: jax.Array, part: int, columns: slice) -> jax.Array:
        row = head * step + (part if step == 2 else 0)
        lane = (row,) if layout.version == "v2" else (row // layout.packing, row % layout.packing)
        block = stored.at[(page, offset, *lane)].get(mode="promise_in_bounds", wrap_negative_indices=False)
        numbers = from_bits(block[..., columns], options.kv_dtype).astype(jnp.float32)
        if scales is None:
            return numbers
        scale = scales.at[page, offset, 2 * head + part].get(mode="promise_in_bounds", wrap_negative_indices=False)
        return numbers * scale[..., None]

    def read(page: jax.Array, offset: jax.Array, alive: jax.Array) -> tuple[jax.Array, jax.Array]:
        page, offset = page[:, None], offset[:, None]
        values = rows(page, offset, 1, v_columns) * options.value_scale
        return rows(page, offset, 0, k_columns), jnp.where(alive[:, None, :, None], values, 0.0)

    return read


def _column_reader(kv_pages: Any, options: AttentionOptions) -> Read:
    """Reads slots that are columns (seq_on_lane), by whole pages: XLA for TPUs turns all of a cache to read parts."""
    layout, scaled = options.layout, isinstance(kv_pages, ScaledPages)
    page_size = layout.sizes(page_values(kv_pages))[1]

    def read(page: jax.Array, offset: jax.Array, alive: jax.Array) -> tuple[jax.Array, jax.Array]:
        # The slots of a sequence come in the order of its tokens, so that each page but the first begins at offset 0.
        block = page.shape[1]
        first = offset[:, :1]
        begins = jnp.arange(-(-block // page_size) + 1, dtype=jnp.int32)[None] * page_size - first
        pages = jnp.take_along_axis(page, jnp.clip(begins, 0, block - 1), axis=1)
        lanes = first + jnp.arange(block, dtype=jnp.int32)[None]

        def columns(stored: jax.Array) -> jax.Array:
            """Of pages `[P, ..., page]` the block's columns, `[n, ..., b]`."""
            found = stored.at[pages].get(mode="promise_in_bounds", wrap_negative_indices=False)
            side_by_side = jnp.moveaxis(found, 1, -2)
            flat = side_by_side.reshape(*side_by_side.shape[:-2], -1)
            at = lanes.reshape(lanes.shape[0], *(1 for _ in stored.shape[1:-1]), block)
            return jnp.take_along_axis(flat, at, axis=-1, mode="promise_in_bounds")

        numbers = from_bits(columns(page_values(kv_pages)), options.kv_dtype).astype(jnp.float32)
        if scaled:
            numbers *= columns(kv_pages.scales)[:, :, None]
        slots = jnp.swapaxes(numbers, 2, 3)  # [n, 2H, b, Dp]
        values = slots[:, 1::2, :, : layout.v_head_dim] * options.value_scale
        return slots[:, 0::2, :, : layout.head_dim], jnp.where(alive[:, None, :, None], values, 0.0)

    return read
