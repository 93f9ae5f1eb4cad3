"""R1: reading the attributes of a request, and the errors for requests that are refused."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvproof.spec.declarations import EngineRequest, EngineRequestStatus

from .arguments import attribute, integer, refusal
from .tokens import NO_TOKENS, listed_bytes, token_view

__all__ = [
    "another",
    "is_running",
    "never_slotted",
    "plain_tokens",
    "read_id",
    "read_prompt",
    "read_request_id",
    "read_tokens",
    "too_long",
]

_ARRAY = np.ndarray
_TOKEN = np.dtype("<i4")
"""The object that numpy shares for this dtype where it is int32, so that such arrays are recognised by identity."""


def read_id(request_id: object, name: str = "request_id") -> str:
    """Reads the id of a request (R1), as a ``str`` also if it is of a derived class.

    A call reads each request's id once and then uses the ``str``, so that no method of a class of the engine's runs,
    and can raise, while the call makes its changes.
    """
    if type(request_id) is str:
        return request_id
    if not isinstance(request_id, str):
        raise refusal(TypeError, "R1", f"{name}={request_id!r} must be a str")
    return str.__str__(request_id)


def read_request_id(request: EngineRequest) -> str:
    """Reads a request's id (R1); see `read_id`."""
    try:
        request_id = request.request_id
    except AttributeError:
        request_id = attribute(request, "request_id")
    return request_id if type(request_id) is str else read_id(request_id, "request.request_id")


def another(request: EngineRequest) -> Exception:
    """The error for a request whose id is live for another object (MAN-6)."""
    return refusal(ValueError, "MAN-6", f"request_id={request.request_id!r} is live for another request")


def never_slotted(computed: int, slots: int) -> Exception:
    """The error for computed tokens beyond the allocated slots (MAN-8)."""
    computed = integer("request.num_computed_tokens", computed)
    return refusal(ValueError, "MAN-8", f"request.num_computed_tokens={computed}: only {slots} have slots")


def too_long(new: int, promised: int, most: int) -> Exception:
    """The error for new tokens with which a request would exceed its maximum length (MAN-2)."""
    new = integer("num_new_tokens", new)
    return refusal(
        ValueError, "MAN-2", f"num_new_tokens={new}: computed + new={promised} tokens exceed max_model_len={most}"
    )


def is_running(request: EngineRequest | None) -> bool:
    """True if a request's status has the name RUNNING (MAN-10)."""
    return request is not None and getattr(request.status, "name", None) == EngineRequestStatus.RUNNING.name


def plain_tokens(request: EngineRequest | None, start: int, stop: int) -> bytes | None:
    """The bytes of the tokens ``[start, stop)`` of a request that keeps them in an int32 array or a list; else None."""
    if request is None:
        return None
    tokens, num_tokens = request.all_token_ids, request.num_tokens
    if stop > num_tokens:
        return None
    if type(tokens) is _ARRAY:
        if tokens.dtype is not _TOKEN or tokens.shape != (num_tokens,):
            return None
        part: NDArray[np.integer[Any]] = tokens[start:stop]
        return part.tobytes()
    if (type(tokens) is not list and not isinstance(tokens, Sequence)) or len(tokens) != num_tokens:
        return None
    return listed_bytes(tokens, start, stop)


def read_tokens(request: EngineRequest, start: int = 0, stop: int | None = None) -> memoryview:
    """The bytes of a request's tokens ``[start, stop)``, not copied: valid only within a call (R1)."""
    tokens, num_tokens = attribute(request, "all_token_ids"), attribute(request, "num_tokens")
    data = token_view("request.all_token_ids", tokens, start, stop)
    if num_tokens != len(tokens):
        raise _miscounted(num_tokens, len(tokens))
    return data


def read_prompt(request: EngineRequest) -> tuple[str, memoryview, Any, Any]:
    """A request's id, token bytes as of `read_tokens`, extra keys (None for none) and sampling parameters (R1).

    These are what a look-up and an admission read; reading them without `attribute` saves 7 calls.
    """
    try:
        request_id, tokens, num_tokens = request.request_id, request.all_token_ids, request.num_tokens
        extra_keys, params = request.extra_keys, request.sampling_params
    except AttributeError:
        read_request_id(request)
        for name in ("all_token_ids", "num_tokens", "extra_keys", "sampling_params"):
            attribute(request, name)  # raises for the one that is missing
        raise
    if type(request_id) is not str:
        request_id = read_id(request_id, "request.request_id")
    if (
        type(tokens) is _ARRAY
        and tokens.dtype is _TOKEN
        and tokens.shape == (num_tokens,)
        and tokens.flags.c_contiguous
    ):
        data = tokens.data.cast("B") if num_tokens else NO_TOKENS  # the usual case of `token_view`
    else:
        data = token_view("request.all_token_ids", tokens)
        if num_tokens != len(tokens):
            raise _miscounted(num_tokens, len(tokens))
    return request_id, data, None if extra_keys == () else extra_keys, params


def _miscounted(num_tokens: object, known: int) -> Exception:
    return refusal(ValueError, "R1", f"request.num_tokens={num_tokens}, but all_token_ids has {known}")
