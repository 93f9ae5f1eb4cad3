"""The general attention kernel: any ragged batch over paged keys and values, flash style.

The kernel follows a schedule of query blocks (`prefill_schedule`). For each it reads the key blocks that its queries
can see, and no others, page by page through the table (`prefill_copies`), and folds them in (`prefill_fold`). In
flight at any time are the next block's queries, the last block's outputs, and all key buffers but one.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from ..layout import LANES
from .prefill_copies import (
    Cursor,
    first_cursor,
    following,
    output_copy,
    page_copies,
    query_copy,
    start_pages,
    wait_for,
    wait_for_pages,
)
from .prefill_fold import LOWEST, fold_in
from .prefill_geometry import NUM_BUFFERS
from .prefill_memory import Kernel
from .prefill_schedule import Field
from .prefill_words import load_rows, store_rows

__all__ = ["attend_blocks"]


def attend_blocks(kernel: Kernel) -> None:
    """Works through the schedule."""
    count = kernel.refs.counts[0]
    cursor = first_cursor(kernel)
    for buffer in range(NUM_BUFFERS - 1):
        start_pages(page_copies(kernel, cursor, jnp.int32(buffer)))
        cursor = following(kernel, cursor)

    @pl.when(count > 0)
    def _() -> None:
        query_copy(kernel, jnp.int32(0)).start()

    lax.fori_loop(0, count, partial(query_block, kernel), (jnp.int32(0), cursor))
    for block in (count - 2, count - 1):
        pl.when(block >= 0)(partial(wait_for_output, kernel, block))


def query_block(kernel: Kernel, block: jax.Array, carry: tuple[jax.Array, Cursor]) -> tuple[jax.Array, Cursor]:
    """Attends to one query block.

    Args:
        kernel: the kernel.
        block: which.
        carry: how many key blocks were read before, and the first one whose copies weren't started yet.
    """

    @pl.when(block + 1 < kernel.refs.counts[0])
    def _() -> None:
        query_copy(kernel, block + 1).start()

    wait_for(query_copy(kernel, block))
    begin(kernel, block)
    first, end = kernel.of(Field.FIRST_BLOCK, block), kernel.of(Field.END_BLOCK, block)
    carry = lax.fori_loop(first, end, partial(key_block, kernel, block), carry)
    pl.when(block >= 2)(partial(wait_for_output, kernel, block - 2))
    finish(kernel, block)
    output_copy(kernel, block).start()
    return carry


def key_block(
    kernel: Kernel, block: jax.Array, keys: jax.Array, carry: tuple[jax.Array, Cursor]
) -> tuple[jax.Array, Cursor]:
    """Folds one key block into a query block, and starts the copies of the one that takes the last one's buffer."""
    turn, ahead = carry
    buffer = lax.rem(turn, NUM_BUFFERS)
    wait_for_pages(kernel, (block, keys), buffer)
    copies = page_copies(kernel, ahead, lax.rem(turn + (NUM_BUFFERS - 1), NUM_BUFFERS))
    fold_in(kernel, block, keys, buffer, copies)
    return turn + 1, following(kernel, ahead)


def wait_for_output(kernel: Kernel, block: jax.Array) -> None:
    """Waits until a block's outputs have left their buffer."""
    wait_for(output_copy(kernel, block))


def begin(kernel: Kernel, block: jax.Array) -> None:
    """Puts a block's queries in place and sets maxima, sums and accumulators to those of no keys, or of the sinks."""
    geometry, refs = kernel.geometry, kernel.refs

    def head(h: jax.Array, _: None) -> None:
        refs.rows[h] = load_rows(refs.query_buffer.at[lax.rem(block, 2), h], geometry, kernel.emulated)
        if refs.sinks is None:
            refs.maxima[h] = jnp.full((geometry.rows, LANES), LOWEST, jnp.float32)
            refs.sums[h] = jnp.zeros((geometry.rows, LANES), jnp.float32)
        else:
            lane = lax.broadcasted_iota(jnp.int32, (geometry.rows, LANES), 1)
            refs.maxima[h] = refs.sinks[h]
            refs.sums[h] = jnp.where(lane == 0, 1.0, 0.0)
        refs.accumulators[h] = jnp.zeros(refs.accumulators.shape[1:], jnp.float32)

    lax.fori_loop(0, geometry.heads, head, None)


def finish(kernel: Kernel, block: jax.Array) -> None:
    """Writes a block's outputs into its buffer: zeros where there was nothing to read (ATT-2)."""
    geometry, refs = kernel.geometry, kernel.refs

    def head(h: jax.Array, _: None) -> None:
        total = jnp.sum(refs.sums[h], axis=1, keepdims=True)
        empty = total == 0.0
        factor = jnp.where(empty, 0.0, kernel.options.value_scale / jnp.where(empty, 1.0, total))
        outputs = refs.accumulators[h] * factor
        store_rows(refs.output_buffer.at[lax.rem(block, 2), h], outputs, geometry, kernel.emulated)

    lax.fori_loop(0, geometry.heads, head, None)
