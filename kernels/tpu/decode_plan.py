"""What follows from the shapes of a decode call, and which calls the decode kernel takes."""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from ..layout import COLUMNS, LANES, CacheLayout
from ..options import AttentionOptions
from ..storage import ScaledPages, page_values
from .block_sizes import DecodeBlocks, blocks_of_drafts, blocks_of_keys, decode_blocks, device_kind, selects_16_bits
from .prefill_geometry import fills_tiles

__all__ = ["DecodePlan", "most_queries", "plan", "sizes_of", "unsupported", "unsupported_drafts"]

_QUERY_BYTES = 2 * 2**20
"""VMEM for the queries of a grid step; the outputs take half as much, and both are there twice."""

_TABLE_WORDS = 40 * 2**10
"""SMEM for the part of the page table of a grid step, in words; it is there twice."""

_STEP_ROWS = 256
"""Most sequences of a grid step: this number hides what it costs to begin one."""

_MOST_QUERY_ROWS = 128
"""Query rows of a pair at most, where sequences have several query tokens: more don't stay in registers."""

_TILE_ROWS = 8
"""Rows of a tile of VMEM."""

_KV_DTYPES = ("bfloat16", "float8_e4m3fn", "float8_e5m2", "int8")
"""The caches whose numbers the matrix unit multiplies with bfloat16 as they are, or widens on their way in."""


