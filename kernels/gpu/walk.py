"""The kernel: one producer warpgroup that copies pages, two consumers that multiply. Attention of one item and KV head.

Memory    The producer copies tiles of keys and of values into a ring of stages in shared memory, page by page, and
          waits only for a slot to be free again. Keys and values of a slot have barriers of their own, so that keys can
          be multiplied while their values are still on their way.
Rows      All heads of a group share a KV head: their queries are rows of one tile, query by query. A consumer has 64.
Softmax   Online, in powers of two, in the units of `score_units`; rows that have read nothing keep the lowest number
          as their maximum and zero as their sum.
Dead keys Scores outside of a row's range become -inf after the product. Values outside of the item's range are zeroed
          in shared memory before it, in the tiles at either end: zero times NaN would be NaN (ATT-3). Pages outside
          of the range are not copied: the nearest one within is, once more, so that the page table is never read
          beyond what it promises. Pages that don't exist are not read either; where a range has such holes, scores and
          values of theirs are treated like those outside.
Scales    Where every slot and head has one, scales are copied with the keys. Scores of a key are multiplied by the
          key's, weights by the value's before they are rounded: the tensor cores see stored numbers. The scales of dead
          values become zero, for the same reason as these.
Two ways  Where few rows read many keys (decode) the consumers take turns with the tiles, and each leaves an
          unfinished sum. Else each takes all tiles, for rows of its own, and finishes; they take turns with the tensor
          cores then, half a tile apart: one's softmax runs under the other's products.

A copy's coordinates are a page, a slot in it and a column, each below 2^31 on its own; the address that they make is
computed by the copy engine in 64 bits, so a pool may be larger than 2^31 bytes.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from ..score_units import exponent_unit, scores_of
from .dead_keys import clean, converted, masked, turn_scales
from .geometry import CONSUMERS, ROWS, Geometry
from .item import Item
from .products import by_column, by_row, settled
from .schedule import Field

__all__ = [
    "CONSUMED",
    "LOWEST",
    "THREAD",
    "Sums",
    "attend_item",
    "bounds",
    "exact_tanh",
    "fixed_zero",
    "folded",
    "in_roles",
]

THREAD = "warpgroup"
"""The name of the axis along which the warpgroups of a block differ."""

LOWEST = -3.0e38
"""A maximum that no score is below: differences from it are finite or -inf, never NaN."""

_CONSUMER_REGISTERS = 232
"""Registers of a thread that multiplies. With those of the producer they are nearly all that a multiprocessor has."""

_PRODUCER_REGISTERS = 40

_KEPT_HEAD_DIM = 128
"""Head size up to which addresses are kept from tile to tile."""

_UNROLLED = 8
"""Copies of a tile of keys, and of its scales, that are written out one by one; more make a loop."""


CONSUMED = (
    Field.FIRST_TILE,
    Field.END_TILE,
    Field.LOW,
    Field.HIGH,
    Field.WHOLE_LOW,
    Field.WHOLE_HIGH,
    Field.HOLES,
)
"""What a consumer asks of every tile."""


class Sums(NamedTuple):
    """What a consumer carries from tile to tile.

    Attributes:
        mixed: `f32[64, Dv]`: the values, weighted.
        top: `f32[64]`: the largest score yet.
        total: `f32[64]`: the sum of the weights.
    """

    mixed: jax.Array
    top: jax.Array
    total: jax.Array


def attend_item(item: Item[Geometry], wg: jax.Array, finish: Any) -> None:
    """The whole of an item, by the role of the warpgroup: O(tiles) copies and products.

    Args:
        item: the item.
        wg: `i32[]`: which warpgroup this is: a consumer, or the producer, the last.
        finish: what a consumer does with its `Sums` in the end; called with the consumer's number and them.
    """
    in_roles(item, wg, _produce, lambda own: finish(wg, _consume(own, wg)))


def in_roles(item: Item[Any], wg: jax.Array, produce: Any, consume: Any) -> None:
    """Has the warpgroups of a block do what they are there for, if the item exists.

    Args:
        item: the item.
        wg: `i32[]`: which warpgroup this is: a consumer, or the producer, the last.
        produce: what the producer does with the item.
        consume: what a consumer does with it.
    """

    @pl.when(item.field(Field.SEQUENCE) >= 0)
    def _exists() -> None:
        @pl.when(wg == CONSUMERS)
        def _producer() -> None:
            plgpu.set_max_registers(_PRODUCER_REGISTERS, action="decrease")
            produce(item.knowing(Field.SEQUENCE, Field.FIRST_TILE, Field.END_TILE, Field.FIRST_PAGE, Field.LAST_PAGE))

        @pl.when(wg < CONSUMERS)
        def _consumer() -> None:
            plgpu.set_max_registers(_CONSUMER_REGISTERS, action="increase")
            consume(item.knowing(*CONSUMED))


def _produce(item: Item[Geometry]) -> None:
    """Copies the item's queries and tiles."""
    geometry, scratch, inputs = item.geometry, item.scratch, item.inputs
    layout, tiles, stages = geometry.layout, geometry.tiles, geometry.stages
    rows = geometry.copied_rows
    for block in range(geometry.block_rows // ROWS):
        start = item.field(Field.TOKEN) * geometry.group + block * ROWS
        plgpu.copy_gmem_to_smem(
            inputs.queries.at[item.head, pl.ds(start, rows)],
            scratch.queries.at[block, pl.ds(0, rows)],
            scratch.queries_here.at[block],
        )
    width = layout.storage_head_dim
    key_column = item.head * (layout.rows_per_head * width)
    value_column = key_column + (layout.head_dim if layout.shares_rows else width) - geometry.value_offset
    first, end = item.field(Field.FIRST_TILE), item.field(Field.END_TILE)

    keys = _Copied(inputs.pages, key_column, scratch.keys, scratch.keys_here)
    values = _Copied(inputs.pages, value_column, scratch.values, scratch.values_here)
    with_keys = [keys]
    if (of := geometry.scale_rows) is not None:
        column = 2 * item.head // of.columns * of.columns
        with_keys.append(_Copied(inputs.scales, column, scratch.scales, scratch.keys_here, of.slots))

    def copy(what: _Copied, page: jax.Array, tile: jax.Array, piece: Any, slot: jax.Array) -> None:
        rows = tiles.rows // what.slots
        begin = jax.lax.div(item.offset(tile, piece), jnp.int32(what.slots))
        plgpu.copy_gmem_to_smem(
            what.source.at[page, pl.ds(begin, rows), pl.ds(what.column, what.into.shape[-1])],
            what.into.at[slot, pl.ds(piece * rows, rows)],
            what.here.at[slot],
        )

    def step(turn: jax.Array, carry: None) -> None:
        tile = first + turn
        slot = jax.lax.rem(turn, jnp.int32(stages))
        few = tiles.pieces * len(with_keys) <= _UNROLLED
        # Read before the wait: the ids are on their way while the slot is still in use.
        pages = [jnp.maximum(item.page(tile, piece), 0) for piece in range(tiles.pieces)] if few else []
        for done, together in ((scratch.keys_done, with_keys), (scratch.values_done, [values])):

            @pl.when(turn >= stages)
            def _free(done: Any = done) -> None:
                plgpu.barrier_wait(done.at[slot])

            for piece, page in enumerate(pages):
                for what in together:
                    copy(what, page, tile, piece, slot)

            if not few:

                @pl.loop(0, tiles.pieces + fixed_zero(tile))
                def _each(piece: jax.Array, together: Any = together) -> None:
                    page = jnp.maximum(item.page(tile, piece), 0)
                    for what in together:
                        copy(what, page, tile, piece, slot)

        return carry

    jax.lax.fori_loop(0, end - first, step, None)


class _Copied(NamedTuple):
    """What a producer copies of every tile.

    Attributes:
        source: `[P, page / slots, n]`: in the device's memory.
        column: `i32[]`: the first that is copied.
        into: `[stages, keys / slots, columns]`: in shared memory.
        here: a barrier for each stage, which is told.
        slots: slots of a row.
    """

    source: Any
    column: jax.Array
    into: Any
    here: Any
    slots: int = 1


def _consume(item: Item[Geometry], wg: jax.Array) -> Sums:
    """Multiplies the tiles that are this consumer's turn."""
    geometry, scratch, group = item.geometry, item.scratch, item.group
    stages, turns = geometry.stages, CONSUMERS if geometry.splits_keys else 1
    first, end = item.field(Field.FIRST_TILE), item.field(Field.END_TILE)
    block = jnp.int32(0) if geometry.splits_keys else wg
    low, high = bounds(item, pl.ds(wg * ROWS, ROWS))
    plgpu.barrier_wait(scratch.queries_here.at[block])
    unit = exponent_unit(item.options)

    def step(time: jax.Array, sums: Sums) -> Sums:
        turn = time * turns + (wg if geometry.splits_keys else 0)
        tile = first + turn
        slot = jax.lax.rem(turn, jnp.int32(stages))
        again = turn + stages < end - first

        def release(done: Any) -> None:
            @pl.when(again)
            def _() -> None:
                plgpu.barrier_arrive(done.at[slot])

        plgpu.barrier_wait(scratch.keys_here.at[slot])
        keys = scratch.keys.at[slot]
        scales = None
        if geometry.scale_rows is not None:
            scales = scratch.tile_scales.at[_of_tile(item, wg, tile), :, pl.ds(0, geometry.tiles.keys)]
            column = jax.lax.rem(2 * item.head, jnp.int32(geometry.scale_rows.columns))
            turn_scales(item, scratch.scales.at[slot], _of_tile(item, column, tile), scales, tile)
        if geometry.staged:
            keys = converted(item, scratch.keys, slot, scratch.key_tile, _of_tile(item, wg, tile))
            release(scratch.keys_done)
        scores = group.scores((scratch.queries.at[_of_tile(item, block, tile)], keys), then=partial(_pass_on, item))
        if not geometry.staged:
            release(scratch.keys_done)
        if scales is not None:
            scores = scores * by_column(group.columns(scales.at[0]), scores.shape)
        scores = masked(item, scores_of(scores, item.options, exact_tanh), tile, low, high)
        value_scales = None if scales is None else partial(group.columns, scales.at[1])
        (mixed, top, total), shares = folded(sums, scores, unit, geometry.value_dtype, value_scales)
        if scratch.order is not None:
            plgpu.barrier_arrive(scratch.order)
        plgpu.barrier_wait(scratch.values_here.at[slot])
        values = scratch.values.at[slot]
        if geometry.staged:
            room = scratch.key_tile if geometry.values_replace_keys else scratch.value_tile
            values = converted(item, scratch.values, slot, room, _of_tile(item, wg, tile), tile)
            release(scratch.values_done)
        else:
            clean(item, slot, tile, wg)
        if scratch.order is not None:
            # Behind the cleaning, at which consumers wait for each other as well.
            plgpu.barrier_wait(scratch.order)
        mixed = group.mix(mixed, shares, values)
        if not geometry.staged:
            release(scratch.values_done)
        return Sums(mixed, top, total)

    begin = Sums(
        group.full((ROWS, geometry.layout.v_head_dim), 0.0), group.full((ROWS,), LOWEST), group.full((ROWS,), 0.0)
    )
    count = end - first
    if geometry.splits_keys:
        count = jax.lax.div(count + (CONSUMERS - 1) - wg, jnp.int32(CONSUMERS))
    pl.when(wg == 1)(partial(_pass_on, item))
    sums = Sums(*jax.lax.fori_loop(0, count, lambda time, sums: step(time, Sums(*sums)), begin))
    pl.when(wg == 0)(partial(_pass_on, item))
    return sums


def _pass_on(item: Item[Geometry]) -> None:
    """Lets the other consumer have the tensor cores, and waits until it does."""
    if item.scratch.order is not None:
        plgpu.barrier_arrive(item.scratch.order)
        plgpu.barrier_wait(item.scratch.order)


def folded(
    sums: Sums,
    scores: jax.Array,
    unit: float,
    dtype: Any,
    scales: Callable[[], jax.Array] | None = None,
) -> tuple[Sums, jax.Array]:
    """The sums as they are with a further tile's scores, but for its values, and its weights.

    Args:
        sums: up to here.
        scores: `f32[64, keys]`, masked.
        unit: of `exponent_unit`.
        dtype: of the weights.
        scales: reads those of the values, `f32[keys]`, by which the weights are multiplied; None: by nothing.
    """
    top = jnp.maximum(sums.top, jnp.max(scores, axis=1))
    fade = jnp.exp2((sums.top - top) * unit)
    weights = jnp.exp2((scores - by_row(top, scores.shape)) * unit)
    total = sums.total * fade + jnp.sum(weights, axis=1)
    mixed = sums.mixed * by_row(fade, sums.mixed.shape)
    if scales is not None:
        weights = weights * by_column(scales(), weights.shape)
    # Done before what follows: from here on the weights take half of the registers.
    mixed, top, total, shares = settled((mixed, top, total, weights.astype(dtype)))
    return Sums(mixed, top, total), shares


def _of_tile(item: Item[Geometry], place: jax.Array, tile: jax.Array) -> jax.Array:
    """Where something stands that all tiles have in common; of large heads as if it changed from tile to tile.

    The tensor cores are given an address for each 16 numbers of a head. The compiler computes those that stay once,
    before all tiles; of large heads they take so much room that others are spilled.
    """
    return place + fixed_zero(tile) if item.geometry.layout.head_dim > _KEPT_HEAD_DIM else place


def fixed_zero(tile: jax.Array) -> jax.Array:
    """Zero, as no tile is below it, but the compiler can't know: it neither unrolls nor hoists what hangs on this."""
    return jax.lax.shift_right_arithmetic(tile, jnp.int32(31))


def exact_tanh(numbers: jax.Array) -> jax.Array:
    """The hyperbolic tangent to 2^-22: that of the hardware has 11 bits, a soft cap multiplies its error."""
    power = jnp.exp2(numbers * (2 * 1.4426950408889634))
    return 1.0 - 2.0 / (power + 1.0)


def bounds(item: Item[Any], rows: Any) -> tuple[jax.Array, jax.Array]:
    """The keys that some rows of an item read, `i32[64]` each, or `i32[]` for all rows alike."""
    if item.inputs.first is None:
        return item.field(Field.LOW), item.field(Field.HIGH)
    first, end = (item.group.rows(ref.at[item.index, rows]) for ref in (item.inputs.first, item.inputs.end))
    return first, end
