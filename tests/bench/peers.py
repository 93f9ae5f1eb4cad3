"""Who the rows are run on: `kvproof.fast`, and the managers of other packages where those are installed.

A row's loops call the packages' own functions, taken here as bound methods under common names, so that nothing of
ours runs in between. Where shapes differ (blocks and pages, a key made when a token is appended, at the first look-up,
or never), one short function says so. Peers are given lists of tokens, kvproof int32 arrays: what each reads fastest.
"""

import importlib
import logging
import os
import warnings
from collections.abc import Callable, Sequence
from functools import cached_property
from importlib.util import find_spec
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from kvproof import fast
from kvproof.spec import Request

from .workloads import PAGE_SIZE, group

__all__ = ["IMPLEMENTATIONS", "Batch", "Implementation", "Manager", "Pool", "Table"]

Tokens = NDArray[np.int32]


class Pool(NamedTuple):
    """A pool's own functions.

    Attributes:
        get: takes so many pages.
        free: gives pages back.
        ids: the ids of pages, as a list.
        id_array: the same in the cheapest form that the package has.
        publish: caches the first so many pages of a request.
        reset: forgets every prefix.
    """

    get: Callable[[int], Any]
    free: Callable[[Any], Any]
    ids: Callable[[Any], Sequence[int]]
    id_array: Callable[[Any], Any]
    publish: Callable[[Any, Any, int], Any]
    reset: Callable[[], Any]


class Batch(Protocol):
    """Requests that decode together."""

    def add(self, request: Any) -> None:
        """A request whose prompt has its slots joins them."""

    def remove(self, request: Any) -> None:
        """A request leaves them."""

    def grow(self) -> None:
        """Every request has one token more; those before it are computed."""

    def step(self) -> Any:
        """A slot for that token of every request, full pages published."""


class Manager(NamedTuple):
    """A manager's own functions.

    Attributes:
        look_up: of a request: (pages, how many tokens they hold, perhaps more).
        allocate: slots for so many new tokens of a request, after so many found, on these pages; None if none.
        free: gives back a request's pages.
        finish: what else is to be called once a request is done for good, or None.
        know_keys: has a request's keys computed, if the package keeps them, so that no later call does it.
        renew_keys: has them computed once more, now or by the next look-up; None where look-ups take none.
        take_events: the events since the last call, or None.
        batch: a batch of none.
    """

    look_up: Callable[[Any], Any]
    allocate: Callable[[Any, int, int, Any], Any]
    free: Callable[[Any], Any]
    finish: Callable[[Any], Any] | None
    know_keys: Callable[[Any], Any]
    renew_keys: Callable[[Any], Any] | None
    take_events: Callable[[], Any] | None
    batch: Callable[[], Batch]


class Table(NamedTuple):
    """A page table's own functions: add a page to each of its rows, and let the device follow.

    Attributes:
        append: of lists of pages, one list a row.
        append_array: of an array `[rows, 1]`; None where it takes none.
        commit: all rows.
        wait: until the device has them.
        clear: empties the rows.
    """

    append: Callable[[list[list[int]]], Any]
    append_array: Callable[[NDArray[np.int64]], Any] | None
    commit: Callable[[], Any]
    wait: Callable[[], Any]
    clear: Callable[[], Any]


class Implementation(Protocol):
    """A package to be measured.

    Attributes:
        name: what tables call it.
        appending_makes_keys: whether appending a token, or making a request, computes the keys of the pages filled.
    """

    name: str
    appending_makes_keys: bool

    def missing(self) -> str | None:
        """Why it cannot be run here; None if it can."""

    def no_events(self) -> str | None:
        """Why there are no events; None if there are."""

    def pool(self, num_pages: int) -> Pool:
        """A pool with caching on."""

    def request(self, request_id: str, tokens: Tokens | list[int], page_size: int = PAGE_SIZE) -> Any:
        """A request of its own, its keys computed if the package does so at once."""

    def tokens(self, tokens: Tokens) -> Tokens | list[int]:
        """Tokens in the form that it takes."""

    def keys(self, request: Any, page_size: int) -> Callable[[], Any]:
        """What computes all keys of a request anew."""

    def manager(self, num_pages: int, max_len: int, events: bool = False) -> Manager:
        """A manager of one group of full attention, pages of `PAGE_SIZE` tokens."""

    def table(self, num_rows: int, width: int) -> Table:
        """A page table."""


class _OneByOne:
    """A batch of a manager that serves a request a call.

    Args:
        allocate: the call.
        append: adds a token to a request.
        new_step: what is called when a step begins, or None.
    """

    def __init__(
        self, allocate: Callable[..., Any], append: Callable[[Any, int], Any], new_step: Callable[[], Any] | None
    ) -> None:
        self._allocate, self._append, self._new_step = allocate, append, new_step
        self._requests: dict[str, Any] = {}

    def add(self, request: Any) -> None:
        self._requests[request.request_id] = request

    def remove(self, request: Any) -> None:
        del self._requests[request.request_id]

    def grow(self) -> None:
        append = self._append
        for request in self._requests.values():
            request.num_computed_tokens = request.num_tokens
            append(request, 7)

    def step(self) -> None:
        if self._new_step is not None:
            self._new_step()
        allocate = self._allocate
        for request in self._requests.values():
            assert allocate(request, 1) is not None, "the pool is too small for this row"


