"""Copies in flight: many started, few waited for at a time."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

__all__ = ["COPIED", "IN_FLIGHT", "copy_all"]

# A copy of a few KiB takes a microsecond or two, most of it latency: so many at once hide it.
IN_FLIGHT = 32

COPIED = ("float32", "int32", "uint32", "bfloat16", "int8", "float8_e4m3fn", "float8_e5m2")
"""The dtypes of arrays that a kernel takes; float16 is none of them."""


def copy_all(
    count: int | jax.Array,  # i32[]
    live: Callable[[jax.Array], jax.Array],
    copy: Callable[[jax.Array], Any],
) -> None:
    """Makes copies that touch nothing in common, at most `IN_FLIGHT` at once; all have ended when it returns.

    The copies share a semaphore and may end in any order: a wait is for as many bytes as a copy has, not for a copy.

    Args:
        count: how many there may be, `i32[]`.
        live: whether the i-th is to be made, `bool[]`; the same at each call.
        copy: the descriptor of the i-th, asked for only where it is to be made.
    """

    def step(i: jax.Array, _: None) -> None:
        pl.when(i >= IN_FLIGHT)(lambda: wait(i - IN_FLIGHT, live, copy))
        start(i, live, copy)

    def finish(i: jax.Array, _: None) -> None:
        wait(i, live, copy)

    lax.fori_loop(0, count, step, None)
    lax.fori_loop(jnp.maximum(count - IN_FLIGHT, 0), count, finish, None)


def start(i: jax.Array, live: Callable[[jax.Array], jax.Array], copy: Callable[[jax.Array], Any]) -> None:
    """Starts the i-th copy if it is to be made."""
    pl.when(live(i))(lambda: copy(i).start())


def wait(i: jax.Array, live: Callable[[jax.Array], jax.Array], copy: Callable[[jax.Array], Any]) -> None:
    """Waits for as many bytes as the i-th copy moves, if it was made."""
    pl.when(live(i))(lambda: copy(i).wait())
