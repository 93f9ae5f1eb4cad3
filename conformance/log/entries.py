"""What stands in a log, read: objects, requests, operations and states."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvproof.spec.declarations import ExtraKey

__all__ = ["Entry", "Grown", "Made", "NewKeys", "NewRequest", "Operation", "Shown"]


@dataclass(frozen=True)
class Made:
    """An object was made.

    Attributes:
        number: its number.
        name: its class.
        arguments: its constructor's, groups as declarations; or ``of`` and ``group``, where it is a part of another.
    """

    number: int
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class NewRequest:
    """A request, when it was first seen.

    Attributes:
        number: its number.
        request_id: its id.
        tokens: its tokens, `i32[n]`.
        extra_keys: its extra keys.
        prompt_logprobs: as it asked for.
    """

    number: int
    request_id: str
    tokens: NDArray[np.int32]
    extra_keys: tuple[ExtraKey, ...]
    prompt_logprobs: int | None


@dataclass(frozen=True)
class Grown:
    """A request's tokens from one of them on."""

    number: int
    start: int
    tokens: NDArray[np.int32]


@dataclass(frozen=True)
class NewKeys:
    """A request's extra keys from now on."""

    number: int
    extra_keys: tuple[ExtraKey, ...]


@dataclass(frozen=True)
class Operation:
    """A call.

    Attributes:
        number: its number, from 1 on.
        target: the object's number.
        method: the method, or the property that was read.
        arguments: by name, as the log has them.
        told: (request, tokens) of requests that are not handed to it and whose tokens it reads.
        result: what it returned, as the log has it.
        error: the kind of error that it raised, None if it returned.
    """

    number: int
    target: int
    method: str
    arguments: dict[str, Any]
    told: tuple[tuple[int, int], ...] = ()
    result: Any = None
    error: str | None = None


@dataclass(frozen=True)
class Shown:
    """What an object showed after the operations before it.

    Attributes:
        target: the object's number.
        fields: its state, by field.
    """

    target: int
    fields: dict[str, Any]


Entry = Made | NewRequest | Grown | NewKeys | Operation | Shown
"""Anything that a log tells."""
