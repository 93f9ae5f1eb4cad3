"""What a kernel is compiled for: tiles, swizzles, stages, and the shared memory that they take."""

from dataclasses import dataclass
from math import gcd
from typing import Any

import jax.numpy as jnp

from ..layout import CacheLayout, round_up
from .tiles import TILE_KEYS, Tiles, cut

__all__ = ["CONSUMERS", "PARTIAL_COLUMNS", "ROWS", "SMEM_BYTES", "Geometry", "swizzle_of"]

CONSUMERS = 2
"""Warpgroups that multiply; one more copies."""

ROWS = 64
"""Query rows of a consumer: what one instruction of the tensor cores takes."""

SMEM_BYTES = 222 * 2**10
"""Shared memory that is planned for, of the 227 KiB that a block may have: barriers and reductions take some 4 KiB."""

_MOST_STAGES = 6

PARTIAL_COLUMNS = 16
"""Columns of an unfinished sum that are written at once: as few as fill 64 bytes, so that stages have the memory."""


def swizzle_of(columns: int, itemsize: int) -> int:
    """The widest swizzle, in bytes, that divides rows of so many numbers: 128, 64 or 32; 0 if none does. O(1)."""
    for swizzle in (128, 64, 32):
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
    """

    layout: CacheLayout
    group: int
    dtype: Any
    kv_dtype: Any
    page_size: int
    splits_keys: bool

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
    def raw_swizzle(self) -> int:
        """The swizzle of what copies bring, in bytes, over 64 numbers at most; 0: rows as they are."""
        if self.tiles.rows % 8:
            return 0
        itemsize = jnp.dtype(self.kv_dtype).itemsize
        both = [swizzle_of(dim, itemsize) for dim in (self.layout.head_dim, self.layout.v_head_dim)]
        return min(*both, 64 * itemsize)

    @property
    def chunk(self) -> int:
        """Columns of a stored tile that pass through registers at once: those of a tile of eight rows."""
        if self.raw_swizzle:
            return self.raw_swizzle // jnp.dtype(self.kv_dtype).itemsize
        itemsize = jnp.dtype(self.dtype).itemsize
        return min(swizzle_of(dim, itemsize) // itemsize for dim in (self.layout.head_dim, self.layout.v_head_dim))

    @property
    def differ(self) -> bool:
        """Whether values differ from keys in size.

        If they don't, outputs take the memory of queries, and converted values that of the keys multiplied before.
        """
        return self.layout.v_head_dim != self.layout.head_dim

    @property
    def output_bytes(self) -> int:
        """Shared memory that outputs go through, beside that of the queries."""
        if self.splits_keys:
            return CONSUMERS * ROWS * (PARTIAL_COLUMNS + 2) * 4
        return CONSUMERS * ROWS * self.layout.v_head_dim * jnp.dtype(self.dtype).itemsize if self.differ else 0

    @property
    def fixed_bytes(self) -> int:
        """Shared memory that does not grow with the stages: queries, outputs, converted tiles."""
        itemsize = jnp.dtype(self.dtype).itemsize
        dims = self.layout.head_dim + (self.layout.v_head_dim if self.differ else 0)
        converted = CONSUMERS * self.tiles.keys * dims * itemsize if self.staged else 0
        return self.block_rows * self.layout.head_dim * itemsize + self.output_bytes + converted

    @property
    def stage_bytes(self) -> int:
        """Shared memory of a stage: one tile of keys and one of values, as they are stored."""
        dims = self.layout.head_dim + self.layout.v_head_dim
        return self.tiles.keys * dims * jnp.dtype(self.kv_dtype).itemsize

    @property
    def stages(self) -> int:
        """Tiles of keys and values that are on their way or in use at once; 0 where there is no room for one.

        Where consumers take turns it is a multiple of their number: each slot of the ring has one consumer then, who
        sees every phase of its barriers.
        """
        stages = min(_MOST_STAGES, max(SMEM_BYTES - self.fixed_bytes, 0) // self.stage_bytes)
        return stages // CONSUMERS * CONSUMERS if self.splits_keys else stages
