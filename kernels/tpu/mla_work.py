"""The work of an MLA call as a list of items, and the copies that an item needs.

An item is a block of query tokens of a sequence with a block of the sequence's keys. Which comes next, and what it
reads, is worked out by the scalar unit as the kernel goes, from the lengths alone.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ..masks import end_key, first_key, skips_keys
from ..options import AnyOptions

__all__ = [
    "AHEAD",
    "BUFFERS",
    "FIELDS",
    "ITEMS",
    "Blocks",
    "Item",
    "Job",
    "Refs",
    "first_item",
    "keep_item",
    "kept_item",
    "next_item",
    "output_copy",
    "page_id",
    "page_range",
    "start_pages",
    "start_queries",
    "wait_output",
    "wait_pages",
    "wait_queries",
]

Ref = Any

BUFFERS = 4
"""Blocks of keys in VMEM: of one the keys are read, of the one before the values, two are under way. A power of two."""

AHEAD = BUFFERS - 2
"""How many items before its own the copies of an item are started."""

ITEMS = 8
"""Items that are remembered: the two before, the current one and `AHEAD` + 1 that follow; a power of two."""

SHORT_BLOCKS = (256, 1024)
"""Keys of a block for which there is code of its own: a sequence's last block, and all of a short one's, end early."""


@dataclass(frozen=True)
class Blocks:
    """How one call is cut into blocks.

    Attributes:
        tokens: query tokens of a block.
        pages: pages of a block of keys.
        page: slots of a page.
        heads: query heads, padded to whole tiles.
        latent: columns of a value, padded.
        pages_per_seq: entries of a row of the page table.
        tile: slots of a tile of the cache in HBM. Pages and buffers have a dimension of them, so that VMEM is tiled
            alike: 7x would take tiles of 16 slots of 16 bits there, and 15 bundles to start a copy between the two.
        emulated: whether the kernel is interpreted.
    """

    tokens: int
    pages: int
    page: int
    heads: int
    latent: int
    pages_per_seq: int
    tile: int = 8
    emulated: bool = False

    @property
    def sizes(self) -> tuple[int, ...]:
        """Keys of a block's beginning that there is code for, rising: what is taken fits all that is live in it."""
        return (*(size for size in SHORT_BLOCKS if size < self.keys and size % self.page == 0), self.keys)

    @property
    def keys(self) -> int:
        """Keys of a block."""
        return self.pages * self.page

    @property
    def rows(self) -> int:
        """Rows of a block of queries."""
        return self.tokens * self.heads


class Refs(NamedTuple):
    """The kernel's memory."""

    span: Ref  # i32[3]: first and end of the sequences of this call; whether a page that is read does not exist
    kv_lens: Ref  # i32[S]
    cu_q_lens: Ref  # i32[S + 1]
    page_table: Ref  # i32[S * pages_per_seq + pages]: the clean table, -1 for what names no page; a block's beyond it
    queries: Ref  # [T, heads, W], HBM
    pages: Ref  # [P, page / tile, tile, W], HBM
    zeros: Ref  # the memory of `out` as it came in
    out: Ref  # [T, heads, latent], HBM
    kv_buffers: Ref  # [BUFFERS, keys / tile, tile, W]
    q_buffers: Ref  # [BUFFERS, tokens, heads, W]
    out_buffers: Ref  # [2, tokens, heads, latent]
    top: Ref  # f32[rows, 128]: the largest score so far, in every lane
    total: Ref  # f32[rows, 128]: sums of weights, each lane its own columns
    weighted: Ref  # f32[rows, latent]: sums of weighted values
    scores: Ref  # f32[rows, keys]: of the item before, `NEGATIVE` where a query doesn't read
    peaks: Ref  # f32[rows, 128]: the largest of them, each lane's own
    numbers: Ref  # i32[1, keys]: where in its block the key of each column stands; 2^30 for one that isn't there
    items: Ref  # i32[ITEMS * FIELDS], SMEM: the items under way, of each its numbers
    out_tokens: Ref  # i32[2], SMEM: tokens under way from each buffer of `out_buffers`
    kv_semaphores: Ref
    q_semaphores: Ref
    out_semaphores: Ref


