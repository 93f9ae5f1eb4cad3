"""Runs the machines against a backend, and says for each clause what came of it."""

import itertools
import math
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, TypedDict, Unpack

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity, configuration
from hypothesis.errors import HypothesisException
from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, HypothesisProvider
from hypothesis.stateful import run_state_machine_as_test

from kvproof.spec.clauses import CLAUSES

from ..backends.levels import Level
from ..backends.loading import Backend
from ..backends.raising import Interrupted, interruptible
from ..backends.step_timeout import Board, Watch
from ..calls.deviation import Deviation
from ..emitting import Script
from ..machines import EVERY_MACHINE, MACHINES, Machine
from ..machines.properties import clauses_of_machine
from ..machines.session import EnoughError, Session
from ..report.verdicts import MachineReport, Report, Verdict
from .shortening import make_again, shorten

__all__ = [
    "PROFILES",
    "MachineReport",
    "Profile",
    "Report",
    "Search",
    "Verdict",
    "check",
    "machines_for",
    "run",
    "run_machine",
    "seeded_draws",
]


SHRINKING = 3.0
"""Steps for making one counterexample shorter, in multiples of those that a machine takes by default."""

GOING_ON = 12.0
"""Steps after which a machine does not go on after another deviation, in the same unit."""

_SHORT_STEPS = 8

_SOON = 5.0
"""Seconds: where a step takes longer until it is stopped, the calls before it are left as many as they are."""

_STOPPED_STEPS = 100
"""The most steps taken to shorten the calls before one that does not return: many of them do not return either."""


class Search(TypedDict, total=False):
    """How machines search; `run_machine` says what each option means."""

    shrinking: float
    going_on: float
    shrink_seconds: float
    level: Level
    seconds: float
    effort: float
    step_timeout: float
    found_by: str


def machines_for(
    clauses: Iterable[str], names: Iterable[str] | None = None, level: Level = "exact"
) -> list[type[Machine]]:
    """The machines that check any of some clauses, in the order in which they run.

    Args:
        clauses: the clauses' labels.
        names: the machines to choose from; None for all.
        level: the level at which they compare.
    """
    wanted, allowed = set(clauses), set(MACHINES if names is None else names)
    way: Level = "safe" if level == "sound" else level
    return [
        machine
        for name, machine in EVERY_MACHINE.items()
        if name in allowed and way in machine.levels and wanted & clauses_of_machine(machine)
    ]


def check(
    backend: Backend,
    seed: int,
    clauses: Iterable[str] = CLAUSES,
    machines: Iterable[type[Machine]] | None = None,
    examples: int | None = None,
    **search: Unpack[Search],
) -> Report:
    """Runs machines one after another; see `run`."""
    chosen = tuple(clauses)
    return Report(backend.name, seed, chosen, list(run(backend, seed, chosen, machines, examples, **search)))


def run(
    backend: Backend,
    seed: int,
    clauses: Iterable[str] = CLAUSES,
    machines: Iterable[type[Machine]] | None = None,
    examples: int | None = None,
    **search: Unpack[Search],
) -> Generator[MachineReport, None, None]:
    """Runs machines one after another.

    Args:
        backend: the backend.
        seed: the seed of what is drawn; the same seed makes the same calls.
        clauses: the labels of the clauses to look at.
        machines: the machines; None for all that check any of the clauses.
        examples: sequences of calls for each machine; None for as many as the machine has by default.
        search: see `run_machine`.

    Yields:
        What a machine found, as soon as it has ended.
    """
    chosen = tuple(clauses)
    level = search.get("level", "exact")
    for machine in machines_for(chosen, level=level) if machines is None else machines:
        yield run_machine(machine, backend, seed, chosen, examples, **search)


