"""Runs the machines against a backend, and says for each clause what came of it."""

import tempfile
import time
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypedDict, Unpack

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity, configuration
from hypothesis.errors import Flaky, HypothesisException
from hypothesis.stateful import run_state_machine_as_test

from kvproof.spec.clauses import CLAUSES

from .backends import Backend
from .deviation import Deviation
from .emitting import Script
from .levels import Level
from .machines import EVERY_MACHINE, MACHINES, Machine
from .properties import clauses_of_machine
from .session import EnoughError, Session
from .shortening import shorten
from .step_timeout import Board, Watch
from .verdicts import MachineReport, Report, Verdict

__all__ = ["MachineReport", "Report", "Search", "Verdict", "check", "machines_for", "run", "run_machine"]

_SHORT_STEPS = 8

_SOON = 5.0
"""Seconds: where a step takes longer until it is stopped, the calls before it are left as many as they are."""

_TRIES = 12
"""So many stopped steps are worth the time for making the calls before one fewer."""


class Search(TypedDict, total=False):
    """How machines search; `run_machine` says what each option means."""

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
    return [
        machine
        for name, machine in EVERY_MACHINE.items()
        if name in allowed and level in machine.levels and wanted & clauses_of_machine(machine)
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
    shrink_seconds: float = 8.0,
    level: Level = "exact",
    seconds: float = 0.0,
    effort: float = 1.0,
    step_timeout: float = 0.0,
    found_by: str = "",
    board: Board | None = None,
) -> MachineReport:
    """Runs one machine.

    After a deviation it goes on without the clause that deviates, so that one deviation does not hide the others:
    until nothing new is found, or the time for that is over.

    Args:
        machine: the machine.
        backend: the backend.
        seed: the seed of what is drawn; the same seed makes the same calls.
        clauses: the labels of the clauses to look at.
        examples: sequences of calls; None for as many as the machine has by default, times ``effort``.
        shrink_seconds: how long each counterexample may be made shorter, and half of that again.
        level: the level at which it compares.
        seconds: how long after its beginning the machine may go on after a deviation; 0 to stop at the first.
        effort: see ``examples``.
        step_timeout: how long a step may take; 0 for as long as it likes. What takes longer ends the machine, if
            this runs in the main thread and the call runs Python.
        found_by: the command that runs it, for tests made of the deviations; "" to make none.
        board: where to show what is called, for who ends the process if the call does not run Python.

    Raises:
        BackendError: what the backend says to lack is unknown.
    """
    looked_at = frozenset(clauses)
    checked = clauses_of_machine(machine) & looked_at
    missing = machine.missing(backend)
    if missing:
        return MachineReport(machine.name, checked, missing=missing, level=level)
    count = max(round(machine.examples * effort), 1) if examples is None else examples
    started = time.monotonic()
    known: set[str] = set()
    rounds: list[Session] = []
    scripts: list[Script | None] = []
    watch = Watch(step_timeout, board)
    with _no_traces(), watch.watching():
        while True:
            few = max(count / machine.examples, 1.0)
            session = Session(backend, looked_at - known, shrink_seconds, few, level, known, watch=watch)
            rounds.append(session)
            bound: type[Machine] = type(machine.__name__, (machine,), {"session": session})
            _explore(bound, session, seed, count)
            if watch.hung:
                _shorten_stopped(bound, session)
                break
            shorten(bound, session, 1.5 * shrink_seconds)
            if session.shortest is None:
                break
            known.add(session.shortest.clause)
            scripts += [_script(bound, session.shortest, found_by)] if found_by else []
            if time.monotonic() > started + seconds or known >= checked:
                break
    merged = _merged(machine.name, checked, rounds, time.monotonic() - started)
    first = rounds[0].first_at - started if rounds[0].deviations else 0.0
    return replace(merged, scripts=[script for script in scripts if script is not None], seconds_to_first=first)


def _script(machine: type[Machine], found: Deviation, found_by: str) -> Script | None:
    """A test made of a deviation."""
    from .emitting import script_of  # it knows all machines, and is needed by few

    return script_of(machine, found, found_by)


def _shorten_stopped(machine: type[Machine], session: Session) -> None:
    """Makes the calls before one that did not return fewer, where it can be told soon that it does not."""
    watch = session.watch
    soon = max(1.0, 10 * watch.longest)
    if soon <= _SOON:
        watch.seconds = min(watch.limit, soon)
        shorten(machine, session, _TRIES * watch.seconds)


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
        level=rounds[-1].level,
        ended=rounds[-1].shortest is None and not rounds[-1].watch.hung,
        note=rounds[-1].watch.note or rounds[0].note,
    )


def _explore(machine: type[Machine], session: Session, seed: int, examples: int) -> None:
    """Lets Hypothesis draw sequences of calls; the session keeps what they find.

    A third of them are short and come first: what they find is soon made shorter still. A machine that draws nothing
    is walked through.
    """
    walk = getattr(machine, "walk", None)
    if walk is not None:
        walk(examples)
        return
    for count, steps in (
        (examples // 3, min(_SHORT_STEPS, machine.num_steps)),
        (examples - examples // 3, machine.num_steps),
    ):
        if count and session.shortest is None:
            _draw(machine, session, seed, count, steps)


def _draw(machine: type[Machine], session: Session, seed: int, examples: int, steps: int) -> None:
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
    )
    try:
        run_state_machine_as_test(bound, settings=settings)
    except (Deviation, EnoughError):
        pass  # the session has it
    except (Flaky, HypothesisException, BaseExceptionGroup):
        # A backend need not be deterministic, and then Hypothesis cannot repeat what it saw; we saw it.
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
