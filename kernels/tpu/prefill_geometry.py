"""The shapes that the general kernel works with: block sizes, buffers, where a head's numbers lie in them."""

from dataclasses import dataclass
from math import gcd, prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..layout import LANES, CacheLayout, round_up
from ..options import AttentionOptions
from .block_sizes import device_kind, has_wide_products
from .block_table import measured_queries_and_keys

__all__ = ["NUM_BUFFERS", "VMEM_BYTES", "Blocks", "Geometry", "block_sizes", "plan"]

NUM_BUFFERS = 3
"""Key blocks in VMEM: one that is read, the others in flight."""

VMEM_BYTES = 48 * 2**20
"""What the kernel may take of a core's vector memory, which is 64 MiB or more: its buffers and what it spills."""

_BLOCK_ROWS = 512
"""Query rows of a KV head in a block, which share what it costs to load a block of keys into the matrix unit."""

_BLOCK_KEYS = 512
_BLOCK_BYTES = 3 * 2**20
_QUERY_BYTES = 2**20

_SMALL_ROWS = 64
"""Rows that are worked on where a query block has few queries."""

_UNROLLED_HEADS = 8
"""KV heads worked on without a loop between them: with 4 a head takes an eighth more bundles on v6e than with 8, as the
first head's scores and the last one's products have nothing beside them."""

_UNROLLED_FEW = 2
"""The same where code runs less often, in blocks of few rows, or is bound by the matrix unit anyway, in float32: it is
compiled faster."""

_SUBLANES = 8
"""Rows of 32-bit words in a register."""

_ROW_TILE = 16
"""Rows of 16-bit numbers in a register."""


class Blocks(NamedTuple):
    """Block sizes of the general kernel.

    Attributes:
        queries: tokens of a query block; times the group a multiple of 16.
        pages: pages of a key block.
    """

    queries: int
    pages: int


