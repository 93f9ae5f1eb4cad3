"""The counterexamples of machines as standalone tests: the calls on the backend alone, and one assertion that fails.

A machine's steps are taken again while `notes` writes down every call of the backend. What the last call must do
becomes an assertion (`endings`). Where calls cannot be written as plain Python (caches of a thousand numbers, say), the
test repeats the machine's steps instead.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from kvproof.spec.clauses import CLAUSES

from ..backends.loading import load_backend
from ..calls.datum import Call
from ..calls.deviation import Deviation, TracedStep
from ..calls.method import Method
from ..machines import EVERY_MACHINE, Machine
from ..machines.attention import RaggedMachine
from ..machines.base import Both, Side, same
from ..machines.calling import Calling
from ..machines.manager_base import ManagerMachine
from ..machines.ragged import Batch
from ..machines.session import Session
from ..trying.script import FileError
from .calls import calls_alone, script_of_calls
from .endings import Last, ending_of, lines_of_attention
from .lines import script_of_notes
from .literals import Literals, UnrenderableError
from .notes import Notes, Statement
from .script import Script

__all__ = ["repeat", "script_of"]


# -- A machine's calls ------------------------------------------------------------------------------------------------


def script_of(machine: type[Machine], found: Deviation, found_by: str = "") -> Script | None:
    """A deviation as a test that stands alone.

    Args:
        machine: the machine that found it, bound to its session.
        found: the deviation, with the steps that led there.
        found_by: the command that finds it again.

    Returns:
        The test; None if neither its calls nor its steps can be written.
    """
    repeated = _repeated(machine, found, found_by)
    plain = _plain(machine, found, found_by) or _alone(machine, found, found_by)
    if plain is None:
        return repeated
    return replace(plain, otherwise=repeated)


# -- The calls alone -----------------------------------------------------------------------------------------------


class _Noting(Calling):
    """A machine whose calls on the backend are noted; mixed into the machine that found a deviation.

    Attributes:
        notes: where they are noted.
        last: the last call.
        phase: what is being compared: ``call``, ``state``, or what the machine itself looks at (``other``).
    """

    notes: ClassVar[Notes]

    def __init__(self) -> None:
        super().__init__()
        self.last = Last()
        self.phase = "other"
        self._statement: Statement | None = None

    def build(self, line: str, clause: str, act: Any) -> None:
        self.phase, self.last = "call", Last()
        super().build(line, clause, self._noted(act))
        self.phase = "other"

    def call(self, line: str, act: Any, clause: str, normal: Any = same, *more: Any, **named: Any) -> Both:
        self.phase, self.last = "call", Last()
        made = super().call(line, self._noted(act), clause, normal, *more, **named)
        self.phase = "other"
        return made

    def _noted(self, act: Any) -> Any:
        def acting(side: Side) -> Any:
            if side is self.spec:
                try:
                    self.last.expected = act(side)
                except Exception as error:
                    self.last.refusal = error
                    raise
                return self.last.expected
            self.notes.act += 1
            self._statement = None
            try:
                self.last.observed = given = act(side)
            except BaseException as error:
                self.last.error = error
                raise
            finally:
                if self._statement is None:
                    self.notes.problem = self.notes.problem or "a call that is made by a function of the machine"
            self.last.text = "" if self._statement is None else self.notes.text_of_result(self._statement, given)
            return given

        return acting

    def perform(self, side: Side, call: Call, row: Method) -> Any:
        if side is not self.backend:
            return super().perform(side, call, row)
        self._statement = statement = self.notes.call(call, row, side)
        self.last.kind = row.result.log
        try:
            statement.value = super().perform(side, call, row)
        except BaseException as error:
            statement.refused = type(error).__name__
            raise
        return statement.value

    def make(self, side: Side, name: str, value: Any) -> None:
        super().make(side, name, value)
        if side is self.backend:
            self.notes.name(name, value, side)

    def compare_states(self, *given: Any, **named: Any) -> None:
        before, self.phase = self.phase, "state"
        told = len(vars(self.backend).get("told", ()))
        super().compare_states(*given, **named)
        if len(vars(self.backend).get("told", ())) > told:
            self.notes.followed()
        self.phase = before

    def end(self) -> None:
        self.phase = "state"
        super().end()

    def check(self, *given: Any, **named: Any) -> None:
        self.phase = "other"
        super().check(*given, **named)


class _Judging(RaggedMachine):
    """A machine of attention that keeps what its `judge` is given while it judges.

    Attributes:
        judged: the arguments, by name; nothing where it does not judge.
    """

    def __init__(self) -> None:
        super().__init__()
        self.judged: dict[str, Any] = {}

    def judge(self, batch: Batch, right: Any, seen: Any, pages: Any, fused: Any = None) -> None:
        self.judged = {"batch": batch, "right": right, "seen": seen, "pages": pages, "fused": fused}
        super().judge(batch, right, seen, pages, fused)
        self.judged = {}


def _deviates_again(taken: Machine, found: Deviation) -> bool:
    """Whether a machine that takes the steps of a deviation comes to one by the same clause."""
    try:
        for step in found.trace:
            taken.repeat_step(step)
        taken.end()
    except Deviation as again:
        return again.clause == found.clause
    return False


def _plain(machine: type[Machine], found: Deviation, found_by: str) -> Script | None:
    """A deviation as plain calls; None if they cannot be written, or come to something else."""
    if not issubclass(machine, Calling):
        return None
    backend = machine.session.backend
    notes = Notes(backend.holder)
    session = machine.session.again(backend)
    mixed = (_Judging, _Noting) if issubclass(machine, RaggedMachine) else (_Noting,)
    bound = type(machine.__name__, (*mixed, machine), {"session": session, "notes": notes})
    taken = bound()
    if not _deviates_again(taken, found):
        return None
    if isinstance(taken, _Judging) and taken.judged:
        return _attending(taken, found, found_by)
    if notes.problem:
        return None
    ending = ending_of(taken, taken.phase, taken.last, notes)
    if ending is None:
        return None
    return script_of_notes(notes, ending, (found.clause, found.expected, found.observed), backend.name, found_by)


def _alone(machine: type[Machine], found: Deviation, found_by: str) -> Script | None:
    """A deviation of managers at level safe as plain calls; None if these do not show what the machine knows."""
    session = machine.session
    if not issubclass(machine, ManagerMachine) or session.level != "safe":
        return None
    try:
        script = script_of_calls(calls_alone(machine, found.trace), session.backend, session.level, found_by)
    except (UnrenderableError, FileError):
        return None
    return script if script.clause == found.clause else None


def _attending(taken: _Judging, found: Deviation, found_by: str) -> Script | None:
    """A wrong result of attention as one call."""
    literals = Literals(taken.session.backend.holder)
    try:
        lines = lines_of_attention(taken, taken.judged, literals)
    except UnrenderableError:
        return None
    if not lines:
        return None
    told = found.clause, found.expected, found.observed, taken.session.backend.name
    return Script(*told, tuple(lines), imports=tuple(literals.imports.values()), found_by=found_by)


# -- The steps again -----------------------------------------------------------------------------------------------


def repeat(
    backend: str,
    machine: str,
    clause: str,
    steps: Sequence[TracedStep | Call],
    kept: Mapping[str, Sequence[Any]] | None = None,
    clauses: Iterable[str] = CLAUSES,
    known: Iterable[str] = (),
    without: Iterable[str] = (),
) -> None:
    """Takes a machine's steps on a backend again.

    Args:
        backend: the backend's name.
        machine: the machine's name.
        clause: the label of the clause that they are to break.
        steps: the steps.
        kept: the things of a few that the run drew from; see `Session.one_of_few`.
        clauses: the labels of the clauses that were looked at.
        known: those of clauses that were known to be broken.
        without: the capabilities that the backend was said to lack.

    Raises:
        AssertionError: the backend breaks the clause; with the calls, what was expected and what was observed.
    """
    session = Session(load_backend(backend, without), {*clauses, clause}, known=known, kept=kept, repeats=True)
    bound = type(machine, (EVERY_MACHINE[machine],), {"session": session})
    taken = bound()
    try:
        for place, step in enumerate(steps):
            taken.closing = place == len(steps) - 1
            taken.repeat_step(step)
        taken.end()
    except Deviation as found:
        if found.clause == clause:
            calls = "\n  ".join(found.calls)
            told = f"{clause}\nexpected {found.expected}\nobserved {found.observed}\nafter\n  {calls}"
            raise AssertionError(told) from None


def _repeated(machine: type[Machine], found: Deviation, found_by: str) -> Script | None:
    """A deviation as a test that repeats the machine's steps; None if what they drew cannot be written."""
    session = machine.session
    literals = Literals()
    options: dict[str, Any] = {
        "kept": {kind: list(kept) for kind, kept in session.kept.items()},
        "known": sorted(session.known),
        "without": sorted(session.backend.without),
    }
    if session.clauses != set(CLAUSES):
        options["clauses"] = sorted(session.clauses)
    try:
        steps = [literals.of(step if isinstance(step, Call) else replace(step, made=[])) for step in found.trace]
        named = {name: literals.of(value) for name, value in options.items() if value}
    except UnrenderableError:
        return None
    literals.name_of(repeat)
    lines = [
        "repeat(",
        f"    {session.backend.name!r},",
        f"    {machine.name!r},",
        f"    {found.clause!r},",
        "    [",
        *(f"        {step}," for step in steps),
        "    ],",
        *(f"    {name}={text}," for name, text in named.items()),
        ")",
    ]
    return Script(
        found.clause,
        found.expected,
        found.observed,
        session.backend.name,
        tuple(lines),
        len(lines),
        imports=tuple(literals.imports.values()),
        found_by=found_by,
    )
