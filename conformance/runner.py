"""Runs the machines against a backend, and says for each clause what came of it."""

import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity, configuration
from hypothesis.errors import Flaky, HypothesisException
from hypothesis.stateful import run_state_machine_as_test

from kvproof.spec.clauses import CLAUSES

from .backends import Backend
from .deviation import Deviation
from .machines import MACHINES, Machine
from .properties import properties_of
from .session import EnoughError, Session
from .shortening import shorten

__all__ = ["MachineReport", "Report", "Verdict", "check", "machines_for", "run", "run_machine"]

Verdict = Literal["conforms", "deviates", "undecided", "not offered"]

_SHORT_STEPS = 8

_ENOUGH_STEPS = 200
"""So many steps count for a clause even if its machine ended early, at a deviation from another clause."""


@dataclass(frozen=True)
class MachineReport:
    """What one machine found.

    Attributes:
        name: the machine.
        clauses: the clauses that it checks.
        missing: the names that it needs and the backend does not offer; if there are any, it did not run.
        lacks: what else the backend does not offer, so that the steps about it were left out.
        examples: sequences of calls that were made, until the first deviation if there is one.
        steps: steps in them.
        wasted: steps in them that had nothing possible to do.
        tried: for each clause the steps in which it was compared.
        deviations: the shortest deviation found for each clause, the shortest of all first.
        undeclared: (property, clause) compared though not declared; empty unless the suite has a fault.
        seconds: how long it took.
    """

    name: str
    clauses: frozenset[str]
    missing: list[str] = field(default_factory=list)
    lacks: list[str] = field(default_factory=list)
    examples: int = 0
    steps: int = 0
    wasted: int = 0
    tried: Counter[str] = field(default_factory=Counter)
    deviations: list[Deviation] = field(default_factory=list)
    undeclared: list[tuple[str, str]] = field(default_factory=list)
    seconds: float = 0.0


@dataclass(frozen=True)
class Report:
    """What a run found.

    Attributes:
        backend: the backend's name.
        seed: the run's seed.
        clauses: the labels of the clauses that were looked at.
        machines: what each machine found.
    """

    backend: str
    seed: int
    clauses: tuple[str, ...]
    machines: list[MachineReport]

    def tried(self, clause: str) -> int:
        """In how many steps a clause was compared."""
        return sum(machine.tried[clause] for machine in self.machines)

    def verdict(self, clause: str) -> Verdict:
        """What came of one clause.

        Returns:
            ``deviates`` if any machine saw that; ``conforms`` if it was compared by a machine that came to its
            end, or often enough by one that did not; ``not offered`` if the backend lacks what it is about;
            else ``undecided``.
        """
        checking = [machine for machine in self.machines if clause in machine.clauses]
        if any(found.clause == clause for machine in checking for found in machine.deviations):
            return "deviates"
        for machine in checking:
            if machine.tried[clause] and (not machine.deviations or machine.tried[clause] >= _ENOUGH_STEPS):
                return "conforms"
        if checking and all(m.missing or (m.lacks and not m.deviations and not m.tried[clause]) for m in checking):
            return "not offered"
        return "undecided"

    @property
    def deviates(self) -> bool:
        """Whether the backend deviates from any clause that was looked at."""
        return any(machine.deviations for machine in self.machines)


def machines_for(clauses: Iterable[str], names: Iterable[str] | None = None) -> list[type[Machine]]:
    """The machines that check any of some clauses, in the order in which they run.

    Args:
        clauses: the clauses' labels.
        names: the machines to choose from; None for all.
    """
    wanted, allowed = set(clauses), set(MACHINES if names is None else names)
    return [machine for name, machine in MACHINES.items() if name in allowed and wanted & _clauses_of(machine)]


def check(
    backend: Backend,
    seed: int,
    clauses: Iterable[str] = CLAUSES,
    machines: Iterable[type[Machine]] | None = None,
    examples: int | None = None,
) -> Report:
    """Runs machines one after another; see `run`."""
    chosen = tuple(clauses)
    return Report(backend.name, seed, chosen, list(run(backend, seed, chosen, machines, examples)))


def run(
    backend: Backend,
    seed: int,
    clauses: Iterable[str] = CLAUSES,
    machines: Iterable[type[Machine]] | None = None,
    examples: int | None = None,
) -> Iterator[MachineReport]:
    """Runs machines one after another.

    Args:
        backend: the backend.
        seed: the seed of what is drawn; the same seed makes the same calls.
        clauses: the labels of the clauses to look at.
        machines: the machines; None for all that check any of the clauses.
        examples: sequences of calls for each machine; None for as many as the machine has by default.

    Yields:
        What a machine found, as soon as it has ended.
    """
    chosen = tuple(clauses)
    for machine in machines_for(chosen) if machines is None else machines:
        yield run_machine(machine, backend, seed, chosen, examples)


def run_machine(
    machine: type[Machine],
    backend: Backend,
    seed: int,
    clauses: Iterable[str] = CLAUSES,
    examples: int | None = None,
    shrink_seconds: float = 8.0,
) -> MachineReport:
    """Runs one machine; see `run`."""
    looked_at = frozenset(clauses)
    checked = _clauses_of(machine) & looked_at
    missing = machine.missing(backend)
    if missing:
        return MachineReport(machine.name, checked, missing=missing)
    count = machine.examples if examples is None else examples
    session = Session(backend, looked_at, shrink_seconds, max(count / machine.examples, 1.0))
    started = time.monotonic()
    with _no_traces():
        bound: type[Machine] = type(machine.__name__, (machine,), {"session": session})
        _explore(bound, session, seed, count)
        shorten(bound, session, shrink_seconds / 2)
    return MachineReport(
        machine.name,
        checked,
        lacks=sorted(session.lacks),
        examples=session.examples,
        steps=session.steps,
        wasted=session.wasted,
        tried=Counter({clause: steps for clause, steps in session.tried.items() if clause in looked_at}),
        deviations=sorted(session.deviations.values(), key=lambda found: found.size),
        undeclared=sorted(session.undeclared),
        seconds=time.monotonic() - started,
    )


def _explore(machine: type[Machine], session: Session, seed: int, examples: int) -> None:
    """Lets Hypothesis draw sequences of calls; the session keeps what they find.

    A third of them are short and come first: what they find is soon made shorter still.
    """
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
        phases=(Phase.generate, Phase.shrink),
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


def _clauses_of(machine: type[Machine]) -> frozenset[str]:
    return frozenset(clause for found in properties_of(machine) for clause in found.clauses)
