"""Request traces: reading them, and the tokens that they stand for.

A trace has a JSON object a line, as public traces of production services have::

    {"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, ...]}

A hash id names a block of 512 input tokens, the last of which may be cut short; where two requests have the
same ids, their inputs agree. A trace that kvproof wrote begins with the line ``{"kvproof": "trace", "version": 1}``.
"""

import json
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..console.exit_status import CannotRunError
from ..console.terminal import visible
from ..console.writing import write_file

__all__ = [
    *("BLOCK_TOKENS", "HEADER", "MOST_IDS", "VOCABULARY", "TraceError", "TraceRequest", "block_tokens"),
    *("output_tokens", "prompt_tokens", "read_trace", "synthetic_trace", "write_trace"),
]


BLOCK_TOKENS = 512
"""Tokens of a block."""

VOCABULARY = 32_000
"""Token ids lie below this."""

MOST_IDS = VOCABULARY**2
"""Hash ids lie below this: two tokens tell that many blocks apart."""

VERSION = 1
HEADER: dict[str, str | int] = {"kvproof": "trace", "version": VERSION}
"""The first line of a trace that kvproof writes."""

_MOST_LENGTH = 2**31 - 1


class TraceError(CannotRunError):
    """A trace cannot be read or written; the message is one line that says where and why."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace.

    Attributes:
        timestamp: when it arrived, in milliseconds.
        input_length: tokens of its prompt, at least 1.
        output_length: tokens that it generated.
        hash_ids: the blocks of its prompt, ``ceil(input_length / 512)`` of them.
    """

    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]


# -- Reading --------------------------------------------------------------------------------------


def read_trace(path: Path, limit: int | None = None) -> list[TraceRequest]:
    """Reads the requests of a trace, in the order of its lines. O(bytes).

    Args:
        path: the file.
        limit: number of requests to read, from the first on; None reads all.

    Raises:
        TraceError: the file is missing, empty, of another kind, or a line is no request.
    """
    requests: list[TraceRequest] = []
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if limit is not None and len(requests) == limit:
                    break
                if not line.strip():
                    continue
                try:
                    fields = _read_object(line)
                    if not requests and "kvproof" in fields:
                        _read_header(fields)
                    else:
                        requests.append(_read_request(fields))
                except ValueError as error:
                    raise TraceError(f"{path}, line {number}: {error}") from error
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from error
    if not requests:
        raise TraceError(f"{path}: the trace has no requests")
    return requests


