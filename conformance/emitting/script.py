"""Counterexamples as files: a standalone pytest file of plain Python calls, tried once before it is left anywhere.

Who finds a counterexample supplies its lines (`replaying` those of a machine's calls); here they become a file.
"""

import importlib.util
import json
import os
import re
import runpy
import subprocess
import sys
import tempfile
import textwrap
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kvproof.spec.clauses import CLAUSES

from ..console.exit_status import CannotRunError
from ..console.writing import write_file

__all__ = ["EmitError", "Script", "source_of", "write_test"]


_WIDTH = 110

_SECONDS = 300
"""A trial imports what the backend imports, and makes a few calls."""

_FAILURES = ("AssertionError", "Failed")
"""The errors by which a test fails: those of ``assert`` and of ``pytest.raises``."""


class EmitError(CannotRunError):
    """There is no file; the message is one line that says why."""


@dataclass(frozen=True)
class Script:
    """A counterexample as the body of a test function.

    The lines may use ``backend``, the object that was named on the command line, ``pytest``, and what ``imports`` and
    ``helpers`` define. Whatever in them came from outside (request ids above all) must be Python literals (SEC-4).

    Attributes:
        clause: the label of the clause that is broken.
        expected: what it says of the last call.
        observed: what the backend did.
        backend: the backend's name, ``module`` or ``module:attribute``.
        lines: the statements.
        last: how many of the lines are the part that fails; those before it must not.
        raises: the name of the error that the last part raises by itself, if it is none of a failing assertion.
        imports: import statements beside that of the backend and of pytest.
        helpers: sources of functions.
        found_by: the command that found it, or what else tells where it comes from.
        otherwise: another form of it, for the case that this one does not fail by itself.
    """

    clause: str
    expected: str
    observed: str
    backend: str
    lines: tuple[str, ...]
    last: int = 1
    raises: str = ""
    imports: tuple[str, ...] = ()
    helpers: tuple[str, ...] = ()
    found_by: str = ""
    otherwise: "Script | None" = None


def write_test(path: str | Path, scripts: Sequence[Script]) -> list[str]:
    """Writes counterexamples as one pytest file, after each was seen to fail by itself.

    Args:
        path: the file, ``.py``; what is there already is replaced.
        scripts: the counterexamples, a test function each.

    Returns:
        For each counterexample that was left out, a line that says why.

    Raises:
        CannotRunError: the file cannot be written, pytest is missing (`EmitError`), or no counterexample fails by
            itself; then no file was written.
    """
    file = Path(path)
    if file.suffix != ".py":
        raise EmitError(f"{file}: a pytest file must end in .py")
    if not file.parent.is_dir():
        raise EmitError(f"{file}: there is no directory {file.parent}")
    if importlib.util.find_spec("pytest") is None:
        raise EmitError(f"{file}: pytest missing, by which the file is tried: pip install pytest")
    kept: list[Script] = []
    reasons: list[str] = []
    for script in scripts:
        form: Script | None = script
        why = ""
        while form is not None:
            why = _trial(form)
            if not why:
                kept.append(form)
                break
            form = form.otherwise
        else:
            reasons.append(f"{script.clause} left out: the test does not fail by itself: {why}")
    if not kept:
        raise EmitError(f"{file} not written: {'; '.join(reasons) or 'no deviation was found'}")
    write_file(file, source_of(kept))
    return reasons


def source_of(scripts: Sequence[Script]) -> str:
    """The text of a file of counterexamples, each a test function named by its clause."""
    names = [f"test_{script.clause.lower().replace('-', '_')}" for script in scripts]
    backends = list(dict.fromkeys(script.backend for script in scripts))
    parts = [_quoted(_heading(scripts, backends), ""), ""]
    imports = list(dict.fromkeys(line for script in scripts for line in script.imports))
    if any("pytest." in line for script in scripts for line in script.lines):
        imports.append("import pytest")
    if len(backends) == 1 and any(map(_names_backend, scripts)):
        imports.append(_import_of(backends[0]))
    plain = sorted({line for line in imports if line.startswith("import ")})
    parts += [*plain, *sorted(set(imports) - set(plain))]
    for helper in dict.fromkeys(helper for script in scripts for helper in script.helpers):
        parts += ["", "", helper.rstrip()]
    for place, (name, script) in enumerate(zip(names, scripts, strict=True)):
        number = names[:place].count(name)
        parts += ["", "", f"def {name}{f'_{number + 1}' if number else ''}():", _quoted(_about(script), "    ")]
        alone = len(backends) == 1 or not _names_backend(script)
        lines = script.lines if alone else [_import_of(script.backend), "", *script.lines]
        parts += [f"    {line}" if line else "" for line in lines]
    return "\n".join(parts) + "\n"


