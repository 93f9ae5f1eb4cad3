"""Decode on a GPU: sequences with one query each, their keys split over blocks of threads, parts put together."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from ..dispatch import kernel_output
from ..options import AttentionOptions
from .combine import Parts
from .geometry import CONSUMERS, ROWS, Geometry, itemsize_of
from .item import Inputs, Item, Scratch
from .launch import Interpret, launch, scratch_of
from .products import Warpgroup, commit
from .walk import THREAD, Sums, attend_item

__all__ = ["decode_parts"]


def decode_parts(
    rows: jax.Array,  # [H, rows, D]
    pages: jax.Array,  # [P, page, C * Dp]
    scales: jax.Array | None,  # f32[P, page / slots, slots * 2H]
    table: jax.Array,  # i32[S, pages_per_seq]
    items: jax.Array,  # i32[len(Field), N]
    *,
    geometry: Geometry,
    options: AttentionOptions,
    interpret: Interpret = None,
) -> Parts:
    """Attention of sequences with one query each, in parts (ATT-1, ATT-3, ATT-6).

    Reads the keys and values of the items once, and O(N * H * G * Dv) is written.

    Args:
        rows: queries, as `Inputs` has them.
        pages: `[P, page, C * Dp]`.
        scales: as `Inputs` has them, or None.
        table: `i32[S, pages_per_seq]`: -1 for what names no page.
        items: as `decode_items` makes them.
        geometry: the shapes.
        options: the options.
        interpret: None, or the parameters of the interpreter.
    """
    heads = geometry.layout.num_kv_heads
    num_rows, count = items.shape[1] * CONSUMERS * geometry.part_rows + ROWS, geometry.copied_rows
    out_type = (
        kernel_output((num_rows, geometry.layout.v_head_dim), jnp.float32),
        kernel_output((num_rows,), jnp.float32),
        kernel_output((num_rows,), jnp.float32),
    )
    given = {"items": items, "table": table, "queries": rows, "pages": pages}
    if scales is not None:
        given["scales"] = scales
    group = Warpgroup(interpret is not None, itemsize_of(geometry.kv_dtype), geometry.raw_swizzle)

    def body(*refs: Any, **scratch: Any) -> None:
        *inputs, mixed, tops, totals = refs
        index = jax.lax.axis_index("item")
        head = jax.lax.axis_index("head")
        own = Scratch(**scratch)
        item = Item(geometry, options, Inputs(**dict(zip(given, inputs, strict=True))), own, group, index, head)

        def finish(consumer: jax.Array, sums: Sums) -> None:
            rows = pl.ds((index * CONSUMERS + consumer) * geometry.part_rows + head * count, count)
            own.tops[consumer] = sums.top
            own.totals[consumer] = sums.total
            commit()
            for numbers, out in ((own.tops, tops), (own.totals, totals)):
                plgpu.copy_smem_to_gmem(numbers.at[consumer, pl.ds(0, count)], out.at[rows])
            _write(sums.mixed, own.output.at[consumer], mixed.at[rows], geometry)

        attend_item(item, jax.lax.axis_index(THREAD), finish)

    grid = {"item": items.shape[1], "head": heads}
    scratch = scratch_of(geometry, interpret is not None)
    return Parts(*launch(body, scratch, out_type, grid, *given.values(), name="paged_decode", interpret=interpret))


def _write(mixed: jax.Array, through: Any, out: Any, geometry: Geometry) -> None:
    """Writes the rows of an unfinished sum that have queries, some columns at a time, through shared memory."""
    columns, rows = geometry.partial_columns, geometry.copied_rows
    for begin in range(0, mixed.shape[1], columns):
        if begin:
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        through[...] = jax.lax.slice(mixed, (0, begin), (ROWS, begin + columns))
        commit()
        plgpu.copy_smem_to_gmem(through.at[pl.ds(0, rows)], out.at[:, pl.ds(begin, columns)])
    plgpu.wait_smem_to_gmem(0)
