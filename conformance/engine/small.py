"""A small engine of ours that answers prompts: what faults of whole engines are planted in, for the oracle to find."""

import functools
from typing import Any

from .completions import Completions
from .config import LayerKind, ModelConfig
from .model import init_params
from .serving import Engine

__all__ = ["small_engine"]

_HOST_PAGES = 40


@functools.cache
def _model(*kinds: str) -> Any:
    """A model of layers of some kinds: its config, and two sets of weights."""
    layers = tuple(LayerKind(kind, 6 if kind == "window" else 0) for kind in kinds)
    config = ModelConfig(32, 16, 24, 2, 1, 8, layers, 48, state_size=2)
    weights = [dict(init_params(config, seed)) for seed in (0, 1)]
    for own in weights:
        own["head"] = 4 * own["head"]  # so that what is read wrong shows in the tokens
    return config, *weights


def small_engine(backend: str = "kvproof.fast", *has: str) -> Completions:
    """An engine with 32 pages of 4 tokens, over a backend.

    Args:
        backend: the backend's name.
        has: what it has beside full attention and windows: ``host pages``, to which requests that give way go; or
            ``states`` in place of windows.
    """
    config, params, other = _model("full", "state") if "states" in has else _model("full", "window", "full")
    engine = Engine(
        (config, params),
        backend=backend,
        num_pages=32,
        page_size=4,
        max_num_seqs=4,
        max_num_batched_tokens=16,
        keep_logits=True,
        optimise=False,
        num_host_pages=_HOST_PAGES if "host pages" in has else 0,
    )
    return Completions(engine, {} if "states" in has else {"tuned": other})
