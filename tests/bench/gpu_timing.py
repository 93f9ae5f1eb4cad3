"""How long a device takes for a program, and what it can do at most: measured, in the same run."""

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["copy_rate", "matrix_rate", "microseconds_by_kernel", "seconds_a_turn"]

_ready: Callable[[Any], Any] = jax.block_until_ready
_barrier: Callable[[jax.Array], jax.Array] = jax.lax.optimization_barrier


def seconds_a_turn(
    make: Callable[[int], Callable[..., Any]],
    arrays: Sequence[Any],
    *,
    few: int = 4,
    more_seconds: float = 0.02,
    runs: int = 7,
) -> float:
    """The time of one turn of a loop on the device.

    The difference of many and few turns, each the median of several runs, over the difference of turns: what a call
    costs on the host, and the way there and back, is in both. Each program has run before.

    Args:
        make: of a number of turns, the function that makes them; it is compiled for two of them.
        arrays: what the function takes, on the device.
        few: the smaller number of turns.
        more_seconds: how much longer the other should take, about.
        runs: how many of each.

    Returns:
        Seconds.
    """
    begin = _median_seconds(make(few), arrays, runs)
    guess = max(begin / few, 1e-6)
    many = few + min(max(int(more_seconds / guess), few), 1000)
    return max(_median_seconds(make(many), arrays, runs) - begin, 0.0) / (many - few)


def _median_seconds(function: Callable[..., Any], arrays: Sequence[Any], runs: int) -> float:
    compiled = jax.jit(function).lower(*arrays).compile()
    _ready(compiled(*arrays))
    times = []
    for _ in range(runs):
        begin = time.perf_counter()
        _ready(compiled(*arrays))
        times.append(time.perf_counter() - begin)
    return median(times)


def microseconds_by_kernel(
    make: Callable[[int], Callable[..., Any]], arrays: Sequence[Any], turns: int = 8
) -> dict[str, float]:
    """What a turn spends in each of the device's kernels, by JAX's profiler, the longest first.

    Args:
        make: as `seconds_a_turn` has it.
        arrays: what the function takes, on the device.
        turns: over how many turns the mean is.
    """
    compiled = jax.jit(make(turns)).lower(*arrays).compile()
    _ready(compiled(*arrays))
    spent: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            _ready(compiled(*arrays))
        for path in Path(folder).rglob("*.xplane.pb"):
            for plane in jax.profiler.ProfileData.from_file(str(path)).planes:
                for line in plane.lines if plane.name.startswith("/device:GPU") else ():
                    for event in line.events if (line.name or "").startswith("Stream") else ():
                        spent[event.name] += event.duration_ns
    return {name: nanoseconds / turns / 1e3 for name, nanoseconds in spent.most_common()}


def copy_rate(device: Any, num_bytes: int = 2**31) -> float:
    """Bytes a second that the device reads and writes, both counted, when it changes the sign of many numbers.

    Args:
        device: which.
        num_bytes: of the numbers, far above any cache.
    """
    numbers = jax.device_put(np.ones(num_bytes // 4, np.float32), device)

    def make(turns: int) -> Callable[[jax.Array], jax.Array]:
        def run(array: jax.Array) -> jax.Array:
            out: jax.Array = jax.lax.fori_loop(0, turns, lambda _, x: _barrier(-x), array)
            return out

        return run

    return 2.0 * num_bytes / seconds_a_turn(make, [numbers])


def matrix_rate(device: Any, size: int = 8192) -> float:
    """Operations a second that the device makes of products of square matrices of bfloat16.

    Args:
        device: which.
        size: rows and columns.
    """
    drawn = np.random.default_rng(0).standard_normal((2, size, size), np.float32)
    drawn[1] *= size**-0.5
    left, right = (jax.device_put(matrix.astype(jnp.bfloat16), device) for matrix in drawn)

    def make(turns: int) -> Callable[[jax.Array, jax.Array], jax.Array]:
        def run(first: jax.Array, second: jax.Array) -> jax.Array:
            # Two products a turn: the second one's result has room where the turn began, and nothing is copied.
            out: jax.Array = jax.lax.fori_loop(0, turns, lambda _, x: (x @ second) @ second, first)
            return out

        return run

    return 2 * 2.0 * size**3 / seconds_a_turn(make, [left, right])
