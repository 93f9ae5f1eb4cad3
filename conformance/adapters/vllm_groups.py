"""Cache groups: our declarations, and what vLLM's manager is given for them."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np

from kvproof.spec.declarations import (
    CacheGroupSpec,
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)

from .vllm import VLLM

__all__ = [
    "CacheGroupSpec",
    "ChunkedLocalAttentionSpec",
    "FullAttentionSpec",
    "MLAAttentionSpec",
    "MambaSpec",
    "SlidingWindowSpec",
    "config_of",
    "page_sizes",
]

_interface = VLLM.module("vllm.v1.kv_cache_interface")
_torch = VLLM.module("torch")

_EXTENTS = {"SlidingWindowSpec": "sliding_window", "ChunkedLocalAttentionSpec": "attention_chunk_size"}


def config_of(num_pages: Any, groups: Iterable[Any]) -> Any:
    """Makes vLLM's ``KVCacheConfig`` of a pool of pages and cache groups."""
    return _interface.KVCacheConfig(num_pages, [], [_group(group) for group in groups])


def page_sizes(config: Any, enable_caching: Any) -> tuple[int, int]:
    """The sizes (of a step's tokens, of the pages that keys are computed for) which an engine of vLLM derives."""
    groups = config.kv_cache_groups
    resolve = VLLM.module("vllm.v1.core.kv_cache_utils").resolve_kv_cache_block_sizes
    first = groups[0].kv_cache_spec.block_size if groups else 1
    cache = SimpleNamespace(block_size=first, enable_prefix_caching=enable_caching, prefix_match_unit=None)
    parallel = SimpleNamespace(decode_context_parallel_size=1)
    engine = SimpleNamespace(cache_config=cache, parallel_config=parallel, kv_transfer_config=None)
    scheduled, hashed = resolve(config, engine)
    return int(scheduled), int(hashed)


def _group(group: Any) -> Any:
    """A group; other objects are handed on as they are."""
    if not isinstance(group, CacheGroupSpec):
        return group
    names = list(group.layer_names or ())
    return _interface.KVCacheGroupSpec(names, _spec(group.kv_cache_spec), is_eagle_group=group.is_eagle_group)


def _spec(spec: Any) -> Any:
    kind = type(spec).__name__
    made = getattr(_interface, kind)
    if isinstance(spec, MambaSpec):
        dtypes = tuple(map(_dtype, spec.dtypes))
        return made(spec.page_size, shapes=spec.shapes, dtypes=dtypes, mamba_cache_mode=spec.mamba_cache_mode)
    more = {_EXTENTS[kind]: getattr(spec, _EXTENTS[kind])} if kind in _EXTENTS else {}
    shape = {"num_kv_heads": spec.num_kv_heads, "head_size": spec.head_size, "dtype": _dtype(spec.dtype)}
    return made(block_size=spec.page_size, **shape, **more)


def _dtype(dtype: Any) -> Any:
    return getattr(_torch, np.dtype(dtype).name)
