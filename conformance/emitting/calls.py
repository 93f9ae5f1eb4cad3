"""A sequence of calls that deviates as a test: the calls are made once more, and those on the backend are noted."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from ..backends.levels import Level
from ..backends.loading import Backend
from ..calls.datum import Call, Ref, renamed
from ..calls.deviation import Outcome, TracedStep
from ..calls.method import Method
from ..machines.manager_base import ManagerMachine
from ..trying.script import Entry
from ..trying.trial import Said, Trial
from .endings import Ending, Last, ending_of_call, ending_of_field
from .lines import script_of_notes
from .literals import UnrenderableError
from .notes import NotedBackend, NotedSide, Notes
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
    alone = [taken.built(1 + max((call.number for call in calls), default=0))]
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


class _Side(NotedSide):
    """The backend's side: what a `Ref` names is given out as a stand-in while calls are noted."""

    def thing(self, ref: Ref) -> Any:
        """See `Side.thing`."""
        found = self.results.get(ref.of) if isinstance(ref.of, int) else None
        text = self._notes.text_of_known(found) if found is not None and self._notes.on else None
        if text is None:
            return super().thing(ref)
        real, self.results[ref.of] = found, self._notes.stand_in(found, text)  # type: ignore[index]
        try:
            return super().thing(ref)
        finally:
            self.results[ref.of] = real  # type: ignore[index]


class _NotedTrial(Trial):
    """A trial whose calls on the backend are noted.

    Attributes:
        notes: the calls.
        last: the last one.
    """

    def __init__(self, backend: Backend, level: Level) -> None:
        self.notes = Notes(backend.holder)
        noted = NotedBackend(backend.name, backend.holder, backend.without, notes=self.notes)
        super().__init__(noted, level, _Side(noted))
        self.last = Last()
        self._row: Method | None = None

    def _attempt(self, side: Any, call: Call, row: Method) -> Outcome:
        if side is self.spec:
            outcome = super()._attempt(side, call, row)
            self.last, self._row = Last(outcome.value, outcome.error), row
            return outcome
        self.notes.act += 1
        with self.notes.taken():
            outcome = super()._attempt(side, call, row)
            if outcome.error is not None:
                self.last.error = outcome.error
                return outcome
            self.last.text = self.notes.text_of_result(outcome.value)
            self.last.observed = self.notes.strip(outcome.value)
        return replace(outcome, value=self.last.observed)

    def _parts(self, owner: str, it: Any, side: Any) -> dict[str, Any]:
        if side is self.spec:
            return super()._parts(owner, it, side)
        with self.notes.taken():
            stand_in = self.notes.stand_in(it, self.notes.text_of_known(it) or "made")
            parts = super()._parts(owner, stand_in, side)
            named = {_NAMES[owner]: stand_in} | {name: parts[name] for name in ("pool", "pages") if name in parts}
            side.put(named)
        known = {name: getattr(side, name) for name in named}  # as they are known by their names from now on
        parts = {name: self.notes.strip(part) for name, part in parts.items()} | known
        if "tables" in parts:
            text = self.notes.text_of_known(it)
            self.notes.know(parts["tables"], f"{text}.page_tables" if owner == "MultiGroupPageTable" else f"[{text}]")
        return parts

    def ending(self, said: Said) -> Ending | None:
        """The end of the test; None if what differs can't be told from outside."""
        if said.field is None:
            return (self._counted() if self._level == "safe" else None) or ending_of_call(self.last, self.notes)
        name, number = said.field
        spec, seen = (SimpleNamespace(**own) for own in self._built[number].parts)
        ending = ending_of_field(name, (spec, seen), list(self._requests), self.notes)
        if ending is not None and said.refused:
            return replace(ending, refusals=type(self.last.refusal).__name__)
        return ending

    def _counted(self) -> Ending | None:
        """The end that asks how many pages a call gave; None of other calls."""
        last, kind = self.last, self._row.result.log if self._row is not None else ""
        if not last.text or kind not in ("pages", "groups") or last.expected is None or last.observed is None:
            return None
        if kind == "pages":
            return Ending(lines=(f"assert len({last.text}) == {len(last.expected)}",))
        counts = [len(group) for group in last.expected.get_page_ids()]
        return Ending(lines=(f"assert [len(group) for group in {last.text}.get_page_ids()] == {counts}",))
