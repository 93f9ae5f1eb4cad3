"""Engines that are Python objects: anything with a method ``generate(prompts, max_tokens, ...)``."""

import inspect
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ..backends.raising import Ending, frames
from .answers import Answer, UnreadableError, listed, read_answers
from .scripts import Ask
from .subjects import Facts, LostError, RaisedError, RefusedError, UnusableError

__all__ = ["PythonEngine", "facts_of"]

_LISTS = ("cache_salts", "adapters", "abort_after")
"""Options of ``generate`` that are lists, with an entry a prompt."""

_HINTS = {
    "page_size": "page_size",
    "max_model_len": "max_model_len",
    "vocab_size": "vocab_size",
    "max_num_batched_tokens": "chunk",
    "window": "window",
    "num_cached_tokens": "pool",
}
"""Attributes of an engine that say something of it, and the fact that each is."""


def facts_of(engine: Any, name: str, makes: bool) -> Facts:
    """What an engine says of itself: by the options that its ``generate`` names, and by its attributes.

    Args:
        engine: the engine.
        name: what it was asked for by.
        makes: whether another engine like it can be made.

    Raises:
        UnusableError: it has no ``generate``, or an attribute makes no sense.
    """
    if not callable(getattr(engine, "generate", None)):
        raise UnusableError(f"{name} has no method generate(prompts, max_tokens, ...)")
    try:
        named = set(inspect.signature(engine.generate).parameters)
    except (TypeError, ValueError):  # written in C, or the like
        named = set()
    offers = named & {"n", *_LISTS} | ({"restart"} if makes else set())
    offers |= {"reset"} if callable(getattr(engine, "reset", None)) else set()
    hints: dict[str, Any] = {}
    for attribute, fact in _HINTS.items():
        value = getattr(engine, attribute, None)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UnusableError(f"{name}: {attribute}={value!r:.40} must be a positive integer")
        hints[fact] = value
    adapters = tuple(getattr(engine, "adapters", ()))
    if not all(isinstance(adapter, str) for adapter in adapters):
        raise UnusableError(f"{name}: adapters={adapters!r:.60} must be names")
    return replace(Facts(name, frozenset(offers)), adapters=adapters, **hints)


class PythonEngine:
    """An engine in this process. A call that hangs leaves its thread behind.

    Args:
        made: the engine, or what makes one when it is called.
        name: what it was asked for by.
        timeout: the seconds that a call may take.

    Attributes:
        facts: what is known of it.
    """

    def __init__(self, made: Any, name: str, timeout: float) -> None:
        self._name, self._timeout = name, timeout
        makes = inspect.isclass(made) or not callable(getattr(made, "generate", None))
        if makes and not callable(made):
            raise UnusableError(f"{name} has no method generate(prompts, max_tokens, ...)")
        self._make = made if makes else None
        self._engine, self._hangs = made, False
        if makes:
            try:
                self.restart()
            except LostError as error:
                raise UnusableError(f"{name}: no engine can be made: {error}") from error
        self.facts = facts_of(self._engine, name, makes)
        self._options = inspect.signature(self._engine.generate).parameters

    def ask(self, asks: Sequence[Ask], max_tokens: int, n: int, cold: bool) -> list[list[Answer]]:
        """See `Subject`."""
        del cold  # not offered
        options: dict[str, Any] = {
            "n": n,
            "temperature": 0.0,
            "seed": 0,
            "logprobs": _ALTERNATIVES,
            "cache_salts": [ask.salt or None for ask in asks],
            "adapters": [ask.adapter or None for ask in asks],
            "abort_after": [ask.abort_after or None for ask in asks],
        }
        given = {name: value for name, value in options.items() if name in self._options}
        prompts = [list(ask.prompt) for ask in asks]
        answers: list[list[Answer]] = self._called(
            lambda: _read(self._engine.generate(prompts, max_tokens, **given), asks, n, max_tokens)
        )  # read by the call, as a generator computes while it is read
        return answers

    def reset(self) -> None:
        """See `Subject`."""
        self._called(self._engine.reset)

    def restart(self) -> None:
        """See `Subject`. An engine that was given, and not made, goes on as it is, unless it hangs."""
        if self._make is not None:
            try:
                self._engine = self._called(self._make)
            except RefusedError as error:  # nothing was asked that could be refused
                raise RaisedError(str(error)) from error
        elif self._hangs:
            raise LostError("it hangs, and no other can be made")

    def close(self) -> None:
        """See `Subject`."""
        if callable(getattr(self._engine, "close", None)):
            self._called(self._engine.close)

    def _called(self, call: Callable[[], Any]) -> Any:
        """What a call returns, waited for."""
        ends: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

        def run() -> None:
            try:
                ends.put((call(), None))
            except BaseException as error:  # an engine may raise anything
                ends.put((None, error))

        threading.Thread(target=run, daemon=True, name="kvproof engine").start()
        try:
            result, error = ends.get(timeout=self._timeout)
        except queue.Empty:
            self._hangs = True
            raise LostError(f"no answer within {self._timeout:g} s") from None
        if isinstance(error, Ending):
            raise error
        if isinstance(error, UnreadableError):
            raise UnusableError(f"{self._name}: {error}") from error
        if isinstance(error, ValueError):
            raise RefusedError(_brief(error)) from error
        if error is not None:
            raise RaisedError(f"{_brief(error)} ({frames(error)[-1]})") from error
        return result


_ALTERNATIVES = 5
"""The number of likeliest tokens that are asked for at each position."""


def _read(result: Any, asks: Sequence[Ask], n: int, max_tokens: int) -> list[list[Answer]]:
    """The answers in what ``generate`` returned; none for requests that were taken back."""
    stays = [not ask.abort_after for ask in asks]
    if all(stays):
        read = read_answers(result, len(asks), n)
    else:
        results = listed(result, "what generate returns")
        if len(results) != len(asks):
            raise UnreadableError(f"generate returned {len(results)} results for {len(asks)} prompts")
        read = [read_answers([one], 1, n)[0] if stayed else [] for one, stayed in zip(results, stays, strict=True)]
    for answers in read:
        for answer in answers:
            if len(answer.tokens) > max_tokens:
                raise UnreadableError(f"an answer has {len(answer.tokens)} tokens, {max_tokens} were asked for")
    return read


def _brief(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
