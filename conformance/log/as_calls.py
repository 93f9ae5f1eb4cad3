"""A log as a sequence of calls, each on what earlier ones gave: then others than the recorded engine can make them.

A log has pages, hits, slots, pins and swaps by the numbers that the engine had. Here a page is the entry of the result
that gave it last, what a look-up found is its result, the tokens behind a hit are those of the prompt less that hit,
and a slot is that of a request. A number that no call gave stands for itself, a page that no call gave for the one of
its id. Where both sides are to have the engine's ids, a page is always the one of its id.
"""

import math
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kvproof.spec.declarations import EngineRequestStatus, ExtraKey

from ..calls.datum import LEFT_OUT, Call, Key, Minus, Pages, Prompt, Ref, Slot, Spelled, fitting, renamed
from ..calls.manager import STEP_COLUMNS, step_columns
from ..calls.method import Method
from ..calls.spelling import Spelling
from ..calls.values import STRANGER
from .entries import Entry, Grown, Made, NewKeys, NewRequest, Operation
from .format import LogError, row_of

__all__ = ["Converter", "Naming", "Recorded", "Requests", "Says", "calls_in_order", "in_order"]

Naming = Literal["results", "results or ids", "ids"]
"""How a log's pages are named: by the results that gave them, or by their ids."""

_STATUS = {True: EngineRequestStatus.RUNNING, False: EngineRequestStatus.WAITING}

_PAGE_IDS = {"page_ids", "page_ids_per_req", "page_id"}
"""Arguments that are ids of pages, by name: single ones, or lists of them."""


@dataclass(frozen=True, eq=False)
class Says:
    """What the engine said of a request when it made a call.

    Attributes:
        number: the request's number in the log.
        request_id: its id.
        tokens: its tokens, int32s, of which more may have come since.
        known: how many it had.
        extra_keys: its extra keys.
        logprobs: as it asked for when it was made.
        computed: its computed tokens; None if nothing was said of them.
        running: whether it was running; None if nothing was said.
    """

    number: int
    request_id: str
    tokens: "array[int]"
    known: int
    extra_keys: tuple[ExtraKey, ...]
    logprobs: int | None
    computed: Any = None
    running: bool | None = None


@dataclass(frozen=True, eq=False)
class Recorded:
    """An operation of a log, or the making of an object, as a call.

    Attributes:
        call: the call.
        says: what the engine said of requests just before.
        running: the numbers of all requests that were running, where the log says that.
        served: of a batched step the number of the live request in each place; None where there is none.
        operation: the operation; None for what makes an object.
    """

    call: Call
    says: tuple[Says, ...] = ()
    running: frozenset[int] | None = None
    served: tuple[int | None, ...] = ()
    operation: Operation | None = None

    def serving(self, live: set[int]) -> "Recorded | None":
        """A batched step of those of its requests that are live; None if none is left, any other call itself."""
        kept = [place for place, number in enumerate(self.served) if number is None or number in live]
        if len(kept) == len(self.served):
            return self
        if not kept:
            return None
        less = step_columns(self.call.arguments, kept)
        return replace(self, call=self.call.given(**less), served=tuple(self.served[place] for place in kept))

    def without_hit(self) -> "Recorded":
        """The same without what a look-up found: all of the prompt is new."""
        new = self.call.arguments.get("num_new_tokens")
        if not isinstance(new, Minus):
            return self
        less = {"num_new_tokens": new.number, "num_new_computed_tokens": LEFT_OUT, "new_computed_pages": LEFT_OUT}
        return replace(self, call=self.call.given(**less))


@dataclass
class _Request:
    """A request of a log as far as it was read."""

    made: NewRequest
    ref: Ref
    tokens: "array[int]"
    extra_keys: tuple[ExtraKey, ...]

    def says(self, known: int, computed: Any = None, running: bool | None = None) -> Says:
        """What is said of it now."""
        own = self.made
        told = self.tokens, known, self.extra_keys, own.prompt_logprobs
        return Says(own.number, own.request_id, *told, computed, running)

    def prompt(self, known: int) -> Prompt:
        """The request as a value, with the tokens that it has."""
        return Prompt(tuple(self.tokens[:known]), self.extra_keys, request_id=self.made.request_id)


