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
    """All items, in order."""
    refs.out_tokens[0] = 0
    refs.out_tokens[1] = 0
    refs.numbers[...] = lax.broadcasted_iota(jnp.int32, refs.numbers.shape, 1)
    item = first_item(refs, blocks, options)
    # Before the first is an item without tokens: what stands in the sums is sent nowhere.
    keep_item(item._replace(number=jnp.int32(-1), job=item.job._replace(tokens=jnp.int32(0))), refs)
    for _ in range(BUFFERS - 1):
        start_queries(item, refs)
        start_pages(item, blocks.keys, refs, blocks, options)
        keep_item(item, refs)
        item = next_item(item, refs, blocks, options)
    keep_item(item, refs)
    step = partial(compute_item, refs=refs, blocks=blocks, options=options)
    ended = lax.while_loop(lambda number: kept_item(number, refs).job.seq < refs.span[1], step, jnp.int32(0))
    last = kept_item(ended - 1, refs)
    wait_output(lax.rem(last.job.number, 2), refs)
    write_output(last, refs, blocks, options)
    send_output(last, refs)
    for buffer in range(2):
        wait_output(jnp.int32(buffer), refs)


def compute_item(number: jax.Array, refs: Refs, blocks: Blocks, options: AnyOptions) -> jax.Array:
    """The item of a number, by code for as many keys as it and the item that is started need; the next one's number."""
    longest = jnp.maximum(kept_item(number, refs).end, kept_item(number + (BUFFERS - 1), refs).end)
    too_short = [(longest > size).astype(jnp.int32) for size in blocks.sizes[:-1]]
    run = partial(compute_keys, number, refs=refs, blocks=blocks, options=options)
    lax.switch(sum(too_short, jnp.int32(0)), [partial(run, size) for size in blocks.sizes])
    return number + 1


def compute_keys(number: jax.Array, size: int, refs: Refs, blocks: Blocks, options: AnyOptions) -> None:
    """One block of queries against the beginning of a block of keys, and the start of a later item's copies.

    Args:
        number: the item's.
        size: keys to look at, at least as many as its block and the later item's have up to their last live ones.
        refs: the kernel's memory.
        blocks: the shapes.
        options: the mask.
    """
    before, item, ahead = (kept_item(number + at, refs) for at in (-1, 0, BUFFERS - 1))
    job = item.job
    start_queries(ahead, refs)

    pl.when(item.is_first)(lambda: wait_queries(job, refs))
    wait_output(lax.rem(before.job.number, 2), refs)
    wait_pages(item, refs, blocks)
    clear_dead_rows(item, size, refs, blocks, options)
    # From here to the output there are no branches: the scalar unit starts copies, and finds the item that comes next,
    # beside the softmax and the second product.
    queries = refs.q_buffers[lax.rem(job.number, BUFFERS)].reshape(blocks.rows, -1)
    keys = refs.kv_buffers[item.buffer, :size].astype(common_dtype(refs))
    scores = masked_scores(queries.astype(keys.dtype), keys, refs.numbers[:, :size], item, blocks, options)
    write_output(before, refs, blocks, options)
    start_pages(ahead, size, refs, blocks, options)
    keep_item(next_item(ahead, refs, blocks, options), refs)
    accumulate(scores, keys[:, : blocks.latent], item.is_first, refs, exponent_unit(options))
    send_output(before, refs)


def common_dtype(refs: Refs) -> Any:
    """What is multiplied: float32 if queries or cache are, else bfloat16."""
    wide = jnp.float32 in (refs.queries.dtype, refs.pages.dtype)
    return jnp.float32 if wide else jnp.bfloat16


def clear_dead_rows(item: Item, size: int, refs: Refs, blocks: Blocks, options: AnyOptions) -> None:
    """Zeroes the values of keys that no query of the job reads, or that aren't there; most blocks have none.

    Their scores are masked, and so their rotary parts stay as they are.
    """
    first, end = item.first, item.end
    holes = refs.span[2] != 0
    pages = refs.kv_buffers.at[item.buffer]

    def clear(i: jax.Array, _: None) -> None:
        begin = i * LANES
        live = live_words(first - begin, end - begin, LANES, 4 // pages.dtype.itemsize, in_v3=True)
        for column in range(0, blocks.latent, LANES):
            part = pages.at[pl.ds(pl.multiple_of(begin, LANES), LANES), pl.ds(column, LANES)]
            part[...] = masked_rows(part[...], live, blocks.emulated)

    @pl.when(jnp.logical_or(holes, jnp.logical_or(first > 0, end < size)))
    def _clear() -> None:
        if skips_keys(options):
            lax.fori_loop(0, lax.div(first + (LANES - 1), LANES), clear, None)
        lax.fori_loop(lax.div(end, LANES), size // LANES, clear, None)
        pl.when(holes)(lambda: drop_missing_pages(item, refs, blocks))


def drop_missing_pages(item: Item, refs: Refs, blocks: Blocks) -> None:
    """Zeroes what stands in place of pages that don't exist, and numbers their keys so that no query reads them."""
    number = lax.broadcasted_iota(jnp.int32, refs.numbers.shape, 1)
    refs.numbers[...] = number

    def drop(i: jax.Array, _: None) -> None:
        @pl.when(page_id(item, i, refs, blocks) < 0)
        def _dropped() -> None:
            begin = pl.multiple_of(i * blocks.page, blocks.page)
            here = jnp.logical_and(number >= begin, number < begin + blocks.page)
            refs.numbers[...] = jnp.where(here, _NOWHERE, refs.numbers[...])
            page = refs.kv_buffers.at[item.buffer, pl.ds(begin, blocks.page)]
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


def accumulate(
    scores: jax.Array,  # f32[rows, keys]
    values: jax.Array,  # [keys, latent]
    begins: jax.Array,  # bool[]
    refs: Refs,
    unit: float,
) -> None:
    """Adds a block to the running softmax, or begins it.

    Rows that read nothing yet gather ones, which the first real score wipes.
    """
    before = jnp.where(begins, NEGATIVE, refs.top[...])
    parts = [scores[:, at : at + LANES] for at in range(0, scores.shape[1], LANES)]
    top = jnp.maximum(before, jnp.max(reduce(jnp.maximum, parts), axis=1, keepdims=True))
    shrink = jnp.exp2((before - top) * unit)
    weights = [jnp.exp2((part - top) * unit) for part in parts]
    refs.top[...] = top
    refs.total[...] = jnp.where(begins, 0.0, shrink * refs.total[...]) + reduce(jnp.add, weights)
    product = jnp.dot(
        jnp.concatenate(weights, axis=1).astype(values.dtype),
        values,
        precision=precision_for(values.dtype),
        preferred_element_type=jnp.float32,
    )
    repeats = values.shape[1] // LANES
    faded = jnp.concatenate([shrink] * repeats, axis=1) * refs.weighted[...]
    refs.weighted[...] = jnp.where(begins, 0.0, faded) + product


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
