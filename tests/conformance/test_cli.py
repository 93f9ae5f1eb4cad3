import argparse
import importlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import pytest

import kvproof.spec
from kvproof.conformance import load_backend
from kvproof.conformance.cli import main
from kvproof.conformance.oracle.relations import RELATIONS
from kvproof.spec import CLAUSES

from .broken import FreesBackwards


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a backend that deviates."""
    module = ModuleType("a_broken_backend")
    module.__dict__.update({"holder": type("Holder", (), {"PagePool": FreesBackwards, "sha256": kvproof.spec.sha256})})
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return f"{module.__name__}:holder"


ASKED = {relation.clause for relation in RELATIONS.values()}
"""The clauses of what whole engines answer: no machine checks them."""


def test_a_backend_that_conforms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["check", "--backend", "kvproof.spec", "--examples", "20", "--machines", "queue,table", "--seed", "3"]
    assert main([*arguments, "--json", "report.json", "--jobs", "1", "--step-timeout", "0"]) == 0
    printed = capsys.readouterr().out
    assert "seed 3" in printed
    assert "kvproof.spec conforms, at level exact, seed 3" in printed
    report = json.loads(Path("report.json").read_text())
    assert (report["seed"], report["deviates"]) == (3, False)
    assert [entry["clause"] for entry in report["clauses"]] == [label for label in CLAUSES if label not in ASKED]
    verdicts = {entry["clause"]: entry["verdict"] for entry in report["clauses"]}
    assert (verdicts["TAB-2"], verdicts["MAN-2"]) == ("conforms", "undecided")
    assert [entry["machine"] for entry in report["machines"]] == ["queue", "table"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.json"], "nothing is left behind"


def test_a_backend_that_deviates(broken: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "report.json"
    arguments = ["check", "--backend", broken, "--clauses", "POOL-3", "--machines", "pool", "--seed", "1"]
    assert main([*arguments, "--profile", "quick", "--json", str(file)]) == 1
    printed = capsys.readouterr().out
    assert "deviates" in printed
    assert "pool.free_pages" in printed
    assert "before the last call" in printed
    pool = next(entry for entry in json.loads(file.read_text())["machines"] if entry["machine"] == "pool")
    deviation = pool["deviations"][0]
    assert deviation["clause"] == "POOL-3"
    assert deviation["sentence"] == CLAUSES["POOL-3"].sentence
    assert "free_pages" in deviation["calls"][-1]
    assert deviation["after"] != deviation["observed_after"]


def test_several_processes_find_what_one_finds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for jobs, seconds in (("1", "0"), ("2", "60")):
        file = tmp_path / f"{jobs}.json"
        arguments = [
            "--backend",
            "kvproof.conformance.catalogue:stale_ids_after_add",
            "--machines",
            "queue,table,sizing",
            *("--step-timeout", seconds, "--first"),
        ]
        assert (
            main(
                ["check", *arguments, "--examples", "12", "--seed", "5", "--jobs", jobs, "--full", "--json", str(file)]
            )
            == 1
        )
        found.append(json.loads(file.read_text()))
        for machine in found[-1]["machines"]:
            del machine["seconds"]
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("queue:", "table:", "sizing:"))]
    assert [line.split(":")[0] for line in lines] == ["queue", "table"] * 2, "the first deviation ends it"
    assert found[0]["clauses"] == found[1]["clauses"]
    assert [entry["machine"] for entry in found[0]["machines"]] == [entry["machine"] for entry in found[1]["machines"]]
    assert found[0]["machines"][0] == found[1]["machines"][0]


@pytest.mark.skipif(sys.platform != "linux", reason="processes of a session are read from /proc")
@pytest.mark.parametrize(
    "arguments",
    [
        ["strength", "--bugs", "double_mention,fixed_root", "--jobs", "2"],
        ["check", "--machines", "manager,pool", "--jobs", "2", "--examples", "100000"],
    ],
    ids=["strength", "check"],
)
def test_whoever_ends_a_command_ends_its_processes(arguments: list[str]) -> None:
    """SIGTERM, as a job scheduler sends it, leaves nothing behind that goes on."""
    command = [sys.executable, "-m", "kvproof.conformance", *arguments]
    started = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        deadline = time.monotonic() + 60
        while len(processes_of(started.pid)) < 3:
            assert time.monotonic() < deadline, "it started no processes"
            assert started.poll() is None, started.communicate()
            time.sleep(0.05)
        started.terminate()
        _, said = started.communicate(timeout=30)
        assert started.returncode == 2
        assert f"kvproof {arguments[0]}: interrupted" in said
        while processes_of(started.pid):
            assert time.monotonic() < deadline + 30, "processes go on"
            time.sleep(0.05)
    finally:
        for process in processes_of(started.pid):
            os.kill(process, signal.SIGKILL)


def processes_of(session: int) -> list[int]:
    """The processes of a session that have not ended."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, _, _, of, *_ = (folder / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):  # it ended just now
            continue
        if int(of) == session and state != "Z":
            found.append(int(folder.name))
    return found


