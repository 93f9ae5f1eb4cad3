"""The arithmetic of MLA attention: one block of queries against one block of keys, with a running softmax."""

from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl

from ..masks import end_key, first_key, skips_keys
from ..options import AnyOptions
from ..score_units import exponent_unit, scores_of
from .mla_work import (
    AHEAD,
    BUFFERS,
    Blocks,
    Item,
    Job,
    Refs,
    first_item,
    keep_item,
    kept_item,
    next_item,
    output_copy,
    page_id,
    page_range,
    start_pages,
    start_queries,
    wait_output,
    wait_pages,
    wait_queries,
)
from .words import live_words, masked_rows

__all__ = ["LANES", "kernel"]

LANES = 128
NEGATIVE = -0.7 * float(np.finfo(np.float32).max)

_NOWHERE = 2**30
"""The number of a key that isn't there: behind the end of any block."""


def kernel(refs: Refs, blocks: Blocks, options: AnyOptions) -> None:
    """All items, in order: the scores of each beside the softmax and the values of the one before."""
    refs.out_tokens[0] = 0
    refs.out_tokens[1] = 0
    refs.numbers[...] = lax.broadcasted_iota(jnp.int32, refs.numbers.shape, 1)
    item = first_item(refs, blocks, options)
    # Before the first are items without tokens: what stands in the sums is sent nowhere.
    nothing = item._replace(job=item.job._replace(tokens=jnp.int32(0)), first=jnp.int32(0), end=jnp.int32(0))
    for number in (-2, -1):
        keep_item(nothing._replace(number=jnp.int32(number)), refs)
    for _ in range(AHEAD):
        start_queries(item, refs)
        start_pages(item, blocks.keys, refs, blocks, options)
        keep_item(item, refs)
        item = next_item(item, refs, blocks, options)
    keep_item(item, refs)
    step = partial(compute_item, refs=refs, blocks=blocks, options=options)
    ended = lax.while_loop(lambda number: kept_item(number - 1, refs).job.seq < refs.span[1], step, jnp.int32(0))
    last = kept_item(ended - 2, refs)
    wait_output(lax.rem(last.job.number, 2), refs)
    write_output(last, refs, blocks, options)
    send_output(last, refs)
    for buffer in range(2):
        wait_output(jnp.int32(buffer), refs)


def compute_item(number: jax.Array, refs: Refs, blocks: Blocks, options: AnyOptions) -> jax.Array:
    """The item of a number, by code for as many keys as all items that it works with need; the next one's number."""
    longest = reduce(jnp.maximum, [kept_item(number + at, refs).end for at in (-1, 0, AHEAD)])
    too_short = [(longest > size).astype(jnp.int32) for size in blocks.sizes[:-1]]
    run = partial(compute_keys, number, refs=refs, blocks=blocks, options=options)
    lax.switch(sum(too_short, jnp.int32(0)), [partial(run, size) for size in blocks.sizes])
    return number + 1


def compute_keys(number: jax.Array, size: int, refs: Refs, blocks: Blocks, options: AnyOptions) -> None:
    """The scores of an item, the softmax and the values of the one before, and the start of a later one's copies.

    Args:
        number: the item's.
        size: keys to look at, at least as many as the blocks of the three have up to their last live ones.
        refs: the kernel's memory.
        blocks: the shapes.
        options: the mask.
    """
    done, before, item, ahead = (kept_item(number + at, refs) for at in (-2, -1, 0, AHEAD))
    start_queries(ahead, refs)

    pl.when(item.is_first)(lambda: wait_queries(item.job, refs))
    wait_output(lax.rem(done.job.number, 2), refs)
    wait_pages(item, refs, blocks)
    clear_dead_keys(before, size, refs, blocks, options)
    pl.when(refs.span[2] != 0)(lambda: drop_missing_pages(item, refs, blocks))
    # From here to the output there are no branches. The products with keys need nothing of the softmax, whose latency
    # they hide; the scalar unit starts copies, and finds the item that comes next, beside the products with values.
    write_output(done, refs, blocks, options)
    weights, shrink = softmax(before, size, refs, exponent_unit(options))
    keep_scores(item, size, refs, blocks, options)
    add_values(before, weights, shrink, refs, blocks)
    start_pages(ahead, size, refs, blocks, options)
    keep_item(next_item(ahead, refs, blocks, options), refs)
    send_output(done, refs)