class Job(NamedTuple):
    """A block of queries of a sequence.

    Attributes:
        number: how many jobs came before.
        seq: its sequence; from the span's end on there is no work.
        q_block: which block of the sequence's queries.
        token: its first token, a row of the queries.
        tokens: how many it has, 0 for a sequence without.
        position: where the first stands.
        kv_len: tokens of the sequence.
        first: the first key that any of its queries reads.
        end: the end of the keys that any of them reads.
        first_block: its first block of keys.
        end_block: the end of them; at least one, so that rows with nothing to read are written.
        end_q_block: the blocks of queries of the sequence.
    """

    number: jax.Array
    seq: jax.Array
    q_block: jax.Array
    token: jax.Array
    tokens: jax.Array
    position: jax.Array
    kv_len: jax.Array
    first: jax.Array
    end: jax.Array
    first_block: jax.Array
    end_block: jax.Array
    end_q_block: jax.Array


class Item(NamedTuple):
    """One item of work.

    Attributes:
        number: how many items came before.
        job: what it has in common with the other items of its block of queries.
        kv_block: which block of the sequence's keys.
        first: the first key that any query of its job reads, counted within the block.
        end: the end of the keys that any of them reads, counted within the block.
    """

    number: jax.Array
    job: Job
    kv_block: jax.Array
    first: jax.Array
    end: jax.Array

    @property
    def buffer(self) -> jax.Array:
        """Where its keys lie."""
        buffer: jax.Array = self.number & (BUFFERS - 1)
        return buffer

    @property
    def is_first(self) -> jax.Array:
        """Whether it is the first of its job."""
        return self.kv_block == self.job.first_block

    @property
    def is_last(self) -> jax.Array:
        """Whether it is the last of its job."""
        return self.kv_block + 1 == self.job.end_block


FIELDS = len(Job._fields) + len(Item._fields) - 1
"""The numbers of an item, its job's among them."""


def keep_item(item: Item, refs: Refs) -> None:
    """Writes an item down, over the one that came `ITEMS` before.

    In scalar memory, as a loop that carries all items moves all their numbers in each turn, one a cycle.
    """
    for field, number in enumerate(jax.tree.leaves(item)):
        refs.items[_kept_at(item.number) + field] = number


def kept_item(number: jax.Array, refs: Refs) -> Item:
    """The item of a number that was written down."""
    at, *rest = (refs.items[_kept_at(number) + field] for field in range(FIELDS))
    jobs = len(Job._fields)
    return Item(at, Job(*rest[:jobs]), *rest[jobs:])


def _kept_at(number: jax.Array) -> jax.Array:
    at: jax.Array = (number & (ITEMS - 1)) * FIELDS
    return at


def first_item(refs: Refs, blocks: Blocks, options: AnyOptions) -> Item:
    """The first item of the call, or one past its span."""
    zero = jnp.int32(0)
    job = job_of(zero, refs.span[0], zero, refs, blocks, options)
    return item_of(zero, job, job.first_block, blocks)


def next_item(item: Item, refs: Refs, blocks: Blocks, options: AnyOptions) -> Item:
    """The item after this one: the next block of keys, else of queries, else the next sequence."""
    job = item.job
    more_queries = jnp.logical_and(item.is_last, job.q_block + 1 < job.end_q_block)
    number = jnp.where(item.is_last, job.number + 1, job.number)
    seq = jnp.where(jnp.logical_and(item.is_last, jnp.logical_not(more_queries)), job.seq + 1, job.seq)
    q_block = jnp.where(more_queries, job.q_block + 1, jnp.where(item.is_last, 0, job.q_block))
    job = job_of(number, seq, q_block, refs, blocks, options)
    return item_of(item.number + 1, job, jnp.where(item.is_last, job.first_block, item.kv_block + 1), blocks)


def item_of(number: jax.Array, job: Job, kv_block: jax.Array, blocks: Blocks) -> Item:
    """A block of queries with a block of keys, and which of the keys any of its queries reads."""
    begin = kv_block * blocks.keys
    first, end = (jnp.clip(key - begin, 0, blocks.keys) for key in (job.first, job.end))
    return Item(number, job, kv_block, first, end)


def job_of(
    number: jax.Array, seq: jax.Array, q_block: jax.Array, refs: Refs, blocks: Blocks, options: AnyOptions
) -> Job:
    """A block of queries and what it reads; nothing from the end of the span on."""
    exists = seq < refs.span[1]
    row = jnp.minimum(seq, refs.kv_lens.shape[0] - 1)
    begin = refs.cu_q_lens[row]
    q_len = jnp.where(exists, refs.cu_q_lens[row + 1] - begin, 0)
    kv_len = refs.kv_lens[row]
    done = q_block * blocks.tokens
    tokens = jnp.clip(q_len - done, 0, blocks.tokens)
    position = kv_len - q_len + done
    end = jnp.where(tokens > 0, end_key(position + tokens - 1, kv_len, options), 0)
    first = jnp.minimum(first_key(position, options), end)
    first_block = lax.div(first, blocks.keys)
    end_block = jnp.maximum(lax.div(end + (blocks.keys - 1), blocks.keys), first_block + 1)
    end_q_block = lax.div(q_len + (blocks.tokens - 1), blocks.tokens)
    return Job(
        number, seq, q_block, begin + done, tokens, position, kv_len, first, end, first_block, end_block, end_q_block
    )