@dataclass(frozen=True)
class Geometry:
    """What follows from the shapes of a call; hashable.

    A *row* is one query head's query of one token; the rows of a block for one KV head are token * group + head. A
    *word row* is a row of 128 32-bit words in VMEM, which holds ``packing`` combined rows of a slot.

    Attributes:
        layout: how the cache's slots are laid out.
        kv_dtype: what the cache's numbers mean.
        compute_dtype: what the matrix unit multiplies.
        page_size: slots of a page.
        pages_per_seq: pages in a row of the table.
        group: query heads of a KV head.
        query_packing: rows of queries and outputs that share a word in HBM: 2 in bfloat16, 1 in float32.
        blocks: tokens of a query block, pages of a key block.
        wide_products: whether the matrix unit has 256 columns.
    """

    layout: CacheLayout
    kv_dtype: Any
    compute_dtype: Any
    page_size: int
    pages_per_seq: int
    group: int
    query_packing: int
    blocks: Blocks
    wide_products: bool

    @property
    def packing(self) -> int:
        """Combined rows of a slot that share a word row."""
        return 4 // int(jnp.dtype(self.kv_dtype).itemsize)

    @property
    def heads_per_step(self) -> int:
        """KV heads that lie in the same word rows, and are worked on together."""
        return max(1, self.packing // self.layout.rows_per_head)

    @property
    def words_per_step(self) -> int:
        """Word rows of the heads that are worked on together."""
        return self.heads_per_step * self.layout.rows_per_head // self.packing

    @property
    def steps(self) -> int:
        """Times that heads are worked on in a block."""
        return -(-self.layout.num_kv_heads // self.heads_per_step)

    def unrolled_steps(self, rows: int) -> int:
        """How many of them follow each other without a loop between them, for a number of rows."""
        often = rows == self.rows and self.compute_dtype != jnp.dtype(jnp.float32)
        most = (_UNROLLED_HEADS if often else _UNROLLED_FEW) // self.heads_per_step
        return max(count for count in range(1, max(most, 1) + 1) if self.steps % count == 0)

    @property
    def sums_by_products(self) -> bool:
        """Whether the matrix unit has columns that the values leave empty: a column of ones there sums the weights."""
        return self.wide_products and self.value_tiles % 2 == 1

    @property
    def heads(self) -> int:
        """KV heads, rounded up to whole steps."""
        return self.steps * self.heads_per_step

    @property
    def query_dtype(self) -> Any:
        """Of queries and outputs in HBM."""
        return jnp.dtype(jnp.bfloat16 if self.query_packing == 2 else jnp.float32)

    @property
    def rows(self) -> int:
        """Query rows of a KV head in a block."""
        return self.blocks.queries * self.group

    @property
    def small_rows(self) -> int:
        """How many of the rows are worked on where the queries of a block are few."""
        return _SMALL_ROWS if self.rows >= 2 * _SMALL_ROWS else self.rows

    @property
    def block_keys(self) -> int:
        """Keys of a key block."""
        return self.blocks.pages * self.page_size

    @property
    def columns(self) -> int:
        """Columns of the scores: the keys of a block, rounded up to whole registers."""
        return round_up(self.block_keys, LANES)

    @property
    def column_tiles(self) -> int:
        """Parts of 128 numbers of a stored row: each has a buffer of its own."""
        return self.layout.column_tiles

    @property
    def key_tiles(self) -> int:
        """Parts of 128 numbers of a key."""
        return -(-self.layout.head_dim // LANES)

    @property
    def value_tiles(self) -> int:
        """Parts of 128 numbers of a value (of the shared row of 64-wide heads: of the whole row)."""
        return -(-self.layout.v_head_dim // LANES)

    @property
    def word_rows(self) -> int:
        """Word rows of a slot."""
        return -(-self.layout.combined_rows // self.packing)

    @property
    def row_buffer(self) -> tuple[int, ...]:
        """The shape of a slot's part of 128 columns in VMEM.

        In v3 an odd number of word rows: those of one head are then spread over all of VMEM's banks.
        """
        if self.layout.version == "v3":
            return (self.word_rows | 1, self.packing, LANES)
        return (self.layout.combined_rows, LANES)

    @property
    def stride(self) -> int:
        """Word rows from a slot to the next in VMEM."""
        return self.row_buffer[0] if self.layout.version == "v3" else self.word_rows

    @property
    def fills_tiles(self) -> bool:
        """Whether the rows of a slot fill tiles of VMEM: see `fills_tiles`."""
        return fills_tiles(self.layout, self.packing)

    @property
    def vmem_bytes(self) -> int:
        """VMEM that the buffers take, at most, without what is spilled."""
        slot = self.column_tiles * prod(self.row_buffer) * 4 // self.packing
        words = 4 * self.column_tiles * self.word_rows * LANES if self.layout.version == "v2" else 0
        tiles = self.key_tiles + self.value_tiles
        row = 4 * LANES * (2 * tiles // self.query_packing + tiles + 4)  # queries twice, state, sinks twice
        block = 4 * 5 * self.rows * max(self.columns, LANES)  # scores and weights, and their bounds
        return self.columns * (NUM_BUFFERS * slot + words + 4 * LANES) + self.heads * self.rows * row + block


def fills_tiles(layout: CacheLayout, packing: int) -> bool:
    """Whether the rows of a slot fill tiles of VMEM: what v2 needs for copies and for rows to be found. O(1).

    Args:
        layout: how the slots are laid out.
        packing: numbers that share a word.
    """
    rows = layout.combined_rows
    small = rows < _SUBLANES and rows.bit_count() == 1 and rows % packing == 0
    return layout.version == "v3" or small or rows % _SUBLANES == 0


def plan(
    queries: jax.Array,  # [T, Hq, D]
    kv_pages: jax.Array,  # [P, page, ...]
    page_table: jax.Array,  # i32[S, pages_per_seq]
    options: AttentionOptions,
    blocks: Blocks | None = None,
) -> Geometry:
    """The geometry of a call. O(1).

    Args:
        queries: `[T, Hq, D]`.
        kv_pages: `[P, page, ...]`.
        page_table: `i32[S, pages_per_seq]`.
        options: the options of the call.
        blocks: block sizes; None: those of `block_sizes`.
    """
    layout, kv_dtype = options.layout, jnp.dtype(options.kv_dtype)
    page_size, pages_per_seq = kv_pages.shape[1], page_table.shape[1]
    group = queries.shape[1] // layout.num_kv_heads
    half = jnp.dtype(jnp.bfloat16)
    narrow = jnp.dtype(queries.dtype) == half
    if blocks is None:
        blocks = _asked_or_measured(options, queries.shape[0], group, page_size, pages_per_seq)
    return Geometry(
        layout=layout,
        kv_dtype=kv_dtype,
        compute_dtype=half if narrow and (kv_dtype == half or kv_dtype.itemsize == 1) else jnp.dtype(jnp.float32),
        page_size=page_size,
        pages_per_seq=pages_per_seq,
        group=group,
        query_packing=2 if narrow and group % 2 == 0 else 1,
        blocks=blocks or block_sizes(queries.shape[0], group, page_size, pages_per_seq, layout, kv_dtype.itemsize),
        wide_products=has_wide_products(),
    )


def _asked_or_measured(
    options: AttentionOptions, num_tokens: int, group: int, page_size: int, pages_per_seq: int
) -> Blocks | None:
    """The block sizes that a call asks for, or that the table has for its shapes, as far as batch and table need them.

    Arguments are those of `block_sizes`.
    """
    layout, dtype = options.layout, jnp.dtype(options.kv_dtype)
    sizes = options.prefill_block
    if sizes is None:
        word_rows = layout.column_tiles * layout.combined_rows * dtype.itemsize // 4
        sizes = measured_queries_and_keys(device_kind(), dtype.name, word_rows, page_size, group)
    if sizes is None:
        return None
    most = round_up(num_tokens, _ROW_TILE // gcd(_ROW_TILE, group))
    return Blocks(min(sizes[0], most), min(sizes[1] // page_size, pages_per_seq))


def block_sizes(
    num_tokens: int, group: int, page_size: int, pages_per_seq: int, layout: CacheLayout, itemsize: int
) -> Blocks:
    """The block sizes for a call: as large as pays, and no larger than the batch, the table and VMEM need. O(1).

    Args:
        num_tokens: T.
        group: query heads of a KV head.
        page_size: slots of a page.
        pages_per_seq: pages in a row of the table.
        layout: how the cache's slots are laid out.
        itemsize: bytes of a number in the cache.
    """
    head_bytes = 2 * layout.num_kv_heads * group * layout.storage_head_dim
    unit = _ROW_TILE // gcd(_ROW_TILE, group)
    queries = min(_BLOCK_ROWS // group, _QUERY_BYTES // head_bytes, round_up(num_tokens, unit))
    slot_bytes = layout.combined_rows * layout.storage_head_dim * itemsize
    keys = min(_BLOCK_KEYS, _BLOCK_BYTES // slot_bytes)
    return Blocks(max(queries // unit, 1) * unit, max(min(keys // page_size, pages_per_seq), 1))
