"""A step of 256 requests that decode, by a small model: how much of it is the library's (manager, tables, metadata).

The rest is the engine's own scheduling and sampling, and above all the model's program.
"""

from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
import pytest

from kvproof.conformance.engine.config import LayerKind, ModelConfig
from kvproof.conformance.engine.model import init_params
from kvproof.conformance.engine.serving import Engine

REQUESTS, PROMPT, STEPS = 256, 96, 48
LAYERS = {
    "full": (LayerKind("full"),) * 4,
    "full and window": (LayerKind("full"), LayerKind("window", 64)) * 2,
}


class Timed:
    """Something whose methods are timed together, from outside.

    Args:
        inner: the thing.
        seconds: a list with one number, to which the time is added.
    """

    def __init__(self, inner: Any, seconds: list[float]) -> None:
        self._inner, self._seconds = inner, seconds

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return self._timed(found) if callable(found) else found

    def _timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            began = perf_counter()
            try:
                return method(*args, **options)
            finally:
                self._seconds[0] += perf_counter() - began

        return call


@pytest.mark.parametrize("kinds", LAYERS)
def test_share_of_the_library_in_a_step(benchmark: Any, kinds: str) -> None:
    """ENG-1: 256 requests of 96 tokens and more decode; to reach: under 3 % of a step, which the figures tell."""
    config = ModelConfig(2048, 256, 512, 8, 2, 32, LAYERS[kinds], 256)
    engine = Engine(
        (config, init_params(config, 0)),
        num_pages=2 * REQUESTS * 12,
        page_size=16,
        max_num_seqs=REQUESTS,
        max_num_batched_tokens=1024,
    )
    prompts = np.random.default_rng(0).integers(0, config.vocab_size, (REQUESTS, PROMPT))
    for number, prompt in enumerate(prompts):
        engine.add_request(f"r{number}", prompt, max_tokens=config.max_model_len - PROMPT)
    (scheduler,) = engine.schedulers
    while any(served.num_left != 1 or not served.is_running for served in scheduler.queue):
        engine.step()
    spent = [0.0]
    scheduler.manager = Timed(scheduler.manager, spent)
    runner = engine.runner
    runner.builders = {size: Timed(own, spent) for size, own in runner.builders.items()}
    taken: list[tuple[float, float]] = []

    def step() -> None:
        spent[0] = 0.0
        began = perf_counter()
        assert len(engine.step()) == REQUESTS
        taken.append((spent[0], perf_counter() - began))

    benchmark.pedantic(step, rounds=STEPS, warmup_rounds=4)
    library, whole = np.array(taken[4:]).T
    benchmark.extra_info["library_ms"] = [round(1e3 * float(read(library)), 2) for read in (np.min, np.median)]
    benchmark.extra_info["library_percent"] = round(100 * float(np.median(library / whole)), 1)
    benchmark.extra_info["library_percent_of_minima"] = round(100 * float(library.min() / whole.min()), 1)
