"""Keys and values written into their slots by a Hopper's copy engine, in place.

A row that is packed like a slot (`layout.pack_rows`) is moved as it lies, as bits. A block of threads fetches a run of
rows into shared memory by one copy, reads meanwhile where each of them goes, and starts a copy for each that goes
somewhere. Registers see none of it. An address is slot times bytes of a row, multiplied into 64 bits.

Why not XLA's scatter: where it may not take slots to be distinct, it writes each number of 8 or 16 bits by a loop
around an atomic exchange of the word around it. Where it may (`xla.update` with ``distinct``) it moves 8 bytes a
thread, but slices are a loop of a dozen launches.

The order of writes and reads (ATT-5). What attends takes the pages that this returns, so that XLA launches it after
the update and makes it wait for the update's end. Nothing here lets a later launch begin before (no programmatic
dependent launch), and a block ends only once its copies have arrived (`wait_smem_to_gmem`). So every row of the batch
is written before any is read, whichever sequence it is of.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from ..slots import is_slice, is_slot
from .products import settled

__all__ = ["unsupported", "update", "update_slices"]

Ref = Any

_BITS: dict[int, Any] = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}
"""What numbers are moved as, by their bytes."""

_WIDTH = 256
"""The most numbers along an axis of what the copy engine moves at once."""

_LEAST_WIDTH = 128
"""Of what a row must be made up: rows in shared memory begin at multiples of 128 bytes."""

_MOST_ROW_BYTES = 192 * 2**10
"""Of a row, to fit into shared memory."""

_BLOCK_BYTES = 32 * 2**10
"""What a block of threads moves, at most, if it moves several rows: some such blocks share a multiprocessor."""

_BLOCK_ROWS = 32
"""The most rows of a block: their copies are written out one by one."""

_FEWEST_BLOCKS = 4 * 132
"""Blocks to spread rows over before a block gets several: four for each multiprocessor of an H100 or H200."""


def unsupported(kv_pages: jax.Array) -> str | None:
    """Why these pages can't be updated by such copies, or None when they can. O(1).

    Args:
        kv_pages: `[P, page, *row]`: anything with shape and dtype.
    """
    itemsize, numbers = kv_pages.dtype.itemsize, int(np.prod(kv_pages.shape[2:]))
    if itemsize not in _BITS:
        return f"{kv_pages.dtype=}: numbers of {itemsize} bytes are not moved"
    if numbers % _LEAST_WIDTH or numbers == 0:
        return f"slots of {numbers} numbers are no multiple of {_LEAST_WIDTH}"
    if numbers > _WIDTH**2 or numbers * itemsize > _MOST_ROW_BYTES:
        return f"slots of {numbers} numbers of {itemsize} bytes are too large for one copy"
    return None


def update(
    kv_pages: jax.Array,  # [P, page, *row], donated to be updated in place
    rows: jax.Array,  # [T, *row]
    slots: jax.Array,  # i32[T]
    *,
    interpret: Any = None,
) -> jax.Array:
    """Writes each row into a slot of its own (CACHE-3). O(T) copies.

    Args:
        kv_pages: `[P, page, *row]`; `unsupported` must be None for them.
        rows: `[T, *row]`, the dtype of the pages.
        slots: `i32[T]`: page id * page + offset. A row whose slot is none (negative, or past the last) is dropped.
            Which row wins where two name a slot is undefined.
        interpret: parameters of the GPU's interpreter, or None.

    Returns:
        `[P, page, *row]`: the pages; all other slots as they were, bit for bit.
    """
    tokens = rows.shape[0]
    if tokens == 0:
        return kv_pages
    block = _rows_of_a_block(kv_pages, min(tokens, max(tokens // _FEWEST_BLOCKS, 1)))
    kernel = partial(_rows_kernel, kv_pages.shape, interpret is not None)
    return _call(kernel, {"blocks": -(-tokens // block)}, block, kv_pages, rows, (slots,), interpret)


def update_slices(
    kv_pages: jax.Array,  # [P, page, *row], donated to be updated in place
    rows: jax.Array,  # [T, *row]
    slices: jax.Array,  # i32[3, n]
    num_slices: jax.Array,  # i32[1]
    *,
    interpret: Any = None,
) -> jax.Array:
    """Writes runs of rows into runs of slots (CACHE-3). O(n + rows in the slices) copies.

    Args:
        kv_pages: `[P, page, *row]`; `unsupported` must be None for them.
        rows: `[T, *row]`, the dtype of the pages.
        slices: `i32[3, n]`: first slot, first row, length. A slice that is not within one page and within the rows is
            dropped as a whole; where two overlap it is undefined which one wins.
        num_slices: `i32[1]`: how many slices count; the columns from there on may hold anything.
        interpret: parameters of the GPU's interpreter, or None.

    Returns:
        `[P, page, *row]`: the pages; all other slots as they were, bit for bit.
    """
    if rows.shape[0] == 0 or slices.shape[1] == 0:
        return kv_pages
    page = kv_pages.shape[1]
    block = _rows_of_a_block(kv_pages, min(page, rows.shape[0]))
    kernel = partial(_slices_kernel, kv_pages.shape, interpret is not None)
    grid = {"slices": slices.shape[1], "pieces": -(-page // block)}
    return _call(kernel, grid, block, kv_pages, rows, (slices, num_slices), interpret)


def _rows_of_a_block(kv_pages: jax.Array, wanted: int) -> int:
    """How many rows a block of threads moves: a power of two, at most ``wanted``. O(1)."""
    row_bytes = int(np.prod(kv_pages.shape[2:])) * kv_pages.dtype.itemsize
    most = max(min(wanted, _BLOCK_ROWS, _BLOCK_BYTES // row_bytes), 1)
    return 1 << (most.bit_length() - 1)


def _call(
    kernel: Callable[..., None],
    grid: dict[str, int],
    block: int,
    kv_pages: jax.Array,
    rows: jax.Array,
    scalars: tuple[jax.Array, ...],
    interpret: Any,
) -> jax.Array:
    """Runs a kernel over the pages as a reference, which it changes where they lie."""
    bits = _BITS[kv_pages.dtype.itemsize]
    numbers = int(np.prod(kv_pages.shape[2:]))
    width = _WIDTH if numbers % _WIDTH == 0 else _LEAST_WIDTH

    def flat(array: jax.Array) -> jax.Array:
        as_bits = array if array.dtype == bits else lax.bitcast_convert_type(array, bits)
        return as_bits.reshape(-1, numbers // width, width)

    scratch = (plgpu.SMEM((block, numbers // width, width), bits), plgpu.Barrier())

    def scoped(*refs: Ref) -> None:
        pl.run_scoped(partial(kernel, *refs), *scratch, collective_axes=())

    mesh = plgpu.Mesh(grid=tuple(grid.values()), grid_names=tuple(grid))
    call: Callable[..., Any] = pl.kernel(
        scoped,
        out_type=(),
        mesh=mesh,
        # JAX 0.11 would choose the other one.
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Lane),
        interpret=False if interpret is None else interpret,
        name="kv_update",
    )

    # A slice of the caller's gets an array of its own: XLA of JAX 0.11 hands over where it begins, and the launch is
    # refused where that is no multiple of 256 bytes.
    given = (flat(rows), *settled(scalars))
    changed: jax.Array = pl.run_state(lambda pages: call(pages, *given))(flat(kv_pages))
    done = changed.reshape(kv_pages.shape)
    return done if done.dtype == kv_pages.dtype else lax.bitcast_convert_type(done, kv_pages.dtype)


def _rows_kernel(
    shape: tuple[int, ...], emulated: bool, pages: Ref, rows: Ref, slots: Ref, buffer: Ref, barrier: Ref
) -> None:
    """A block of threads moves a run of rows. The last one fetches rows of the one before it, to end with the rows."""
    block = buffer.shape[0]
    begin = lax.axis_index("blocks") * block
    start = jnp.minimum(begin, rows.shape[0] - block)

    def slot_of(token: jax.Array) -> jax.Array:
        return jnp.where(token >= begin, slots[token], -1)

    _move(shape, emulated, pages, rows, start, slot_of, buffer, barrier)


def _slices_kernel(
    shape: tuple[int, ...],
    emulated: bool,
    pages: Ref,
    rows: Ref,
    slices: Ref,
    num_slices: Ref,
    buffer: Ref,
    barrier: Ref,
) -> None:
    """A block of threads moves a piece of a slice, if it is so long. It fetches rows around it where they end."""
    block, num_rows = buffer.shape[0], rows.shape[0]
    which, begin = lax.axis_index("slices"), lax.axis_index("pieces") * block
    slot, first, length = slices[0, which], slices[1, which], slices[2, which]

    def slot_of(token: jax.Array) -> jax.Array:
        ours = jnp.logical_and(token >= first + begin, token < first + length)
        return jnp.where(ours, slot + (token - first), -1)

    counts = jnp.logical_and(which < num_slices[0], is_slice(slot, first, length, num_rows, shape))

    @pl.when(jnp.logical_and(counts, begin < length))
    def _() -> None:
        start = jnp.minimum(first + begin, num_rows - block)
        _move(shape, emulated, pages, rows, start, slot_of, buffer, barrier)


def _move(
    shape: tuple[int, ...],
    emulated: bool,
    pages: Ref,
    rows: Ref,
    start: jax.Array,
    slot_of: Callable[[jax.Array], jax.Array],
    buffer: Ref,
    barrier: Ref,
) -> None:
    """As many rows as the buffer holds, from ``start`` on, into those of their slots that exist."""
    block = buffer.shape[0]
    plgpu.copy_gmem_to_smem(rows.at[pl.ds(start, block)], buffer, barrier)
    slots = [slot_of(start + place) for place in range(block)]  # read while the rows are on their way
    wait(barrier)
    for place, slot in enumerate(slots):
        pl.when(is_slot(slot, shape))(partial(_store, emulated, buffer.at[place], pages.at[slot]))
    plgpu.wait_smem_to_gmem(0)


def wait(barrier: Ref) -> None:
    """Until what was fetched is there."""
    plgpu.barrier_wait(barrier)


def _store(emulated: bool, row: Ref, slot: Ref) -> None:
    """Starts the copy of a row into its slot.

    Interpreted, the row is read and written instead: the interpreter of JAX 0.10 looks neither whether what such a
    copy reads was waited for, nor whether what it writes exists.
    """
    if emulated:
        slot[...] = row[...]
    else:
        plgpu.copy_smem_to_gmem(row, slot)
