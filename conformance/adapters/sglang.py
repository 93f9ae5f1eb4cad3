"""SGLang 0.5.23's radix cache and token allocators, unmodified and on the CPU, as a cache manager and a page pool.

Each request of ours is one of its own ``Req``, whose slots are a row of its ``ReqToTokenPool``. A look-up is what its
scheduler asks before a round, slots come as its module ``allocation`` takes them, what a step of the prompt computed
enters the tree when the next one begins, and the rest when the request ends, as in ``release_kv_cache``. Room is
counted before anything is evicted, as its scheduler does: free tokens and those that can be evicted. Its slots are
tokens: a page is ``slot // page_size``, and slot 0 is its padding.

Salts, adapters and multimodal content arrive where it has places for them; the version of the weights does not, as its
engine empties the cache when weights change. Pages that a caller hands back as hits are no argument of its functions:
it looks them up again, and the adapter refuses the call where it then finds others.
"""

import hashlib
import logging
from array import array
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from kvproof.spec.declarations import CacheSalt, LoraAdapter, MultimodalItem, PromptEmbeddings

from .peers import Peer

__all__ = ["CacheManager", "PagePool", "kvproof_lacks", "kvproof_made_for"]

kvproof_made_for = Peer(
    "sglang",
    ("0.5.23",),
    "pip install torch==2.14.1 torchvision==0.29.1 transformers==5.23.0 orjson psutil pybase64 requests packaging "
    "pillow starlette msgspec pydantic pyzmq tqdm ipython aiohttp dill apache-tvm-ffi sentencepiece openai "
    "partial-json-parser compressed-tensors gguf && pip install --no-deps sglang==0.5.23",
)

kvproof_lacks = (
    *("groups", "events", "counters", "batch", "pins", "snapshots", "swaps", "shards", "keys", "views"),
    *("queue", "tables", "caches", "kernels"),
)
"""What it does not have, or shows in no way that can be compared."""

_EMPTY_SALT = hashlib.sha256(b"").digest()
_ROWS = 64


def _module(name: str) -> Any:
    found = kvproof_made_for.module(f"sglang.srt.{name}")
    logging.getLogger("sglang").setLevel(logging.ERROR)
    return found


def _allocator(num_pages: Any, page_size: Any) -> Any:
    """The allocator that its engine has for a page size, without the arrays that it gives slots of."""
    torch, module = kvproof_made_for.module("torch"), _module("mem_cache.allocator")
    tokens = (num_pages - 1) * page_size
    if page_size == 1:
        return module.TokenToKVPoolAllocator(tokens, torch.float32, "cpu", None, need_sort=False)
    return module.PagedTokenToKVPoolAllocator(tokens, page_size, torch.float32, "cpu", None, need_sort=False)


class PagePool:
    """A ``TokenToKVPoolAllocator``: its slots are the pages.

    Args:
        num_pages: slots, and the padding.
        enable_caching: its allocator knows no cache.
    """

    def __init__(self, num_pages: Any, enable_caching: Any) -> None:
        del enable_caching
        self.allocator = _allocator(num_pages, 1)
        self.null_page = SimpleNamespace(page_id=0)

    def get_num_free_pages(self) -> int:
        """See ``available_size``."""
        return int(self.allocator.available_size())

    def get_new_pages(self, num_pages: Any) -> list[Any]:
        """See ``alloc``, which gives None where there is no room."""
        slots = self.allocator.alloc(num_pages)
        if slots is None:
            raise ValueError(f"num_pages={num_pages!r}: alloc gave None")
        return [SimpleNamespace(page_id=slot) for slot in slots.tolist()]

    def free_pages(self, ordered_pages: Iterable[Any]) -> None:
        """See ``free``."""
        slots = [page.page_id for page in ordered_pages]
        self.allocator.free(
            kvproof_made_for.module("torch").tensor(slots, dtype=kvproof_made_for.module("torch").int64)
        )


