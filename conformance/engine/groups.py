"""The cache groups of a model, and how many pages a request needs in them when it is served alone."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvproof.spec.declarations import (
    CacheGroupSpec,
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
from kvproof.spec.reading.arguments import integer, listed, refusal

from .config import LayerKind, ModelConfig

__all__ = ["LayerGroup", "groups_of", "most_pages"]


@dataclass(frozen=True)
class LayerGroup:
    """The layers of one kind and extent: they share a page list a request, and so a table.

    Attributes:
        kind: the kind.
        layers: the numbers of the layers, ascending.
        page_size: tokens in a page.
        declared: the group as a manager takes it.
    """

    kind: LayerKind
    layers: tuple[int, ...]
    page_size: int
    declared: CacheGroupSpec


def groups_of(config: ModelConfig, page_size: int | Sequence[int]) -> tuple[LayerGroup, ...]:
    """The cache groups of a model, one for each kind of layers, in the order in which the kinds first come.

    Args:
        config: the model.
        page_size: tokens in a page, of all groups or of each.

    Raises:
        TypeError: a page size is no integer [R1].
        ValueError: one is below 1, or there are not as many as groups [R1].
    """
    kinds = list(dict.fromkeys(config.layers))
    given = [page_size] * len(kinds) if isinstance(page_size, int | np.integer) else listed("page_size", page_size)
    if len(given) != len(kinds):
        raise refusal(ValueError, "R1", f"page_size names {len(given)} groups, the model has {len(kinds)}")
    groups = []
    for kind, size in zip(kinds, given, strict=True):
        size = integer("page_size", size, minimum=1)
        layers = tuple(layer for layer, other in enumerate(config.layers) if other == kind)
        declared = CacheGroupSpec(_declared(config, kind, size), [f"layer {layer}" for layer in layers])
        groups.append(LayerGroup(kind, layers, size, declared))
    return tuple(groups)


def _declared(
    config: ModelConfig, kind: LayerKind, size: int
) -> FullAttentionSpec | SlidingWindowSpec | ChunkedLocalAttentionSpec | MLAAttentionSpec | MambaSpec:
    heads = (size, config.num_kv_heads, config.head_size, config.dtype)
    match kind.kind:
        case "window":
            return SlidingWindowSpec(*heads, kind.extent)
        case "chunk":
            return ChunkedLocalAttentionSpec(*heads, kind.extent)
        case "mla":
            return MLAAttentionSpec(size, 1, config.latent_rank + config.rotary_size, config.dtype)
        case "state":
            return MambaSpec(size, ((config.hidden_size, config.state_size),), ("float32",), "align")
    return FullAttentionSpec(*heads)


def most_pages(groups: Sequence[CacheGroupSpec], num_tokens: int) -> int:
    """The most pages that a request holds at once when it is served alone, token by token. O(tokens x groups).

    Whatever has as many free pages can serve it to its end (ENG-2); less never can.

    Args:
        groups: the cache groups, as a manager takes them.
        num_tokens: tokens of the request whose keys and values are computed.
    """
    ends = np.arange(1, num_tokens + 1)
    held: NDArray[np.int64] = np.zeros(num_tokens, np.int64)
    for group in groups:
        spec = group.kv_cache_spec
        size = spec.page_size
        match spec:  # the first place that the step to ``ends`` tokens reads: MAN-8, MAN-13
            case SlidingWindowSpec():
                first = np.maximum(ends - spec.sliding_window, 0) // size
            case ChunkedLocalAttentionSpec():
                first = (ends - 1) // spec.attention_chunk_size * spec.attention_chunk_size // size
            case MambaSpec():
                first = np.maximum(-(-(ends - 1) // size) - 1, 0)
            case _:
                first = np.zeros(num_tokens, np.int64)
        held += -(-ends // size) - first
    return int(held.max(initial=0))
