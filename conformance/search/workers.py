"""Runs machines in processes of their own: what they find is what one process would find, sooner.

A process is also what a backend is kept in that does not return, or that ends the process: then it is ended, what it
called is read off its board, and another process goes on with the other machines.
"""

import atexit
import contextlib
import ctypes
import os
import signal
import time
import traceback
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any

from ..backends.loading import BackendError, load_backend
from ..backends.raising import Interrupted, interruptible
from ..backends.step_timeout import BOARD_SIZE, Board, InFlight, no_answer
from ..calls.deviation import Deviation, SpecificationError
from ..console.exit_status import CannotRunError
from ..machines import EVERY_MACHINE, TOGETHER
from ..machines.properties import clauses_of_machine
from .runner import MachineReport, Search, run_machine

__all__ = ["Task", "WorkerError", "ignore_interrupts", "interrupts_kept", "run_in_workers"]

_LOOK_AGAIN = 0.5
"""Seconds between two looks at the boards."""

_PATIENCE = 5.0
"""Seconds that a process has to tell what it has found when it is interrupted."""

_GRACE = 1.5
"""Seconds beyond its time after which a step is not expected any more to be ended from inside."""


class WorkerError(CannotRunError):
    """A process could not go on, and no call of the backend was in flight."""


@dataclass(frozen=True)
class Task:
    """What every process is told.

    Attributes:
        backend: the backend's name; each process loads it.
        without: the capabilities that it is said to lack.
        seed: the seed of what is drawn.
        clauses: the labels of the clauses to look at.
        examples: sequences of calls for each machine; None for as many as the machine has by default.
        search: how machines search; see `runner.run_machine`.
    """

    backend: str
    without: tuple[str, ...]
    seed: int
    clauses: tuple[str, ...]
    examples: int | None
    search: Search


def run_in_workers(task: Task, machines: Sequence[str], jobs: int) -> Generator[MachineReport, None, None]:
    """Runs machines, some at a time; see `runner.run`.

    Each starts from the seed alone, so that nothing depends on which ends first. Machines that call the same compiled
    programs run one after another in one process, and begin first.

    Args:
        task: what to run.
        machines: the machines' names.
        jobs: how many processes there are.

    Yields:
        What each machine found, in the machines' order, without the steps that led there.

    Raises:
        BackendError: a process could not load the backend.
        SpecificationError: the specification is wrong.
        WorkerError: a process failed, and no call of the backend was in flight.
        Interrupted: by a signal; its ``reports`` hold what was found up to there and not yet told.
    """
    together = [name for name in machines if name in TOGETHER]
    waiting = deque([together] if together else [])
    waiting.extend([name] for name in machines if name not in TOGETHER)
    found: dict[str, MachineReport] = {}
    told: set[str] = set()
    workers: list[_Worker] = []
    try:
        for name in machines:
            while name not in found:
                while waiting and len(workers) < jobs:
                    workers.append(_Worker(task))
                for worker in workers:
                    if not worker.names and waiting:
                        worker.give(waiting.popleft())
                wait([ready for worker in workers for ready in worker.signs], _LOOK_AGAIN)
                for worker in workers:
                    found.update((report.name, report) for report in worker.reports())
                for worker in [worker for worker in workers if worker.over]:
                    workers.remove(worker)
                    worker.stop()
                    waiting.extendleft([worker.names] if worker.names else [])
            yield found[name]
            told.add(name)
    except Interrupted as end:
        found |= {report.name: report for worker in workers for report in worker.so_far()}
        end.reports += [found[name] for name in machines if name in found and name not in told]
        raise
    finally:
        for worker in workers:
            worker.stop()


