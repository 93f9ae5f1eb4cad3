"""A Python engine in a process of its own: it may hang, be killed, or take the process with it."""

import importlib
import multiprocessing
import os
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from ..backends.raising import prints_apart
from .answers import Answer
from .python_engine import PythonEngine
from .scripts import Ask
from .subjects import Facts, LostError, RaisedError, RefusedError, UnusableError

__all__ = ["EngineProcess"]

_KINDS = {kind.__name__: kind for kind in (RefusedError, LostError, RaisedError, UnusableError)}

_MARGIN = 2.0
"""Seconds after which a process that should have noticed a time-out itself is given up."""


class EngineProcess:
    """A Python engine, named as ``module:attribute``: one with ``generate``, or what makes one when it is called.

    Args:
        name: the engine's name.
        timeout: the seconds that a call may take.
        start_timeout: the seconds that it may take to import and to make it.

    Attributes:
        facts: what is known of it.

    Raises:
        UnusableError: there is no such engine.
    """

    def __init__(self, name: str, timeout: float, start_timeout: float = 600.0) -> None:
        self._name, self._timeout, self._start_timeout = name, timeout, start_timeout
        try:
            self._begin()
        except LostError as error:
            raise UnusableError(f"{name}: {error}") from error

    def _begin(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        arguments = (self._name, self._timeout, theirs, os.getcwd())
        self._process = context.Process(target=_serve, args=arguments, daemon=True, name="kvproof engine")
        self._process.start()
        theirs.close()
        facts = self._received(self._start_timeout)
        self.facts: Facts = getattr(self, "facts", facts)

    def ask(self, asks: Sequence[Ask], max_tokens: int, n: int, cold: bool) -> list[list[Answer]]:
        """See `Subject`."""
        answers: list[list[Answer]] = self._called("ask", list(asks), max_tokens, n, cold)
        return answers

    def reset(self) -> None:
        """See `Subject`."""
        self._called("reset")

    def restart(self) -> None:
        """See `Subject`: the engine is made again in its process, and a process that is lost is started again."""
        if self._process.is_alive():
            self._called("restart")
        else:
            self._begin()

    def close(self) -> None:
        """See `Subject`."""
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def _called(self, method: str, *arguments: Any) -> Any:
        try:
            self._pipe.send((method, arguments))
        except OSError as error:
            raise LostError(self._end()) from error
        most = self._start_timeout if method == "restart" else self._timeout
        return self._received(most + _MARGIN)

    def _received(self, most: float) -> Any:
        """What the process answers; one that does not is ended."""
        try:
            if not self._pipe.poll(most):
                self._process.kill()
                self._process.join()
                raise LostError(f"no answer within {most:g} s")
            kind, value = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise LostError(self._end()) from error
        if kind:
            if kind == LostError.__name__:  # a thread that hangs stays behind
                self._process.kill()
                self._process.join()
            raise _KINDS[kind](value)
        return value

    def _end(self) -> str:
        self._process.join(_MARGIN)
        code = self._process.exitcode
        return f"the engine's process died {f'of signal {-code}' if code is not None and code < 0 else f'({code})'}"


def _serve(name: str, timeout: float, pipe: Connection, folder: str) -> None:
    """What the process does: makes the engine, then does what it is asked to."""
    sys.path.insert(0, folder)
    with prints_apart():
        try:
            engine = PythonEngine(_found(name), name, timeout)
        except UnusableError as error:
            pipe.send((UnusableError.__name__, str(error)))
            return
        pipe.send(("", engine.facts))
        while True:
            try:
                method, arguments = pipe.recv()
            except EOFError:
                return
            try:
                result = getattr(engine, method)(*arguments)
            except (RefusedError, LostError, UnusableError) as error:
                pipe.send((type(error).__name__, str(error)))
            else:
                pipe.send(("", result))


def _found(name: str) -> Any:
    """The object that ``module:attribute`` names.

    Raises:
        UnusableError: there is none, or its module can't be imported.
    """
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise UnusableError(f"--engine {name} must be like module:attribute")
    try:
        found = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except Exception as error:  # a module may raise anything
        raise UnusableError(f"--engine {name}: {type(error).__name__}: {error}") from error
    return found
