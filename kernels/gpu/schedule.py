"""Who reads what: the items of a call, made by XLA from the lengths that the kernels are called with.

An item is what one block of threads does for each KV head: some query rows of one sequence against some of the tiles of
its keys. Nothing here depends on how the work was split before, and lengths that contradict each other never lead out
of an array.
"""

from enum import IntEnum, unique
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ..masks import end_key, first_key
from ..options import AnyOptions
from ..ragged import Ragged, owners
from .tiles import Tiles

__all__ = [
    "MULTIPROCESSORS",
    "Blocks",
    "Decoding",
    "Field",
    "decode_items",
    "most_blocks",
    "most_extras",
    "parts_of",
    "prefill_blocks",
]


MULTIPROCESSORS = 132
"""Those of an H100 or H200."""

_ROUNDS = 4
"""Rounds of blocks that there is room for beyond one block for each sequence and head."""

_BLOCK_TILES = 4
"""What beginning and ending a block costs, in tiles."""


@unique
class Field(IntEnum):
    """The rows of a list of items."""

    SEQUENCE = 0
    """The row of the page table; -1: there is no such item."""

    TOKEN = 1
    """Where its first query stands among the aligned ones."""

    FIRST_TILE = 2
    """The first tile it reads."""

    END_TILE = 3
    """The end of the tiles it reads; not after the first where there is nothing to read."""

    LOW = 4
    """The first key that any of its queries reads."""

    HIGH = 5
    """The end of the keys that any of its queries reads: what is outside is dead for all of them."""

    WHOLE_LOW = 6
    """The first key from which on every query reads."""

    WHOLE_HIGH = 7
    """The end of the keys that every query reads: a tile between the two needs no mask."""

    FIRST_PAGE = 8
    """The first page, by place in the sequence, with a key that it reads: none before it is copied."""

    LAST_PAGE = 9
    """The last one."""

    HOLES = 10
    """Whether one of these pages doesn't exist, 0 or 1."""

    QUERIES = 11
    """The queries that it has."""


class Decoding(NamedTuple):
    """The parts of the sequences with one query each.

    Attributes:
        items: `i32[len(Field), S + extras]`: the first part of each sequence, then their other parts, in the order of
            sequences. Those that don't exist come last: blocks of threads that find nothing to do still take their
            turn on a multiprocessor, and would keep others waiting.
        begins: `i32[S]`: where among the items a sequence's parts beyond its first begin.
        counts: `i32[S]`: a sequence's parts, its first among them; 0 for those that are not decoded here.
    """

    items: jax.Array
    begins: jax.Array
    counts: jax.Array


class Blocks(NamedTuple):
    """The query blocks of a call.

    Attributes:
        items: `i32[len(Field), N]`.
        first: `i32[N, rows]`: the first key that each row reads.
        end: `i32[N, rows]`: the end of the keys that it reads; not after the first for rows without a query.
        block: `i32[T]`: the block of each token.
        offset: `i32[T]`: its place there.
        used: `bool[T]`: whether it has one.
    """

    items: jax.Array
    first: jax.Array
    end: jax.Array
    block: jax.Array
    offset: jax.Array
    used: jax.Array