class CacheManager:
    """A ``RadixCache``, a ``ReqToTokenPool`` and an allocator.

    Args:
        num_pages: pages of the allocator, and that of the padding.
        kv_cache_groups: the one group.
        max_model_len: see ``max_context_len``.
        enable_caching: see ``disable``.
    """

    def __init__(
        self, num_pages: Any, kv_cache_groups: Iterable[Any], max_model_len: Any, enable_caching: Any = True
    ) -> None:
        (group,) = kv_cache_groups
        self.page_size = group.kv_cache_spec.page_size
        self.allocator = _allocator(num_pages, self.page_size)
        self.rows = _module("mem_cache.memory_pool").ReqToTokenPool(_ROWS, max_model_len, "cpu", False)
        params = _module("mem_cache.cache_init_params").CacheInitParams(
            not enable_caching, self.rows, self.allocator, self.page_size
        )
        self.tree = _module("mem_cache.radix_cache").RadixCache(params)
        self._live: dict[str, Any] = {}
        self.page_pool = SimpleNamespace(get_num_free_pages=lambda: self._room() // self.page_size)

    def _room(self) -> int:
        """Tokens that are free or can be evicted."""
        return int(self.allocator.available_size() + self.tree.evictable_size())

    def resident_page_ids(self) -> list[int]:
        """The pages in the tree."""
        return self._pages(self.tree.all_values_flatten()) if self.tree.total_size() else []

    def get_page_ids(self, request_id: Any) -> tuple[list[int], ...]:
        """The pages of a request's row, as far as slots were allocated."""
        live = self._live.get(request_id)
        return ([] if live is None else self._pages(self._row(live)[: live.kv.kv_allocated_len]),)

    def _pages(self, slots: Any) -> list[int]:
        return [int(slot) // self.page_size for slot in slots[:: self.page_size]]

    def _row(self, live: Any) -> Any:
        return self.rows.req_to_token[live.kv.req_pool_idx]

    def get_computed_pages(self, request: Any) -> tuple[list[list[int]], int]:
        """See ``init_next_round_input``, which looks up a request."""
        theirs = _request(request)
        theirs.init_next_round_input(self.tree)
        return [self._pages(self.tree.prefix_device_indices(theirs))], theirs.prefix_len

    def allocate_slots(
        self, request: Any, num_new_tokens: Any, num_new_computed_tokens: Any = 0, new_computed_pages: Any = None
    ) -> list[list[int]] | None:
        """See ``match_kv_cache``, ``checkpoint``, ``evict_from_tree_cache`` and ``alloc_extend``."""
        computed = request.num_computed_tokens
        live = self._live.get(request.request_id)
        new = live is None
        if live is None:
            live = self._admitted(request, num_new_computed_tokens, new_computed_pages)
        elif computed > live.prefix_len:
            self._publish(live, request, computed)
        allocated = live.kv.kv_allocated_len
        slots = self._take(live, max(computed + num_new_computed_tokens + num_new_tokens, allocated))
        if slots is None:
            if new:
                self.tree.unlock(live.lock)
                self.rows.free(live)
            return None
        self._live[request.request_id] = live
        live.ours = request
        held = -(-allocated // self.page_size)
        return [self.get_page_ids(request.request_id)[0][held:]]

    def _admitted(self, request: Any, num_hits: Any, pages: Any) -> Any:
        """A request with its hits, locked and in its row; nothing is kept of it where it is refused."""
        live = _request(request)
        live.refresh_fill_ids()
        common = _module("mem_cache.common")
        common.match_kv_cache(live, self.tree, live.full_untruncated_fill_ids, max_prefix_len=num_hits)
        found = self.tree.prefix_device_indices(live)
        if pages is not None and [self._pages(found)] != pages:
            raise ValueError(f"new_computed_pages={pages!r}: the tree has {self._pages(found)}")
        live.kv.cache_protected_len = live.kv.kv_allocated_len = live.prefix_len
        live.lock = self.tree.lock(live.last_node)
        self.rows.alloc([live])
        self.rows.write((live.kv.req_pool_idx, slice(0, live.prefix_len)), found)
        return live

    def _take(self, live: Any, end: int) -> Any:
        """Slots for the tokens of a request up to a number; None if there is no room."""
        torch, size, begin = kvproof_made_for.module("torch"), self.page_size, live.kv.kv_allocated_len
        pages = -(-end // size) - -(-begin // size)
        if pages * size > self._room():
            return None
        _module("mem_cache.common").evict_from_tree_cache(self.tree, pages * size)
        if size == 1:
            slots = self.allocator.alloc(end - begin)
        else:
            last = self._row(live)[begin - 1 : begin].to(torch.int64) if begin else torch.tensor([-1])
            begins, ends = torch.tensor([begin]), torch.tensor([end])
            slots = self.allocator.alloc_extend(begins, begins, ends, ends, last, end - begin, pages)
        self.rows.write((live.kv.req_pool_idx, slice(begin, end)), slots.to(torch.int32))
        live.kv.kv_allocated_len = end
        return slots

    def _publish(self, live: Any, request: Any, computed: int, finished: bool = False) -> None:
        """What a request computed enters the tree, where its engine puts it there: prompts, and all in the end."""
        tokens = _tokens(request)
        live.output_ids.extend(tokens[len(live.origin_input_ids) + len(live.output_ids) :])
        live.refresh_fill_ids()
        if not live.skip_radix_cache_insert and (finished or live.prefix_len < len(live.origin_input_ids)):
            self.tree.checkpoint(live, up_to=computed)
        live.prefix_len = computed

    def free(self, request: Any) -> None:
        """See ``release_kv_cache``."""
        live = self._live.pop(request.request_id, None)
        if live is None:
            return
        end = min(live.kv.kv_allocated_len, request.num_tokens)
        self._publish(live, request, end, finished=True)
        self.tree.free_kv_row(live.kv, [(live.kv.cache_protected_len, live.kv.kv_allocated_len)])
        self.tree.unlock(live.lock)
        self.rows.free(live)


def _request(request: Any) -> Any:
    """One of its requests."""
    salts = [key.fingerprint for key in request.extra_keys if isinstance(key, CacheSalt)]
    adapters = [key.name for key in request.extra_keys if isinstance(key, LoraAdapter)]
    embeddings = any(isinstance(key, PromptEmbeddings) for key in request.extra_keys)
    logprobs = request.sampling_params.prompt_logprobs is not None
    made = _module("managers.schedule_batch").Req(
        request.request_id,
        "",
        array("q", _tokens(request)),
        _module("sampling.sampling_params").SamplingParams(),
        return_logprob=logprobs,
        lora_id=adapters[0] if adapters else None,
        cache_salt="" if salts and salts[0] == _EMPTY_SALT else salts[0].hex() if salts else None,
        positional_embed_overrides=() if embeddings else None,
    )
    if not logprobs:
        made.logprob_start_len = -1
    return made


def _tokens(request: Any) -> list[int]:
    """A request's tokens; a multimodal item has sentinels of its content in place of its tokens, as its engine pads."""
    tokens = [int(token) for token in request.all_token_ids]
    for item in request.extra_keys:
        if isinstance(item, MultimodalItem):
            pads = _module("managers.schedule_batch")._compute_pad_values(item.content)
            for place in range(item.offset, min(item.offset + item.length, len(tokens))):
                tokens[place] = pads[(place - item.offset) % len(pads)]
    return tokens
