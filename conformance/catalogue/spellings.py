"""Faults of arguments that are handed over otherwise than in the usual way: lists, strided arrays, wider integers."""

from collections.abc import Iterator
from functools import cached_property
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from .patching import whole, with_manager, with_pool, with_table
from .registry import FORESEEN, seeded

__all__: list[str] = []


def _new_dict(_: Any) -> dict[int, Any]:
    return {}


class _Reread:
    """A request whose tokens are read in another way."""

    def __init__(self, request: Any, read: Any) -> None:
        self._request, self._read = request, read

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)

    @property
    def all_token_ids(self) -> Any:
        """The request's tokens, as they are misread."""
        return self._read(self._request.all_token_ids)


def _with_tokens(fast: ModuleType, read: Any) -> SimpleNamespace:
    """A backend whose manager reads the tokens of requests in another way."""

    def through(name: str) -> Any:
        def call(self: Any, request: Any, *args: Any, **options: Any) -> Any:
            if hasattr(request, "all_token_ids"):
                request = self.reread.setdefault(id(request), (_Reread(request, read), request))[0]
            return getattr(fast.CacheManager, name)(self, request, *args, **options)

        return call

    names = ("get_computed_pages", "allocate_slots", "cache_pages", "get_num_common_prefix_pages", "free")
    return with_manager(fast, reread=cached_property(_new_dict), **{name: through(name) for name in names})


def _as_contiguous(values: Any) -> Any:
    """The entries that lie one behind another from where an array begins, as many as it has.

    In one that runs backwards they would lie past its end: it is read right.
    """
    is_strided = (
        isinstance(values, np.ndarray) and values.ndim == 1 and values.size and values.strides[0] > values.itemsize
    )
    return np.lib.stride_tricks.as_strided(values, strides=(values.itemsize,)) if is_strided else values


@seeded(FORESEEN, "R2", "manager", also=("MAN-1", "MAN-3", "HASH-3"))
def listed_tokens_read_backwards(fast: ModuleType) -> SimpleNamespace:
    """Tokens that a request has in a list are read from the last one on; those in an array are read right."""
    return _with_tokens(fast, lambda tokens: tokens[::-1] if isinstance(tokens, list) else tokens)


@seeded(FORESEEN, "R2", "manager", also=("MAN-1", "MAN-3", "HASH-3"))
def strided_tokens_read_as_contiguous(fast: ModuleType) -> SimpleNamespace:
    """Tokens are read by their address and number, so that those of a column are taken from the columns beside it."""
    return _with_tokens(fast, _as_contiguous)


@seeded(FORESEEN, "TAB-2", "table")
def wide_rows_read_as_narrow(fast: ModuleType) -> SimpleNamespace:
    """Row numbers of an int64 array are read as int32: each second one is a row 0."""

    def append_rows_batch(self: Any, page_ids: Any, req_indices: Any) -> None:
        if isinstance(req_indices, np.ndarray) and req_indices.dtype == np.int64 and req_indices.size > 1:
            req_indices = np.ascontiguousarray(req_indices).view(np.int32)[: req_indices.size]
        fast.PageTable.append_rows_batch(self, page_ids, req_indices)

    return with_table(fast, append_rows_batch=append_rows_batch)


@seeded(FORESEEN, "TAB-2", "table", also=("R1",))
def strided_pages_read_as_contiguous(fast: ModuleType) -> SimpleNamespace:
    """Page ids of a strided array are read by their address: the numbers between them enter the row."""

    def add_row(self: Any, page_ids: Any, row_idx: Any) -> None:
        read = _as_contiguous(page_ids)
        fast.PageTable.add_row(self, page_ids if read is page_ids else np.abs(read), row_idx)

    return with_table(fast, add_row=add_row)


@seeded(FORESEEN, "POOL-5", "pool", also=("POOL-2", "POOL-3"))
def iterator_read_twice(fast: ModuleType) -> SimpleNamespace:
    """Pages to be freed are read twice, to look at them and to free them: of an iterator nothing is left by then."""

    def free_pages(self: Any, ordered_pages: Any) -> None:
        if isinstance(ordered_pages, Iterator):
            pages = list(ordered_pages)
            fast.PagePool.touch(self, [pages])  # refuses other objects than pages of this pool
            fast.PagePool.free_pages(self, pages)
        fast.PagePool.free_pages(self, ordered_pages)

    return with_pool(fast, free_pages=free_pages)


@seeded(FORESEEN, "R2", "manager", also=("MAN-1", "MAN-3", "HASH-3"))
def tokens_of_numpy_are_other_tokens(fast: ModuleType) -> SimpleNamespace:
    """Tokens in a list are told apart by their text, which of a numpy integer names its type."""

    def read(tokens: Any) -> Any:
        listed = isinstance(tokens, list) and any(isinstance(token, np.integer) for token in tokens)
        return [int(token) + 1 for token in tokens] if listed else tokens

    return _with_tokens(fast, read)


@seeded(FORESEEN, "TAB-2", "table", also=("TAB-1",))
def backward_rows_read_forwards(fast: ModuleType) -> SimpleNamespace:
    """Row numbers of an array are read as they lie in memory: where its stride is negative, in the other order."""

    def append_rows_batch(self: Any, page_ids: Any, req_indices: Any) -> None:
        runs_backwards = isinstance(req_indices, np.ndarray) and req_indices.size > 1 and req_indices.strides[0] < 0
        fast.PageTable.append_rows_batch(self, page_ids, req_indices[::-1] if runs_backwards else req_indices)

    return with_table(fast, append_rows_batch=append_rows_batch)


@seeded(FORESEEN, "TAB-7", "table", also=("R1",))
def unsigned_positions_become_floats(fast: ModuleType) -> SimpleNamespace:
    """Positions of a uint64 array are divided by an int64, which makes floats of them: no place in any array."""

    def slot_mapping(self: Any, req_indices: Any, positions: Any, page_size: Any) -> Any:
        is_good = whole(page_size) and page_size > 0
        if is_good and isinstance(positions, np.ndarray) and positions.dtype == np.uint64 and positions.size:
            self.page_table_cpu[0, positions // np.int64(page_size)]
        return fast.PageTable.slot_mapping(self, req_indices, positions, page_size)

    return with_table(fast, slot_mapping=slot_mapping)
