"""Which slots and slices exist: what every kernel that writes rows into pages asks before it does."""

import jax
import jax.numpy as jnp
from jax import lax

__all__ = ["is_slice", "is_slot"]


def is_slot(slot: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Whether a slot exists, in pages of this shape. O(1).

    Args:
        slot: `i32`: page id * page + offset.
        shape: of the pages, `[P, page, ...]`.
    """
    return jnp.logical_and(slot >= 0, slot < shape[0] * shape[1])


def is_slice(slot: jax.Array, row: jax.Array, length: jax.Array, num_rows: int, shape: tuple[int, ...]) -> jax.Array:
    """Whether a slice lies within one page, and within the rows. O(1).

    No difference in it overflows once the slice has a size.

    Args:
        slot: `i32`: its first slot.
        row: `i32`: its first row.
        length: `i32`: its length.
        num_rows: rows that there are.
        shape: of the pages, `[P, page, ...]`.
    """
    page = shape[1]
    sized = jnp.logical_and(length > 0, length <= page)
    given = jnp.logical_and(row >= 0, row <= num_rows - length)
    within = jnp.logical_and(is_slot(slot, shape), lax.rem(slot, page) <= page - length)
    return jnp.logical_and(sized, jnp.logical_and(given, within))
