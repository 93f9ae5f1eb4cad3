"""Whether answers agree: what is said of one question, asked several times, must be the same."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations, takewhile
from typing import Any

from .answers import Answer
from .performing import Exchange, History
from .scripts import Ask

__all__ = ["Contradiction", "apart_at_most", "contradictions", "difference", "largest"]


@dataclass(frozen=True)
class Contradiction:
    """Two answers that can't both be right, or a hit that can't be.

    Attributes:
        first: the name of the request that was answered first.
        second: the name of the other one; the same where one request's own answers differ.
        expected: what the first says.
        observed: what the second says.
        size: how far log-probabilities are apart; infinity where tokens differ that can't be a tie.
        clause: the clause that a hit breaks which may not be; "" for answers that differ.
        by_chance: whether a count says it that chance could make, so that it counts where it comes again.
    """

    first: str
    second: str
    expected: str
    observed: str
    size: float
    clause: str = ""
    by_chance: bool = False


@dataclass(frozen=True)
class _Difference:
    position: int
    size: float
    expected: str
    observed: str


def contradictions(history: History, bound: float) -> Iterator[Contradiction]:
    """What in a history can't be.

    Args:
        history: requests and their answers.
        bound: how far log-probabilities of one token may be apart.
    """
    for first, second, most in _pairs(history):
        found = difference(first[1], second[1], bound, most)
        if found is not None:
            place = f"token {found.position} behind {len(first[2].ask.prompt)} of the prompt"
            expected = f"{found.expected}, {place}, as to {first[0]}"
            yield Contradiction(first[0], second[0], expected, f"{found.observed}, to {second[0]}", found.size)
    yield from _hits(history)
    yield from _hits_by_others(history)


def largest(history: History) -> float:
    """The largest difference of log-probabilities in a history, up to the first token that differs."""
    return max((apart_at_most(first[1], second[1]) for first, second, _ in _pairs(history)), default=0.0)


_NOISY = 1e-3
"""Below such a bound two tokens hardly ever tie."""

_Said = tuple[str, Answer, Exchange]


def _pairs(history: History) -> Iterator[tuple[_Said, _Said, int]]:
    """Pairs of answers that must agree, each cut to where the other one begins; how many tokens both were asked for."""
    said = [(exchange.ask.name, answer, exchange) for exchange in history.exchanges for answer in exchange.answers]
    for first, second in combinations(said, 2):
        one, other = first[2].ask, second[2].ask
        if one.adapter != other.adapter:
            continue
        if one.prompt == other.prompt:
            yield first, second, min(first[2].max_tokens, second[2].max_tokens)
        for earlier, later in ((first, second), (second, first)):
            taken = len(later[2].ask.prompt) - len(earlier[2].ask.prompt)
            whole = (*earlier[2].ask.prompt, *earlier[1].tokens[:taken])
            if 0 < taken < len(earlier[1].tokens) and later[2].ask.prompt == whole:
                most = min(earlier[2].max_tokens - taken, later[2].max_tokens)
                yield (earlier[0], _behind(earlier[1], taken), later[2]), later, most


def _behind(answer: Answer, taken: int) -> Answer:
    """What an answer says behind its first tokens."""
    return replace(
        answer,
        tokens=answer.tokens[taken:],
        logprobs=answer.logprobs[taken:],
        alternatives=answer.alternatives[taken:],
        names=answer.names[taken:],
    )


def difference(first: Answer, second: Answer, bound: float, most: int) -> _Difference | None:
    """Where two answers to one question differ by more than a bound; None where they don't.

    Behind a token that differs nothing can be compared: the texts are others. It is a tie, and no difference, where
    both tokens are as likely as each other, within twice the bound. An answer that ends sooner than the other, and than
    it had to, differs as well: one says that the text ends there.

    Args:
        first: an answer.
        second: another.
        bound: how far log-probabilities of one token may be apart.
        most: the tokens that both were asked for; 0 to pass over where they end.
    """
    for place, (one, other) in enumerate(zip(first.tokens, second.tokens, strict=False)):
        mine, theirs = first.logprobs[place], second.logprobs[place]
        if one != other:
            if bound and _is_tie(first, second, place, bound):
                return None
            return _Difference(place, math.inf, f"token {one} ({mine:.6g})", f"token {other} ({theirs:.6g})")
        apart = _apart(mine, theirs)
        if not apart <= bound:
            expected = f"token {one} with log-probability {mine:.6g}"
            return _Difference(place, apart, expected, f"{theirs:.6g}, {apart:.2g} away")
    end = min(len(first.tokens), len(second.tokens))
    longer = max(first, second, key=lambda answer: len(answer.tokens))
    if not first.whole or not second.whole or end == len(longer.tokens) or end >= most or _may_end(longer, end, bound):
        return None
    said = [
        f"token {answer.tokens[end]} ({answer.logprobs[end]:.6g})" if len(answer.tokens) > end else "the end"
        for answer in (first, second)
    ]
    return _Difference(end, math.inf, *said)


def _may_end(answer: Answer, place: int, bound: float) -> bool:
    """Whether an answer that goes on could have ended, errors within the bound allowed for.

    Nobody says how likely the end was. It is as likely as the token there if that is not the likely one.
    """
    return bound >= _NOISY and answer.logprobs[place] <= math.log(0.5) + 2 * bound


def apart_at_most(first: Answer, second: Answer) -> float:
    """How far log-probabilities of two answers to one question are apart, up to the first token that differs."""
    worst = 0.0
    for place, (one, other) in enumerate(zip(first.tokens, second.tokens, strict=False)):
        if one != other:
            break
        worst = max(worst, _apart(first.logprobs[place], second.logprobs[place]))
    return worst


def _apart(mine: float, theirs: float) -> float:
    """How far two log-probabilities are apart; infinity where only one is a number, 0 where neither is."""
    if mine == theirs or (math.isnan(mine) and math.isnan(theirs)):
        return 0.0
    apart = abs(mine - theirs)
    return math.inf if math.isnan(apart) else apart


def _is_tie(first: Answer, second: Answer, place: int, bound: float) -> bool:
    """Whether either token could have been chosen, errors within the bound allowed for.

    Where the engine does not say how likely the other one was, and hardly has noise, it is taken for a fault.
    """
    if not first.alternatives or not second.alternatives:
        return bound >= _NOISY and _apart(first.logprobs[place], second.logprobs[place]) <= 2 * bound
    for one, other in ((first, second), (second, first)):
        theirs = one.alternatives[place].get(other.names[place])
        if theirs is None or not _apart(one.logprobs[place], theirs) <= 2 * bound:
            return False
    return True


def _hits(history: History) -> Iterator[Contradiction]:
    """Requests that found more cached tokens than anybody may have left there for them (ENG-9, ENG-12).

    A request may find what was asked or answered under its own salt and adapter since the engine forgot, no more. Where
    it has several answers, each may find what the others computed, but for the one that was computed first.
    """
    if not history.fresh:
        return
    for exchange in history.exchanges:
        if len(exchange.answers) > 1 and not all(answer.counts_alone for answer in exchange.answers):
            continue  # one number for all may be that of an answer which found what another computed
        ask = exchange.ask
        now = before = 0
        for other in history.exchanges:
            has_key = (other.ask.salt, other.ask.adapter) == (ask.salt, ask.adapter)
            if other is exchange or other.wave > exchange.wave or not has_key:
                continue
            common = max(_common(ask.prompt, text) for text in _texts(other, ask))
            if other.epoch == exchange.epoch:
                now = max(now, common)
            else:
                before = max(before, common)
        found = min((answer.cached or 0 for answer in exchange.answers), default=0)
        if found > now:
            left = f"at most {now} tokens found cached by {ask.name}: no more was left there for it"
            clause = "ENG-9" if found <= before else "ENG-12"
            yield Contradiction(ask.name, ask.name, left, f"{found} found", math.inf, clause)


def _hits_by_others(history: History) -> Iterator[Contradiction]:
    """Requests that find more or fewer cached tokens for what was asked under other salts or adapters (ENG-12).

    What one finds hangs on what was asked before under its own key alone. So those of one prompt, before which the same
    was asked under their own keys, find as much as each other, whoever else came before: a request for several answers
    that is served from another's pages leaves none under its own key. What it finds itself is one number for all
    answers, and may be that of any of them: it counts if it is larger than those of two alike.
    """
    if not history.fresh:
        return
    kinds: dict[Any, list[tuple[int, bool, str]]] = {}
    for exchange in history.exchanges:
        past, strangers, alone = _past(history, exchange)
        count = exchange.answers[0].cached if exchange.answers else None
        if alone and count is not None and (past or len(exchange.answers) > 1):
            kind = exchange.ask.prompt, exchange.ask.adapter, len(exchange.answers), past
            kinds.setdefault(kind, []).append((count, strangers, exchange.ask.name))
    for (_, _, copies, _), alike in kinds.items():
        for count, strangers, name in alike:
            others = [(count, by) for count, _, by in alike if by != name]
            counts = [count for count, _ in others]
            if strangers and counts and (count not in counts if copies == 1 else count > max(counts) and counts[1:]):
                expected = f"{counts[0]} tokens found cached, as by {others[0][1]}, before which the same was asked"
                observed = f"{count} found by {name}, before which it was asked under other keys, too"
                yield Contradiction(others[0][1], name, expected, observed, math.inf, "ENG-12", by_chance=True)


def _past(history: History, exchange: Exchange) -> tuple[tuple[Any, ...], bool, bool]:
    """What was asked before a request since the engine forgot.

    Returns:
        What was asked under its own salt and adapter; whether something that begins like it was asked under others; and
        whether it was sent alone.
    """
    ask, past, strangers, alone = exchange.ask, [], False, True
    for other in history.exchanges:
        if other is exchange or other.epoch != exchange.epoch or other.wave > exchange.wave:
            continue
        alone = alone and other.wave != exchange.wave
        if (other.ask.salt, other.ask.adapter) == (ask.salt, ask.adapter):
            past.append((other.ask.prompt, other.max_tokens, len(other.answers)))
        else:
            strangers = strangers or other.ask.prompt[:1] == ask.prompt[:1]
    return tuple(past), strangers, alone


def _texts(exchange: Exchange, ask: Ask) -> list[tuple[int, ...]]:
    """What a request may have left in the cache; of one that was taken back any answer."""
    prompt = exchange.ask.prompt
    if not exchange.answers:
        return [(*prompt, *ask.prompt[len(prompt) :])]
    return [(*prompt, *answer.tokens) for answer in exchange.answers]


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """The number of tokens that two texts have in common from their beginnings on."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
