"""The conformance suite: holds any backend against the specification, and says which clause it breaks.

From the command line: ``kvproof check --backend module:attribute``. From Python::

    from kvproof.conformance.runner import check

    report = check(load_backend("my_cache"), seed=0)
    report.verdict("POOL-5")

Start with `machines.base`, where two sides make the same call and are compared; every other machine says
which calls. `runner` runs them, `report` tells what they found.
"""

import importlib
from typing import TYPE_CHECKING, Any

from .backends import Backend, BackendError, load_backend

if TYPE_CHECKING:
    from .log import Lockstep, LockstepError, LogError, frames, record, replay_log

__all__ = [
    "Backend",
    "BackendError",
    "Lockstep",
    "LockstepError",
    "LogError",
    "frames",
    "load_backend",
    "record",
    "replay_log",
]


def __getattr__(name: str) -> Any:
    """What is about logs is imported when it is first asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__} has no {name}")
    return getattr(importlib.import_module(".log", __name__), name)
