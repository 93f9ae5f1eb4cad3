"""Which query blocks the general kernel works through, and which keys each of them reads.

A query block is up to ``block_queries`` consecutive tokens of one sequence. The list is made by XLA, on the device,
from the lengths that the kernel is called with: the kernel's scalar unit then follows it without searching. Nothing
here depends on how the work was split before, so no hint of a caller can be wrong.
"""

from enum import IntEnum, unique
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ..layout import round_up
from ..masks import end_key, first_key
from ..options import AttentionOptions
from ..ragged import misses_pages

__all__ = ["Field", "Schedule", "leading_decode_rows", "make_schedule", "most_blocks", "schedule_bytes"]


@unique
class Field(IntEnum):
    """The rows of a schedule: what is known of each query block."""

    SEQUENCE = 0
    """The row of the page table."""

    TOKEN = 1
    """Its first query's row in the ragged batch."""

    COUNT = 2
    """How many queries it has."""

    POSITION = 3
    """Where its first query stands in the sequence; negative where the sequence has fewer tokens than queries."""

    KV_LEN = 4
    """Tokens of its sequence, at most what a row of the page table holds."""

    FIRST_KEY = 5
    """The first key that any of its queries reads."""

    END_KEY = 6
    """The end of the keys that any of its queries reads."""

    WHOLE_FIRST = 7
    """The first key from which on every query reads."""

    WHOLE_END = 8
    """The end of the keys that every query reads: a block of keys between the two needs no mask."""

    FIRST_BLOCK = 9
    """The first key block it reads."""

    END_BLOCK = 10
    """The end of the key blocks it reads; not after the first where there is nothing to read."""

    NEXT = 11
    """The next query block that reads any keys; the number of query blocks if there is none."""


class Schedule(NamedTuple):
    """The query blocks of a call, in the order in which they are worked through.

    Attributes:
        blocks: `i32[len(Field), N]`: N is the most there can be; the columns from the number on are undefined.
        counts: `i32[3]`: how many there are; the first that reads any keys (their number if none does); whether any
            of the pages that are read doesn't exist, 0 or 1.
        table: `i32[S * pages_per_seq]`: the clean page table, row after row.
    """

    blocks: jax.Array
    counts: jax.Array
    table: jax.Array


def most_blocks(num_tokens: int, num_rows: int, block_queries: int) -> int:
    """The most query blocks that a number of tokens of a number of sequences can make. O(1)."""
    return num_tokens // block_queries + min(num_rows, num_tokens)


def schedule_bytes(num_blocks: int) -> int:
    """Scalar memory that a schedule takes: its rows and columns are padded to tiles of 8 by 128. O(1)."""
    return 4 * round_up(len(Field), 8) * round_up(num_blocks, 128)


def leading_decode_rows(
    cu_q_lens: jax.Array,  # i32[S + 1]
    num_seqs: jax.Array,  # i32[1]
    barred: jax.Array,  # bool[S]
    most_queries: int = 1,
) -> jax.Array:
    """How many sequences, from the first on, have few queries each and are not barred: `i32[]`. O(S).

    Args:
        cu_q_lens: `i32[S + 1]`: where each sequence's queries begin.
        num_seqs: `i32[1]`: sequences that there are.
        barred: `bool[S]`: sequences that the decode kernel can't do.
        most_queries: the queries that a sequence may have; it must have one.
    """
    sequence = jnp.arange(cu_q_lens.shape[0] - 1, dtype=jnp.int32)
    q_lens = cu_q_lens[1:] - cu_q_lens[:-1]
    few = (q_lens >= 1) & (q_lens <= most_queries) & (cu_q_lens[0] == 0)
    few &= (sequence < num_seqs[0]) & ~barred
    return jnp.sum(jnp.cumprod(few.astype(jnp.int32)), dtype=jnp.int32)


