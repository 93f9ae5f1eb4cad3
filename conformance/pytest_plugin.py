"""The plugin for pytest: ``pytest --pyargs kvproof.conformance --kvproof-backend module:attribute``.

Importing it costs next to nothing, and in runs that do not collect `test_conformance` it does nothing: it only knows
its options and its marker. Everything else is imported when those tests are to run.
"""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .pytest_run import Run

__all__ = [
    "RUN",
    "pytest_addoption",
    "pytest_collection_finish",
    "pytest_configure",
    "pytest_terminal_summary",
    "pytest_unconfigure",
]

RUN: "pytest.StashKey[Run]" = pytest.StashKey()
"""Where a configuration keeps what runs for its tests."""

_MARKER = "kvproof_clause(label): holds a backend against a clause of kvproof's contract"


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(text)
    return int(text)


_seed.__name__ = "seed"  # what argparse calls it where the text is none


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options."""
    add = parser.getgroup("kvproof", "kvproof: a paged KV cache held against its specification").addoption
    add("--kvproof-backend", metavar="M[:A]", default="kvproof.fast", help="module, or object in it (kvproof.fast)")
    add("--kvproof-level", choices=("exact", "safe"), default="exact", help="how strict (exact)")
    add("--kvproof-profile", choices=("quick", "default"), default="default", help="how long (default)")
    add("--kvproof-without", metavar="A,B", default="", help="capabilities that the backend lacks")
    add("--kvproof-seed", metavar="S", type=_seed, default=0, help="which draws (0: the same in every run)")
    add("--kvproof-xfails", metavar="FILE", help="the clauses that are expected to deviate, a line each")


def pytest_configure(config: pytest.Config) -> None:
    """Makes the marker known."""
    config.addinivalue_line("markers", _MARKER)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Notes which clauses were selected; only their machines run."""
    marks = (item.get_closest_marker("kvproof_clause") for item in session.items)
    labels = list(dict.fromkeys(mark.args[0] for mark in marks if mark is not None))
    if labels and not session.config.option.collectonly:
        from .pytest_run import Run

        session.config.stash[RUN] = Run(session.config, labels)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Says which lines of the file of expected deviations are stale."""
    if RUN in config.stash:
        for line in config.stash[RUN].stale():
            terminalreporter.write_line(f"kvproof: {line}", yellow=True)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Ends what still runs."""
    if RUN in config.stash:
        config.stash[RUN].close()
