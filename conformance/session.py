"""One machine's run against one backend: what is compared, what was found, and how much was tried."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from time import monotonic
from typing import Any, TypeVar
from zlib import crc32

from .backends import Backend
from .deviation import Deviation, TracedStep
from .levels import Level
from .step_timeout import Watch

__all__ = ["EnoughError", "Session", "TracedStep"]

T = TypeVar("T")


class EnoughError(BaseException):
    """Ends a run from inside: the time for making a counterexample shorter is over.

    No `Exception`, so that Hypothesis lets it pass like an interrupt.
    """


class Session:
    """What the examples of one machine share.

    Args:
        backend: the backend.
        clauses: the labels of the clauses that are compared. An example that deviates by another clause ends
            there without a verdict, since what follows would compare unlike states.
        shrink_seconds: how long a counterexample may be made shorter after it was found.
        effort: how many times as long as by default the machine runs.
        level: how strict the comparison is.
        known: the labels of clauses that the backend is known to break. What they refuse is not called: the backend
            would not refuse it, and nothing could be compared any more.
        watch: stops steps that take too long; None for steps that take as long as they like.
        kept: the first few things of each kind, where they were drawn by another session; see `one_of_few`.

    Attributes:
        examples: sequences of calls begun.
        steps: steps taken.
        wasted: steps that had nothing possible to do.
        tried: for each clause the steps in which it was compared.
        deviations: for each clause that the backend was seen to break, the shortest deviation.
        first_at: when the first deviation was seen, by the monotonic clock.
        lacks: what the backend was found not to offer, such as ``table.slot_mapping``.
        undeclared: (property, clause) compared though the property does not declare the clause.
        note: what else there is to say of the search, such as how much of a small world was seen.
    """

    def __init__(
        self,
        backend: Backend,
        clauses: Iterable[str],
        shrink_seconds: float,
        effort: float = 1.0,
        level: Level = "exact",
        known: Iterable[str] = (),
        kept: Mapping[str, Sequence[Any]] | None = None,
        watch: Watch | None = None,
    ) -> None:
        self.backend = backend
        self.level = level
        self.known = frozenset(known)
        self.watch = watch or Watch()
        self.clauses = frozenset(clauses)
        self.shrink_seconds = shrink_seconds
        self.effort = effort
        self.examples = 0
        self.steps = 0
        self.wasted = 0
        self.tried: Counter[str] = Counter()
        self.deviations: dict[str, Deviation] = {}
        self.lacks: set[str] = set()
        self.undeclared: set[tuple[str, str]] = set()
        self.note = ""
        self._deadline: float | None = None
        self.first_at = 0.0
        self.kept: dict[str, list[Any]] = {kind: list(few) for kind, few in (kept or {}).items()}

    def again(self, backend: Backend) -> "Session":
        """A session in which steps of this one can be taken again, on the same backend by another `Backend`."""
        more = self.effort, self.level, self.known, self.kept
        return Session(backend, self.clauses, self.shrink_seconds, *more, watch=self.watch)

    def refuses(self, clause: str) -> bool:
        """Whether a call is made that a clause refuses: not if nothing of what comes of it is looked at."""
        return clause not in self.known and not self.clauses.isdisjoint({clause, "R1"})

    @property
    def shortest(self) -> Deviation | None:
        """The shortest deviation of all; None if the backend was not seen to deviate."""
        return min(self.deviations.values(), key=lambda deviation: deviation.size, default=None)

    def begin_example(self) -> None:
        """Counts an example, or ends the run when shrinking has had its time."""
        if self._deadline is None:
            self.examples += 1
        elif monotonic() > self._deadline:
            raise EnoughError

    def one_of_few(self, kind: str, drawn: T, most: int) -> T:
        """One of the first few things of a kind that were drawn in this run: ``drawn``, or another in its place.

        What has to be compiled for each of them takes longer than all calls; another run draws others.

        Args:
            kind: what it is.
            drawn: what was drawn.
            most: how many there may be in a run of the usual length.
        """
        kept = self.kept.setdefault(kind, [])
        if drawn not in kept and len(kept) < ceil(most * self.effort):
            kept.append(drawn)
        found: T = drawn if drawn in kept else kept[crc32(repr(drawn).encode()) % len(kept)]
        return found

    def grant(self, seconds: float) -> None:
        """Grants more time, from now on, to make a counterexample shorter."""
        self._deadline = monotonic() + seconds

    def end_step(self, name: str, declared: Iterable[str], compared: set[str], wasted: bool) -> None:
        """Counts a step; steps made to shorten a counterexample are repetitions and count nothing."""
        self.undeclared |= {(name, clause) for clause in compared.difference(declared)}
        if self._deadline is None:
            self.steps += 1
            self.wasted += wasted
            self.tried.update(compared)

    def record(self, deviation: Deviation) -> None:
        """Keeps a deviation if it is the shortest of its clause."""
        if self._deadline is None:
            self.grant(self.shrink_seconds)
            self.first_at = monotonic()
        known = self.deviations.get(deviation.clause)
        if known is None or deviation.size < known.size:
            self.deviations[deviation.clause] = deviation
