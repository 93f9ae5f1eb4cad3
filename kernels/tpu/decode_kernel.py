"""The decode kernel: one query token a sequence over the v3 cache, few enough bundles to be bound by HBM.

Blocks    A sequence's live tokens are cut into blocks; the blocks of all sequences of a grid step form one flat list. A
          block's pages are copied from HBM one by one, its bytes waited for once. The code is unrolled over the
          buffers, which are allocations of their own: the compiler then sees that copies into one don't touch what is
          read from another. With three buffers the block after the one waited for is in flight at every wait. A round
          is one pass over the buffers.
Item      One block is one stretch of code without branches: wait; scores of all pairs of heads; start the copies of
          the block ahead; softmax; weigh the values; write what the output would be if this were the last block. So the
          scalar work of the copies is issued beside the pushes into the matrix unit, which are what binds.
Pairs     Keys of two heads, side by side, are the stationary operand `[tokens, 256]`, and so are values; the queries
          are a block-diagonal matrix `[2G, 256]`. Scores then come out as full tiles `[2G, tokens]` of 8 sublanes
          where G = 4, and matrix units of 256 columns are filled. Of the weighed values `[2G, 256]` each head keeps
          its own half.
Softmax   In powers of two, the logarithm's base folded into the scale. The largest score of a row is found once in a
          block: it is the only step across lanes; the sum of the weights stays one per lane until the output.
Dead      Scores of dead columns are masked; values of dead rows are zeroed, for zero times NaN is NaN: what stands in
          dead slots, or in a buffer from another sequence, can't show (ATT-3).
Short     Where no block that a round works with has more live tokens than a smaller size, code for that size is run.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ..layout import LANES
from .decode_plan import DecodePlan
from .words import live_words, load_words, lower_halves, upper_halves

__all__ = ["LOG2E", "decode_kernel"]

Ref = Any
Scalar = jax.Array | int

LOG2E = 1.4426950408889634
_MASKED = -0.7 * 3.4028235e38
"""The score of a dead column: finite, so that differences of two of them are."""

_UNROLLED_PAGES = 64
"""So many copies of a block are written out; more are a loop."""


class Work(NamedTuple):
    """What the steps of the kernel work with.

    Attributes:
        plan: the static numbers.
        live: `i32[steps * rows]`: tokens of each sequence from the first page that is read on; 0: none.
        first_page: `i32[steps * rows]`, or None: where in its row of the table a sequence is read from.
        skipped: `i32[steps * rows]`, or None: tokens of the first page that are masked.
        table: `i32[table_words]`: the page table's rows of this grid step.
        queries: `[rows, pairs, 2G, 256]`.
        sinks: `f32[pairs, 2G, 128]`, in powers of two, or None.
        pages: the cache, in HBM.
        output: `[rows, pairs, 2G, 128]`.
        buffers: of `[tokens, stride, 2, 128]`.
        largest: `f32[pairs, 2G, 128]`: the largest score of a row so far, the same in all lanes.
        sums: `f32[pairs, 2G, 128]`: sums of weights, one per lane.
        weighed: `f32[pairs, 2G, 256]`: values, weighed and added.
        arrived: a semaphore for each buffer.
    """

    plan: DecodePlan
    live: Ref
    first_page: Ref | None
    skipped: Ref | None
    table: Ref
    queries: Ref
    sinks: Ref | None
    pages: Ref
    output: Ref
    buffers: Sequence[Ref]
    largest: Ref
    sums: Ref
    weighed: Ref
    arrived: Ref


class Place(NamedTuple):
    """A block of a sequence; past the last sequence stands the spare row, an empty one, for ever.

    Attributes:
        row: which sequence of the grid step.
        block: which of its blocks.
        live: the sequence's tokens from the block's first on; 0: the block is empty.
    """

    row: jax.Array
    block: jax.Array
    live: jax.Array


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
        first_page=next(at) if plan.windowed else None,
        skipped=next(at) if plan.windowed else None,
        table=next(at),
        queries=next(at),
        sinks=next(at) if plan.has_sinks else None,
        pages=next(at),
        output=next(at),
        buffers=[next(at) for _ in range(plan.blocks.buffers)],
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

    def turn(_: Scalar, places: tuple[Place, ...]) -> tuple[Place, ...]:
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
        for buffer in range(blocks.buffers):
            run_item(work, size, buffer, window[buffer], window[buffer + blocks.buffers - 1])
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


def run_item(work: Work, size: int, buffer: int, place: Place, ahead: Place) -> None:
    """One block: waits for it, starts the copies of the block ahead, and adds what it holds.

    Args:
        work: what to work with.
        size: the tokens to look at, at least as many as are live.
        buffer: where the block is; the block ahead comes into the buffer before it.
        place: the block.
        ahead: the block ahead.
    """
    plan = work.plan
    wait_block(work, place, buffer)
    first, end = live_range(work, place)
    every = [scores(work, size, buffer, place, pair, first, end) for pair in range(plan.pairs)]
    start_block(work, ahead, (buffer - 1) % plan.blocks.buffers, size)
    weights = [softmax(work, place, pair, every[pair]) for pair in range(plan.pairs)]
    live = live_words(None if work.skipped is None else first, end, size)
    for pair, (fading, weight) in enumerate(weights):
        weigh(work, size, buffer, place, pair, fading, weight, live)
    for pair in range(plan.pairs):
        write_output(work, place, pair)


def first_place(work: Work) -> Place:
    """The first block of the grid step."""
    nothing = jnp.int32(0)
    return Place(nothing, nothing, work.live[sequence(work, nothing)])


def next_place(work: Work, place: Place) -> Place:
    """The block after one: the sequence's next, or the next sequence's first."""
    left = place.live - work.plan.tokens
    row = jnp.minimum(place.row + 1, work.plan.rows - 1)
    ends = left <= 0
    return Place(
        row=jnp.where(ends, row, place.row),
        block=jnp.where(ends, 0, place.block + 1),
        live=jnp.where(ends, work.live[sequence(work, row)], left),
    )


def sequence(work: Work, row: jax.Array) -> jax.Array:
    """Where a row of this grid step stands among those of all."""
    return pl.program_id(0) * work.plan.rows + row


def live_range(work: Work, place: Place) -> tuple[jax.Array, jax.Array]:
    """The block's tokens that are read: from the first to the second, exclusive."""
    if work.skipped is None:
        return jnp.zeros_like(place.live), place.live
    return jnp.where(place.block == 0, work.skipped[sequence(work, place.row)], 0), place.live


