"""What a kernel is compiled for: tiles, swizzles, stages, and the shared memory that they take."""

from dataclasses import dataclass
from math import gcd
from typing import Any

import jax.numpy as jnp

from ..layout import CacheLayout, round_up
from .tiles import TILE_KEYS, ScaleRows, Tiles, cut, scale_rows

__all__ = [
    *("CONSUMERS", "ROWS", "SMEM_BYTES", "TURNED_GAP", "WIDEST_SWIZZLE", "Geometry", "LatentGeometry", "itemsize_of"),
    "swizzle_of",
]

CONSUMERS = 2
"""Warpgroups that multiply; one more copies."""

ROWS = 64
"""Query rows of a consumer: what one instruction of the tensor cores takes."""

SMEM_BYTES = 222 * 2**10
"""Shared memory that is planned for, of the 227 KiB that a block may have: barriers and reductions take some 4 KiB."""

TURNED_GAP = 16
"""Numbers between the scales of keys and those of values: 32 threads write 16 of each, to 32 banks of memory then.

JAX 0.10 takes an array that is turned for one in its own order, unless there is something between its rows.
"""

WIDEST_SWIZZLE = 128
"""Bytes of the widest swizzle that there is."""

_MOST_STAGES = 6

_LEAST_COLUMNS = 16

_ENOUGH_STAGES = 4
"""Stages that outputs don't take memory from: 128 KiB on their way with heads of 128 numbers, three times what the
latency of the device's memory asks of a multiprocessor."""


def itemsize_of(dtype: Any) -> int:
    """Bytes of a number."""
    return int(jnp.dtype(dtype).itemsize)


def swizzle_of(columns: int, itemsize: int) -> int:
    """The widest swizzle, in bytes, that divides rows of a number of elements: 128, 64 or 32; 0 if none does. O(1)."""
    for swizzle in (WIDEST_SWIZZLE, 64, 32):
        if columns * itemsize % swizzle == 0:
            return swizzle
    return 0


