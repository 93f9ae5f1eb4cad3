"""What a backend raises, told apart from what ends a run, and where it raised it.

A backend may raise anything, `SystemExit` and `KeyboardInterrupt` too, and each is a verdict. ^C has to end the run all
the same: so while machines run, the signal raises `Interrupted`, and a plain `KeyboardInterrupt` is the backend's own.
"""

import contextlib
import gc
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from itertools import dropwhile
from pathlib import Path
from types import FrameType
from typing import Any

__all__ = [
    "IN_THE_CALL",
    "Ending",
    "Interrupted",
    "frames",
    "interruptible",
    "is_deaf",
    "prints_apart",
    "was_interrupted",
]

_HERE = Path(__file__).parent.parent
_BACKENDS = (_HERE / "adapters", _HERE / "catalogue")
"""Folders of the suite whose modules are backends."""

IN_THE_CALL = "in the call itself, before any line of the backend"
"""Stands for the frames where there are none."""

_AGAIN = 0.05
"""Seconds after which a signal that came in one of them is sent again."""

_PATIENCE = 5.0
"""Seconds for which a signal waits for an import to end: a backend's own may have none."""

_came: list[int] = []
"""The signals that interrupted something."""

_waiting_since: list[float] = []
"""When the first signal came that is still to interrupt something."""

_FIRST, _LAST = 3, 8
"""The most frames of a traceback that are shown."""


class Ending(BaseException):
    """Ends a run from inside. It is no `Exception`, which a backend may catch, and `attempt` lets it pass."""


class Interrupted(Ending, KeyboardInterrupt):
    """The user, or whoever sends signals, wants the run to end.

    Attributes:
        reports: what was found up to there, where whoever is interrupted can tell; see `runner.run_machine`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reports: list[Any] = []


@contextlib.contextmanager
def interruptible(*signals: signal.Signals, once: bool = False) -> Iterator[None]:
    """Within, signals raise `Interrupted`, but for those that are ignored.

    Modules that are being imported are imported first: compiled ones that are broken off may end the interpreter, and
    what Python calls at the end of an import may lose what is raised in it. Only the main thread receives signals; in
    another one nothing changes.

    Args:
        signals: the signals.
        once: whether only the first of them does; a second one, which would lose what the first is to tell, is ignored.
    """
    interrupted = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        if once and interrupted:
            return
        if _may_interrupt(number, frame):
            interrupted = True
            raise Interrupted

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in signals}
    for number, handler in before.items():
        if handler not in (signal.SIG_IGN, None):
            signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)


def is_deaf(frame: FrameType | None) -> bool:
    """Whether Python ignores what is raised in a frame, and only says that it does."""
    callbacks = {getattr(callback, "__code__", None) for callback in gc.callbacks}  # Hypothesis and JAX have one each
    codes = [found.f_code for found, _ in traceback.walk_stack(frame)]
    return any(code.co_name == "__del__" or code in callbacks for code in codes)


def _is_importing(frame: FrameType | None) -> bool:
    return any(found.f_code.co_filename.startswith("<frozen importlib") for found, _ in traceback.walk_stack(frame))


def _may_interrupt(number: int, frame: FrameType | None) -> bool:
    """Whether a signal may raise where it came; else it is sent again soon."""
    if not _waiting_since:
        _waiting_since.append(time.monotonic())
    waits = time.monotonic() - _waiting_since[0] < _PATIENCE
    if is_deaf(frame) or (waits and _is_importing(frame)):  # the signal would be lost, or the interpreter
        again = threading.Timer(_AGAIN, os.kill, (os.getpid(), number))
        again.daemon = True
        again.start()
        return False
    _waiting_since.clear()
    _came.append(number)
    return True


def was_interrupted() -> bool:
    """Whether a signal has interrupted anything in this process."""
    return bool(_came)


def prints_apart() -> contextlib.AbstractContextManager[Any]:
    """Within, what is printed goes to the standard error stream: a backend's words don't stand amid a report."""
    return contextlib.redirect_stdout(sys.stderr)


def frames(error: BaseException) -> tuple[str, ...]:
    """Where a backend raised: ``file:line in function: text`` for each of its frames, the innermost last.

    Args:
        error: what it raised. The frames of the suite, which called the backend, are left out.
    """
    entries = traceback.extract_tb(error.__traceback__)
    own = list(dropwhile(lambda entry: _is_suite(entry.filename), entries))
    if not own:
        return (IN_THE_CALL,)
    lines = [f"{entry.filename}:{entry.lineno} in {entry.name}: {entry.line}" for entry in own]
    left_out = len(lines) - _FIRST - _LAST
    if left_out > 1:
        lines[_FIRST:-_LAST] = [f"... {left_out} more"]
    return tuple(lines)


def _is_suite(file: str) -> bool:
    path = Path(file)
    if path.parent.name == "importlib" or file.startswith("<frozen importlib"):
        return True
    return path.is_relative_to(_HERE) and not any(path.is_relative_to(folder) for folder in _BACKENDS)
