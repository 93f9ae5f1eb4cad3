"""The suite run by pytest: what a test a clause comes to, what the plugin costs, and what it does to others' runs."""

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from kvproof.conformance.commands.pytest_run import Run

BACKEND = """
import types
from kvproof import fast

def hash_page_tokens(function, parent, tokens, extra_keys=None, **named):
    fast.hash_page_tokens(function, parent, tokens, extra_keys, **named)
    return fast.hash_page_tokens(function, parent, tokens, None, **named)

class Queue(fast.FreeCachePageQueue):
    def prepend_n(self, pages):
        self.append_n(pages)

names = ("AxisRules", "CachePage", "RaggedPagesCacheMetaData", "hash_request_tokens", "init_none_hash", "sha256")
kept = {name: getattr(fast, name) for name in names}
backend = types.SimpleNamespace(hash_page_tokens=hash_page_tokens, FreeCachePageQueue=Queue, **kept)
"""

NAMED = any(entry.value == "kvproof.conformance.pytest_plugin" for entry in entry_points(group="pytest11"))
PLUGIN = [] if NAMED else ["-p", "kvproof.conformance.pytest_plugin"]


def pytest_in(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs pytest as others do: every warning an error, every marker known."""
    strict = ["-q", "-W", "error", "--strict-markers", "--strict-config", "-p", "no:cacheprovider", "-rsx"]
    command = [sys.executable, "-m", "pytest", *PLUGIN, *strict, *arguments]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("engine")
    (directory / "engine.py").write_text(BACKEND)
    (directory / "xfails").write_text("POOL-13  # known\nCACHE-1\n")
    (directory / "test_own.py").write_text("def test_own(): pass\n")
    return directory


def test_every_outcome(engine: Path) -> None:
    """Deviates, deviates as expected, conforms though it should not, not offered."""
    run = pytest_in(
        engine,
        *("--pyargs", "kvproof.conformance", "-k", "CACHE-1 or HASH-2 or POOL-13 or TAB-3"),
        *("--kvproof-backend", "engine:backend", "--kvproof-xfails", "xfails", "--kvproof-profile", "quick"),
    )
    assert run.returncode == 1, run.stdout
    assert "HASH-2 broken by engine:backend" in run.stdout
    assert "again       kvproof check --backend engine:backend --machines hash --clauses HASH-2 --seed 0" in run.stdout
    assert "test_clause[POOL-13] - known" in run.stdout
    assert "not offered: PageTable" in run.stdout
    assert "1 failed, 1 passed, 1 skipped" in run.stdout
    assert "1 xfailed" in run.stdout
    assert "xfails:2: CACHE-1 is expected to deviate and does not" in run.stdout


def test_bad_options_are_one_line(engine: Path) -> None:
    run = pytest_in(engine, "--pyargs", "kvproof.conformance", "--kvproof-seed", "-1")
    assert run.returncode == 4
    assert "invalid seed value: '-1'" in run.stderr
    assert "Traceback" not in run.stderr + run.stdout


def test_a_backend_that_cannot_be_had_is_said_in_one_line() -> None:
    option = SimpleNamespace(kvproof_backend="no_such_module", kvproof_without="", kvproof_xfails=None)
    config = cast(pytest.Config, SimpleNamespace(option=option))
    with pytest.raises(pytest.UsageError, match="backend no_such_module cannot be imported"):
        Run(config, ["POOL-1"])
    option.kvproof_without = "wheels"
    with pytest.raises(pytest.UsageError, match="--kvproof-without: no wheels; there are groups"):
        Run(config, ["POOL-1"])


def test_others_runs_are_not_touched(engine: Path) -> None:
    run = pytest_in(engine, "test_own.py")
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.strip().endswith("s")
    assert "kvproof" not in run.stdout + run.stderr


def test_importing_the_plugin_imports_next_to_nothing() -> None:
    heavy = ("jax", "hypothesis", "numpy", "rich", "kvproof.spec")
    code = f"import sys, kvproof.conformance.pytest_plugin; print([m for m in {heavy} if m in sys.modules])"
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert seen.stdout.strip() == "[]"
