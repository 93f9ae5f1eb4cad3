"""Copying pages in plain JAX, in place where they are donated."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from ..storage import as_before, raw

__all__ = ["copy", "export", "read", "write"]

_barrier: Callable[[jax.Array], jax.Array] = jax.lax.optimization_barrier


def copy(
    pages: jax.Array,  # [P, ...]
    sources: jax.Array,  # i32[n]
    destinations: jax.Array,  # i32[n]
    num_slots: jax.Array | None = None,  # i32[n]
    *,
    distinct: bool = False,
    slot_axis: int = 1,
    as_bits: bool = True,
) -> jax.Array:
    """Copies pages onto pages: all are read before any is written. O(n pages).

    Args:
        pages: `[P, ...]`, of any dtype.
        sources: `i32[n]`.
        destinations: `i32[n]`; a pair with an id that is no page does nothing.
        num_slots: `i32[n]`: how many of the first slots of pages `[P, page, ...]` are copied; None: all.
        distinct: whether this is for GPUs: XLA is told that no page is written twice (see `update`).
        slot_axis: which axis of the pages runs over slots: 1, or -1 for the last.
        as_bits: whether floats of 8 and 16 bits are moved as bits, without which XLA on CPU changes those of NaN; on
            TPU it moves them as they are, and takes a bitcast of the pages for a copy of all of them.

    Returns:
        The pages.
    """
    exists = (sources >= 0) & (sources < pages.shape[0])
    stored = raw(pages) if as_bits else pages
    moved = stored.at[jnp.where(exists, sources, 0)].get(mode="promise_in_bounds", wrap_negative_indices=False)
    if num_slots is not None:
        kept = stored.at[destinations].get(mode="fill", fill_value=0, wrap_negative_indices=False)
        moved = jnp.where(_is_live(pages, num_slots, slot_axis), moved, kept)
    if distinct:
        # Left to put both into one loop, XLA for GPUs copies all pages first, of dtypes that are moved as bits.
        moved = _barrier(moved)
    return _write(pages, jnp.where(exists, destinations, -1), moved, distinct, as_bits)


def read(
    pages: jax.Array,  # [P, ...]
    page_ids: jax.Array,  # i32[S]
    *,
    as_bits: bool = True,
) -> jax.Array:
    """Pages by id, `[S, ...]`; zeros for an id that is no page. O(S pages)."""
    found = (raw(pages) if as_bits else pages).at[page_ids].get(mode="fill", fill_value=0, wrap_negative_indices=False)
    return as_before(found, pages)


def export(
    pages: jax.Array,  # [P, page, ...]
    page_ids: jax.Array,  # i32[n]
    num_slots: jax.Array,  # i32[n]
    *,
    slot_axis: int = 1,
    as_bits: bool = True,
) -> jax.Array:
    """Pages by id, `[n, page, ...]`, with zeros from the given number of slots on; as in `copy`. O(n pages)."""
    found = (raw(pages) if as_bits else pages).at[page_ids].get(mode="fill", fill_value=0, wrap_negative_indices=False)
    return as_before(jnp.where(_is_live(pages, num_slots, slot_axis), found, jnp.zeros((), found.dtype)), pages)


def write(
    pages: jax.Array,  # [P, ...]
    page_ids: jax.Array,  # i32[S]
    states: jax.Array,  # [S, ...]
    *,
    distinct: bool = False,
    as_bits: bool = True,
) -> jax.Array:
    """Pages with some of them replaced; an id that is no page writes nothing. O(S pages).

    Args:
        pages: `[P, ...]`, of any dtype.
        page_ids: `i32[S]`.
        states: `[S, ...]`, of the same dtype.
        distinct: whether XLA may take it that no page is written twice: see `update`.
        as_bits: as in `copy`.
    """
    return _write(pages, page_ids, raw(states) if as_bits else states, distinct, as_bits)


def _is_live(
    pages: jax.Array,  # [P, page, ...]
    num_slots: jax.Array,  # i32[n]
    slot_axis: int,
) -> jax.Array:
    """Which slots of n pages are among the first ones, `bool[n, page, 1, ...]`, or `bool[n, 1, ..., page]`."""
    live = jnp.arange(pages.shape[slot_axis], dtype=jnp.int32)[None, :] < num_slots[:, None]
    return jnp.expand_dims(live, tuple(range(1, pages.ndim - 1)) if slot_axis == -1 else tuple(range(2, pages.ndim)))


def _write(
    pages: jax.Array,  # [P, ...]
    page_ids: jax.Array,  # i32[S]
    states: jax.Array,  # [S, ...], as bits or not
    distinct: bool,
    as_bits: bool,
) -> jax.Array:
    place = (raw(pages) if as_bits else pages).at[page_ids]
    return as_before(place.set(states, mode="drop", wrap_negative_indices=False, unique_indices=distinct), pages)
