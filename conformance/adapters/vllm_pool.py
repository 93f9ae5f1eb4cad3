"""vLLM's block pool, as a page pool."""

from collections.abc import Iterable, Mapping
from typing import Any

from .vllm import VLLM
from .vllm_pages import CachePage, FreeCachePageQueue, Key, blocks_of, key_of, page_of, pages_of
from .vllm_requests import Requests

__all__ = ["PagePool"]

_block_pool = VLLM.module("vllm.v1.core.block_pool")


class PagePool:
    """vLLM's ``BlockPool``.

    Args:
        num_pages: see ``num_gpu_blocks``.
        enable_caching: see ``enable_caching``.
        unhashed_first: vLLM knows no other order of freed blocks, so that False makes no difference (POOL-13).
        pool: the pool to look at; None makes one.
    """

    def __init__(self, num_pages: Any, enable_caching: Any, *, unhashed_first: bool = False, pool: Any = None) -> None:
        del unhashed_first
        self.pool = _block_pool.BlockPool(num_pages, enable_caching, hash_block_size=1) if pool is None else pool

    @property
    def num_pages(self) -> int:
        """See ``num_gpu_blocks``."""
        return int(self.pool.num_gpu_blocks)

    @property
    def null_page(self) -> CachePage | None:
        """See ``null_block``."""
        return page_of(self.pool.null_block)

    @property
    def free_page_queue(self) -> FreeCachePageQueue:
        """See ``free_block_queue``."""
        return FreeCachePageQueue((), queue=self.pool.free_block_queue)

    @property
    def cached_page_hash_to_page(self) -> Mapping[Key, list[CachePage]]:
        """See ``cached_block_hash_to_block``, which maps a hash to a block, or to several by their numbers."""
        cached = self.pool.cached_block_hash_to_block._cache
        return {
            key_of(key): pages_of(blocks.values() if isinstance(blocks, dict) else [blocks])
            for key, blocks in cached.items()
        }

    def get_num_free_pages(self) -> int:
        """See ``get_num_free_blocks``."""
        return int(self.pool.get_num_free_blocks())

    def get_usage(self) -> float:
        """See ``get_usage``."""
        return float(self.pool.get_usage())

    def get_new_pages(self, num_pages: Any) -> list[CachePage]:
        """See ``get_new_blocks``."""
        return pages_of(self.pool.get_new_blocks(num_pages))

    def touch(self, pages: Iterable[Iterable[Any]]) -> None:
        """See ``touch``, which takes the blocks of all groups in one list."""
        self.pool.touch([block for group in pages for block in blocks_of(group)])

    def free_pages(self, ordered_pages: Iterable[Any]) -> None:
        """See ``free_blocks``."""
        self.pool.free_blocks(blocks_of(ordered_pages))

    def cache_full_pages(
        self,
        request: Any,
        pages: Iterable[Any],
        page_hashes: Any,
        num_cached_pages: Any,
        num_full_pages: Any,
        page_size: Any,
        kv_cache_group_id: Any,
    ) -> None:
        """See ``cache_full_blocks``: the keys are the request's own, whichever are known here.

        Our pool is told the page size with each call, vLLM's the one of its keys when it is made.
        """
        del page_hashes
        self.pool.hash_block_size = page_size
        self.pool.cache_full_blocks(
            Requests(page_size).of(request),
            blocks_of(pages),
            num_cached_pages,
            num_full_pages,
            page_size,
            kv_cache_group_id,
        )

    def get_cached_page(self, page_hash: Any, kv_cache_group_ids: Any) -> list[CachePage] | None:
        """See ``get_cached_block``."""
        found = self.pool.get_cached_block(page_hash, kv_cache_group_ids)
        return None if found is None else pages_of(found)

    def evict_pages(self, page_ids: Iterable[Any]) -> None:
        """See ``evict_blocks``, which takes a set."""
        self.pool.evict_blocks(set(page_ids))

    def reset_prefix_cache(self) -> bool:
        """See ``reset_prefix_cache``."""
        return bool(self.pool.reset_prefix_cache())
