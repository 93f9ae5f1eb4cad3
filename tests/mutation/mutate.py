"""Mutation testing of ``spec`` and ``fast``, by hand, not in CI: ``python -m tests.mutation.mutate FILE``.

Mutants are made in a clone of the last commit, one at a time, each by one change to a module's syntax tree: another
comparison, another operator, a number off by one, a condition turned round, a statement left out (`changes`). Each is
held against the machines that call the module, first with few sequences of calls, then against the tests of what it is
part of, then against the same machines with as many sequences as a default check makes. It is killed by whichever
fails, or does not come to an end. What survives all of that is printed as a difference.

How the figures are read. A share of killed mutants says how much of a module's text has an effect that is looked at; it
is no measure of how many faults are found, since real faults are rarely a changed operator (``kvproof strength`` has
real ones). A survivor is one of three things, and only a person can tell which. The same program: a bound that another
line keeps, a shortcut that leads to where the long way leads. Something that no caller can see: how large a column
grows, what is remembered to be quick, a ``check()`` of what never goes wrong. Or a hole: then a test is missing, and
only this kind says anything against the suite. A module is held against fewer machines and tests than CI runs, so that
what is counted as survived is an upper bound; what is counted as killed is certain, since a stage that fails is run on
the unchanged module as well, and must pass there.

A mutant costs a fork of this process, which has imported everything of others that is slow to import, and nothing of
ours. A tool of its own, since the folders are imported through links below ``src`` and the suite's machines, which kill
most mutants, are no tests that a mutation tool would run.
"""

import argparse
import ast
import difflib
import io
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from .changes import changed, changes

ROOT = Path(__file__).resolve().parents[2]

_EFFORTS = {"machines, few calls": 0.1, "machines": 1.0}
"""The stages that run machines, and how many sequences of calls they make, as a multiple of a default check's."""

_SECONDS = {"machines, few calls": 60, "tests": 120, "machines": 300}
"""How long the unchanged module could need for a stage, several times over; a step of a machine has 5 seconds."""


class Part(NamedTuple):
    """What a part of the package is held against.

    Attributes:
        words: a module belongs to the first part of which a word is in its name.
        machines: the machines that call it, the likeliest to see a fault first.
        tests: files of tests, by the end of their names.
    """

    words: str
    machines: str
    tests: str


PARTS = (
    Part("snapshot restore document", "snapshots secrets", "snapshot"),
    Part("follower event pool_log cached_map", "events pool manager hybrid", "follower pool_events prefixes"),
    Part(
        "open_pages update view layout ragged quantizer metadata",
        "sizing cache views",
        "cache_update cache_view cache_metadata",
    ),
    Part("shard partition", "shards", "shards"),
    Part("steps", "manager hybrid window state batch pins", "cache_manager_edges cache_manager batched_step groups"),
    Part("batch step", "batch state hybrid events", "batched_step"),
    Part("table slots row", "table multi_table batch", "page_table"),
    Part("pin prior free_order prefixes", "pins pool_pins snapshots shards", "pins_and_priorities prefixes"),
    Part("hash key", "hash manager pool secrets", "hashing"),
    Part("queue log", "queue pool pool_pins", "free_queue free_log page_pool"),
    Part(
        "pool pages index runs",
        "pool pool_pins hybrid events",
        "check prefix_index page_pool page_pool_edges pool_events",
    ),
    Part(
        "group coordinator hit demand states cop",
        "manager hybrid window chunk state mla batch",
        "groups states prefixes cache_manager_edges manager_check",
    ),
    Part("", "manager hybrid window state batch pins", "cache_manager_edges manager_check groups cache_manager"),
)


def part_of(module: Path) -> Part:
    """The part of the package that a module belongs to."""
    return next(part for part in PARTS if not part.words or any(word in module.stem for word in part.words.split()))


def tests_of(module: Path) -> list[str]:
    """The files of tests for a module: those of its own folder, and what is said of both packages."""
    folders = (module.parts[0], "contract")
    named = [Path(f"tests/{folder}/test_{name}.py") for name in part_of(module).tests.split() for folder in folders]
    return [str(test) for test in named if test.exists()]


def _run_machines(names: list[str], effort: float) -> str:
    """By which clause of which machine a mutant is killed; "" if it survives."""
    backends, runner = (import_module(f"kvproof.conformance.{name}") for name in ("backends.loading", "search.runner"))
    machines = import_module("kvproof.conformance.machines").EVERY_MACHINE
    backend = backends.load_backend()
    for name in names:
        report = runner.run_machine(
            machines[name], backend, seed=1, shrink_seconds=0.0, effort=effort, step_timeout=5.0
        )
        if report.deviations or not report.ended:
            return f"{name} {' '.join(found.clause for found in report.deviations)}"
    return ""