@dataclass(frozen=True)
class Geometry:
    """The shapes of a kernel.

    Attributes:
        layout: the cache's layout.
        group: query heads of a KV head.
        dtype: of queries and outputs, and of what is multiplied: 16 bits wide.
        kv_dtype: of the cache.
        page_size: slots of a page.
        splits_keys: whether the consumers take turns with the tiles, for one block of rows (decode), and leave
            unfinished sums; else each takes every tile, for rows of its own, and finishes.
        scaled: whether every slot and head has a scale; its numbers are converted then, and their tiles have 64 keys.
    """

    layout: CacheLayout
    group: int
    dtype: Any
    kv_dtype: Any
    page_size: int
    splits_keys: bool
    scaled: bool = False

    @property
    def staged(self) -> bool:
        """Whether a consumer makes what is multiplied from what copies bring.

        So where numbers must be converted, and where copies of rows that are not whole eights would cut through the
        tiles of shared memory.
        """
        return bool(self.kv_dtype != self.dtype) or self.tiles.rows % 8 != 0

    @property
    def tiles(self) -> Tiles:
        """How keys are cut: tiles of 128 keys where rows finish here and heads are small enough for two stages."""
        widest = max(self.layout.head_dim, self.layout.v_head_dim)
        tiles = cut(self.page_size, 2 * TILE_KEYS)
        whole = tiles.full and tiles.rows % 8 == 0 and self.kv_dtype == self.dtype
        return tiles if whole and widest <= 128 and not self.splits_keys else cut(self.page_size)

    @property
    def scale_rows(self) -> ScaleRows | None:
        """How scales are copied; None where there are none, or no copy can bring them."""
        return scale_rows(self.tiles.rows, self.layout.num_kv_heads) if self.scaled else None

    @property
    def value_dtype(self) -> Any:
        """Of weights and values as they are multiplied: the queries', but for weights times scales of any size.

        float16 has no room for such; bfloat16 has, and holds all numbers of 8 bits.
        """
        return jnp.dtype(jnp.bfloat16) if self.scaled else self.dtype

    @property
    def values_replace_keys(self) -> bool:
        """Whether converted values take the memory of the keys multiplied before."""
        return not self.differ and self.value_dtype == self.dtype

    @property
    def block_rows(self) -> int:
        """Query rows of a block: those of all consumers, or of one where they share them."""
        return ROWS if self.splits_keys else CONSUMERS * ROWS

    @property
    def alignment(self) -> int:
        """Query tokens whose rows fill whole eights, the rows of a tile in shared memory: blocks begin at multiples."""
        return 8 // gcd(self.group, 8)

    @property
    def block_queries(self) -> int:
        """Query tokens of a block: as many as have room with all heads of a group; 0 if none has."""
        if self.splits_keys:
            return 1 if self.group <= ROWS else 0
        return self.block_rows // (self.group * self.alignment) * self.alignment

    @property
    def copied_rows(self) -> int:
        """Rows of queries that are copied at once: those of a group in whole eights, or all that a consumer has."""
        return round_up(self.group, 8) if self.splits_keys else ROWS

    @property
    def heads(self) -> int:
        """KV heads: blocks of threads for each item."""
        return self.layout.num_kv_heads

    @property
    def v_dim(self) -> int:
        """Numbers of a value."""
        return self.layout.v_head_dim

    @property
    def parts_of_item(self) -> int:
        """Unfinished sums that an item leaves: one of each consumer, as they take turns with the keys."""
        return CONSUMERS

    @property
    def part_rows(self) -> int:
        """Rows of an unfinished sum of a whole item: those of all KV heads, one after the other."""
        return self.heads * self.copied_rows

    @property
    def copied_dims(self) -> tuple[int, int]:
        """Numbers of a slot's key, and of its value, that copies bring.

        Those that there are; or the cache's whole rows, padding included, where copies were no multiple of 128 bytes
        else: what the copy engine aligns to. Such copies have rows that are no whole eights.
        """
        dims = (self.layout.head_dim, self.layout.v_head_dim)
        odd = any(self.tiles.rows * dim * itemsize_of(self.kv_dtype) % 128 for dim in dims)
        return (self.layout.storage_head_dim,) * 2 if odd else dims

    @property
    def value_offset(self) -> int:
        """Numbers before the value in a row as it is copied: its key's, where they share a row that is copied whole."""
        layout = self.layout
        return layout.head_dim if layout.shares_rows and self.copied_dims[0] > layout.head_dim else 0

    @property
    def raw_swizzle(self) -> int:
        """The swizzle of what copies bring, in bytes; 0: rows as they are."""
        if self.tiles.rows % 8:
            return 0
        itemsize = itemsize_of(self.kv_dtype)
        return min(swizzle_of(dim, itemsize) for dim in (self.layout.head_dim, self.layout.v_head_dim))

    @property
    def chunk(self) -> int:
        """Columns of a stored tile that pass through registers at once: those of a tile of eight rows."""
        if self.raw_swizzle:
            return self.raw_swizzle // itemsize_of(self.kv_dtype)
        itemsize = itemsize_of(self.dtype)
        return min(swizzle_of(dim, itemsize) // itemsize for dim in (self.layout.head_dim, self.layout.v_head_dim))

    @property
    def swizzle(self) -> int:
        """The swizzle of what is multiplied, in bytes: one for all, as the tensor cores take no two of them at once."""
        return min(self.chunk * itemsize_of(self.dtype), WIDEST_SWIZZLE)

    @property
    def differ(self) -> bool:
        """Whether values differ from keys in size.

        If they don't, outputs take the memory of queries.
        """
        return self.layout.v_head_dim != self.layout.head_dim

    @property
    def partial_columns(self) -> int:
        """Columns of an unfinished sum that are written at once: all, if that leaves enough stages."""
        columns = [self.layout.v_head_dim, *(size for size in (128, 64, 32) if self.layout.v_head_dim % size == 0)]
        fits = [size for size in columns if self._stages(size) >= min(_ENOUGH_STAGES, self._stages(_LEAST_COLUMNS))]
        return fits[0] if fits else _LEAST_COLUMNS

    @property
    def fixed_bytes(self) -> int:
        """Shared memory that does not grow with the stages: queries, outputs, converted tiles."""
        return self._fixed_bytes(self.partial_columns)

    @property
    def stage_bytes(self) -> int:
        """Shared memory of a stage: one tile of keys and one of values, as they are stored, and scales."""
        scales = 4 * self.scale_rows.columns if self.scale_rows else 0
        return self.tiles.keys * (sum(self.copied_dims) * itemsize_of(self.kv_dtype) + scales)

    @property
    def stages(self) -> int:
        """Tiles of keys and values that are on their way or in use at once; 0 where there is no room for one.

        Where consumers take turns it is a multiple of their number: each slot of the ring has one consumer then, who
        sees every phase of its barriers.
        """
        return self._stages(self.partial_columns)

    def _stages(self, columns: int) -> int:
        """The stages that there is room for where a number of columns of an unfinished sum are written at once."""
        stages = min(_MOST_STAGES, max(SMEM_BYTES - self._fixed_bytes(columns), 0) // self.stage_bytes)
        return stages // CONSUMERS * CONSUMERS if self.splits_keys else stages

    def _fixed_bytes(self, columns: int) -> int:
        itemsize = itemsize_of(self.dtype)
        layout = self.layout
        if self.splits_keys:
            output = CONSUMERS * ROWS * (columns + 2) * 4
        else:
            output = CONSUMERS * ROWS * layout.v_head_dim * itemsize if self.differ else 0
        converted = layout.head_dim + (0 if self.values_replace_keys else layout.v_head_dim) if self.staged else 0
        numbers = self.block_rows * layout.head_dim + CONSUMERS * self.tiles.keys * converted
        scales = CONSUMERS * 2 * (self.tiles.keys + TURNED_GAP) * 4 if self.scaled else 0
        return numbers * itemsize + output + scales


@dataclass(frozen=True)
class LatentGeometry:
    """The shapes of a kernel that decodes over latents (MLA), which are keys, and values of half as many numbers each.

    The consumers share a block of query heads and every tile; each mixes half of the columns of the latents, as 64 rows
    of 512 sums have no room in the registers of one.

    Attributes:
        num_heads: query heads.
        latent_dim: numbers of a latent.
        rotary_dim: numbers of the rotary part of a key.
        dtype: of queries, cache and outputs: 16 bits wide.
        page_size: slots of a page.
    """

    num_heads: int
    latent_dim: int
    rotary_dim: int
    dtype: Any
    page_size: int

    @property
    def tiles(self) -> Tiles:
        """How keys are cut."""
        return cut(self.page_size)

    @property
    def heads(self) -> int:
        """Blocks of query heads: the fewest that are all of one size, of at most 64."""
        return next(
            count for count in range(-(-self.num_heads // ROWS), self.num_heads + 1) if not self.num_heads % count
        )

    @property
    def group(self) -> int:
        """Query heads of a block."""
        return self.num_heads // self.heads

    @property
    def query_rows(self) -> int:
        """Rows of queries that are copied at once: those of a block in whole eights, the rows of a tile."""
        return round_up(self.group, 8)

    @property
    def block_queries(self) -> int:
        """Queries of a block, where a sequence has several: as many as have room with all their heads; else one."""
        return ROWS // self.query_rows if self.heads == 1 else 1

    @property
    def half(self) -> int:
        """Columns of the latents that a consumer mixes."""
        return self.latent_dim // CONSUMERS

    @property
    def v_dim(self) -> int:
        """Numbers of an output."""
        return self.latent_dim

    @property
    def parts_of_item(self) -> int:
        """Unfinished sums that an item leaves: one, of which each consumer has half of the columns."""
        return 1

    @property
    def copied_rows(self) -> int:
        """Rows of a block of heads in an unfinished sum: all of a tile, as registers are written without copies."""
        return ROWS

    @property
    def part_rows(self) -> int:
        """Rows of an unfinished sum of a whole item: those of all blocks of heads, one after the other."""
        return self.heads * self.copied_rows

    @property
    def chunk(self) -> int:
        """Columns of a stored tile that pass through registers at once."""
        return swizzle_of(self.half, itemsize_of(self.dtype)) // itemsize_of(self.dtype)

    @property
    def stage_bytes(self) -> int:
        """Shared memory of a stage: a tile of latents and rotary parts."""
        return self.tiles.keys * (self.latent_dim + self.rotary_dim) * itemsize_of(self.dtype)

    @property
    def stages(self) -> int:
        """Tiles that are on their way or in use at once, beside the queries."""
        queries = ROWS * (self.latent_dim + self.rotary_dim) * itemsize_of(self.dtype)
        return min(_MOST_STAGES, max(SMEM_BYTES - queries, 0) // self.stage_bytes)