def _names_backend(script: Script) -> bool:
    return any(re.search(r"\bbackend\b", line) for line in script.lines)


def _heading(scripts: Sequence[Script], backends: Sequence[str]) -> str:
    labels = ", ".join(dict.fromkeys(script.clause for script in scripts))
    return f"A counterexample: {' and '.join(backends)} breaks {labels} of kvproof.\n\nIt fails by itself: pytest FILE"


def _about(script: Script) -> str:
    """The docstring of a test."""
    known = CLAUSES.get(script.clause)
    told = [f"{script.clause}: {known.sentence}" if known else f"{script.clause}."]
    told.append(f"\nExpected: {script.expected}\nObserved: {script.observed}")
    if script.found_by:
        told.append(f"\nFound by: {script.found_by}")
    return "\n".join(told)


def _quoted(text: str, indent: str) -> str:
    """A docstring that says a text, whatever is in it (SEC-4)."""
    lines = []
    for line in text.split("\n"):
        clean = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in line)
        wrapped = textwrap.wrap(clean, _WIDTH - len(indent), subsequent_indent="  ", break_on_hyphens=False)
        lines += wrapped or [""]
    inner = "\n".join(f"{indent}{line}" if line else "" for line in lines).lstrip(" ")
    escaped = (
        inner.replace("\\", "\\\\").replace('"', '\\"')
        if '"""' in inner or inner.endswith('"')
        else (inner.replace("\\", "\\\\"))
    )
    return f'{indent}"""{escaped}\n{indent}"""'


def _import_of(backend: str) -> str:
    """The import that names a backend ``backend``."""
    module, _, attribute = backend.partition(":")
    names = [*module.split("."), *([attribute] if attribute else [])]
    if not all(name.isidentifier() for name in names):
        raise EmitError(f"backend {backend!r} has no name that an import can name")
    return f"from {module} import {attribute} as backend" if attribute else f"import {module} as backend"


def _trial(script: Script) -> str:
    """Runs a counterexample in a process of its own; why it is none, empty if it fails as it must."""
    with tempfile.TemporaryDirectory(prefix="kvproof-") as directory:
        file = Path(directory) / "test_counterexample.py"
        text = source_of([script])
        file.write_text(text, encoding="utf-8")
        code = "import sys; from kvproof.conformance.emitting.script import tried; tried(sys.argv[1])"
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
        try:
            run = subprocess.run(
                [sys.executable, "-c", code, str(file)],
                capture_output=True,
                text=True,
                timeout=_SECONDS,
                env=os.environ | {"PYTHONPATH": paths},
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"it did not end within {_SECONDS} s"
    if run.returncode != 0:
        told = run.stderr.strip().splitlines()
        return f"it cannot be run: {told[-1] if told else f'exit status {run.returncode}'}"
    error, line = json.loads(run.stdout.splitlines()[-1])
    if not error:
        return "it passes"
    if error not in _FAILURES and error != script.raises:
        return f"{error} in line {line}"
    first = len(text.splitlines()) - script.last + 1
    return "" if line >= first else f"{error} in line {line}, before its last part"


# -- The trial, in a process of its own -------------------------------------------------------------------------------


def tried(path: str) -> None:
    """Runs the one test function of a file; prints the name of the error that it raises and where in the file.

    Args:
        path: the file. What it prints goes before the last line of the output, which is a JSON list: the error's
            type, empty if there was none, and the number of the line of the file that raised it or called what did.
    """
    names = runpy.run_path(path)
    test = next(value for name, value in names.items() if name.startswith("test_") and callable(value))
    told = ("", 0)
    try:
        test()
    except BaseException as error:  # what a test of pytest fails by is no Exception
        lines = [frame.lineno or 0 for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
        told = (type(error).__name__, lines[-1] if lines else 0)
    print()
    print(json.dumps(told))
