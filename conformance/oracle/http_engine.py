"""Engines behind an OpenAI-compatible server, asked by ``/v1/completions`` with token ids as prompts.

Its answers are token ids and log-probabilities, wherever a server puts them.
"""

import http.client
import json
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from typing import Any
from urllib.parse import urlsplit

from .answers import Answer, UnreadableError, made_answer
from .scripts import Ask
from .subjects import Facts, LostError, RefusedError, UnusableError

__all__ = ["HttpEngine", "read_completion"]


_RESETS = ("/reset_prefix_cache", "/flush_cache")
"""Where servers take the order to forget all prefixes: vLLM's in its development mode, SGLang's."""

_EXTRAS: dict[str, dict[str, Any]] = {
    "return_token_ids": {"return_token_ids": True},
    "return_tokens_as_token_ids": {"return_tokens_as_token_ids": True},
    "ignore_eos": {"ignore_eos": True},
}
"""Fields that some servers know beyond OpenAI's, which make answers clearer."""

_OPTIONS: dict[str, dict[str, Any]] = {"cache_salts": {"cache_salt": "kvproof"}, "uncached": {"cache_prompt": False}}
"""The fields by which capabilities are asked for."""

_ALTERNATIVES = 5
"""The number of likeliest tokens that are asked for at each position."""

_PLAIN: tuple[dict[str, Any], ...] = (
    {"seed": 0, "logprobs": _ALTERNATIVES},
    {"logprobs": _ALTERNATIVES},
    {"seed": 0, "logprobs": 1},
    {"logprobs": 1},
)
"""Fields of OpenAI's that some servers refuse, or take small values of only: the first that are taken are sent."""

_VOCABULARIES = (1000, 256, 64, 16)
"""Sizes of vocabularies that are tried where none is given, the largest first."""

_BUSY = (429, 503)
"""The statuses of servers that have no room at the time."""

_MOST_BYTES = 1 << 26
"""An answer of more bytes is not read on (SEC-3)."""


