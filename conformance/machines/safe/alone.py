"""Calls on the backend alone: answered, refused, and what it shows before and after."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from ...backends.levels import Level
from ...calls.contrast import contrast, shown
from ...calls.datum import Call
from ...calls.deviation import Outcome, attempt
from ..base import Side
from ..calling import Calling
from ..sides import Field

__all__ = ["Alone"]


def _as_it_is(value: Any) -> Any:
    return value


class Alone(Calling):
    """A machine that makes its calls on the backend only, and judges what comes of them by a model of its own.

    Attributes:
        known: what the model knows of each thing that the backend shows: what it showed after the last call, as far
            as that was found right, and else what it must show.
    """

    levels: ClassVar[frozenset[Level]] = frozenset({"safe"})
    shows_answers = True

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[str, object] = {}

    # -- Calls --------------------------------------------------------------------------------------

    @property
    def called(self) -> tuple[Side, ...]:
        """See `Calling.called`: the side of the specification has nothing."""
        return (self.backend,)

    def try_out(self, call: Call, clause: str, read: Callable[[Any], Any] = _as_it_is) -> Outcome:
        """Makes a call that may be answered or refused.

        Args:
            call: the call.
            clause: the label that an answer which cannot be read is charged to.
            read: makes of the answer what can be judged.

        Returns:
            The answer, read, or the refusal.
        """
        table, row = self.row_of_call(call)
        line = self.line(call, row)
        self.note_call(call)
        self.session.note_drawn(table.counted(call))
        self._before = dict(self.known)
        self.calls.append(line)
        with self.watched(clause, "an answer or a refusal"):
            outcome = attempt(lambda: self.perform(self.backend, call, row))
        if outcome.error is not None:
            self.calls[-1] = f"{line}  # {type(outcome.error).__name__}"
            if not isinstance(outcome.error, Exception):  # which would end the engine
                self.differ(clause, "an answer or a refusal", str(outcome), outcome.error)
            return outcome
        self.backend.results[call.number] = outcome.value
        seen = attempt(lambda: read(outcome.value))
        self.calls[-1] = f"{line}  # {shown(seen.value) if seen.error is None else shown(outcome.value)}"
        if seen.error is not None:
            self.differ(clause, "an answer that can be read", f"{shown(outcome.value)}: {seen}", seen.error)
        return seen

    def ask(self, call: Call, clause: str, read: Callable[[Any], Any] = _as_it_is) -> Any:
        """Makes a call that must be answered, and returns the answer; see `try_out`."""
        outcome = self.try_out(call, clause, read)
        self.compared(clause)
        if outcome.error is not None:
            self.differ(clause, "an answer: nothing is wrong with the call", str(outcome), outcome.error)
        return outcome.value

    def refuse(self, call: Call, clause: str, why: str) -> None:
        """Makes a call that must be refused, by whatever exception, and that changes nothing (R1).

        Args:
            call: the call.
            clause: the label that an answer is charged to.
            why: what is wrong with it.
        """
        outcome = self.try_out(call, clause)
        self.compared(clause)
        if outcome.error is None:
            self.differ(clause, f"a refusal: {why}", f"no refusal, but {shown(outcome.value)}")
        self.unchanged("R1", "a refused call changes nothing")

    # -- What it shows --------------------------------------------------------------------------------

    def show_fields(self, readers: Mapping[str, Callable[[Side], object]]) -> None:
        """Makes reports show these things, each by what reads it off the backend, but for those that it does not show.

        Args:
            readers: what reads each thing; None is read off what the backend does not show.
        """
        shown = {name: read for name, read in readers.items() if read(self.backend) is not None}
        self.fields = tuple(Field(name, "R1", self._reader(name, read)) for name, read in shown.items())

    @property
    def shows(self) -> set[str]:
        """What the backend shows."""
        return {shows.name for shows in self.fields}

    @property
    def resident(self) -> list[int] | None:
        """The pages that were shown as cached after the last call; None where nothing shows that."""
        if "cached pages" not in self.shows:
            self.session.lacks.add("what shows which pages are cached")
            return None
        found: Any = self.known["cached pages"]
        return list(found)

    def _reader(self, name: str, read: Callable[[Side], object]) -> Callable[[Side], object]:
        return lambda side: self.known.get(name) if side is self.spec else read(side)

    def see(self, name: str, clause: str) -> Any:
        """Reads one of the things that the backend shows."""
        shows = next(shows for shows in self.fields if shows.name == name)
        with self.watched(clause, f"{name} that can be read"):
            outcome = attempt(lambda: shows.read(self.backend))
        if outcome.error is not None:
            self.differ(clause, f"{name} that can be read", str(outcome), outcome.error)
        return outcome.value

    def hold_shown(self, right: Mapping[str, tuple[str, object]], why: str = "") -> None:
        """Holds things that the backend shows to what they must be; those that it does not show are passed over.

        Args:
            right: for each thing the label of its clause, and what it must be.
            why: what a report says behind what it must be.
        """
        for name, (label, expected) in right.items():
            if name in self.shows:
                self.known[name] = expected
                seen = self.see(name, label)
                self.hold(label, seen == expected, f"{name} = {expected}{why}", f"{seen}")
                self.known[name] = seen

    def unchanged(self, clause: str, why: str) -> None:
        """Holds what the backend shows against what it showed before the call."""
        self.compared(clause)
        for shows in self.fields:
            now = self.see(shows.name, clause)
            if now != self.known.get(shows.name):
                was, seen = contrast(self.known.get(shows.name), now)
                self.differ(clause, f"{why}: {shows.name} = {was}", f"{shows.name} = {seen}")

    def hold(self, clause: str, right: bool, expected: str, observed: Callable[[], str] | str) -> None:
        """Judges something on which no later call depends: where its clause is not looked at, the example goes on."""
        if clause in self.session.clauses:
            self.compared(clause)
            if not right:
                self.differ(clause, expected, observed if isinstance(observed, str) else observed())