@dataclass(frozen=True)
class DecodePlan:
    """The static numbers of a decode call; hashable.

    A *pair* is what fills the matrix unit side by side: two parts of 128 numbers, of two heads, or the halves of one
    whose rows have 256. Its query rows are ordered by query token, then by KV head, then by query head.

    Attributes:
        layout: how the cache's slots are laid out.
        dtype: of the queries and the output.
        kv_dtype: of the cache.
        scaled: whether every slot and head has a scale.
        page_size: slots of a page.
        pages_per_seq: pages in a row of the table.
        group: query heads of a KV head.
        queries: query tokens that a sequence may have.
        steps: grid steps.
        rows: rows of a grid step: its sequences.
        blocks: tokens of a block, buffers, short blocks.
        score_scale: what products of stored queries and keys are multiplied by.
        value_scale: what stored values are multiplied by.
        soft_cap: of the scores, or None.
        causal: whether a query reads keys up to its own position only.
        window: keys that a query reads at most, up to its position; None: all.
        chunk: the size of the chunks of which a query reads its own only; None: there are none.
        has_sinks: whether there are sinks.
        select: whether the device chooses between 16-bit numbers.
        emulated: whether the kernel is interpreted.
    """

    layout: CacheLayout
    dtype: Any
    kv_dtype: Any
    scaled: bool
    page_size: int
    pages_per_seq: int
    group: int
    queries: int
    steps: int
    rows: int
    blocks: DecodeBlocks
    score_scale: float
    value_scale: float
    soft_cap: float | None
    causal: bool
    window: int | None
    chunk: int | None
    has_sinks: bool
    select: bool
    emulated: bool

    @property
    def pairs(self) -> int:
        """Pairs; the last may have one head only."""
        return _pairs(self.layout)

    @property
    def token_rows(self) -> int:
        """Query heads of a pair."""
        return _heads_per_pair(self.layout) * self.group

    @property
    def query_rows(self) -> int:
        """Query heads of a pair, those of all query tokens."""
        return self.token_rows * self.queries

    @property
    def output_columns(self) -> int:
        """Numbers of a head's output."""
        return LANES * self.layout.column_tiles

    @property
    def windowed(self) -> bool:
        """Whether a sequence may be read from a later token than its first."""
        return self.window is not None or self.chunk is not None

    @property
    def packing(self) -> int:
        """Numbers of the cache that share a word."""
        return _packing(self.kv_dtype)

    @property
    def word_rows(self) -> int:
        """Rows of words of a slot's part of 128 columns."""
        return self.layout.combined_rows // self.packing

    @property
    def in_v3(self) -> bool:
        """Whether the layout is v3."""
        return self.layout.version == "v3"

    @property
    def slot_shape(self) -> tuple[int, ...]:
        """A slot in VMEM, its parts of 128 columns one after the other.

        It has an odd number of word rows (v3) or of tiles (v2), so that loads find rows in all banks.
        """
        tiles = self.layout.column_tiles
        if self.in_v3:
            return (tiles * self.word_rows | 1, self.packing, LANES)
        rows = tiles * self.layout.combined_rows
        return (rows if rows < _TILE_ROWS else _TILE_ROWS * (rows // _TILE_ROWS | 1), LANES)

    @property
    def tokens(self) -> int:
        """Tokens of a block."""
        return self.blocks.tokens

    @property
    def pages_per_block(self) -> int:
        """Pages of a block."""
        return self.tokens // self.page_size

    @property
    def table_words(self) -> int:
        """Entries of the page table of a grid step, and those that are read past the last row's end: two blocks'."""
        return self.rows * self.pages_per_seq + 2 * self.pages_per_block

    @property
    def vmem_bytes(self) -> int:
        """What the kernel needs, and some room for what the compiler spills."""
        numbers = math.prod(self.slot_shape)
        block = self.tokens * (numbers // self.packing + int(self.scaled) * LANES) * 4
        lines = self.pairs * -(-self.query_rows // 8) * 8
        queries = self.rows * lines * (2 * LANES + self.output_columns) * 2
        state = lines * (4 * LANES + self.tokens) * 4 + int(self.scaled) * self.layout.combined_rows * self.tokens * 4
        return self.blocks.buffers * block + 2 * queries + state + 12 * 2**20


def _heads_per_pair(layout: CacheLayout) -> int:
    return 2 // layout.column_tiles


def _pairs(layout: CacheLayout) -> int:
    return -(-layout.num_kv_heads // _heads_per_pair(layout))


def _packing(kv_dtype: Any) -> int:
    return 4 // int(jnp.dtype(kv_dtype).itemsize)


def unsupported(
    options: AttentionOptions,
    queries: jax.Array,  # [..., Hq, D]
    kv_pages: Any,  # [P, page, *row], or ScaledPages of it
    page_table: jax.Array,  # i32[S, pages_per_seq]
) -> str | None:
    """Why the decode kernel doesn't take these arrays, or None when it does. O(1).

    Args:
        options: the options of the call.
        queries: `[..., Hq, D]`, or anything with its shape and dtype.
        kv_pages: `[P, page, *row]`, or anything with its shape and dtype; or ScaledPages of that.
        page_table: `i32[S, pages_per_seq]`.
    """
    layout = options.layout
    if layout.slots_last:
        return COLUMNS
    if jnp.dtype(options.kv_dtype).name not in _KV_DTYPES:
        return f"a cache of {jnp.dtype(options.kv_dtype)}: bfloat16, float8 and int8 are taken"
    if queries.dtype != jnp.dtype(jnp.bfloat16):
        return f"queries of {queries.dtype}: bfloat16 ones are taken"
    if layout.column_tiles > 2:
        return f"a storage head size of {layout.storage_head_dim}: rows of 128 and 256 are taken"
    if not fills_tiles(layout, _packing(options.kv_dtype)):
        return f"{layout.combined_rows} rows in a v2 slot fill no tiles"
    if layout.version == "v2" and layout.column_tiles > 1 and layout.combined_rows < _TILE_ROWS:
        return f"{layout.combined_rows} rows of {layout.storage_head_dim} in a v2 slot fill part of a tile"
    if isinstance(kv_pages, ScaledPages) and layout.version == "v2":
        return "ScaledPages of v2: the tokens of a block are read in another order than their scales"
    page_size, pages_per_seq = page_values(kv_pages).shape[1], page_table.shape[1]
    if page_size & (page_size - 1):
        return f"a page size of {page_size}: a block has a power of two tokens"
    if 2 * pages_per_seq > _TABLE_WORDS:
        return f"{pages_per_seq} pages a sequence: at most {_TABLE_WORDS // 2} fit into scalar memory"
    return None


def most_queries(q_heads: int, layout: CacheLayout) -> int:
    """The query tokens that a sequence may have, where some have more than one; 1: none may. O(1)."""
    heads = _heads_per_pair(layout) * q_heads // layout.num_kv_heads
    return next((queries for queries in (8, 4, 2) if queries * heads <= _MOST_QUERY_ROWS), 1)


def unsupported_drafts(
    options: AttentionOptions,
    queries: jax.Array,  # [T, Hq, D]
    page_table: jax.Array,  # i32[S, pages_per_seq]
) -> str | None:
    """Why sequences of a few queries go to the general kernel, or None when the decode kernel takes them. O(1).

    Args:
        options: the options of a call that is not `unsupported`.
        queries: `[T, Hq, D]`, or anything with its shape.
        page_table: `i32[S, pages_per_seq]`, or anything with its shape.
    """
    num_tokens, q_heads, _ = queries.shape
    if num_tokens <= page_table.shape[0]:
        return f"{num_tokens} tokens, no more than rows of the page table: most sequences have one"
    if most_queries(q_heads, options.layout) == 1:
        return f"{q_heads} query heads over {options.layout.num_kv_heads}: two tokens of a pair take too many rows"
    return None


def sizes_of(options: AttentionOptions, page_size: int, num_queries: int = 1) -> DecodeBlocks:
    """The block sizes of a call: by the keys that it asks for, else by `decode_blocks`. O(1).

    Args:
        options: the options of the call.
        page_size: slots of a page.
        num_queries: the query tokens that a sequence may have.
    """
    word_rows = options.layout.column_tiles * options.layout.combined_rows // _packing(options.kv_dtype)
    if options.decode_block is not None:
        blocks = blocks_of_keys(options.decode_block, word_rows)
    else:
        blocks = decode_blocks(device_kind(), jnp.dtype(options.kv_dtype).name, word_rows, page_size)
    return blocks if num_queries == 1 else blocks_of_drafts(blocks, page_size)


def plan(
    queries: jax.Array,  # [B, Q, Hq, D]
    kv_pages: Any,  # [P, page, *row], or ScaledPages of it
    page_table: jax.Array,  # i32[S, pages_per_seq]
    options: AttentionOptions,
    has_sinks: bool,
    emulated: bool,
    blocks: DecodeBlocks | None = None,
) -> DecodePlan:
    """The plan of a call that is not `unsupported`. O(1).

    Args:
        queries: `[B, Q, Hq, D]`.
        kv_pages: `[P, page, *row]`, or ScaledPages of that.
        page_table: `i32[S, pages_per_seq]`.
        options: the options of the call.
        has_sinks: whether there are sinks.
        emulated: whether the kernel is interpreted.
        blocks: block sizes; None: those of `block_sizes`.
    """
    layout = options.layout
    page_size, pages_per_seq = page_values(kv_pages).shape[1], page_table.shape[1]
    num_rows, num_queries, num_heads, _ = queries.shape
    group = num_heads // layout.num_kv_heads
    if blocks is None:
        blocks = sizes_of(options, page_size, num_queries)
    row_bytes = _pairs(layout) * -(-_heads_per_pair(layout) * group * num_queries // 8) * 8 * 2 * LANES * 2
    most = max(1, min(_STEP_ROWS, _QUERY_BYTES // row_bytes, _TABLE_WORDS // pages_per_seq))
    steps = -(-num_rows // most)
    return DecodePlan(
        layout=layout,
        dtype=jnp.dtype(queries.dtype),
        kv_dtype=jnp.dtype(options.kv_dtype),
        scaled=isinstance(kv_pages, ScaledPages),
        page_size=page_size,
        pages_per_seq=pages_per_seq,
        group=group,
        queries=num_queries,
        steps=steps,
        rows=-(-num_rows // steps),
        blocks=blocks,
        score_scale=options.score_scale,
        value_scale=options.value_scale,
        soft_cap=options.soft_cap,
        causal=options.causal,
        window=options.window,
        chunk=options.chunk,
        has_sinks=has_sinks,
        select=selects_16_bits(),
        emulated=emulated,
    )
