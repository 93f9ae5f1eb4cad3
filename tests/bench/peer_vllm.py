"""vLLM, unmodified, to be measured."""

import logging
import os
from collections.abc import Callable, Sequence
from functools import cached_property
from importlib.util import find_spec
from typing import Any

from .implementation import Manager, OneByOne, Pool, Table, Tokens, append_output
from .implementation import peer_module as _module
from .workloads import PAGE_SIZE, group

__all__ = ["Vllm"]


class Vllm:
    """vLLM: its block pool, KV-cache manager and block table, keys by SHA-256."""

    name = "vLLM"
    appending_makes_keys = True

    def missing(self) -> str | None:
        return (
            None if find_spec("vllm") else "vLLM is not installed: it is a package of its own, see docs/guides/hold.md"
        )

    def no_events(self) -> str | None:
        return None

    @cached_property
    def _adapter(self) -> Any:
        os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")  # else a machine without a GPU has no platform to it
        found = _module("kvproof.conformance.adapters.vllm_groups")
        logging.getLogger("vllm").setLevel(logging.ERROR)
        return found

    @cached_property
    def _parts(self) -> Any:
        self._adapter  # noqa: B018 # sets up what the imports below need
        utils, hashing = _module("vllm.v1.core.kv_cache_utils"), _module("vllm.utils.hashing")
        utils.init_none_hash(hashing.sha256)
        params = _module("vllm.sampling_params").SamplingParams()
        return _module("vllm.v1.request").Request, params, utils.get_request_block_hasher, hashing.sha256

    def pool(self, num_pages: int) -> Pool:
        self._parts  # noqa: B018 # keys need a seed
        made = _module("vllm.v1.core.block_pool").BlockPool(num_pages, True, hash_block_size=PAGE_SIZE)
        publish = made.cache_full_blocks
        return Pool(
            made.get_new_blocks,
            made.free_blocks,
            _block_ids,
            _block_ids,
            lambda request, blocks, count: publish(request, blocks, 0, count, PAGE_SIZE, 0),
            made.reset_prefix_cache,
        )

    def request(self, request_id: str, tokens: Tokens | list[int], page_size: int = PAGE_SIZE) -> Any:
        made, params, hasher, sha256 = self._parts
        return made(request_id, self.tokens(tokens), params, None, block_hasher=hasher(page_size, sha256))

    def tokens(self, tokens: Tokens | list[int]) -> list[int]:
        return tokens if isinstance(tokens, list) else tokens.tolist()

    def keys(self, request: Any, page_size: int) -> Callable[[], Any]:
        return lambda: _renew(request)

    def manager(self, num_pages: int, max_len: int, events: bool = False) -> Manager:
        self._parts  # noqa: B018 # keys need a seed
        config = self._adapter.config_of(num_pages, [group()])
        scheduled, hashed = self._adapter.page_sizes(config, True)
        made = _module("vllm.v1.core.kv_cache_manager").KVCacheManager(
            config, max_len, scheduled, hashed, enable_caching=True, enable_kv_cache_events=events
        )
        return Manager(
            made.get_computed_blocks,
            made.allocate_slots,
            made.free,
            None,
            lambda _: None,
            _renew,
            made.take_events if events else None,
            lambda: OneByOne(made.allocate_slots, append_output, made.new_step_starts),
        )

    def table(self, num_rows: int, width: int) -> Table:
        tables, torch = _module("vllm.v1.worker.block_table"), _module("torch")
        made = tables.BlockTable(
            1, num_rows, width, 8192, False, torch.device("cpu"), 1, slot_mapping_mode=tables.SlotMappingMode.NONE
        )

        def append(lists: list[list[int]]) -> None:
            add = made.append_row
            for row, block_ids in enumerate(lists):
                add(block_ids, row)

        def clear() -> None:
            made.clear()
            made.num_blocks_per_row[:] = 0

        return Table(append, None, lambda: made.commit_block_table(num_rows), lambda: None, clear)


def _renew(request: Any) -> None:
    request.block_hashes.clear()
    request.update_block_hashes()


def _block_ids(blocks: Sequence[Any]) -> list[int]:
    return [block.block_id for block in blocks]
