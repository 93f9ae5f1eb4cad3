"""Writing rows into pages in plain JAX, in place where the pages are donated."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ..storage import as_before, raw

__all__ = ["update"]


def update(
    pages: jax.Array,  # [P, page, *row]
    rows: jax.Array,  # [T, *row]
    slot_mapping: jax.Array,  # i32[T] or i32[3, n]
    num_slices: jax.Array | None = None,  # i32[1]
    *,
    distinct: bool = False,
    slot_axis: int = 1,
    by_page: bool = False,
) -> jax.Array:
    """Writes rows into slots; nothing else changes (CACHE-3). O(T), or O(n + tokens in the slices).

    Args:
        pages: `[P, page, *row]`, or `[P, *row, page]`, of any dtype. On CPU, XLA writes bfloat16 and float8 in O(P):
            store bits there.
        rows: `[T, *row]`, of the same dtype.
        slot_mapping: `i32[T]`, the slot of each row, or slices, `i32[3, n]`: first slot, first row, length.
            Slots below 0 or past the last page write nothing, nor do slices that leave a page or the rows.
        num_slices: `i32[1]`, how many slices there are; None with slots.
        distinct: whether XLA may take it that no slot is written twice; where one is, what it holds may be of several
            rows. On GPUs XLA then moves words, and else each number of 8 or 16 bits by a loop of atomic exchanges.
        slot_axis: which axis of the pages runs over slots: 1, or -1 for the last.
        by_page: whether a slot is written by taking its page and putting it back, a token after the other. XLA on TPU
            then leaves the cache where it lies; else it turns one whose slots are columns, or rows of 8 bits that fill
            no tiles, there and back, all of it.

    Returns:
        The pages.
    """
    if by_page:
        return _write_by_page(pages, rows, slot_mapping, num_slices, slot_axis)
    write = partial(_scatter, distinct=distinct, slot_axis=slot_axis)
    if num_slices is None:
        return write(pages, rows, slot_mapping)
    return _write_slices(pages, rows, slot_mapping, num_slices, pages.shape[slot_axis], write)


def _scatter(
    pages: jax.Array,  # [P, page, *row]
    rows: jax.Array,  # [T, *row]
    slots: jax.Array,  # i32[T]
    *,
    distinct: bool,
    slot_axis: int,
) -> jax.Array:
    num_pages, page_size = pages.shape[0], pages.shape[slot_axis]
    # By page and offset: the address, slot times row size, need not fit into 32 bits.
    page, offset = jnp.where(slots < 0, num_pages, slots // page_size), slots % page_size
    place = raw(pages).at[page, offset] if slot_axis == 1 else raw(pages).at[page, ..., offset]
    written = place.set(raw(rows), mode="drop", wrap_negative_indices=False, unique_indices=distinct)
    return as_before(written, pages)


def _write_by_page(
    pages: jax.Array,  # [P, page, *row] or [P, *row, page]
    rows: jax.Array,  # [T, *row]
    mapping: jax.Array,  # i32[T] or i32[3, n]
    num_slices: jax.Array | None,  # i32[1]
    slot_axis: int,
) -> jax.Array:
    """A page for each slot, or for each slice, which lies in one. O(T pages), or O(n pages)."""
    num_pages, page_size = pages.shape[0], pages.shape[slot_axis]
    lane = jnp.arange(page_size, dtype=jnp.int32)
    others = [axis for axis in range(pages.ndim) if axis != slot_axis % pages.ndim]
    if num_slices is None:
        starts, lengths = mapping, jnp.ones_like(mapping)
    else:
        starts, lengths = mapping[0], _lengths(mapping, num_slices, page_size, rows.shape[0])

    def new(run: jax.Array, offset: jax.Array) -> jax.Array:
        """What a run writes, each row in its place in the page; one row is the same in all places."""
        if num_slices is None:
            return jnp.expand_dims(jax.lax.dynamic_index_in_dim(rows, run, 0), slot_axis)
        found = rows[jnp.clip(mapping[1][run] + lane - offset, 0, rows.shape[0] - 1)]
        return jnp.moveaxis(found[None], 1, slot_axis)

    def step(run: jax.Array, pages: jax.Array) -> jax.Array:
        number, offset = starts[run] // page_size, starts[run] % page_size
        exists = (number >= 0) & (number < num_pages)
        here = exists & (lane >= offset) & (lane < offset + lengths[run])
        number = jnp.where(exists, number, 0)
        page = jax.lax.dynamic_index_in_dim(pages, number, 0)
        written = jnp.where(jnp.expand_dims(here, others), new(run, offset), page)
        after: jax.Array = jax.lax.dynamic_update_index_in_dim(pages, written, number, 0)
        return after

    done: jax.Array = jax.lax.fori_loop(0, starts.shape[0], step, pages)
    return done


def _lengths(
    slices: jax.Array,  # i32[3, n]
    num_slices: jax.Array,  # i32[1]
    page_size: int,
    tokens: int,
) -> jax.Array:
    """The length of each slice, `i32[n]`; 0 of those that write nothing."""
    cache_start, new_start, length = slices
    whole = jnp.arange(slices.shape[1], dtype=jnp.int32) < num_slices[0]
    whole &= (cache_start >= 0) & (length <= page_size - cache_start % page_size)
    whole &= (length > 0) & (length <= tokens) & (new_start >= 0) & (new_start <= tokens - length)
    return jnp.where(whole, length, 0)


class _Written(NamedTuple):
    done: jax.Array  # i32: tokens of the slices that are written
    pages: jax.Array


def _write_slices(
    pages: jax.Array,  # [P, page, *row]
    rows: jax.Array,  # [T, *row]
    slices: jax.Array,  # i32[3, n]
    num_slices: jax.Array,  # i32[1]
    page_size: int,
    write: Callable[..., jax.Array],
) -> jax.Array:
    """T tokens of the slices a round: one round, unless rows are written to several places."""
    tokens = rows.shape[0]
    cache_start, new_start, _ = slices
    length = _lengths(slices, num_slices, page_size, tokens)
    ends = jnp.cumsum(length)

    def step(state: _Written) -> _Written:
        place = state.done + jnp.arange(tokens, dtype=jnp.int32)
        which = jnp.searchsorted(ends, place, side="right").astype(jnp.int32)
        used = which < slices.shape[1]
        which = jnp.where(used, which, 0)
        ahead = place - (ends[which] - length[which])
        slots = jnp.where(used, cache_start[which] + ahead, -1)
        row = jnp.where(used, new_start[which] + ahead, 0)
        return _Written(state.done + tokens, write(state.pages, rows[row], slots))

    total = ends[-1] if slices.shape[1] else jnp.int32(0)
    return jax.lax.while_loop(lambda state: state.done < total, step, _Written(jnp.int32(0), pages)).pages