def run_machine(
    machine: type[Machine],
    backend: Backend,
    seed: int,
    clauses: Iterable[str] = CLAUSES,
    examples: int | None = None,
    board: Board | None = None,
    **search: Unpack[Search],
) -> MachineReport:
    """Runs one machine.

    After a deviation it goes on without the clause that deviates, so that one deviation does not hide the others:
    until nothing new is found, or enough steps were taken. What a seed finds depends on no clock, unless limits of
    time are given or a step takes too long; the report notes where such a limit ended something.

    Args:
        machine: the machine.
        backend: the backend.
        seed: the seed of what is drawn; the same seed makes the same calls.
        clauses: the labels of the clauses to look at.
        examples: sequences of calls; None for as many as the machine has by default, times ``effort``.
        board: where to show what is called, for who ends the process if the call does not run Python.
        search: how it searches; what is left out is as a default check has it, but that the first deviation ends it.
            ``effort``: see ``examples``.
            ``shrinking``: steps that may be taken to make one counterexample shorter, in multiples of those that the
            machine takes by default.
            ``going_on``: steps after which it does not go on after another deviation, in the same unit.
            ``level``: the level at which it compares.
            ``shrink_seconds``: a limit of time for making one counterexample shorter; none by default.
            ``seconds``: a limit of time after which it does not go on after another deviation; 0, the default, to
            stop at the first one.
            ``step_timeout``: seconds that a step may take; 0, the default, for as long as it likes. What takes longer
            ends the machine, if this runs in the main thread and the call runs Python.
            ``found_by``: the command that runs it, for tests made of the deviations; "", the default, to make none.

    Raises:
        BackendError: what the backend says to lack is unknown.
        Interrupted: by a signal; its ``reports`` hold what was found up to there.
    """
    looked_at = frozenset(clauses)
    checked = clauses_of_machine(machine) & looked_at
    level = search.get("level", "exact")
    missing = machine.missing(backend)
    if missing:
        return MachineReport(machine.name, checked, missing=missing, level=level)
    count = max(round(machine.examples * search.get("effort", 1.0)), 1) if examples is None else examples
    watch = Watch(search.get("step_timeout", 0.0), board)
    rounds = _Rounds(machine, backend, looked_at, count, search, watch)
    with _no_traces(), watch.watching(), interruptible(signal.SIGINT):
        try:
            while rounds.take(seed):
                pass
        except Interrupted as end:
            end.reports += [rounds.report("interrupted")] if rounds.sessions else []
            raise
    return rounds.report()


class _Rounds:
    """The rounds of one machine: each leaves out the clauses by which those before it saw the backend deviate.

    Args:
        machine: the machine.
        backend: the backend.
        looked_at: the labels of the clauses to look at.
        count: sequences of calls in a round.
        search: how it searches; see `run_machine`.
        watch: stops steps that take too long.

    Attributes:
        sessions: what each round did.
    """

    def __init__(
        self,
        machine: type[Machine],
        backend: Backend,
        looked_at: frozenset[str],
        count: int,
        search: Search,
        watch: Watch,
    ) -> None:
        self._machine, self._backend, self._looked_at, self._count = machine, backend, looked_at, count
        self._checked = clauses_of_machine(machine) & looked_at
        self._level: Level = search.get("level", "exact")
        self._found_by = search.get("found_by", "")
        self._watch = watch
        self._budget = _Budget(machine, search)
        self._known: set[str] = set()
        self._scripts: list[Script | None] = []
        self.sessions: list[Session] = []

    def take(self, seed: int) -> bool:
        """Takes a round; returns whether another shall follow."""
        effort = max(self._count / self._machine.examples, 1.0)
        clauses = self._looked_at - self._known
        session = Session(self._backend, clauses, effort, self._level, self._known, watch=self._watch)
        self.sessions.append(session)
        bound: type[Machine] = type(self._machine.__name__, (self._machine,), {"session": session})
        _explore(bound, session, seed, self._count)
        if self._watch.hung:
            _shorten_stopped(bound, session)
            return False
        session.settle()
        budget, calls = self._budget, session.calls_in_a_step
        shortening = shorten(bound, session, round(budget.shrinking * calls), budget.shrink_seconds)
        budget.taken += session.steps + round(shortening / calls)
        if session.shortest is None:
            make_again(bound, session)
            return False
        self._known.add(session.shortest.clause)
        self._scripts += [_script(bound, session.shortest, self._found_by)] if self._found_by else []
        return not (self._known >= self._checked or budget.is_spent())

    def report(self, note: str = "") -> MachineReport:
        """What was found up to now; ``note``: why the rounds end before they do by themselves, if they do."""
        budget, first = self._budget, self.sessions[0]
        merged = _merged(self._machine.name, self._checked, self.sessions, time.monotonic() - budget.started)
        return replace(
            merged,
            scripts=[script for script in self._scripts if script is not None],
            seconds_to_first=first.first_at - budget.started if first.deviations else 0.0,
            ended=merged.ended and not note,
            note="; ".join(part for part in (merged.note, budget.note, note) if part),
        )