def most_extras(num_rows: int, num_heads: int, most_tiles: int) -> int:
    """The parts that sequences may be cut into beyond one each, all of them together. O(1).

    It follows from shapes alone, so that a program serves all lengths.

    Args:
        num_rows: S.
        num_heads: KV heads.
        most_tiles: tiles of the longest context that the page table can name.
    """
    return min(-(-_ROUNDS * MULTIPROCESSORS // num_heads), num_rows * (most_tiles - 1))


def parts_of(
    num_tiles: jax.Array,  # i32[S]
    num_heads: int,
    extras: int,
) -> jax.Array:
    """Into how many parts each sequence is cut, `i32[S]`; 0 if it has no tiles. O(S * extras) on the device.

    All parts have about as many tiles: the number with which all are done first. Blocks of threads run in rounds, one
    on each multiprocessor at a time, and every block costs some tiles' time beside its own, until its first tile is
    there and while its sums are written. What a number of tiles takes is estimated from above in two ways: as rounds of
    the longest part, and as the longest part after an even share of all work.

    Args:
        num_tiles: `i32[S]`: tiles that each sequence reads.
        num_heads: KV heads: as many blocks for each part.
        extras: of `most_extras`.
    """
    cuts = jnp.arange(1, extras + 2, dtype=jnp.int32)
    sizes = jnp.maximum(-(-jnp.max(num_tiles) // cuts), 1)
    parts = -(-num_tiles[:, None] // sizes[None, :])
    fits = jnp.sum(jnp.maximum(parts - 1, 0), axis=0, dtype=jnp.int32) <= extras
    blocks = num_heads * jnp.sum(parts, axis=0, dtype=jnp.int32)
    longest = (sizes + _BLOCK_TILES).astype(jnp.float32)
    rounds = (-(-blocks // MULTIPROCESSORS)).astype(jnp.float32)
    work = num_heads * jnp.sum(num_tiles.astype(jnp.float32)) + _BLOCK_TILES * blocks.astype(jnp.float32)
    time = jnp.minimum(rounds * longest, work / MULTIPROCESSORS + longest)
    best = jnp.argmin(jnp.where(fits, time, jnp.inf))  # whole sequences always fit
    return parts[:, best]


def decode_items(
    batch: Ragged,
    starts: jax.Array,  # i32[S]
    table: jax.Array,  # i32[S, pages_per_seq]
    *,
    num_heads: int,
    extras: int,
    tiles: Tiles,
    options: AnyOptions,
) -> Decoding:
    """The items of the sequences with one query each, the keys of each in `parts_of` equal parts. O(S * extras).

    Args:
        batch: the lengths.
        starts: `i32[S]`: where each sequence's queries begin among the aligned ones.
        table: the page table, as `ragged.clean_table` makes it.
        num_heads: KV heads.
        extras: of `most_extras`.
        tiles: how keys are cut.
        options: the mask.
    """
    num_rows = batch.kv_lens.shape[0]
    rows = jnp.arange(num_rows, dtype=jnp.int32)
    alone = batch.q_lens == 1
    position = jnp.where(alone, batch.kv_lens - 1, -1)
    low, high = first_key(position, options), end_key(position, batch.kv_lens, options)
    first = low // tiles.live
    end = jnp.where(low < high, -(-high // tiles.live), first)
    parts = parts_of(end - first, num_heads, extras)
    size = -(-(end - first) // jnp.maximum(parts, 1))

    more = jnp.maximum(parts - 1, 0)
    ends = jnp.cumsum(more, dtype=jnp.int32)
    extra = jnp.arange(extras, dtype=jnp.int32)
    owner = jnp.searchsorted(ends, extra, side="right", method="compare_all").astype(jnp.int32)
    row = jnp.minimum(owner, num_rows - 1)
    of = jnp.concatenate([rows, row])
    part = jnp.concatenate([jnp.zeros_like(rows), extra - (ends - more)[row] + 1])
    exists = jnp.concatenate([alone, owner < num_rows])
    begin = jnp.minimum(first[of] + size[of] * part, end[of])
    stop = jnp.minimum(begin + size[of], end[of])
    sequence = jnp.where(exists, of, -1)
    one = jnp.ones_like(of)
    items = _items(sequence, starts[of], one, begin, stop, low[of], high[of], low[of], high[of], table, tiles)
    return Decoding(items, num_rows + ends - more, jnp.where(alone, more + 1, 0))


def most_blocks(num_tokens: int, num_rows: int, block_queries: int) -> int:
    """An upper bound on the query blocks of a batch, of the sequences with two tokens or more. O(1)."""
    return num_tokens // block_queries + min(num_rows, num_tokens // 2)


def prefill_blocks(
    batch: Ragged,
    starts: jax.Array,  # i32[S]
    table: jax.Array,  # i32[S, pages_per_seq]
    *,
    num_tokens: int,
    block_queries: int,
    block_rows: int,
    group: int,
    tiles: Tiles,
    options: AnyOptions,
) -> Blocks:
    """The query blocks of the sequences with two queries or more. O(N * rows + T log S) on the device.

    Args:
        batch: the lengths.
        starts: `i32[S]`: where each sequence's queries begin among the aligned ones.
        table: the page table, as `ragged.clean_table` makes it.
        num_tokens: T.
        block_queries: queries in a block.
        block_rows: rows of a block: query by query, each with all heads of a group.
        group: heads of a group.
        tiles: how keys are cut.
        options: the mask.

    Returns:
        The blocks, sequence after sequence; N is the most there can be.
    """
    num_rows = batch.kv_lens.shape[0]
    most = most_blocks(num_tokens, num_rows, block_queries)
    q_lens = jnp.where(batch.q_lens > 1, batch.q_lens, 0)
    counts = -(-q_lens // block_queries)
    ends = jnp.cumsum(counts, dtype=jnp.int32)
    begins = ends - counts

    block = jnp.arange(most, dtype=jnp.int32)
    sequence = jnp.searchsorted(ends, block, side="right", method="compare_all").astype(jnp.int32)
    exists = sequence < num_rows
    sequence = jnp.minimum(sequence, num_rows - 1)
    offset = (block - begins[sequence]) * block_queries
    queries = jnp.where(exists, jnp.clip(q_lens[sequence] - offset, 0, block_queries), 0)
    kv_len = batch.kv_lens[sequence]
    position = kv_len - q_lens[sequence] + offset

    query = jax.lax.div(jnp.arange(block_rows, dtype=jnp.int32), jnp.int32(group))
    used = query[None, :] < queries[:, None]
    where = jnp.where(used, position[:, None] + query[None, :], -1)
    first, end = first_key(where, options), end_key(where, kv_len[:, None], options)
    # Rows of real queries at positions below 0 read nothing either, and count as rows without a query here.
    reads = first < end
    never = jnp.int32(2**31 - 1)
    low = jnp.min(jnp.where(reads, first, never), axis=1)
    high = jnp.max(jnp.where(reads, end, 0), axis=1)
    low = jnp.minimum(low, high)
    whole_low = jnp.max(jnp.where(reads, first, 0), axis=1)
    whole_high = jnp.min(jnp.where(reads, end, never), axis=1)
    first_tile = low // tiles.live
    end_tile = jnp.where(low < high, -(-high // tiles.live), first_tile)
    token = starts[sequence] + offset
    sequence = jnp.where(exists, sequence, -1)
    token = jnp.where(exists, token, 0)
    items = _items(sequence, token, queries, first_tile, end_tile, low, high, whole_low, whole_high, table, tiles)

    token, owner, owned = owners(batch, num_tokens)
    place = token - batch.starts[owner]
    owned &= q_lens[owner] > 0
    at = begins[owner] + place // block_queries
    return Blocks(items, first, end, jnp.clip(at, 0, most - 1), place % block_queries, owned)


def _items(
    sequence: jax.Array,
    token: jax.Array,
    queries: jax.Array,
    first_tile: jax.Array,
    end_tile: jax.Array,
    low: jax.Array,
    high: jax.Array,
    whole_low: jax.Array,
    whole_high: jax.Array,
    table: jax.Array,  # i32[S, pages_per_seq]
    tiles: Tiles,
) -> jax.Array:
    """The list, `i32[len(Field), N]`, with the pages that the items read; all arguments before the table `i32[N]`."""
    last = table.shape[1] - 1
    first_page = jnp.clip(low // tiles.page_size, 0, last)
    last_page = jnp.clip((high - 1) // tiles.page_size, first_page, last)
    place = jnp.arange(table.shape[1], dtype=jnp.int32)[None]
    within = (place >= first_page[:, None]) & (place <= last_page[:, None])
    holes = jnp.any(within & (table[jnp.maximum(sequence, 0)] < 0), axis=1)
    columns = {
        Field.SEQUENCE: sequence,
        Field.TOKEN: token,
        Field.FIRST_TILE: first_tile,
        Field.END_TILE: end_tile,
        Field.LOW: low,
        Field.HIGH: high,
        Field.WHOLE_LOW: whole_low,
        Field.WHOLE_HIGH: whole_high,
        Field.FIRST_PAGE: first_page,
        Field.LAST_PAGE: last_page,
        Field.HOLES: (holes & (low < high)).astype(jnp.int32),
        Field.QUERIES: queries,
    }
    return jnp.stack([columns[field] for field in Field])
