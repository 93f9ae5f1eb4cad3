"""Methods of a recorded object: their arguments are read, the call is made, what came of it is noted."""

import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import gcd
from typing import Any

import numpy as np

from ..calls.deviation import kind_of
from ..calls.logged import is_listed, page_ids
from ..calls.method import Method
from .format import CALLS
from .values import (
    as_column,
    encode,
    encoded,
    groups_text,
    listed,
    outcome_text,
    plain_text,
    text_of,
)
from .writer import MOST_NOTED, NO_PAGES, SLOTS, KnownRequests, LogWriter

__all__ = ["KeyOrigins", "RecordedCall", "can_record_slots", "materialised", "record_batch", "record_slots"]


Spelling = Callable[[Any], str]
"""Writes an argument of one kind."""

READ_OFTEN = {int, bool, str, type(None), np.ndarray}
"""Types of what can be read more than once and has nothing in it that can't."""

_READ_ONCE = {"plain", "pages", "groups", "keys"}
"""Kinds that may be given as iterators."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A way to call a method: which arguments are given by position, which by name.

    Attributes:
        told: of each argument that a log has, keys aside: its place, the text before it, and how it is written.
        places: where the arguments are, by name.
        once: the places of those that may be iterators.
        wrapped: the places of those that may be recorded objects, or that no log has.
        knows_all: whether a log has all of them.
    """

    told: tuple[tuple[int, str, Spelling], ...]
    places: Mapping[str, int]
    once: tuple[int, ...]
    wrapped: tuple[int, ...]
    knows_all: bool


def shape_of(kinds: Mapping[str, str], spelt: Mapping[str, Spelling], by_position: int, names: Any) -> Shape:
    """Reads how a method is called; one argument given in both ways is told as it is by name, and the call fails.

    Args:
        kinds: the kinds of the method's arguments, by name and in order.
        spelt: how each kind is written.
        by_position: number of arguments given by position.
        names: those that are given by name, behind them.
    """
    places = dict(zip(kinds, range(by_position), strict=False))
    places |= {name: place for place, name in enumerate(names, by_position)}
    own = {name: place for name, place in places.items() if name in kinds}
    unknown = set(range(by_position + len(names))) - set(own.values())
    return Shape(
        tuple((place, f'"{name}":', spelt[kinds[name]]) for name, place in own.items() if kinds[name] != "key"),
        places,
        tuple(place for name, place in own.items() if kinds[name] in _READ_ONCE),
        (*(place for name, place in own.items() if kinds[name] == "tables"), *unknown),
        not unknown,
    )


def spellings(requests: KnownRequests, *, whole: bool, ends: bool) -> dict[str, Spelling]:
    """How arguments are written, by their kinds; see `kvproof.conformance.calls.method.Kind.log`.

    Args:
        requests: the log's requests, of which it stands what they say now.
        whole: whether the method reads a request's tokens from the first on.
        ends: whether a request is rarely heard of behind it.
    """

    def request_id(value: Any) -> str:
        return text_of(requests.text(value)) if isinstance(value, str) else plain_text(value)

    return {
        "request": partial(requests.told, whole=whole, ends=ends),
        "id": request_id,
        "plain": plain_text,
        "pages": _pages,
        "groups": _groups,
        "hits": _hits,
        "keys": _keys,
        "key": plain_text,
        "tables": _tables,
    }


def _pages(value: Any) -> str:
    return encode(page_ids(value))


def _groups(value: Any) -> str:
    lists = isinstance(value, list | tuple) or (is_listed(value) and not hasattr(value, "page_ids"))
    return encode(list(map(page_ids, value)) if lists else page_ids(value))


def _hits(value: Any) -> str:
    return groups_text(value) if value is None or hasattr(value, "get_page_ids") else _stranger(value)


def _keys(value: Any) -> str:
    return encode({"keys": len(value)}) if is_listed(value) else plain_text(value)


