"""Token ids as contiguous little-endian int32 bytes, over which keys are computed and by which prefixes are compared.

A call reads a request's tokens in place, by a `memoryview` of bytes; only tokens that are kept after the call are
copied. A copy takes 4 us for 32,768 tokens, a fifth of their look-up, and more where memory is fresh.
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
    """Reads the tokens ``[start, stop)`` (R1). The result may share memory with them: it is valid within a call.

    Args:
        name: the name of the tokens in messages.
        tokens: a one-dimensional integer array, or a sequence of ints. An int32 array is not copied, anything else is
            converted (tens of ns a token).
        start: the first token.
        stop: the end; None for all.

    Returns:
        4 bytes a token.

    Raises:
        TypeError: a token is not an integer; a bool is not one.
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
    if cells is None:  # one by one, to name the first that is wrong
        for place, value in enumerate(values, start):
            if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
                raise refusal(TypeError, "R1", f"{name}[{place}] must be an int, not a {type(value).__name__}")
        _require_int32(name, values)
        cells = np.array(values, "<i4")
    return np.ascontiguousarray(cells).data.cast("B")


def listed_bytes(tokens: Sequence[int], start: int, stop: int) -> bytes | None:
    """The bytes of the tokens ``[start, stop)`` of a sequence that has them; None if they are not plain ints of int32.

    `token_view` then reads the tokens in another way, or refuses them.
    """
    values = tokens[start:stop]
    cells = plain_cells(values) if type(values) is list else None
    return None if cells is None else cells.tobytes()


def token_bytes(name: str, tokens: Tokens) -> bytes:
    """A copy of the bytes of all tokens; see `token_view`."""
    return bytes(token_view(name, tokens))


def _require_int32(name: str, values: Iterable[Any]) -> None:
    for place, value in enumerate(values):
        if not _INT32.min <= value <= _INT32.max:
            raise refusal(ValueError, "R1", f"{name}[{place}]={value} does not fit an int32")
