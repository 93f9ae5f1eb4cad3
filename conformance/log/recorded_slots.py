"""The call that an engine makes for every token, on one request: noted by one addition to a list."""

import functools
from collections.abc import Callable
from typing import Any

from .call_texts import groups_text
from .recorded_calls import RecordedCall
from .writer import MOST_NOTED, SLOTS, LogWriter

__all__ = ["record_slots", "returns_immutable_pages"]


def returns_immutable_pages(manager: Any) -> bool:
    """Whether the page lists that a manager returns stay as they are, so that they can be read later."""
    make = getattr(manager, "create_empty_page_list", None)
    pages = getattr(make() if make is not None else None, "pages", None)
    return isinstance(pages, tuple) and bool(pages) and not any(hasattr(group, "append") for group in pages)


def record_slots(writer: LogWriter, number: int, manager: Any, otherwise: RecordedCall) -> Callable[..., Any]:
    """``allocate_slots`` for requests that are live, as engines call it for each token, and for prompts.

    Args:
        writer: the log.
        number: the manager's number in it.
        manager: the manager.
        otherwise: makes and notes calls of any other kind: delayed, refused, behind the log's end.
    """
    allocate, refused, notes, told = manager.allocate_slots, otherwise.refused, writer.slots, writer.requests.told
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
        given = request, num_new_tokens, num_new_computed_tokens, new_computed_pages, num_lookahead_tokens
        if delay_cache_pages is not False or writer.failure is not None:
            return otherwise(*given, delay_cache_pages)
        if new_computed_pages is not None or num_new_computed_tokens:
            if type(num_new_tokens) is type(num_new_computed_tokens) is type(num_lookahead_tokens) is int:
                return with_hits(*given)
            return otherwise(*given)
        try:
            computed, known = request.num_computed_tokens, request.num_tokens
        except AttributeError:
            return otherwise(*given)
        try:
            pages = allocate(request, num_new_tokens, 0, None, num_lookahead_tokens)
        except Exception as error:
            refused(given, {}, error)
            raise
        note((number, request, computed, known, num_new_tokens, num_lookahead_tokens, pages))
        if len(notes) >= most:
            flush()
        return pages

    def with_hits(request: Any, new: int, found: int, hits: Any, ahead: int) -> Any:
        if not hasattr(hits, "get_page_ids"):
            return otherwise(request, new, found, hits, ahead)
        given = (
            f'"request":{told(request, whole=False)},"num_new_tokens":{new},"num_new_computed_tokens":{found},'
            f'"new_computed_pages":{groups_text(hits)},"num_lookahead_tokens":{ahead}'
        )
        try:
            pages = allocate(request, new, found, hits, ahead)
        except Exception as error:
            otherwise.note_error(given, error)
            raise
        otherwise.note(given, pages)
        return pages

    return allocate_slots
