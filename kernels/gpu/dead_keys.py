"""Keys that nobody reads, in tiles that somebody does: their scores, their values and their scales.

Most tiles have none and pass as they are. Where a tile has some, scores are masked in registers; values and scales are
zeroed on their way through registers, of values 64 rows and some columns at a time: registers are full of sums
meanwhile.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from .geometry import ROWS, Geometry, LatentGeometry
from .item import Item
from .products import Warpgroup, by_column, by_row, commit
from .schedule import Field
from .tiles import Tiles

__all__ = ["clean", "clean_latents", "converted", "masked", "turn_scales"]

_MOST_COLUMNS = 128
"""Columns of a tile of 64 rows that are converted at once: of 16 bits they take 32 registers of a thread."""


def masked(item: Item[Any], scores: jax.Array, tile: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
    """The scores, -inf where a row doesn't read."""
    tiles, group = item.geometry.tiles, item.group
    start = tile * tiles.live

    def mask(scores: jax.Array, holes: bool) -> jax.Array:
        shape = scores.shape
        column = group.column_numbers(shape[1])
        # What no row reads is moved to where no row reads.
        key = column + start
        if not tiles.full:
            key = jnp.where(column < tiles.live, key, -1)
        if holes:
            key = jnp.where(_missing(item, column, tile), -1, key)
        keys = by_column(key, shape)
        lower, upper = (by_row(bound, shape) if bound.shape else bound for bound in (low, high))
        return jnp.where((keys >= lower) & (keys < upper), scores, -jnp.inf)

    ragged = (start < item.field(Field.WHOLE_LOW)) | (start + tiles.live > item.field(Field.WHOLE_HIGH))
    kind = jnp.where(item.field(Field.HOLES) > 0, 2, ragged.astype(jnp.int32) if tiles.full else 1)
    done: jax.Array = jax.lax.switch(
        kind, [lambda scores: scores, partial(mask, holes=False), partial(mask, holes=True)], scores
    )
    return done


def turn_scales(item: Item[Geometry], stored: Any, column: jax.Array, into: Any, tile: jax.Array) -> None:
    """The scales of a head as rows, those of a tile's keys and of its values: zero where no row of the item reads.

    There they pass through one register; as columns of scores they would take 16.

    Args:
        item: the item.
        stored: a stage of `Scratch.scales`.
        column: `i32[]`: where a head's two begin among the scales of a slot.
        into: a ref `[2, keys]`, in shared memory.
        tile: which tile.
    """
    group, keys = item.group, into.shape[1]

    def zero(scales: jax.Array, holes: bool) -> jax.Array:
        alive = _alive(item, group.pair_numbers(keys), tile, holes)
        return jnp.where(alive, scales, jnp.zeros_like(scales))

    kind = jnp.where(item.field(Field.HOLES) > 0, 2, _has_dead(item, tile).astype(jnp.int32))
    scales: jax.Array = jax.lax.switch(
        kind,
        [lambda scales: scales, partial(zero, holes=False), partial(zero, holes=True)],
        group.pairs(stored, column, keys),
    )
    group.store_turned(scales, into)


def _missing(item: Item[Any], index: jax.Array, tile: jax.Array) -> jax.Array:
    """Which keys of a tile, by their place in it, stand on pages that don't exist: bool, of the index' shape."""
    tiles = item.geometry.tiles
    piece = jax.lax.div(index, jnp.int32(tiles.rows))

    def absent(number: Any, count: jax.Array) -> jax.Array:
        gone = (item.page(tile, number) < 0).astype(jnp.int32)
        return count + jnp.where(piece == number, gone, 0)

    count: jax.Array = jax.lax.fori_loop(0, tiles.pieces, absent, index * 0)
    return count > 0


def clean(item: Item[Geometry], slot: jax.Array, tile: jax.Array, wg: jax.Array) -> None:
    """Zeroes the values of a tile that no row of the item reads, in place; consumers that share it do a part each."""
    geometry, group = item.geometry, item.group
    tiles = geometry.tiles
    together = not geometry.splits_keys
    shares = tiles.keys // ROWS if together else 1
    rows = tiles.keys // shares

    def zero(holes: bool, share: int) -> None:
        alive = _alive(item, group.row_numbers(ROWS) + share * rows, tile, holes)
        for columns in _chunks(geometry, geometry.layout.v_head_dim):
            part = item.scratch.values.at[slot, pl.ds(share * rows, rows), columns]
            part[...] = _where_alive(group, alive, group.tile(part))
        commit()

    holes = item.field(Field.HOLES) > 0

    @pl.when(_has_dead(item, tile))
    def _() -> None:
        for share in range(shares):
            mine = wg == (share if together else wg)
            pl.when(mine & holes)(partial(zero, True, share))
            pl.when(mine & ~holes)(partial(zero, False, share))
        if together:
            plgpu.barrier_arrive(item.scratch.cleaned)
            plgpu.barrier_wait(item.scratch.cleaned)


