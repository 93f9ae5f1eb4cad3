"""R1: single arguments, read in the same way by both packages, and how a refused call is told.

A refusal names the argument and its value and ends with the label of the clause that refuses it.
"""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

__all__ = ["MOST_BITS", "attribute", "flag", "listed", "real", "refusal", "shown"]

MOST_BITS = 8192
"""Of a longer int a message shows the length: Python writes none of more than 4,300 digits, and raises instead."""


def refusal(kind: type[Exception], clause: str, message: str) -> Exception:
    """The error to raise for a refused call: ``message`` with the clause's label behind it."""
    return kind(f"{message} [{clause}]")


def shown(value: object) -> str:
    """A value as a message shows it; of what may hold token ids only the type (SEC-2)."""
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        return f"<an int of {value.bit_length()} bits>"
    plain = value is None or isinstance(value, int | float | str | bytes | np.generic)
    return repr(value) if plain else f"<{type(value).__name__}>"


def attribute(request: object, name: str) -> Any:
    """Reads an attribute of what should be a request (R1). O(1).

    Raises:
        TypeError: it has none of that name.
    """
    try:
        return getattr(request, name)
    except AttributeError:
        raise refusal(TypeError, "R1", f"request has no {name}: {type(request).__name__} is no EngineRequest") from None


def flag(name: str, value: object) -> bool:
    """Reads a bool (R1). O(1).

    Raises:
        TypeError: it is none.
    """
    if not isinstance(value, bool | np.bool_):
        raise refusal(TypeError, "R1", f"{name}={value!r} must be a bool")
    return bool(value)


def real(name: str, value: object) -> float:
    """Reads a finite real number (R1). O(1).

    Raises:
        TypeError: it is no number; a bool is none.
        ValueError: it is infinite or no number at all.
    """
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating):
        raise refusal(TypeError, "R1", f"{name}={value!r} must be a real number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise refusal(ValueError, "R1", f"{name}={shown(value) if isinstance(value, int) else value} must be finite")
    return number


def listed(name: str, values: object) -> list[Any]:
    """Materialises an iterable, so that it is read once and before anything changes (R1). O(n).

    Raises:
        TypeError: it is no iterable, or a string.
    """
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise refusal(TypeError, "R1", f"{name}={values!r} must be an iterable")
    if isinstance(values, np.ndarray) and not values.ndim:
        raise refusal(TypeError, "R1", f"{name}={values!r} must be an iterable")
    return list(values)
