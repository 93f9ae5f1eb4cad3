"""Makes the calls of a log on one side or on two, requests brought to what they said before each call."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kvproof.spec.declarations import EngineRequestStatus, Request

from .entries import Entry, Grown, Made, NewKeys, NewRequest, Operation
from .sides import Answer, Side

__all__ = ["Player", "UnplayableError"]


class UnplayableError(Exception):
    """An entry can't be played: it names what there is not, or asks for what no machine has."""


@dataclass
class Player:
    """Plays a log.

    Attributes:
        holders: what holds the public names of each side, the specification or a backend.
        sides: the sides.
        requests: the requests by number, the same ones on all sides: nobody writes to them.
        live: the ids of those that were not freed, or named again since.
    """

    holders: Sequence[Any]
    sides: list[Side] = field(init=False)
    requests: list[Request] = field(default_factory=list)
    live: dict[str, None] = field(default_factory=dict)
    _lengths: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sides = [Side(holder, self.requests) for holder in self.holders]

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
                for side in self.sides:
                    try:
                        side.make(entry)
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

    def call(self, operation: Operation) -> list[Answer]:
        """Makes a call on every side.

        Raises:
            UnplayableError: it names a request, an object or tokens that there are not.
        """
        try:
            self._tell(operation)
            answers = [side.call(operation) for side in self.sides]
        except (MemoryError, RecursionError) as error:
            raise UnplayableError(f"operation {operation.number} asks for too much") from error
        freed = operation.arguments.get("request")
        if operation.method == "free" and answers[0].error is None and isinstance(freed, dict):
            self.live.pop(self.requests[freed["r"]].request_id, None)
        return answers

    def _tell(self, operation: Operation) -> None:
        """Brings the requests of a call to what they said when it was made."""
        for number, known in operation.told:
            self._set_tokens(number, known)
        for name in ("request", "origin"):
            told = operation.arguments.get(name)
            if told is None or (isinstance(told, dict) and "type" in told):
                continue
            if not isinstance(told, dict) or not isinstance(told.get("r"), int):
                raise UnplayableError(f"operation {operation.number}: {name} is no request")
            request = self._set_tokens(told["r"], told.get("known"))
            request.num_computed_tokens = told.get("computed", 0)
            request.status = EngineRequestStatus.RUNNING if told.get("running") else EngineRequestStatus.WAITING
        running = operation.arguments.get("running")
        if isinstance(running, list):
            for request in self.requests:
                request.status = EngineRequestStatus.WAITING
            for number in running:
                self._request(number).status = EngineRequestStatus.RUNNING

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
