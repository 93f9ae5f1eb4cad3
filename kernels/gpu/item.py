"""What one warpgroup of a block works on: its item, and the memories that it shares with the others."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from ..options import AnyOptions
from .geometry import Geometry, LatentGeometry
from .products import Warpgroup
from .schedule import Field

__all__ = ["Inputs", "Item", "Scratch"]


Shapes = TypeVar("Shapes", Geometry, LatentGeometry)


class Inputs(NamedTuple):
    """What a kernel reads, in the device's memory.

    Attributes:
        items: `i32[len(Field), N]`.
        table: `i32[S, pages_per_seq]`.
        queries: `[H, rows, D]`: token by token the heads of a group, each sequence from a multiple of eight rows on,
            and behind the last a block more. Over latents `[rows, R]`: token by token all heads, block by block.
        pages: `[P, page, C * Dp]`, of latents `[P, page, width]`.
        first: `i32[N, rows]`: the first key of each row; None: that of the item for all.
        end: `i32[N, rows]`, or None.
        sinks: `f32[H, rows]`, as scores, or None.
        rotary_queries: `[rows, Dr]`, as the queries are; None but over latents.
        scales: `f32[P, page / slots, slots * 2H]`, for slots as `ScaleRows` has them; None where there are none.
    """

    items: Any
    table: Any
    queries: Any
    pages: Any
    first: Any = None
    end: Any = None
    sinks: Any = None
    rotary_queries: Any = None
    scales: Any = None


class Scratch(NamedTuple):
    """What a kernel has of its own, in shared memory.

    Over latents the keys are their rotary parts, and the values, which are keys as well, the latents in two halves of
    their columns, `[stages, 2, keys, R / 2]`, as are the queries, `[2, 64, R / 2]`; barriers are for both together.

    Attributes:
        queries: `[blocks of 64 rows, 64, D]`.
        keys: `kv_dtype[stages, keys, D]`, or wider where whole rows are copied.
        values: `kv_dtype[stages, keys, Dv]`, in the same stages.
        key_tile: `[consumers, keys, D]`, converted; None where nothing is.
        value_tile: `[consumers, keys, Dv]`, converted; None where nothing is, or where they take the keys' place.
        output: where finished outputs wait for their copy, `[consumers, 64, Dv]`, None where they take the queries'
            place; or parts of unfinished sums, `f32[consumers, 64, columns]`.
        tops: `f32[consumers, 64]`; None where sums are finished.
        totals: the same.
        queries_here: a barrier for each block of queries.
        keys_here: a barrier for each stage: its copies have arrived.
        values_here: the same.
        keys_done: a barrier for each stage: its consumers have read it.
        values_done: the same.
        cleaned: a barrier between the consumers; None where they share no tiles.
        rotary_queries: `[64, Dr]`; None but over latents.
        order: a barrier between the consumers, who take turns with the tensor cores; None where they share no tiles.
        scales: `f32[stages, keys / slots, slots * columns]`, in the stages of the keys, as `ScaleRows` has them; None
            where there are none.
        tile_scales: `f32[consumers, 2, keys + TURNED_GAP]`: of the tile at work, the head's scales of keys and those of
            values.
    """

    queries: Any
    keys: Any
    values: Any
    queries_here: Any
    keys_here: Any
    keys_done: Any
    values_here: Any = None
    values_done: Any = None
    key_tile: Any = None
    value_tile: Any = None
    output: Any = None
    tops: Any = None
    totals: Any = None
    cleaned: Any = None
    rotary_queries: Any = None
    order: Any = None
    scales: Any = None
    tile_scales: Any = None


@dataclass(frozen=True)
class Item(Generic[Shapes]):
    """One item and KV head, or block of query heads over latents, in one warpgroup of its block.

    Attributes:
        geometry: the shapes.
        options: the options.
        inputs: what is read.
        scratch: what is the block's own.
        group: the operations of this warpgroup.
        index: `i32[]`: which item.
        head: `i32[]`: which KV head.
        known: fields that have been read, and stay in registers.
    """

    geometry: Shapes
    options: AnyOptions
    inputs: Inputs
    scratch: Scratch
    group: Warpgroup
    index: jax.Array
    head: jax.Array
    known: Mapping[Field, jax.Array] = dataclasses.field(default_factory=dict)

    def knowing(self, *fields: Field) -> "Item[Shapes]":
        """The same item, some of its fields read once and for all."""
        return dataclasses.replace(self, known={field: self.field(field) for field in fields})

    def field(self, field: Field) -> jax.Array:
        """One number of the item, `i32[]`."""
        if field in self.known:
            return self.known[field]
        number: jax.Array = self.inputs.items[int(field), self.index]
        return number

    def page(self, tile: jax.Array, piece: jax.Array | int) -> jax.Array:
        """The id of the page that a piece of a tile is copied from, `i32[]`: -1 if it doesn't exist."""
        place = jax.lax.div(self._copy(tile, piece), jnp.int32(self.geometry.tiles.per_page))
        place = jnp.clip(place, self.field(Field.FIRST_PAGE), self.field(Field.LAST_PAGE))
        page: jax.Array = self.inputs.table[self.field(Field.SEQUENCE), place]
        return page

    def offset(self, tile: jax.Array, piece: jax.Array | int) -> jax.Array:
        """The slot of its page at which a piece of a tile begins, `i32[]`."""
        tiles = self.geometry.tiles
        return jax.lax.rem(self._copy(tile, piece), jnp.int32(tiles.per_page)) * tiles.rows

    def _copy(self, tile: jax.Array, piece: jax.Array | int) -> jax.Array:
        """The number of a piece among all of its sequence, `i32[]`."""
        return tile * self.geometry.tiles.pieces + piece
