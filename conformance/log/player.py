"""Makes the calls of a log, requests brought to what they said before each call."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvproof.spec.declarations import EngineRequestStatus, Request

from ..backends.loading import takes_parameter
from ..backends.raising import Ending, frames
from ..calls.deviation import Outcome
from ..calls.logged import KeyNumbers, result
from ..calls.method import Method, bound
from ..calls.readings import page_views
from .entries import Entry, Grown, Made, NewKeys, NewRequest, Operation
from .format import SEEDED, row_of
from .values import read_state

__all__ = ["Answer", "Player", "RecordedError", "Side", "Stranger", "Thing", "UnplayableError"]


_SEED = b"kvproof log"
"""The seed of keys where a log has none."""


@dataclass(frozen=True, eq=False)
class Stranger:
    """Stands for an argument that has no form in a log: no call takes it for anything."""


def _strange(value: Mapping[str, Any]) -> Any:
    """What stands for an argument that a log has by its type alone: those of floats are not finite."""
    return math.nan if value.get("type") == "float" else Stranger()


class RecordedError(Exception):
    """Stands for an error that a log has by its kind alone, which is the message."""


@dataclass(frozen=True)
class Answer(Outcome):
    """How a call of a log ended: ``value`` is what it returned as a log has it."""

    @property
    def kind(self) -> str:
        """See `Outcome.kind`."""
        return str(self.error) if isinstance(self.error, RecordedError) else super().kind

    @property
    def raised(self) -> tuple[str, ...]:
        """Where it raised an error without a clause's label, frame by frame."""
        return () if self.error is None or self.labelled else frames(self.error)

    @property
    def labelled(self) -> bool:
        """Whether its message ends with a clause's label: of the others nobody knows what stands in them (SEC-2)."""
        return " ".join(str(self.error).split()).endswith(f"[{self.clause}]")

    def __str__(self) -> str:
        return super().__str__() if self.error is None or self.labelled else f"raised {self.kind}"


@dataclass
class Thing:
    """An object that was made.

    Attributes:
        name: its class.
        it: the object.
        views: of a manager or a pool: views of its pages by id.
        whole: the number of the object whose state shows it: its own, or that of the one it is a part of.
    """

    name: str
    it: Any
    views: Mapping[int, Any]
    whole: int


@dataclass
class Side:
    """One implementation at work.

    Attributes:
        holder: what holds its public names.
        requests: the requests by number.
        things: its objects by number.
    """

    holder: Any
    requests: Sequence[Request]
    things: dict[int, Thing] = field(default_factory=dict)
    _keys: KeyNumbers = field(default_factory=KeyNumbers)
    _hits: dict[int, Any] = field(default_factory=dict)

    def make(self, made: Made) -> None:
        """Makes an object, or takes a part of one that was made."""
        if "of" in made.arguments:
            part = made.arguments
            whole = self.things[part["of"]]
            it = whole.it.page_pool if made.name == "PagePool" else whole.it.page_tables[part.get("group", 0)]
            self.things[made.number] = Thing(made.name, it, whole.views, part["of"])
            return
        build = getattr(self.holder, made.name)
        arguments = made.built(takes_parameter(build, "retention_interval"))
        if made.name in SEEDED:
            arguments.setdefault("hash_seed", _SEED)
        it = build(**arguments)
        pool = {"CacheManager": getattr(it, "page_pool", None), "PagePool": it}.get(made.name)
        self.things[made.number] = Thing(made.name, it, {} if pool is None else page_views(pool), made.number)

    def call(self, operation: Operation) -> Answer:
        """Makes a call; whatever it raises is an answer."""
        thing = self.things[operation.target]
        row = row_of(thing.name, operation.method)
        try:
            returned = self._act(thing, row, operation)
            value = result(row.result.log, returned, self._keys)
        except Ending:
            raise
        except BaseException as error:  # a backend may raise anything
            return Answer(error=error)
        if row.result.log == "hit":
            self._hits[operation.arguments["request"]["r"]] = returned[0]
        return Answer(value)

    def state(self, number: int, live: Iterable[str], device: bool) -> dict[str, Any]:
        """What an object shows, by field."""
        thing = self.things[number]
        return read_state(thing.name, thing.it, thing.views, live, device)

    # -- Arguments --------------------------------------------------------------------------------

    def _act(self, thing: Thing, row: Method, operation: Operation) -> Any:
        member = getattr(thing.it, operation.method)
        if row.form == "get":
            return member
        given = {
            name: self.argument(thing, kind.log, operation.arguments[name], operation)
            for name, kind in row.arguments.items()
            if name in operation.arguments
        }
        leading, named = bound(tuple(row.arguments), given, row.by_name)
        return member(*leading, **named)

    def argument(self, thing: Thing, kind: str, value: Any, operation: Operation) -> Any:
        """An argument as this side's objects know it."""
        if isinstance(value, dict) and "type" in value:
            return _strange(value)
        match kind:
            case "request":
                return self.requests[value["r"]]
            case "pages":
                return _pages(thing, value)
            case "groups":
                return [_pages(thing, group) for group in value] if isinstance(value, list) else value
            case "hits" if value is not None:
                return self._found(thing, value, operation)
            case "tables" if value is not None:
                return self.things[value["k"]].it
            case "keys" if isinstance(value, dict):
                request = self.requests[operation.arguments["request"]["r"]]
                return self._keys_of(thing, request, operation.arguments.get("page_size"))[: value["keys"]]
            case "key":
                if value["key"] is None:
                    return self.holder.PageHash(b"no key of any page", (), None)
                place, size = value["key"]
                return self._keys_of(thing, self.requests[operation.arguments["origin"]["r"]], size)[place]
            case _:
                return _plain(value)

    def _found(self, thing: Thing, value: Any, operation: Operation) -> Any:
        """The pages of the request's last look-up, if these are meant; else pages of these ids."""
        request = operation.arguments["request"]
        last = self._hits.get(request["r"]) if "r" in request else None
        if last is not None and result("groups", last, self._keys) == value:
            return last
        return self.holder.CachePages([_pages(thing, group) for group in value])

    def _keys_of(self, thing: Thing, request: Request, page_size: Any) -> list[Any]:
        """The keys of a request's full pages."""
        pool = thing.it
        return list(self.holder.hash_request_tokens(pool.hash_function, page_size, request, none_hash=pool.none_hash))


