"""The paged cache of `transformers` 5.23.0's continuous batching, unmodified, as a cache manager.

A request's look-up, slots and end are those that its scheduler asks of a ``PagedAttentionCache``, in its order: what a
step computed is hashed when the next one begins, or when the request ends; a prefix that was found is taken before
slots are asked for. Where these do not come, what is cached and held by nobody is evicted, all of it, as its scheduler
does; here only where that makes the room. Its blocks begin with number 2, our pages with 1.

It has one group here, of full attention: a sliding window is kept as a ring, whose pages stand at no places of ours.
Pages that a caller hands back as hits are no argument of its functions: it looks them up again, and the adapter refuses
the call where it then finds others. Salts, adapters and the version of the weights have no place in its requests, and
do not arrive. A request that asks for log-probabilities of its prompt, which it does not know, is not looked up.
"""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from .peers import Peer

__all__ = ["CacheManager", "CachePages", "kvproof_lacks", "kvproof_made_for"]

kvproof_made_for = Peer("transformers", ("5.23.0",), "pip install torch==2.13.0 transformers==5.23.0 psutil")

kvproof_lacks = (
    *("groups", "events", "counters", "batch", "pins", "snapshots", "swaps", "shards", "keys", "views"),
    *("queue", "tables", "caches", "kernels"),
)
"""What it does not have, or shows in no way that can be compared."""

_TRASH = 1
"""Its first two blocks are never handed out; of our pages it is the first."""


class CachePages:
    """Blocks of one request.

    Args:
        pages: the ids of our pages, in a list for the one group.
    """

    def __init__(self, pages: Iterable[Iterable[int]]) -> None:
        self.pages = tuple(map(list, pages))

    def __repr__(self) -> str:
        return f"CachePages({self.pages})"

    def get_page_ids(self) -> tuple[list[int], ...]:
        """The ids of the pages."""
        return self.pages


class CacheManager:
    """A ``PagedAttentionCache`` of one layer, on the CPU.

    Args:
        num_pages: blocks of the cache, and one for the null page.
        kv_cache_groups: the one group.
        max_model_len: it knows no such limit.
        enable_caching: see ``allow_block_sharing``.
    """

    def __init__(
        self, num_pages: Any, kv_cache_groups: Iterable[Any], max_model_len: Any, enable_caching: Any = True
    ) -> None:
        del max_model_len
        (group,) = kv_cache_groups
        peer = kvproof_made_for
        torch = peer.module("torch")
        paged = peer.module("transformers.generation.continuous_batching.cache")
        one = peer.module("transformers.generation.continuous_batching.distributed").DistributedHelper(None, None)
        config = peer.module("transformers").LlamaConfig(
            num_hidden_layers=1, hidden_size=16, num_attention_heads=1, num_key_value_heads=1, vocab_size=8
        )  # 128 bytes a token: a sector of it is a block
        batching = peer.module("transformers.generation.configuration_utils").ContinuousBatchingConfig(
            page_size=group.kv_cache_spec.page_size, num_blocks=num_pages - 1, max_batch_tokens=1,
            max_memory_percent=1.0, max_blocks_per_request=0, allow_block_sharing=enable_caching,
        )  # fmt: skip
        self.cache = paged.PagedAttentionCache(config, batching, "cpu", one, torch.float32)
        (self._allocator,) = self.cache.cache_allocators.values()
        self._state = peer.module("transformers.generation.continuous_batching.requests").RequestState
        self._live: dict[str, _Live] = {}
        self.page_pool = SimpleNamespace(get_num_free_pages=self._num_free)

    def _num_free(self) -> int:
        """Blocks in free sectors, free blocks, and those that are kept for what they hold."""
        pool, allocator = self.cache.pool, self._allocator
        free = pool.num_free_sectors * allocator.blocks_per_sector + pool.count_free_blocks(allocator.index)
        return int(free) + len(allocator.ledger.cached_blocks)

    def resident_page_ids(self) -> list[int]:
        """The blocks that have a hash."""
        return [block - _TRASH for block in self._allocator.ledger.block_to_hash]

    def get_page_ids(self, request_id: Any) -> tuple[list[int], ...]:
        """See ``block_table``."""
        return ([block - _TRASH for block in self._allocator.block_table.get(request_id, [])],)

    def get_computed_pages(self, request: Any) -> tuple[CachePages, int]:
        """See ``match_prefix_blocks``, which ``search_prefix_match`` asks before it takes what it found."""
        if not self.cache.use_prefix_sharing or request.sampling_params.prompt_logprobs is not None:
            return CachePages([[]]), 0
        found = self._allocator.match_prefix_blocks([int(token) for token in request.all_token_ids])
        pages = CachePages([[block - _TRASH for block in found]])
        return pages, len(found) * self._allocator.tokens_per_page

    def allocate_slots(
        self, request: Any, num_new_tokens: Any, num_new_computed_tokens: Any = 0, new_computed_pages: Any = None
    ) -> CachePages | None:
        """See ``can_store_request_tokens``, ``search_prefix_match`` and ``mark_complete_blocks``."""
        name, computed = request.request_id, request.num_computed_tokens
        live = self._live.get(name)
        if live is not None:
            self._mark(live, computed)
        else:
            live = _Live(request, self._state(name, []))
        if new_computed_pages is not None:
            tokens = [int(token) for token in request.all_token_ids[: num_new_computed_tokens + 1]]
            found = self.cache.search_prefix_match(name, tokens)
            if (found, self.get_page_ids(name)[0]) != (num_new_computed_tokens, new_computed_pages.pages[0]):
                self.cache.free_blocks(name)
                raise ValueError(
                    f"new_computed_pages={new_computed_pages.pages!r}: another look-up finds {found} tokens"
                )
        held = len(self._allocator.block_table.get(name, []))
        live.state.position_offset = computed + num_new_computed_tokens
        if not self._has_room(live.state, num_new_tokens):
            if name not in self._live:
                self.cache.free_blocks(name)
            return None
        self._live[name] = live
        live.promised = live.state.position_offset + num_new_tokens
        return CachePages([self.get_page_ids(name)[0][held:]])

    def _has_room(self, state: Any, num_new_tokens: Any) -> bool:
        """Asks for slots, and again where an eviction makes the room."""
        if self.cache.can_store_request_tokens(state, num_new_tokens):
            return True
        needed = self._allocator.needs_new_blocks(state.request_id, state.current_len(), num_new_tokens)
        if needed > self._num_free():
            return False
        self.cache.evict_cached_blocks()
        self.cache.pool.try_to_free_sectors()
        return bool(self.cache.can_store_request_tokens(state, num_new_tokens))

    def _mark(self, live: "_Live", computed: Any) -> None:
        """Tells the cache what the last step computed: the tokens up to a number."""
        live.state.initial_tokens = [int(token) for token in live.request.all_token_ids]
        full = self.cache.count_new_complete_blocks(live.state, computed - live.state.current_len())
        self.cache.mark_complete_blocks(live.state, full)
        live.state.position_offset = computed

    def free(self, request: Any) -> None:
        """See ``free_blocks``; what the last step computed is hashed before, as its engine does."""
        live = self._live.pop(request.request_id, None)
        if live is not None:
            self._mark(live, min(live.promised, request.num_tokens))
        self.cache.free_blocks(request.request_id)


class _Live:
    """A request that has slots: ours, theirs, and how many tokens have slots."""

    def __init__(self, request: Any, state: Any) -> None:
        self.request, self.state, self.promised = request, state, 0
