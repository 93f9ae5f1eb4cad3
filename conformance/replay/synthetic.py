"""Traces made up on the spot, in the shape of production ones, and the writer of traces."""

import json
import random
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path

from ..console.writing import write_file
from .traces import BLOCK_TOKENS, HEADER, TraceError, TraceRequest

__all__ = ["synthetic_trace", "write_trace"]

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
        TraceError: the file cannot be written.
    """
    try:
        write_file(path, "".join(f"{json.dumps(fields)}\n" for fields in (HEADER, *map(asdict, requests))))
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from error
