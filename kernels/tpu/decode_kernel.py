"""The decode kernel: few query tokens a sequence, one or those of a draft, and few enough bundles to be bound by HBM.

Blocks    A sequence's live tokens are cut into blocks; the blocks of all sequences of a grid step form one flat list. A
          block's pages are copied from HBM one by one, its bytes waited for once. The code is unrolled over the
          buffers, which are allocations of their own: the compiler then sees that copies into one don't touch what is
          read from another; one pass over them is a round. With four buffers the block after the one waited for is in
          flight at every wait.
Round     One stretch of code without branches. For each block: wait; scores of all pairs of heads; softmax of the block
          before it, weigh its values, write what the output would be if it were the last; start the copies of a block
          ahead, into a buffer that was done with one block ago. So the latency of one block's softmax is hidden beside
          the products of the next, and the scalar work of the copies beside the pushes into the matrix unit. The
          scores of a round's last block are kept in memory for the next round.
Pairs     Keys of two heads, side by side, are the stationary operand `[tokens, 256]`, and so are values; the queries
          are a block-diagonal matrix `[2GQ, 256]`. Scores then come out as full tiles `[2G, tokens]` of 8 sublanes
          where G = 4, and matrix units of 256 columns are filled. Of the weighed values `[2G, 256]` each head keeps
          its own half. A head whose rows have 256 numbers fills the unit alone: its pair is the two halves.
Softmax   In powers of two, in the units of `score_units`. The largest score of a row is found once in a
          block: it is the only step across lanes; the sum of the weights stays one per lane until the output.
Dead      Scores of dead columns are masked; values of dead rows are zeroed, for zero times NaN is NaN: what stands in
          dead slots, or in a buffer from another sequence, can't show (ATT-3).
Short     Where no block that a round works with has more live tokens than a smaller size, code for that size is run.
"""

from collections.abc import Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from ..layout import LANES
from ..score_units import exponent_unit, scores_of
from .decode_plan import DecodePlan
from .decode_walk import (
    Place,
    Ref,
    Work,
    first_place,
    next_place,
    read_places,
    read_range,
    start_block,
    wait_block,
    write_places,
)
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
        scores=next(at),
        token_scales=next(at) if plan.scaled else None,
        places=next(at),
        arrived=next(at),
    )
    clear_output(work)
    keep_scores(work, 0, None)
    nothing = jnp.int32(0)
    window = [Place(nothing, nothing, nothing), first_place(work)]
    while len(window) <= plan.blocks.buffers + plan.blocks.ahead:
        window.append(next_place(work, window[-1]))
    for buffer in range(plan.blocks.ahead):
        start_block(work, window[1 + buffer], buffer, plan.tokens)
    write_places(work, window)

    def turn(_: jax.Array, size: jax.Array) -> jax.Array:
        return run_round(work, size)

    lax.fori_loop(0, rounds[pl.program_id(0)], turn, size_of(work, window))


def clear_output(work: Work) -> None:
    """Zeros for the rows that are not decoded."""

    def clear(row: jax.Array, _: None) -> None:
        work.output[row] = jnp.zeros(work.output.shape[1:], work.output.dtype)

    lax.fori_loop(0, work.plan.rows, clear, None)


def run_round(work: Work, size: jax.Array) -> jax.Array:
    """Scores one block in each buffer, and adds the values of the one before each.

    Args:
        work: what to work with; its places are the block that the round before has scored, those that this one scores,
            and those that it starts the copies of.
        size: which of the block's sizes they all fit into, as `size_of` says.

    Returns:
        the size of the next round, to which the places are moved on.
    """
    blocks = work.plan.blocks

    def run(size: int) -> jax.Array:
        # Within the branch, so that this scalar work, too, is issued beside the vector unit's.
        window = read_places(work)
        before = kept_scores(work, size)
        for buffer in range(blocks.buffers):
            wait_block(work, window[1 + buffer], buffer)
            scored = score_block(work, size, window[1 + buffer], buffer)
            add_block(work, size, window[buffer], (buffer - 1) % blocks.buffers, before)
            start_block(work, window[1 + buffer + blocks.ahead], (buffer + blocks.ahead) % blocks.buffers, size)
            before = scored
        keep_scores(work, size, before)
        following = window[blocks.buffers :]
        while len(following) < len(window):
            following.append(next_place(work, following[-1]))
        write_places(work, following)
        return size_of(work, following)

    if not blocks.short:
        return run(blocks.tokens)
    chosen: jax.Array = lax.switch(size, [partial(run, tokens) for tokens in (*blocks.short, blocks.tokens)])
    return chosen


def size_of(work: Work, window: Sequence[Place]) -> jax.Array:
    """Which size of blocks is the smallest that all places fit into: `i32[]`, counted from the shortest."""
    longest = reduce(jnp.maximum, [place.live for place in window])
    return sum([(longest > tokens).astype(jnp.int32) for tokens in work.plan.blocks.short], jnp.int32(0))


class Scored(NamedTuple):
    """What is known of a block before its values are added.

    Attributes:
        scores: for each pair of heads `f32[query rows, size]`.
        scales: `f32[2H, size]`: those of the tokens' keys and values, zero where dead; None: there are none.
    """

    scores: list[jax.Array]
    scales: jax.Array | None


def keep_scores(work: Work, size: int, scored: Scored | None) -> None:
    """Keeps what a round knows of its last block for the next, which may look at more of it: at dead tokens."""
    rest = work.plan.tokens - size
    for pair in range(work.plan.pairs):
        if scored is not None:
            work.scores[pair, :, :size] = scored.scores[pair]
        if rest:
            work.scores[pair, :, size:] = jnp.full((work.plan.query_rows, rest), _MASKED, jnp.float32)
    if work.token_scales is not None:
        if scored is not None and scored.scales is not None:
            work.token_scales[:, :size] = scored.scales
        if rest:
            work.token_scales[:, size:] = jnp.zeros((work.token_scales.shape[0], rest), jnp.float32)


def kept_scores(work: Work, size: int) -> Scored:
    """What `keep_scores` has kept, of a block's first tokens; at first of an empty block."""
    scores = [work.scores[pair, :, :size] for pair in range(work.plan.pairs)]
    return Scored(scores, None if work.token_scales is None else work.token_scales[:, :size])


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
