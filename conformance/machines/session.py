"""One machine's run against one backend: what is compared, what was found, and how much was tried."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import ceil
from time import monotonic
from typing import Any, TypeVar
from zlib import crc32

from kvproof.spec import CLAUSES

from ..backends.levels import Level
from ..backends.loading import Backend
from ..backends.raising import Ending
from ..backends.step_timeout import Watch
from ..calls.datum import Call
from ..calls.deviation import Deviation, TracedStep

__all__ = ["EnoughError", "Session", "TracedStep"]

T = TypeVar("T")

_NOTICED = {"POOL-3": "POOL-2", "MAN-5": "MAN-2"}
"""What level sound charges where taking pages, or giving back those of a live request, fails: whoever calls notices."""

_SAMPLED = 8
"""The number of examples of which one is made again where nothing deviates, to see whether it ends alike."""


class EnoughError(Ending):
    """Ends a run from inside: a deviation was found, or there were enough tries to make one shorter."""


class Session:
    """What the examples of one machine share.

    Args:
        backend: the backend.
        clauses: the labels of the clauses that are compared. An example that deviates by another clause ends
            there without a verdict, since what follows would compare unlike states.
        effort: how many times as long as by default the machine runs.
        level: how strict the comparison is, ``exact`` or ``safe``.
        gives_bad_input: whether calls are made that have to be refused.
        known: the labels of clauses that the backend is known to break. What they refuse is not called: the backend
            would not refuse it, and nothing could be compared any more.
        watch: stops steps that take too long; None for steps that take as long as they like.
        kept: the first few things of each kind, where they were drawn by another session; see `one_of_few`.
        repeats: whether the steps of another session are taken again: they count nothing, and a deviation among
            them does not end the run.

    Attributes:
        examples: sequences of calls begun.
        steps: steps taken.
        calls: calls and operations by which steps are known; see `Machine.records_calls`.
        wasted: steps that had nothing possible to do.
        tried: for each clause the steps in which it was compared.
        deviations: for each clause that the backend was seen to break, the shortest deviation.
        doubts: what no user saw, where a run finds nothing that one sees: what each inner field showed first, by
            `Field.every`. That of which the least counts: a backend's own ``check()`` before its snapshots.
        first_at: when the first deviation was seen, by the monotonic clock.
        lacks: what the backend was found not to offer, such as ``table.slot_mapping``.
        drawn: how often each method, argument and fault of the tables was drawn; see `Table.counted`.
        hits: look-ups that found a cached prefix.
        undeclared: (property, clause) compared though the property does not declare the clause.
        leaves_out: how many of the next examples are begun without taking any of their steps.
        repeats: whether the steps of another session are taken again.
        samples: some of the sequences of calls, to be made again: the steps, and the calls with what came of them.
        unrepeated: how calls ended otherwise when they were made again; "" if they did not.
        note: what else there is to say of the search, such as how much of a small world was seen.
    """

    def __init__(
        self,
        backend: Backend,
        clauses: Iterable[str],
        effort: float = 1.0,
        level: Level = "exact",
        known: Iterable[str] = (),
        kept: Mapping[str, Sequence[Any]] | None = None,
        watch: Watch | None = None,
        repeats: bool = False,
    ) -> None:
        self.backend = backend
        self.level: Level = "safe" if level == "sound" else level
        self.gives_bad_input = level != "sound"
        self.known = frozenset(known)
        self.watch = watch or Watch()
        self.clauses = frozenset(clauses)
        self.effort = effort
        self.examples = 0
        self.steps = 0
        self.calls = 0
        self.wasted = 0
        self.tried: Counter[str] = Counter()
        self.hits = 0
        self.drawn: Counter[str] = Counter()
        self.deviations: dict[str, Deviation] = {}
        self.doubts: dict[int, Deviation] = {}
        self.lacks: set[str] = set()
        self.undeclared: set[tuple[str, str]] = set()
        self.note = ""
        self.leaves_out = 0
        self.samples: list[tuple[tuple[TracedStep | Call, ...], tuple[str, ...]]] = []
        self.unrepeated = ""
        self.first_at = 0.0
        self.repeats = repeats
        self.kept: dict[str, list[Any]] = {kind: list(few) for kind, few in (kept or {}).items()}
        self._left: dict[str, list[Any]] = {}

    def again(self, backend: Backend, by_all: bool = False) -> "Session":
        """A session in which steps of this one can be taken again, on the same backend by another `Backend`.

        Args:
            backend: the backend.
            by_all: whether all clauses are looked at: those that this session leaves out, too.
        """
        level: Level = self.level if self.gives_bad_input else "sound"
        clauses, known = (CLAUSES, ()) if by_all else (self.clauses, self.known)
        return Session(backend, clauses, self.effort, level, known, self.kept, watch=self.watch, repeats=True)

    def refuses(self, clause: str) -> bool:
        """Whether a call is made that a clause refuses: not if nothing of what comes of it is looked at."""
        return self.gives_bad_input and clause not in self.known and not self.clauses.isdisjoint({clause, "R1"})

    def noticed(self, clause: str) -> str:
        """What a call without a mistake that fails is charged to: at level sound to a clause that is looked at."""
        return clause if self.gives_bad_input else _NOTICED.get(clause, clause)

    @property
    def shortest(self) -> Deviation | None:
        """The shortest deviation of all; None if the backend was not seen to deviate."""
        return min(self.deviations.values(), key=lambda deviation: deviation.size, default=None)

    def begin_example(self) -> bool:
        """Counts an example; returns whether its steps are taken.

        Ends the run where a deviation was found: Hypothesis would take its steps again.
        """
        if self.repeats:
            return True
        if self.deviations:
            raise EnoughError
        if self.leaves_out:
            self.leaves_out -= 1
            return False
        self.examples += 1
        return True

    def end_example(self, steps: Sequence[TracedStep | Call], calls: Sequence[str]) -> None:
        """Keeps one of a number of examples as a sample.

        Args:
            steps: the steps of the example.
            calls: its calls, each with what came of it.
        """
        if not self.repeats and not self.deviations and self.examples % _SAMPLED == 0:
            self.samples.append((tuple(steps), tuple(calls)))

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

    def dealt(self, kind: str, options: Iterable[T], choose: Callable[[int], int]) -> T:
        """One of some options, each of which comes once in this run before one comes again.

        Args:
            kind: what it is.
            options: the options, in their order.
            choose: draws the place of one among those left, of which it is told the number.
        """
        left = self._left.setdefault(kind, [])
        if not left:
            left += options
        found: T = left.pop(choose(len(left)))
        return found

    def end_step(self, name: str, declared: Iterable[str], compared: set[str], wasted: bool) -> None:
        """Counts a step; repetitions count nothing."""
        self.undeclared |= {(name, clause) for clause in compared.difference(declared)}
        if not self.repeats and not self.deviations:
            self.steps += 1
            self.wasted += wasted
            self.tried.update(compared)

    @property
    def calls_in_a_step(self) -> float:
        """By how many calls a step is known in the mean; 1 where it is known by what it drew."""
        return max(self.calls / max(self.steps, 1), 1.0)

    def note_call(self) -> None:
        """Counts a call or an operation by which a step is known; repetitions count nothing."""
        self.calls += not self.repeats and not self.deviations

    def note_drawn(self, names: Iterable[str]) -> None:
        """Counts what was drawn; repetitions count nothing."""
        if not self.repeats and not self.deviations:
            self.drawn.update(names)

    def settle(self) -> None:
        """Ends the search: where nothing that a user sees was found, what else was found is a deviation."""
        if self.doubts and not self.deviations:
            self.record(self.doubts[min(self.doubts)])

    def record(self, deviation: Deviation) -> None:
        """Keeps a deviation if it is the shortest of its clause."""
        if not self.deviations:
            self.first_at = monotonic()
        known = self.deviations.get(deviation.clause)
        if known is None or deviation.size < known.size:
            self.deviations[deviation.clause] = deviation
