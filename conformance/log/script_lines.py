"""A log that deviates as a test: its calls are made once more and noted, as those of machines are."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import kvproof.spec

from ..calls.method import Method
from ..emitting import Script
from ..emitting.endings import Last, ending_of_call, ending_of_field
from ..emitting.literals import UnrenderableError
from ..emitting.notes import Notes
from ..emitting.replaying import script_of_notes
from .entries import Made, Operation
from .player import Answer, Player, Side, Thing
from .replaying import object_name
from .shrinking import Try

__all__ = ["script_of"]


def script_of(found: Try, backend: str, holder: Any, found_by: str) -> Script:
    """The test of a log that was made short.

    Args:
        found: the shortest try.
        backend: the backend's name.
        holder: what holds its public names.
        found_by: the command that found it.

    Raises:
        UnrenderableError: an argument has no form in Python's source, or the calls end otherwise than they did.
    """
    notes = Notes(holder)
    player = Player([kvproof.spec, holder])
    noted = _NotedSide(_Holder(holder, notes), player.requests, notes, found.player.sides[0].things)
    player.sides = [player.sides[0], noted]
    operations = iter(found.played)
    expected, observed, operation = Answer(), Answer(), None
    for entry in found.entries:
        if isinstance(entry, Operation):
            operation = next(operations)
            expected, observed = player.call(operation)
        else:
            player.prepare(entry)
    assert operation is not None, "a try ends with the operation that deviates"
    if notes.problem:
        raise UnrenderableError(notes.problem)
    last = Last(expected.returned, expected.error, observed.returned, observed.error, noted.text)
    if found.field:
        tables = operation.arguments.get("tables") if "row" in found.field else None
        number = player.sides[0].things[tables["k"] if tables else operation.target].whole
        spec, seen = (SimpleNamespace(**side.parts(number)) for side in (player.sides[0], noted))
        ending = ending_of_field(found.field, (spec, seen), player.ids, notes)
        if ending is not None and expected.error is not None:
            ending = replace(ending, refusals=expected.kind)
    else:
        ending = ending_of_call(last, notes)
    if ending is None:
        raise UnrenderableError("what the last call gave")
    told = found.difference
    return script_of_notes(notes, ending, (told.clause, told.expected, told.observed), backend, found_by)


@dataclass(frozen=True)
class _Holder:
    """The public names of a backend, given out as stand-ins."""

    holder: Any
    notes: Notes

    def __getattr__(self, name: str) -> Any:
        return self.notes.stand_in(getattr(self.holder, name), f"backend.{name}")


class _NotedSide(Side):
    """The backend's side, whose calls are noted.

    Args:
        holder: gives out stand-ins.
        requests: the requests by number.
        notes: where calls are noted.
        named: the objects by number, by which they get their names.

    Attributes:
        text: the expression that gives the last result; empty if there is none.
    """

    def __init__(self, holder: _Holder, requests: Any, notes: Notes, named: Mapping[int, Thing]) -> None:
        super().__init__(holder, requests)
        self._notes, self._named = notes, named
        self.text = ""

    def make(self, made: Made) -> None:
        """See `Side.make`: arguments that are as they are by default are left out."""
        name = object_name(made.number, self._named)
        given = _without_defaults(getattr(kvproof.spec, made.name), made.arguments)
        self._notes.act += 1
        with self._notes.taken():
            super().make(replace(made, arguments=given))
            thing = self.things[made.number]
            self._notes.name({name: thing.it})
            if "of" not in made.arguments and thing.views:
                pool = thing.it.page_pool if made.name == "CacheManager" else thing.it
                thing.views = self._notes.name({"pool": pool, "pages": dict(thing.views)})["pages"]

    def parts(self, number: int) -> dict[str, Any]:
        """See `Side.parts`."""
        parts = super().parts(number)
        parts |= {name: self._notes.strip(part) for name, part in parts.items() if name != "pages"}
        if "tables" in parts:
            text = self._text_of(self.things[number])
            whole = f"{text}.page_tables" if self.things[number].name == "MultiGroupPageTable" else f"[{text}]"
            self._notes.know(parts["tables"], whole)
        return parts

    def _text_of(self, thing: Thing) -> str:
        """The expression that gives an object."""
        return self._notes.text_of_known(self._notes.strip(thing.it)) or ""

    def _act(self, thing: Thing, row: Method, operation: Operation) -> Any:
        self._notes.act += 1
        self.text = ""
        if row.form == "call":
            method = getattr(getattr(kvproof.spec, thing.name), operation.method)
            operation = replace(operation, arguments=_without_defaults(method, operation.arguments))
        with self._notes.taken():
            given = super()._act(thing, row, operation)
            text = f"{self._text_of(thing)}.{operation.method}"
            self.text = text if row.form == "get" else self._notes.text_of_result(given)
        return self._notes.strip(given)


def _without_defaults(called: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments without those that are as they are by default."""
    defaults = {name: parameter.default for name, parameter in inspect.signature(called).parameters.items()}
    return {
        name: value
        for name, value in arguments.items()
        if name not in defaults or type(value) is not type(defaults[name]) or value != defaults[name]
    }