def make_schedule(
    kv_lens: jax.Array,  # i32[S]
    page_table: jax.Array,  # i32[S, pages_per_seq]
    cu_q_lens: jax.Array,  # i32[S + 1]
    num_seqs: jax.Array,  # i32[1]
    skipped: jax.Array,  # i32[]
    *,
    num_tokens: int,
    page_size: int,
    block_queries: int,
    block_keys: int,
    options: AttentionOptions,
) -> Schedule:
    """The query blocks of a ragged batch. O(S * (N + pages_per_seq)) on the device, N = num_tokens / block_queries + S.

    Lengths that contradict each other never lead out of an array: queries past the batch and keys past the table's
    row are left out.

    Args:
        kv_lens: `i32[S]`: tokens of each sequence, its queries included.
        page_table: `i32[S, pages_per_seq]`, as `clean_table` makes it.
        cu_q_lens: `i32[S + 1]`: where each sequence's queries begin.
        num_seqs: `i32[1]`: sequences that there are.
        skipped: `i32[]`: leading sequences that somebody else attends to.
        num_tokens: T.
        page_size: slots of a page.
        block_queries: queries in a block.
        block_keys: keys in a block.
        options: the mask.

    Returns:
        The schedule.
    """
    num_rows = kv_lens.shape[0]
    most = most_blocks(num_tokens, num_rows, block_queries)
    row = jnp.arange(num_rows, dtype=jnp.int32)
    q_lens = jnp.clip(cu_q_lens[1:] - cu_q_lens[:-1], 0, num_tokens)
    q_lens = jnp.where((row >= skipped) & (row < num_seqs[0]), q_lens, 0)
    ends = jnp.cumsum((q_lens + (block_queries - 1)) // block_queries, dtype=jnp.int32)
    count = jnp.minimum(ends[-1], most)

    block = jnp.arange(most, dtype=jnp.int32)
    sequence = jnp.sum((ends[None, :] <= block[:, None]).astype(jnp.int32), axis=1, dtype=jnp.int32)
    sequence = jnp.minimum(sequence, num_rows - 1)
    q_len, kv_len = q_lens[sequence], jnp.clip(kv_lens[sequence], 0, page_table.shape[1] * page_size)
    before = jnp.where(sequence == 0, 0, ends[sequence - 1])
    offset = (block - before) * block_queries
    token = jnp.clip(cu_q_lens[sequence] + offset, 0, num_tokens)
    queries = jnp.clip(jnp.minimum(q_len - offset, num_tokens - token), 0, block_queries)
    position = kv_lens[sequence] - q_len + offset
    last = position + queries - 1

    first, end = first_key(position, options), end_key(last, kv_len, options)
    first_block = first // block_keys
    end_block = jnp.where(first < end, (end + (block_keys - 1)) // block_keys, first_block)
    reads = (first_block < end_block) & (block < count)
    # The next block that reads: the smallest such index to the right of each.
    index = jnp.where(reads, block, most)
    at_or_after = jax.lax.cummin(index, axis=0, reverse=True)
    following = jnp.minimum(jnp.append(at_or_after[1:], jnp.int32(most)), count)
    columns = {
        Field.SEQUENCE: sequence,
        Field.TOKEN: token,
        Field.COUNT: queries,
        Field.POSITION: position,
        Field.KV_LEN: kv_len,
        Field.FIRST_KEY: first,
        Field.END_KEY: end,
        Field.WHOLE_FIRST: first_key(last, options),
        Field.WHOLE_END: end_key(position, kv_len, options),
        Field.FIRST_BLOCK: first_block,
        Field.END_BLOCK: end_block,
        Field.NEXT: following,
    }
    missing = misses_pages(
        page_table, first_key(kv_lens - q_lens, options), jnp.where(q_lens > 0, kv_lens, 0), page_size
    )
    return Schedule(
        jnp.stack([columns[field] for field in Field]),
        jnp.stack([count, jnp.minimum(at_or_after[0], count), jnp.any(missing).astype(jnp.int32)]),
        page_table.reshape(-1),
    )
