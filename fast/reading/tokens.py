"""Token ids as contiguous little-endian int32 bytes: what keys are computed over and prefixes are compared as.

A call reads a request's tokens where they lie, by a `memoryview` of bytes; only what is kept beyond it is copied. A
copy takes 4 us for 32,768 tokens, a fifth of their look-up, and more where memory is fresh.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .arguments import plain_cells, refusal, shown

__all__ = ["NO_TOKENS", "TokenBytes", "listed_bytes", "token_bytes", "token_view"]

Tokens = Sequence[int] | NDArray[np.integer[Any]]

TokenBytes = bytes | memoryview
"""4 bytes a token, little-endian; a view is of single bytes."""

NO_TOKENS = memoryview(b"")

_INT32 = np.iinfo(np.int32)


def token_view(name: str, tokens: Tokens, start: int = 0, stop: int | None = None) -> memoryview:
    """Reads the tokens ``[start, stop)`` (R1), for as long as nobody changes them: within a call.

    Args:
        name: what to call them in an error.
        tokens: a one-dimensional integer array, or a sequence of ints. An int32 array is looked at where it lies,
            anything else converted (tens of ns a token).
        start: the first token.
        stop: the end; None for all.

    Returns:
        4 bytes a token.

    Raises:
        TypeError: there is something else than ints; a bool is none.
        ValueError: a token does not fit an int32.
    """
    if isinstance(tokens, np.ndarray):
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
            raise refusal(
                TypeError, "R1", f"{name} must be a 1-d integer array, not {tokens.dtype}{list(tokens.shape)}"
            )
        part = tokens[start:stop]
        if tokens.dtype != np.int32:
            _require_int32(name, part)
        return np.ascontiguousarray(part, "<i4").data.cast("B") if part.size else NO_TOKENS
    if isinstance(tokens, str | bytes) or not isinstance(tokens, Iterable):
        raise refusal(TypeError, "R1", f"{name}={shown(tokens)} must be a sequence of ints")
    values: Sequence[Any] = tokens[start:stop] if isinstance(tokens, Sequence) else list(tokens)[start:stop]
    if not values:
        return NO_TOKENS
    cells = plain_cells(values if type(values) is list else list(values))
    if cells is None:  # one by one: what is wrong is named
        for place, value in enumerate(values, start):
            if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
                raise refusal(TypeError, "R1", f"{name}[{place}] must be an int, not a {type(value).__name__}")
        _require_int32(name, values)
        cells = np.array(values, "<i4")
    return np.ascontiguousarray(cells).data.cast("B")


def listed_bytes(tokens: Sequence[int], start: int, stop: int) -> bytes | None:
    """The bytes of the tokens ``[start, stop)`` of a sequence that has them; None if they are not plain ints of int32.

    What gets None is refused, or read in another way, by `token_view`.
    """
    values = tokens[start:stop]
    cells = plain_cells(values) if type(values) is list else None
    return None if cells is None else cells.tobytes()


def token_bytes(name: str, tokens: Tokens) -> bytes:
    """`token_view` of all tokens, copied: to be kept."""
    return bytes(token_view(name, tokens))


def _require_int32(name: str, values: Iterable[Any]) -> None:
    for place, value in enumerate(values):
        if not _INT32.min <= value <= _INT32.max:
            raise refusal(ValueError, "R1", f"{name}[{place}]={value} does not fit an int32")
