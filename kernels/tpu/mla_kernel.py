"""The arithmetic of MLA attention: one block of queries against one block of keys, with a running softmax."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl

from ..masks import end_key, first_key
from ..options import AnyOptions
from ..score_units import exponent_unit, scores_of
from .mla_work import (
    BUFFERS,
    Blocks,
    Item,
    Job,
    Refs,
    first_item,
    next_item,
    output_copy,
    page_id,
    start_item,
    wait_output,
    wait_pages,
    wait_queries,
)
from .words import live_words, masked_rows

__all__ = ["LANES", "kernel"]

LANES = 128
NEGATIVE = -0.7 * float(np.finfo(np.float32).max)

_NOWHERE = -(2**30)
"""The number of a key that isn't there: before the first of any block."""


def kernel(refs: Refs, blocks: Blocks, options: AnyOptions) -> None:
    """All items, in order."""
    refs.out_tokens[0] = 0
    refs.out_tokens[1] = 0
    refs.numbers[...] = lax.broadcasted_iota(jnp.int32, refs.numbers.shape, 1)
    # The items under way, the current one first. None is yet: the first stands in for all.
    items = (first_item(refs, blocks, options),) * BUFFERS

    def start_next(items: tuple[Item, ...]) -> tuple[Item, ...]:
        start_item(items[-1], refs, blocks)
        return (*items[1:], next_item(items[-1], refs, blocks, options))

    def step(items: tuple[Item, ...]) -> tuple[Item, ...]:
        compute_item(items[0], items[-1], refs, blocks, options)
        return (*items[1:], next_item(items[-1], refs, blocks, options))

    items = lax.fori_loop(0, BUFFERS - 1, lambda _, items: start_next(items), items)
    lax.while_loop(lambda items: items[0].job.seq < refs.span[1], step, items)
    for buffer in range(2):
        wait_output(jnp.int32(buffer), refs)


def compute_item(item: Item, ahead: Item, refs: Refs, blocks: Blocks, options: AnyOptions) -> None:
    """One block of queries against one block of keys, and the start of a later item's copies."""
    job = item.job

    @pl.when(item.is_first)
    def _begin() -> None:
        wait_queries(job, refs)
        refs.top[...] = jnp.full_like(refs.top, NEGATIVE)
        refs.total[...] = jnp.zeros_like(refs.total)
        refs.weighted[...] = jnp.zeros_like(refs.weighted)

    wait_pages(item, refs, blocks)
    clear_dead_rows(item, refs, blocks)
    queries = refs.q_buffers[lax.rem(job.number, BUFFERS)].reshape(blocks.rows, -1)
    keys = refs.kv_buffers[item.buffer].reshape(blocks.keys, -1).astype(common_dtype(refs))
    scores = masked_scores(queries.astype(keys.dtype), keys, refs.numbers[...], item, blocks, options)
    start_item(ahead, refs, blocks)
    accumulate(scores, keys[:, : blocks.latent], refs, exponent_unit(options))
    pl.when(item.is_last)(lambda: finish_job(job, refs, blocks, options))


def common_dtype(refs: Refs) -> Any:
    """What is multiplied: float32 if queries or cache are, else bfloat16."""
    wide = jnp.float32 in (refs.queries.dtype, refs.pages.dtype)
    return jnp.float32 if wide else jnp.bfloat16


def clear_dead_rows(item: Item, refs: Refs, blocks: Blocks) -> None:
    """Zeroes the values of keys that no query of the job reads, or that aren't there; most blocks have none.

    Their scores are masked, whatever they are, and so their rotary parts stay.
    """
    begin = item.kv_block * blocks.keys
    first, end = item.job.first - begin, item.job.end - begin
    holes = refs.span[2] != 0

    @pl.when(jnp.logical_or(holes, jnp.logical_or(first > 0, end < blocks.keys)))
    def _clear() -> None:
        pages = refs.kv_buffers.at[item.buffer]
        live = live_words(first, end, blocks.keys, 4 // pages.dtype.itemsize, in_v3=True)
        for column in range(0, blocks.latent, LANES):
            part = pages.at[:, :, pl.ds(column, LANES)]
            rows = masked_rows(part[...].reshape(blocks.keys, LANES), live, blocks.emulated)
            part[...] = rows.reshape(part.shape)
        pl.when(holes)(lambda: drop_missing_pages(item, refs, blocks))


def drop_missing_pages(item: Item, refs: Refs, blocks: Blocks) -> None:
    """Zeroes what stands in place of pages that don't exist, and numbers their keys so that no query reads them."""
    number = lax.broadcasted_iota(jnp.int32, refs.numbers.shape, 1)
    refs.numbers[...] = number

    def drop(i: jax.Array, _: None) -> None:
        @pl.when(page_id(item, i, refs, blocks) < 0)
        def _dropped() -> None:
            here = jnp.logical_and(number >= i * blocks.page, number < (i + 1) * blocks.page)
            refs.numbers[...] = jnp.where(here, _NOWHERE, refs.numbers[...])
            page = refs.kv_buffers.at[item.buffer, i]
            page[...] = jnp.zeros(page.shape, page.dtype)

    lax.fori_loop(0, blocks.pages, drop, None)


def row_positions(job: Job, blocks: Blocks) -> jax.Array:
    """Where the query of each row stands, `i32[rows, 1]`; rows past the job's last token go on counting."""
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
    key = item.kv_block * blocks.keys + numbers
    position = row_positions(item.job, blocks)
    live = jnp.logical_and(key >= first_key(position, options), key < end_key(position, item.job.kv_len, options))
    return jnp.where(live, scores_of(products, options), NEGATIVE)


def accumulate(
    scores: jax.Array,  # f32[rows, keys]
    values: jax.Array,  # [keys, latent]
    refs: Refs,
    unit: float,
) -> None:
    """Adds a block to the running softmax. Rows that read nothing yet gather ones, which the first real score wipes."""
    before = refs.top[...]
    top = jnp.maximum(before, jnp.max(scores, axis=1, keepdims=True))
    shrink = jnp.exp2((before - top) * unit)
    parts = [jnp.exp2((scores[:, i : i + LANES] - top) * unit) for i in range(0, scores.shape[1], LANES)]
    refs.top[...] = top
    refs.total[...] = shrink * refs.total[...] + sum(parts[1:], parts[0])
    weights = jnp.concatenate(parts, axis=1).astype(values.dtype)
    product = jnp.dot(weights, values, precision=precision_for(values.dtype), preferred_element_type=jnp.float32)
    repeats = values.shape[1] // LANES
    refs.weighted[...] = jnp.concatenate([shrink] * repeats, axis=1) * refs.weighted[...] + product


def finish_job(job: Job, refs: Refs, blocks: Blocks, options: AnyOptions) -> None:
    """Divides by the sums and sends the rows off; rows with nothing to read become zeros."""
    live = jnp.logical_not(refs.top[:, :1] <= NEGATIVE)  # NaN is no row without keys
    total = jnp.sum(refs.total[...], axis=1, keepdims=True)
    rows = jnp.where(live, refs.weighted[...] / jnp.where(live, total, 1.0) * options.value_scale, 0.0)
    buffer = lax.rem(job.number, 2)
    wait_output(buffer, refs)
    refs.out_buffers[buffer] = rows.astype(refs.out.dtype).reshape(blocks.tokens, blocks.heads, blocks.latent)
    refs.out_tokens[buffer] = job.tokens
    pl.when(job.tokens > 0)(lambda: output_copy(job.token, job.tokens, buffer, refs).start())
