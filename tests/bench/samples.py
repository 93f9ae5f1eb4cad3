"""What a row of the performance table is made of, and how it is timed."""

import gc
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from .implementation import Implementation

__all__ = ["Row", "Sample", "Times", "interleaved"]

TURN = 8
"""Runs of a turn, where a sample allows three turns of as many."""


class Sample(NamedTuple):
    """A workload that stands ready.

    Attributes:
        run: what is timed; if it gives a number, that is the time in nanoseconds.
        setup: what comes before each run, untimed.
        rounds: how many runs there can be, at most.
        per: how many times a run does what the row is about.
    """

    run: Callable[[], Any]
    setup: Callable[[], Any] | None = None
    rounds: int = 30
    per: int = 1


class Row(NamedTuple):
    """A row of the performance table.

    Attributes:
        name: its letter there, and which of its figures.
        text: the workload.
        make: makes it ready for an implementation.
        clock: the thread's CPU time, or the wall's where other threads do a part of the work.
        lacks: why an implementation has nothing for it, None if it has; left out where all have.
    """

    name: str
    text: str
    make: Callable[[Implementation], Sample]
    clock: Literal["cpu", "wall"] = "cpu"
    lacks: Callable[[Implementation], str | None] = lambda _: None

    def why_not(self, implementation: Implementation) -> str | None:
        """Why an implementation cannot be run on it here; None if it can."""
        return implementation.missing() or self.lacks(implementation)


class Times(NamedTuple):
    """What a sample took, in microseconds, for one time of what the row is about.

    Attributes:
        warm: run after run.
        cold: the first run after another implementation's, whose data had the processor's caches.
    """

    warm: list[float]
    cold: list[float]


def interleaved(samples: Sequence[Sample], clock: Literal["cpu", "wall"], seconds: float) -> list[Times]:
    """Times samples in turn, a few runs each, so that what slows the machine down meets all of them.

    The garbage collector is off. The first run of a turn stands apart: another's data are in the caches.

    Args:
        samples: the workloads.
        clock: see `Row`.
        seconds: no new turn begins after so many, but there are three, or as many as a sample allows.
    """
    now = time.thread_time_ns if clock == "cpu" else time.perf_counter_ns
    times = [Times([], []) for _ in samples]
    end = time.perf_counter() + seconds
    left = min(sample.rounds for sample in samples)
    turn = min(TURN, max(1, left // 3))
    gc.collect()
    gc.disable()
    try:
        for number in range(left // turn):
            if number >= 3 and time.perf_counter() > end:
                break
            for sample, own in zip(samples, times, strict=True):
                for place in range(turn):
                    if sample.setup is not None:
                        sample.setup()
                    start = now()
                    told = sample.run()
                    took = now() - start
                    if isinstance(told, int | float):
                        took = int(told)
                    (own.warm if place or turn == 1 else own.cold).append(took / 1e3 / sample.per)
    finally:
        gc.enable()
    return times
