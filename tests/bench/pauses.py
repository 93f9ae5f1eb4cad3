"""How evenly decode steps go with the garbage collector on: the slow ones, and the pauses that it makes.

    python -m tests.bench.pauses                            # 100,000 steps of 256 requests, kvproof
    python -m tests.bench.pauses --steps 5000 --of vLLM

In a steady state: requests come and go, as many as there are, some 256 tokens after they came; their prompts begin with
one of eight prefixes of 512 tokens. A step is what the library does in it: slots for a token of each request, and the
look-ups, admissions and frees of those that come and go with it. Times are the wall's.
"""

import argparse
import gc
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .compare import installed, machine
from .implementation import Implementation
from .workloads import tokens

__all__ = ["main", "measure"]

RUNNING, PREFIXES, SHARED, OWN = 256, 8, 512, 128
PAGES = 40_000
WARM_UP = 1_000


class Pauses:
    """The collector's work, as it tells of it: how often by generation, and each time's length."""

    def __init__(self) -> None:
        self.nanoseconds: list[int] = []
        self.collections = [0, 0, 0]
        self._start = 0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        """What `gc.callbacks` calls."""
        if phase == "start":
            self._start = time.perf_counter_ns()
        else:
            self.nanoseconds.append(time.perf_counter_ns() - self._start)
            self.collections[info["generation"]] += 1


class _Serving:
    """Requests that come, decode and go."""

    def __init__(self, implementation: Implementation) -> None:
        self._implementation = implementation
        self._manager = implementation.manager(PAGES, 1 << 14)
        self._batch = self._manager.batch()
        self._prefixes = [tokens(SHARED, seed) for seed in range(PREFIXES)]
        self._source = np.random.default_rng(0)
        self._ends: dict[int, list[Any]] = {}
        self._now = self._count = 0
        for place in range(RUNNING):
            self._arrive(1 + place)

    def _arrive(self, left: int) -> int:
        own = self._source.integers(0, 32_000, OWN).astype(np.int32)
        prompt = self._implementation.tokens(np.concatenate([self._prefixes[self._count % PREFIXES], own]))
        start = time.perf_counter_ns()
        request = self._implementation.request(str(self._count), prompt)
        found = self._manager.look_up(request)
        given = self._manager.allocate(request, request.num_tokens - found[1], found[1], found[0])
        took = time.perf_counter_ns() - start
        assert given is not None, "the pool holds all that run"
        self._batch.add(request)
        self._ends.setdefault(self._now + left, []).append(request)
        self._count += 1
        return took

    def step(self) -> int:
        """One step; returns the nanoseconds that the library took."""
        self._now += 1
        self._batch.grow()
        start = time.perf_counter_ns()
        self._batch.step()
        took = time.perf_counter_ns() - start
        for request in self._ends.pop(self._now, ()):
            self._batch.remove(request)
            start = time.perf_counter_ns()
            self._manager.free(request)
            if self._manager.finish is not None:
                self._manager.finish(request)
            took += time.perf_counter_ns() - start
            took += self._arrive(int(self._source.integers(RUNNING // 2, 3 * RUNNING // 2)))
        return took


def measure(implementation: Implementation, steps: int) -> dict[str, Any]:
    """Takes so many steps in a steady state.

    Returns:
        Microseconds of steps and pauses at the middle, at 99 of 100, and at most, and how often the collector ran.
    """
    serving = _Serving(implementation)
    for _ in range(WARM_UP):
        serving.step()
    times: NDArray[np.int64] = np.zeros(steps, np.int64)
    tracked = len(gc.get_objects())
    pauses = Pauses()
    gc.callbacks.append(pauses)
    try:
        for number in range(steps):
            times[number] = serving.step()
            if number % 1_000 == 999:
                print(f"\r{implementation.name}: {number + 1:,} steps", end="", file=sys.stderr, flush=True)
    finally:
        gc.callbacks.remove(pauses)
        print(file=sys.stderr)
    return {
        "implementation": implementation.name,
        "steps": steps,
        "step_us": _spread(times),
        "pause_us": _spread(np.array(pauses.nanoseconds, np.int64)),
        "collections": pauses.collections,
        "tracked_objects": [tracked, len(gc.get_objects())],
    }


def _spread(nanoseconds: NDArray[np.int64]) -> dict[str, float] | None:
    if not len(nanoseconds):
        return None
    middle, late, most = np.percentile(nanoseconds, [50, 99, 100]) / 1e3
    return {"p50": round(float(middle), 1), "p99": round(float(late), 1), "max": round(float(most), 1)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.pauses", description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100_000, help="how many (default: %(default)s)")
    parser.add_argument("--of", default="kvproof", help="implementations, separated by commas (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    options = parser.parse_args(arguments)
    wanted = {name.casefold() for name in options.of.split(",")}
    results = [measure(found, options.steps) for found in installed() if found.name.casefold() in wanted]
    for result in results:
        print(f"{result['implementation']}, {result['steps']:,} steps of {RUNNING} requests")
        for what in ("step", "pause"):
            spread = result[f"{what}_us"]
            shown = "none" if spread is None else ", ".join(f"{name} {value:,} us" for name, value in spread.items())
            print(f"  {what}: {shown}")
        print(f"  collections by generation: {result['collections']}")
        print(f"  tracked objects before and after: {result['tracked_objects']}")
    if options.json is not None:
        options.json.write_text(json.dumps({"machine": machine(), "pauses": results}, indent=1) + "\n")
    return 0 if results else 2


if __name__ == "__main__":
    sys.exit(main())
