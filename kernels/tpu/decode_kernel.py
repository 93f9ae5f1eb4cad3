"""The decode kernel: few query tokens a sequence, one or those of a draft, and few enough bundles to be bound by HBM.

Blocks    A sequence's live tokens are cut into blocks; the blocks of all sequences of a grid step form one flat list. A
          block's pages are copied from HBM one by one, its bytes waited for once. The code is unrolled over the
          buffers, which are allocations of their own: the compiler then sees that copies into one don't touch what is
          read from another; one pass over them is a round. With three buffers the block after the one waited for is in
          flight at every wait.
Round     One stretch of code without branches. For each block: wait; scores of all pairs of heads; start the copies of
          the block ahead; softmax; weigh the values; write what the output would be if this were the last block. So the
          scalar work of the copies is issued beside the pushes into the matrix unit, which are what binds.
Pairs     Keys of two heads, side by side, are the stationary operand `[tokens, 256]`, and so are values; the queries
          are a block-diagonal matrix `[2GQ, 256]`. Scores then come out as full tiles `[2G, tokens]` of 8 sublanes
          where G = 4, and matrix units of 256 columns are filled. Of the weighed values `[2G, 256]` each head keeps
          its own half. A head whose rows have 256 numbers fills the unit alone: its pair is the two halves.
Softmax   In powers of two, in the units of `score_units`. The largest score of a row is found once in a
          block: it is the only step across lanes; the sum of the weights stays one per lane until the output.
Dead      Scores of dead columns are masked; values of dead rows are zeroed, for zero times NaN is NaN: what stands in
          dead slots, or in a buffer from another sequence, can't show (ATT-3).
Short     Where no block that a round works with has more live tokens than a smaller size, code for that size is run,
          in which each block is scored while the one before is weighed.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from ..layout import LANES
from ..score_units import exponent_unit, scores_of
from .decode_plan import DecodePlan
from .decode_walk import Place, Ref, Work, first_place, next_place, read_range, start_block, wait_block
from .words import combined_row, live_words, load_words, token_of

__all__ = ["decode_kernel"]

_MASKED = -0.7 * 3.4028235e38
"""The score of a dead column: finite, so that differences of two of them are."""


def decode_kernel(plan: DecodePlan, *refs: Ref) -> None:
    """The body of the kernel, for one grid step; see the module.

    Args:
        plan: the static numbers.
        refs: rounds `i32[steps]`, then those of `Work` that are there, in its order.
    """
    rounds, *rest = refs
    at = iter(rest)
    work = Work(
        plan=plan,
        live=next(at),
        q_lens=next(at) if plan.queries > 1 else None,
        first_page=next(at) if plan.windowed else None,
        in_chunk=next(at) if plan.chunk is not None else None,
        table=next(at),
        queries=next(at),
        sinks=next(at) if plan.has_sinks else None,
        pages=next(at),
        scales=next(at) if plan.scaled else None,
        output=next(at),
        buffers=[next(at) for _ in range(plan.blocks.buffers)],
        scale_buffers=[next(at) for _ in range(plan.blocks.buffers)] if plan.scaled else [],
        largest=next(at),
        sums=next(at),
        weighed=next(at),
        arrived=next(at),
    )
    clear_output(work)
    ahead = plan.blocks.buffers - 1
    window = [first_place(work)]
    for _ in range(2 * ahead):
        window.append(next_place(work, window[-1]))
    for buffer in range(ahead):
        start_block(work, window[buffer], buffer, plan.tokens)

    def turn(_: jax.Array, places: tuple[Place, ...]) -> tuple[Place, ...]:
        return run_round(work, places)

    lax.fori_loop(0, rounds[pl.program_id(0)], turn, tuple(window))


def clear_output(work: Work) -> None:
    """Zeros for the rows that are not decoded."""

    def clear(row: jax.Array, _: None) -> None:
        work.output[row] = jnp.zeros(work.output.shape[1:], work.output.dtype)

    lax.fori_loop(0, work.plan.rows, clear, None)


def run_round(work: Work, window: tuple[Place, ...]) -> tuple[Place, ...]:
    """One block in each buffer, by code for the smallest size that all blocks it works with fit into.

    Args:
        work: what to work with.
        window: the blocks of this round and those that follow, up to the last whose copies are started in it.

    Returns:
        the window of the next round.
    """
    blocks = work.plan.blocks
    longest = window[0].live
    for place in window[1:]:
        longest = jnp.maximum(longest, place.live)

    def run(size: int) -> tuple[Place, ...]:
        (one_by_one if size == blocks.tokens else overlapped)(work, size, window)
        # Within the branch, so that this scalar work, too, is issued beside the vector unit's.
        places = list(window[blocks.buffers :])
        previous = window[-1]
        while len(places) < len(window):
            previous = next_place(work, previous)
            places.append(previous)
        return tuple(places)

    if not blocks.short:
        return run(blocks.tokens)
    too_short = [(longest > size).astype(jnp.int32) for size in blocks.short]
    chosen: tuple[Place, ...] = lax.switch(
        sum(too_short, jnp.int32(0)), [partial(run, size) for size in (*blocks.short, blocks.tokens)]
    )
    return chosen


def one_by_one(work: Work, size: int, window: Sequence[Place]) -> None:
    """A round of long blocks, one after the other.

    Args:
        work: what to work with.
        size: tokens to look at of each block, at least as many as are live.
        window: the blocks: those of the round, and those to start in it.
    """
    buffers = work.plan.blocks.buffers
    for buffer in range(buffers):
        wait_block(work, window[buffer], buffer)
        scored = score_block(work, size, window[buffer], buffer)
        start_block(work, window[buffer + buffers - 1], (buffer - 1) % buffers, size)
        add_block(work, size, window[buffer], buffer, scored)


def overlapped(work: Work, size: int, window: Sequence[Place]) -> None:
    """A round of short blocks: each is scored beside the softmax of the one before, whose latency would show.

    Long blocks hide it by themselves, and would have to keep more numbers than there are registers.

    Args:
        work: what to work with.
        size: tokens to look at of each block, at least as many as are live.
        window: the blocks: those of the round, and those to start in it.
    """
    buffers = work.plan.blocks.buffers
    before = None
    for buffer in range(buffers):
        wait_block(work, window[buffer], buffer)
        scored = score_block(work, size, window[buffer], buffer)
        if before is not None:
            add_block(work, size, window[buffer - 1], buffer - 1, before)
        start_block(work, window[buffer + buffers - 1], (buffer - 1) % buffers, size)
        before = scored
    assert before is not None
    add_block(work, size, window[buffers - 1], buffers - 1, before)


class Scored(NamedTuple):
    """What is known of a block before its values are added.

    Attributes:
        scores: for each pair of heads `f32[query rows, size]`.
        scales: `f32[2H, size]`: those of the tokens' keys and values, zero where dead; None: there are none.
    """

    scores: list[jax.Array]
    scales: jax.Array | None


def score_block(work: Work, size: int, place: Place, buffer: int) -> Scored:
    """The scores of a block's first tokens, and their scales."""
    plan = work.plan
    first, end = read_range(work, place, query_of_rows(plan))
    is_read = are_tokens(work, plan.query_rows, size, across(first, size), across(end, size))
    scales = None
    if plan.scaled:
        turned = jnp.transpose(work.scale_buffers[buffer][:size])
        is_live = are_tokens(work, turned.shape[0], size, read_range(work, place, 0)[0], place.live)
        scales = jnp.where(is_live, turned, jnp.float32(0))
    scored = []
    for pair in range(plan.pairs):
        products = pair_products(work, size, buffer, place, pair)
        if scales is not None:
            products = products * pair_scales(work, scales, pair, 0)
        scored.append(jnp.where(is_read, scores_of(products, plan), _MASKED))
    return Scored(scored, scales)


