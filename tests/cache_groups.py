"""Cache groups of every kind, as the tests of managers build and draw them."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from kvproof import spec
from kvproof.spec import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)

__all__ = ["cache_groups", "chunked", "full", "group_lists", "latent", "states", "weak", "window"]


def full(page_size: int, is_eagle: bool = False) -> spec.CacheGroupSpec:
    return spec.CacheGroupSpec(FullAttentionSpec(page_size, 1, 1, "float32"), None, is_eagle)


def latent(page_size: int, is_eagle: bool = False) -> spec.CacheGroupSpec:
    return spec.CacheGroupSpec(MLAAttentionSpec(page_size, 1, 4, "bfloat16"), None, is_eagle)


def window(page_size: int, size: int, is_eagle: bool = False) -> spec.CacheGroupSpec:
    return spec.CacheGroupSpec(SlidingWindowSpec(page_size, 1, 1, "float16", size), None, is_eagle)


def chunked(page_size: int, size: int, is_eagle: bool = False) -> spec.CacheGroupSpec:
    return spec.CacheGroupSpec(ChunkedLocalAttentionSpec(page_size, 1, 1, np.int8, size), None, is_eagle)


def states(page_size: int, mode: Any = "align") -> spec.CacheGroupSpec:
    return spec.CacheGroupSpec(MambaSpec(page_size, ((2, 3), (4,)), ("float32", "float16"), mode))


_sizes = st.sampled_from([1, 2, 2, 4])

cache_groups: st.SearchStrategy[spec.CacheGroupSpec] = st.one_of(
    st.builds(full, _sizes, st.booleans()),
    st.builds(latent, _sizes, st.booleans()),
    st.builds(window, _sizes, st.integers(1, 6), st.booleans()),
    st.builds(chunked, _sizes, st.integers(1, 6), st.booleans()),
    st.builds(states, _sizes),
    st.builds(states, _sizes, st.sampled_from(["align", "align", "none"])),
)
"""One group of any kind, its page size a power of two so that hits of several groups are short."""

group_lists = st.lists(cache_groups, min_size=1, max_size=3)


def weak(message: bytes) -> bytes:
    """A hash function with four values: many contents have one key (R2)."""
    return bytes([sum(message) % 4])
