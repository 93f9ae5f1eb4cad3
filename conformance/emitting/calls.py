"""A sequence of calls that deviates as a test: the calls are made once more, and those on the backend are noted."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from ..backends.levels import Level
from ..backends.loading import Backend
from ..calls.datum import Call, Ref, renamed, resolve
from ..calls.deviation import Outcome, TracedStep
from ..calls.method import Method
from ..calls.pool import Views
from ..machines.manager_base import ManagerMachine
from ..trying.script import Entry, made_by
from ..trying.trial import Said, Trial
from .endings import Ending, Last, ending_of_call, ending_of_field
from .lines import script_of_notes
from .literals import UnrenderableError
from .notes import Notes
from .script import Script

__all__ = ["calls_alone", "script_of_calls"]

_NAMES = {
    "CacheManager": "manager",
    "ShardedCacheManager": "manager",
    "PagePool": "pool",
    "FreeCachePageQueue": "queue",
    "PageTable": "table",
    "MultiGroupPageTable": "tables",
}
"""What objects of each class are called in a test."""


def calls_alone(machine: type[ManagerMachine], trace: Sequence[TracedStep | Call]) -> list[Call]:
    """The calls of a counterexample and, before them, the one that constructs the manager: they need no machine.

    Args:
        machine: the machine that found it, bound to its session.
        trace: the counterexample.
    """
    calls = [step for step in trace if isinstance(step, Call)]
    taken = type(machine.__name__, (machine,), {"session": machine.session.again(machine.session.backend)})()
    taken.repeat_step(trace[0])
    made = taken.built(1 + max((call.number for call in calls), default=0))
    alone = [made.given(kv_cache_groups=resolve(made.arguments["kv_cache_groups"], taken.spec))]
    names: dict[int | str, Ref] = {"manager": Ref(alone[0].number), "pool": Ref(alone[0].number, (".page_pool",))}

    def named(ref: Ref) -> Ref:
        return names[ref.of].to(*ref.path) if ref.of in names else ref

    for call in calls:
        given = {argument: renamed(value, named) for argument, value in call.arguments.items()}
        alone.append(replace(call, target=call.target and named(call.target), arguments=given))
        if call.method == "Request":
            names[call.arguments["prompt"].request_id] = Ref(call.number)
    return alone


def script_of_calls(calls: Sequence[Call], backend: Backend, level: Level, found_by: str) -> Script:
    """The test of calls the last of which deviates.

    Args:
        calls: the calls.
        backend: the backend on which it does.
        level: how it was compared; at ``safe`` the test asks how many pages there are, not for their ids.
        found_by: the command that found it.

    Raises:
        UnrenderableError: an argument has no form in Python's source, or the calls end otherwise than they did.
    """
    trial = _NotedTrial(backend, level)
    entries = [Entry(f"calls[{place}]", "", call) for place, call in enumerate(calls)]
    said = list(trial.run(entries, lambda place: place == len(calls) - 1))[-1]
    if trial.notes.problem:
        raise UnrenderableError(trial.notes.problem)
    if said.verdict != "deviates":
        raise UnrenderableError("the calls end otherwise than they did")
    ending = trial.ending(said)
    if ending is None:
        raise UnrenderableError("what the last call gave")
    return script_of_notes(trial.notes, ending, _told(said), backend.name, found_by)


def _told(said: Said) -> tuple[str, str, str]:
    """The clause that a call breaks, what that says of it, and what the backend did."""
    if not said.differences:
        return said.clause, said.expected, said.observed
    name, (right, seen) = next(iter(said.differences.items()))
    return said.clause, f"{name} = {right}", f"{name} = {seen}"


class _NotedTrial(Trial):
    """A trial whose calls on the backend are noted.

    Attributes:
        notes: the calls.
        last: the last one.
    """

    def __init__(self, backend: Backend, level: Level) -> None:
        super().__init__(backend, level)
        self.notes = Notes(backend.holder)
        self.last = Last()
        self._names: dict[int | str, dict[str, str]] = {}

    def _attempt(self, side: Any, call: Call, row: Method) -> Outcome:
        if side is self.spec:
            outcome = super()._attempt(side, call, row)
            self.last = Last(outcome.value, outcome.error, kind=row.result.log)
            return outcome
        self.notes.act += 1
        statement = self.notes.call(call, row, side)
        outcome = super()._attempt(side, call, row)
        statement.value, self.last.observed, self.last.error = outcome.value, outcome.value, outcome.error
        if outcome.error is not None:
            statement.refused = type(outcome.error).__name__
        else:
            self.last.text = self.notes.text_of_result(statement, outcome.value)
        return outcome

    def _note_built(self, call: Call) -> None:
        super()._note_built(call)
        if call.number not in self._built:
            return
        owner, parts, it = made_by(call), self._built[call.number].parts[1], Ref(call.number)
        pool = it.to(".page_pool") if "Manager" in owner else it
        tables = it.to(".page_tables") if owner == "MultiGroupPageTable" else [it]
        known = {"manager": it, "queue": it, "pool": pool, "pages": Views(pool), "tables": tables}
        self.notes.name(_NAMES[owner], call, self.backend)
        for name in known.keys() & parts.keys():
            self.notes.name(name, known[name], self.backend)
        self._names[call.number] = {name: self.notes.text_of_name(name) or "" for name in known.keys() & parts.keys()}

    def ending(self, said: Said) -> Ending | None:
        """The end of the test; None if what differs can't be told from outside."""
        if said.field is None:
            return ending_of_call(self.last, self.notes, chooses=self._level == "safe")
        name, number = said.field
        spec, seen = (SimpleNamespace(**own) for own in self._built[number].parts)
        text_of = self._names.get(number, {}).get
        ending = ending_of_field(name, (spec, seen), list(self._requests), self.notes, text_of)
        if ending is not None and said.refused:
            return replace(ending, refusals=type(self.last.refusal).__name__)
        return ending
