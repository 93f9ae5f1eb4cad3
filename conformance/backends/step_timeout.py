"""Calls that do not return: each is given some time, what is read after it included, and is stopped when that is over.

Where Python runs, a timer's signal ends the call from inside. A call that imports modules, as those of a package that
it needs first, gets its time again. What is stuck in C sees no signal; it is ended from outside, with its process: the
process writes on a `Board` what it calls, and who started it reads there for how long.
"""

import signal
import struct
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple

from .raising import Ending, is_deaf

__all__ = ["BOARD_SIZE", "Board", "InFlight", "NoAnswer", "Watch", "no_answer"]

BOARD_SIZE = 1 << 16
"""Bytes of shared memory that a board takes; the calls that do not fit are left out."""

_HEADER = struct.Struct("=dqqii")
_HEAD_SIZE = 2048
_HEAD_AT = _HEADER.size
_CALLS_AT = _HEAD_AT + _HEAD_SIZE

_AGAIN = 1.0
"""Seconds after which a call is interrupted again: code may catch whatever is raised in it."""


class NoAnswer(Ending):
    """Ends a call whose time is over."""


def no_answer(seconds: float, at_first: float) -> str:
    """What is observed of a call that did not return, with the name of the option that would let it take longer.

    Args:
        seconds: how long it was waited for.
        at_first: how long before the calls were made fewer.
    """
    return f"no answer within {seconds:g} s (step_timeout{f' at first: {at_first:g} s' if seconds != at_first else ''})"


class InFlight(NamedTuple):
    """What a board shows.

    Attributes:
        since: since when, by `time.monotonic`; 0.0 between calls.
        examples: sequences of calls begun so far.
        steps: steps taken so far.
        machine: the machine.
        step: its step.
        clause: the clause of the call; "" before the step's first one.
        expected: what the specification says of the call.
        calls: the calls so far, the one in flight last.
    """

    since: float
    examples: int
    steps: int
    machine: str
    step: str
    clause: str
    expected: str
    calls: tuple[str, ...]


class Board:
    """Where one process shows what it does, for another to read. Writing costs about a microsecond a call.

    Args:
        memory: `BOARD_SIZE` bytes that both see, zeros at first.
    """

    def __init__(self, memory: Any) -> None:
        self._memory = memoryview(memory).cast("B")
        self._shown = self._end = 0

    def call(self, context: tuple[str, str, int, int], clause: str, expected: str, calls: Sequence[str]) -> None:
        """A call begins, the last of the calls so far.

        Args:
            context: the machine, its step, sequences of calls and steps so far.
            clause: the call's clause.
            expected: what the specification says of it.
            calls: the calls so far.
        """
        machine, step, examples, steps = context
        if len(calls) < self._shown:  # another sequence of calls
            self._shown = self._end = 0
        head = "\0".join((machine, step, clause, expected)).encode(errors="replace")[:_HEAD_SIZE]
        more = b"".join(call.encode(errors="replace") + b"\0" for call in calls[self._shown :])
        more = more[: BOARD_SIZE - _CALLS_AT - self._end]
        self._memory[_HEAD_AT : _HEAD_AT + len(head)] = head
        self._memory[_CALLS_AT + self._end : _CALLS_AT + self._end + len(more)] = more
        self._shown, self._end = len(calls), self._end + len(more)
        _HEADER.pack_into(self._memory, 0, time.monotonic(), examples, steps, len(head), self._end)

    def again(self) -> None:
        """The call's time begins once more."""
        _, *rest = _HEADER.unpack_from(self._memory)
        _HEADER.pack_into(self._memory, 0, time.monotonic(), *rest)

    def end(self) -> None:
        """The call has ended."""
        _HEADER.pack_into(self._memory, 0, 0.0, 0, 0, 0, 0)

    def read(self) -> InFlight | None:
        """What is shown; None between calls. Right only while the writer stands still."""
        since, examples, steps, head, end = _HEADER.unpack_from(self._memory)
        if not since:
            return None
        words = bytes(self._memory[_HEAD_AT : _HEAD_AT + head]).decode(errors="replace").split("\0")
        machine, step, clause, expected = (*words, "", "", "", "")[:4]
        calls = bytes(self._memory[_CALLS_AT : _CALLS_AT + end]).decode(errors="replace").split("\0")
        return InFlight(since, examples, steps, machine, step, clause, expected, tuple(filter(None, calls)))


