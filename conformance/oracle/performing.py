"""Asks an engine what a script says, from a state in which it knows nothing of it."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from .answers import Answer
from .scripts import Ask, Forget, Reset, Script, Wave
from .subjects import LostError, RefusedError, Subject

__all__ = ["Exchange", "History", "Performer"]


@dataclass(frozen=True)
class Exchange:
    """A request and what came of it.

    Attributes:
        ask: the request as it was sent, its prompt whole.
        max_tokens: the most tokens that were asked for.
        answers: the answers; none where it was taken back.
        wave: the number of its step in the script; requests of one step were sent at once.
        epoch: a number that grows whenever the engine is made or told to forget.
        cold: whether nothing computed before the last ``Forget`` could be found.
    """

    ask: Ask
    max_tokens: int
    answers: tuple[Answer, ...]
    wave: int
    epoch: int
    cold: bool


@dataclass
class History:
    """What came of a script.

    Attributes:
        script: the script as it was performed: with the tokens that were sent.
        exchanges: the requests that were answered.
        refused: what the engine said when it refused a request; the rest of the script was not performed.
        busy: whether it only had no room for it at that time.
        begun: the number of steps that were begun.
        lost: how the engine was lost, if it was (ENG-2).
        fresh: whether nothing that was computed before the script could be found in it.
    """

    script: Script
    exchanges: list[Exchange] = field(default_factory=list)
    refused: str = ""
    busy: bool = False
    begun: int = 0
    lost: str = ""
    fresh: bool = False


class Performer:
    """Performs scripts on an engine, one after another.

    Before each the engine is made to know nothing of it: by a reset, or by cache salts that were never used. Where
    neither is certain, or a request is to have no salt, each performance has other tokens in the same places.

    Args:
        subject: the engine.
        low: the least token id that is used in place of another.

    Attributes:
        subject: the engine.
        requests: the number of requests sent.
        cached: the number of tokens that requests found cached, as far as the engine says.
        renames: whether other tokens are sent each time, also where the engine is known to forget.
    """

    def __init__(self, subject: Subject, low: int = 0) -> None:
        self.subject = subject
        self.requests = self.cached = 0
        self.renames = False
        self._low, self._performances, self._epoch, self._resets = low, 0, 0, 0

    def perform(self, script: Script) -> History:
        """Performs a script.

        Raises:
            UnusableError: an answer makes no sense.
        """
        facts = self.subject.facts
        self._performances += 1
        fresh = facts.forgets_surely and facts.forgets in ("reset", "cache_salts", "restart")
        bare = facts.forgets == "cache_salts" and any(ask.bare for ask in script.asks)
        history = History(script if fresh and not self.renames and not bare else self._renamed(script), fresh=fresh)
        try:
            self._forget()
            cold = False
            for number, step in enumerate(history.script.steps):
                history.begun = number + 1
                match step:
                    case Wave():
                        self._ask(step, number, cold, history)
                    case Forget():
                        self._forget()
                        cold = True
                    case Reset():
                        self._resets += 1
                        self.subject.reset()
        except RefusedError as error:
            history.refused, history.busy = str(error), error.busy
        except LostError as error:
            history.lost = str(error)
        return history

    def _ask(self, wave: Wave, number: int, cold: bool, history: History) -> None:
        asks = [_whole(ask, history.exchanges) for ask in wave.asks]
        self.requests += len(asks)
        uncached = cold and self.subject.facts.forgets == "uncached"
        answers = self.subject.ask([self._salted(ask) for ask in asks], wave.max_tokens, wave.n, uncached)
        for ask, own in zip(asks, answers, strict=True):
            self.cached += sum(answer.cached or 0 for answer in own)
            history.exchanges.append(
                Exchange(ask, wave.max_tokens, tuple(own), number, self._epoch + self._resets, cold)
            )

    def _forget(self) -> None:
        """Makes the requests that follow cold, where something does."""
        self._epoch += 1
        match self.subject.facts.forgets:
            case "reset":
                self.subject.reset()
            case "restart":
                self.subject.restart()

    def _salted(self, ask: Ask) -> Ask:
        if self.subject.facts.forgets != "cache_salts" or ask.bare:
            return ask
        return replace(ask, salt=f"kvproof {self._epoch} {ask.salt}")

    def _renamed(self, script: Script) -> Script:
        """The script with other tokens in the same places: equal ones stay equal, different ones different."""
        vocabulary = list(range(self._low, self.subject.facts.vocab_size))
        others = vocabulary.copy()
        random.Random(self._performances).shuffle(others)
        table = dict(zip(vocabulary, others, strict=True))
        return script.mapped(lambda ask: replace(ask, prompt=tuple(table.get(token, token) for token in ask.prompt)))


def _whole(ask: Ask, exchanges: Sequence[Exchange]) -> Ask:
    """A request with its prompt whole: what it follows, and its own tokens."""
    if not ask.follows:
        return ask
    before = next(exchange for exchange in exchanges if exchange.ask.name == ask.follows)
    answer = before.answers[0].tokens[: ask.taken] if before.answers else ()
    return replace(ask, prompt=(*before.ask.prompt, *answer, *ask.prompt), follows="", taken=0)