def query_of_rows(plan: DecodePlan) -> Any:
    """Which of its sequence's query tokens each query row of a pair has: `i32[query rows, 128]`; 0 if there is one."""
    if plan.queries == 1:
        return 0
    row = lax.broadcasted_iota(jnp.int32, (plan.query_rows, LANES), 0)
    query = jnp.zeros_like(row)
    for begin in range(plan.token_rows, plan.query_rows, plan.token_rows):
        query = query + (row >= begin).astype(jnp.int32)
    return query


def across(rows: Any, size: int) -> Any:
    """What is the same in 128 lanes for each row, in as many lanes as there are tokens; scalars as they are."""
    if rows is None or rows.ndim == 0:
        return rows
    return jnp.concatenate([rows] * (size // LANES), axis=1)


def are_tokens(work: Work, rows: int, size: int, first: Any, end: Any) -> jax.Array:
    """Which places in rows of a block's tokens stand for tokens from the first to the end: `bool[rows, size]`."""
    place = lax.broadcasted_iota(jnp.int32, (rows, size), 1)
    token = token_of(place, size, work.plan.packing, work.plan.in_v3)
    are: jax.Array = token < end if first is None else (token < end) & (token >= first)
    return are


def add_block(work: Work, size: int, place: Place, buffer: int, scored: Scored) -> None:
    """Adds a block's values, weighed by its scores, and writes the output as it then is."""
    first, _ = read_range(work, place, 0)
    weights = [softmax(work, place, pair, scored) for pair in range(work.plan.pairs)]
    live = live_words(first, place.live, size, work.plan.packing, work.plan.in_v3)
    for pair, (fading, weight) in enumerate(weights):
        weigh(work, size, buffer, place, pair, fading, weight, live)
    for pair in range(work.plan.pairs):
        write_output(work, place, pair)


def pair_products(work: Work, size: int, buffer: int, place: Place, pair: int) -> jax.Array:
    """The products of a pair's query heads with a block's keys: `f32[query rows, size]`."""
    keys = pair_keys(work, size, buffer, pair)
    return lax.dot_general(
        work.queries[place.row, pair], keys, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32
    )


def pair_scales(work: Work, scales: jax.Array, pair: int, part: int) -> jax.Array:
    """The scales of a pair's keys (part 0) or values (part 1), a row for each query head: `f32[query rows, size]`."""
    group = (work.plan.group, scales.shape[1])
    rows = [2 * head + part for head in pair_heads(work, pair)] * work.plan.queries
    return jnp.concatenate([jnp.broadcast_to(scales[row : row + 1], group) for row in rows], axis=0)


def softmax(work: Work, place: Place, pair: int, block: Scored) -> tuple[jax.Array, jax.Array]:
    """Takes a block's scores into the running softmax of a pair.

    Args:
        work: what to work with.
        place: the block.
        pair: which heads.
        block: what is known of it.

    Returns:
        What the sums up to here are multiplied by, `f32[query rows, 128]`, and the weights, `[query rows, size]`, times
        the scales of the values.
    """
    scored = block.scores[pair]
    begins, unit = place.block == 0, exponent_unit(work.plan)
    if work.sinks is None:
        largest_yet, sum_yet = jnp.float32(_MASKED), jnp.float32(0)
    else:
        # A sink is one more score, in the first lane's sum, with no value.
        lane = lax.broadcasted_iota(jnp.int32, work.sums.shape[1:], 1)
        largest_yet, sum_yet = work.sinks[pair], jnp.where(lane == 0, jnp.float32(1), jnp.float32(0))
    before = jnp.where(begins, largest_yet, work.largest[pair])
    largest = jnp.maximum(before, jnp.max(scored, axis=1, keepdims=True))
    fading = jnp.exp2((before - largest) * unit)
    parts = [scored[:, at : at + LANES] for at in range(0, scored.shape[1], LANES)]
    weights = [jnp.exp2((part - largest) * unit) for part in parts]
    total = fading * jnp.where(begins, sum_yet, work.sums[pair])
    for weight in weights:
        total = total + weight
    work.largest[pair] = largest
    work.sums[pair] = total
    together = jnp.concatenate(weights, axis=1)
    if block.scales is not None:
        together = together * pair_scales(work, block.scales, pair, 1)
    return fading, together.astype(work.plan.dtype)


def weigh(
    work: Work, size: int, buffer: int, place: Place, pair: int, fading: jax.Array, weights: jax.Array, live: jax.Array
) -> None:
    """Adds a block's values, weighed, to a pair's sums."""
    values = pair_values(work, size, buffer, pair, live)
    before = jnp.where(place.block == 0, jnp.float32(0), work.weighed[pair])
    added = lax.dot_general(weights, values, (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32)
    work.weighed[pair] = jnp.concatenate([fading, fading], axis=1) * before + added


def write_output(work: Work, place: Place, pair: int) -> None:
    """Writes a pair's output as it is so far, each head's own half; the sequence's last block leaves what counts."""
    plan = work.plan
    own = work.weighed[pair]
    if plan.output_columns == LANES:
        row = lax.broadcasted_iota(jnp.int32, (plan.query_rows, LANES), 0)
        upper = row - plan.token_rows * query_of_rows(plan) >= plan.group
        own = jnp.where(upper, own[:, LANES:], own[:, :LANES])
    mean = own * (plan.value_scale / jnp.sum(work.sums[pair], axis=1, keepdims=True))
    work.output[place.row, pair] = mean.astype(work.output.dtype)


def pair_keys(work: Work, size: int, buffer: int, pair: int) -> jax.Array:
    """What the scores of a pair are products with, side by side: `[size, 256]`."""
    return pair_parts(work, size, buffer, [work.plan.layout.rows_per_head * head for head in pair_heads(work, pair)])


def pair_values(work: Work, size: int, buffer: int, pair: int, live: jax.Array) -> jax.Array:
    """What the weights of a pair are multiplied with, zero where dead: `[size, 256]`."""
    per_head = work.plan.layout.rows_per_head
    rows = [per_head * head + per_head - 1 for head in pair_heads(work, pair)]
    return pair_parts(work, size, buffer, rows, live)


def pair_parts(work: Work, size: int, buffer: int, rows: Sequence[int], live: jax.Array | None = None) -> jax.Array:
    """Combined rows of each token, side by side: `[size, 256]`, of the cache's dtype; interpreted, of the queries'.

    Args:
        work: what to work with.
        size: tokens.
        buffer: the block's.
        rows: which combined rows of a slot: two of 128 numbers, or one of 256.
        live: what `live_words` gives, or None.
    """
    plan = work.plan
    packing = plan.packing
    places = [
        (tile * plan.word_rows + row // packing, row % packing)
        for row in rows
        for tile in range(plan.layout.column_tiles)
    ]
    words = {
        group: load_words(work.buffers[buffer], group, packing, size, plan.emulated)
        for group in {group for group, _ in places}
    }
    parts = [combined_row(words[group], row, plan.kv_dtype, live, plan.select, plan.emulated) for group, row in places]
    if plan.emulated:
        # XLA on CPU multiplies equal dtypes only; bfloat16 holds all numbers of 8 bits.
        parts = [part.astype(plan.dtype) for part in parts]
    return jnp.concatenate(parts, axis=1)


def pair_heads(work: Work, pair: int) -> Sequence[int]:
    """The KV heads of a pair; a head without another is paired with itself."""
    per_pair, last = work.plan.token_rows // work.plan.group, work.plan.layout.num_kv_heads - 1
    return [min(per_pair * pair + at, last) for at in range(per_pair)]
