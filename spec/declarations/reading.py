"""R1: reading single arguments, in the same way in both backends, and the error of a refused call.

A refusal names the argument and its value and ends with the label of the clause that refuses it.
"""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

__all__ = ["MOST_BITS", "attribute", "flag", "listed", "real", "refusal", "shown"]

MOST_BITS = 8192
"""Most bits of an int that messages show; of a longer one they show the length, as Python can't print it."""


def refusal(kind: type[Exception], clause: str, message: str) -> Exception:
    """The error to raise for a refused call: ``message``, then the clause's label."""
    return kind(f"{message} [{clause}]")


def shown(value: object) -> str:
    """A value as messages show it; only the type of a value that may hold token ids (SEC-2)."""
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        return f"<an int of {value.bit_length()} bits>"
    is_scalar = value is None or isinstance(value, int | float | str | bytes | np.generic)
    return repr(value) if is_scalar else f"<{type(value).__name__}>"


def attribute(request: object, name: str) -> Any:
    """Reads an attribute of an argument that should be a request (R1). O(1).

    Raises:
        TypeError: the argument has no such attribute.
    """
    try:
        return getattr(request, name)
    except AttributeError:
        raise refusal(TypeError, "R1", f"request has no {name}: {type(request).__name__} is no EngineRequest") from None


def flag(name: str, value: object) -> bool:
    """Reads a bool (R1). O(1).

    Raises:
        TypeError: the value is no bool.
    """
    if not isinstance(value, bool | np.bool_):
        raise refusal(TypeError, "R1", f"{name}={value!r} must be a bool")
    return bool(value)


def real(name: str, value: object) -> float:
    """Reads a finite real number (R1). O(1).

    Raises:
        TypeError: the value is no real number; a bool is none.
        ValueError: the value is infinite or NaN, or too large for a float.
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
    """Reads an iterable into a list, so that it is read once and before anything changes (R1). O(n).

    Raises:
        TypeError: the value is no iterable, or is text or bytes.
    """
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise refusal(TypeError, "R1", f"{name}={values!r} must be an iterable")
    if isinstance(values, np.ndarray) and not values.ndim:
        raise refusal(TypeError, "R1", f"{name}={values!r} must be an iterable")
    return list(values)
