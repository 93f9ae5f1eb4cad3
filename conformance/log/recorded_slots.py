"""The two calls that an engine makes for every token: recorded for less than a microsecond, and for 15 % of a step."""

import functools
from collections.abc import Callable
from math import gcd
from typing import Any

import numpy as np

from .columns import as_column
from .recorded_calls import RecordedCall, bare, materialised
from .writer import MOST_NOTED, SLOTS, LogWriter

__all__ = ["record_batch", "record_slots", "returns_immutable_pages"]

_COLUMNS = {bytes, int}


def returns_immutable_pages(manager: Any) -> bool:
    """Whether the page lists that a manager returns stay as they are, so that they can be read later."""
    make = getattr(manager, "create_empty_page_list", None)
    pages = getattr(make() if make is not None else None, "pages", None)
    return isinstance(pages, tuple) and bool(pages) and not any(hasattr(group, "append") for group in pages)


def record_slots(writer: LogWriter, number: int, manager: Any, otherwise: RecordedCall) -> Callable[..., Any]:
    """``allocate_slots`` for requests that are live, as engines call it for each token.

    Args:
        writer: the log.
        number: the manager's number in it.
        manager: the manager.
        otherwise: notes calls of any other kind: with hits, delayed, refused.
    """
    allocate, refused, notes = manager.allocate_slots, otherwise.refused, writer.slots
    note, flush, most = notes.extend, writer.flush, SLOTS * MOST_NOTED

    @functools.wraps(allocate)
    def allocate_slots(
        request: Any,
        num_new_tokens: Any,
        num_new_computed_tokens: Any = 0,
        new_computed_pages: Any = None,
        num_lookahead_tokens: Any = 0,
        delay_cache_pages: Any = False,
    ) -> Any:
        if delay_cache_pages is not False or new_computed_pages is not None or num_new_computed_tokens:
            return otherwise(
                request,
                num_new_tokens,
                num_new_computed_tokens,
                new_computed_pages,
                num_lookahead_tokens,
                delay_cache_pages,
            )
        try:
            computed, known = request.num_computed_tokens, request.num_tokens
        except AttributeError:
            return otherwise(request, num_new_tokens, 0, None, num_lookahead_tokens)
        try:
            pages = allocate(request, num_new_tokens, 0, None, num_lookahead_tokens)
        except Exception as error:
            refused((request, num_new_tokens, 0, None, num_lookahead_tokens), {}, error)
            raise
        note((number, request, computed, known, num_new_tokens, num_lookahead_tokens, pages))
        if len(notes) >= most:
            flush()
        return pages

    return allocate_slots


def record_batch(
    writer: LogWriter, number: int, manager: Any, otherwise: RecordedCall, slot_of: Callable[..., Any]
) -> dict[str, Callable[..., Any]]:
    """``allocate_slots_batch``, and ``slot_of``, which says whose slots they are.

    Of the requests of a batch only those are read that may publish a page: all others' tokens change nothing.

    Args:
        writer: the log.
        number: the manager's number in it.
        manager: the manager.
        otherwise: notes calls whose slots are in no array.
        slot_of: the recorded method.
    """
    allocate, refused = manager.allocate_slots_batch, otherwise.refused
    unit = gcd(*(int(group.kv_cache_spec.page_size) for group in manager.kv_cache_groups)) or 1
    request_in: dict[int, Any] = {}
    untold = np.zeros(0, np.int64)  # for each slot the length at which its request has a page more than was told

    @functools.wraps(slot_of)
    def recorded_slot_of(request_id: Any) -> Any:
        nonlocal untold
        slot = slot_of(request_id)
        if slot >= len(untold):
            untold = np.concatenate([untold, np.zeros(slot + 1, np.int64)])
        untold[slot] = 0
        request_in[slot] = _request_of(writer, request_id)
        return slot

    def tell(slots: bytes, computed: bytes, new: Any) -> tuple[list[Any], list[int]]:
        """The requests that may publish a page, and how many tokens they have."""
        places = np.frombuffer(slots, np.int64)
        reached = np.frombuffer(computed, np.int64) + (np.frombuffer(new, np.int64) if type(new) is bytes else new)
        due = places[reached >= untold[places]].tolist()
        requests: list[Any] = [request_in.get(slot) for slot in due]
        if None in requests:  # it never asked whose slot that is
            due = [slot for slot in due if request_in.get(slot) is not None]
            requests = [request_in[slot] for slot in due]
        known = [request.num_tokens for request in requests]
        if due:
            untold[due] = [(length // unit + 1) * unit for length in known]
        return requests, known

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
        given = tuple(map(materialised, (slots, num_computed_tokens, num_new_tokens, num_lookahead_tokens)))
        rows = materialised(rows)
        columns = list(map(as_column, given))
        columns.append(0 if rows is None else as_column(rows))
        options = {"delay_cache_pages": delay_cache_pages, "tables": tables, "rows": rows}
        kinds = list(map(type, columns))
        if kinds[:2] != [bytes, bytes] or not _COLUMNS.issuperset(kinds):
            return otherwise(*given, **options)
        try:
            batch = allocate(*given, delay_cache_pages=delay_cache_pages, tables=bare(tables), rows=rows)
        except Exception as error:
            refused(given, options, error)
            raise
        noted = {"delay": True} if delay_cache_pages else {}
        if tables is not None:
            noted["tables"] = tables.__dict__.get("_kvproof_number")
        writer.note_step(number, columns, noted, batch, *tell(*columns[:3]))
        return batch

    return {"allocate_slots_batch": allocate_slots_batch, "slot_of": recorded_slot_of}


def _request_of(writer: LogWriter, request_id: str) -> Any:
    """The request of an id: the last one that was noted, or that the log has defined."""
    writer.end_run()
    for note in reversed(writer.notes):
        for request in reversed(note[1][1::SLOTS]) if type(note[1]) is list and len(note) == 2 else ():
            if getattr(request, "request_id", None) == request_id:
                return request
    return writer.requests.by_id.get(request_id)
