"""The kernel: one producer warpgroup that copies pages, two consumers that multiply. Attention of one item and KV head.

Memory    The producer copies tiles of keys and of values into a ring of stages in shared memory, page by page, and
          waits only for a slot to be free again. Keys and values of a slot have barriers of their own, so that keys can
          be multiplied while their values are still on their way.
Rows      All heads of a group share a KV head: their queries are rows of one tile, query by query. A consumer has 64.
Softmax   Online, in powers of two, in the units of `score_units`; rows that have read nothing keep the lowest number
          as their maximum and zero as their sum.
Dead keys Scores outside of a row's range become -inf after the product. Values outside of the item's range are zeroed
          in shared memory before it, in the tiles at either end: zero times NaN would be NaN (ATT-3). Pages outside
          of the range are not copied: the nearest one within is, once more, so that the page table is never read beyond
          what it promises. Pages that don't exist are not read either; where a range has such holes, scores and values of
          theirs are treated like those outside.
Two ways  Where few rows read many keys (decode) the consumers take turns with the tiles, and each leaves an
          unfinished sum. Else each takes all tiles, for rows of its own, and finishes.

A copy's coordinates are a page, a slot in it and a column, each below 2^31 on its own; the address that they make is
computed by the copy engine in 64 bits, so a pool may be larger than 2^31 bytes.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from ..options import AttentionOptions
from ..score_units import exponent_unit, scores_of
from .geometry import CONSUMERS, ROWS, Geometry
from .products import Warpgroup, by_row
from .schedule import Field

__all__ = ["LOWEST", "THREAD", "Inputs", "Scratch", "attend_item"]

THREAD = "warpgroup"
"""The name of the axis along which the warpgroups of a block differ."""

LOWEST = -3.0e38
"""A maximum that no score is below: differences from it are finite or -inf, never NaN."""

_UNROLLED = 16
"""Copies of a tile that are written out one by one; more make a loop."""


class Inputs(NamedTuple):
    """What a kernel reads, in the device's memory.

    Attributes:
        items: `i32[len(Field), N]`.
        table: `i32[S, pages_per_seq]`.
        queries: `[H, rows, D]`: token by token the heads of a group, each sequence from a multiple of eight rows on,
            and behind the last a block more.
        pages: `[P, page, C * Dp]`.
        first: `i32[N, rows]`: the first key of each row; None: that of the item for all.
        end: `i32[N, rows]`; None likewise.
        sinks: `f32[H, rows]`, as scores, or None.
    """

    items: Any
    table: Any
    queries: Any
    pages: Any
    first: Any = None
    end: Any = None
    sinks: Any = None


class Scratch(NamedTuple):
    """What a kernel has of its own, in shared memory.

    Attributes:
        queries: `[blocks of 64 rows, 64, D]`.
        keys: `kv_dtype[stages, keys, D]`.
        values: `kv_dtype[stages, keys, Dv]`.
        key_tile: `[consumers, keys, D]`, converted; None where nothing is.
        value_tile: `[consumers, keys, Dv]`, converted, or None.
        output: where finished outputs wait for their copy, `[consumers, 64, Dv]`; or parts of unfinished sums,
            `f32[consumers, 64, columns]`.
        tops: `f32[consumers, 64]`; None where sums are finished.
        totals: the same.
        queries_here: a barrier for each block of queries.
        keys_here: a barrier for each stage: its copies have arrived.
        values_here: the same.
        keys_done: a barrier for each stage: its consumers have read it.
        values_done: the same.
        cleaned: a barrier between the consumers; None where they share no tiles.
    """

    queries: Any
    keys: Any
    values: Any
    queries_here: Any
    keys_here: Any
    values_here: Any
    keys_done: Any
    values_done: Any
    key_tile: Any = None
    value_tile: Any = None
    output: Any = None
    tops: Any = None
    totals: Any = None
    cleaned: Any = None


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


@dataclass(frozen=True)
class Item:
    """One item and KV head, in one warpgroup of its block.

    Attributes:
        geometry: the shapes.
        options: the options.
        inputs: what is read.
        scratch: what is the block's own.
        group: the operations of this warpgroup.
        index: `i32[]`: which item.
        head: `i32[]`: which KV head.
    """

    geometry: Geometry
    options: AttentionOptions
    inputs: Inputs
    scratch: Scratch
    group: Warpgroup
    index: jax.Array
    head: jax.Array

    def field(self, field: Field) -> jax.Array:
        """One number of the item, `i32[]`."""
        number: jax.Array = self.inputs.items[int(field), self.index]
        return number

    def page(self, tile: jax.Array, piece: jax.Array | int) -> jax.Array:
        """The id of the page that a piece of a tile is copied from, `i32[]`: -1 if it doesn't exist."""
        tiles = self.geometry.tiles
        place = jax.lax.div(tile, jnp.int32(tiles.per_page)) if tiles.pieces == 1 else tile * tiles.pieces + piece
        place = jnp.clip(place, self.field(Field.FIRST_PAGE), self.field(Field.LAST_PAGE))
        page: jax.Array = self.inputs.table[self.field(Field.SEQUENCE), place]
        return page


