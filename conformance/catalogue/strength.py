"""How strong the suite is: what a default check finds of each seeded bug, how soon, and how short it can tell it.

Faults that show in what a whole engine answers are no machine's: of each the oracle's search is made, as `kvproof
serve-check` makes it, on a small engine with the fault.
"""

import functools
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import active_children, get_context
from statistics import median
from time import monotonic
from typing import Any

from ..backends.loading import load_backend
from ..calls.deviation import Deviation
from ..engine.small import small_engine
from ..machines import MACHINES
from ..oracle.judging import Plan, judge
from ..oracle.python_engine import PythonEngine
from ..oracle.relations import RELATIONS
from ..search.runner import PROFILES, MachineReport, run_machine
from ..search.workers import ignore_interrupts, interrupts_kept
from . import SEEDED_BUGS, SERVED_BUGS, SeededBug

__all__ = ["Finding", "Strength", "find_bug", "find_bugs"]

_PROFILE = PROFILES["default"]
_SHORT = 12
"""A counterexample of more calls is looked for in the small worlds as well."""

_SECONDS = 60.0
"""How long an engine may take for an answer, and a machine's step for its calls: some bugs go round for ever."""


@dataclass(frozen=True)
class Finding:
    """What came of one seeded bug.

    Attributes:
        bug: the bug's name.
        line: its number in the list of known faults.
        clause: the clause by which it was caught; "" if it was missed.
        machine: the machine whose counterexample is the shortest, or the oracle's relation; "" if it was missed.
        calls: the calls of that counterexample, requests that are made for them left out, or the requests that an
            engine is sent; 0 if it was missed.
        lines: the counterexample as a report shows it.
        examples: sequences of calls, or scripts of requests, until the bug was seen.
        seconds_to_catch: how long it took until it was seen.
        seconds: how long everything took, making the counterexample short included.
    """

    bug: str
    line: int
    clause: str
    machine: str
    calls: int
    lines: tuple[str, ...]
    examples: int
    seconds_to_catch: float
    seconds: float

    @property
    def caught(self) -> bool:
        """Whether the suite reports it by a clause that it breaks."""
        return bool(self.clause)


@dataclass(frozen=True)
class Strength:
    """What came of some seeded bugs.

    Attributes:
        findings: one for each, in the catalogue's order.
    """

    findings: tuple[Finding, ...]

    @property
    def caught(self) -> int:
        """How many were caught."""
        return sum(found.caught for found in self.findings)

    @property
    def median_calls(self) -> float:
        """The median length of the counterexamples, in calls; 0 if there is none."""
        return float(median(self._calls or [0]))

    @property
    def longest_calls(self) -> int:
        """The length of the longest counterexample; 0 if there is none."""
        return max(self._calls, default=0)

    @property
    def seconds(self) -> float:
        """How long all of them took, one after another."""
        return sum(found.seconds for found in self.findings)

    @property
    def _calls(self) -> list[int]:
        return [found.calls for found in self.findings if found.caught]


def find_bugs(names: Sequence[str], seed: int, jobs: int) -> Iterator[Finding]:
    """Runs the suite on some seeded bugs; see `find_bug`.

    Args:
        names: the bugs' names.
        seed: the seed of what is drawn.
        jobs: how many processes there are; 1 for this one alone.

    Yields:
        What came of each, as it ends.
    """
    if jobs == 1:
        yield from (find_bug(name, seed) for name in names)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=ignore_interrupts) as pool:
        try:
            with interrupts_kept():
                ends = [pool.submit(find_bug, name, seed) for name in names]
            for end in as_completed(ends):
                yield end.result()
        except BaseException:  # whoever ends this early does not wait for bugs that take minutes
            pool.shutdown(wait=False, cancel_futures=True)
            for process in active_children():
                process.kill()
            raise


def find_bug(name: str, seed: int) -> Finding:
    """Runs on one seeded bug what a default check runs, each machine with its default number of sequences of calls.

    The machine that must catch it comes first, and the others follow only while it is not caught: as each machine
    starts from the seed alone, a check that runs all of them catches it as well. It counts as caught where a machine
    reports it by one of the clauses that it breaks.

    Args:
        name: the bug's name.
        seed: the seed of what is drawn.
    """
    if name in SERVED_BUGS:
        return _judge(SERVED_BUGS[name], seed)
    bug = SEEDED_BUGS[name]
    reports: list[MachineReport] = []
    caught: list[tuple[Deviation, MachineReport]] = []
    order = [bug.machine, *(other for other in MACHINES if other != bug.machine)]
    for machine in order:
        reports.append(_run(bug, machine, seed, first=True))
        if reports[-1].deviations and not _caught(reports[-1], bug):
            reports.append(_run(bug, machine, seed, first=False))  # goes on behind what it came upon first
        caught += _caught(reports[-1], bug)
        if caught:
            break
    seen = sum(report.seconds for report in reports[:-1]) + reports[-1].seconds_to_first
    examples = sum(report.examples for report in reports)
    if caught and min(found.num_calls for found, _ in caught) > _SHORT:
        for world in (world for world in MACHINES if world.startswith("small-") and world != bug.machine):
            reports.append(_run(bug, world, seed, first=True))
            caught += _caught(reports[-1], bug)
    seconds = sum(report.seconds for report in reports)
    if not caught:
        return Finding(name, bug.line, "", "", 0, (), examples, seen, seconds)
    found, by = min(caught, key=lambda pair: pair[0].size)
    return Finding(name, bug.line, found.clause, by.name, found.num_calls, found.calls, examples, seen, seconds)


def _judge(bug: SeededBug, seed: int) -> Finding:
    """Judges an engine with a fault by the relation that must show it, and by the others while none does."""
    engine = functools.partial(small_engine, f"kvproof.conformance.catalogue:{bug.name}", *bug.setups)
    began, scripts = monotonic(), 0
    for relation in (bug.machine, *(other for other in RELATIONS if other != bug.machine)):
        judgement = judge(PythonEngine(engine, bug.name, _SECONDS), Plan(seed=seed, relations=(relation,)))
        scripts += sum(report.scripts for report in judgement.reports)
        for found in judgement.deviations:
            if found.clause in bug.clauses:
                told, seconds = tuple(found.script.lines()), monotonic() - began
                requests = found.script.num_requests
                return Finding(
                    *(bug.name, bug.line, found.clause, found.relation, requests, told, scripts, seconds, seconds)
                )
    seconds = monotonic() - began
    return Finding(bug.name, bug.line, "", "", 0, (), scripts, seconds, seconds)


def _caught(report: MachineReport, bug: SeededBug) -> list[tuple[Deviation, MachineReport]]:
    """The deviations of a report by which a bug is caught."""
    return [(found, report) for found in report.deviations if found.clause in bug.clauses]


def _run(bug: SeededBug, machine: str, seed: int, first: bool) -> MachineReport:
    """Runs one machine on a seeded bug; ``first``: whether the first deviation ends it."""
    backend: Any = load_backend(f"kvproof.conformance.catalogue:{bug.name}")
    search = _PROFILE.search(first) | {"step_timeout": _SECONDS}
    return run_machine(MACHINES[machine], backend, seed, **search)
