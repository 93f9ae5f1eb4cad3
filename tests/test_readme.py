"""What the README and the pages of docs/ show is true: their examples run."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvproof import fast
from kvproof.spec import CLAUSES

ROOT = Path(__file__).parents[1]
PAGES = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in [ROOT / "README.md", ROOT / "CONFORMANCE.md", *sorted((ROOT / "docs").rglob("*.md"))]
}


def _blocks(language: str) -> list[tuple[str, str]]:
    """The blocks of a language, each with the page that has it."""
    found = ((page, re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)) for page, text in PAGES.items())
    return [(page, block) for page, blocks in found for block in blocks]


def _files(language: str) -> Iterator[tuple[str, str]]:
    """The blocks that begin with ``# name.py``: the name, and the block."""
    for _, block in _blocks(language):
        if name := re.match(r"# (\w+\.py)\n", block):
            yield name[1], block


EXAMPLES = _blocks("python")
"""What runs as it stands."""

FILES = dict([*_files("python"), *_files("py")])
"""What a reader writes into a file of that name."""

PARTS = [block for _, block in _blocks("py") if block not in FILES.values()]
"""Parts of files of ours."""

CONSOLES = [line.removeprefix("$ ") for _, block in _blocks("console") for line in block.splitlines()]

LEAKY_MANAGER = """
from kvproof import fast
from kvproof.fast import *  # shrink asks for any name that the log has

class CacheManager(fast.CacheManager):
    def free(self, request):
        pass
"""


@pytest.mark.parametrize(("page", "block"), EXAMPLES, ids=[page for page, _ in EXAMPLES])
def test_an_example_runs(page: str, block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it stands, in an empty folder; a manager that it leaves holds together."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "example"}
    exec(compile(block, page, "exec"), names)
    manager = names.get("manager")
    if isinstance(manager, fast.CacheManager):
        manager.check()


def test_the_examples_are_typed(tmp_path: Path) -> None:
    """They pass the type checker, strictly, as they stand."""
    for number, (_, block) in enumerate(EXAMPLES):
        (tmp_path / f"example_{number}.py").write_text(block)
    for name, block in FILES.items():
        if "import" in block:  # what `kvproof try` reads is no module
            (tmp_path / name).write_text(block)
    mypy = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(ROOT / ".mypy_cache")]
    checked = subprocess.run([*mypy, *map(str, tmp_path.iterdir())], cwd=tmp_path, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


def test_the_examples_were_found() -> None:
    assert len(EXAMPLES) >= 8
    assert {"my_engine.py", "calls.py", "serve.py"} <= FILES.keys()


def test_parts_of_files_are_theirs() -> None:
    """The swap of EasyDeL's manager is the demonstration's."""
    ours = [path.read_text() for path in (ROOT / "tests" / "demonstrations").glob("*.py")]
    assert PARTS
    assert all(any(part in text for text in ours) for part in PARTS)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that holds what a reader of the README has written there, and nothing else."""
    (tmp_path / "my_engine.py").write_text(FILES["my_engine.py"])
    return tmp_path


def _console(command: str, installed: Path, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Runs a line of a console as its reader does: installed from the wheel, in a folder.

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
    """Its verdict is printed as the README shows it."""
    done = _console("kvproof check --backend my_engine:backend", installed, folder, "--profile", "quick", "--seed", "1")
    assert done.returncode == 1, done.stderr
    (verdict,) = (block for page, block in _blocks("text") if page == "README.md")
    assert verdict in done.stdout


def test_the_wrong_engine_is_caught_as_the_guide_says(installed: Path, folder: Path) -> None:
    """Its verdict is printed as the guide shows it, and the file that it leaves fails."""
    (folder / "judged.py").write_text(FILES["judged.py"])
    command = "kvproof serve-check --engine judged:Engine --seed 0 --emit test_engine.py"
    done = _console(command, installed, folder, "--relations", "prefix")
    assert done.returncode == 1, done.stderr
    (verdict,) = (block for page, block in _blocks("text") if page == "docs/guides/judge.md")
    assert verdict in done.stdout
    tried = subprocess.run(
        [installed / "python", "-m", "pytest", "-q", "test_engine.py"], cwd=folder, capture_output=True, check=False
    )
    assert tried.returncode == 1, tried.stdout


def test_calls_written_by_hand_are_judged_as_the_readme_says(installed: Path, folder: Path) -> None:
    (folder / "calls.py").write_text(FILES["calls.py"])
    done = _console("kvproof try calls.py --backend my_engine:backend", installed, folder)
    assert done.returncode == 1, done.stderr
    assert "line 4: pool.free_pages(pages)\n" in done.stdout
    assert "after it, free pages" in done.stdout
    assert "deviates       POOL-3" in done.stdout
    assert done.stdout.endswith("1 deviates; 1 not made\n")


def test_the_index_of_the_guide_conforms(installed: Path, folder: Path) -> None:
    (folder / "my_index.py").write_text(FILES["my_index.py"])
    done = _console("kvproof check --backend my_index --machines index", installed, folder, "--seed", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "my_index conforms, at level exact, seed 1" in done.stdout


def test_pytest_holds_the_wrong_pool_as_the_readme_says(installed: Path, folder: Path) -> None:
    command = 'pytest --pyargs kvproof.conformance --kvproof-backend my_engine:backend -k "POOL- or MAN-"'
    done = _console(command, installed, folder, "--kvproof-profile", "quick")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "POOL-3 broken by my_engine:backend" in done.stdout
    assert "EVICT-1 broken" not in done.stdout, "other clauses are not asked for"


def test_the_recorded_engine_is_replayed_drawn_and_shrunk(installed: Path, folder: Path) -> None:
    (folder / "serve.py").write_text(FILES["serve.py"])
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
    page = PAGES["CONFORMANCE.md"]
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| ") and "exact | safe" not in line]
    labels = re.findall(r"\b(?:R[12]|[A-Z]+-\d+)\b", " ".join(rows))
    assert len(labels) > 60
    assert set(labels) <= set(CLAUSES)