def _tables(value: Any) -> str:
    number = getattr(value, "__dict__", {}).get("_kvproof_number")
    if number is not None:
        return encode({"k": number})
    return "null" if value is None else _stranger(value)


def _stranger(value: Any) -> str:
    return encode({"type": type(value).__name__})


def bare(value: Any) -> Any:
    """An argument as the engine's own objects know it: not the recorded one."""
    own = getattr(value, "__dict__", None)
    return value if own is None else own.get("_kvproof_thing", value)


def materialised(value: Any) -> Any:
    """An argument that can be read more than once."""
    if type(value) in READ_OFTEN:
        return value
    if hasattr(value, "__next__"):
        value = list(value)
    if isinstance(value, list | tuple) or (is_listed(value) and not hasattr(value, "page_ids")):
        kinds = {type(entry) for entry in value} - READ_OFTEN
        if not any(hasattr(kind, "__next__") or issubclass(kind, Collection) for kind in kinds):
            return value
        entries = [materialised(entry) for entry in value]
        if any(read is not entry for read, entry in zip(entries, value, strict=True)):
            return entries
    return value


# -- Any method -------------------------------------------------------------------------------------------------------

_TELLS_ALL = {
    *("get_computed_pages", "pin_prefix", "set_prefix_priority", "cache_full_pages"),
    *("swap_out", "swap_in", "receive_pages"),
}
"""The calls that read a request's tokens from the first on."""

_ENDS = {"free", "free_page_hashes"}
"""The calls behind which a request is rarely heard of."""

_CACHING = ("request", "pages", "num_cached_pages", "num_full_pages", "page_size")


class KeyOrigins:
    """Of which page of which request a key is, for the calls that are handed one (no key stands in a log).

    Args:
        of_manager: whether a manager caches pages of the pool, too: of those no call tells whose they are.
    """

    def __init__(self, of_manager: bool) -> None:
        self._of_manager = of_manager
        self._origins: dict[Any, tuple[Any, int, int]] = {}

    def learn(self, request: Any, pages: Any, first: int, end: int, page_size: int) -> None:
        """Notes the keys of a request's pages that were just cached."""
        for place, page in enumerate(pages):
            if first <= place < end and page.page_hash is not None:
                self._origins[_digest(page.page_hash)] = (request, place, page_size)

    def of(self, key: Any) -> tuple[Any, int, int] | None:
        """Request, place and page size of a key; None for one that no call has cached."""
        return self._origins.get(_digest(key))

    def may_lack(self, key: Any) -> bool:
        """Whether a key that is not known may be of a page that is cached."""
        return self._of_manager and self.of(key) is None


def _digest(key: Any) -> Any:
    key = getattr(key, "page_hash", key)  # that of a group, perhaps
    return getattr(key, "hash_value", key)


