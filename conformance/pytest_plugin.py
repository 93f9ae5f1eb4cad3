"""The plugin for pytest: ``pytest --pyargs kvproof.conformance --kvproof-backend module:attribute``.

Importing it costs next to nothing, and in runs that do not collect `test_conformance` it does nothing: it only knows
its options and its marker. Everything else is imported when those tests are to run.
"""

from typing import TYPE_CHECKING, Any

import pytest

from .backends.levels import CHECK_LEVELS

if TYPE_CHECKING:
    from .commands.pytest_run import Run

__all__ = [
    "PROBLEM",
    "RUN",
    "pytest_addoption",
    "pytest_collection_finish",
    "pytest_configure",
    "pytest_sessionfinish",
    "pytest_terminal_summary",
    "pytest_testnodedown",
    "pytest_unconfigure",
]

RUN: "pytest.StashKey[Run]" = pytest.StashKey()
"""Where a configuration keeps what runs for its tests."""

PROBLEM: "pytest.StashKey[str]" = pytest.StashKey()
"""Where it keeps why nothing can run."""

_TOLD: "pytest.StashKey[list[str]]" = pytest.StashKey()
_REMARKS = "kvproof_remarks"

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
    add("--kvproof-level", choices=CHECK_LEVELS, default="exact", help="how strict (exact)")
    add("--kvproof-profile", choices=("quick", "default"), default="default", help="how long (default)")
    add("--kvproof-without", metavar="A,B", default="", help="capabilities that the backend lacks")
    add("--kvproof-seed", metavar="S", type=_seed, default=0, help="which draws (0: the same in every run)")
    add("--kvproof-xfails", metavar="FILE", help="the clauses that are expected to deviate, a line each")


def pytest_configure(config: pytest.Config) -> None:
    """Makes the marker known."""
    config.addinivalue_line("markers", _MARKER)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Notes which clauses were selected; only their machines run.

    Raises:
        pytest.UsageError: an option makes no sense, or what the suite needs is missing.
    """
    marks = (item.get_closest_marker("kvproof_clause") for item in session.items)
    labels = list(dict.fromkeys(mark.args[0] for mark in marks if mark is not None))
    config = session.config
    if not labels or config.option.collectonly:
        return
    try:
        from .commands.pytest_run import Run

        config.stash[RUN] = Run(config, labels)
        return
    except pytest.UsageError as error:
        problem = str(error)
    except ModuleNotFoundError as error:
        problem = f"{error.name} missing: pip install 'kvproof[conformance]'"
    if not hasattr(config, "workerinput"):
        raise pytest.UsageError(problem)
    config.stash[PROBLEM] = problem  # a worker of xdist that ends tells nobody why


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hands over, where this is a worker of xdist, what is to be said at the end."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput[_REMARKS] = _remarks(session.config)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Takes over what a worker of xdist hands over."""
    node.config.stash.setdefault(_TOLD, []).extend(getattr(node, "workeroutput", {}).get(_REMARKS, []))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Says which lines of the file of expected deviations are stale, and of a version that an adapter does not know."""
    for line in dict.fromkeys([*_remarks(config), *config.stash.get(_TOLD, [])]):
        terminalreporter.write_line(f"kvproof: {line}", yellow=True)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Ends what still runs."""
    if RUN in config.stash:
        config.stash[RUN].close()


def _remarks(config: pytest.Config) -> list[str]:
    return config.stash[RUN].remarks() if RUN in config.stash else []
