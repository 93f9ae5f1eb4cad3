"""R1: how arguments are read. Every public call reads all of its arguments with these before it changes anything.

Which error a fault raises is part of the contract: ``TypeError`` where the type is wrong, ``IndexError``
where a page, row or group of that number does not exist, ``ValueError`` for everything else. Each message
names the argument and its value and ends with the label of the clause that refuses it.
"""

from typing import Any

import numpy as np

from ..declarations.reading import MOST_BITS, attribute, flag, listed, real, refusal, shown

__all__ = ["attribute", "flag", "index", "integer", "listed", "real", "refusal", "shown", "token_list"]


def integer(name: str, value: object, minimum: int | None = 0, clause: str = "R1", *, below: int | None = None) -> int:
    """Reads an integer of at least ``minimum`` and less than ``below``, each of them no bound where it is None (R1).

    Raises:
        TypeError: it is no integer; a bool is none, a numpy integer is one.
        ValueError: it is out of its bounds.
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
    """Reads the number of one of ``size`` things that exist (R1).

    Raises:
        TypeError: it is no integer.
        IndexError: it is negative or not below ``size``.
    """
    number = _int(name, value)
    if not 0 <= number < size:
        raise refusal(IndexError, clause, f"{name}={shown(number)} must be in [0, {size})")
    return number


def token_list(name: str, tokens: object) -> list[int]:
    """Reads token ids: integers that an int32 holds, in a list or in a one-dimensional integer array (R1).

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