class Watch:
    """Stops calls that take too long. As a context, it times what is done in it; see `over`.

    Args:
        seconds: how long a call may take, apart from what it imports; 0 for as long as it likes.
        board: where to show what is called.

    Attributes:
        limit: the same, whatever `seconds` becomes.
        pending: the clause of the call that was made last, and what is expected of it.
        longest: how long the longest call took of those that ended by themselves and imported nothing.
        note: says of a call that was stopped; "" if none was.
    """

    def __init__(self, seconds: float = 0.0, board: Board | None = None) -> None:
        self.seconds = self.limit = seconds
        self.pending = "", ""
        self.longest = 0.0
        self.note = ""
        self._board = board
        self._context = "", "", 0, 0
        self._began = 0.0
        self._modules = 0
        self._imports = False
        self._depth = 0
        self._rang = False
        self._alarm = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Listens to the timer, in the main thread, to which alone Python gives signals."""
        if not self.seconds or not hasattr(signal, "setitimer") or not _in_main_thread():
            yield
            return
        before, timer = signal.signal(signal.SIGALRM, self._ring), signal.setitimer(signal.ITIMER_REAL, 0)
        self._alarm = True
        try:
            yield
        finally:
            self._alarm = False
            signal.signal(signal.SIGALRM, before)
            signal.setitimer(signal.ITIMER_REAL, *timer)

    def begin(self, machine: str, step: str, examples: int, steps: int) -> None:
        """A step begins, after the given numbers of sequences of calls and of steps."""
        self._context = machine, step, examples, steps

    def over(self, clause: str, expected: str, calls: Sequence[str]) -> "Watch":
        """Says what comes next: ``with watch.over(clause, expected, calls):`` calls, and reads what came of it.

        Args:
            clause: the call's clause.
            expected: what the specification says of it.
            calls: the calls so far, with it.
        """
        if self.seconds and not self._depth:
            self.pending = clause, expected
            if self._board is not None:
                self._board.call(self._context, clause, expected, calls)
        return self

    def __enter__(self) -> None:
        self._depth += 1
        if self.seconds and self._depth == 1:
            self._began, self._modules = time.monotonic(), len(sys.modules)
            self._rang = self._imports = False
            if self._alarm:
                signal.setitimer(signal.ITIMER_REAL, self.seconds, _AGAIN)

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self.seconds or self._depth:
            return
        if self._alarm:
            signal.setitimer(signal.ITIMER_REAL, 0)
        if self._board is not None:
            self._board.end()
        if not self._rang and not self._imports and len(sys.modules) == self._modules:
            self.longest = max(self.longest, time.monotonic() - self._began)

    def stopped(self) -> bool:
        """Notes that a call was stopped. Returns whether one was stopped before."""
        again = self.hung
        self.note = self.note or f"ended early, in {self._context[1]}: {self.observed}"
        return again

    @property
    def observed(self) -> str:
        """What is observed of a call that was stopped."""
        return no_answer(self.seconds, self.limit)

    @property
    def hung(self) -> bool:
        """Whether a call was stopped."""
        return bool(self.note)

    def _ring(self, _: int, frame: FrameType | None) -> None:
        if not self._depth or is_deaf(frame):  # where it is, the call is interrupted a second later
            return
        if len(sys.modules) != self._modules:  # on a busy machine an import takes minutes
            self._modules, self._imports = len(sys.modules), True
            signal.setitimer(signal.ITIMER_REAL, self.seconds, _AGAIN)
            if self._board is not None:
                self._board.again()
            return
        self._rang = True
        raise NoAnswer


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