def test_a_seed_is_drawn_and_printed(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["check", "--backend", "kvproof.spec", "--examples", "1", "--machines", "queue"]
    assert main([*arguments, "--step-timeout", "0"]) == 0
    assert capsys.readouterr().out.splitlines()[0].removeprefix("seed ").isdigit()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--backend", "no_such_module"], "no_such_module"),
        (["--backend", "kvproof.spec:nothing"], "nothing"),
        (["--backend", "json"], "PageTable and 26 more names of kvproof.spec"),
        (["--backend", "kvproof.fast:CacheManager"], "PagePool = CacheManager"),
        (["--clauses", "POOL-99"], "POOL-99; did you mean POOL-9?"),
        (["--clauses", "POL"], "did you mean POOL?"),
        (["--clauses", "ENG-4"], "kvproof serve-check --engine or --url does"),
        (["--clauses", ","], "--clauses"),
        (["--machines", "pools"], "pools"),
        (["--machines", "queue", "--clauses", "TAB-7"], "TAB-7"),
        (["--examples", "0"], "--examples 0"),
        (["--jobs", "0"], "--jobs 0"),
        (["--seed", "-1"], "--seed -1"),
        (["--json", "/no/such/directory/report.json"], "/no/such/directory"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *arguments]) == 2
    errors = capsys.readouterr().err
    assert said in errors
    assert errors.count("\n") == 1


