"""Answers of OpenAI-compatible servers: token ids and log-probabilities, wherever a server puts them."""

from collections.abc import Mapping
from typing import Any

from .answers import Answer, UnreadableError, made_answer

__all__ = ["read_completion"]

_ID = "token_id:"
"""How vLLM and SGLang write a token id in place of a token's text."""


def read_completion(document: Any, n: int, num_prompt: int, max_tokens: int) -> list[Answer]:
    """The answers in what ``/v1/completions`` returned.

    Token ids are read from ``token_ids`` or ``tokens`` of a choice, from ``logprobs.content[].id``, or from
    ``logprobs.tokens`` where they are written as ``token_id:7``.

    An answer that leaves some of its tokens out is one without tokens: nothing can be compared with it.

    Args:
        document: the JSON.
        n: the number of answers that were asked for.
        num_prompt: the number of tokens of the prompt.
        max_tokens: the most tokens of an answer.

    Raises:
        UnreadableError: something of it is missing or makes no sense.
    """
    choices = document.get("choices") if isinstance(document, Mapping) else None
    if not isinstance(choices, list) or not all(isinstance(choice, Mapping) for choice in choices):
        error = document.get("error") if isinstance(document, Mapping) else None
        said = f": {error!r:.200}" if error else ""
        raise UnreadableError(f"an answer has no list of choices{said}")
    if len(choices) != n:
        raise UnreadableError(f"an answer has {len(choices)} choices, {n} were asked for")
    cached = _cached(document)
    if cached is not None and cached > num_prompt:
        raise UnreadableError(f"an answer says that {cached} tokens of a prompt of {num_prompt} were cached")
    answers = [_choice(choice, cached) for choice in choices]
    if _generated(document) > sum(len(answer.tokens) for answer in answers):
        answers = [_left_out(cached) for _ in answers]
    for answer in answers:
        if len(answer.tokens) > max_tokens:
            raise UnreadableError(f"an answer has {len(answer.tokens)} tokens, {max_tokens} were asked for")
    return answers


def _left_out(cached: int | None) -> Answer:
    """An answer that says nothing of its tokens: llama.cpp leaves out those that are a part of a character."""
    return Answer((), (), cached=cached, whole=False)


def _generated(document: Mapping[str, Any]) -> int:
    """The number of tokens that the server says it generated; 0 where it does not say."""
    usage = document.get("usage")
    count = usage.get("completion_tokens") if isinstance(usage, Mapping) else None
    return count if isinstance(count, int) else 0


def _cached(document: Mapping[str, Any]) -> int | None:
    """The number of prompt tokens that were found cached, where the server says it."""
    details = document.get("usage")
    details = details.get("prompt_tokens_details") if isinstance(details, Mapping) else None
    cached = details.get("cached_tokens") if isinstance(details, Mapping) else None
    return cached if isinstance(cached, int) and not isinstance(cached, bool) and cached >= 0 else None


def _choice(choice: Mapping[str, Any], cached: int | None) -> Answer:
    logprobs = choice.get("logprobs")
    text = choice.get("text")
    if logprobs is None and isinstance(text, str) and not text.strip("\ufffd") and _ids(choice) is None:
        return (
            Answer((), (), cached=cached) if choice.get("finish_reason") == "stop" and not text else _left_out(cached)
        )
    if not isinstance(logprobs, Mapping):
        raise UnreadableError("the server answers no log-probabilities")
    content = logprobs.get("content")
    if isinstance(content, list) and all(isinstance(entry, Mapping) for entry in content):
        return _of_content(content, _ids(choice), cached)
    tokens, values = logprobs.get("tokens"), logprobs.get("token_logprobs")
    if not isinstance(values, list) or any(value is None for value in values):
        raise UnreadableError("the server answers no log-probabilities")
    ids = _ids(choice)
    names = tokens if isinstance(tokens, list) and len(tokens) == len(values) else None
    if ids is None and names is not None and all(isinstance(name, str) and name.startswith(_ID) for name in names):
        ids = [_number(name.removeprefix(_ID)) for name in names]
    if ids is None:
        raise UnreadableError("the server answers no token ids")
    answer = made_answer(ids, values, cached)
    tables = logprobs.get("top_logprobs")
    whole = names is not None and isinstance(tables, list) and len(tables) == len(values)
    if not whole or not all(isinstance(table, Mapping) for table in tables or ()):
        return answer
    return _with_tables(answer, [dict(table) for table in tables or ()], names or [])


def _ids(choice: Mapping[str, Any]) -> list[Any] | None:
    for name in ("token_ids", "tokens", "output_token_ids"):
        found = choice.get(name)
        if isinstance(found, list) and all(isinstance(token, int) for token in found):
            return found
    return None


def _of_content(content: list[Mapping[str, Any]], ids: list[Any] | None, cached: int | None) -> Answer:
    """An answer of entries that each describe a token, as llama.cpp's server writes them."""
    names = [_name(entry) for entry in content]
    if ids is None and all(isinstance(name, int) for name in names):
        ids = names
    if ids is None:
        raise UnreadableError("the server answers no token ids")
    answer = made_answer(ids, [entry.get("logprob") for entry in content], cached)
    tables = []
    for entry in content:
        likeliest = entry.get("top_logprobs")
        if not isinstance(likeliest, list) or not all(isinstance(one, Mapping) for one in likeliest):
            return answer
        tables.append({_name(one): one.get("logprob") for one in likeliest})
    return _with_tables(answer, tables, names)


def _with_tables(answer: Answer, tables: list[dict[Any, Any]], names: list[Any]) -> Answer:
    """An answer with the likeliest tokens of each position, where those are numbers; its own token among them."""
    for table, name, own in zip(tables, names, answer.logprobs, strict=True):
        if not all(isinstance(value, int | float) for value in table.values()):
            return answer
        table.setdefault(name, own)
    return Answer(answer.tokens, answer.logprobs, tuple(tables), tuple(names), answer.cached)


def _name(entry: Mapping[str, Any]) -> Any:
    """What a server calls a token: its id if there is one, else its text."""
    name = entry.get("id", entry.get("token"))
    if isinstance(name, str) and name.startswith(_ID):
        return _number(name.removeprefix(_ID))
    return name


def _number(text: str) -> int:
    if not text.isdecimal() or len(text) > 10:
        raise UnreadableError(f"token_id:{text:.20} is no token id")
    return int(text)