class _Budget:
    """How many steps one machine may take, and limits of time, if any were given.

    Args:
        machine: the machine.
        search: how it searches.

    Attributes:
        started: when it began, by the monotonic clock.
        taken: the steps taken so far.
        shrinking: the steps that may be taken to make one counterexample shorter.
        shrink_seconds: the limit of time for that.
        note: says that the search ended before nothing new was found; "" if it did not.
    """

    def __init__(self, machine: type[Machine], search: Search) -> None:
        self.started = time.monotonic()
        self.taken = 0
        usual = machine.examples * machine.num_steps
        self.shrinking = round(usual * search.get("shrinking", SHRINKING))
        self.shrink_seconds = search.get("shrink_seconds", math.inf)
        self._going_on = usual * search.get("going_on", GOING_ON)
        self._seconds = search.get("seconds", 0.0)
        self.note = ""

    def is_spent(self) -> bool:
        """Whether the machine does not go on after a deviation."""
        if time.monotonic() > self.started + self._seconds:
            self.note = f"did not go on after {self._seconds:g} s" if self._seconds else ""
            return True
        if self.taken > self._going_on:
            self.note = f"did not go on after {self.taken} steps"
            return True
        return False


def _script(machine: type[Machine], found: Deviation, found_by: str) -> Script | None:
    """A test made of a deviation."""
    from ..emitting import script_of  # it knows all machines, and is needed by few

    return script_of(machine, found, found_by)


def _shorten_stopped(machine: type[Machine], session: Session) -> None:
    """Makes the calls before one that did not return fewer, where it can be told soon that it does not."""
    watch = session.watch
    soon = max(1.0, 10 * watch.longest)
    if soon <= _SOON:
        watch.seconds = min(watch.limit, soon)
        shorten(machine, session, _STOPPED_STEPS)


def _merged(name: str, checked: frozenset[str], rounds: list[Session], seconds: float) -> MachineReport:
    """What a machine found in all of its rounds."""
    shortest: dict[str, Deviation] = {}
    tried: Counter[str] = Counter()
    for session in rounds:
        tried.update({clause: steps for clause, steps in session.tried.items() if clause in session.clauses})
        for clause, found in session.deviations.items():
            if clause not in shortest or found.size < shortest[clause].size:
                shortest[clause] = found
    return MachineReport(
        name,
        checked,
        lacks=sorted(set().union(*(session.lacks for session in rounds))),
        examples=sum(session.examples for session in rounds),
        steps=sum(session.steps for session in rounds),
        wasted=sum(session.wasted for session in rounds),
        tried=tried,
        deviations=sorted(shortest.values(), key=lambda found: found.size),
        undeclared=sorted(set().union(*(session.undeclared for session in rounds))),
        seconds=seconds,
        hits=sum(session.hits for session in rounds),
        drawn=sum((session.drawn for session in rounds), Counter()),
        unrepeated=next((session.unrepeated for session in rounds if session.unrepeated), ""),
        level=rounds[-1].level,
        ended=rounds[-1].shortest is None and not rounds[-1].watch.hung,
        note=rounds[-1].watch.note or next((session.note for session in rounds if session.note), ""),
    )


