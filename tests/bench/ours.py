"""`kvproof.fast`, to be measured."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvproof import fast
from kvproof.spec import Request

from .implementation import Manager, Pool, Table, Tokens
from .workloads import PAGE_SIZE, group

__all__ = ["Ours"]


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
