"""What a backend raises is a verdict that says where; what the user sends ends the run, with what was found so far."""

import functools
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import pytest

from kvproof.conformance.backends import raising
from kvproof.conformance.backends.raising import IN_THE_CALL, Interrupted, frames, interruptible
from kvproof.conformance.calls.deviation import attempt
from kvproof.conformance.cli import main
from kvproof.conformance.report.verdicts import Report

BACKEND = """
import sys, time, types
from kvproof import fast

print("imported, says the backend")

class Pool(fast.PagePool):
    def free_pages(self, ordered_pages):
        print("freeing, says the backend")
        self.deeper()

def pool(deeper):
    return types.SimpleNamespace(PagePool=type("Pool", (Pool,), {"deeper": deeper}))

def fail(self): raise OSError("disk full")
def leave(self): sys.exit(3)
def interrupt(self): raise KeyboardInterrupt
class Telling(fast.PagePool):
    calls = 0

    def free_pages(self, ordered_pages):
        super().free_pages(ordered_pages)
        Telling.calls += 1
        if Telling.calls == 25:
            print("so many steps", flush=True)

telling = types.SimpleNamespace(PagePool=Telling)
failing, leaving, interrupting = pool(fail), pool(leave), pool(interrupt)
"""

IN_THIS_PROCESS = ["--jobs", "1", "--step-timeout", "0"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a backend's module, which every test imports again."""
    (tmp_path / "my_engine.py").write_text(BACKEND)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    for module in ("my_engine", "script", "an_import", "an_endless_import"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return tmp_path


class Checked(NamedTuple):
    """What a check returned and said."""

    status: int
    said: str
    errors: str


@pytest.fixture
def check(folder: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., Checked]:
    """Runs the command here, in the folder; its workers, where it has any, are processes of their own."""
    del folder

    def checked(*arguments: str) -> Checked:
        capfd.readouterr()
        return Checked(main(["check", *arguments]), *capfd.readouterr())

    return checked


@pytest.mark.parametrize("where", [[], IN_THIS_PROCESS], ids=["workers", "this process"])
@pytest.mark.parametrize(
    ("backend", "observed", "line"),
    [
        ("failing", "raised OSError: disk full", 'in fail: def fail(self): raise OSError("disk full")'),
        ("leaving", "raised SystemExit: 3", "in leave: def leave(self): sys.exit(3)"),
        ("interrupting", "raised KeyboardInterrupt", "in interrupt: def interrupt(self): raise KeyboardInterrupt"),
    ],
)
def test_what_a_backend_raises_is_a_verdict_with_its_frames(
    backend: str, observed: str, line: str, where: list[str], folder: Path, check: Callable[..., Checked]
) -> None:
    """POOL-5: in the terminal, in JSON and in JUnit's XML; what the backend prints stands in none of them."""
    few = ["--machines", "pool", "--clauses", "POOL-5", "--profile", "quick", "--seed", "1", *where]
    done = check("--backend", f"my_engine:{backend}", *few, "--json", "report.json", "--junit", "report.xml")
    assert done.status == 1, done.errors
    (found,) = json.loads((folder / "report.json").read_text())["machines"][0]["deviations"]
    assert found["observed"] == observed
    outer, inner = found["raised"]
    assert outer.startswith(f"{folder / 'my_engine.py'}:10 in free_pages: ")
    assert inner.startswith(f"{folder / 'my_engine.py'}:")
    assert inner.endswith(line)
    failure = ElementTree.parse(folder / "report.xml").find(".//failure")
    assert failure is not None
    for text in (done.said, failure.text or ""):
        assert f"    {outer}\n    {inner}\n" in text
        assert "says the backend" not in text
    assert "freeing, says the backend" in done.errors


def test_a_backend_that_leaves_while_it_is_imported_cannot_be_had(folder: Path, check: Callable[..., Checked]) -> None:
    (folder / "script.py").write_text("import sys\nsys.exit('usage: script FILE')\n")
    done = check("--backend", "script")
    assert done.status == 2
    assert "SystemExit: usage: script FILE (raised at" in done.errors
    assert "script.py:2 in <module>: sys.exit('usage: script FILE'))" in done.errors


def test_at_level_safe_leaving_is_no_refusal(check: Callable[..., Checked]) -> None:
    few = ["--machines", "safe-pool", "--profile", "quick", "--seed", "1", *IN_THIS_PROCESS]
    done = check("--backend", "my_engine:leaving", "--level", "safe", *few)
    assert done.status == 1, done.said + done.errors
    assert "observed    raised SystemExit: 3" in done.said


def test_frames_of_the_suite_are_left_out() -> None:
    def recurse(depth: int) -> None:
        if depth:
            recurse(depth - 1)
        raise LookupError

    error = attempt(lambda: recurse(50)).error
    assert error is not None
    told = frames(error)
    assert len(told) == 12
    assert f"... {52 - 11} more" in told
    assert told[0].startswith(f"{__file__}:")


def test_a_call_that_a_backend_does_not_take_has_no_frame_of_the_backend() -> None:
    error = attempt(functools.partial(len, 1)).error  # type: ignore[arg-type]
    assert error is not None
    assert frames(error) == (IN_THE_CALL,)


def test_an_interrupt_by_a_signal_is_no_outcome_of_a_call() -> None:
    def signalled() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)

    before = signal.getsignal(signal.SIGINT)
    with interruptible(signal.SIGINT), pytest.raises(Interrupted):
        attempt(signalled)
    assert signal.getsignal(signal.SIGINT) is before
    assert isinstance(attempt(lambda: (_ for _ in ()).throw(KeyboardInterrupt)).error, KeyboardInterrupt)


def test_an_import_is_ended_before_a_signal_interrupts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled modules that are broken off end the interpreter, and callbacks of imports lose what is raised."""
    text = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep({})\nis_whole = True\n"
    (folder / "an_import.py").write_text(text.format(0.2))
    (folder / "an_endless_import.py").write_text(text.format(1000))
    monkeypatch.syspath_prepend(folder)

    def import_and_wait() -> None:
        importlib.import_module("an_import")
        time.sleep(5)

    with interruptible(signal.SIGINT), pytest.raises(Interrupted):
        import_and_wait()
    assert sys.modules["an_import"].is_whole
    monkeypatch.setattr(raising, "_PATIENCE", 0.2)
    began = time.monotonic()
    with interruptible(signal.SIGINT), pytest.raises(Interrupted):
        importlib.import_module("an_endless_import")
    assert time.monotonic() - began < 5


def test_a_second_signal_loses_nothing_of_what_the_first_one_told() -> None:
    """The group gets a signal, and who started the processes sends one: the second came before the first was out."""

    def tells() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except Interrupted as first:
            first.reports.append("found so far")
            os.kill(os.getpid(), signal.SIGINT)
            raise

    with interruptible(signal.SIGINT, once=True), pytest.raises(Interrupted) as ended:
        tells()
    assert ended.value.reports == ["found so far"]


def test_a_clause_whose_machine_had_not_begun_is_left_by_the_interruption() -> None:
    report = Report("cut short", 0, ("TAB-1",), [], interrupted=True)
    assert report.verdict("TAB-1") == "undecided"
    assert report.why_left("TAB-1") == "the run was interrupted before a machine that checks it began"


@pytest.mark.parametrize("module", ["rich.console", "jax"])
def test_a_command_that_is_interrupted_while_it_imports_says_so_in_a_line(module: str, folder: Path) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "kvproof.conformance", "check", "--jobs", "1", "--seed", "1"]
    started = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert started.stderr is not None
    while started.stderr.readline().rpartition("|")[2].strip() != module:
        assert started.poll() is None
    os.killpg(started.pid, signal.SIGINT)
    said, errors = started.communicate(timeout=60)
    assert started.returncode == 2, said + errors
    assert "kvproof check: interrupted" in errors
    assert "Traceback" not in errors
    assert "Exception ignored" not in errors


def test_processes_that_have_just_been_started_say_nothing_of_an_interruption(folder: Path) -> None:
    arguments = ["check", "--jobs", "2", "--seed", "1", "--machines", "queue,pool", "--examples", "100000"]
    started = subprocess.Popen(
        [sys.executable, "-m", "kvproof.conformance", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert started.stdout is not None
    assert started.stdout.readline() == "seed 1\n"
    time.sleep(0.3)
    os.killpg(started.pid, signal.SIGINT)
    _, errors = started.communicate(timeout=60)
    assert started.returncode == 2
    assert errors.splitlines() == [
        "kvproof check: interrupted; the verdicts are on what was compared up to there",
    ]


@pytest.mark.parametrize(
    ("number", "where"),
    [(signal.SIGTERM, []), (signal.SIGINT, IN_THIS_PROCESS)],
    ids=["SIGTERM", "^C, no workers"],
)
def test_an_interrupted_check_tells_its_verdicts_so_far(number: int, where: list[str], folder: Path) -> None:
    """As a terminal does it: every process of the group gets the signal."""
    arguments = ["--backend", "my_engine:telling", "--machines", "pool", "--seed", "1", "--json", "report.json", *where]
    command = [sys.executable, "-m", "kvproof.conformance", "check", "--examples", "100000", *arguments]
    started = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert started.stderr is not None
    while "so many steps" not in started.stderr.readline():
        assert started.poll() is None
    os.killpg(started.pid, number)
    said, errors = started.communicate(timeout=60)
    assert started.returncode == 2, said + errors
    assert "interrupted; the verdicts are on what was compared up to there" in errors
    assert "Traceback" not in errors
    assert "telling shows no deviation up to where the run was interrupted, at level exact" in said
    assert "; interrupted" in said
    document = json.loads((folder / "report.json").read_text())
    assert document["interrupted"]
    (machine,) = document["machines"]
    assert machine["steps"] > 50
    assert machine["tried"]["POOL-5"] > 50
