"""What the benchmarks run on: tokens, groups and managers, made the same way for every row."""

import numpy as np
from numpy.typing import NDArray

from kvproof import fast

POOL = 100_000
PAGE_SIZE = 16


def tokens(count: int, seed: int = 0) -> NDArray[np.int32]:
    """Random token ids below 32,000, `i32[count]`."""
    return np.random.default_rng(seed).integers(0, 32_000, count).astype(np.int32)


def group(page_size: int = PAGE_SIZE) -> fast.CacheGroupSpec:
    """One full-attention group."""
    return fast.CacheGroupSpec(fast.FullAttentionSpec(page_size, 8, 128, "float32"))


def manager(
    num_pages: int = POOL, page_size: int = PAGE_SIZE, groups: list[fast.CacheGroupSpec] | None = None
) -> fast.CacheManager:
    """A manager with one full-attention group, or with the groups given."""
    return fast.CacheManager(num_pages, groups or [group(page_size)], max_model_len=1 << 20)
