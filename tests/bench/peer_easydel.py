"""EasyDeL, unmodified, to be measured."""

import logging
import os
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any
from weakref import WeakKeyDictionary

from .implementation import Manager, OneByOne, Pool, Table, Tokens, append_output
from .implementation import peer_module as _module
from .workloads import PAGE_SIZE

__all__ = ["EasyDel"]


class EasyDel:
    """EasyDeL: its page pool, cache manager and page tables, keys by Python's ``hash``."""

    name = "EasyDeL"
    appending_makes_keys = False

    def missing(self) -> str | None:
        return (
            None
            if find_spec("easydel")
            else "EasyDeL is not installed: it is a package of its own, see docs/guides/hold.md"
        )

    def no_events(self) -> str | None:
        return "EasyDeL's manager has no events"

    def _own(self, name: str) -> Any:
        os.environ.setdefault("EASYDEL_AUTO", "0")  # else it adds flags that end the process of a jaxlib of today
        found = _module(f"easydel.inference.esurge.{name}")
        logging.getLogger("eSurgeEngine").setLevel(logging.ERROR)
        return found

    def pool(self, num_pages: int) -> Pool:
        self._own("core.utils").init_none_hash()
        made = self._own("core.page_pool").PagePool(num_pages, True)
        publish = made.cache_full_pages
        known = _Keys(self)
        return Pool(
            made.get_new_pages,
            made.free_pages,
            _page_ids,
            _page_ids,
            lambda request, pages, count: publish(request, pages, known.of(request), 0, count, PAGE_SIZE, 0),
            made.reset_prefix_cache,
        )

    def request(self, request_id: str, tokens: Tokens | list[int], page_size: int = PAGE_SIZE) -> Any:
        params = _module("easydel.inference.sampling_params").SamplingParams()
        return self._own("request").EngineRequest(
            request_id=request_id, prompt_token_ids=self.tokens(tokens), sampling_params=params, eos_token_id=None
        )

    def tokens(self, tokens: Tokens | list[int]) -> list[int]:
        return tokens if isinstance(tokens, list) else tokens.tolist()

    def keys(self, request: Any, page_size: int) -> Callable[[], Any]:
        compute = self._own("core.utils").hash_request_tokens
        return lambda: compute(hash, page_size, request)

    def manager(self, num_pages: int, max_len: int, events: bool = False) -> Manager:
        interface = self._own("core.interface")
        layers = interface.FullAttentionSpec(
            page_size=PAGE_SIZE, num_kv_heads=8, head_size=128, dtype="float32", use_mla=False
        )
        made = self._own("core.manager").CacheManager(num_pages, [interface.CacheGroupSpec(layers)], max_len)
        keys = made.req_to_page_hashes

        def know(request: Any) -> None:
            keys[request.request_id] = self.keys(request, PAGE_SIZE)()

        return Manager(
            made.get_computed_pages,
            made.allocate_slots,
            made.free,
            made.free_page_hashes,
            know,
            made.free_page_hashes,
            None,
            lambda: OneByOne(made.allocate_slots, append_output, None),
        )

    def table(self, num_rows: int, width: int) -> Table:
        made, rows = self._own("page_table").PageTable(num_rows, width, 8192), range(num_rows)

        def append(lists: list[list[int]]) -> None:
            add = made.append_row
            for row in rows:
                add(lists[row], row)

        return Table(
            append,
            None,
            lambda: made.commit(num_rows),
            lambda: made.page_table.block_until_ready(),
            made.clear,
        )


class _Keys:
    """The keys of requests, as long as those live: EasyDeL's pool takes them beside the request."""

    def __init__(self, peer: EasyDel) -> None:
        self._peer = peer
        self._known: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

    def of(self, request: Any) -> Any:
        if request not in self._known:
            self._known[request] = self._peer.keys(request, PAGE_SIZE)()
        return self._known[request]


def _page_ids(pages: Sequence[Any]) -> list[int]:
    return [page.page_id for page in pages]