def attend_item(item: Item, wg: jax.Array, finish: Any) -> None:
    """The whole of an item, by the role of the warpgroup: O(tiles) copies and products.

    Args:
        item: the item.
        wg: `i32[]`: which warpgroup this is: a consumer, or the producer, the last.
        finish: what a consumer does with its `Sums` in the end; called with the consumer's number and them.
    """

    @pl.when(item.field(Field.SEQUENCE) >= 0)
    def _exists() -> None:
        @pl.when(wg == CONSUMERS)
        def _producer() -> None:
            plgpu.set_max_registers(40, action="decrease")
            _produce(item)

        @pl.when(wg < CONSUMERS)
        def _consumer() -> None:
            plgpu.set_max_registers(232, action="increase")
            finish(wg, _consume(item, wg))


def _produce(item: Item) -> None:
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
    value_column = key_column + (layout.head_dim if layout.shares_rows else width)
    first, end = item.field(Field.FIRST_TILE), item.field(Field.END_TILE)

    def copy(page: jax.Array, tile: jax.Array, piece: Any, slot: jax.Array, into: Any, here: Any, column: Any) -> None:
        offset = jax.lax.rem(tile, jnp.int32(tiles.per_page)) * tiles.rows
        plgpu.copy_gmem_to_smem(
            inputs.pages.at[page, pl.ds(offset, tiles.rows), pl.ds(column, into.shape[-1])],
            into.at[slot, pl.ds(piece * tiles.rows, tiles.rows)],
            here.at[slot],
        )

    def step(turn: jax.Array, carry: None) -> None:
        tile = first + turn
        slot = jax.lax.rem(turn, jnp.int32(stages))
        few = tiles.pieces <= _UNROLLED
        # Read before the wait: the ids are on their way while the slot is still in use.
        pages = [jnp.maximum(item.page(tile, piece), 0) for piece in range(tiles.pieces)] if few else []
        for into, here, done, column in (
            (scratch.keys, scratch.keys_here, scratch.keys_done, key_column),
            (scratch.values, scratch.values_here, scratch.values_done, value_column),
        ):

            @pl.when(turn >= stages)
            def _free(done: Any = done) -> None:
                plgpu.barrier_wait(done.at[slot])

            for piece, page in enumerate(pages):
                copy(page, tile, piece, slot, into, here, column)

            if not few:

                @pl.loop(0, tiles.pieces)
                def _each(piece: jax.Array, into: Any = into, here: Any = here, column: Any = column) -> None:
                    copy(jnp.maximum(item.page(tile, piece), 0), tile, piece, slot, into, here, column)

        return carry

    jax.lax.fori_loop(0, end - first, step, None)


def _consume(item: Item, wg: jax.Array) -> Sums:
    """Multiplies the tiles that are this consumer's turn."""
    geometry, scratch, group = item.geometry, item.scratch, item.group
    stages, turns = geometry.stages, CONSUMERS if geometry.splits_keys else 1
    first, end = item.field(Field.FIRST_TILE), item.field(Field.END_TILE)
    block = jnp.int32(0) if geometry.splits_keys else wg
    low, high = _bounds(item, wg)
    queries = scratch.queries.at[block]
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
        if geometry.staged:
            keys = _converted(item, keys, scratch.key_tile.at[wg])
            release(scratch.keys_done)
        scores = group.scores(queries, keys)
        if not geometry.staged:
            release(scratch.keys_done)
        scores = _masked(item, scores_of(scores, item.options, _tanh), tile, low, high)
        top = jnp.maximum(sums.top, jnp.max(scores, axis=1))
        fade = jnp.exp2((sums.top - top) * unit)
        weights = jnp.exp2((scores - by_row(top, scores.shape)) * unit)
        total = sums.total * fade + jnp.sum(weights, axis=1)
        mixed = sums.mixed * by_row(fade, sums.mixed.shape)
        plgpu.barrier_wait(scratch.values_here.at[slot])
        values = scratch.values.at[slot]
        if geometry.staged:
            values = _converted(item, values, scratch.value_tile.at[wg], tile)
            release(scratch.values_done)
        else:
            _clean(item, slot, tile, wg)
        mixed = group.mix(mixed, weights.astype(geometry.dtype), values)
        if not geometry.staged:
            release(scratch.values_done)
        return Sums(mixed, top, total)

    begin = Sums(
        group.full((ROWS, geometry.layout.v_head_dim), 0.0), group.full((ROWS,), LOWEST), group.full((ROWS,), 0.0)
    )
    count = end - first
    if geometry.splits_keys:
        count = jax.lax.div(count + (CONSUMERS - 1) - wg, jnp.int32(CONSUMERS))
    return Sums(*jax.lax.fori_loop(0, count, lambda time, sums: step(time, Sums(*sums)), begin))


