"""Answers of engines: token ids with their log-probabilities, read from the many forms in which they come."""

import inspect
from collections.abc import AsyncIterable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

__all__ = ["Answer", "UnreadableError", "listed", "read_answers"]


class UnreadableError(Exception):
    """An answer that says too little, or what makes no sense; the message is one line."""


@dataclass(frozen=True)
class Answer:
    """What an engine generated for a request.

    Attributes:
        tokens: the token ids.
        logprobs: the log-probability of each, natural logarithm.
        alternatives: for each position the log-probabilities of the likeliest tokens, by what the engine calls them;
            empty where it says none.
        names: what the engine calls each token in ``alternatives``.
        cached: the number of prompt tokens that were found cached; None where the engine does not say.
        counts_alone: whether that number is this answer's own, and none for all answers to a prompt.
        whole: whether all tokens that were generated are in it: where it ends, the engine ended it.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    alternatives: tuple[Mapping[Any, float], ...] = ()
    names: tuple[Any, ...] = field(default=())
    cached: int | None = None
    counts_alone: bool = False
    whole: bool = True


def read_answers(given: Any, num_prompts: int, n: int) -> list[list[Answer]]:
    """What a call of ``generate`` returned.

    Args:
        given: for each prompt an answer, or for ``n > 1`` a list of answers. An answer is a pair of token ids and
            log-probabilities, or has ``token_ids`` and ``logprobs`` as keys or attributes, and may have
            ``cached_tokens``. A log-probability is a number, or the likeliest tokens of that position with theirs. An
            object with ``outputs`` has the answers there.
        num_prompts: the number of prompts.
        n: the number of answers that were asked for.

    Raises:
        UnreadableError: something of it is missing or makes no sense.
    """
    results = listed(given, "what generate returns")
    if len(results) != num_prompts:
        raise UnreadableError(f"generate returned {len(results)} results for {num_prompts} prompts")
    return [_of_prompt(result, n) for result in results]


def _of_prompt(result: Any, n: int) -> list[Answer]:
    cached = _get(result, "cached_tokens", "num_cached_tokens")
    outputs = _get(result, "outputs")
    if outputs is None:
        outputs = [result] if n == 1 and not _is_list_of_answers(result) else result
    several = listed(outputs, "a result")
    if len(several) != n:
        raise UnreadableError(f"a result holds {len(several)} answers, {n} were asked for")
    return [_answer(one, cached) for one in several]


def _is_list_of_answers(result: Any) -> bool:
    """Whether a result for one answer is a list that holds it: a pair holds two lists of numbers."""
    return isinstance(result, list) and len(result) == 1


def _answer(one: Any, cached: Any) -> Answer:
    if isinstance(one, Sequence) and not isinstance(one, str) and len(one) == 2 and _get(one, "token_ids") is None:
        tokens, logprobs = one
    else:
        tokens, logprobs = _get(one, "token_ids", "tokens"), _get(one, "logprobs")
    if tokens is None:
        raise UnreadableError("the engine answers no token ids")
    if logprobs is None:
        raise UnreadableError("the engine answers no log-probabilities")
    own = _get(one, "cached_tokens")
    made = made_answer(listed(tokens, "token_ids"), listed(logprobs, "logprobs"), cached if own is None else own)
    return replace(made, counts_alone=own is not None)


def made_answer(tokens: Sequence[Any], logprobs: Sequence[Any], cached: Any) -> Answer:
    """An answer of what was said of each token.

    Args:
        tokens: the token ids.
        logprobs: of each token a number, or the likeliest tokens with theirs.
        cached: the number of prompt tokens that were found, or None.

    Raises:
        UnreadableError: they are no numbers, or not as many as tokens.
    """
    ids = tuple(_token(token) for token in tokens)
    if len(logprobs) != len(ids):
        raise UnreadableError(f"an answer has {len(ids)} token ids and {len(logprobs)} log-probabilities")
    if not all(isinstance(entry, Mapping) for entry in logprobs):
        return Answer(ids, tuple(map(_number, logprobs)), cached=_count(cached))
    tables = tuple({name: _number(value) for name, value in entry.items()} for entry in logprobs)
    for token, table in zip(ids, tables, strict=True):
        if token not in table:
            raise UnreadableError(f"an answer has no log-probability of its own token {token}")
    chosen = tuple(table[token] for token, table in zip(ids, tables, strict=True))
    return Answer(ids, chosen, tables, ids, _count(cached))


def _get(holder: Any, *names: str) -> Any:
    """The first of some keys or attributes that is there; None if none is."""
    for name in names:
        found = holder.get(name) if isinstance(holder, Mapping) else getattr(holder, name, None)
        if found is not None and not callable(found):
            return found
    return None


def listed(values: Any, what: str) -> list[Any]:
    """The values of a list, a tuple, an array or anything else that is gone through once, as generators are.

    Args:
        values: the values.
        what: what a message calls them.

    Raises:
        UnreadableError: they are no such thing.
    """
    if hasattr(values, "tolist"):
        values = values.tolist()
    if inspect.isawaitable(values) or isinstance(values, AsyncIterable):
        if inspect.iscoroutine(values):
            values.close()  # else Python warns that nobody awaited it
        raise UnreadableError(f"{what} must be a list, not {type(values).__name__}: an async function has to be run")
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise UnreadableError(f"{what} must be a list, not {type(values).__name__}")
    return list(islice(values, _MOST_VALUES))


_MOST_VALUES = 1 << 20
"""A list of more values is not read on: a generator may have no end."""


def _token(token: Any) -> int:
    if hasattr(token, "item"):
        token = token.item()
    if not isinstance(token, int) or isinstance(token, bool) or token < 0:
        raise UnreadableError(f"{token!r:.40} is no token id")
    return token


def _number(value: Any) -> float:
    value = getattr(value, "logprob", value)
    if hasattr(value, "item"):
        value = value.item()
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise UnreadableError(f"{value!r:.40} is no log-probability")
    if value > _MOST:
        raise UnreadableError(f"{value!r} is no log-probability: it must be at most 0")
    return float(value)


_MOST = 1e-2
"""Log-probabilities are at most 0, but for rounding."""


def _count(value: Any) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise UnreadableError(f"cached_tokens={value!r:.40} is no number of tokens")
    return value
