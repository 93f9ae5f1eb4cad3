"""The walk of the decode kernel: which block of which sequence comes next, and how it comes into VMEM."""

from collections.abc import Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ..layout import LANES
from .decode_plan import DecodePlan

__all__ = [
    "Place",
    "Ref",
    "Work",
    "first_place",
    "next_place",
    "read_places",
    "read_range",
    "start_block",
    "wait_block",
    "write_places",
]

Ref = Any

_UNROLLED_PAGES = 64
"""The most copies of a block that are written out; more are a loop."""


class Work(NamedTuple):
    """What the steps of the kernel work with.

    Attributes:
        plan: the static numbers.
        live: `i32[steps * (rows + 1)]`: tokens of each sequence from the first page that is read on; 0: none.
        q_lens: `i32[steps * (rows + 1)]`, or None: query tokens of each sequence; None: one.
        first_page: `i32[steps * (rows + 1)]`, or None: where in its row of the table a sequence is read from.
        in_chunk: `i32[steps * (rows + 1)]`, or None: how far into its chunk a sequence's first query stands.
        table: `i32[table_words]`: the page table's rows of this grid step.
        queries: `[rows, pairs, query rows, 256]`.
        sinks: `f32[pairs, query rows, 128]`, as scores (`score_units`), or None.
        pages: the cache, in HBM.
        scales: its scales, `f32[P, page, 2H]`, in HBM, or None.
        output: `[rows, pairs, query rows, 128 or 256]`.
        buffers: of `[tokens, *slot]`.
        scale_buffers: of `f32[tokens, 2H]`; empty where there are no scales.
        largest: `f32[pairs, query rows, 128]`: the largest score of a row so far, the same in all lanes.
        sums: `f32[pairs, query rows, 128]`: sums of weights, one per lane.
        weighed: `f32[pairs, query rows, 256]`: values, weighed and added.
        scores: `f32[pairs, query rows, tokens]`: of the last block of the round before; of dead tokens as if masked.
        token_scales: `f32[2H, tokens]`, or None: its scales; zero of dead tokens.
        places: `i32[3, 1 + buffers + ahead]`: the fields of `Place` of the last block of the round before, of those of
            this round and of those whose copies it starts. In memory, as there are more than registers.
        arrived: a semaphore for each buffer.
    """

    plan: DecodePlan
    live: Ref
    q_lens: Ref | None
    first_page: Ref | None
    in_chunk: Ref | None
    table: Ref
    queries: Ref
    sinks: Ref | None
    pages: Ref
    scales: Ref | None
    output: Ref
    buffers: Sequence[Ref]
    scale_buffers: Sequence[Ref]
    largest: Ref
    sums: Ref
    weighed: Ref
    scores: Ref
    token_scales: Ref | None
    places: Ref
    arrived: Ref


class Place(NamedTuple):
    """A block of a sequence; past the last block of the last sequence stands an empty one of it, for ever.

    Attributes:
        row: which sequence of the grid step.
        block: which of its blocks.
        live: the sequence's tokens from the block's first on; 0: the block is empty.
    """

    row: jax.Array
    block: jax.Array
    live: jax.Array


def first_place(work: Work) -> Place:
    """The first block of the grid step."""
    nothing = jnp.int32(0)
    return Place(nothing, nothing, work.live[sequence(work, nothing)])


def next_place(work: Work, place: Place) -> Place:
    """The block after one: the sequence's next, or the next sequence's first; an empty one after the last of all."""
    left = place.live - work.plan.tokens
    ends, last = left <= 0, work.plan.rows - 1
    return Place(
        row=jnp.where(ends, jnp.minimum(place.row + 1, last), place.row),
        # Not 0 past the end, where the output would begin again.
        block=jnp.where(ends, (place.row == last).astype(jnp.int32), place.block + 1),
        live=jnp.where(ends, work.live[sequence(work, place.row) + 1], left),
    )


def read_places(work: Work) -> list[Place]:
    """The last block of the round before, those of this round, and those whose copies are started in it."""
    return [Place(*(work.places[field, at] for field in range(3))) for at in range(work.places.shape[1])]


def write_places(work: Work, window: Sequence[Place]) -> None:
    """Notes what `read_places` says in the next round."""
    for at, place in enumerate(window):
        for field, number in enumerate(place):
            work.places[field, at] = number


def sequence(work: Work, row: jax.Array) -> jax.Array:
    """Where a row of this grid step stands in the arrays of numbers; those of a step end with a spare one."""
    return pl.program_id(0) * (work.plan.rows + 1) + row


def read_range(work: Work, place: Place, query: Any) -> tuple[Any, Any]:
    """The tokens of a block that a query reads: from the first to the second, exclusive; None: from the block's first.

    Args:
        work: what to work with.
        place: the block.
        query: which of the sequence's queries, i32, a scalar or an array; for one past the last as the last.
    """
    plan, position = work.plan, place.live - 1
    moved: Any = 0
    if work.q_lens is not None:
        last = work.q_lens[sequence(work, place.row)] - 1
        moved = jnp.minimum(query, last)
        position = position - last + moved
    end = position + 1 if plan.causal else place.live
    firsts = []
    if plan.window is not None:
        firsts.append(position - (plan.window - 1))
    if work.in_chunk is not None and plan.chunk is not None:
        of_first = work.in_chunk[sequence(work, place.row)]
        firsts.append(position - moved - of_first)
        for begun in range(plan.chunk, plan.chunk + plan.queries - 1, plan.chunk):  # it may stand in a later one
            firsts.append(jnp.where(moved + of_first >= begun, position - moved - of_first + begun, firsts[-1]))
    return (reduce(jnp.maximum, firsts) if firsts else None), end


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

    def start_page(page: jax.Array | int, page_id: jax.Array) -> None:
        slots = pl.ds(page * plan.page_size, plan.page_size)
        rows, tiles = plan.layout.row_shape[0], plan.layout.column_tiles
        between = (slice(None),) * len(plan.layout.row_shape)
        for tile in range(tiles):
            columns = (*between, pl.ds(tile * LANES, LANES)) if tiles > 1 else ()
            target = work.buffers[buffer].at[slots, pl.ds(tile * rows, rows)]
            pltpu.make_async_copy(work.pages.at[(page_id, *columns)], target, work.arrived.at[buffer]).start()
        if work.scales is not None:
            target = work.scale_buffers[buffer].at[slots]
            pltpu.make_async_copy(work.scales.at[page_id], target, work.arrived.at[buffer]).start()

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
    """Waits until all pages of a block have arrived: one wait, for the bytes of all; one more for their scales'."""
    plan = work.plan
    slots = pl.ds(0, live_pages(plan, place) * plan.page_size)
    rows = plan.layout.column_tiles * plan.layout.row_shape[0]  # without those that only space them
    arriving = [work.buffers[buffer].at[slots, pl.ds(0, rows)]]
    if work.scales is not None:
        arriving.append(work.scale_buffers[buffer].at[slots])

    @pl.when(place.live > 0)
    def _() -> None:
        for part in arriving:
            arrival: Any = pltpu.make_async_copy(part, part, work.arrived.at[buffer])
            arrival.wait()


def live_pages(plan: DecodePlan, place: Place) -> jax.Array:
    """Pages of a block that hold live tokens."""
    shift = plan.page_size.bit_length() - 1
    return (jnp.minimum(place.live, plan.tokens) + (plan.page_size - 1)) >> shift
