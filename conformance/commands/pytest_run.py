"""What runs for the tests of `test_conformance`: the machines that the selected clauses need, once a session."""

import os
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path

import pytest

from kvproof.spec.clauses import CLAUSES

from ..adapters.peers import unknown_version
from ..backends.capabilities import CAPABILITIES, unknown_capabilities
from ..backends.loading import BackendError, load_backend
from ..console.named import words_of
from ..machines import MACHINES
from ..report.text import verdict_lines
from ..report.verdicts import MachineReport, Report
from ..report.xfails import Xfails, XfailsError, read_xfails
from ..search.runner import PROFILES, machines_for
from ..search.workers import Task, run_in_workers
from .devices import want_devices

__all__ = ["Run"]

_STEP_TIMEOUT = 60.0


class Run:
    """The machines run in processes of their own: what they do to JAX, to Hypothesis and to warnings stays there.

    Each runs when the first clause is to be told that it checks; a test waits for its own machines only.

    Args:
        config: what pytest was told.
        labels: the labels of the clauses that were selected; an example that deviates by another one is no verdict.

    Raises:
        pytest.UsageError: an option makes no sense.
    """

    def __init__(self, config: pytest.Config, labels: Sequence[str]) -> None:
        option = config.option
        without = words_of(option.kvproof_without)
        strange = unknown_capabilities(without)
        if strange:
            known = ", ".join(CAPABILITIES)
            raise pytest.UsageError(f"--kvproof-without: no {', '.join(strange)}; there are {known}")
        try:
            backend = load_backend(option.kvproof_backend, without)
            self._warning = unknown_version(backend)
            self._xfails = _read(option.kvproof_xfails)
        except (BackendError, XfailsError) as error:
            raise pytest.UsageError(str(error)) from error
        self._level, self._seed = option.kvproof_level, option.kvproof_seed
        self._machines = machines_for(labels, level=self._level)
        self._report = Report(backend.name, self._seed, tuple(labels), [])
        search = PROFILES[option.kvproof_profile].search(first=False)
        search |= {"level": self._level, "step_timeout": _STEP_TIMEOUT}
        self._task = Task(backend.name, tuple(without), self._seed, tuple(labels), None, search)
        self._profile = option.kvproof_profile
        self._running: Generator[MachineReport, None, None] | None = None

    def hold(self, label: str) -> None:
        """Ends a clause's test: it passes, fails with the verdict, or is skipped with a reason."""
        __tracebackhide__ = True
        needed = {machine.name for machine in machines_for([label], level=self._level)}
        if not needed:
            pytest.skip(f"no machine of level {self._level} checks {label}")
        self._wait_for(needed)
        report = Report(self._report.backend, self._seed, (label,), self._report.machines)
        verdict = report.verdict(label)
        told = [machine for machine in report.machines if label in machine.clauses]
        if verdict == "deviates":
            expected = self._xfails.expected(report, label)
            if expected is not None:
                pytest.xfail(expected.reason or f"expected by {self._xfails.file}:{expected.number}")
            pytest.fail("\n".join(self._lines(label, told)), pytrace=False)
        if verdict == "not offered":
            lacking = dict.fromkeys(name for machine in told for name in (*machine.missing, *machine.lacks))
            pytest.skip(f"not offered: {', '.join(lacking)}")
        if verdict == "undecided":
            pytest.skip("undecided: " + "; ".join(self._why(machine) for machine in told))

    def _wait_for(self, names: Iterable[str]) -> None:
        missing = set(names) - {machine.name for machine in self._report.machines}
        if missing and self._running is None:
            want_devices()
            jobs = 1 if "PYTEST_XDIST_WORKER" in os.environ else min(os.cpu_count() or 1, 2)
            self._running = run_in_workers(self._task, [machine.name for machine in self._machines], jobs)
        while missing and self._running is not None:
            machine = next(self._running)
            self._report.machines.append(machine)
            missing.discard(machine.name)

    def _lines(self, label: str, machines: Iterable[MachineReport]) -> Iterable[str]:
        """A verdict as the terminal shows it, with the command that comes to it again."""
        yield f"{label} broken by {self._report.backend}"
        for machine in machines:
            for found in machine.deviations:
                if found.clause == label:
                    yield f"  seen by machine {machine.name}"
                    yield from verdict_lines(found)
                    yield f"  again       {self._command(label, machine.name)}"

    def _command(self, label: str, machine: str) -> str:
        words = ["kvproof check", f"--backend {self._report.backend}", f"--machines {machine}", f"--clauses {label}"]
        words += [f"--seed {self._seed}"]
        words += [f"--level {self._level}"] if self._level != "exact" else []
        words += [f"--profile {self._profile}"] if self._profile != "default" else []
        words += [f"--without {','.join(self._task.without)}"] if self._task.without else []
        return " ".join(words)

    def _why(self, machine: MachineReport) -> str:
        seen = ", ".join(found.clause for found in machine.deviations)
        return machine.note or f"machine {machine.name} " + (f"ended at {seen}" if seen else "compared nothing by it")

    def remarks(self) -> list[str]:
        """What is said at the end: of an adapter's package, and of each expected deviation that did not come."""
        return [*([self._warning] if self._warning else []), *self._xfails.stale(self._report)]

    def close(self) -> None:
        """Ends the processes."""
        if self._running is not None:
            self._running.close()


def _read(file: str | None) -> Xfails:
    return Xfails() if file is None else read_xfails(Path(file), CLAUSES, MACHINES)
