"""Runs machines in several processes: what they find is what one process would find, sooner."""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

from .backends import load_backend
from .machines import MACHINES, TOGETHER
from .runner import MachineReport, run

__all__ = ["run_in_workers"]


def run_in_workers(
    backend: str, seed: int, clauses: Iterable[str], machines: Sequence[str], examples: int | None, jobs: int
) -> Iterator[MachineReport]:
    """Runs machines, some at a time; see `runner.run`.

    Each starts from the seed alone, so that nothing depends on which ends first. Machines that call the same compiled
    programs run one after another in one process, and begin first.

    Args:
        backend: the backend's name; each process loads it.
        seed: the seed of what is drawn.
        clauses: the labels of the clauses to look at.
        machines: the machines' names.
        examples: sequences of calls for each machine; None for as many as the machine has by default.
        jobs: how many processes there are.

    Yields:
        What each machine found, in the machines' order, without the steps that led there.
    """
    together = [name for name in machines if name in TOGETHER]
    tasks = ([together] if together else []) + [[name] for name in machines if name not in TOGETHER]
    with ProcessPoolExecutor(min(jobs, len(tasks)), mp_context=get_context("spawn")) as pool:
        ends = {names[0]: pool.submit(_run_machines, backend, seed, tuple(clauses), names, examples) for names in tasks}
        try:
            for name in sorted(ends, key=list(machines).index):
                yield from ends[name].result()
        finally:
            pool.shutdown(cancel_futures=True)


def _run_machines(
    backend: str, seed: int, clauses: tuple[str, ...], names: list[str], examples: int | None
) -> list[MachineReport]:
    reports = run(load_backend(backend), seed, clauses, [MACHINES[name] for name in names], examples)
    return [_without_steps(report) for report in reports]


def _without_steps(report: MachineReport) -> MachineReport:
    """A report that can be sent: what steps drew may be anything."""
    return replace(report, deviations=[found.without_trace() for found in report.deviations])
