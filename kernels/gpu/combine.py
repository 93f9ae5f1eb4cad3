"""The parts of a sequence put together: what decoding leaves unfinished becomes the attention of each sequence.

A kernel of its own, as what it reads hangs on the lengths: XLA, which knows shapes only, would read every part for
every other one (on an H100 26 of 271 microseconds with 8 KV heads, 334 of 443 with one). A block takes 64 rows of one
sequence, of all KV heads one after the other, and some columns, and goes through the sequence's parts once, some of
them at a time, so that the device's memory is asked for several before the first is there.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from ..dispatch import kernel_output
from ..options import AnyOptions
from ..score_units import exponent_unit
from .geometry import ROWS, WIDEST_SWIZZLE, Geometry, LatentGeometry, itemsize_of, swizzle_of
from .launch import Interpret, launch, memory
from .products import Warpgroup, by_row, commit
from .schedule import MULTIPROCESSORS
from .walk import LOWEST, Sums

__all__ = ["Parts", "combine"]

_COLUMNS = 32
"""Columns of a block: half as many where that leaves more than half of the multiprocessors without one."""

_AT_ONCE = 2
"""Parts whose numbers are loaded together, those of all consumers of each."""


class Parts(NamedTuple):
    """Unfinished attention: for each consumer of each item the rows of all KV heads, one head after the other.

    Row ``(item * consumers + consumer) * rows_of_part + head * copied_rows + r`` is that of query head r of the group;
    behind the last part are 64 rows of nothing, for blocks that end within. Over latents consumers share their sums:
    there is one for an item, and blocks of query heads stand for KV heads.

    Attributes:
        mixed: `f32[rows, Dv]`: values, weighted; anything for items that aren't there.
        tops: `f32[rows]`: the largest score; the lowest number where nothing was read.
        totals: the same: the sum of the weights.
    """

    mixed: jax.Array
    tops: jax.Array
    totals: jax.Array


def combine(
    parts: Parts,
    begins: jax.Array,  # i32[S]
    counts: jax.Array,  # i32[S]
    sinks: jax.Array | None,  # f32[H, rows]
    *,
    geometry: Geometry | LatentGeometry,
    options: AnyOptions,
    interpret: Interpret = None,
) -> jax.Array:
    """The parts of each sequence put together: `[S, Hq, Dv]` of the geometry's dtype (ATT-1, ATT-3, ATT-6).

    Each part is read once. Sums depend on no order in which threads get there, and NaN stays in its own sequence.

    Args:
        parts: what `decode_parts` gave for the items of a `Decoding`.
        begins: `i32[S]`, those of the `Decoding`.
        counts: `i32[S]`, those of the `Decoding`.
        sinks: `f32[H, rows]`, as `sink_rows` makes them, or None.
        geometry: the shapes.
        options: the options.
        interpret: None, or the parameters of the interpreter.

    Returns:
        Anything for sequences with no part.
    """
    count, heads, v_dim, consumers = counts.shape[0], geometry.heads, geometry.v_dim, geometry.parts_of_item
    part_rows = geometry.part_rows
    blocks = -(-part_rows // ROWS)
    many = count * blocks * v_dim > MULTIPROCESSORS // 2 * _COLUMNS
    columns = _COLUMNS if many and v_dim % _COLUMNS == 0 else _COLUMNS // 2
    unit = exponent_unit(options)
    group = Warpgroup(interpret is not None, itemsize_of(geometry.dtype), swizzle=WIDEST_SWIZZLE)
    inputs = [begins, counts, *parts]
    if sinks is not None:
        inputs.append(jnp.pad(sinks.reshape(-1), (0, blocks * ROWS - part_rows)))

    def body(*refs: Any, through: Any) -> None:
        first_of, count_of, mixed, tops, totals, *sink_scores, out = refs
        sequence, block, chunk = (jax.lax.axis_index(name) for name in ("sequence", "rows", "columns"))
        num_parts = count_of[sequence]
        there = pl.ds(chunk * columns, columns)

        def loaded(number: jax.Array, consumer: int) -> Sums:
            """A part's rows; those of the last part once more behind it, with no weight."""
            exists = number < num_parts
            place = jnp.minimum(number, num_parts - 1)
            item = jnp.where(place == 0, sequence, first_of[sequence] + place - 1)
            rows = pl.ds((item * consumers + consumer) * part_rows + block * ROWS, ROWS)
            top, total = (group.rows(ref.at[rows]) for ref in (tops, totals))
            part = group.rows(mixed.at[rows, there])
            return Sums(
                jnp.where(exists, part, jnp.zeros_like(part)),
                jnp.where(exists, top, jnp.full_like(top, LOWEST)),
                jnp.where(exists, total, jnp.zeros_like(total)),
            )

        def step(turn: jax.Array, sums: Sums) -> Sums:
            more = [loaded(turn * _AT_ONCE + i, consumer) for i in range(_AT_ONCE) for consumer in range(consumers)]
            top = sums.top
            for part in more:
                top = jnp.maximum(top, part.top)
            into, total = jnp.zeros_like(sums.mixed), jnp.zeros_like(sums.total)
            for part in (sums, *more):
                weight = jnp.exp2((part.top - top) * unit)
                into += part.mixed * by_row(weight, part.mixed.shape)
                total += part.total * weight
            return Sums(into, top, total)

        @pl.when(num_parts > 0)
        def _exists() -> None:
            top, total = group.full((ROWS,), LOWEST), group.full((ROWS,), 0.0)
            for sink_ref in sink_scores:
                sink = group.rows(sink_ref.at[pl.ds(block * ROWS, ROWS)])
                top = jnp.maximum(sink, LOWEST)
                total = jnp.exp2((sink - top) * unit)
            begin = Sums(group.full((ROWS, columns), 0.0), top, total)
            turns = jax.lax.div(num_parts + (_AT_ONCE - 1), jnp.int32(_AT_ONCE))
            sums = Sums(*jax.lax.fori_loop(0, turns, lambda turn, sums: step(turn, Sums(*sums)), begin))
            share = options.value_scale / jnp.where(sums.total == 0.0, 1.0, sums.total)
            through[...] = (sums.mixed * by_row(share, sums.mixed.shape)).astype(geometry.dtype)
            commit()
            plgpu.copy_smem_to_gmem(through, out.at[pl.ds((sequence * blocks + block) * ROWS, ROWS), there])
            plgpu.wait_smem_to_gmem(0)

    swizzle = swizzle_of(columns, itemsize_of(geometry.dtype))
    done: jax.Array = launch(
        body,
        {"through": memory((ROWS, columns), jnp.dtype(geometry.dtype), swizzle, interpret is not None)},
        kernel_output((count * blocks * ROWS, v_dim), geometry.dtype),
        {"sequence": count, "rows": blocks, "columns": v_dim // columns},
        *inputs,
        name="paged_combine",
        interpret=interpret,
        warpgroups=1,
    )
    done = done.reshape(count, blocks * ROWS, v_dim)[:, :part_rows]
    done = done.reshape(count, heads, geometry.copied_rows, v_dim)[:, :, : geometry.group]
    return done.reshape(count, heads * geometry.group, v_dim)
