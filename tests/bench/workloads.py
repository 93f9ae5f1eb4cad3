"""What the benchmarks run on: pools, managers and requests, made the same way for every row."""

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


def hashed_pool(own_prefixes: bool) -> fast.PagePool:
    """A pool all of whose pages are free and cached.

    Args:
        own_prefixes: every page is a prefix of its own; else they are the pages of one long request.
    """
    pool = fast.PagePool(POOL, enable_caching=True)
    pages = pool.get_new_pages(POOL - 1)
    all_tokens = tokens((POOL - 1) * PAGE_SIZE)
    if own_prefixes:
        for place, page in enumerate(pages):
            request = fast.Request("r", all_tokens[place * PAGE_SIZE : (place + 1) * PAGE_SIZE])
            pool.cache_full_pages(request, [page], [], 0, 1, PAGE_SIZE, 0)
    else:
        pool.cache_full_pages(fast.Request("r", all_tokens), pages, [], 0, POOL - 1, PAGE_SIZE, 0)
    pool.free_pages(pages[::-1])
    return pool