class _StatusError(Exception):
    """The server answered with a status that is no success."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(f"status {status}: {said}")
        self.status = status


class HttpEngine:
    """A server. Requests that are sent at once go over connections of their own.

    Args:
        url: where the API is, up to and including ``/v1``.
        timeout: the seconds that a request may take.
        model: the model's name; None for the first that the server lists.
        vocab_size: token ids of prompts are below it; None to try some sizes.

    Attributes:
        facts: what is known of it.

    Raises:
        UnusableError: nothing answers there, or what answers is no such server.
    """

    def __init__(self, url: str, timeout: float, model: str | None = None, vocab_size: int | None = None) -> None:
        place = urlsplit(url)
        if place.scheme not in ("http", "https") or not place.hostname:
            raise UnusableError(f"--url {url} must be like http://host:port/v1")
        try:
            self._port = place.port
        except ValueError as error:
            raise UnusableError(f"--url {url}: {error}") from error
        self._secure, self._host = place.scheme == "https", place.hostname
        self._path = place.path.rstrip("/")
        self._root = self._path.removesuffix("/v1")
        self._url, self._timeout = url, timeout
        self._extras: dict[str, Any] = {}
        self._plain = _PLAIN[0]
        self._model = self._first_model() if model is None else model
        vocabulary = self._vocabulary(vocab_size)
        offers, assumed = self._offers()
        self.facts = Facts(url, offers, vocab_size=vocabulary, assumed=assumed)

    # -- What the server is -----------------------------------------------------------------------------------

    def _first_model(self) -> str:
        try:
            listed = self._sent("GET", f"{self._path}/models", None)
            name = listed["data"][0]["id"]
        except (_StatusError, KeyError, IndexError, TypeError, UnreadableError) as error:
            if isinstance(error, _StatusError) and error.status in (401, 403):
                raise UnusableError(f"{self._url} wants a key, and none is sent: {error}") from error
            said = "it is empty" if isinstance(error, IndexError) else error
            meant = "" if self._path.endswith("/v1") else f"did you mean {self._url.rstrip('/')}/v1? Otherwise "
            raise UnusableError(
                f"{self._url}: no list of models at /models ({said}); {meant}name one: --served-model"
            ) from error
        except LostError as error:
            raise UnusableError(f"{self._url}: {error}") from error
        if not isinstance(name, str):
            raise UnusableError(f"{self._url}: /models lists {name!r:.40}, which is no name")
        return name

    def _vocabulary(self, given: int | None) -> int:
        """The size of the vocabulary: the first that is tried of which the last token is taken.

        Along with it the fields of `_PLAIN` that go with each request are found.
        """
        refusal = ""
        sizes: tuple[int, ...] = (given,) if given is not None else _VOCABULARIES
        size: int
        for plain, size in product(_PLAIN, sizes):
            self._plain = plain
            try:
                self._sent("POST", f"{self._path}/completions", self._body(Ask("a", (size - 1, size // 2)), 1, 1))
            except _StatusError as error:
                if error.status in (404, 405):
                    raise UnusableError(f"{self._url} has no /completions: {error}") from error
                if error.status in _BUSY:
                    raise UnusableError(f"{self._url} is busy: {error}") from error
                refusal = refusal or str(error)
            except LostError as error:
                raise UnusableError(f"{self._url}: {error}") from error
            except UnreadableError as error:
                raise UnusableError(f"{self._url}: {error}") from error
            else:
                return size
        below = f" below {given}" if given is not None else ""
        raise UnusableError(f"{self._url} refuses prompts of token ids{below}: {refusal}")

    def _offers(self) -> tuple[frozenset[str], frozenset[str]]:
        """What the server offers, and what of it may be passed over."""
        for name, extra in _EXTRAS.items():
            if self._takes(extra):
                self._extras |= extra
            del name
        strict = not self._takes({"kvproof_no_such_field": 1})
        offers = {name for name, fields in _OPTIONS.items() if self._takes(fields)}
        assumed = set() if strict else set(offers)
        offers |= {"n"} if self._takes({"n": 2}) else set()
        offers |= {"abort_after"} if self._streams() else set()
        for path in _RESETS:
            self._reset_path = self._root + path
            try:
                self._sent("POST", self._reset_path, {}, empty=True)
            except (_StatusError, UnreadableError):
                continue
            except LostError as error:
                raise UnusableError(f"{self._url}: {error}") from error
            offers.add("reset")
            break
        return frozenset(offers), frozenset(assumed)

    def _takes(self, fields: Mapping[str, Any]) -> bool:
        """Whether the server takes a request with some more fields, and answers as many choices as are asked for."""
        body = {**self._body(Ask("a", (1, 2)), 1, 1), **fields}
        try:
            answer = self._sent("POST", f"{self._path}/completions", body)
        except _StatusError:
            return False
        except LostError as error:
            raise UnusableError(f"{self._url}: a request with {', '.join(fields)}: {error}") from error
        except UnreadableError as error:
            raise UnusableError(f"{self._url}: {error}") from error
        return isinstance(answer, dict) and len(answer.get("choices") or ()) == fields.get("n", 1)

    def _streams(self) -> bool:
        """Whether answers come piece by piece, so that a request can be taken back amid them."""
        try:
            return self._abort(Ask("a", (1, 2), abort_after=1), 2)
        except (_StatusError, LostError):
            return False

    # -- As a subject -----------------------------------------------------------------------------------------

    def ask(self, asks: Sequence[Ask], max_tokens: int, n: int, cold: bool) -> list[list[Answer]]:
        """See `Subject`."""
        with ThreadPoolExecutor(len(asks), thread_name_prefix="kvproof") as pool:
            barrier = threading.Barrier(len(asks))
            ends = [pool.submit(self._asked, ask, max_tokens, n, cold, barrier) for ask in asks]
            errors = [error for end in ends if (error := end.exception()) is not None]
        for kind in (LostError, UnusableError, RefusedError):
            for error in errors:
                if isinstance(error, kind):
                    raise error
        return [end.result() for end in ends]

    def _asked(self, ask: Ask, max_tokens: int, n: int, cold: bool, barrier: threading.Barrier) -> list[Answer]:
        barrier.wait()
        try:
            if ask.abort_after:
                self._abort(ask, max_tokens)
                return []
            answer = self._sent("POST", f"{self._path}/completions", self._body(ask, max_tokens, n, cold))
            return read_completion(answer, n, len(ask.prompt), max_tokens)
        except _StatusError as error:
            busy = error.status in _BUSY
            if error.status >= 500 and not busy:
                raise LostError(f"the server failed at a request: {error}") from error
            raise RefusedError(str(error), busy) from error
        except UnreadableError as error:
            raise UnusableError(f"{self._url}: {error}") from error

    def reset(self) -> None:
        """See `Subject`."""
        try:
            self._sent("POST", self._reset_path, {}, empty=True)
        except _StatusError as error:
            raise RefusedError(f"{self._reset_path}: {error}") from error
        except UnreadableError as error:
            raise UnusableError(f"{self._url}: {error}") from error

    def restart(self) -> None:
        """See `Subject`. Nobody here can start a server; one that hung may answer others."""
        try:
            self._asked(Ask("a", (1, 2)), 1, 1, False, threading.Barrier(1))
        except (RefusedError, UnusableError) as error:
            raise LostError(str(error)) from error

    def close(self) -> None:
        """See `Subject`."""

    # -- HTTP -------------------------------------------------------------------------------------------------

    def _body(self, ask: Ask, max_tokens: int, n: int, cold: bool = False) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": ask.adapter or getattr(self, "_model", ""),
            "prompt": list(ask.prompt),
            "max_tokens": max_tokens,
            "temperature": 0,
            **self._plain,
            **self._extras,
        }
        body |= {"n": n} if n > 1 else {}
        body |= {"cache_salt": ask.salt} if ask.salt else {}
        return body | ({"cache_prompt": False} if cold else {})

    def _connected(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        return kind(self._host, self._port, timeout=self._timeout)

    def _sent(self, method: str, path: str, body: Any, empty: bool = False) -> Any:
        """What the server answers to a request, as JSON; with ``empty`` it may be of any form."""
        begun = time.monotonic()
        connection = self._connected()
        try:
            with _request(connection, method, path, body) as response:
                raw = _read(response, begun + self._timeout)
        except (TimeoutError, socket.timeout) as error:  # noqa: UP041 - one name for each way to read it
            raise LostError(f"no answer within {time.monotonic() - begun:.0f} s") from error
        except (OSError, http.client.HTTPException) as error:
            raise LostError(f"the connection broke: {type(error).__name__}: {error}") from error
        finally:
            connection.close()
        if not 200 <= response.status < 300:
            raise _StatusError(response.status, " ".join(raw[:300].decode(errors="replace").split()))
        if empty:
            return None
        if raw.startswith(b"data:"):
            raise UnreadableError("the server answers in pieces, as streams are, though it is not asked to")
        try:
            return json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise UnreadableError(f"the server answers no JSON: {error}") from error

    def _abort(self, ask: Ask, max_tokens: int) -> bool:
        """Asks piece by piece, and hangs up after some; returns whether they came so."""
        body = self._body(replace(ask, abort_after=0), max_tokens, 1) | {"stream": True}
        connection, ends = self._connected(), time.monotonic() + self._timeout
        try:
            with _request(connection, "POST", f"{self._path}/completions", body) as response:
                if not 200 <= response.status < 300:
                    raise _StatusError(response.status, " ".join(response.read(300).decode(errors="replace").split()))
                pieces = 0
                while pieces < ask.abort_after:
                    line = response.readline(_MOST_BYTES)
                    if not line:
                        break
                    _require_time(ends)
                    pieces += line.startswith(b"data:")
                return pieces == ask.abort_after
        except (TimeoutError, socket.timeout) as error:  # noqa: UP041
            raise LostError(f"no answer within {self._timeout:g} s") from error
        except (OSError, http.client.HTTPException) as error:
            raise LostError(f"the connection broke: {type(error).__name__}: {error}") from error
        finally:
            connection.close()


def _read(response: http.client.HTTPResponse, ends: float) -> bytes:
    """The body of an answer, as much of it as may be read; a server that sends it drop by drop has no more time."""
    parts, size = [], 0
    while size < _MOST_BYTES and (part := response.read1(_MOST_BYTES - size)):
        parts.append(part)
        size += len(part)
        _require_time(ends)
    return b"".join(parts)


def _require_time(ends: float) -> None:
    if time.monotonic() > ends:
        raise TimeoutError


def _request(connection: http.client.HTTPConnection, method: str, path: str, body: Any) -> http.client.HTTPResponse:
    text = None if body is None else json.dumps(body)
    connection.request(method, path, text, {"Content-Type": "application/json"} if text else {})
    return connection.getresponse()


# -- What a server answers, read --------------------------------------------------------------------------------------


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