class _NoShrinking:
    """A plugin for pytest: a failure is enough, and need not be short."""

    def __init__(self) -> None:
        self.failed = ""

    def pytest_configure(self) -> None:
        """Called when the tests' own profile has been loaded."""
        settings, phase = (getattr(import_module("hypothesis"), name) for name in ("settings", "Phase"))
        settings.register_profile("mutants", parent=settings(), phases=[phase.explicit, phase.generate])
        settings.load_profile("mutants")

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Remembers the first test that failed."""
        self.failed = self.failed or (report.nodeid if report.failed else "")


def _run_tests(names: list[str]) -> str:
    """The test that kills a mutant; "" if it survives."""
    plugin = _NoShrinking()
    left_out = [word for name in ("cacheprovider", "xdist", "benchmark") for word in ("-p", f"no:{name}")]
    warm = [
        "-W",
        "ignore::pytest.PytestAssertRewriteWarning",
    ]  # Hypothesis has been imported, and need not be rewritten
    options = ["-q", "-x", "-o", "addopts=", "--hypothesis-seed=1", *left_out, *warm]
    ended = import_module("pytest").main([*options, *names], plugins=[plugin])
    return "" if ended == 0 else plugin.failed or f"pytest, exit status {int(ended)}"


def _stage(stage: str, module: Path, answer: "Connection[Any, Any]") -> None:
    """What a process does that was forked for one stage of one mutant."""
    os.setsid()
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        try:
            if stage == "tests":
                by = _run_tests(tests_of(module))
            else:
                by = _run_machines(part_of(module).machines.split(), _EFFORTS[stage])
        except Exception as error:  # whatever it is, the mutant did it, or the unchanged module will do it too
            by = f"{type(error).__name__}: {error}"
    answer.send(by)


def fate(stage: str, module: Path) -> str:
    """What became of the module as it is now: by what it was killed, "time", or "" if it survived the stage."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_stage, args=(stage, module, theirs))
    process.start()
    theirs.close()
    try:
        return str(ours.recv()) if ours.poll(_SECONDS[stage]) else "time"
    except EOFError:
        return "the process ended"
    finally:
        if process.is_alive():
            os.killpg(process.pid or 0, signal.SIGKILL)
        process.join()


class Mutants:
    """Makes the mutants of a clone, and says what becomes of each.

    Args:
        stages: what they are held against, in this order.
    """

    def __init__(self, stages: list[str]) -> None:
        self._stages = stages
        self._sound: set[tuple[str, str, tuple[str, ...]]] = set()

    def killed(self, module: Path, text: str) -> tuple[str, str]:
        """The stage that kills a mutant, and what in it did; two empty strings if it survives.

        Raises:
            RuntimeError: the stage fails on the unchanged module as well.
        """
        source = module.read_text(encoding="utf-8")
        for stage in self._stages:
            _write(module, text)
            try:
                by = fate(stage, module)
            finally:
                _write(module, source)
            if by:
                held = stage, part_of(module).machines, tuple(tests_of(module))
                if held not in self._sound and (wrong := fate(stage, module)):
                    raise RuntimeError(f"{module}, {stage}: fails without a change: {wrong}")
                self._sound.add(held)
                return stage, by
        return "", ""


def _write(module: Path, text: str) -> None:
    """Writes a module, and drops its bytecode, which may look as young as its new source."""
    module.write_text(text, encoding="utf-8")
    for compiled in (module.parent / "__pycache__").glob(f"{module.stem}.*.pyc"):
        compiled.unlink()


def _warm(clone: Path) -> None:
    """Makes this process one of which every fork is ready to import the clone's packages, and no others of ours."""
    os.chdir(clone)
    for name in [name for name in sys.modules if name.split(".")[0] == "tests"]:
        del sys.modules[name]
    sys.path[:] = [str(clone), str(clone / "src"), *(path for path in sys.path if Path(path).resolve() != ROOT)]
    subprocess.run([sys.executable, "-m", "compileall", "-q", *("spec", "fast", "conformance", "kernels")], check=True)
    sys.dont_write_bytecode = True
    for name in ("tests.conftest", "hypothesis.stateful", "jax.numpy", "ml_dtypes", "pytest"):
        import_module(name)


def main() -> None:
    """Makes mutants, and says of each what became of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="+", metavar="FILE", help="such as fast/pool/page_pool.py")
    parser.add_argument("--number", type=int, default=10, metavar="N", help="mutants in all (default 10)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="which of all that there are (default 0)")
    parser.add_argument("--only", type=int, nargs="*", metavar="K", help="the changes of these numbers, as printed")
    parser.add_argument("--quick", action="store_true", help="leave out the machines with many sequences of calls")
    given = parser.parse_args()
    counted: Counter[tuple[str, str]] = Counter()
    folder = Path(tempfile.mkdtemp(prefix="mutants-"))
    try:
        subprocess.run(["git", "clone", "-q", str(ROOT), str(folder / "clone")], check=True)
        _warm(folder / "clone")
        trees = {name: ast.parse(Path(name).read_text(encoding="utf-8")) for name in given.modules}
        possible = [(name, *change) for name, tree in trees.items() for change in changes(tree)]
        if given.only is None:
            chosen = random.Random(given.seed).sample(possible, min(given.number, len(possible)))
        else:
            chosen = [change for change in possible if change[1] in given.only]
        mutants = Mutants(list(_SECONDS)[: 2 if given.quick else None])
        for name, number, kind in sorted(chosen):
            started, plain, text = time.monotonic(), ast.unparse(trees[name]), changed(trees[name], number)
            stage, by = mutants.killed(Path(name), text)
            counted[name.split("/")[0], stage or "survived"] += 1
            lines = difflib.unified_diff(plain.splitlines(), text.splitlines(), name, name, "", "", 2, "")
            said = f"killed by {stage}: {by}" if by else "SURVIVED"
            print(f"{name} {number}, {kind}: {said} ({time.monotonic() - started:.0f} s)", flush=True)
            print("", *([] if by else lines), sep="\n", flush=True)
        print(f"{len(chosen)} of {len(possible)} mutants, seed {given.seed}")
    finally:
        shutil.rmtree(folder)
    for (packages, stage), count in sorted(counted.items()):
        print(f"{packages}: {count} {stage}")


if __name__ == "__main__":
    main()
