"""Decode on a GPU: sequences with one query each, their keys split over blocks of threads, parts put together."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from ..dispatch import kernel_output
from ..options import AttentionOptions
from ..score_units import exponent_unit, sinks_as_scores
from .geometry import CONSUMERS, ROWS, Geometry, itemsize_of
from .item import Inputs, Item, Scratch
from .launch import Interpret, launch
from .products import Warpgroup, commit
from .walk import LOWEST, THREAD, Sums, attend_item

__all__ = ["Parts", "combine", "decode_parts"]


class Parts(NamedTuple):
    """Unfinished attention: a part for each consumer of each item.

    Attributes:
        mixed: `f32[N * H * consumers, rows, Dv]`: values, weighted; anything for items that aren't there.
        tops: `f32[N * H * consumers, 64]`: the largest score; the lowest number where nothing was read.
        totals: the same: the sum of the weights.
    """

    mixed: jax.Array
    tops: jax.Array
    totals: jax.Array


def decode_parts(
    rows: jax.Array,  # [H, rows, D]
    pages: jax.Array,  # [P, page, C * Dp]
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
        table: `i32[S, pages_per_seq]`: -1 for what names no page.
        items: as `decode_items` makes them.
        geometry: the shapes.
        options: the options.
        interpret: None, or the parameters of the interpreter.
    """
    heads = geometry.layout.num_kv_heads
    num_parts = items.shape[1] * heads * CONSUMERS
    out_type = (
        kernel_output((num_parts, geometry.copied_rows, geometry.layout.v_head_dim), jnp.float32),
        kernel_output((num_parts, ROWS), jnp.float32),
        kernel_output((num_parts, ROWS), jnp.float32),
    )
    group = Warpgroup(interpret is not None, itemsize_of(geometry.kv_dtype), geometry.raw_swizzle > 0)

    def body(*refs: Any, **scratch: Any) -> None:
        *given, mixed, tops, totals = refs
        index = jax.lax.axis_index("item")
        head = jax.lax.axis_index("head")
        own = Scratch(**scratch)
        item = Item(geometry, options, Inputs(*given), own, group, index, head)

        def finish(consumer: jax.Array, sums: Sums) -> None:
            part = (index * heads + head) * CONSUMERS + consumer
            own.tops[consumer] = sums.top
            own.totals[consumer] = sums.total
            commit()
            plgpu.copy_smem_to_gmem(own.tops.at[consumer], tops.at[part])
            plgpu.copy_smem_to_gmem(own.totals.at[consumer], totals.at[part])
            _write(sums.mixed, own.output.at[consumer], mixed.at[part], geometry)

        attend_item(item, jax.lax.axis_index(THREAD), finish)

    grid = {"item": items.shape[1], "head": heads}
    parts = launch(body, geometry, out_type, grid, items, table, rows, pages, name="paged_decode", interpret=interpret)
    return Parts(*parts)


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


def combine(
    parts: Parts,
    decoded: jax.Array,  # bool[S]
    owner: jax.Array,  # i32[extras]
    sinks: jax.Array | None,  # f32[Hq]
    *,
    geometry: Geometry,
    options: AttentionOptions,
) -> jax.Array:
    """The parts of each sequence put together: `f32[S, Hq, Dv]`, zeros for those left out.

    O(size of the parts + extras^2 * Hq * Dv): those beyond each sequence's first are added up for each of them, so that
    sums depend on no order in which threads get there, and NaN stays in its own sequence.

    Args:
        parts: what `decode_parts` gave for the items of a `Decoding`.
        decoded: `bool[S]`: which sequences it took.
        owner: `i32[extras]`, that of the `Decoding`.
        sinks: `f32[Hq]` or None.
        geometry: the shapes.
        options: the options.
    """
    count, heads, group = decoded.shape[0], geometry.layout.num_kv_heads, geometry.group
    extras, unit = owner.shape[0], exponent_unit(options)
    row = jnp.minimum(owner, count - 1)
    exists = jnp.concatenate([owner < count, decoded])

    def by_item(numbers: jax.Array, none: float) -> jax.Array:
        numbers = numbers.reshape(extras + count, heads, CONSUMERS, *numbers.shape[1:])[:, :, :, :group]
        return jnp.where(exists.reshape(-1, *[1] * (numbers.ndim - 1)), numbers, jnp.float32(none))

    mixed, tops, totals = by_item(parts.mixed, 0.0), by_item(parts.tops, LOWEST), by_item(parts.totals, 0.0)
    largest = jnp.max(tops, axis=2)
    top = largest[extras:].at[owner].max(largest[:extras], mode="drop")
    if sinks is not None:
        scores = sinks_as_scores(sinks, options).reshape(1, heads, group)
        top = jnp.maximum(top, jnp.maximum(scores, LOWEST))
    weights = jnp.exp2((tops - jnp.concatenate([top[row], top])[:, :, None]) * unit)
    out, total = jnp.sum(mixed * weights[..., None], axis=2), jnp.sum(totals * weights, axis=2)
    same = owner[:, None] == owner[None, :]

    def added(numbers: jax.Array) -> jax.Array:
        if not extras:
            return numbers
        shared = same.reshape(extras, extras, *[1] * (numbers.ndim - 1))
        more = jnp.sum(jnp.where(shared, numbers[None, :extras], jnp.float32(0)), axis=1)
        whole = numbers[extras:]
        return whole.at[owner].set(whole[row] + more, mode="drop")

    out, total = added(out), added(total)
    if sinks is not None:
        total += jnp.exp2((scores - top) * unit)
    out = out * (options.value_scale / jnp.where(total == 0, 1.0, total))[..., None]
    return out.reshape(count, heads * group, -1)
