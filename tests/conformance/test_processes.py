"""The commands as processes: what they leave behind, and by which status they end, whatever is done to them."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof import fast
from kvproof.conformance import record
from kvproof.conformance.cli import main
from kvproof.conformance.console.exit_status import CannotRunError
from kvproof.conformance.console.writing import require_writable, write_file
from kvproof.conformance.report.document import machine_from_json

KVPROOF = [sys.executable, "-m", "kvproof.conformance"]

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def kvproof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in an empty folder and in this process; returns its status and what it says of errors."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        return main(arguments), capsys.readouterr().err

    return run


def started(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*KVPROOF, *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.fixture
def log(tmp_path: Path) -> Path:
    layers = fast.FullAttentionSpec(page_size=4, num_kv_heads=1, head_size=8, dtype="float32")
    with record(fast.CacheManager(20, [fast.CacheGroupSpec(layers)], 64), tmp_path / "engine.log") as manager:
        request = fast.Request("a", list(range(9)))
        manager.allocate_slots(request, 9)
        manager.free(request)
    return tmp_path / "engine.log"


def test_serve_check_is_interrupted_and_ends_by_itself(tmp_path: Path) -> None:
    """JAX, broken off in the middle, ended the interpreter by SIGSEGV."""
    running = started(tmp_path, "serve-check", "--seed", "0", "--schedules", "1000")
    assert running.stdout is not None
    assert running.stdout.readline() == "seed 0\n"
    time.sleep(3.0)
    os.killpg(running.pid, signal.SIGINT)
    _, errors = running.communicate(timeout=60)
    assert running.returncode == 2, errors
    assert "kvproof serve-check: interrupted" in errors


def test_a_report_of_before_stays_until_there_is_another(kvproof: Run, tmp_path: Path) -> None:
    for name in ("report.json", "report.xml"):
        (tmp_path / name).write_text("of before")
    files = ["--json", "report.json", "--junit", "report.xml"]
    running = started(tmp_path, "check", "--machines", "pool", "--examples", "100000", "--seed", "1", *files)
    assert running.stdout is not None
    assert running.stdout.readline() == "seed 1\n"
    os.killpg(running.pid, signal.SIGKILL)
    running.communicate(timeout=60)
    assert kvproof("check", "--backend", "json", *files)[0] == 2
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "report.json": "of before",
        "report.xml": "of before",
    }


@pytest.mark.parametrize("command", [["show", "engine.log", "-o"], ["shrink", "engine.log", "-o"]])
def test_a_command_does_not_write_over_what_it_reads(command: list[str], log: Path, kvproof: Run) -> None:
    (log.parent / "link.log").symlink_to(log)
    before = log.read_bytes()
    for name in ("engine.log", "./engine.log", "link.log"):
        assert kvproof(*command, name) == (2, f"kvproof {command[0]}: {Path(name)}: is the file that is read\n")
    assert log.read_bytes() == before


def test_a_page_that_cannot_be_drawn_leaves_the_one_of_before(kvproof: Run, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("of before")
    (tmp_path / "engine.log").write_text("no log\n")
    assert kvproof("show", "engine.log", "-o", "page.html")[0] == 2
    assert (tmp_path / "page.html").read_text() == "of before"


@pytest.mark.parametrize("kind", ["\x1b[2J", "x\nkvproof replay: fine", "\u202ex" * 1000])
def test_a_header_commands_no_terminal(kind: str, kvproof: Run, tmp_path: Path) -> None:
    """SEC-4: one line, and nothing in it but what is printable."""
    (tmp_path / "trace.jsonl").write_text(json.dumps({"kvproof": kind, "version": 1}) + "\n")
    status, errors = kvproof("replay", "trace.jsonl")
    assert status == 2
    (line,) = errors.splitlines()
    assert line.isprintable()
    assert len(line) < 300


@pytest.mark.parametrize("command", ["serve-check", "check", "strength", "replay --synthetic 9"])
def test_a_negative_seed_is_refused(command: str, kvproof: Run) -> None:
    name, *arguments = command.split()
    assert kvproof(name, *arguments, "--seed", "-1") == (2, f"kvproof {name}: --seed -1 must not be negative\n")


JUNK = st.recursive(st.none() | st.integers() | st.text(max_size=3), lambda inner: st.lists(inner, max_size=2))
NAMES = ("machine", "clauses", "missing", "lacks", "sequences", "steps", "wasted", "tried", "deviations", "seconds")


@given(JUNK | st.dictionaries(st.sampled_from(NAMES), JUNK | st.dictionaries(st.text(max_size=3), JUNK)))
def test_a_machines_report_that_is_none_is_refused(document: Any) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        machine_from_json(document)


@pytest.mark.parametrize(
    "command", ["clauses", "check --examples 9 --machines queue --seed 1 --jobs 1 --step-timeout 0", "--help"]
)
def test_a_reader_that_leaves_changes_no_verdict(command: str, tmp_path: Path) -> None:
    """``kvproof ... | head -1``: the status 1 would say that the backend deviates."""
    running = started(tmp_path, *command.split())
    assert running.stdout is not None
    assert running.stdout.readline()
    running.stdout.close()
    assert running.stderr is not None
    with running.stderr:
        errors = running.stderr.read()
    assert running.wait(timeout=60) == 0, errors
    assert "BrokenPipe" not in errors


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    file, link = tmp_path / "a.json", tmp_path / "link.json"
    link.symlink_to(file)
    write_file(link, "one")
    file.chmod(0o640)
    with pytest.raises(UnicodeEncodeError):
        write_file(link, "two \ud800")
    assert file.read_text() == "one"
    write_file(link, "three")
    assert (file.read_text(), link.is_symlink(), file.stat().st_mode & 0o777) == ("three", True, 0o640)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "link.json"]
    write_file("/dev/null", "nothing is kept")
    for wrong in (tmp_path, tmp_path / "none" / "a.json"):
        with pytest.raises(CannotRunError, match=r"Is a directory|No such file"):
            require_writable(wrong)
