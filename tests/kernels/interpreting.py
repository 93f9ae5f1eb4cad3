"""Kernels in TPU interpret mode: a TPU's memories, copies and semaphores imitated on CPU.

Each kernel runs twice, for a mistake shows itself in one of two ways. With copies made as soon as they are started
(``"eager"``) a missing wait leaves right numbers, and a race. With copies made as late as they may be, when somebody
waits for them (``"on_wait"``), it leaves NaN in what was read too early. Memory that nobody wrote holds NaN (integers:
their largest value), and an access outside of an array raises.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental.pallas import tpu as pltpu

from kvproof.kernels.tpu.interpreted import MODES, Mode, interpret_params, reports

__all__ = ["MODES", "Interpreted", "Mode", "Outcome", "interpreted"]

_ready: Callable[[Any], Any] = jax.block_until_ready

# Compiling takes most of the time: an interpreted kernel is a large program that runs once or a few times.
_FAST_TO_COMPILE: dict[str, Any] = {"xla_backend_optimization_level": 0}

Make = Callable[[pltpu.InterpretParams], Callable[..., Any]]


class Outcome(NamedTuple):
    """What one run left."""

    output: Any
    """What the function returned, its arrays as numpy arrays."""

    races: tuple[str, ...]
    """One report for each pair of accesses to the same memory that nothing orders."""

    left_over: tuple[str, ...]
    """One report for each kernel with a semaphore that was not at zero at its end: a copy was started and never
    waited for, or waited for twice."""

    @property
    def clean(self) -> bool:
        """Whether there was neither a race nor a copy left over."""
        return not self.races and not self.left_over


class Interpreted:
    """A function of arrays whose kernels run in TPU interpret mode; compiled once for each shape, for both modes.

    Args:
        make: takes what `pallas_call` takes as ``interpret`` and returns the function of arrays to run.
        modes: which of `MODES`.
    """

    def __init__(self, make: Make, modes: Sequence[Mode] = MODES) -> None:
        params = interpret_params(out_of_bounds_reads="raise")
        self._function = jax.jit(make(params), compiler_options=_FAST_TO_COMPILE)
        self._modes = modes

    def __call__(self, *args: Any) -> dict[str, Outcome]:
        """Runs the function in both modes.

        Args:
            args: what the function takes.

        Returns:
            the outcome of each mode.

        Raises:
            jax.errors.JaxRuntimeError: a kernel read or wrote outside of an array.
        """
        return {mode: _run(self._function, mode, args) for mode in self._modes}


def interpreted(make: Make, *args: Any) -> dict[str, Outcome]:
    """Runs a function once in both modes; see `Interpreted`, which keeps what it compiled."""
    return Interpreted(make)(*args)


def _run(function: Callable[..., Any], mode: Mode, args: tuple[Any, ...]) -> Outcome:
    with reports(mode) as said:
        output = jax.tree.map(np.asarray, _ready(function(*args)))
    races: list[str] = []
    left_over: list[str] = []
    for line in said.getvalue().splitlines():
        if line.startswith("RACE DETECTED"):
            races.append(line)
        elif line.startswith("Semaphore "):
            left_over.append(line)
        elif races:
            races[-1] += "\n" + line
    return Outcome(output, tuple(races), tuple(left_over))
