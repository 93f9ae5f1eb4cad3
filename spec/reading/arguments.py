"""R1: reading arguments. Every public call reads all its arguments with these functions before it changes anything.

The kind of error is part of the contract: ``TypeError`` for a wrong type, ``IndexError`` for a page, row or group
that does not exist, ``ValueError`` for every other fault. Each message names the argument and its value, and ends
with the label of the clause that refuses it.
"""

from typing import Any

import numpy as np

from ..declarations.reading import MOST_BITS, attribute, flag, listed, real, refusal, shown

__all__ = ["attribute", "flag", "index", "integer", "listed", "real", "refusal", "shown", "token_list"]


def integer(name: str, value: object, minimum: int | None = 0, clause: str = "R1", *, below: int | None = None) -> int:
    """Reads an integer of at least ``minimum`` and less than ``below``; None is no bound (R1).

    Raises:
        TypeError: the value is no integer; a bool is none, a numpy integer is one.
        ValueError: the value is out of its bounds.
    """
    number = _int(name, value)
    if minimum is not None and number < minimum:
        raise refusal(ValueError, clause, f"{name}={shown(number)} must be at least {minimum}")
    if below is not None and number >= below:
        raise refusal(ValueError, clause, f"{name}={shown(number)} must be less than {below}")
    if number.bit_length() > MOST_BITS:
        raise refusal(ValueError, clause, f"{name}={shown(number)} is larger than any number that counts something")
    return number


def _int(name: str, value: object) -> int:
    """Reads an integer of any size; TypeError where it is none (R1)."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise refusal(TypeError, "R1", f"{name}={shown(value)} must be an int")
    return int(value)


def index(name: str, value: object, size: int, clause: str = "R1") -> int:
    """Reads the number of one of ``size`` pages, rows or the like (R1).

    Raises:
        TypeError: the value is no integer.
        IndexError: the value is negative or not below ``size``.
    """
    number = _int(name, value)
    if not 0 <= number < size:
        raise refusal(IndexError, clause, f"{name}={shown(number)} must be in [0, {size})")
    return number


def token_list(name: str, tokens: object) -> list[int]:
    """Reads token ids: integers that fit an int32, in an iterable or a one-dimensional integer array (R1).

    Messages show none of them (SEC-2).
    """
    if isinstance(tokens, np.ndarray):
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
            raise refusal(
                TypeError, "R1", f"{name} must be a 1-d integer array, not {tokens.dtype}{list(tokens.shape)}"
            )
        values: list[Any] = tokens.tolist()
        if tokens.dtype == np.int32:
            return values
    else:
        values = listed(name, tokens)
    for position, token in enumerate(values):
        if isinstance(token, bool | np.bool_) or not isinstance(token, int | np.integer):
            raise refusal(TypeError, "R1", f"{name}[{position}] must be an int, not a {type(token).__name__}")
        if not -(2**31) <= token < 2**31:
            raise refusal(ValueError, "R1", f"{name}[{position}]={token} does not fit an int32")
    return [int(token) for token in values]