def start_block(work: Work, place: Place, buffer: int, size: int) -> None:
    """Starts the copies of a block's live pages; none of an empty block's.

    Args:
        work: what to work with.
        place: the block.
        buffer: where it comes.
        size: tokens, at least as many as are live.
    """
    plan = work.plan
    pages = -(-size // plan.page_size)
    entry = place.row * plan.pages_per_seq + place.block * plan.pages_per_block
    if work.first_page is not None:
        entry = entry + work.first_page[sequence(work, place.row)]

    def start_page(page: Scalar, page_id: jax.Array) -> None:
        slots = pl.ds(page * plan.page_size, plan.page_size)
        target = work.buffers[buffer].at[slots, pl.ds(0, plan.layout.groups)]
        pltpu.make_async_copy(work.pages.at[page_id], target, work.arrived.at[buffer]).start()

    if pages <= _UNROLLED_PAGES:
        for page in range(pages):
            # Read whether it is live or not: the table is as long as that needs, and a load costs less than a guard.
            page_id = work.table[0, 0, entry + page]
            pl.when(place.live > page * plan.page_size)(partial(start_page, page, page_id))
        return

    def start_next(page: jax.Array, _: None) -> None:
        start_page(page, work.table[0, 0, entry + page])

    lax.fori_loop(0, live_pages(plan, place), start_next, None)


def wait_block(work: Work, place: Place, buffer: int) -> None:
    """Waits until all pages of a block have arrived: one wait, for the bytes of all."""
    plan = work.plan
    slots = pl.ds(0, live_pages(plan, place) * plan.page_size)
    arriving = work.buffers[buffer].at[slots, pl.ds(0, plan.layout.groups)]

    @pl.when(place.live > 0)
    def _() -> None:
        arrival: Any = pltpu.make_async_copy(arriving, arriving, work.arrived.at[buffer])
        arrival.wait()


def live_pages(plan: DecodePlan, place: Place) -> jax.Array:
    """Pages of a block that hold live tokens."""
    shift = plan.page_size.bit_length() - 1
    return (jnp.minimum(place.live, plan.tokens) + (plan.page_size - 1)) >> shift


def scores(work: Work, size: int, buffer: int, place: Place, pair: int, first: jax.Array, end: jax.Array) -> jax.Array:
    """The scores of a pair's query heads with a block's keys, in powers of two: `f32[2G, size]`."""
    plan = work.plan
    lines = work.queries[place.row, pair]
    keys = jnp.concatenate(pair_keys(work, size, buffer, pair), axis=1)
    products = lax.dot_general(lines, keys, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
    if plan.soft_cap is None:
        logits = products * (plan.score_scale * LOG2E)
    else:
        logits = jnp.tanh(products * (plan.score_scale / plan.soft_cap)) * (plan.soft_cap * LOG2E)
    token = lax.broadcasted_iota(jnp.int32, logits.shape, 1)
    live = token < end if work.skipped is None else (token < end) & (token >= first)
    return jnp.where(live, logits, _MASKED)


def softmax(work: Work, place: Place, pair: int, logits: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Takes a block's scores into the running softmax of a pair.

    Args:
        work: what to work with.
        place: the block.
        pair: which heads.
        logits: `f32[2G, size]`, in powers of two.

    Returns:
        What the sums up to here are multiplied by, `f32[2G, 128]`, and the weights, `[2G, size]`.
    """
    begins = place.block == 0
    if work.sinks is None:
        largest_yet, sum_yet = jnp.float32(_MASKED), jnp.float32(0)
    else:
        # A sink is one more score, in the first lane's sum, with no value.
        lane = lax.broadcasted_iota(jnp.int32, work.sums.shape[1:], 1)
        largest_yet, sum_yet = work.sinks[pair], jnp.where(lane == 0, jnp.float32(1), jnp.float32(0))
    before = jnp.where(begins, largest_yet, work.largest[pair])
    largest = jnp.maximum(before, jnp.max(logits, axis=1, keepdims=True))
    fading = jnp.exp2(before - largest)
    weights = [jnp.exp2(logits[:, at : at + LANES] - largest) for at in range(0, logits.shape[1], LANES)]
    total = fading * jnp.where(begins, sum_yet, work.sums[pair])
    for weight in weights:
        total = total + weight
    work.largest[pair] = largest
    work.sums[pair] = total
    return fading, jnp.concatenate([weight.astype(work.plan.dtype) for weight in weights], axis=1)


def weigh(
    work: Work, size: int, buffer: int, place: Place, pair: int, fading: jax.Array, weights: jax.Array, live: jax.Array
) -> None:
    """Adds a block's values, weighed, to a pair's sums."""
    values = jnp.concatenate(pair_values(work, size, buffer, pair, live), axis=1)
    before = jnp.where(place.block == 0, jnp.float32(0), work.weighed[pair])
    added = jnp.dot(weights, values, preferred_element_type=jnp.float32)
    work.weighed[pair] = jnp.concatenate([fading, fading], axis=1) * before + added


def write_output(work: Work, place: Place, pair: int) -> None:
    """Writes a pair's output as it is so far, each head's own half; the sequence's last block leaves what counts."""
    plan = work.plan
    weighed = work.weighed[pair]
    upper = lax.broadcasted_iota(jnp.int32, (plan.query_rows, LANES), 0) >= plan.group
    own = jnp.where(upper, weighed[:, LANES:], weighed[:, :LANES])
    mean = own * (plan.value_scale / jnp.sum(work.sums[pair], axis=1, keepdims=True))
    work.output[place.row, pair] = mean.astype(work.output.dtype)


def pair_keys(work: Work, size: int, buffer: int, pair: int) -> list[jax.Array]:
    """What the scores of a pair's two heads are products with: two of `[size, 128]`."""
    plan = work.plan
    if plan.layout.shares_rows:
        return pair_rows(work, size, buffer, pair, None)
    words = [load_words(work.buffers[buffer], group, size, plan.emulated) for group in pair_groups(plan, pair)]
    return [lower_halves(part, plan.dtype, None, plan.emulated) for part in words]


def pair_values(work: Work, size: int, buffer: int, pair: int, live: jax.Array) -> list[jax.Array]:
    """What the weights of a pair's two heads are multiplied with, zero where dead: two of `[size, 128]`."""
    plan = work.plan
    if plan.layout.shares_rows:
        return pair_rows(work, size, buffer, pair, live)
    words = [load_words(work.buffers[buffer], group, size, plan.emulated) for group in pair_groups(plan, pair)]
    return [upper_halves(part, plan.dtype, live, plan.select, plan.emulated) for part in words]


def pair_rows(work: Work, size: int, buffer: int, pair: int, live: jax.Array | None) -> list[jax.Array]:
    """Of heads of 64: the rows of a pair, which share their words; each is key and value, side by side."""
    plan = work.plan
    words = load_words(work.buffers[buffer], pair, size, plan.emulated)
    return [
        lower_halves(words, plan.dtype, live, plan.emulated),
        upper_halves(words, plan.dtype, live, plan.select, plan.emulated),
    ]


def pair_groups(plan: DecodePlan, pair: int) -> tuple[int, int]:
    """The groups of a slot in which a pair's heads stand; a head without another is paired with itself."""
    return 2 * pair, min(2 * pair + 1, plan.layout.num_kv_heads - 1)