@dataclass
class _Given:
    """What the calls of one pool gave: by the engine's numbers, how a `Ref` names it now."""

    pages: dict[int, Ref] = field(default_factory=dict)
    ids: dict[int, Ref] = field(default_factory=dict)
    hits: dict[int, tuple[Any, Any, Ref]] = field(default_factory=dict)
    slots: dict[int, int] = field(default_factory=dict)
    pins: dict[Any, Ref] = field(default_factory=dict)
    swaps: dict[Any, Ref] = field(default_factory=dict)


class Converter:
    """Makes calls of the entries of a log, one after another.

    Args:
        takes_interval: whether managers take a retention interval; logs without one are of managers that keep all.
        naming: how pages are named, by ``results or ids`` those that no call gave by their ids: ids are for sides that
            give the same ones.

    Attributes:
        objects: how each object is named, by its number.
        names: the class of each.
        requests: the requests so far, as they were first seen, by number.
    """

    def __init__(self, takes_interval: bool = True, naming: Naming = "results or ids") -> None:
        self.objects: dict[int, Ref] = {}
        self.names: dict[int, str] = {}
        self.requests: list[NewRequest] = []
        self._takes_interval, self._naming = takes_interval, naming
        self._roots: dict[int, int] = {}
        self._given: dict[int, _Given] = {}
        self._requests: list[_Request] = []
        self._live: set[int] = set()
        self._numbers: dict[Any, int] = {}
        self._number = 0

    def take(self, entry: Entry) -> Recorded | None:
        """The call that an entry tells of; None for one that tells of none.

        Raises:
            LogError: it can't be made again: it names what there is not, or a page by its id where ids differ.
        """
        try:
            return self._taken(entry)
        except (TypeError, IndexError, KeyError, AttributeError, ValueError) as error:
            where = f"operation {entry.number}" if isinstance(entry, Operation) else "an entry"
            raise LogError(f"{where} has another form than a recording writes: {type(error).__name__}") from error

    def _taken(self, entry: Entry) -> Recorded | None:
        match entry:
            case Made():
                return self._made(entry)
            case NewRequest():
                self.requests.append(entry)
                self._numbers[entry.request_id] = entry.number
                self._requests.append(_Request(entry, Ref(self._next()), _tokens(entry.tokens), entry.extra_keys))
            case Grown():
                self._grow(entry)
            case NewKeys():
                self._requests[entry.number].extra_keys = entry.extra_keys
            case Operation():
                return self._operation(entry)
        return None

    def ref_of(self, number: int) -> Ref:
        """How a request is named, by its number in the log."""
        return self._requests[number].ref

    def _next(self) -> int:
        self._number += 1
        return self._number

    # -- Objects and requests -------------------------------------------------------------------------------------

    def _made(self, entry: Made) -> Recorded | None:
        arguments = entry.arguments
        self.names[entry.number] = entry.name
        if "of" in arguments:
            whole = arguments["of"]
            group = arguments.get("group", 0)
            path = (".page_pool",) if entry.name == "PagePool" else (".page_tables", group)
            self.objects[entry.number] = self.objects[whole].to(*path)
            self._roots[entry.number] = self._roots[whole]
            return None
        call = Call(None, entry.name, entry.built(self._takes_interval), self._next())
        self.objects[entry.number] = Ref(call.number)
        self._roots[entry.number] = entry.number
        self._given[entry.number] = _Given()
        return Recorded(call)

    def _grow(self, entry: Grown) -> None:
        request = self._requests[entry.number]
        if entry.start > len(request.tokens):
            raise LogError(f"request {entry.number}: tokens up to {entry.start} are missing")
        if entry.start < len(request.tokens):  # others were written over them: what was said before had the old ones
            request.tokens = request.tokens[: entry.start]
        request.tokens += _tokens(entry.tokens)

    def _known(self, operation: Operation, value: Any) -> _Request:
        number = value.get("r") if isinstance(value, dict) else value
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < len(self._requests):
            raise LogError(f"operation {operation.number}: request {number!r:.20} was never defined")
        return self._requests[number]

    def _said(self, operation: Operation, value: Any, known: Any, *more: Any) -> Says:
        request = self._known(operation, value)
        if not isinstance(known, int) or not 0 <= known <= len(request.tokens):
            told = f"{known!r:.20} tokens, the log has {len(request.tokens)}"
            raise LogError(f"operation {operation.number}: request {request.made.number}: {told}")
        return request.says(known, *more)

    # -- Operations -----------------------------------------------------------------------------------------------

    def _operation(self, operation: Operation) -> Recorded:
        if operation.target not in self.objects:
            raise LogError(f"operation {operation.number}: object {operation.target} was never made")
        row = row_of(self.names[operation.target], operation.method)
        given = self._given[self._roots[operation.target]]
        says = [self._said(operation, number, known) for number, known in operation.told]
        for name in ("request", "origin"):
            value = operation.arguments.get(name)
            if value is not None and not (isinstance(value, dict) and "type" in value):
                told = value.get("computed", 0), bool(value.get("running"))
                says.append(self._said(operation, value, value.get("known"), *told))
        running = operation.arguments.get("running")
        if isinstance(running, list):
            for number in running:
                self._known(operation, number)
        arguments = {
            name: self._argument(operation, given, name, kind.log)
            for name, kind in row.arguments.items()
            if name in operation.arguments
        }
        served: tuple[int | None, ...] = ()
        if operation.method == "allocate_slots_batch":
            arguments, served = self._step(operation, given, arguments)
        elif operation.method == "allocate_slots" and self._naming != "ids":
            arguments |= self._hit(operation, given)
        call = Call(self.objects[operation.target], operation.method, arguments, self._next())
        self._learn(operation, row, given, call.number)
        _note_live(self._live, operation)
        listed = None if not isinstance(running, list) else frozenset(running)
        return Recorded(call, tuple(says), listed, served, operation)

    def _argument(self, operation: Operation, given: _Given, name: str, kind: str) -> Any:
        value = operation.arguments[name]
        if isinstance(value, dict) and "type" in value:
            return _strange(value)
        match kind:
            case "request":
                return self._known(operation, value).ref
            case "pages" | "groups":
                return self._pages(operation, given, value)
            case "hits" if value is not None:
                return Pages(self._pages(operation, given, value))
            case "tables" if value is not None:
                if value["k"] not in self.objects:
                    raise LogError(f"operation {operation.number}: object {value['k']!r:.20} was never made")
                return self.objects[value["k"]]
            case "keys" if isinstance(value, dict):
                count, most = value["keys"], len(self._known(operation, operation.arguments["request"]).tokens)
                if count > most:
                    raise LogError(f"operation {operation.number}: {count} keys of a request of {most} tokens")
                prompt, size = self._prompt(operation, "request"), operation.arguments["page_size"]
                return [Key(prompt, size, place) for place in range(count)]
            case "key":
                return self._key(operation, value["key"])
        if name in ("pin_id", "swap_id") and isinstance(value, int):
            return (given.pins if name == "pin_id" else given.swaps).get(value, value)
        return self._ids(operation, given, value) if name in _PAGE_IDS else _plain(value)

    def _pages(self, operation: Operation, given: _Given, value: Any) -> Any:
        """Pages by what gave them; of a list of lists each."""
        if isinstance(value, list):
            return [self._pages(operation, given, entry) for entry in value]
        if isinstance(value, dict) or type(value) is not int:
            return _plain(value)
        if self._naming == "ids":
            return Ref("pages", (value,))
        if value == 0:
            return self._pool(operation).to(".null_page")
        if value in given.pages:
            return given.pages[value]
        if self._naming == "results":
            raise self._unknown(operation, value)
        return Ref("pages", (value,))

    def _ids(self, operation: Operation, given: _Given, value: Any) -> Any:
        """Ids of pages as those of what gave them; an id that no call gave, in a row of a table, is a number."""
        if isinstance(value, list):
            return [self._ids(operation, given, entry) for entry in value]
        if type(value) is not int or value == 0 or self._naming == "ids":
            return _plain(value)
        if self.names[operation.target].endswith("Table"):
            given = next((own for own in self._given.values() if value in own.ids), given)
        elif value not in given.ids and self._naming == "results":
            raise self._unknown(operation, value)
        return given.ids.get(value, value)

    @staticmethod
    def _unknown(operation: Operation, page: int) -> LogError:
        told = f"page {page} was given by no call of the log, so that no page of another id can stand for it"
        return LogError(f"operation {operation.number}: {told}: it can be made at level exact only")

    def _pool(self, operation: Operation) -> Ref:
        target = self.objects[operation.target]
        return target.to(".page_pool") if self.names[operation.target] == "CacheManager" else target

    def _key(self, operation: Operation, origin: Any) -> Key:
        """A page's key, by the request whose page it is; or one of no page."""
        if origin is None:
            return Key(Prompt((0,)), 1, 0, made_by_hand=True)
        place, size = origin
        return Key(self._prompt(operation, "origin"), size, place)

    def _prompt(self, operation: Operation, name: str) -> Prompt:
        told = operation.arguments[name]
        return self._known(operation, told).prompt(told.get("known", 0))

    def _hit(self, operation: Operation, given: _Given) -> dict[str, Any]:
        """What the last look-up of the request found, where it is that which is handed over; else nothing."""
        hits = operation.arguments.get("new_computed_pages")
        request = operation.arguments.get("request")
        if hits is None or not isinstance(request, dict) or "r" not in request:
            return {}
        pages, tokens, ref = given.hits.get(request["r"], (None, None, Ref("")))
        if pages != hits:
            return {}
        changes: dict[str, Any] = {"new_computed_pages": ref.to(0)}
        new = operation.arguments.get("num_new_tokens")
        if operation.arguments.get("num_new_computed_tokens", 0) == tokens and type(new) is type(tokens) is int:
            changes |= {"num_new_computed_tokens": ref.to(1), "num_new_tokens": Minus(new + tokens, ref.to(1))}
        return changes

    def _step(
        self, operation: Operation, given: _Given, arguments: dict[str, Any]
    ) -> tuple[dict[str, Any], tuple[int | None, ...]]:
        """The columns of a batched step, and whose slots they are."""
        manager = self.objects[operation.target]
        made = dict(arguments)
        for name in STEP_COLUMNS:
            if isinstance(made.get(name), list):
                made[name] = Spelled(Spelling.LIST, tuple(made[name]))
        slots = made.get("slots")
        if not isinstance(slots, Spelled):
            return made, ()
        numbers = [given.slots.get(slot) if type(slot) is int else None for slot in slots.values]
        served = tuple(number if number in self._live else None for number in numbers)
        named = [
            slot if number is None else Slot(manager, self._requests[number].made.request_id)
            for slot, number in zip(slots.values, served, strict=True)
        ]
        return made | {"slots": Spelled(Spelling.LIST, tuple(named))}, served

    # -- What results give ----------------------------------------------------------------------------------------

    def _learn(self, operation: Operation, row: Method, given: _Given, number: int) -> None:
        """Notes how what the engine got is named from now on."""
        found, ref = operation.result, Ref(number)
        if operation.error is not None or found is None:
            return
        if self._naming != "ids":
            self._learn_places(row, given, ref, operation)
        if row.result.log == "pin":
            given.pins[found[0]] = ref.to(".pin_id")
        elif row.result.log == "plan":
            given.swaps[found[0]] = ref.to(".swap_id")
        elif row.name == "slot_of" and type(found) is int:
            named = self._numbers.get(operation.arguments.get("request_id"))
            if named is not None:
                given.slots[found] = named

    def _learn_places(self, row: Method, given: _Given, ref: Ref, operation: Operation) -> None:
        """Notes which call gave which page, and what a look-up found."""
        found, value = operation.result, operation.arguments.get("request")
        match row.result.log:
            case "pages":
                self._learn_pages(given, [found], lambda _, place: ref.to(place))
            case "groups" if row.name == "get_page_ids":
                given.ids |= {page: ref.to(group, place) for group, place, page in _places(found)}
            case "groups" if row.name != "get_host_page_ids":
                self._learn_pages(given, found, lambda group, place: ref.to(".pages", group, place))
            case "hit":
                self._learn_pages(given, found[0], lambda group, place: ref.to(0, ".pages", group, place))
                if isinstance(value, dict) and "r" in value:
                    given.hits[value["r"]] = found[0], found[1], ref
            case "batch":
                pages = [own[2] if len(own) == 3 else [] for own in found[1]]
                given.ids |= {page: ref.to(".page_ids", group, place) for group, place, page in _places(pages)}

    @staticmethod
    def _learn_pages(given: _Given, groups: Any, name: Any) -> None:
        for group, place, page in _places(groups):
            given.pages[page] = name(group, place)
            given.ids[page] = given.pages[page].to(".page_id")


