"""How much Python a call runs: function calls and instructions, which are the same on every machine and at any load.

Counted are calls of Python and C functions made or run within kvproof and numpy, and the instructions that the
interpreter executes there; array operations written as operators are instructions. What JAX does below a call is its
own.
"""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

__all__ = ["calls_of", "instructions_of"]

_COUNTED = {"kvproof", "numpy"}


def _is_counted(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] in _COUNTED


def calls_of(act: Callable[[], object]) -> int:
    """How many Python and C functions an act calls."""
    calls = 0

    def count(frame: FrameType, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call") and _is_counted(frame)

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        act()
    finally:
        sys.setprofile(before)
    return calls


def instructions_of(act: Callable[[], object]) -> int:
    """How many instructions of the interpreter an act executes."""
    instructions = 0

    def within(_frame: FrameType, event: str, _arg: object) -> Any:
        nonlocal instructions
        instructions += event == "opcode"
        return within

    def enter(frame: FrameType, _event: str, _arg: object) -> Any:
        if not _is_counted(frame):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return within

    before = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # CPython 3.12 asks at settrace whether any frame wants them
    sys.settrace(enter)
    try:
        act()
    finally:
        sys.settrace(before)
    return instructions
