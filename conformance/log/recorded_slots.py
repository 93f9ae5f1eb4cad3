"""The call that an engine makes for every token, on one request: noted by one addition to a list."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from .call_texts import groups_text
from .calls import CALLS
from .recorded_calls import RecordedCall
from .slot_runs import NO_PAGES, SLOTS
from .writer import MOST_NOTED, LogWriter

__all__ = ["can_record_slots", "record_slots"]

_BY_POSITION = 5
"""So many arguments of ``allocate_slots`` are handed on by position."""


def can_record_slots(manager: Any) -> bool:
    """Whether a manager of whatever package takes the arguments that `record_slots` hands on, and shows its pages."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        signature = inspect.signature(manager.allocate_slots)
        signature.bind(*range(_BY_POSITION))
        nothing = not any(manager.create_empty_page_list().pages)
    except (AttributeError, TypeError, ValueError):
        return False
    own = [parameter.name for parameter in signature.parameters.values() if parameter.kind in kinds][:_BY_POSITION]
    return nothing and own == list(CALLS["CacheManager"]["allocate_slots"].arguments)[: len(own)]


def _returns_immutable_pages(manager: Any) -> bool:
    """Whether the page lists that a manager returns stay as they are, so that they can be read later."""
    pages = manager.create_empty_page_list().pages
    return isinstance(pages, tuple) and bool(pages) and not any(hasattr(group, "append") for group in pages)


def record_slots(writer: LogWriter, number: int, manager: Any, otherwise: RecordedCall) -> Callable[..., Any]:
    """``allocate_slots`` for requests that are live, as engines call it for each token, and for prompts.

    Page lists that may change are read at once, but only where there is a new page in them.

    Args:
        writer: the log.
        number: the manager's number in it.
        manager: the manager.
        otherwise: makes and notes calls of any other kind: delayed, refused, behind the log's end.
    """
    allocate, refused, notes, requests = manager.allocate_slots, otherwise.refused, writer.slots, writer.requests
    note, flush, told, all_known, most = notes.extend, writer.flush, requests.told, requests.known, SLOTS * MOST_NOTED
    lasting, empty = _returns_immutable_pages(manager), manager.create_empty_page_list().pages

    @functools.wraps(allocate)
    def allocate_slots(
        request: Any,
        num_new_tokens: Any,
        num_new_computed_tokens: Any = 0,
        new_computed_pages: Any = None,
        num_lookahead_tokens: Any = 0,
        delay_cache_pages: Any = False,
        **more: Any,
    ) -> Any:
        if delay_cache_pages is not False or writer.failure is not None:
            given = request, num_new_tokens, num_new_computed_tokens, new_computed_pages, num_lookahead_tokens
            return otherwise(*given, delay_cache_pages, **more)
        if new_computed_pages is not None or num_new_computed_tokens:
            given = request, num_new_tokens, num_new_computed_tokens, new_computed_pages, num_lookahead_tokens
            if type(num_new_tokens) is type(num_new_computed_tokens) is type(num_lookahead_tokens) is int:
                return with_hits(*given, **more)
            return otherwise(*given, **more)
        known = all_known.get(id(request))
        if known is None or known.is_gone:
            return otherwise(request, num_new_tokens, 0, None, num_lookahead_tokens, **more)
        if not lasting and not type(num_new_tokens) is type(num_lookahead_tokens) is int:
            return otherwise(request, num_new_tokens, 0, None, num_lookahead_tokens, **more)
        computed, length = request.num_computed_tokens, request.num_tokens
        try:
            if more:
                pages = allocate(request, num_new_tokens, 0, None, num_lookahead_tokens, **more)
            else:
                pages = allocate(request, num_new_tokens, 0, None, num_lookahead_tokens)
        except Exception as error:
            refused((request, num_new_tokens, 0, None, num_lookahead_tokens), more, error)
            raise
        if lasting or pages is None:
            note((number, known, computed, length, num_new_tokens, num_lookahead_tokens, pages))
        else:
            new = NO_PAGES if pages.pages == empty else groups_text(pages)
            note((number, known, computed, length, num_new_tokens, num_lookahead_tokens, new))
        if len(notes) >= most:
            flush()
        return pages

    def with_hits(request: Any, new: int, found: int, hits: Any, ahead: int, **more: Any) -> Any:
        if not hasattr(hits, "get_page_ids"):
            return otherwise(request, new, found, hits, ahead, **more)
        given = (
            f'"request":{told(request)},"num_new_tokens":{new},"num_new_computed_tokens":{found},'
            f'"new_computed_pages":{groups_text(hits)},"num_lookahead_tokens":{ahead}'
        )
        try:
            pages = allocate(request, new, found, hits, ahead, **more)
        except Exception as error:
            otherwise.note_error(given, error)
            raise
        otherwise.note(given, pages)
        return pages

    return allocate_slots
