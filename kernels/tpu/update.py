"""Keys and values written into their slots by copies from HBM to HBM, in place.

The vector unit sees none of it: a row that is packed like a slot (`layout.pack_rows`) is moved as it lies, which also
zeroes the slot's padding. XLA finds the runs of rows that go to slots side by side in a page, once for all layers of a
step; the scalar unit starts one copy for each of them, and `in_flight.IN_FLIGHT` are under way at once.

Slots that are not whole tiles can't be copied so. `scatter` has XLA write them: with the numbers as they are, for XLA
on TPU takes a bitcast of the cache for a copy of it, where XLA on CPU needs one.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ..dispatch import kernel_output
from ..slots import is_slice, is_slot
from .in_flight import COPIED, copy_all
from .scalar_memory import too_many_scalars

__all__ = ["scatter", "unsupported", "update", "update_slices"]

Ref = Any
Interpret = bool | pltpu.InterpretParams

_SUBLANES = 8
"""Rows of words in a tile."""

_WORD_BYTES = 4


def unsupported(kv_pages: jax.Array, mapping: jax.Array) -> str | None:
    """Why these pages can't be updated by copies, or None when they can.

    XLA gives an array whose last axes don't fill tiles another layout than kernels take, so that the cache would be
    copied before and after each call.

    Args:
        kv_pages: `[P, page, ...]`.
        mapping: `i32[T]` slots or `i32[3, n]` slices.
    """
    if kv_pages.dtype.name not in COPIED:
        return f"{kv_pages.dtype=}: no kernel takes it"
    if kv_pages.ndim < 4:
        return f"{kv_pages.ndim=}: several slots of a page share a tile of its last two axes"
    rows, itemsize = kv_pages.shape[-2], kv_pages.dtype.itemsize
    whole = rows % _SUBLANES == 0 or (rows.bit_count() == 1 and rows * itemsize >= _WORD_BYTES)
    if not whole:
        return f"slots of {rows} rows of {kv_pages.dtype} don't fill tiles"
    return too_many_scalars(mapping, *[mapping] * (mapping.ndim == 1))  # slots have lengths of runs beside them


def scatter(
    kv_pages: jax.Array,  # [P, page, *row], donated to be updated in place
    rows: jax.Array,  # [T, *row]
    slots: jax.Array,  # i32[T]
) -> jax.Array:
    """What `update` does, of any slots of more than 8 bits, by XLA for TPUs: row after row. O(T).

    Args:
        kv_pages: `[P, page, *row]`.
        rows: `[T, *row]`, the dtype of the pages.
        slots: `i32[T]`: as in `update`.
    """
    num_pages, page_size = kv_pages.shape[:2]
    page = jnp.where(slots < 0, num_pages, slots // page_size)
    return kv_pages.at[page, slots % page_size].set(rows, mode="drop", wrap_negative_indices=False)


def update(
    kv_pages: jax.Array,  # [P, page, *row], donated to be updated in place
    rows: jax.Array,  # [T, *row]
    slots: jax.Array,  # i32[T]
    *,
    interpret: Interpret = False,
) -> jax.Array:
    """Writes each row into a slot of its own (CACHE-3). A copy for each run of rows with slots side by side in a page.

    Args:
        kv_pages: `[P, page, *row]`, the row of at least two axes.
        rows: `[T, *row]`, the dtype of the pages.
        slots: `i32[T]`: page id * page + offset. A row whose slot is none (negative, or past the last) is dropped.
            Which row wins where two name a slot is undefined.
        interpret: what `pallas_call` takes.

    Returns:
        `[P, page, *row]`: the pages; all other slots as they were, bit for bit.
    """
    scalars = (slots, *runs_of_slots(slots, kv_pages.shape))
    return _call(_rows_kernel, rows.shape[0], kv_pages, rows, scalars, interpret)


def runs_of_slots(slots: jax.Array, shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """The runs that slots make: side by side in a page, or none of them existing. O(T).

    Args:
        slots: `i32[T]`, any numbers.
        shape: of the pages, `[P, page, ...]`.

    Returns:
        For each token how far it is to the first token of the next run, `i32[T]`; how many runs there are, `i32[1]`.
    """
    token = jnp.arange(slots.shape[0], dtype=jnp.int32)
    before = jnp.concatenate([slots[:1], slots[:-1]])
    exists, existed = is_slot(slots, shape), is_slot(before, shape)
    joins = jnp.where(exists, existed & (slots == before + 1) & (slots % shape[1] != 0), ~existed)
    begins = (token == 0) | ~joins
    at_or_after = lax.cummin(jnp.where(begins, token, slots.shape[0]), axis=0, reverse=True)
    following = jnp.append(at_or_after[1:], jnp.int32(slots.shape[0]))
    return following - token, jnp.sum(begins, dtype=jnp.int32)[None]


def update_slices(
    kv_pages: jax.Array,  # [P, page, *row], donated to be updated in place
    rows: jax.Array,  # [T, *row]
    slices: jax.Array,  # i32[3, n]
    num_slices: jax.Array,  # i32[1]
    *,
    interpret: Interpret = False,
) -> jax.Array:
    """Writes runs of rows into runs of slots (CACHE-3). O(n) copies.

    Args:
        kv_pages: `[P, page, *row]`, the row of at least two axes.
        rows: `[T, *row]`, the dtype of the pages.
        slices: `i32[3, n]`: first slot, first row, length. A slice that is not within one page and within the rows is
            dropped as a whole; where two overlap it is undefined which one wins.
        num_slices: `i32[1]`: how many slices count; the columns from there on may hold anything.
        interpret: what `pallas_call` takes.

    Returns:
        `[P, page, *row]`: the pages; all other slots as they were, bit for bit.
    """
    return _call(_slices_kernel, slices.shape[1], kv_pages, rows, (num_slices, slices), interpret)


def _call(
    kernel: Callable[..., None],
    num_runs: int,
    kv_pages: jax.Array,
    rows: jax.Array,
    scalars: tuple[jax.Array, ...],
    interpret: Interpret,
) -> jax.Array:
    if num_runs == 0 or rows.shape[0] == 0:
        return kv_pages
    call: Callable[..., jax.Array] = pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(scalars),
            grid=(1,),
            in_specs=[pl.BlockSpec(memory_space=pltpu.HBM)] * 2,
            out_specs=pl.BlockSpec(memory_space=pltpu.HBM),
            scratch_shapes=[pltpu.SemaphoreType.DMA(())],
        ),
        out_shape=kernel_output(kv_pages.shape, kv_pages.dtype),
        input_output_aliases={len(scalars) + 1: 0},
        compiler_params=pltpu.CompilerParams(disable_bounds_checks=True),
        name="kv_update",
        interpret=interpret,
    )
    return call(*scalars, rows, kv_pages)


def _rows_kernel(slots: Ref, lengths: Ref, num_runs: Ref, rows: Ref, _: Ref, kv_pages: Ref, semaphore: Ref) -> None:
    """One copy for each run of rows that have slots."""

    def live(token: jax.Array) -> jax.Array:
        return is_slot(slots[token], kv_pages.shape)

    def copy(token: jax.Array) -> Any:
        return run_copy(rows, kv_pages, semaphore, slots[token], token, lengths[token])

    def after(token: jax.Array) -> jax.Array:
        # Behind the last run there is no token to ask for the length of another.
        return jnp.minimum(token + lengths[token], slots.shape[0] - 1)

    copy_all(num_runs[0], live, copy, after)


def _slices_kernel(num_slices: Ref, slices: Ref, rows: Ref, _: Ref, kv_pages: Ref, semaphore: Ref) -> None:
    """One copy for each slice."""

    def live(i: jax.Array) -> jax.Array:
        return is_slice(slices[0, i], slices[1, i], slices[2, i], rows.shape[0], kv_pages.shape)

    def copy(i: jax.Array) -> Any:
        return run_copy(rows, kv_pages, semaphore, slices[0, i], slices[1, i], slices[2, i])

    copy_all(jnp.clip(num_slices[0], 0, slices.shape[1]), live, copy)


def run_copy(rows: Ref, kv_pages: Ref, semaphore: Ref, slot: jax.Array, row: jax.Array, length: int | jax.Array) -> Any:
    """The copy of a run of rows into a run of slots."""
    page = kv_pages.shape[1]
    slots = kv_pages.at[lax.div(slot, page), pl.ds(lax.rem(slot, page), length)]
    return pltpu.make_async_copy(rows.at[pl.ds(row, length)], slots, semaphore)
