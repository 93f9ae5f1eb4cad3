"""R1: reading single arguments, in the same way in both backends, and the error of a refused call.

The kind of error is part of the contract: ``TypeError`` for a wrong type, ``IndexError`` for a page, row or group that
does not exist, ``ValueError`` for every other fault. A refusal names the argument and its value and ends with the label
of the clause that refuses it.
"""

import math
from collections.abc import Iterable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["INT32", "Ids", "attribute", "flag", "index", "instance", "integer", "listed", "real", "refusal", "shown"]

Kind = TypeVar("Kind")

INT32 = np.dtype(np.int32)
"""The dtype of every length, page id and slot; int64 is refused, as devices would silently truncate it."""

Ids = Iterable[int] | NDArray[np.integer[Any]]
"""Numbers of pages, rows, requests or tokens: any iterable of ints; an integer array is read fastest, then a list."""

_MOST_BITS = 8192
"""Most bits of an int that messages show; of a longer one they show the length, as Python can't print it."""


def refusal(kind: type[Exception], clause: str, message: str) -> Exception:
    """The error to raise for a refused call: ``message``, then the clause's label."""
    return kind(f"{message} [{clause}]")


def shown(value: object) -> str:
    """A value as messages show it; only the type of a value that may hold token ids (SEC-2)."""
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
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


def _number(name: str, value: object) -> int:
    if type(value) is int:
        return value
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise refusal(TypeError, "R1", f"{name}={shown(value)} must be an int")
    return int(value)


def integer(name: str, value: object, minimum: int | None = 0, clause: str = "R1", *, below: int | None = None) -> int:
    """Reads an integer of at least ``minimum`` and less than ``below`` (R1). O(1).

    Args:
        name: the name of the argument.
        value: the argument.
        minimum: the least value allowed; None: no bound.
        clause: the label of the clause that a value out of bounds violates.
        below: the bound that the value must be less than; None: no bound.

    Raises:
        TypeError: the value is not an integer; a numpy integer is one, a bool is not.
        ValueError: the value is out of its bounds.
    """
    number = _number(name, value)
    if minimum is not None and number < minimum:
        raise refusal(ValueError, clause, f"{name}={shown(number)} must be at least {minimum}")
    if below is not None and number >= below:
        raise refusal(ValueError, clause, f"{name}={shown(number)} must be less than {below}")
    if number.bit_length() > _MOST_BITS:
        raise refusal(ValueError, clause, f"{name}={shown(number)} is larger than any number that counts something")
    return number


def index(name: str, value: object, size: int, clause: str = "R1") -> int:
    """Reads the number of one of ``size`` pages, rows or the like that exist (R1). O(1).

    Args:
        name: the name of the argument.
        value: the argument.
        size: the number of things that exist.
        clause: the label of the clause that other numbers violate.

    Raises:
        TypeError: the value is not an integer.
        IndexError: the value is negative or not below ``size``.
    """
    number = _number(name, value)
    if not 0 <= number < size:
        raise refusal(IndexError, clause, f"{name}={shown(number)} must be in [0, {size})")
    return number


def instance(name: str, value: object, kind: type[Kind], called: str = "") -> Kind:
    """Reads an object of a class (R1). O(1).

    Args:
        name: the name of the argument.
        value: the argument.
        kind: the class.
        called: what messages call an object of the class; empty: its name.

    Raises:
        TypeError: the value is of another class.
    """
    if not isinstance(value, kind):
        raise refusal(TypeError, "R1", f"{name} must be {called or kind.__name__}, not {type(value).__name__}")
    return value


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