# -- kvproof --------------------------------------------------------------------------------------


class _OursBatch:
    """A batch of ours: slots and computed tokens are kept in arrays, as an engine would."""

    def __init__(self, manager: fast.CacheManager) -> None:
        self._manager = manager
        self._requests: list[Request] = []
        self._slots: NDArray[np.int64] = np.empty(0, np.int64)
        self._computed: NDArray[np.int64] = np.empty(0, np.int64)

    def add(self, request: Request) -> None:
        self._requests.append(request)
        self._slots = np.append(self._slots, self._manager.slot_of(request.request_id))
        self._computed = np.append(self._computed, request.num_tokens - 1)

    def remove(self, request: Request) -> None:
        place = next(place for place, other in enumerate(self._requests) if other is request)
        del self._requests[place]
        self._slots, self._computed = np.delete(self._slots, place), np.delete(self._computed, place)

    def grow(self) -> None:
        for request in self._requests:
            request.num_computed_tokens = request.num_tokens
            request.append(7)
        self._computed += 1

    def step(self) -> fast.SlotBatch:
        return self._manager.allocate_slots_batch(self._slots, self._computed, 1)


class Ours:
    """`kvproof.fast`."""

    name = "kvproof"
    appending_makes_keys = False

    def missing(self) -> str | None:
        return None

    def no_events(self) -> str | None:
        return None

    def pool(self, num_pages: int) -> Pool:
        made = fast.PagePool(num_pages, enable_caching=True)
        publish = made.cache_full_pages
        return Pool(
            made.get_new_pages,
            made.free_pages,
            lambda pages: pages.page_ids,
            lambda pages: pages.id_array,
            lambda request, pages, count: publish(request, pages, [], 0, count, PAGE_SIZE, 0),
            made.reset_prefix_cache,
        )

    def request(self, request_id: str, tokens: Tokens | list[int], page_size: int = PAGE_SIZE) -> Request:
        return Request(request_id, tokens)

    def tokens(self, tokens: Tokens) -> Tokens:
        return tokens

    def keys(self, request: Request, page_size: int) -> Callable[[], Any]:
        return lambda: fast.hash_request_tokens(fast.sha256, page_size, request)

    def manager(self, num_pages: int, max_len: int, events: bool = False) -> Manager:
        made = fast.CacheManager(num_pages, [group()], max_len, enable_events=events)
        return Manager(
            made.get_computed_pages,
            made.allocate_slots,
            made.free,
            made.free_page_hashes,
            lambda _: None,
            None,
            made.take_events if events else None,
            lambda: _OursBatch(made),
        )

    def table(self, num_rows: int, width: int) -> Table:
        made, rows = fast.PageTable(num_rows, width, 8192), list(range(num_rows))
        row_ids = np.arange(num_rows)
        return Table(
            lambda lists: made.append_rows_batch(lists, rows),
            lambda page_ids: made.append_rows_batch(page_ids, row_ids),
            lambda: made.commit(num_rows),
            lambda: made.page_table.block_until_ready(),
            made.clear,
        )


# -- Peers ----------------------------------------------------------------------------------------


def _module(name: str) -> Any:
    """A module of a peer; what others warn of while they are imported is not ours to mend."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(name)


def _block_ids(blocks: Sequence[Any]) -> list[int]:
    return [block.block_id for block in blocks]


def _page_ids(pages: Sequence[Any]) -> list[int]:
    return [page.page_id for page in pages]


class Vllm:
    """vLLM: its block pool, KV-cache manager and block table, keys by SHA-256."""

    name = "vLLM"
    appending_makes_keys = True

    def missing(self) -> str | None:
        return None if find_spec("vllm") else "vLLM is not installed: it is a package of its own, see the README"

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
            lambda: _OneByOne(made.allocate_slots, _append_output, made.new_step_starts),
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


def _append_output(request: Any, token_id: int) -> None:
    request.append_output_token_ids(token_id)


class EasyDel:
    """EasyDeL: its page pool, cache manager and page tables, keys by Python's ``hash``."""

    name = "EasyDeL"
    appending_makes_keys = False

    def missing(self) -> str | None:
        return None if find_spec("easydel") else "EasyDeL is not installed: it is a package of its own, see the README"

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
            lambda: _OneByOne(made.allocate_slots, _append_output, None),
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
    """The keys of requests, computed when first asked for: EasyDeL's pool takes them beside the request."""

    def __init__(self, peer: EasyDel) -> None:
        self._peer = peer
        self._known: dict[int, tuple[Any, Any]] = {}

    def of(self, request: Any) -> Any:
        known = self._known.get(id(request))
        if known is None:
            known = self._known[id(request)] = request, self._peer.keys(request, PAGE_SIZE)()
        return known[1]


IMPLEMENTATIONS: tuple[Implementation, ...] = (Ours(), Vllm(), EasyDel())
"""Ours first."""
