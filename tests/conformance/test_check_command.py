"""``kvproof check``: every option and every exit status."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kvproof.conformance.backends.raising import Interrupted
from kvproof.conformance.cli import main
from kvproof.conformance.commands import check as check_command
from kvproof.conformance.commands.deep import round_seed
from kvproof.conformance.report.verdicts import MachineReport
from kvproof.spec import PagePool

from .broken import FreesBackwards

Check = Callable[..., int]

HERE = ["--jobs", "1", "--step-timeout", "0"]
"""In this process: the backends of these tests are made here."""


class Hostile(PagePool):
    def get_usage(self) -> float:
        raise RuntimeError("\x1b[2J")


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Check:
    """Runs the command on the page pools of this module, in a directory of its own."""
    module = ModuleType("kvproof_test_backends")
    made = {"right": PagePool, "backwards": FreesBackwards, "hostile": Hostile}
    module.__dict__.update({name: SimpleNamespace(PagePool=pool) for name, pool in made.items()})
    module.__dict__["shut"] = SimpleNamespace(PagePool=PagePool, kvproof_lacks=["queue"])
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.chdir(tmp_path)

    def run(backend: str, *options: str, machines: str = "pool") -> int:
        arguments = ["--backend", f"{module.__name__}:{backend}", "--machines", machines, "--seed", "3", *HERE]
        return main(["check", *arguments, "--profile", "quick", "--examples", "3", *options])

    return run


def read(file: str) -> dict[str, object]:
    document: dict[str, object] = json.loads(Path(file).read_text())
    return document


def test_expected_deviations_are_no_failure(check: Check, capsys: pytest.CaptureFixture[str]) -> None:
    Path("known.txt").write_text("pool:POOL-10  # counts nothing\nPOOL-5\n")
    options = ["--xfails", "known.txt", "--clauses", "POOL-5,POOL-10"]
    assert check("hostile", *options, "--examples", "9", "--json", "report.json") == 0
    captured = capsys.readouterr()
    assert "broken as expected (counts nothing)" in captured.out
    assert "known.txt:2: POOL-5 is expected to deviate and does not" in captured.err
    document = read("report.json")
    assert (document["deviates"], document["unexpected"]) == (True, False)
    Path("known.txt").write_text("POOL-5\n")
    assert check("hostile", *options, "--first") == 1


def test_expected_deviations_are_written(check: Check) -> None:
    """What is new is added, what is out of date goes, comments and reasons stay."""
    options = ["--clauses", "POOL-5,POOL-10", "--xfails", "known.txt"]
    assert check("hostile", *options, "--examples", "9", "--xfails-update") == 0, "there is no such file yet"
    (line,) = Path("known.txt").read_text().splitlines()
    assert line.startswith("pool:POOL-10  # usage = raised RuntimeError")
    Path("known.txt").write_text("# ours\npool:POOL-10  # counts nothing\nPOOL-5\n")
    assert check("hostile", *options, "--examples", "9", "--xfails-update") == 0
    assert Path("known.txt").read_text() == "# ours\npool:POOL-10  # counts nothing\n"
    assert check("hostile", "--xfails-update") == 2, "no file"


def test_what_deviated_before_runs_first(check: Check) -> None:
    """By the report that is written over, if it is of the same backend."""
    for times, order in enumerate((["pool_pins", "pool"], ["pool", "pool_pins"])):
        machines = [{"machine": "pool_pins", "deviations": [] if times else [{}]}]
        document = {"kvproof": "report", "backend": "kvproof_test_backends:backwards", "machines": machines}
        Path("report.json").write_text(json.dumps(document))
        check("backwards", "--clauses", "POOL-3", "--json", "report.json", machines="pool,pool_pins")
        made = read("report.json")["machines"]
        assert isinstance(made, list)
        assert [machine["machine"] for machine in made] == order


def test_a_failure_comes_with_the_command_that_finds_it_again(check: Check, capsys: pytest.CaptureFixture[str]) -> None:
    assert check("hostile", "--clauses", "POOL-10") == 1
    again = "--clauses POOL-10 --machines pool --examples 3 --profile quick --seed 3"
    assert f"again       kvproof check --backend kvproof_test_backends:hostile {again}" in capsys.readouterr().out


def test_the_first_deviation_ends_it(check: Check) -> None:
    assert check("backwards", "--first", "--json", "report.json", machines="pool,pool_pins") == 1
    machines = read("report.json")["machines"]
    assert isinstance(machines, list)
    assert [machine["machine"] for machine in machines] == ["pool"]


def test_what_is_said_to_lack(check: Check) -> None:
    assert check("shut", "--without", "views,keys", "--json", "report.json") == 0
    document = read("report.json")
    assert document["without"] == ["keys", "queue", "views"]
    assert check("right", "--level", "safe", machines="table") == 2, "it has no tables"


def test_what_a_backend_says_commands_no_terminal(check: Check, capsys: pytest.CaptureFixture[str]) -> None:
    """SEC-4."""
    assert check("hostile", "--clauses", "POOL-10", "--first") == 1
    printed = capsys.readouterr().out
    assert "\\x1b[2J" in printed
    assert "\x1b" not in printed


def test_tokens_are_redacted(check: Check, capsys: pytest.CaptureFixture[str]) -> None:
    """SEC-2: the digest of a seed is no text that anybody wrote."""
    assert check("hostile", "--clauses", "POOL-10", "--first", "--redact", "--json", "report.json") == 1
    assert "kvproof'" not in capsys.readouterr().out
    assert "hash_seed=<digest " in Path("report.json").read_text()


def test_a_counterexample_is_emitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is tried in another process, which must find the backend."""
    (tmp_path / "kvproof_test_emitted.py").write_text(
        "from types import SimpleNamespace\nfrom kvproof.spec import PagePool\n\n\n"
        "class Pool(PagePool):\n    def get_usage(self):\n        return 0.5\n\n\n"
        "backend = SimpleNamespace(PagePool=Pool)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    arguments = ["--backend", "kvproof_test_emitted:backend", "--machines", "pool", "--seed", "3", "--examples", "6"]
    assert main(["check", *arguments, *HERE, "--clauses", "POOL-10", "--emit", "test_it.py"]) == 1
    emitted = Path("test_it.py").read_text()
    assert "def test_pool_10" in emitted
    assert "Found by: kvproof check --backend kvproof_test_emitted:backend" in emitted


# -- Deep -------------------------------------------------------------------------------------------


def test_a_deep_run_goes_on(check: Check, capsys: pytest.CaptureFixture[str]) -> None:
    deep = ["--profile", "deep", "--state", "deep.json", "--clauses", "POOL-10", "--hours"]
    assert check("hostile", *deep, "1e-9") == 1
    first = read("deep.json")
    assert (first["kvproof"], first["rounds"], first["seed"]) == ("deep", 1, 3)
    command = f"--clauses POOL-10 --machines pool --examples 3 --seed {round_seed(3, 0)}"
    assert command in capsys.readouterr().out
    assert check("hostile", *deep, "1e-9") == 1, "the time is over, what was found is told again"
    assert read("deep.json")["rounds"] == 1
    assert check("hostile", *deep, str(1e-6 + float(str(first["seconds"])) / 3600)) == 1
    assert read("deep.json")["rounds"] == 2
    printed = capsys.readouterr().out
    assert "seed 3, after 1 rounds" in printed
    assert command not in printed.partition("after 1 rounds")[2].partition("after 1 rounds")[2], "it was told before"


def test_an_interrupted_deep_run_tells_what_its_unfinished_round_found(
    check: Check, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is left as it is: who goes on begins with that round, and finds the same."""
    whole = check_command._reports

    def cut(*given: Any) -> Iterator[MachineReport]:
        yield next(iter(whole(*given)))
        raise Interrupted

    monkeypatch.setattr(check_command, "_reports", cut)
    deep = ["--profile", "deep", "--state", "deep.json"]
    assert check("hostile", *deep, machines="pool,small-pool") == 1
    said = capsys.readouterr().out
    assert "interrupted; 0 rounds have ended" in said
    assert "  POOL-10, by machine small-pool: kvproof check " in said
    assert not Path("deep.json").exists()
    assert check("right", *deep, machines="pool,small-pool") == 2, "nothing is known of it"
    assert "shows no deviation up to where the run was interrupted" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "Expecting"),
        ("[]", "no state of a deep run"),
        ('{"kvproof": "deep", "version": 2}', "version 2, this kvproof reads 1"),
        ('{"kvproof": "deep", "version": 1}', "it has no of"),
        ("[" * 100_000, "recursion"),
    ],
)
def test_a_state_that_is_none(check: Check, text: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """SEC-3."""
    Path("deep.json").write_text(text)
    assert check("right", "--profile", "deep", "--state", "deep.json") == 2
    errors = capsys.readouterr().err
    assert said in errors
    assert errors.count("\n") == 1


def test_a_state_of_another_run(check: Check, capsys: pytest.CaptureFixture[str]) -> None:
    deep = ["--profile", "deep", "--state", "deep.json", "--hours", "1e-9"]
    assert check("right", *deep) == 0
    assert check("right", *deep, "--seed", "4") == 2
    assert check("backwards", *deep) == 2
    assert check("right", *deep, "--clauses", "POOL-3") == 2
    errors = capsys.readouterr().err
    assert "was begun with seed 3, not 4" in errors
    assert "another backend" in errors
    assert "another clauses" in errors


# -- Bad input --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--without", "queues"], "no queues"),
        (["--step-timeout", "-1"], "--step-timeout -1"),
        (["--step-timeout", "nan"], "--step-timeout nan"),
        (["--hours", "1"], "without --profile deep"),
        (["--state", "deep.json"], "without --profile deep"),
        (["--profile", "deep", "--hours", "0"], "--hours 0"),
        (["--redact", "--emit", "test_it.py"], "not with --redact"),
        (["--emit", "it.txt"], "must end in .py"),
        (["--emit", "/no/such/directory/test_it.py"], "/no/such/directory"),
        (["--json", "a", "--junit", "a"], "a is to be written twice"),
        (["--junit", "/no/such/directory/report.xml"], "/no/such/directory"),
        (["--xfails", "none.txt"], "none.txt"),
        (["--seed", str(2**64)], "below 2**64"),
        (["--level", "safe"], "at level safe"),
    ],
)
def test_bad_input_is_one_line(check: Check, options: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert check("right", *options) == 2
    errors = capsys.readouterr().err
    assert said in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "then"),
    [
        (None, "--xla_force_host_platform_device_count=4"),
        ("", "--xla_force_host_platform_device_count=4"),
        ("--xla_dump_to=there", "--xla_dump_to=there --xla_force_host_platform_device_count=4"),
        ("--xla_force_host_platform_device_count=2 --xla_dump_to=there", None),
    ],
)
def test_a_cpu_stands_for_four_devices_beside_other_flags(
    flags: str | None, then: str | None, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    if flags is None:
        monkeypatch.delenv("XLA_FLAGS")
    else:
        monkeypatch.setenv("XLA_FLAGS", flags)
    assert check("right", "--machines", "queue", "--examples", "1") in (0, 2)
    assert os.environ["XLA_FLAGS"] == (flags if then is None else then)
