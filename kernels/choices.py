"""Which kernel runs, or why none: recorded for each kernel when a call is traced for a platform.

`taken` is the one place where a kernel is chosen or left out: it warns while a program is compiled, and makes a record
for `explain`.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

__all__ = ["Call", "KernelsUnavailable", "Served", "asked_of", "listening", "taken", "without_kernels"]


class KernelsUnavailable(UserWarning):
    """No kernel takes a call on a TPU or a GPU; XLA's program, which may be far slower, was compiled for it."""


@dataclass(frozen=True)
class Served:
    """Whether a kernel is part of the program that a call is compiled to.

    Attributes:
        function: the public function that was called.
        kernel: the kernel's name, as profilers show it.
        reason: why it is not, so that another kernel or XLA does its work; None: it is.
        blocks: the sizes of the blocks that it works on, a named tuple; None: it is not, or its sizes are fixed.
    """

    function: str
    kernel: str
    reason: str | None
    blocks: Any = None

    @property
    def runs(self) -> bool:
        """Whether the kernel is part of the program."""
        return self.reason is None

    def __str__(self) -> str:
        """One line to read."""
        if not self.runs:
            return f"{self.function}: {self.kernel} does not run: {self.reason}"
        sizes = "" if self.blocks is None else ", ".join(f"{name} {of}" for name, of in self.blocks._asdict().items())
        return f"{self.function}: {self.kernel} runs{f' with blocks of {sizes}' if sizes else ''}"


@dataclass(frozen=True)
class Call:
    """A call that is being traced.

    Attributes:
        function: the public function.
        platform: for which platform.
    """

    function: str
    platform: str | None


_call: ContextVar[Call | None] = ContextVar("_call", default=None)
_barred: ContextVar[str | None] = ContextVar("_barred", default=None)
_listener: ContextVar[list[Served] | None] = ContextVar("_listener", default=None)

_said: set[str] = set()
"""The reasons that were warned of."""

_DEVICES = {"tpu": "TPU", "cuda": "GPU"}


def taken(kernel: str, reason: str | None, *, warn: bool = True, blocks: Callable[[], Any] | None = None) -> bool:
    """Whether a kernel is taken for its part of the call that is being traced. O(1).

    Args:
        kernel: its name.
        reason: why it can't be, or None.
        warn: whether it is worth a warning where it isn't.
        blocks: gives the sizes of its blocks; called only if it is taken.
    """
    call, reason = _call.get(), _barred.get() or reason
    told = _listener.get()
    if call is None:  # a kernel that is called directly, interpreted
        return reason is None
    if told is not None:
        told.append(Served(call.function, kernel, reason, blocks() if blocks and reason is None else None))
    elif reason is not None and warn and reason not in _said:
        _said.add(reason)
        device = _DEVICES[call.platform or ""]
        warnings.warn(
            f"kvproof's {device} kernels are not used for {call.function}, XLA serves: {reason}",
            KernelsUnavailable,
            stacklevel=2,
        )
    return reason is None


@contextmanager
def asked_of(call: Call) -> Iterator[None]:
    """Names the call that is traced while the context is entered."""
    token = _call.set(call)
    try:
        yield
    finally:
        _call.reset(token)


@contextmanager
def without_kernels(reason: str) -> Iterator[None]:
    """Has `taken` refuse all kernels, for this reason, while the context is entered."""
    token = _barred.set(reason)
    try:
        yield
    finally:
        _barred.reset(token)


@contextmanager
def listening() -> Iterator[list[Served]]:
    """Collects the records of kernels in their order, instead of warnings, while the context is entered."""
    told: list[Served] = []
    token = _listener.set(told)
    try:
        yield told
    finally:
        _listener.reset(token)
