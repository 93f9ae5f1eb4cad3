"""What the README shows is true: its examples run."""

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kvproof.spec import CLAUSES

README = Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)

PARTS = re.findall(r"```py\n(.*?)```", README.read_text(), re.DOTALL)

CONSOLES = [
    line.removeprefix("$ ")
    for block in re.findall(r"```console\n(.*?)```", README.read_text(), re.DOTALL)
    for line in block.splitlines()
]

WRONG_POOL = BLOCKS[5]

LEAKY_MANAGER = """
from kvproof import fast
from kvproof.fast import *  # shrink asks for any name that the log has

class CacheManager(fast.CacheManager):
    def free(self, request):
        pass
"""


def _run(block: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "readme"}
    exec(compile(block, "README.md", "exec"), names)
    return names


def test_there_are_seven_examples() -> None:
    assert len(BLOCKS) == 7


def test_the_engine_example_runs() -> None:
    assert _run(BLOCKS[0])["manager"].usage == 0.0


def test_the_example_of_mixed_layers_runs() -> None:
    _run(BLOCKS[1])["manager"].check()


def test_the_device_example_runs() -> None:
    """It compares itself with the specification (ATT-6)."""
    assert _run(BLOCKS[2])["cache"].metadata.num_pages == 128


def test_pages_move_as_the_readme_says() -> None:
    _run(BLOCKS[3])["manager"].check()


def test_a_model_is_served_as_the_readme_says() -> None:
    assert sorted(_run(BLOCKS[4])["generated"]) == ["first", "second", "third"]


def test_the_swap_of_easydels_manager_is_the_demonstrations() -> None:
    (shown,) = (block for block in PARTS if not block.startswith("# "))
    assert shown in (README.parent / "tests" / "demonstrations" / "easydel_glue.py").read_text()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that holds what a reader of the README has written there, and nothing else."""
    (tmp_path / "my_engine.py").write_text(WRONG_POOL)
    return tmp_path


def _console(command: str, installed: Path, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Runs a line of one of the README's consoles as its reader does: installed from the wheel, in a folder.

    Args:
        command: the line.
        installed: where the scripts are.
        folder: the folder.
        more: arguments that are added, so that it takes less time.
    """
    assert command in CONSOLES, command
    name, *arguments = [*shlex.split(command, comments=True), *more]
    if name == "pytest":  # its script is not the wheel's; like every script, it has no current folder on its path
        name, arguments = "python", ["-c", "import sys, pytest; del sys.path[0]; sys.exit(pytest.main())", *arguments]
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "XLA_FLAGS")}
    return subprocess.run(
        [installed / name, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_the_wrong_pool_is_caught_as_the_readme_says(installed: Path, folder: Path) -> None:
    """POOL-3 is what the pool of the sixth example breaks."""
    done = _console("kvproof check --backend my_engine:backend", installed, folder, "--profile", "quick")
    assert done.returncode == 1, done.stderr
    assert "POOL-3 broken" in done.stdout


def test_calls_written_by_hand_are_judged_as_the_readme_says(installed: Path, folder: Path) -> None:
    (calls,) = (block for block in PARTS if block.startswith("# calls.py"))
    (folder / "calls.py").write_text(calls)
    done = _console("kvproof try calls.py --backend my_engine:backend", installed, folder)
    assert done.returncode == 1, done.stderr
    assert "line 4: pool.free_pages(pages)\n" in done.stdout
    assert "after it, free pages" in done.stdout
    assert "deviates       POOL-3" in done.stdout
    assert done.stdout.endswith("1 deviates; 1 not made\n")


def test_pytest_holds_the_wrong_pool_as_the_readme_says(installed: Path, folder: Path) -> None:
    command = 'pytest --pyargs kvproof.conformance --kvproof-backend my_engine:backend -k "POOL or MAN"'
    done = _console(command, installed, folder, "--kvproof-profile", "quick")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "POOL-3 broken by my_engine:backend" in done.stdout


def test_the_recorded_engine_is_replayed_drawn_and_shrunk(installed: Path, folder: Path) -> None:
    (folder / "serve.py").write_text(BLOCKS[6])
    subprocess.run([installed / "python", "serve.py"], cwd=folder, check=True)
    replayed, shrunk, drawn = (
        next(line for line in CONSOLES if line.startswith(f"kvproof {command} engine.log"))
        for command in ("replay", "shrink", "show")
    )
    done = _console(replayed, installed, folder)
    assert done.returncode == 0, done.stderr
    assert "no difference" in done.stdout
    assert _console(drawn, installed, folder).returncode == 0
    assert (folder / "engine.html").stat().st_size > 10_000
    (folder / "my_engine.py").write_text(LEAKY_MANAGER)  # of a right one there is nothing to shrink
    done = _console(shrunk, installed, folder)
    assert done.returncode == 1, done.stderr
    tried = subprocess.run(
        [installed / "python", "-m", "pytest", "-q", "test_bug.py"], cwd=folder, capture_output=True, check=False
    )
    assert tried.returncode == 1, tried.stdout


@pytest.mark.parametrize("command", ["replay --synthetic 2 --lockstep", "serve-check --schedules 1 --seed 0"])
def test_every_command_finds_a_backend_in_the_current_folder(command: str, installed: Path, folder: Path) -> None:
    (folder / "my_engine.py").write_text("from kvproof import fast as backend\n")
    words = [str(installed / "kvproof"), *command.split(), "--backend", "my_engine:backend"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_options_that_the_consoles_show_are_known(capsys: pytest.CaptureFixture[str]) -> None:
    """Of the lines that take minutes, which no test runs."""
    from kvproof.conformance.cli import main

    for line in CONSOLES:
        if line.startswith("kvproof "):
            _, command, *words = shlex.split(line, comments=True)
            assert main([command, "--help"]) == 0, line
            known = set(re.findall(r"(?<!\w)--?[a-z][a-z-]*", capsys.readouterr().out))
            assert {word for word in words if word.startswith("-")} <= known, line


def test_the_page_about_other_packages_names_clauses_that_there_are() -> None:
    page = README.with_name("CONFORMANCE.md").read_text()
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| ") and "exact | safe" not in line]
    labels = re.findall(r"\b(?:R[12]|[A-Z]+-\d+)\b", " ".join(rows))
    assert len(labels) > 60
    assert set(labels) <= set(CLAUSES)
