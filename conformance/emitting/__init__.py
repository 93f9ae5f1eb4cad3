"""Counterexamples as standalone pytest files: plain calls on the backend, and one assertion that fails.

`script` makes files of lines and tries each before it is left anywhere. `replaying` takes the steps of a machine again,
and `calls` makes calls that need no machine, while `notes` writes each of them down; `endings` says what the last call
must do, and `lines` makes the lines of a test of both. `literals` writes values, and `calls.readings` looks at a
backend's state.
"""

from typing import TYPE_CHECKING, Any

from .script import EmitError, Script, write_test

if TYPE_CHECKING:
    from .replaying import repeat, script_of

__all__ = ["EmitError", "Script", "repeat", "script_of", "write_test"]


def __getattr__(name: str) -> Any:
    """What needs the machines is imported when it is asked for."""
    if name not in ("repeat", "script_of"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import replaying

    return getattr(replaying, name)