def test_a_family_stands_for_its_clauses(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--clauses", "TAB", "--machines", "table", "--examples", "5", "--seed", "1", "--step-timeout", "0"]
    assert main(["check", "--backend", "kvproof.spec", *arguments]) == 0
    assert f"{sum(label.startswith('TAB-') for label in CLAUSES)} clauses: " in capsys.readouterr().out


def test_who_names_the_module_is_told_what_has_the_classes(broken: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--backend", broken.partition(":")[0]]) == 2
    assert f"did you mean {broken}?" in capsys.readouterr().err


def test_where_nothing_was_decided_the_status_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every sequence ends by POOL-3, before anything is compared by the clause that is looked at."""

    class Raises(kvproof.spec.PagePool):
        def __init__(self, *_: object, **__: object) -> None:
            raise RuntimeError("no device")

    module = ModuleType("a_raising_backend")
    module.__dict__["PagePool"] = Raises
    monkeypatch.setitem(sys.modules, module.__name__, module)
    arguments = ["--clauses", "POOL-6", "--machines", "pool", "--examples", "5", "--seed", "1", "--step-timeout", "0"]
    assert main(["check", "--backend", module.__name__, *arguments]) == 2
    said = capsys.readouterr()
    assert "is undecided" in said.out
    assert said.err.startswith("kvproof check: no clause was decided; ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no-such-command"], "no-such-command"),
        (["chek"], "did you mean check?"),
        (["check", "--examples", "many"], "many"),
        (["check", "my_engine:backend"], "did you mean --backend my_engine:backend?"),
        (["check", "--example", "1", "--exhaustiv", "--sede", "3"], "--sede; did you mean --seed?"),
    ],
)
def test_a_wrong_command_line(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    errors = capsys.readouterr().err
    assert "usage: kvproof" in errors
    assert said in errors


def test_a_misspelled_seeded_bug_is_told_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["strength", "--bugs", "fixed_roots"]) == 2
    assert capsys.readouterr().err.endswith("no seeded bug 'fixed_roots'; did you mean fixed_root?\n")


def test_nothing_asked_for_is_told_what_can_be(capsys: pytest.CaptureFixture[str]) -> None:
    """In six lines; the commands that they name are there. Nothing was checked, so the exit status is not 0."""
    assert main([]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    for line in lines[1:]:
        assert main([line.split()[1], *([] if "--help" in line else ["--help"])]) == 0


def test_the_demonstration_finds_its_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo"]) == 0
    printed = capsys.readouterr().out
    assert "which is wrong" in printed
    assert "POOL-3 broken" in printed


def test_a_new_adapter_conforms_at_level_sound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new-adapter", "my_adapter.py"]) == 0
    made = Path("my_adapter.py").read_text()
    assert "kvproof check --backend my_adapter" in made
    assert len(made.splitlines()) < 100
    options = ["--level", "sound", "--profile", "quick", "--seed", "1", "--jobs", "1", "--step-timeout", "0"]
    assert main(["check", "--backend", "my_adapter", *options]) == 0
    assert "not offered, as the backend has no CacheManager: " in capsys.readouterr().out
    assert main(["new-adapter", "my_adapter.py"]) == 2, "it is not written over"
    assert main(["new-adapter", "my-adapter.py"]) == 2


@pytest.mark.parametrize("arguments", [["--help"], ["check", "--help"], ["clauses", "--help"], ["replay", "--help"]])
def test_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    assert "usage: kvproof" in capsys.readouterr().out


def test_what_is_missing_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    found = importlib.util.find_spec

    def find_spec(name: str) -> object:
        return None if name in ("hypothesis", "rich") else found(name)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    assert main(["check"]) == 2
    assert "pip install 'kvproof[conformance]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "words"),
    [
        *(("check", []), ("clauses", []), ("demo", []), ("replay", []), ("serve_check", []), ("strength", [])),
        *(("new_adapter", ["a.py"]), ("show", ["a.log", "-o", "a.html"]), ("shrink", ["a.log"]), ("try_calls", ["a"])),
    ],
)
def test_a_command_declares_every_option_that_it_is_asked_for(command: str, words: list[str]) -> None:
    """One that its dataclass does not have would be read by nobody."""
    parser = argparse.ArgumentParser()
    importlib.import_module(f"kvproof.conformance.commands.{command}").set_up(parser)
    given = vars(parser.parse_args(words))
    assert {option.name for option in fields(given.pop("options"))} == given.keys() - {"func"}


def test_help_is_quick_to_load() -> None:
    code = "import sys; from kvproof.conformance.cli import main; main(['--help']); print(sorted(sys.modules))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"'hypothesis'", "'jax'", "'numpy'", "'rich'"} & set(printed.split("[")[-1].rstrip("]\n").split(", "))


NOT_FOUND = {
    "my_engin:backend": "there is no module my_engin in {here} or among what is installed; did you mean my_engine?",
    "my_engine:backnd": "my_engine has no backnd; did you mean backend?",
    "my_engine.backend": "my_engine is a module and has no module backend in it; did you mean my_engine:backend?",
    "my_engine.py:backend": "must be named as Python imports it; did you mean my_engine:backend?",
    "./my_engine.py": "must be named as Python imports it; did you mean my_engine?",
    "kvproof.fastt": "there is no module fastt in kvproof; did you mean fast?",
    "imports_more": "ModuleNotFoundError: No module named 'not_there'",
}


def test_a_backend_that_is_not_found_is_told_where_and_what_was_meant(tmp_path: Path) -> None:
    """From a process that has, as a script has, no current folder on its path: a line for each."""
    (tmp_path / "my_engine.py").write_text("from kvproof import fast as backend\n")
    (tmp_path / "imports_more.py").write_text("import not_there\n")
    code = (
        "import sys; del sys.path[0]; from kvproof.conformance.cli import main; "
        "sys.exit({main(['check', '--backend', asked]) for asked in sys.argv[1:]} != {2})"
    )
    command = [sys.executable, "-c", code, *NOT_FOUND]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for line, said in zip(done.stderr.splitlines(), NOT_FOUND.values(), strict=True):
        assert said.format(here=tmp_path) in line


def test_the_path_stays_as_it_is_where_the_backend_is_not_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else any file there could hide an installed module of its name."""
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    load_backend("kvproof.spec")
    assert sys.path == before