def _places(groups: Any) -> Iterator[tuple[int, int, int]]:
    """Each page of page lists with its group and its place; null pages are no call's."""
    for group, pages in enumerate(groups if isinstance(groups, list) else ()):
        for place, page in enumerate(pages if isinstance(pages, list) else ()):
            if type(page) is int and page:
                yield group, place, page


def _tokens(tokens: NDArray[np.int32]) -> "array[int]":
    return array("i", tokens.tobytes())


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return _strange(value)
    return [_plain(entry) for entry in value] if isinstance(value, list) else value


def _strange(value: Mapping[str, Any]) -> Any:
    """What stands for an argument that a log has by its type alone: those of floats are not finite."""
    return math.nan if value.get("type") == "float" else STRANGER


# -- Requests between the calls ---------------------------------------------------------------------------------------


class Requests:
    """Makes and changes requests between calls, as far as these need it.

    Args:
        ref_of: how a request is named, by its number in the log.
    """

    def __init__(self, ref_of: Any) -> None:
        self._ref_of = ref_of
        self._now: dict[int, Says] = {}

    @property
    def made(self) -> set[int]:
        """The numbers of the requests that were made."""
        return set(self._now)

    def before(self, recorded: Recorded) -> Iterator[Call]:
        """What the engine does with its requests before a call."""
        if recorded.running is not None:
            for number, says in list(self._now.items()):
                yield from self._brought(replace(says, running=number in recorded.running))
        for says in recorded.says:  # of the request that is handed over its own word counts
            yield from self._brought(says)

    def _brought(self, says: Says) -> Iterator[Call]:
        ref, before = self._ref_of(says.number), self._now.get(says.number)
        known = says.known
        if before is None:
            prompt = Prompt(tuple(says.tokens[:known]), says.extra_keys, Spelling.INT32, says.request_id, says.logprobs)
            yield Call(None, "Request", {"prompt": prompt}, ref.of if isinstance(ref.of, int) else 0)
            before = replace(says, computed=0, running=False)
        had = before.known
        common = min(had, known)
        if before.tokens is not says.tokens:
            pairs = zip(before.tokens[:common], says.tokens[:common], strict=True)
            common = next((place for place, (old, new) in enumerate(pairs) if old != new), common)
        if common < had:
            yield Call(ref, "num_tokens", {"value": common})
        for token in says.tokens[common:known]:
            yield Call(ref, "append", {"token_id": token})
        computed = before.computed if says.computed is None else says.computed
        if type(computed) is not type(before.computed) or computed != before.computed:  # True is no 1 (R1)
            yield Call(ref, "num_computed_tokens", {"value": computed})
        running = before.running if says.running is None else says.running
        if running != before.running:
            yield Call(ref, "status", {"value": _STATUS[bool(running)]})
        if says.extra_keys != before.extra_keys:
            yield Call(ref, "extra_keys", {"value": says.extra_keys})
        self._now[says.number] = replace(says, computed=computed, running=running)


