"""How the ordered backend reads its arguments."""

from collections.abc import Iterable
from typing import Any

import numpy as np

__all__ = ["items", "number", "token_ids", "truth"]


def number(value: Any, least: int | None = 0, below: int | None = None) -> int:
    """An int: of at least ``least``, and the number of one of ``below`` things, where given."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"a {type(value).__name__} is no int")
    if below is not None and not 0 <= value < below:
        raise IndexError(f"there is no {value!r}, only {below}")
    if least is not None and value < least:
        raise ValueError(f"{value!r} is below {least}")
    return int(value)


def truth(value: Any) -> bool:
    """A bool."""
    if type(value) is not bool:
        raise TypeError(f"a {type(value).__name__} is no bool")
    return value


def items(values: Any) -> list[Any]:
    """What an iterable has."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise TypeError(f"a {type(values).__name__} is no list")
    return list(values)


def token_ids(values: Any) -> tuple[int, ...]:
    """Token ids that an int32 holds."""
    tokens = tuple(number(token, least=-(2**31)) for token in items(values))
    if any(token >= 2**31 for token in tokens):
        raise ValueError("token ids that fit no int32")
    return tokens