def _pages(thing: Thing, ids: Any) -> Any:
    if not isinstance(ids, list):
        return ids
    return [thing.views.get(page, Stranger()) if isinstance(page, int) else Stranger() for page in ids]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return _strange(value)
    return [_plain(entry) for entry in value] if isinstance(value, list) else value


# -- The whole log ----------------------------------------------------------------------------------------------------


class UnplayableError(Exception):
    """An entry can't be played: it names what there is not, or asks for what no machine has."""


@dataclass
class Player:
    """Plays a log.

    Attributes:
        holder: what holds the public names, the specification or a backend.
        side: its objects.
        requests: the requests by number: nobody writes to them.
        live: the ids of those that were not freed, or named again since.
    """

    holder: Any
    side: Side = field(init=False)
    requests: list[Request] = field(default_factory=list)
    live: dict[str, None] = field(default_factory=dict)
    _lengths: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.side = Side(self.holder, self.requests)

    @property
    def ids(self) -> list[str]:
        """The ids of all requests seen so far."""
        return list(dict.fromkeys(request.request_id for request in self.requests))

    def prepare(self, entry: Entry) -> None:
        """Plays an entry that is no call.

        Raises:
            UnplayableError: an object can't be made, or tokens are missing.
        """
        match entry:
            case Made():
                try:
                    self.side.make(entry)
                except (TypeError, ValueError, IndexError, KeyError, AttributeError, MemoryError) as error:
                    reason = " ".join(str(error).split())
                    raise UnplayableError(f"object {entry.number} can't be made: {reason}") from error
            case NewRequest():
                made = Request(entry.request_id, entry.tokens, entry.extra_keys, entry.prompt_logprobs)
                self.requests.append(made)
                self._lengths.append(len(entry.tokens))
            case Grown():
                request = self.requests[entry.number]
                if entry.start > self._lengths[entry.number]:
                    raise UnplayableError(f"request {entry.number}: tokens up to {entry.start} are missing")
                request.num_tokens = entry.start
                self._lengths[entry.number] = entry.start + len(entry.tokens)
                for token in entry.tokens.tolist():
                    request.append(token)
            case NewKeys():
                self.requests[entry.number].extra_keys = entry.extra_keys

    def call(self, operation: Operation) -> Answer:
        """Makes a call.

        Raises:
            UnplayableError: it names a request, an object or tokens that there are not.
        """
        try:
            self._tell(operation)
            answer = self.side.call(operation)
        except (MemoryError, RecursionError) as error:
            raise UnplayableError(f"operation {operation.number} asks for too much") from error
        freed = operation.arguments.get("request")
        if operation.method == "free" and answer.error is None and isinstance(freed, dict):
            self.live.pop(self.requests[freed["r"]].request_id, None)
        return answer

    def _tell(self, operation: Operation) -> None:
        """Brings the requests of a call to what they said when it was made."""
        for number, known in operation.told:
            self._set_tokens(number, known)
        running = operation.arguments.get("running")
        if isinstance(running, list):
            for request in self.requests:
                request.status = EngineRequestStatus.WAITING
            for number in running:
                self._request(number).status = EngineRequestStatus.RUNNING
        for name in ("request", "origin"):
            told = operation.arguments.get(name)
            if told is None or (isinstance(told, dict) and "type" in told):
                continue
            if not isinstance(told, dict) or not isinstance(told.get("r"), int):
                raise UnplayableError(f"operation {operation.number}: {name} is no request")
            request = self._set_tokens(told["r"], told.get("known"))
            request.num_computed_tokens = told.get("computed", 0)
            request.status = EngineRequestStatus.RUNNING if told.get("running") else EngineRequestStatus.WAITING

    def _request(self, number: Any) -> Request:
        if not isinstance(number, int) or not 0 <= number < len(self.requests):
            raise UnplayableError(f"request {number!r} was never defined")
        return self.requests[number]

    def _set_tokens(self, number: Any, known: Any) -> Request:
        request = self._request(number)
        if not isinstance(known, int) or not 0 <= known <= self._lengths[number]:
            raise UnplayableError(f"request {number}: {known!r} tokens, the log has fewer")
        request.num_tokens = known
        self.live[request.request_id] = None
        return request
