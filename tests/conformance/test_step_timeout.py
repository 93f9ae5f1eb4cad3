"""Backends that do not return, or end the process: a deviation, not the end of the check."""

import importlib
import signal
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from kvproof.conformance.backends.loading import BackendError
from kvproof.conformance.backends.step_timeout import BOARD_SIZE, Board, NoAnswer, Watch
from kvproof.conformance.machines import MACHINES
from kvproof.conformance.search.runner import run_machine
from kvproof.conformance.search.workers import Task, run_in_workers
from kvproof.spec import CLAUSES, CachePage, PagePool

from .broken import backend

SECONDS = 0.3


class Loops(PagePool):
    """Never returns from freeing three pages, whatever is raised meanwhile."""

    def free_pages(self, ordered_pages: Iterable[CachePage]) -> None:
        pages = list(ordered_pages)
        while len(pages) > 2:
            try:
                time.sleep(0.01)
            except Exception:
                continue
        super().free_pages(pages)


IN_C = '''
import os
import signal
from types import SimpleNamespace

from kvproof.spec import CachePage, FreeCachePageQueue, PagePool


class Stuck(PagePool):
    """Waits in C, where no signal comes."""

    def get_usage(self):
        if self.get_num_free_pages() < 2:
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
            os.read(os.pipe()[0], 1)
        return super().get_usage()


class Dies(FreeCachePageQueue):
    """Takes the process with it."""

    def popleft(self):
        os.kill(os.getpid(), signal.SIGKILL)


backend = SimpleNamespace(PagePool=Stuck, FreeCachePageQueue=Dies, CachePage=CachePage)
'''


def test_what_loops_in_python_is_stopped() -> None:
    before = signal.getsignal(signal.SIGALRM)
    found = run_machine(MACHINES["pool"], backend("loops", PagePool=Loops), 3, step_timeout=SECONDS)
    deviation = found.deviations[0]
    assert [each.clause for each in found.deviations] == ["POOL-5"]
    assert deviation.observed == "no answer within 0.3 s (step_timeout)"
    assert "free_pages" in deviation.calls[-1]
    assert deviation.num_calls <= 4
    assert not found.ended
    assert found.note in [
        f"ended early, in {step}: no answer within 0.3 s (step_timeout)" for step in ("free_pages", "forget")
    ]
    assert signal.getsignal(signal.SIGALRM) is before


def test_what_hangs_elsewhere_ends_the_machine_without_a_verdict() -> None:
    """A deviation from a clause that is not looked at is none; that it would hang again is enough to end."""
    hangs = backend("loops", PagePool=Loops)
    found = run_machine(MACHINES["pool"], hangs, 3, clauses=["POOL-10"], step_timeout=SECONDS)
    assert not found.deviations
    assert not found.ended
    assert not found.decides("POOL-10") or found.tried["POOL-10"] >= 200


def test_what_is_stuck_in_c_or_dies_is_ended_with_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kvproof_test_in_c.py").write_text(IN_C)
    monkeypatch.syspath_prepend(str(tmp_path))
    task = Task("kvproof_test_in_c:backend", (), 3, tuple(CLAUSES), 9, {"step_timeout": SECONDS})
    queue, pool = run_in_workers(task, ["queue", "pool"], jobs=1)
    assert (queue.name, pool.name) == ("queue", "pool")
    assert [found.observed for found in queue.deviations] == ["the process ended, by signal 9"]
    assert queue.deviations[0].calls[-1].startswith("queue.popleft()")
    assert [found.observed for found in pool.deviations] == ["no answer within 0.3 s (step_timeout)"]
    assert pool.deviations[0].calls[0].startswith("pool = PagePool(")
    assert {pool.ended, queue.ended} == {False}
    assert pool.steps > 0


def test_a_process_that_cannot_begin_is_no_verdict() -> None:
    task = Task("kvproof.no_such_module", (), 3, tuple(CLAUSES), 9, {})
    with pytest.raises(BackendError, match="no_such_module"):
        list(run_in_workers(task, ["queue"], jobs=1))


# -- The board, and the watch -----------------------------------------------------------------------


def test_a_board_shows_the_call_in_flight() -> None:
    memory = bytearray(BOARD_SIZE)
    writer, reader = Board(memory), Board(memory)
    assert reader.read() is None
    calls = ["pool = PagePool(3)"]
    writer.call(("pool", "construct", 1, 0), "POOL-3", "an object", calls)
    writer.end()
    assert reader.read() is None
    calls += ["pool.touch([]) \x00 \ud800"]
    writer.call(("pool", "touch", 1, 1), "POOL-6", "None", calls)
    seen = reader.read()
    assert seen is not None
    assert (seen.machine, seen.step, seen.examples, seen.steps) == ("pool", "touch", 1, 1)
    assert (seen.clause, seen.expected, seen.calls[0]) == ("POOL-6", "None", calls[0])
    assert 0 <= time.monotonic() - seen.since < 60
    writer.end()
    writer.call(("pool", "construct", 2, 2), "POOL-3", "an object", ["pool = PagePool(4)"])
    seen = reader.read()
    assert seen is not None
    assert seen.calls == ("pool = PagePool(4)",), "another sequence of calls"


def test_a_board_that_is_full_shows_the_first_calls() -> None:
    board = Board(bytearray(BOARD_SIZE))
    board.call(("pool", "touch", 1, 1), "POOL-6", "x" * BOARD_SIZE, [f"call {n} {'x' * 999}" for n in range(99)])
    seen = board.read()
    assert seen is not None
    assert seen.calls[0].startswith("call 0 x")
    assert 60 < len(seen.calls) < 66


def test_a_watch_that_has_no_time_to_watch_does_nothing() -> None:
    watch = Watch()
    with watch.watching(), watch.over("R1", "None", []):
        pass
    assert watch.longest == 0.0


def test_the_outer_call_is_timed() -> None:
    watch = Watch(0.1)

    def call() -> None:
        with watch.over("R1", "None", []):
            with watch.over("POOL-3", "None", []):
                pass
            time.sleep(9)

    with watch.watching(), pytest.raises(NoAnswer):
        call()
    assert watch.pending == ("R1", "None")


def test_what_a_call_imports_is_not_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that is first needed in a call may take longer than that to import; an import that hangs is stopped.

    The modules let the timer ring themselves, so that nothing depends on how busy the machine is.
    """
    rings = "import signal\nsignal.raise_signal(signal.SIGALRM)\n"
    (tmp_path / "kvproof_slow.py").write_text(f"{rings}import kvproof_slower\n")
    (tmp_path / "kvproof_slower.py").write_text(rings)
    (tmp_path / "kvproof_stuck.py").write_text(rings * 2)
    monkeypatch.syspath_prepend(str(tmp_path))
    board = Board(bytearray(BOARD_SIZE))
    watch = Watch(600.0, board)
    begun: list[float] = []

    def see() -> None:
        seen = board.read()
        assert seen is not None
        begun.append(seen.since)

    def call(name: str) -> None:
        with watch.over("R1", "None", []):
            see()
            importlib.import_module(name)
            see()

    with watch.watching():
        call("kvproof_slow")
        assert begun[0] < begun[1], "who watches from outside sees it, too"
        assert watch.longest == 0.0
        with pytest.raises(NoAnswer):
            call("kvproof_stuck")
