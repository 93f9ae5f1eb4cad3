"""The conformance suite: holds any backend against the specification, and says which clause it breaks.

From the command line: ``kvproof check --backend module:attribute``. From Python::

    from kvproof.conformance import check, load_backend

    report = check(load_backend("my_cache"), seed=0)
    report.verdict("POOL-5")

A room imports only rooms before it:

* `console`: exit statuses, words of options, progress, files that are written whole or not at all.
* `backends`: what is judged, by name; levels; what a backend raises.
* `calls`: a call as a value; one row for each method.
* `engine`: an engine of ours, to be spoilt and to be served with.
* `machines`: two sides make the same calls and are compared (start with `machines.base`); small worlds, all of them.
* `trying`: calls that were written down, made on both sides, and judged one by one.
* `emitting`, `report`: what was found, as a test; as verdicts, for people and for programs.
* `oracle`: any engine, judged by what it answers to requests.
* `search`: runs the machines in processes, makes short what deviates. `catalogue`: seeded bugs that it must find.
* `log`, `timeline`, `replay`: calls of live engines, drawn, of a trace of requests.
* `adapters`: packages that are not ours. `commands`: what ``kvproof`` offers, a module each.
"""

import importlib
from typing import TYPE_CHECKING, Any

from .backends.loading import Backend, BackendError, load_backend
from .backends.protocols import ExactManager, ExactPool, SafeManager, SafePool, TableRows

if TYPE_CHECKING:
    from .log import Lockstep, LockstepError, LogError, record, replay_log
    from .log.frames import frames  # not by way of .log, where a module has that name, too
    from .search.runner import check

__all__ = [
    "Backend",
    "BackendError",
    "ExactManager",
    "ExactPool",
    "Lockstep",
    "LockstepError",
    "LogError",
    "SafeManager",
    "SafePool",
    "TableRows",
    "check",
    "frames",
    "load_backend",
    "record",
    "replay_log",
]


def __getattr__(name: str) -> Any:
    """The search and the logs are imported when they are first asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__} has no {name}")
    return getattr(importlib.import_module(".search.runner" if name == "check" else ".log", __name__), name)
