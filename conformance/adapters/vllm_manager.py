"""vLLM's KV-cache manager, as a cache manager."""

from collections.abc import Iterable
from typing import Any

from .vllm import VLLM
from .vllm_groups import config_of, page_sizes
from .vllm_pages import CachePage, blocks_of, pages_of
from .vllm_pool import PagePool
from .vllm_requests import Requests

__all__ = ["CacheManager", "CachePages"]

_manager = VLLM.module("vllm.v1.core.kv_cache_manager")


class CachePages:
    """vLLM's ``KVCacheBlocks``.

    Args:
        pages: one list of pages a group.
        blocks: the blocks to look at; None makes them.
    """

    def __init__(self, pages: Iterable[Iterable[Any]], *, blocks: Any = None) -> None:
        self.blocks = _manager.KVCacheBlocks(tuple(map(blocks_of, pages))) if blocks is None else blocks

    @property
    def pages(self) -> tuple[list[CachePage], ...]:
        """See ``blocks``."""
        return tuple(map(pages_of, self.blocks.blocks))

    def __add__(self, other: Any) -> "CachePages":
        return CachePages((), blocks=self.blocks + other.blocks)

    def __repr__(self) -> str:
        return f"CachePages({self.get_page_ids()})"

    def get_page_ids(self) -> tuple[list[int], ...]:
        """See ``get_block_ids``."""
        return tuple(self.blocks.get_block_ids())

    def get_unhashed_page_ids(self) -> list[int]:
        """See ``get_unhashed_block_ids``."""
        return list(self.blocks.get_unhashed_block_ids())

    def new_empty(self) -> "CachePages":
        """See ``new_empty``."""
        return CachePages((), blocks=self.blocks.new_empty())


class CacheManager:
    """vLLM's ``KVCacheManager``, each call a step of its own.

    Args:
        num_pages: pages of the pool, the null page included.
        kv_cache_groups: the cache groups.
        max_model_len: see ``max_model_len``.
        enable_caching: see ``enable_caching``.
        use_eagle: see ``use_eagle``.
        unhashed_first: see `PagePool`.
    """

    def __init__(
        self,
        num_pages: Any,
        kv_cache_groups: Iterable[Any],
        max_model_len: Any,
        enable_caching: Any = True,
        use_eagle: Any = False,
        *,
        unhashed_first: bool = False,
    ) -> None:
        del unhashed_first
        config = config_of(num_pages, kv_cache_groups)
        scheduled, hashed = page_sizes(config, enable_caching)
        self.manager = _manager.KVCacheManager(
            config, max_model_len, scheduled, hashed, enable_caching=enable_caching, use_eagle=use_eagle
        )
        self.page_pool = PagePool(None, None, pool=self.manager.block_pool)
        self._requests = Requests(hashed)

    @property
    def usage(self) -> float:
        """See ``usage``."""
        return float(self.manager.usage)

    def get_computed_pages(self, request: Any) -> tuple[CachePages, int]:
        """See ``get_computed_blocks``."""
        blocks, num_tokens, _ = self.manager.get_computed_blocks(self._requests.of(request))
        return CachePages((), blocks=blocks), num_tokens

    def allocate_slots(
        self,
        request: Any,
        num_new_tokens: Any,
        num_new_computed_tokens: Any = 0,
        new_computed_pages: Any = None,
        num_lookahead_tokens: Any = 0,
        delay_cache_pages: Any = False,
    ) -> CachePages | None:
        """See ``allocate_slots``."""
        self.manager.new_step_starts()
        blocks = self.manager.allocate_slots(
            self._requests.of(request),
            num_new_tokens,
            num_new_computed_tokens,
            new_computed_pages.blocks if isinstance(new_computed_pages, CachePages) else new_computed_pages,
            num_lookahead_tokens=num_lookahead_tokens,
            delay_cache_blocks=delay_cache_pages,
        )
        return None if blocks is None else CachePages((), blocks=blocks)

    def cache_pages(self, request: Any, num_computed_tokens: Any) -> None:
        """See ``cache_blocks``."""
        self.manager.cache_blocks(self._requests.of(request), num_computed_tokens)

    def free(self, request: Any) -> None:
        """See ``free``."""
        self.manager.free(self._requests.of(request))

    def get_page_ids(self, request_id: Any) -> tuple[list[int], ...]:
        """See ``get_block_ids``."""
        return tuple(self.manager.get_block_ids(request_id))

    def reset_prefix_cache(self) -> bool:
        """See ``reset_prefix_cache``."""
        return bool(self.manager.reset_prefix_cache())
