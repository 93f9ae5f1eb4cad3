"""Copies in flight: many started, few waited for at a time."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

__all__ = ["COPIED", "IN_FLIGHT", "copy_all"]

# A copy of a few KiB takes a microsecond or two, most of it latency, which this many at once hide.
IN_FLIGHT = 32

COPIED = ("float32", "int32", "uint32", "bfloat16", "int8", "float8_e4m3fn", "float8_e5m2")
"""The dtypes of arrays that a kernel takes; float16 is none of them."""


def copy_all(
    count: int | jax.Array,  # i32[]
    live: Callable[[jax.Array], jax.Array],
    copy: Callable[[jax.Array], Any],
    after: Callable[[jax.Array], jax.Array] = lambda i: i + 1,
) -> None:
    """Makes copies that touch nothing in common, at most `IN_FLIGHT` at once; all have ended when it returns.

    The copies share a semaphore and may end in any order: a wait is for as many bytes as a copy has, not for a copy.

    Args:
        count: how many there may be, `i32[]`.
        live: whether the copy at an index is to be made, `bool[]`; the same at each call.
        copy: the descriptor of the copy at an index, asked for only where it is to be made.
        after: the index after one; the first is 0.
    """

    def step(number: jax.Array, at: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        newest, oldest = at
        is_full = number >= IN_FLIGHT
        pl.when(is_full)(lambda: wait(oldest, live, copy))
        start(newest, live, copy)
        return after(newest), jnp.where(is_full, after(oldest), oldest)

    def finish(_: jax.Array, oldest: jax.Array) -> jax.Array:
        wait(oldest, live, copy)
        return after(oldest)

    _, oldest = lax.fori_loop(0, count, step, (jnp.int32(0), jnp.int32(0)))
    lax.fori_loop(jnp.maximum(count - IN_FLIGHT, 0), count, finish, oldest)


def start(i: jax.Array, live: Callable[[jax.Array], jax.Array], copy: Callable[[jax.Array], Any]) -> None:
    """Starts the copy at an index if it is to be made."""
    pl.when(live(i))(lambda: copy(i).start())


def wait(i: jax.Array, live: Callable[[jax.Array], jax.Array], copy: Callable[[jax.Array], Any]) -> None:
    """Waits for as many bytes as the copy at an index moves, if it was made."""
    pl.when(live(i))(lambda: copy(i).wait())