def clean_latents(item: Item[LatentGeometry], slot: jax.Array, tile: jax.Array, wg: jax.Array) -> None:
    """Zeroes the latents of a tile that no row of the item reads, in place: each consumer its half of the columns.

    Before they are multiplied as keys: a consumer reads both halves then.
    """
    geometry, group = item.geometry, item.group

    def zero(holes: bool) -> None:
        alive = _alive(item, group.row_numbers(ROWS), tile, holes)
        for columns in _chunks(geometry, geometry.half):
            part = item.scratch.values.at[slot, wg, :, columns]
            part[...] = _where_alive(group, alive, group.tile(part))
        commit()

    holes = item.field(Field.HOLES) > 0

    @pl.when(_has_dead(item, tile))
    def _() -> None:
        pl.when(holes)(partial(zero, True))
        pl.when(~holes)(partial(zero, False))
        plgpu.barrier_arrive(item.scratch.cleaned)
        plgpu.barrier_wait(item.scratch.cleaned)


def _has_dead(item: Item[Any], tile: jax.Array) -> jax.Array:
    """Whether no row of the item reads some keys of a tile, `bool[]`."""
    tiles: Tiles = item.geometry.tiles
    start = tile * tiles.live
    outside = (start < item.field(Field.LOW)) | (start + tiles.live > item.field(Field.HIGH)) | (not tiles.full)
    return outside | (item.field(Field.HOLES) > 0)


def _alive(item: Item[Any], place: jax.Array, tile: jax.Array, holes: bool) -> jax.Array:
    """Which keys of a tile, by their place in it, a row of the item reads: bool, of the places' shape."""
    tiles: Tiles = item.geometry.tiles
    key = place + tile * tiles.live
    alive = (key >= item.field(Field.LOW)) & (key < item.field(Field.HIGH))
    if not tiles.full:
        alive = alive & (place < tiles.live)
    if holes:
        alive = alive & ~_missing(item, place, tile)
    return alive


def _where_alive(group: Warpgroup, alive: jax.Array, numbers: jax.Array) -> jax.Array:
    """Rows of a tile, zero where they are dead."""
    return jnp.where(group.by_stored_row(alive, numbers.shape), numbers, jnp.zeros_like(numbers))


def converted(
    item: Item[Geometry], stored: Any, slot: jax.Array, into: Any, wg: jax.Array, tile: jax.Array | None = None
) -> Any:
    """A tile as it is multiplied, made from one as it is stored; of values (``tile`` given) the dead ones zero."""
    group, geometry = item.group, item.geometry
    begin, dtype = (0, geometry.dtype) if tile is None else (geometry.value_offset, geometry.value_dtype)

    def convert(dead: bool, holes: bool = False) -> None:
        alive = _alive(item, group.row_numbers(ROWS), tile, holes) if dead and tile is not None else None
        for columns in _parts(geometry, into.shape[-1]):
            there = pl.ds(begin + columns.start, columns.size)
            numbers = group.converted(stored.at[slot, :, there], dtype)
            into.at[wg, :, columns][...] = numbers if alive is None else _where_alive(group, alive, numbers)
        commit()

    if tile is None:
        convert(False)
    else:
        dead, holes = _has_dead(item, tile), item.field(Field.HOLES) > 0
        pl.when(~dead)(partial(convert, False))
        pl.when(dead & holes)(partial(convert, True, True))
        pl.when(dead & ~holes)(partial(convert, True, False))
    return into.at[wg]


def _parts(geometry: Geometry, columns: int) -> list[Any]:
    """The columns of a tile that is converted, as many as pass through registers at once.

    Consumers wait for all of their threads before and after each part.
    """
    size = columns if columns <= _MOST_COLUMNS else geometry.chunk * (_MOST_COLUMNS // geometry.chunk)
    return [pl.ds(begin, min(size, columns - begin)) for begin in range(0, columns, size)]


def _chunks(geometry: Geometry | LatentGeometry, columns: int) -> list[Any]:
    """The columns of a tile, as many as pass through registers at once."""
    return [pl.ds(begin, geometry.chunk) for begin in range(0, columns, geometry.chunk)]
