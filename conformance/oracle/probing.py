"""Finds out what an engine offers, by asking: before anything is judged."""

import math
import random
from dataclasses import replace

from .answers import Answer
from .relations import LENGTH, Sizes, draw_prompt
from .scripts import Ask
from .subjects import Facts, LostError, RaisedError, RefusedError, Subject, UnusableError

__all__ = ["find_out"]

_PROMPTS = 4
"""Prompts that are tried until one has an answer with tokens."""

_WAYS = ("reset", "cache_salts", "uncached", "restart")
"""How requests are made cold, the way that is preferred first."""


def find_out(subject: Subject, draw: random.Random, insisted: frozenset[str]) -> Facts:
    """Asks an engine some requests and says what is known then; the facts of the subject are replaced.

    Args:
        subject: the engine.
        draw: of prompts.
        insisted: what the engine is said to offer, whether it shows or not.

    Raises:
        UnusableError: it can't be judged: it refuses a plain request, or answers what makes no sense.
        LostError: it was lost.
    """
    facts = subject.facts
    sizes = Sizes.of(facts)
    for _ in range(_PROMPTS):
        prompt = draw_prompt(draw, sizes, sizes.middle)
        first = _asked(subject, Ask("a", prompt), sizes.answer)
        if first.tokens:
            break
    if not first.tokens:
        raise UnusableError("an answer has no tokens")
    if not all(map(math.isfinite, first.logprobs)):
        said = next(value for value in first.logprobs if not math.isfinite(value))
        raise UnusableError(
            f"an answer gives its own token the log-probability {said}, with which nothing can be compared"
        )
    if "reset" in facts.offers:
        _require_reset(subject)
    facts = _with_length(subject, draw, sizes)
    warm = _asked(subject, Ask("b", prompt), sizes.answer)
    tells = first.cached is not None and warm.cached is not None
    offers = set(facts.offers | insisted)
    offers |= {"cached_tokens"} if tells else set()
    offers |= {"alternatives"} if first.alternatives else set()
    ways: dict[str, bool] = {}
    for way in (way for way in _WAYS if way in offers):
        sure = way in insisted or way not in facts.assumed
        if not sure and tells and warm.cached:
            salt = "kvproof looks" if way == "cache_salts" else ""
            sure = _asked(subject, Ask("c", prompt, salt=salt), sizes.answer, way == "uncached").cached == 0
            if not sure:
                offers.discard(way)  # the engine takes the word, and nothing comes of it
                continue
        ways[way] = sure
    best = next((way for way, sure in ways.items() if sure), next(iter(ways), ""))
    subject.facts = replace(facts, offers=frozenset(offers), forgets=best, forgets_surely=ways.get(best, False))
    return subject.facts


def _require_reset(subject: Subject) -> None:
    try:
        subject.reset()
    except (RefusedError, LostError) as error:
        raise UnusableError(f"its prefix cache can't be reset: {error}") from error


def _with_length(subject: Subject, draw: random.Random, sizes: Sizes) -> Facts:
    """The facts with the most tokens of a request, which is found by halving where the engine doesn't say.

    An engine that hangs or dies at a long request has said nothing of its length: the relations will tell.
    """
    facts = subject.facts
    if facts.max_model_len:
        return facts
    fits, fails, longer = sizes.middle, sizes.long + 1, ""
    length = sizes.long
    while fits + 1 < fails:
        try:
            subject.ask([Ask("l", draw_prompt(draw, sizes, length))], sizes.answer, 1, False)
        except RefusedError as error:
            if error.busy:
                break
            fails, longer = length, str(error)
        except LostError as error:
            try:
                subject.restart()
            except LostError as gone:
                raise UnusableError(f"lost at a request of {length} tokens: {error}; then: {gone}") from error
            if not isinstance(error, RaisedError):
                break
            fails, longer = length, str(error)
        else:
            fits = length
        length = (fits + fails) // 2
    return replace(facts, max_model_len=fits + sizes.answer if longer else LENGTH, longer=longer)


def _asked(subject: Subject, ask: Ask, most: int, cold: bool = False) -> Answer:
    try:
        return subject.ask([ask], most, 1, cold)[0][0]
    except RefusedError as error:
        raise UnusableError(f"a plain request of {len(ask.prompt)} tokens is refused: {error}") from error
    except LostError as error:
        raise UnusableError(f"a plain request is not answered: {error}") from error
