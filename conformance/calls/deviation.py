"""What a conformance run finds: a deviation, and how the outcomes of one call are told apart."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvproof.spec.clauses import clause_of_message

from ..backends.raising import Ending
from ..console.exit_status import CannotRunError
from .datum import Call

__all__ = [
    *("REFUSALS", "Deviation", "Outcome", "SpecificationError", "TracedStep"),
    *("attempt", "clause_of_state", "is_call", "is_refusal", "kind_of"),
]

REFUSALS = (TypeError, ValueError, IndexError)
"""The three errors by which a call is refused (R1); any other error is a fault of whoever raised it."""

_ATOMIC = {"TAB-2"}
"""Clauses that say themselves that a call happens wholly or not at all; for all others R1 says it."""

_NO_CALL = re.compile(r"# |\w+ = (Spelled)?Request\(|\w+ grows by |\w+\.status = ")
"""How lines begin that call nothing of the backend: notes, and what makes or changes a request."""


def is_refusal(error: BaseException) -> bool:
    """Whether the specification raised an error on purpose: one of the three kinds, with a clause's label."""
    message = str(error)
    return isinstance(error, REFUSALS) and message.endswith(f"[{clause_of_message(message)}]")


def kind_of(error: BaseException) -> str:
    """The kind of an error: one of the three refusals (R1), or the name of its class."""
    return next((kind.__name__ for kind in REFUSALS if isinstance(error, kind)), type(error).__name__)


def clause_of_state(refusal: str) -> str:
    """The label that a wrong state after a refusal is charged to, by the label of the clause that refuses."""
    return refusal if refusal in _ATOMIC else "R1"


@dataclass(frozen=True)
class TracedStep:
    """A step that a machine took, or one of the operations that steps are made of.

    Attributes:
        name: the step's name, or the operation's.
        drawn: what it drew: values in their order; arguments by name for the first step of a sequence; for an
            operation its positional arguments, and behind them those by name.
        is_operation: whether it is an operation.
        made: the operations that a step was made of, in their order; None among them stands for any other call.
    """

    name: str
    drawn: Mapping[str, Any] | Sequence[Any]
    is_operation: bool = False
    made: list["TracedStep | None"] = field(default_factory=list, repr=False, compare=False)


class SpecificationError(CannotRunError):
    """The specification raised an error that is not a refusal: its own fault, not the backend's."""


class Deviation(Exception):
    """A backend did something else than the specification.

    Args:
        clause: the label of the clause that it breaks.
        expected: what the specification says.
        observed: what the backend did.
        calls: the calls that led there, the last one being the one that deviated.
        before: the observable state before the last call.
        after: the specification's observable state after it.
        trace: the calls, or the steps that made them, so that they can be made again.
        observed_after: the backend's observable state after it.

    Attributes:
        raised: where the backend raised, frame by frame, if that is how it deviates; see `raising.frames`.
        inner: whether only the backend's own ``check()`` tells, a snapshot, or counters that no machine is about.
    """

    def __init__(
        self,
        clause: str,
        expected: str,
        observed: str,
        calls: tuple[str, ...],
        before: Mapping[str, str],
        after: Mapping[str, str],
        trace: tuple[TracedStep | Call, ...] = (),
        observed_after: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(f"{clause}: expected {expected}, observed {observed}")
        self.clause, self.expected, self.observed, self.calls = clause, expected, observed, calls
        self.before, self.after, self.trace = dict(before), dict(after), trace
        self.observed_after = dict(observed_after or {})
        self.raised: tuple[str, ...] = ()
        self.inner = False

    def __reduce__(self) -> tuple[Any, ...]:
        kept = self.clause, self.expected, self.observed, self.calls, self.before, self.after, self.trace
        return type(self), (*kept, self.observed_after), {"raised": self.raised, "inner": self.inner}

    def without_trace(self) -> "Deviation":
        """The same without its steps, which may hold anything."""
        kept = self.clause, self.expected, self.observed, self.calls, self.before, self.after
        found = Deviation(*kept, observed_after=self.observed_after)
        found.raised, found.inner = self.raised, self.inner
        return found

    @property
    def num_calls(self) -> int:
        """How many calls on the backend it takes, its construction included; what only changes a request is none."""
        return sum(map(is_call, self.calls))

    @property
    def size(self) -> tuple[int, int, int]:
        """How long the sequence of calls is; the shortest one is kept."""
        return self.num_calls, len(self.calls), sum(map(len, self.calls))


def is_call(line: str) -> bool:
    """Whether a line of a sequence of calls calls the backend: no note, and not what makes or changes a request."""
    return _NO_CALL.match(line) is None


@dataclass(frozen=True)
class Outcome:
    """How a call ended.

    Attributes:
        value: what it returned.
        error: what it raised, None if it returned.
    """

    value: Any = None
    error: BaseException | None = None

    @property
    def kind(self) -> str:
        """The kind of error that it raised, see `kind_of`; "" if it returned."""
        return "" if self.error is None else kind_of(self.error)

    @property
    def clause(self) -> str:
        """The label of the clause by which it was refused."""
        return clause_of_message(str(self.error))

    def __str__(self) -> str:
        if self.error is None:
            return repr(self.value)
        message = " ".join(str(self.error).split())
        return f"raised {type(self.error).__name__}" + (f": {message}" if message else "")


def attempt(act: Callable[[], Any]) -> Outcome:
    """Makes a call and catches whatever it raises: a backend may raise anything, and that is a verdict."""
    try:
        return Outcome(value=act())
    except Ending:
        raise
    except BaseException as error:
        return Outcome(error=error)