def calls_in_order(kept: Sequence[Recorded], ref_of: Callable[[int], Ref]) -> Iterator[tuple[Recorded, list[Call]]]:
    """Operations without what others gave that were left out, and the calls that they come to.

    Args:
        kept: operations, and what makes their objects, in the order of the log.
        ref_of: how a request is named, by its number in the log.
    """
    requests, live = Requests(ref_of), set[int]()
    given: set[int] = set()
    for own in kept:
        serving = own.serving(live)
        if serving is None:
            continue
        made = {_number(ref_of(says.number)) for says in own.says}
        given |= made
        call = fitting(serving.call, given) or fitting(serving.without_hit().call, given)
        if call is None:
            given -= made - {_number(ref_of(number)) for number in requests.made}
            continue
        given.add(call.number)
        if own.operation is not None:
            _note_live(live, own.operation)
        yield own, [*requests.before(serving), call]


def _note_live(live: set[int], operation: Operation) -> None:
    """Notes the requests that are live behind an operation."""
    told = operation.arguments.get("request")
    if isinstance(told, dict) and isinstance(told.get("r"), int):
        if operation.method == "allocate_slots":
            live.add(told["r"])
        elif operation.method == "free":
            live.discard(told["r"])


def _number(ref: Ref) -> int:
    return ref.of if isinstance(ref.of, int) else 0


def in_order(calls: Sequence[Call]) -> list[Call]:
    """The same calls numbered from 1 on, and named by these numbers."""
    numbers = {call.number: place for place, call in enumerate(calls, 1) if call.number}

    def name(ref: Ref) -> Ref:
        return replace(ref, of=numbers.get(ref.of, ref.of)) if isinstance(ref.of, int) else ref

    return [
        replace(
            call,
            target=call.target and name(call.target),
            arguments={argument: renamed(value, name) for argument, value in call.arguments.items()},
            number=place,
        )
        for place, call in enumerate(calls, 1)
    ]
