"""Prefill on a GPU: sequences with several queries, in blocks of query rows that read all of their keys."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from ..dispatch import kernel_output
from ..options import AttentionOptions
from ..score_units import exponent_unit
from .geometry import CONSUMERS, ROWS, Geometry, itemsize_of
from .item import Inputs, Item, Scratch
from .launch import Interpret, launch, scratch_of
from .products import Warpgroup, by_row, commit
from .schedule import Blocks
from .sinks import sink_rows
from .walk import LOWEST, THREAD, Sums, attend_item

__all__ = ["prefill"]


def prefill(
    rows: jax.Array,  # [H, rows, D]
    pages: jax.Array,  # [P, page, C * Dp]
    scales: jax.Array | None,  # f32[P, page / slots, slots * 2H]
    table: jax.Array,  # i32[S, pages_per_seq]
    blocks: Blocks,
    sinks: jax.Array | None,  # f32[Hq]
    *,
    geometry: Geometry,
    options: AttentionOptions,
    interpret: Interpret = None,
) -> jax.Array:
    """Attention of sequences with two queries or more (ATT-1 to 3, ATT-6).

    The time is that of the keys read: of each block of queries those from the first that one of its queries sees to
    the last. The blocks with most keys, the last ones of their sequences, are begun first.

    Args:
        rows: queries, as `Inputs` has them.
        pages: `[P, page, C * Dp]`.
        scales: as `Inputs` has them, or None.
        table: `i32[S, pages_per_seq]`: -1 for what names no page.
        blocks: as `prefill_blocks` makes them.
        sinks: `f32[Hq]` or None.
        geometry: the shapes.
        options: the options.
        interpret: None, or the parameters of the interpreter.

    Returns:
        `[T, Hq, Dv]` of the geometry's dtype; anything for tokens in no block.
    """
    heads, group, v_dim = geometry.layout.num_kv_heads, geometry.group, geometry.layout.v_head_dim
    count = blocks.items.shape[1]
    unit = exponent_unit(options)
    warpgroup = Warpgroup(interpret is not None, itemsize_of(geometry.kv_dtype), geometry.raw_swizzle)
    given = {"items": blocks.items, "table": table, "queries": rows, "pages": pages}
    given |= {"first": blocks.first, "end": blocks.end}
    if sinks is not None:
        given["sinks"] = sink_rows(sinks, geometry, options)
    if scales is not None:
        given["scales"] = scales

    def body(*refs: Any, **scratch: Any) -> None:
        *inputs, out = refs
        index = count - 1 - jax.lax.axis_index("block")
        head = jax.lax.axis_index("head")
        own = Scratch(**scratch)
        item = Item(geometry, options, Inputs(**dict(zip(given, inputs, strict=True))), own, warpgroup, index, head)

        def finish(consumer: jax.Array, sums: Sums) -> None:
            total, mixed = sums.total, sums.mixed
            if item.inputs.sinks is not None:
                sink = warpgroup.rows(item.inputs.sinks.at[head, pl.ds(consumer * ROWS, ROWS)])
                top = jnp.maximum(sums.top, jnp.maximum(sink, LOWEST))
                fade = jnp.exp2((sums.top - top) * unit)
                total = total * fade + jnp.exp2((sink - top) * unit)
                mixed = mixed * by_row(fade, mixed.shape)
            share = options.value_scale / jnp.where(total == 0.0, 1.0, total)
            through = (own.queries if own.output is None else own.output).at[consumer]
            through[...] = (mixed * by_row(share, mixed.shape)).astype(geometry.dtype)
            commit()
            plgpu.copy_smem_to_gmem(through, out.at[index * heads + head, pl.ds(consumer * ROWS, ROWS)])
            plgpu.wait_smem_to_gmem(0)

        attend_item(item, jax.lax.axis_index(THREAD), finish)

    done: jax.Array = launch(
        body,
        scratch_of(geometry, interpret is not None),
        kernel_output((count * heads, CONSUMERS * ROWS, v_dim), geometry.dtype),
        {"block": count, "head": heads},
        *given.values(),
        name="paged_prefill",
        interpret=interpret,
    )
    used = geometry.block_queries * group
    done = done[:, :used].reshape(count, heads, geometry.block_queries, group, v_dim)
    return done[blocks.block, :, blocks.offset].reshape(-1, heads * group, v_dim)
