"""What the engine machine serves: small models, sizes, and what must come out, by dense attention in float64."""

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import kvproof.spec
from kvproof.spec.declarations import Request

from ..backends.loading import Backend
from ..engine.config import LayerKind, ModelConfig
from ..engine.dense import dense_logits, tolerance
from ..engine.groups import groups_of
from ..engine.model import Params, init_params
from ..engine.sampler import Sampling
from ..engine.serving import Engine

__all__ = ["KITS", "Asked", "Kit", "bound", "dense", "engine_of", "fits", "matches_parts", "swaps"]

_PAGE = 2
_SEQS, _TOKENS = 3, 8


@dataclass(frozen=True)
class Kit:
    """What is served. Hashable.

    Attributes:
        config: the model.
        num_pages: pages of the pool.
    """

    config: ModelConfig
    num_pages: int

    @property
    def longest(self) -> int:
        """The longest prompt from which a token can be generated in the pool."""
        return max(length for length in range(1, self.config.max_model_len) if fits(self, length))

    def __str__(self) -> str:
        kinds = ", ".join(
            f"{layer.kind} {layer.extent}" if layer.extent else layer.kind for layer in self.config.layers
        )
        return (
            f"<model of layers {kinds}>, num_pages={self.num_pages}, page_size={_PAGE}, max_num_seqs={_SEQS}, "
            f"max_num_batched_tokens={_TOKENS}"
        )


def _kit(num_pages: int, *layers: LayerKind) -> Kit:
    return Kit(ModelConfig(8, 16, 16, 2, 1, 8, layers, 14, latent_rank=8, rotary_size=4, state_size=2), num_pages)


KITS = {
    "window": _kit(9, LayerKind("full"), LayerKind("window", 3)),
    "state": _kit(10, LayerKind("mla"), LayerKind("chunk", 4), LayerKind("state")),
}
"""What is served, by name: a program each. The pools hold one request, but the longest, or a few short ones."""


@dataclass
class Asked:
    """An unfinished request, as the machine knows it.

    Attributes:
        tokens: its tokens so far.
        num_prompt: tokens of its prompt.
        max_tokens: how many are generated.
        sampling: how.
    """

    tokens: list[int]
    num_prompt: int
    max_tokens: int
    sampling: Sampling


@functools.lru_cache(maxsize=8)
def _params(config: ModelConfig) -> Params:
    return init_params(config, 0)


def swaps(backend: Backend) -> bool:
    """Whether a backend's engine may have host memory: its manager, caches and scheduler, if any, allow it (SWAP-1)."""
    return (
        "swaps" not in backend.lacks
        and backend.accepts("CacheManager", "num_host_pages")
        and hasattr(backend.get("RaggedPagesCache"), "export_pages")
        and all(backend.offers(name) for name in ("export_pages", "write_states"))
        and (not backend.offers("Scheduler") or backend.accepts("Scheduler", "move"))
    )


def matches_parts(backend: Backend) -> bool:
    """Whether a backend's engine may hit amid pages: its manager finds them, its caches copy slots (MAN-17).

    A scheduler of the backend's own may publish pages before they are written, which is right where none is copied.
    """
    return (
        backend.accepts("CacheManager", "match_unit")
        and hasattr(backend.get("RaggedPagesCache"), "copy_pages")
        and backend.accepts("RaggedPagesCache.copy_pages", "num_slots")
        and not backend.offers("Scheduler")
    )


def engine_of(kit: Kit, backend: Backend, num_host_pages: int, match_unit: int | None) -> Engine:
    """An engine on a backend."""
    return Engine(
        (kit.config, _params(kit.config)),
        backend=backend,
        num_pages=kit.num_pages,
        page_size=_PAGE,
        max_num_seqs=_SEQS,
        max_num_batched_tokens=_TOKENS,
        keep_logits=True,
        hash_seed=b"kvproof",
        num_host_pages=num_host_pages,
        match_unit=match_unit,
        optimise=False,
    )


@functools.lru_cache(maxsize=4096)
def dense(kit: Kit, tokens: tuple[int, ...]) -> NDArray[np.float64]:
    """The logits after each token, `f64[n, V]`."""
    return dense_logits(_params(kit.config), kit.config, list(tokens))


@functools.lru_cache(maxsize=256)
def bound(kit: Kit, tokens: tuple[int, ...]) -> NDArray[np.float64]:
    """How far logits may be off after each token, `f64[n]`; some dense passes."""
    return tolerance(_params(kit.config), kit.config, list(tokens))


@functools.lru_cache(maxsize=256)
def fits(kit: Kit, num_tokens: int) -> bool:
    """Whether the specification's manager can serve so many tokens alone, one at a time (ENG-2)."""
    groups = [group.declared for group in groups_of(kit.config, _PAGE)]
    manager: Any = kvproof.spec.CacheManager(kit.num_pages, groups, kit.config.max_model_len)
    request = Request("alone", [0] * num_tokens)
    for computed in range(num_tokens):
        request.num_computed_tokens = computed
        if manager.allocate_slots(request, 1) is None:
            return False
    return True