class RecordedCall:
    """A method that notes its calls.

    What is to be known of a call's arguments is found out once for each `Shape` of call.

    Args:
        writer: the log.
        number: the object's number in it.
        method: the method's name.
        row: its row.
        act: the method itself.
        origins: where the pool's keys come from.
    """

    def __init__(
        self,
        writer: LogWriter,
        number: int,
        method: str,
        row: Method,
        act: Callable[..., Any],
        origins: KeyOrigins,
    ) -> None:
        self._writer, self._row, self._act, self._origins = writer, row, act, origins
        self._head = f'["call",{number},{text_of(method)},{{'
        self._spelt = spellings(writer.requests, whole=method in _TELLS_ALL, ends=method in _ENDS)
        self._shapes: dict[Any, Shape] = {}
        self._lists_running = method == "get_num_common_prefix_pages"
        self._kinds = {name: kind.log for name, kind in row.arguments.items()}
        self._names_key = "key" in self._kinds.values()
        self._frees = method == "free"
        self._learns = method == "cache_full_pages"
        self._ends = method in _ENDS
        self._passed = row.reads and writer.passes_over
        self._method = method
        functools.update_wrapper(self, act, updated=())  # it may be one of these itself, with attributes of its own

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Makes the call and notes it, unless the log has ended or passes it over."""
        if self._writer.failure is not None or (self._passed and self._passed(self._method)):
            return self._act(*map(bare, args), **{name: bare(value) for name, value in kwargs.items()})
        shape = self._shape(args, kwargs)
        values: Sequence[Any] = (*args, *kwargs.values()) if kwargs else args
        for place in shape.once:
            if type(values[place]) not in READ_OFTEN:
                values = [*values[:place], materialised(values[place]), *values[place + 1 :]]
        given = self._given(shape, values)
        if shape.wrapped:
            values = [bare(value) if place in shape.wrapped else value for place, value in enumerate(values)]
        try:
            if values is args:
                value = self._act(*args)
            else:
                value = self._act(*values[: len(args)], **dict(zip(kwargs, values[len(args) :], strict=True)))
        except Exception as error:
            if shape.knows_all:  # an argument of the package's own may be why
                self.note_error(given, error)
            raise
        if self._names_key and value is not None and self._origins.may_lack(values[shape.places["page_hash"]]):
            return value  # it only reads, and no replay could make it
        self.note(given, value)
        if self._learns:
            self._origins.learn(*(values[shape.places[name]] for name in _CACHING))
        if self._ends:
            self._writer.requests.forget(values[shape.places["request"]], freed=self._frees)
        return value

    def note(self, given: str, value: Any) -> None:
        """Notes a call that returned.

        Args:
            given: its arguments as the log has them, without the braces.
            value: what it returned.
        """
        kind = self._row.result.log
        if kind == "ids" and value:
            outcome = encode(list(map(self._writer.requests.text, value)))
        else:
            outcome = outcome_text(kind, value, self._writer.keys)
        self._writer.note(f"{self._head}{given}}},{outcome}]")

    def refused(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], error: Exception) -> None:
        """Notes a call that was made elsewhere and raised."""
        self.note_error(self._given(self._shape(args, kwargs), (*args, *kwargs.values())), error)

    def note_error(self, given: str, error: Exception) -> None:
        """Notes a call that raised; see `note`."""
        self._writer.note(f"{self._head}{given}}},null,{text_of(kind_of(error))}]")

    def _shape(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Shape:
        key = (len(args), *kwargs) if kwargs else len(args)
        shape = self._shapes.get(key)
        if shape is None:
            shape = self._shapes[key] = shape_of(self._kinds, self._spelt, len(args), list(kwargs))
        return shape

    def _given(self, shape: Shape, values: Sequence[Any]) -> str:
        """The arguments as the log has them; those that are another package's own are its own affair."""
        given = [before + spelt(values[place]) for place, before, spelt in shape.told]
        if self._lists_running:
            given.append(f'"running":{listed(self._writer.requests.running())}')
        if self._names_key:
            place = shape.places.get("page_hash")
            origin = None if place is None else self._origins.of(values[place])
            given.append(f'"page_hash":{encode({"key": None if origin is None else list(origin[1:])})}')
            if origin is not None:
                given.append(f'"origin":{self._spelt["request"](origin[0])}')
        return ",".join(given)


# -- allocate_slots: made for every token, and noted by one addition to a list ----------------------------------------

_BY_POSITION = 5
"""The number of arguments of ``allocate_slots`` that are handed on by position."""


def can_record_slots(manager: Any) -> bool:
    """Whether a manager of any package takes the arguments that `record_slots` hands on, and shows its pages."""
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
    no_hits = 0  # compared by identity: what else is false, such as None, is for the manager to refuse

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
        if new_computed_pages is not None or num_new_computed_tokens is not no_hits:
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


# -- allocate_slots_batch: made once a step, its arrays are recorded as arrays, not by request ------------------------

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
"""More tokens than any request has: the count of a slot whose request no `slot_of` call named, which is not logged."""