def page_range(item: Item, blocks: Blocks) -> tuple[jax.Array, jax.Array]:
    """The pages of an item's block of keys that hold a key to read: first and end, counted within the block."""
    return lax.div(item.first, blocks.page), lax.div(item.end + (blocks.page - 1), blocks.page)


def start_pages(item: Item, size: int, refs: Refs, blocks: Blocks, options: AnyOptions) -> None:
    """Starts the copies of an item's keys; none from the end of the span on.

    Args:
        item: the item.
        size: keys, at least as many as the item's block has up to its last live one.
        refs: the kernel's memory.
        blocks: the shapes.
        options: the mask.
    """
    first, end = page_range(item, blocks)
    for i in range(size // blocks.page):
        start = partial(start_page, page_id(item, i, refs, blocks), item.buffer, i, refs, blocks)
        pl.when(jnp.logical_and(first <= i, i < end) if skips_keys(options) else i < end)(start)


def start_queries(item: Item, refs: Refs) -> None:
    """Starts the copy of a job's queries with that of its first keys; none from the end of the span on."""
    pl.when(jnp.logical_and(item.is_first, item.job.tokens > 0))(lambda: query_copy(item.job, refs).start())


def page_id(item: Item, index: int | jax.Array, refs: Refs, blocks: Blocks) -> jax.Array:
    """The id of a page of an item's block of keys; -1 where the table names none, anything past a sequence's row."""
    row = jnp.minimum(item.job.seq, refs.kv_lens.shape[0] - 1) * blocks.pages_per_seq
    named: jax.Array = refs.page_table[row + item.kv_block * blocks.pages + index]
    return named


def start_page(page_id: jax.Array, buffer: jax.Array, index: int, refs: Refs, blocks: Blocks) -> None:
    """Starts the copy of a page into a buffer; of the first page in place of one that does not exist."""
    tiles = blocks.page // blocks.tile
    slots = refs.kv_buffers.at[buffer, pl.ds(index * tiles, tiles)]
    page = refs.pages.at[jnp.maximum(page_id, 0)]
    pltpu.make_async_copy(page, slots, refs.kv_semaphores.at[buffer]).start()


def query_copy(job: Job, refs: Refs) -> Any:
    """The copy of a job's queries into its buffer."""
    buffer = lax.rem(job.number, BUFFERS)
    size = copied_tokens(job.tokens, refs)
    tokens = refs.queries.at[pl.ds(job.token, size)]
    return pltpu.make_async_copy(tokens, refs.q_buffers.at[buffer, pl.ds(0, size)], refs.q_semaphores.at[buffer])


def output_copy(token: jax.Array, tokens: jax.Array, buffer: jax.Array, refs: Refs) -> Any:
    """The copy of a job's output from its buffer."""
    size = copied_tokens(tokens, refs)
    rows = refs.out_buffers.at[buffer, pl.ds(0, size)]
    return pltpu.make_async_copy(rows, refs.out.at[pl.ds(token, size)], refs.out_semaphores.at[buffer])


def copied_tokens(tokens: jax.Array, refs: Refs) -> int | jax.Array:
    """How many tokens a copy of a job with some has: where all have one it is known beforehand, and costs nothing."""
    return 1 if refs.q_buffers.shape[1] == 1 else tokens


def wait_pages(item: Item, refs: Refs, blocks: Blocks) -> None:
    """Waits for all pages of an item at once: for as many bytes as they have."""
    first, end = page_range(item, blocks)
    pages = refs.kv_buffers.at[item.buffer, pl.ds(0, (end - first) * (blocks.page // blocks.tile))]
    copy: Any = pltpu.make_async_copy(pages, pages, refs.kv_semaphores.at[item.buffer])
    pl.when(first < end)(lambda: copy.wait())


def wait_queries(job: Job, refs: Refs) -> None:
    """Waits for the queries of a job."""
    pl.when(job.tokens > 0)(lambda: query_copy(job, refs).wait())


def wait_output(buffer: jax.Array, refs: Refs) -> None:
    """Waits until a buffer of output rows is free."""
    tokens = refs.out_tokens[buffer]
    pl.when(tokens > 0)(lambda: output_copy(jnp.int32(0), tokens, buffer, refs).wait())