def common_dtype(refs: Refs) -> Any:
    """What is multiplied: float32 if queries or cache are, else bfloat16."""
    wide = jnp.float32 in (refs.queries.dtype, refs.pages.dtype)
    return jnp.float32 if wide else jnp.bfloat16


def clear_dead_keys(item: Item, size: int, refs: Refs, blocks: Blocks, options: AnyOptions) -> None:
    """Zeroes the values of keys that no query of the job reads, or that aren't there; most blocks have none.

    Their scores were masked as far as they were looked at, and are now up to the size; their rotary parts stay.
    """
    first, end = item.first, item.end
    pages, tiles = refs.kv_buffers.at[item.buffer], LANES // blocks.tile

    def clear(i: jax.Array, _: None) -> None:
        begin = i * LANES
        live = live_words(first - begin, end - begin, LANES, 4 // pages.dtype.itemsize, in_v3=True)
        for column in range(0, blocks.latent, LANES):
            part = pages.at[pl.ds(i * tiles, tiles), :, pl.ds(column, LANES)]
            part[...] = masked_rows(rows_of(part[...]), live, blocks.emulated).reshape(part.shape)

    def clear_end(i: jax.Array, _: None) -> None:
        clear(i, None)
        here = pl.ds(pl.multiple_of(i * LANES, LANES), LANES)
        number = i * LANES + lax.broadcasted_iota(jnp.int32, (blocks.rows, LANES), 1)
        refs.scores[:, here] = jnp.where(number < end, refs.scores[:, here], NEGATIVE)

    @pl.when(jnp.logical_or(first > 0, end < size))
    def _clear() -> None:
        if skips_keys(options):
            lax.fori_loop(0, lax.div(first + (LANES - 1), LANES), clear, None)
        lax.fori_loop(lax.div(end, LANES), size // LANES, clear_end, None)


def drop_missing_pages(item: Item, refs: Refs, blocks: Blocks) -> None:
    """Zeroes what stands in place of pages that don't exist, and numbers their keys so that no query reads them."""
    tiles = blocks.page // blocks.tile
    number = lax.broadcasted_iota(jnp.int32, refs.numbers.shape, 1)
    refs.numbers[...] = number

    def drop(i: jax.Array, _: None) -> None:
        @pl.when(page_id(item, i, refs, blocks) < 0)
        def _dropped() -> None:
            begin = i * blocks.page
            here = jnp.logical_and(number >= begin, number < begin + blocks.page)
            refs.numbers[...] = jnp.where(here, _NOWHERE, refs.numbers[...])
            page = refs.kv_buffers.at[item.buffer, pl.ds(i * tiles, tiles)]
            page[...] = jnp.zeros(page.shape, page.dtype)

    lax.fori_loop(0, page_range(item, blocks)[1], drop, None)


def row_positions(job: Job, blocks: Blocks) -> jax.Array:
    """Where the query of each row stands, `i32[rows, 1]`, or `i32[]` where blocks have one token.

    Rows past the job's last token go on counting.
    """
    if blocks.tokens == 1:
        return job.position
    token = lax.broadcasted_iota(jnp.int32, (blocks.tokens, blocks.heads, 1), 0)
    return job.position + token.reshape(blocks.rows, 1)


def precision_for(dtype: Any) -> lax.Precision:
    """Products of float32 are to be as exact as their type."""
    return lax.Precision.HIGHEST if dtype == jnp.float32 else lax.Precision.DEFAULT


def masked_scores(
    queries: jax.Array,  # [rows, W]
    keys: jax.Array,  # [keys, W]
    numbers: jax.Array,  # i32[1, keys]
    item: Item,
    blocks: Blocks,
    options: AnyOptions,
) -> jax.Array:
    """The scores of a block, `NEGATIVE` where a query doesn't read, `f32[rows, keys]`."""
    products = lax.dot_general(
        queries,
        keys,
        (((1,), (1,)), ((), ())),
        precision=precision_for(keys.dtype),
        preferred_element_type=jnp.float32,
    )
    begin = item.kv_block * blocks.keys
    number = jnp.broadcast_to(numbers, products.shape)
    position = row_positions(item.job, blocks)
    live = number < jnp.minimum(end_key(position, item.job.kv_len, options) - begin, blocks.keys)
    if skips_keys(options):
        live = jnp.logical_and(live, number >= first_key(position, options) - begin)
    return jnp.where(live, scores_of(products, options), NEGATIVE)


def softmax(item: Item, size: int, refs: Refs, unit: float) -> tuple[jax.Array, jax.Array]:
    """Takes the scores that are kept of an item into the running softmax, or begins it with them.

    Rows that read nothing yet gather ones, which the first real score wipes.

    Returns:
        The weights, `f32[rows, size]`, and what the sums up to here are multiplied by, `f32[rows, 128]`.
    """
    before = jnp.where(item.is_first, NEGATIVE, refs.top[...])
    top = jnp.maximum(before, jnp.max(refs.peaks[...], axis=1, keepdims=True))
    shrink = jnp.exp2((before - top) * unit)
    weights = [jnp.exp2((part - top) * unit) for part in lane_columns(refs.scores[:, :size])]
    refs.top[...] = top
    refs.total[...] = jnp.where(item.is_first, 0.0, shrink * refs.total[...]) + reduce(jnp.add, weights)
    return jnp.concatenate(weights, axis=1), shrink


def keep_scores(item: Item, size: int, refs: Refs, blocks: Blocks, options: AnyOptions) -> None:
    """Keeps the scores of an item for the next one's turn."""
    queries = refs.q_buffers[lax.rem(item.job.number, BUFFERS)].reshape(blocks.rows, -1)
    keys = rows_of(refs.kv_buffers[item.buffer, : size // blocks.tile]).astype(common_dtype(refs))
    scores = masked_scores(queries.astype(keys.dtype), keys, refs.numbers[:, :size], item, blocks, options)
    refs.scores[:, :size] = scores
    refs.peaks[...] = reduce(jnp.maximum, lane_columns(scores))


def rows_of(tiles: jax.Array) -> jax.Array:
    """Tiles of slots as their rows: `[n, tile, columns]` to `[n * tile, columns]`."""
    return tiles.reshape(-1, tiles.shape[2])


def lane_columns(rows: jax.Array) -> list[jax.Array]:
    """Rows cut into parts of 128 columns."""
    return [rows[:, at : at + LANES] for at in range(0, rows.shape[1], LANES)]


def add_values(item: Item, weights: jax.Array, shrink: jax.Array, refs: Refs, blocks: Blocks) -> None:
    """Adds an item's values, weighted, to the sums, or begins them."""
    tiles = weights.shape[1] // blocks.tile
    values = rows_of(refs.kv_buffers[item.buffer, :tiles, :, : blocks.latent]).astype(common_dtype(refs))
    product = jnp.dot(
        weights.astype(values.dtype),
        values,
        precision=precision_for(values.dtype),
        preferred_element_type=jnp.float32,
    )
    faded = jnp.concatenate([shrink] * (blocks.latent // LANES), axis=1) * refs.weighted[...]
    refs.weighted[...] = jnp.where(item.is_first, 0.0, faded) + product


def write_output(item: Item, refs: Refs, blocks: Blocks, options: AnyOptions) -> None:
    """Divides an item's sums and writes its job's output as it is so far; it counts behind the job's last item.

    Rows with nothing to read become zeros.
    """
    job = item.job
    live = jnp.logical_not(refs.top[:, :1] <= NEGATIVE)  # NaN is no row without keys
    total = jnp.sum(refs.total[...], axis=1, keepdims=True)
    factor = options.value_scale / jnp.where(live, total, 1.0)
    rows = jnp.where(live, refs.weighted[...] * factor, 0.0)
    buffer = lax.rem(job.number, 2)
    refs.out_buffers[buffer] = rows.astype(refs.out.dtype).reshape(blocks.tokens, blocks.heads, blocks.latent)


def send_output(item: Item, refs: Refs) -> None:
    """Starts the copy of a job's output from VMEM, if the item is the job's last."""
    job = item.job
    buffer = lax.rem(job.number, 2)
    refs.out_tokens[buffer] = jnp.where(item.is_last, job.tokens, 0)
    is_sent = jnp.logical_and(item.is_last, job.tokens > 0)
    pl.when(is_sent)(lambda: output_copy(job.token, job.tokens, buffer, refs).start())