class _Worker:
    """A process, and what it was given to do.

    Attributes:
        names: the machines that it has still to run, the one that it runs first.
        over: whether it has ended, or has to be.
    """

    def __init__(self, task: Task) -> None:
        context = get_context("spawn")
        memory = context.RawArray(ctypes.c_char, BOARD_SIZE)
        self._connection, theirs = context.Pipe()
        # No daemon, which could not have processes of its own; so it is ended here, however this process ends.
        self._process = context.Process(target=_serve, args=(task, theirs, memory))
        with interrupts_kept():
            self._process.start()
            atexit.register(self._process.kill)
        theirs.close()
        self._task, self._board = task, Board(memory)
        self.names: list[str] = []
        self.over = False

    @property
    def signs(self) -> list[Any]:
        """What becomes ready when there is something to read, or when the process has ended."""
        return [self._connection, self._process.sentinel]

    def give(self, names: list[str]) -> None:
        """Gives the process machines to run."""
        self.names = names
        self._connection.send(names)

    def reports(self) -> list[MachineReport]:
        """What the process has found since the last call; at last, perhaps, that the backend did not return."""
        reports = []
        try:
            while self._connection.poll():
                report = self._connection.recv()
                if isinstance(report, Exception):
                    raise report
                reports.append(report)
                self.names = self.names[1:]
        except (EOFError, OSError):  # it has ended
            reports += self._ended()
            return reports
        if not self._process.is_alive() and not self._connection.poll():
            reports += self._ended()
        elif self._task.search.get("step_timeout"):
            seen, limit = self._board.read(), self._task.search["step_timeout"]
            if seen is not None and time.monotonic() > seen.since + limit * 1.1 + _GRACE:
                self._process.kill()
                reports += self._stopped(seen, no_answer(limit, limit))
        return reports

    def _ended(self) -> list[MachineReport]:
        """What is known of a process that has ended by itself."""
        self._process.join()
        code = self._process.exitcode or 0
        seen = self._board.read()
        if seen is None:
            raise WorkerError(f"the process that ran {', '.join(self.names) or 'no machine'} ended, exit status {code}")
        return self._stopped(seen, f"the process ended, by signal {-code}" if code < 0 else f"exit status {code}")

    def _stopped(self, seen: InFlight, observed: str) -> list[MachineReport]:
        """The report of the machine whose call was in flight."""
        self.over = True
        name, self.names = self.names[0], self.names[1:]
        machine = EVERY_MACHINE[name]
        looked_at = clauses_of_machine(machine).intersection(self._task.clauses)
        deviation = Deviation(seen.clause, seen.expected, observed, seen.calls, {}, {})
        return [
            MachineReport(
                name,
                looked_at,
                examples=seen.examples,
                steps=seen.steps,
                deviations=[deviation] if seen.clause in looked_at else [],
                seconds=time.monotonic() - seen.since,
                level=self._task.search.get("level", "exact"),
                ended=False,
                note=f"ended early, in {seen.step}: {observed}",
            )
        ]

    def so_far(self) -> list[MachineReport]:
        """What the process has found up to now, its machine being interrupted.

        It may have got the same signal and have ended already; then what it found is still to be read.
        """
        if not self.names:
            return []
        self._process.terminate()
        reports = []
        try:
            while self._connection.poll(_PATIENCE):
                report = self._connection.recv()
                reports += [report] if isinstance(report, MachineReport) else []
        except (EOFError, OSError):  # it has ended, as it should
            return reports
        return reports

    def stop(self) -> None:
        """Ends the process, in any case."""
        atexit.unregister(self._process.kill)
        self._process.kill()
        self._process.join()
        self._connection.close()


@contextlib.contextmanager
def interrupts_kept() -> Iterator[None]:
    """Within, ^C waits; in a process that is started here, until it says what it does about it."""
    resource_tracker.ensure_running()  # which is started with the first process, and lets signals through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_interrupts() -> None:
    """^C reaches all processes of a terminal; who started this one sees to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _serve(task: Task, connection: "Connection[Any, Any]", memory: Any) -> None:
    """What the process does: it runs the machines that it is given, until it is given none."""
    board = Board(memory)
    ignore_interrupts()
    signal.signal(signal.SIGTERM, lambda *_: None)  # outside of what is interruptible, as below
    os.dup2(2, 1)  # what a backend prints goes where errors go: the report stays readable
    try:
        # A second signal may come, as the group gets one and who started this sends one: what was found is told first.
        with interruptible(signal.SIGTERM, once=True):
            _run_machines(task, connection, board)
    except (BackendError, SpecificationError) as error:
        connection.send(error)
    except Interrupted as end:
        for report in end.reports:
            connection.send(_without_steps(report))
    except EOFError:
        return
    except BaseException:
        connection.send(WorkerError(traceback.format_exc()))


def _run_machines(task: Task, connection: "Connection[Any, Any]", board: Board) -> None:
    """Runs what is asked for, until nothing is any more."""
    backend = load_backend(task.backend, task.without)
    while True:
        for name in connection.recv():
            machine = EVERY_MACHINE[name]
            found = run_machine(machine, backend, task.seed, task.clauses, task.examples, board=board, **task.search)
            connection.send(_without_steps(found))


def _without_steps(report: MachineReport) -> MachineReport:
    """A report that can be sent: what steps drew may be anything."""
    return replace(report, deviations=[found.without_trace() for found in report.deviations])
