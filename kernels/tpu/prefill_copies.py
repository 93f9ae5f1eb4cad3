"""What the general kernel copies between HBM and VMEM: pages of keys and values, queries, outputs.

Key blocks are copied page by page, in one order across query blocks and sequences, so that copies never pause: a
*cursor* says how far they are. Nothing is copied that no query of the block reads, but for the rest of a page.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ..layout import LANES
from .prefill_memory import Kernel, Ref
from .prefill_schedule import Field

__all__ = [
    "Cursor",
    "PageCopies",
    "first_cursor",
    "following",
    "output_copy",
    "page_copies",
    "pages_of",
    "query_copy",
    "start_pages",
    "start_some",
    "wait_for",
    "wait_for_pages",
]

Cursor = tuple[jax.Array, jax.Array]
"""A query block and one of its key blocks; the number of query blocks, and anything, behind the last."""


@dataclass(frozen=True)
class PageCopies:
    """The copies of a key block's pages, to be started.

    Attributes:
        count: how many there are.
        start: starts the i-th.
    """

    count: jax.Array
    start: Callable[[jax.Array], None]


def first_cursor(kernel: Kernel) -> Cursor:
    """The first key block that is read."""
    count, first = kernel.refs.counts[0], kernel.refs.counts[1]
    return first, kernel.of(Field.FIRST_BLOCK, _existing(first, count))


def following(kernel: Kernel, cursor: Cursor) -> Cursor:
    """The key block after the given one: of the same query block, or of the next that reads any."""
    block, keys = cursor
    count = kernel.refs.counts[0]
    here = _existing(block, count)
    more = keys + 1 < kernel.of(Field.END_BLOCK, here)
    after = jnp.where(more, here, kernel.of(Field.NEXT, here))
    after = jnp.where(block < count, after, count)
    return after, jnp.where(more, keys + 1, kernel.of(Field.FIRST_BLOCK, _existing(after, count)))


def _existing(block: jax.Array, count: jax.Array) -> jax.Array:
    """A query block of which the schedule can be asked: the given one, or the first in place of one behind the last."""
    return jnp.where(block < count, block, 0)


def pages_of(kernel: Kernel, cursor: Cursor) -> tuple[jax.Array, jax.Array]:
    """The first page of a key block that is read, counted in its sequence, and how many are; none behind the last."""
    block, keys = cursor
    geometry, count = kernel.geometry, kernel.refs.counts[0]
    here = _existing(block, count)
    page = keys * geometry.blocks.pages
    first = jnp.maximum(page, lax.div(kernel.of(Field.FIRST_KEY, here), geometry.page_size))
    end = lax.div(kernel.of(Field.END_KEY, here) + (geometry.page_size - 1), geometry.page_size)
    pages = jnp.maximum(jnp.minimum(page + geometry.blocks.pages, end) - first, 0)
    return first, jnp.where(block < count, pages, 0)


def page_copies(kernel: Kernel, cursor: Cursor, buffer: jax.Array) -> PageCopies:
    """The copies of a key block's pages into a buffer, each to its place in the block.

    In place of an entry of the table that names no page the first page is copied, so that the bytes to wait for are the
    same; `prefill_fold.mask_absent` sees to it that nobody reads them.
    """
    geometry, refs = kernel.geometry, kernel.refs
    first, count = pages_of(kernel, cursor)
    entry = kernel.of(Field.SEQUENCE, _existing(cursor[0], refs.counts[0])) * geometry.pages_per_seq + first
    begin = first - cursor[1] * geometry.blocks.pages
    between = (slice(None),) * (len(refs.kv_pages.shape) - 2)

    def start(i: jax.Array) -> None:
        page = jnp.maximum(refs.table[entry + i], 0)
        for tile in range(geometry.column_tiles):
            source = refs.kv_pages.at[(page, *between, pl.ds(tile * LANES, LANES))]
            target = _slots(kernel, buffer, tile, (begin + i) * geometry.page_size, geometry.page_size)
            pltpu.make_async_copy(source, target, refs.kv_arrived.at[buffer]).start()

    return PageCopies(count, start)


def start_pages(copies: PageCopies) -> None:
    """Starts all of a key block's copies."""

    def start(i: jax.Array, _: None) -> None:
        copies.start(i)

    lax.fori_loop(0, copies.count, start, None)


def start_some(copies: PageCopies, first: jax.Array, most: int) -> None:
    """Starts those of a key block's copies from the first on that there are, without a loop: amid other work."""
    for i in range(most):
        pl.when(first + i < copies.count)(partial(copies.start, first + i))


def wait_for_pages(kernel: Kernel, cursor: Cursor, buffer: jax.Array) -> None:
    """Waits until a key block's pages have arrived: a wait is for bytes, so that one will do for all pages."""
    geometry, refs = kernel.geometry, kernel.refs
    _, count = pages_of(kernel, cursor)
    for tile in range(geometry.column_tiles):
        arrived = _slots(kernel, buffer, tile, 0, count * geometry.page_size)
        wait_for(pltpu.make_async_copy(arrived, arrived, refs.kv_arrived.at[buffer]))


def _slots(kernel: Kernel, buffer: jax.Array, tile: int, first: int | jax.Array, count: int | jax.Array) -> Ref:
    """Slots of a key block in VMEM, without the row by which the buffer may be wider than a slot."""
    rows = kernel.refs.kv_pages.shape[2]
    return kernel.refs.kv_buffer.at[buffer, tile, pl.ds(first, count), pl.ds(0, rows)]


def query_copy(kernel: Kernel, block: jax.Array) -> Any:
    """The copy of a block's queries into its buffer."""
    refs, buffer = kernel.refs, lax.rem(block, 2)
    count = kernel.of(Field.COUNT, block)
    source = refs.queries.at[:, pl.ds(kernel.of(Field.TOKEN, block), count)]
    target = refs.query_buffer.at[buffer, :, pl.ds(0, count)]
    return pltpu.make_async_copy(source, target, refs.query_arrived.at[buffer])


def output_copy(kernel: Kernel, block: jax.Array) -> Any:
    """The copy of a block's outputs to its own tokens, and to no others."""
    refs, buffer = kernel.refs, lax.rem(block, 2)
    count = kernel.of(Field.COUNT, block)
    source = refs.output_buffer.at[buffer, :, pl.ds(0, count)]
    target = refs.outputs.at[:, pl.ds(kernel.of(Field.TOKEN, block), count)]
    return pltpu.make_async_copy(source, target, refs.output_left.at[buffer])


def wait_for(copy: Any) -> None:
    """Waits until a copy that was started has ended."""
    copy.wait()
