"""Where the tokens of a ragged batch stand: their sequence, their position, their slot.

What callers leave past the last sequence is garbage (ATT-4), and lengths may be wrong where nobody validated
them: everything here comes out within bounds whatever the arrays hold.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

__all__ = ["Lengths", "Owners", "Ragged", "clean_table", "misses_pages", "owners", "ragged", "slots_of_tokens"]


class Lengths(NamedTuple):
    """The four arrays that describe a ragged batch, as callers give them: jax's, or numpy's outside of a program.

    Attributes:
        kv_lens: `i32[S]`: the tokens of each sequence, this step's new ones included.
        page_table: `i32[S, pages_per_seq]`.
        cu_q_lens: `i32[S + 1]`: the row at which each sequence's queries begin, and the end.
        num_seqs: `i32[1]`, or `i32[S]`, of which the first counts: how many sequences there are.
    """

    kv_lens: Any
    page_table: Any
    cu_q_lens: Any
    num_seqs: Any


class Ragged(NamedTuple):
    """The lengths of a batch, cleaned.

    Attributes:
        starts: `i32[S + 1]`: the first query row of each sequence and the end; rising, within [0, T]. Sequences
            that don't exist are empty and stand at the end.
        q_lens: `i32[S]`: the query rows of each.
        kv_lens: `i32[S]`: the tokens of each, within [0, what the table can name]; 0 where there is no sequence.
    """

    starts: jax.Array
    q_lens: jax.Array
    kv_lens: jax.Array


def ragged(
    kv_lens: jax.Array,  # i32[S]
    cu_q_lens: jax.Array,  # i32[S + 1]
    num_seqs: jax.Array,  # i32[1]
    num_tokens: int,
    max_kv_len: int,
) -> Ragged:
    """Cleans the lengths of a batch. O(S).

    Args:
        kv_lens: `i32[S]`.
        cu_q_lens: `i32[S + 1]`.
        num_seqs: `i32[1]`.
        num_tokens: T.
        max_kv_len: what a row of the page table can name.

    Returns:
        The lengths; of a batch that is in order, as they were.
    """
    rows = kv_lens.shape[0]
    count = jnp.clip(num_seqs[0], 0, rows)
    index = jnp.arange(rows + 1, dtype=jnp.int32)
    starts = jnp.where(index <= count, cu_q_lens, cu_q_lens[count])
    starts = jax.lax.cummax(jnp.clip(starts, 0, num_tokens))
    lens = jnp.where(index[:-1] < count, jnp.clip(kv_lens, 0, max_kv_len), 0)
    return Ragged(starts, starts[1:] - starts[:-1], lens)


def clean_table(
    page_table: jax.Array,  # i32[S, pages_per_seq]
    num_pages: int,
) -> jax.Array:
    """What of a page table names pages: `i32[S, pages_per_seq]`, -1 elsewhere. O(S * pages_per_seq).

    Every kernel that copies pages by their ids is given such a table: nothing on the device checks an id.

    Args:
        page_table: `i32[S, pages_per_seq]`: anything in entries that nobody reads.
        num_pages: P.
    """
    return jnp.where((page_table >= 0) & (page_table < num_pages), page_table, -1)


def misses_pages(
    table: jax.Array,  # i32[S, pages_per_seq]
    first: jax.Array,  # i32[S]
    end: jax.Array,  # i32[S]
    page_size: int,
) -> jax.Array:
    """Which sequences read a page that does not exist: `bool[S]`. O(S * pages_per_seq).

    Args:
        table: as `clean_table` makes it.
        first: the first key that any query of the sequence reads.
        end: the end of the keys that any of them reads; not after ``first`` where nothing is read.
        page_size: slots of a page.
    """
    starts = jnp.arange(table.shape[1], dtype=jnp.int32)[None, :] * page_size
    read = (starts + page_size > first[:, None]) & (starts < end[:, None]) & (first < end)[:, None]
    return jnp.any(read & (table < 0), axis=1)


class Owners(NamedTuple):
    """Which sequence each query token belongs to.

    Attributes:
        token: `i32[T]`: the tokens' numbers in the batch.
        row: `i32[T]`: the row of the sequence; the last one for tokens of no sequence.
        owned: `bool[T]`: whether it has one.
    """

    token: jax.Array
    row: jax.Array
    owned: jax.Array


def owners(batch: Ragged, num_tokens: int) -> Owners:
    """Which sequence each of T query tokens belongs to. O(T * S), in comparisons side by side, without a loop."""
    token = jnp.arange(num_tokens, dtype=jnp.int32)
    row = jnp.searchsorted(batch.starts[1:], token, side="right", method="compare_all").astype(jnp.int32)
    last = batch.kv_lens.shape[0] - 1
    return Owners(token, jnp.minimum(row, last), row <= last)


def slots_of_tokens(
    batch: Ragged,
    page_table: jax.Array,  # i32[S, pages_per_seq]
    num_tokens: int,
    num_pages: int,
    page_size: int,
) -> jax.Array:
    """The slot of every query token, through the page table (TAB-7). O(T * S), in comparisons side by side.

    Without a loop, so that XLA finds the slots once for all layers of a step.

    Args:
        batch: the lengths; the last ``q_len`` tokens of a sequence are the query's.
        page_table: `i32[S, pages_per_seq]`.
        num_tokens: T.
        num_pages: P.
        page_size: slots of a page.

    Returns:
        `i32[T]`: page * page_size + offset; -1 for rows of no sequence, for positions below 0, and where the table
        names no page: never clipped to another.
    """
    token, sequence, owned = owners(batch, num_tokens)
    position = batch.kv_lens[sequence] - batch.starts[sequence + 1] + token
    owned &= position >= 0
    position = jnp.where(owned, position, 0)
    page = page_table[sequence, position // page_size]
    owned &= (page >= 0) & (page < num_pages)
    return jnp.where(owned, jnp.where(owned, page, 0) * page_size + position % page_size, -1)
