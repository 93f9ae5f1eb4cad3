"""Ragged paged attention on a Hopper GPU: the one entry of the kernels."""

from typing import Any

import jax
import jax.numpy as jnp

from ..options import AttentionOptions
from ..ragged import clean_table, owners, ragged
from ..storage import ScaledPages, page_values
from .geometry import ROWS, Geometry
from .schedule import decode_items, most_extras, prefill_blocks
from .sinks import sink_rows

__all__ = ["attend"]


def attend(
    queries: jax.Array,  # [T, Hq, D]
    kv_pages: Any,  # [P, page, ...]
    kv_lens: jax.Array,  # i32[S]
    page_table: jax.Array,  # i32[S, pages_per_seq]
    cu_q_lens: jax.Array,  # i32[S + 1]
    num_seqs: jax.Array,  # i32[1]
    sinks: jax.Array | None,  # f32[Hq]
    *,
    options: AttentionOptions,
    interpret: Any = None,
) -> jax.Array:
    """Attention of a ragged batch (ATT-1 to 4, ATT-6).

    Sequences with one query each go to the kernel that splits keys, wherever they stand in the batch, all others to the
    one that splits queries. Which they are is found out on the device.

    Args:
        queries: `[T, Hq, D]`, bfloat16 or float16.
        kv_pages: `[P, page, 2H, Dp]` or `[P, page, groups, packing, Dp]`, of the dtype of the numbers, or ScaledPages
            of that.
        kv_lens: `i32[S]`: tokens of each sequence, its queries included.
        page_table: `i32[S, pages_per_seq]`.
        cu_q_lens: `i32[S + 1]`: where each sequence's queries begin.
        num_seqs: `i32[1]`: sequences that there are.
        sinks: `f32[Hq]` or None.
        options: the options; `support.unsupported` must be None for them.
        interpret: None, or the parameters of JAX's interpreter for GPUs.

    Returns:
        `[T, Hq, Dv]`, of the queries' dtype; zeros in rows that belong to no sequence.
    """
    # Imported here: Mosaic GPU needs a package that machines without a GPU may lack.
    from .combine import combine
    from .decode import decode_parts
    from .prefill import prefill

    layout = options.layout
    num_tokens, num_heads, _ = queries.shape
    if 0 in (num_tokens, *page_table.shape):
        return jnp.zeros((num_tokens, num_heads, layout.v_head_dim), queries.dtype)
    numbers = page_values(kv_pages)
    num_pages, page_size = numbers.shape[:2]
    group = num_heads // layout.num_kv_heads
    kinds = (layout, group, queries.dtype, options.kv_dtype, page_size)
    single, several = (
        Geometry(*kinds, splits_keys, isinstance(kv_pages, ScaledPages)) for splits_keys in (True, False)
    )
    batch = ragged(kv_lens, cu_q_lens, num_seqs, num_tokens, page_size * page_table.shape[1])
    table = clean_table(page_table, num_pages)
    scales = None
    if isinstance(kv_pages, ScaledPages) and single.scale_rows is not None:
        scales = kv_pages.scales.reshape(num_pages, page_size // single.scale_rows.slots, -1)
    cache = (numbers.reshape(num_pages, page_size, -1), scales)
    starts = aligned_starts(batch.starts[:-1], single.alignment)
    token, owner, owned = owners(batch, num_tokens)
    places = jnp.where(owned, starts[owner] + token - batch.starts[owner], -1)
    rows = query_rows(queries, places, several, kv_lens.shape[0])

    heads, most_tiles = layout.num_kv_heads, -(-page_size * page_table.shape[1] // single.tiles.live)
    extras = most_extras(kv_lens.shape[0], heads, most_tiles)
    decoding = decode_items(batch, starts, table, num_heads=heads, extras=extras, tiles=single.tiles, options=options)
    alone = batch.q_lens == 1
    parts = decode_parts(rows, *cache, table, decoding.items, geometry=single, options=options, interpret=interpret)
    scores = None if sinks is None else sink_rows(sinks, single, options)
    sums = (decoding.begins, decoding.counts, scores)
    decoded = combine(parts, *sums, geometry=single, options=options, interpret=interpret)
    out = jnp.where((owned & alone[owner])[:, None, None], decoded[owner], jnp.zeros((), queries.dtype))
    if num_tokens < 2:
        return out
    blocks = prefill_blocks(
        batch,
        starts,
        table,
        num_tokens=num_tokens,
        block_queries=several.block_queries,
        block_rows=several.block_rows,
        group=group,
        tiles=several.tiles,
        options=options,
    )
    long = prefill(rows, *cache, table, blocks, sinks, geometry=several, options=options, interpret=interpret)
    return jnp.where(blocks.used[:, None, None], long, out)


def aligned_starts(
    starts: jax.Array,  # i32[S]
    alignment: int,
) -> jax.Array:
    """Where sequences begin among tokens that are aligned: `i32[S]`, at multiples, with room between them. O(S).

    Args:
        starts: where they begin in the batch, rising.
        alignment: of what they shall be multiples; 1 leaves them where they are.
    """
    if alignment == 1:
        return starts
    order = jnp.arange(starts.shape[0], dtype=jnp.int32)
    return (starts + (alignment - 1)) // alignment * alignment + order * alignment


def query_rows(
    queries: jax.Array,  # [T, Hq, D]
    places: jax.Array,  # i32[T]
    geometry: Geometry,
    num_rows: int,
) -> jax.Array:
    """Queries as the kernels copy them: `[H, n * G, D]`: head by head, token by token, zeros where there is no token.

    Args:
        queries: `[T, Hq, D]`.
        places: `i32[T]`: where each token goes; -1: nowhere.
        geometry: the shapes.
        num_rows: S.
    """
    num_tokens, _, dim = queries.shape
    heads, group, alignment = geometry.layout.num_kv_heads, geometry.group, geometry.alignment
    room = num_tokens if alignment == 1 else -(-num_tokens // alignment) * alignment + num_rows * alignment
    # Behind the last token a block more, whole eights: none is copied from beyond the array.
    room += -(-(geometry.block_rows + ROWS) // group)
    room = -(-room // alignment) * alignment
    source = jnp.full((room,), num_tokens, jnp.int32)
    source = source.at[jnp.where(places < 0, room, places)].set(jnp.arange(num_tokens, dtype=jnp.int32), mode="drop")
    tokens = queries.at[source].get(mode="fill", fill_value=0)
    return jnp.swapaxes(tokens.reshape(room, heads, group, dim), 0, 1).reshape(heads, room * group, dim)