def _explore(machine: type[Machine], session: Session, seed: int, examples: int) -> None:
    """Lets Hypothesis draw sequences of calls; the session keeps what they find.

    A third of them are short and come first: what they find is soon made shorter still. Hypothesis makes the first
    example of each part of first options only; that of the second part would be that of the first one, and is left out.
    A machine that walks by itself is left to it: one that draws nothing, or draws without Hypothesis.
    """
    walk = getattr(machine, "walk", None)
    if walk is not None:
        walk(seed, examples)
        return
    short = examples // 3
    for part, (count, steps) in enumerate(
        ((short, min(_SHORT_STEPS, machine.num_steps)), (examples - short, machine.num_steps))
    ):
        if count and session.shortest is None:
            session.leaves_out = part
            with seeded_draws(seed, part) as draws:
                _draw(machine, session, draws, seed, count + part, steps)


def _draw(machine: type[Machine], session: Session, draws: str, seed: int, examples: int, steps: int) -> None:
    bound = hypothesis.seed(seed)(machine)
    settings = hypothesis.settings(
        max_examples=examples,
        stateful_step_count=steps,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        verbosity=Verbosity.quiet,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        print_blob=False,
        backend=draws,
    )
    try:
        run_state_machine_as_test(bound, settings=settings)
    except (Deviation, EnoughError):
        pass  # the session has it
    except (HypothesisException, BaseExceptionGroup):
        # Hypothesis takes the steps of a deviation again, which the session ends before the first one.
        if session.shortest is None:
            raise


@contextmanager
def _no_traces() -> Iterator[None]:
    """Keeps Hypothesis from leaving a directory where the user happens to be."""
    before = configuration.storage_directory(intent_to_write=False).path
    with tempfile.TemporaryDirectory(prefix="kvproof-") as directory:
        configuration.set_hypothesis_home_dir(Path(directory))
        try:
            yield
        finally:
            configuration.set_hypothesis_home_dir(before)


# -- Where Hypothesis draws from --------------------------------------------------------------------------------------


_NAME = "kvproof"


@contextmanager
def seeded_draws(seed: int, part: int) -> Iterator[str]:
    """Enters another way of drawing in Hypothesis' list: what follows from the seed and the example's number alone.

    Hypothesis' own way of drawing depends on more. It goes on from earlier examples, and stops where a backend answers
    the same calls in another way than before; and it draws the constants of those modules that happen to be imported,
    so that a seed means something else in another process. A backend whose answers are random ends no search here, and
    changes nothing in the examples that come after.

    Args:
        seed: the seed.
        part: the number of the part of a run, each of which draws other examples.

    Yields:
        Its name, for the setting ``backend``.
    """
    numbers = itertools.count()

    class Draws(HypothesisProvider):
        """The draws of one example."""

        def __init__(self, data: Any, /) -> None:
            super().__init__(data)
            self._random = Random(f"{seed}/{part}/{next(numbers)}")

        def _maybe_draw_constant(self, *_: Any, **__: Any) -> None:
            """Draws no constants of modules."""

    AVAILABLE_PROVIDERS[_NAME] = Draws
    try:
        yield _NAME
    finally:
        del AVAILABLE_PROVIDERS[_NAME]


# -- How long a check takes -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Profile:
    """How much is tried, and how long deviations are pursued.

    Attributes:
        about: what it is for.
        effort: sequences of calls, as a multiple of what a machine has by default.
        shrinking: steps for making each counterexample shorter, as a multiple of those that a machine takes by default.
        going_on: steps after which a machine does not go on after another deviation, in the same unit.
    """

    about: str
    effort: float
    shrinking: float
    going_on: float

    def search(self, first: bool) -> Search:
        """The options of `runner.run_machine`.

        Args:
            first: whether the first deviation ends the run.
        """
        seconds = 0.0 if first else math.inf
        return {"effort": self.effort, "shrinking": self.shrinking, "going_on": self.going_on, "seconds": seconds}


PROFILES = {
    "quick": Profile("half a minute: after every change", 0.1, SHRINKING / 4, GOING_ON / 6),
    "default": Profile("a few minutes", 1.0, SHRINKING, GOING_ON),
    "deep": Profile("hours: the default check again and again, each time with another seed", 1.0, SHRINKING, GOING_ON),
}
"""Every profile by its name."""
