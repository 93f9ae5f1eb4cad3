"""`allocate_slots_batch`, which an engine calls once a step: its arrays are recorded as arrays, not by request."""

import functools
from collections.abc import Callable
from math import gcd
from typing import Any

import numpy as np

from .argument_texts import bare, materialised
from .call_texts import outcome_text
from .columns import as_column, encoded, listed
from .recorded_calls import RecordedCall
from .writer import LogWriter

__all__ = ["record_batch"]

_COLUMNS = {bytes, int}


def record_batch(
    writer: LogWriter, number: int, manager: Any, otherwise: RecordedCall, slot_of: Callable[..., Any]
) -> dict[str, Callable[..., Any]]:
    """``allocate_slots_batch``, and ``slot_of``, which says whose slots they are.

    Args:
        writer: the log.
        number: the manager's number in it.
        manager: the manager.
        otherwise: notes calls whose slots are in no array.
        slot_of: the recorded method.
    """
    allocate, refused = manager.allocate_slots_batch, otherwise.refused
    served = _Served(gcd(*(int(group.kv_cache_spec.page_size) for group in manager.kv_cache_groups)) or 1)
    before: list[Any] = [None] * 5

    @functools.wraps(slot_of)
    def recorded_slot_of(request_id: Any) -> Any:
        slot = slot_of(request_id)
        if writer.failure is not None:
            return slot
        known = writer.requests.by_id.get(request_id)
        if known is not None:
            served.put(slot, known.request, writer.requests.numbers_of([known.request])[0])
        return slot

    @functools.wraps(allocate)
    def allocate_slots_batch(
        slots: Any,
        num_computed_tokens: Any,
        num_new_tokens: Any,
        num_lookahead_tokens: Any = 0,
        *,
        delay_cache_pages: Any = False,
        tables: Any = None,
        rows: Any = None,
    ) -> Any:
        nonlocal before
        if writer.failure is not None:
            options = {"delay_cache_pages": delay_cache_pages, "tables": bare(tables), "rows": rows}
            return allocate(slots, num_computed_tokens, num_new_tokens, num_lookahead_tokens, **options)
        given = tuple(map(materialised, (slots, num_computed_tokens, num_new_tokens, num_lookahead_tokens)))
        rows = materialised(rows)
        columns = [*map(as_column, given), 0 if rows is None else as_column(rows)]
        kinds = list(map(type, columns))
        if kinds[:2] != [bytes, bytes] or not _COLUMNS.issuperset(kinds):
            return otherwise(*given, delay_cache_pages=delay_cache_pages, tables=tables, rows=rows)
        try:
            batch = allocate(*given, delay_cache_pages=delay_cache_pages, tables=bare(tables), rows=rows)
        except Exception as error:
            refused(given, {"delay_cache_pages": delay_cache_pages, "tables": tables, "rows": rows}, error)
            raise
        told = served.told(*columns[:3])
        written = ",".join(map(encoded, columns, before))
        before = columns
        outcome = outcome_text("batch", batch, writer.keys)
        writer.note(f'["step",{number},{written},{_options(delay_cache_pages, tables)},{outcome},{told}]')
        return batch

    return {"allocate_slots_batch": allocate_slots_batch, "slot_of": recorded_slot_of}


def _options(delay: Any, tables: Any) -> str:
    own = None if tables is None else getattr(tables, "__dict__", {}).get("_kvproof_number")
    options = (['"delay":true'] if delay else []) + ([] if own is None else [f'"tables":{own}'])
    return f"{{{','.join(options)}}}"


class _Served:
    """Whose slots a batch names, and of which of them tokens are to be told.

    Of the requests of a batch only those are read that may publish a page: all others' tokens change nothing.

    Args:
        page_size: a divisor of the page sizes of all groups.
    """

    def __init__(self, page_size: int) -> None:
        self._last_of_page = (page_size & -page_size) - 1  # of the largest power of two in it: rounding is two steps
        self._requests: list[Any] = []
        self._numbers = np.zeros(0, np.int32)
        self._untold = np.zeros(0, np.int64)  # for each slot the length at which its request has a page more

    def put(self, slot: int, request: Any, number: int) -> None:
        """Notes whose slot it is now."""
        self._reach(slot)
        self._requests[slot], self._numbers[slot], self._untold[slot] = request, number, 0

    def told(self, slots: bytes, computed: bytes, new: bytes | int) -> str:
        """The requests that may publish a page, and how many tokens each of them has."""
        places = np.frombuffer(slots, np.int64)
        reached = np.frombuffer(computed, np.int64) + (np.frombuffer(new, np.int64) if isinstance(new, bytes) else new)
        try:
            due = places[(reached >= self._untold[places]).nonzero()[0]]
        except IndexError:  # nobody asked for those slots
            self._reach(int(places.max()))
            return self.told(slots, computed, new)
        if not len(due):
            return "[[],[]]"
        requests = self._requests
        known = np.array([requests[slot].num_tokens for slot in due.tolist()], np.int32)
        self._untold[due] = (known | self._last_of_page) + 1
        return f"[{listed(self._numbers[due])},{listed(known)}]"

    def _reach(self, slot: int) -> None:
        more = slot + 1 - len(self._requests)
        if more > 0:
            more += slot
            self._requests += [None] * more
            self._numbers = np.concatenate([self._numbers, np.zeros(more, np.int32)])
            self._untold = np.concatenate([self._untold, np.full(more, _NEVER)])


_NEVER = 1 << 62
"""No request ever has so many tokens: of a slot that no `slot_of` told of none are told."""