def _tanh(numbers: jax.Array) -> jax.Array:
    """The hyperbolic tangent to 2^-22: that of the hardware has 11 bits, a soft cap multiplies its error."""
    power = jnp.exp2(numbers * (2 * 1.4426950408889634))
    return 1.0 - 2.0 / (power + 1.0)


def _bounds(item: Item, wg: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The keys that the rows of a consumer read, `i32[64]` each, or `i32[]` for all rows alike."""
    if item.inputs.first is None:
        return item.field(Field.LOW), item.field(Field.HIGH)
    rows = pl.ds(wg * ROWS, ROWS)
    first, end = (item.group.rows(ref.at[item.index, rows]) for ref in (item.inputs.first, item.inputs.end))
    return first, end


def _masked(item: Item, scores: jax.Array, tile: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
    """The scores, -inf where a row doesn't read."""
    tiles, group = item.geometry.tiles, item.group
    start = tile * tiles.live

    def mask(scores: jax.Array, holes: bool) -> jax.Array:
        column = group.index(scores.shape, 1)
        key = column + start
        lower, upper = (by_row(bound, scores.shape) if bound.shape else bound for bound in (low, high))
        readable = (key >= lower) & (key < upper)
        if not tiles.full:
            readable = readable & (column < tiles.live)
        if holes:
            readable = readable & ~_missing(item, column, tile)
        return jnp.where(readable, scores, -jnp.inf)

    ragged = (start < item.field(Field.WHOLE_LOW)) | (start + tiles.live > item.field(Field.WHOLE_HIGH))
    kind = jnp.where(item.field(Field.HOLES) > 0, 2, ragged.astype(jnp.int32) if tiles.full else 1)
    masked: jax.Array = jax.lax.switch(
        kind, [lambda scores: scores, partial(mask, holes=False), partial(mask, holes=True)], scores
    )
    return masked


def _missing(item: Item, index: jax.Array, tile: jax.Array) -> jax.Array:
    """Which keys of a tile, by their place in it, stand on pages that don't exist: bool, of the index' shape."""
    tiles = item.geometry.tiles
    piece = jax.lax.div(index, jnp.int32(tiles.rows))

    def absent(number: Any, count: jax.Array) -> jax.Array:
        gone = (item.page(tile, number) < 0).astype(jnp.int32)
        return count + jnp.where(piece == number, gone, 0)

    return jax.lax.fori_loop(0, tiles.pieces, absent, index * 0) > 0


def _clean(item: Item, slot: jax.Array, tile: jax.Array, wg: jax.Array) -> None:
    """Zeroes the values of a tile that no row of the item reads, in place; consumers that share it do a part each."""
    geometry, group = item.geometry, item.group
    tiles = geometry.tiles
    start = tile * tiles.live
    shares = 1 if geometry.splits_keys else CONSUMERS
    rows = tiles.keys // shares

    def clean(holes: bool, share: int) -> None:
        part = item.scratch.values.at[slot, pl.ds(share * rows, rows)]
        numbers = group.tile(part)
        place = group.index(numbers.shape, 0) + share * rows
        part[...] = _alive(item, numbers, place, tile, holes)
        plgpu.commit_smem()

    holes = item.field(Field.HOLES) > 0
    outside = (start < item.field(Field.LOW)) | (start + tiles.live > item.field(Field.HIGH)) | (not tiles.full)

    @pl.when(outside | holes)
    def _() -> None:
        for share in range(shares):
            mine = (wg == share) if shares > 1 else jnp.bool_(True)
            pl.when(mine & holes)(partial(clean, True, share))
            pl.when(mine & ~holes)(partial(clean, False, share))
        if shares > 1:
            plgpu.barrier_arrive(item.scratch.cleaned)
            plgpu.barrier_wait(item.scratch.cleaned)


def _alive(item: Item, numbers: jax.Array, place: jax.Array, tile: jax.Array, holes: bool) -> jax.Array:
    """Values of a tile, zero where no row of the item reads them."""
    tiles = item.geometry.tiles
    key = place + tile * tiles.live
    alive = (key >= item.field(Field.LOW)) & (key < item.field(Field.HIGH))
    if not tiles.full:
        alive = alive & (place < tiles.live)
    if holes:
        alive = alive & ~_missing(item, place, tile)
    return jnp.where(alive, numbers, jnp.zeros_like(numbers))


def _converted(item: Item, stored: Any, into: Any, tile: jax.Array | None = None) -> Any:
    """A tile as it is multiplied, made from one as it is stored; of values (``tile`` given) the dead ones zero."""
    numbers = item.group.converted(stored, item.geometry.dtype)
    if tile is not None:
        place = item.group.index(numbers.shape, 0)
        numbers = jax.lax.cond(
            item.field(Field.HOLES) > 0,
            lambda numbers: _alive(item, numbers, place, tile, True),
            lambda numbers: _alive(item, numbers, place, tile, False),
            numbers,
        )
    into[...] = numbers
    plgpu.commit_smem()
    return into
