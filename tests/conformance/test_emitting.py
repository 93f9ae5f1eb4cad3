"""Counterexamples as files: they stand alone, fail by themselves, and carry hostile text as literals (SEC-2, SEC-4)."""

import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvproof.conformance.backends.loading import load_backend
from kvproof.conformance.calls.readings import SHOWS, page_views, readable, source
from kvproof.conformance.emitting import EmitError, Script, repeat, write_test
from kvproof.conformance.emitting.literals import Literals, UnrenderableError
from kvproof.conformance.emitting.script import source_of
from kvproof.conformance.machines import MACHINES
from kvproof.conformance.machines.worlds import Group
from kvproof.conformance.search.runner import run_machine
from kvproof.spec.declarations import CacheSalt, LoraAdapter

SEEDED = "kvproof.conformance.catalogue:"
OWN = "tests.conformance.emitted_backends:"


def scripts_of(machine: str, backend: str) -> list[Script]:
    """The tests that a short run makes of what it finds."""
    for seed in range(6):
        report = run_machine(MACHINES[machine], load_backend(backend), seed, shrink_seconds=0.3, found_by="a <run>")
        if report.deviations:
            return report.scripts
    return []


def failure_of(script: Script, directory: Path) -> str:
    """The error that a test ends in, as one who runs the file sees it."""
    file = directory / "test_it.py"
    file.write_text(source_of([script]), encoding="utf-8")
    test = next(value for name, value in runpy.run_path(str(file)).items() if name.startswith("test_"))
    try:
        test()
    except BaseException as error:
        return type(error).__name__
    return ""


@pytest.mark.parametrize(
    ("machine", "backend", "failure", "line"),
    [
        ("queue", f"{SEEDED}counted_before_refusal", "AssertionError", "queue = backend.FreeCachePageQueue("),
        ("table", f"{SEEDED}stale_ids_after_add", "AssertionError", "assert host_rows("),
        ("manager", f"{SEEDED}lookahead_given_back", "AssertionError", "manager = backend.CacheManager("),
        ("manager", f"{SEEDED}listed_tokens_read_backwards", "AssertionError", "], Spelling.LIST"),
        ("table", f"{SEEDED}strided_pages_read_as_contiguous", "AssertionError", ")[..., 0], "),
        ("hash", f"{SEEDED}zero_parent_is_root", "AssertionError", "backend.hash_page_tokens("),
        ("index", f"{SEEDED}told_anew_behind_what_was_known", "ValueError", "follower_2.apply([told[0]])"),
        ("events", f"{SEEDED}cleared_amid_a_batch_in_vain", "ValueError", "follower.apply(manager.take_events())"),
        ("pool", f"{OWN}not_refused", "Failed", "with pytest.raises((TypeError, ValueError, IndexError)):"),
        ("pool", f"{OWN}of_another_kind", "KeyError", "with pytest.raises("),
        ("pool", f"{OWN}speechless", "AssertionError", "assert str(refusal.value).strip()"),
        ("pool", f"{OWN}raising", "RuntimeError", "pool.free_pages("),
        ("pool", f"{OWN}backwards", "AssertionError", "assert "),
    ],
)
def test_calls_are_written_plainly(machine: str, backend: str, failure: str, line: str, tmp_path: Path) -> None:
    """Every way in which a call can deviate, and several kinds of objects; a backend without the fault passes."""
    script = scripts_of(machine, backend)[0]
    text = source_of([script])
    assert not any(told.startswith("repeat(") for told in script.lines), text
    assert any(line in told for told in script.lines), text
    assert "Found by: a <run>" in text
    assert failure_of(script, tmp_path) == failure
    assert failure_of(replace(script, backend="kvproof.fast"), tmp_path) == ""
    assert script.otherwise is not None
    assert failure_of(script.otherwise, tmp_path) == "AssertionError"


def test_what_cannot_be_written_is_repeated(tmp_path: Path) -> None:
    """Roots that differ from process to process: the machine's own look at them is taken again."""
    script = scripts_of("hash", f"{SEEDED}fixed_root")[0]
    assert script.lines[0] == "repeat("
    assert failure_of(script, tmp_path) == "AssertionError"


def test_steps_that_break_nothing_pass() -> None:
    repeat("kvproof.fast", "queue", "POOL-2", [])


# -- Files -------------------------------------------------------------------------------------------------------------

GOOD = Script("POOL-5", "2", "1", "collections", ("counts = backend.Counter('a')", "assert counts['a'] == 2"))


def test_a_file_is_left_when_its_test_fails(tmp_path: Path) -> None:
    file = tmp_path / "test_it.py"
    passing = replace(GOOD, lines=("assert backend.Counter('a')['a'] == 1",))
    early = replace(GOOD, lines=("assert False", "assert backend"))
    left_out = write_test(file, [replace(passing, otherwise=GOOD), early])
    assert left_out == [
        "POOL-5 left out: the test does not fail by itself: AssertionError in line 16, before its last part"
    ]
    names = runpy.run_path(str(file))
    assert [name for name in names if name.startswith("test_")] == ["test_pool_5"]


@pytest.mark.parametrize(
    ("name", "script", "problem"),
    [
        ("it.txt", GOOD, "must end in .py"),
        ("none/it.py", GOOD, "no directory"),
        ("it.py", replace(GOOD, lines=("backend.Counter()",)), "it passes"),
        ("it.py", replace(GOOD, backend="no-module"), "no name that an import can name"),
    ],
)
def test_no_file_is_left_otherwise(name: str, script: Script, problem: str, tmp_path: Path) -> None:
    with pytest.raises(EmitError, match=problem):
        write_test(tmp_path / name, [script])
    assert not (tmp_path / name).exists()


def test_hostile_text_is_a_literal_or_escaped() -> None:
    """SEC-4: nothing in a file leaves the place that it is written into."""
    text = '\x1b[31m"""\nimport os  # \\ \ud800 \u202e'
    lines = (f"name = {Literals().of(text)}", "assert backend.Counter(name)")
    file = source_of([replace(GOOD, lines=lines, expected=text, observed=text[::-1], found_by=text)])
    compile(file, "it.py", "exec")
    assert "\nimport os" not in file
    assert all(char.isprintable() or char == "\n" for char in file)
    assert file.encode()


def test_what_looks_at_a_state_stands_alone() -> None:
    """The sources of functions that files hold need no import."""
    looks: list[Any] = [look for shows in SHOWS.values() for reading in shows.readings for look in reading.functions]
    for function in [page_views, readable, *looks]:
        names: dict[str, Any] = {}
        exec(source(function), names)
        assert callable(names[function.__name__])


# -- Values ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 1.5, float("inf"), "a'\"\n", b"\0", [1, (2,), ()], {"a": {1: None}}),
        *(np.int64(3), np.array([[1, 2]], np.int32), np.array([], np.int64)),
        *(Group("window", 2, 3), LoraAdapter("\x1b"), CacheSalt("the salt"), run_machine, len),
    ],
)
def test_values_come_back_from_their_literals(value: Any) -> None:
    literals = Literals()
    text = literals.of(value)
    assert "the salt" not in text  # SEC-2
    names: dict[str, Any] = {}
    exec("\n".join([*literals.imports.values(), f"value = {text}"]), names)
    again = names["value"]
    assert type(again) is type(value)
    assert np.array_equal(again, value) if isinstance(value, np.ndarray) else again == value


@pytest.mark.parametrize("value", [object(), lambda: 1, np.zeros(1000), iter([])])
def test_other_values_have_none(value: Any) -> None:
    with pytest.raises(UnrenderableError):
        Literals().of(value)
