"""Makes the calls of a log, requests brought to what they said before each call."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..backends.loading import Backend, takes_parameter
from ..backends.raising import frames
from ..calls.datum import Call, resolve
from ..calls.deviation import Outcome, attempt
from ..calls.following import taken
from ..calls.interfaces import REQUEST
from ..calls.logged import KeyNumbers, result
from ..calls.method import perform
from ..calls.readings import page_views
from ..calls.values import STRANGER
from ..machines.sides import Side, hashed_key
from .as_calls import Converter, Recorded, Requests
from .entries import Entry, Made, NewRequest, Operation
from .format import SEEDED, LogError, row_of
from .values import read_state

__all__ = ["Answer", "Player", "RecordedError", "Thing"]


_SEED = b"kvproof log"
"""The seed of keys where a log has none."""


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

    @property
    def pool(self) -> Any:
        """The pool of a manager, or the pool itself; None of a table."""
        return self.it if self.name == "PagePool" else getattr(self.it, "page_pool", None)


class _Views(dict[int, Any]):
    """Views of pages by id; what is asked for by any other id is no page."""

    def __missing__(self, page_id: int) -> Any:
        return STRANGER


class Player:
    """Plays a log: its entries become calls (`as_calls`), with the engine's ids of pages, and are made.

    Args:
        holder: what holds the public names, the specification or a backend.
        follows: whether pools take the pages that the engine took, which the specification's can.

    Attributes:
        things: the objects that were made, by number.
        live: the ids of the requests that were not freed, or named again since.
    """

    def __init__(self, holder: Any, follows: bool = False) -> None:
        self.things: dict[int, Thing] = {}
        self.live: dict[str, None] = {}
        self._side = Side(Backend("what plays the log", holder))
        self._side.find_key = partial(hashed_key, self._side)
        self._converter = Converter(_takes_interval(holder), "ids")
        self._requests = Requests(self._converter.ref_of)
        self._keys = KeyNumbers()
        self._hits: dict[int, Any] = {}
        self._follows = follows

    @property
    def requests(self) -> Sequence[NewRequest]:
        """The requests by number, as they were first seen."""
        return self._converter.requests

    def prepare(self, entry: Entry) -> None:
        """Plays an entry that is no call.

        Raises:
            LogError: an object can't be made, or tokens are missing.
        """
        made = self._converter.take(entry)
        if isinstance(entry, Made):
            outcome = attempt(partial(self._make, entry, made))
            if outcome.error is not None:
                reason = " ".join(str(outcome.error).split())
                raise LogError(f"object {entry.number} can't be made: {reason}") from outcome.error

    def _make(self, entry: Made, made: Recorded | None) -> None:
        """Makes an object, or takes a part of one that was made."""
        if made is None:
            whole = self.things[entry.arguments["of"]]
            it = self._side.thing(self._converter.objects[entry.number])
            self.things[entry.number] = Thing(entry.name, it, whole.views, whole.whole)
            return
        seed = {"hash_seed": _SEED} if entry.name in SEEDED and "hash_seed" not in made.call.arguments else {}
        it = getattr(self._side.names.holder, entry.name)(**made.call.arguments, **seed)
        self._side.results[made.call.number] = it
        thing = self.things[entry.number] = Thing(entry.name, it, {}, entry.number)
        if thing.pool is not None:
            thing.views = _Views(page_views(thing.pool))

    def call(self, operation: Operation) -> Answer:
        """Makes a call, requests brought to what they said before it; an exception that it raises is an answer, too.

        Raises:
            LogError: it names a request, an object or tokens that there are not.
        """
        made = self._converter.take(operation)
        assert made is not None, "an operation is a call"
        for says in made.says:
            self.live[says.request_id] = None
        for call in self._requests.before(made):
            self._change(call)
        thing = self.things[operation.target]
        self._side.put({"pages": thing.views, "pool": thing.it})
        if self._follows and thing.pool is not None:
            thing.pool.free_order.wanted = taken(operation.method, operation.result)
        outcome = attempt(partial(self._returned, operation, self._handed_over(made.call, operation), thing))
        freed = operation.arguments.get("request")
        if operation.method == "free" and outcome.error is None and isinstance(freed, dict):
            self.live.pop(self.requests[freed["r"]].request_id, None)
        return Answer(outcome.value, outcome.error)

    def _change(self, call: Call) -> None:
        """What the engine does with a request of its own.

        Raises:
            LogError: it can't be done.
        """
        try:
            prompt = call.arguments.get("prompt")
            if prompt is not None:
                self._side.results[call.number] = resolve(prompt, self._side)
            else:
                perform(self._side, call, REQUEST[call.method])
        except (MemoryError, RecursionError, TypeError, ValueError) as error:
            raise LogError(f"a request can't be so: {' '.join(str(error).split())}") from error

    def _handed_over(self, call: Call, operation: Operation) -> Call:
        """A call with the very pages that the request's last look-up found, if it is those that are handed over."""
        hits, request = operation.arguments.get("new_computed_pages"), operation.arguments.get("request")
        if hits is None or not isinstance(request, dict):
            return call
        last = self._hits.get(request.get("r", -1))
        is_that = last is not None and result("groups", last, self._keys) == hits
        return call.given(new_computed_pages=last) if is_that else call

    def _returned(self, operation: Operation, call: Call, thing: Thing) -> Any:
        """What a call returned, as a log has it."""
        row = row_of(thing.name, operation.method)
        returned = perform(self._side, call, row)
        value = result(row.result.log, returned, self._keys)
        if row.result.log == "hit":
            self._hits[operation.arguments["request"]["r"]] = returned[0]
        elif row.result.log in ("pin", "plan"):  # later calls name what it gave
            self._side.results[call.number] = returned
        return value

    def state(self, number: int, live: Iterable[str], device: bool) -> dict[str, Any]:
        """What an object shows, by field; of a part what the whole shows."""
        thing = self.things[self.things[number].whole]
        return read_state(thing.name, thing.it, thing.views, live, device)


def _takes_interval(holder: Any) -> bool:
    manager = getattr(holder, "CacheManager", None)
    return manager is not None and takes_parameter(manager, "retention_interval")
