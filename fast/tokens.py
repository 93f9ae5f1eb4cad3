"""Token ids as contiguous little-endian int32 bytes: what keys are computed over and prefixes are compared as.

A call reads a request's tokens where they lie, by a `memoryview` of bytes; only what is kept beyond it is copied. A
copy takes 4 us for 32,768 tokens, a fifth of their look-up, and more where memory is fresh.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .arguments import refusal, shown

__all__ = ["NO_TOKENS", "ListedTokens", "TokenBytes", "listed_bytes", "token_bytes", "token_view"]

Tokens = Sequence[int] | NDArray[np.int32]

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
    kinds = set(map(type, values))
    if not kinds <= {int}:
        for place, value in enumerate(values, start):
            if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
                raise refusal(TypeError, "R1", f"{name}[{place}] must be an int, not a {type(value).__name__}")
    try:
        return memoryview(_packed(values))
    except struct.error:
        _require_int32(name, values)
        raise


class ListedTokens:
    """The list of tokens that was converted last: a look-up and the admission after it convert a prompt once.

    So does a scheduler that looks up the request in front of its queue until it fits. To compare a list with the one
    before takes a tenth of converting it, where both hold the same objects. Numbers that are equal are the same token
    here: in a list that was converted before, ``True`` in the place of a 1 is not refused again.
    """

    __slots__ = ("_given", "_values", "_view")

    def __init__(self) -> None:
        self._given: list[int] = []
        self._values: list[int] = []  # what was in it then
        self._view = NO_TOKENS

    def view(self, name: str, tokens: Tokens) -> memoryview:
        """`token_view` of all tokens. O(tokens)."""
        values = tokens if type(tokens) is list or not isinstance(tokens, Sequence) else tokens[:]
        if type(values) is not list:
            return token_view(name, tokens)
        if not _equal(values, self._values):
            self._view = token_view(name, values)
        elif values is self._given:
            return self._view
        self._given, self._values = values, values.copy()  # objects that are the same are equal sooner
        return self._view


def _equal(values: list[int], others: list[int]) -> bool:
    try:
        return values == others
    except Exception:  # what is no number, and will be refused as such
        return False


def listed_bytes(tokens: Sequence[int], start: int, stop: int) -> bytes | None:
    """The bytes of the tokens ``[start, stop)`` of a sequence that has them; None if they are not plain ints of int32.

    What gets None is refused, or read in another way, by `token_view`.
    """
    values = tokens[start:stop]
    if type(values) is not list or set(map(type, values)) != {int}:
        return None
    try:
        return _packed(values)
    except struct.error:
        return None


def _packed(values: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)  # half the price of an `array`


def token_bytes(name: str, tokens: Tokens) -> bytes:
    """`token_view` of all tokens, copied: to be kept."""
    return bytes(token_view(name, tokens))


def _require_int32(name: str, values: Iterable[Any]) -> None:
    for place, value in enumerate(values):
        if not _INT32.min <= value <= _INT32.max:
            raise refusal(ValueError, "R1", f"{name}[{place}]={value} does not fit an int32")