def _read_object(line: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"no valid JSON: {error.msg} at column {error.colno}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"no valid JSON: {error.reason} at byte {error.start + 1}") from error
    except RecursionError as error:
        raise ValueError("no valid JSON: nested too deeply") from error
    if not isinstance(fields, dict):
        raise ValueError(f"a line must be an object, not {_excerpt(fields)}")
    return fields


def _read_header(fields: dict[str, Any]) -> None:
    kind, version = fields["kvproof"], fields.get("version")
    if not isinstance(kind, str) or isinstance(version, bool) or not isinstance(version, int):
        raise ValueError("a header without a kind and a version")
    if kind != HEADER["kvproof"]:
        article = "an" if kind[:1] in "aeiou" else "a"
        raise ValueError(f"{article} {visible(kind[:40])}, version {version}: this version replays traces only")
    if version != VERSION:
        raise ValueError(f"a trace, version {version}: this version replays version {VERSION} only")


def _read_request(fields: dict[str, Any]) -> TraceRequest:
    timestamp = _field(fields, "timestamp")
    if isinstance(timestamp, bool) or not isinstance(timestamp, int | float):
        raise ValueError(f"timestamp must be a number, not {_excerpt(timestamp)}")
    if not 0 <= timestamp < math.inf:
        raise ValueError(f"timestamp={_excerpt(timestamp)} must be finite and at least 0")
    input_length = _integer("input_length", _field(fields, "input_length"), 1, _MOST_LENGTH)
    output_length = _integer("output_length", _field(fields, "output_length"), 0, _MOST_LENGTH)
    ids = _field(fields, "hash_ids")
    if not isinstance(ids, list):
        raise ValueError(f"hash_ids must be a list, not {_excerpt(ids)}")
    hash_ids = tuple(_integer(f"hash_ids[{place}]", value, 0, MOST_IDS - 1) for place, value in enumerate(ids))
    blocks = -(-input_length // BLOCK_TOKENS)
    if len(hash_ids) != blocks:
        raise ValueError(f"hash_ids names {len(hash_ids)} blocks, input_length={input_length} has {blocks}")
    return TraceRequest(timestamp, input_length, output_length, hash_ids)


def _field(fields: dict[str, Any], name: str) -> object:
    if name not in fields:
        raise ValueError(f"{name} is missing")
    return fields[name]


def _integer(name: str, value: object, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} must be an integer, not {_excerpt(value)}")
    if not least <= value <= most:
        raise ValueError(f"{name}={_excerpt(value)} must be in [{least}, {most}]")
    return value


def _excerpt(value: object) -> str:
    # the value came out of JSON and goes back into it, so that true does not turn into True
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


# -- Tokens ---------------------------------------------------------------------------------------

# Two streams of one hash: prompts and outputs are not to begin alike by construction.
_PROMPTS = 0x5BD1E995
_OUTPUTS = 0x27D4EB2F


def block_tokens(hash_ids: Sequence[int]) -> NDArray[np.int32]:
    """The tokens of blocks, `i32[blocks, 512]`: equal for equal ids, different for different ones. O(tokens).

    The first two tokens spell the id out, the others are a hash of it.

    Args:
        hash_ids: the blocks' ids, each in ``[0, MOST_IDS)``.
    """
    return _streams(np.asarray(hash_ids, np.uint32), BLOCK_TOKENS, _PROMPTS)


def prompt_tokens(request: TraceRequest) -> NDArray[np.int32]:
    """The tokens of a request's prompt, `i32[input_length]`. O(tokens)."""
    tokens: NDArray[np.int32] = block_tokens(request.hash_ids).ravel()
    return tokens[: request.input_length]


def output_tokens(number: int, count: int) -> NDArray[np.int32]:
    """The first tokens that a request generates, `i32[count]`, of two tokens or more no other's. O(tokens).

    Args:
        number: the request's place in the trace.
        count: how many tokens.
    """
    return _streams(np.array([number], np.uint32), count, _OUTPUTS).ravel()


def _streams(names: NDArray[np.uint32], length: int, stream: int) -> NDArray[np.int32]:
    """A row of tokens for each name, `i32[names, length]`, that depends on the name and the stream only."""
    positions = np.arange(length, dtype=np.uint32) * np.uint32(0x9E3779B1)
    words = _mixed(names * np.uint32(0x85EBCA77) + np.uint32(stream))[:, None] + positions
    tokens = ((_mixed(words) >> np.uint32(16)) * np.uint32(VOCABULARY) >> np.uint32(16)).astype(np.int32)
    # the low digit first: a prompt that is cut after one token still differs from its neighbours
    tokens[:, :1] = (names % VOCABULARY)[:, None]
    tokens[:, 1:2] = (names // VOCABULARY)[:, None]
    return tokens


def _mixed(words: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """MurmurHash3's finalizer: every bit of a word depends on all of them."""
    words = words ^ words >> np.uint32(16)
    words *= np.uint32(0x85EBCA6B)
    words ^= words >> np.uint32(13)
    words *= np.uint32(0xC2B2AE35)
    words ^= words >> np.uint32(16)
    return words


# -- Traces made up on the spot, in the shape of production ones, and the writer of traces ----------------------------

_SYSTEM_PROMPTS = 4
_OPEN_CONVERSATIONS = 12
_LAST_TURN_SHARE = 0.2


@dataclass(eq=False)
class _Conversation:
    """A conversation between two turns: the blocks that its next prompt begins with, and its tokens so far."""

    full_blocks: list[int]
    length: int


def synthetic_trace(num_requests: int, seed: int = 0) -> list[TraceRequest]:
    """Makes up a trace of chats: shared system prompts, and turns that each extend the one before. O(blocks).

    A turn's prompt is everything said before, the answers included, and a new question. So it begins with the
    full blocks of the turn before; the block that was cut short is another one from then on. Requests are a
    fraction of production's size (some 2,000 tokens in, some 60 out), for the specification to keep up.

    Args:
        num_requests: how many requests.
        seed: the same seed gives the same trace.
    """
    chance = random.Random(seed)
    ids = count()
    systems = [[next(ids) for _ in range(chance.randint(1, 3))] for _ in range(_SYSTEM_PROMPTS)]
    conversations: list[_Conversation] = []
    requests: list[TraceRequest] = []
    timestamp = 0
    for _ in range(num_requests):
        timestamp += chance.randint(0, 600)
        if len(conversations) < _OPEN_CONVERSATIONS:
            system = chance.choice(systems)
            conversations.append(_Conversation(system, len(system) * BLOCK_TOKENS))
        conversation = chance.choice(conversations)
        input_length = conversation.length + min(1 + int(chance.expovariate(1 / 300)), 3000)
        output_length = min(1 + int(chance.expovariate(1 / 60)), 400)
        new_blocks = -(-input_length // BLOCK_TOKENS) - len(conversation.full_blocks)
        hash_ids = [*conversation.full_blocks, *(next(ids) for _ in range(new_blocks))]
        requests.append(TraceRequest(timestamp, input_length, output_length, tuple(hash_ids)))
        conversation.full_blocks = hash_ids[: input_length // BLOCK_TOKENS]
        conversation.length = input_length + output_length
        if chance.random() < _LAST_TURN_SHARE:
            conversations.remove(conversation)
    return requests


def write_trace(path: Path, requests: Iterable[TraceRequest]) -> None:
    """Writes a trace with its header, for `read_trace` to read.

    Raises:
        CannotRunError: the file cannot be written.
    """
    write_file(path, "".join(f"{json.dumps(fields)}\n" for fields in (HEADER, *map(asdict, requests))))
