"""What is asked: an engine behind one small interface, whichever way it is reached."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ..console.exit_status import CannotRunError
from .answers import Answer
from .scripts import Ask

__all__ = ["CAPABILITIES", "Facts", "LostError", "RaisedError", "RefusedError", "Subject", "UnusableError"]

CAPABILITIES = {
    "n": "several answers to a request",
    "cache_salts": "cache salts",
    "adapters": "adapters",
    "abort_after": "taking a request back",
    "reset": "a reset of the prefix cache",
    "uncached": "requests that don't look for cached prefixes",
    "restart": "a new engine",
    "cached_tokens": "the number of cached tokens that a request found",
    "alternatives": "the likeliest tokens beside the one that was chosen",
}
"""What an engine may offer beside answers, by the word that reports use."""


class UnusableError(CannotRunError):
    """The engine can't be judged: what it answers, or how, makes no sense. The message is one line."""


class RefusedError(Exception):
    """The engine refused a request in good order; the message is what it said.

    Attributes:
        busy: whether it only had no room for it at that time.
    """

    def __init__(self, message: str, busy: bool = False) -> None:
        super().__init__(message)
        self.busy = busy


class LostError(Exception):
    """The engine does not answer any more: it hangs, it died, or it failed at a request (ENG-2)."""


class RaisedError(LostError):
    """The engine raised something that is no refusal; it may go on, or be of no use any more."""


@dataclass(frozen=True)
class Facts:
    """What is known of an engine.

    Attributes:
        name: what it was asked for by.
        offers: what it offers, words of `CAPABILITIES`.
        page_size: tokens in a page.
        max_model_len: the most tokens of a request, its answer included; 0 where it is not known.
        longer: what the engine says to longer requests, where the limit was found by asking.
        vocab_size: prompts hold token ids below it.
        chunk: the most tokens that a step computes; 0 where it is not known.
        window: positions that a sliding window or a local chunk of the model spans; 0 where it is not known.
        pool: the number of tokens that the engine's pages hold; 0 where it is not known.
        adapters: the names of adapters.
        assumed: what it takes without a word and may pass over: fields of a request that a server need not know.
        forgets: how requests are made cold: a word of `CAPABILITIES`, or "" where nothing does.
        forgets_surely: whether it was seen that they are cold then.
    """

    name: str
    offers: frozenset[str] = frozenset()
    page_size: int = 16
    max_model_len: int = 0
    longer: str = ""
    vocab_size: int = 1000
    chunk: int = 0
    window: int = 0
    pool: int = 0
    adapters: tuple[str, ...] = ()
    assumed: frozenset[str] = frozenset()
    forgets: str = ""
    forgets_surely: bool = False


class Subject(Protocol):
    """An engine as the oracle sees it."""

    facts: Facts

    def ask(self, asks: Sequence[Ask], max_tokens: int, n: int, cold: bool) -> list[list[Answer]]:
        """Sends requests at once and waits for all answers.

        Args:
            asks: the requests, their prompts whole: none follows another.
            max_tokens: the most tokens of each answer.
            n: the number of answers to each.
            cold: whether to ask that no cached prefix is looked for; only where ``uncached`` is offered.

        Returns:
            For each request its answers; none for one that was taken back.

        Raises:
            RefusedError: one was refused.
            LostError: the engine hangs, died or failed.
            UnusableError: an answer makes no sense.
        """

    def reset(self) -> None:
        """Tells the engine to forget all prefixes; see `ask` for what it raises."""

    def restart(self) -> None:
        """Starts the engine again: it has forgotten everything. After a `LostError` it answers again, if it can.

        Raises:
            LostError: it can't be started.
        """

    def close(self) -> None:
        """Lets the engine go."""
