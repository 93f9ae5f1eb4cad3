"""Columns of numbers, written as how they differ from the ones before."""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["as_column", "decoded", "encoded"]

Column = bytes | int
"""Numbers, `i64[n]`, as bytes; or one number for all."""


def as_column(values: Any) -> Any:
    """A copy of the numbers that a call was given, or the one number; anything that is neither as it is."""
    if type(values) is np.ndarray and values.ndim == 1 and values.dtype.kind in "iu":
        return values.tobytes() if values.dtype == np.int64 else values.astype(np.int64).tobytes()
    if isinstance(values, list | tuple | range) and set(map(type, values)) <= {int}:
        return np.array(values, np.int64).tobytes()
    return values


def encoded(column: Column, before: Column | None) -> Any:
    """A column as a log has it: a number, ``{"more": d, "but": [[place], [value]]}`` or a list.

    Args:
        column: the numbers, or one for all.
        before: the column of the call before, if there was one.
    """
    if not isinstance(column, bytes):
        return int(column)
    if column == before:
        return {"more": 0}
    now = np.frombuffer(column, np.int64)
    if isinstance(before, bytes) and len(before) == len(column):
        grown = now - np.frombuffer(before, np.int64)
        more = int(grown[-1])
        if grown.tobytes() == more.to_bytes(8, sys.byteorder, signed=True) * len(now):
            return {"more": more}
        other = (grown != more).nonzero()[0]
        if other.size * 4 <= now.size:
            return {"more": more, "but": [other.tolist(), now[other].tolist()]}
    return now.tolist()


def decoded(entry: Any, before: Sequence[int] | int | None) -> list[int] | int:
    """Reads a column.

    Args:
        entry: what `encoded` gave, hostile until read.
        before: the column of the call before.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(entry, dict):
        return _number(entry) if not isinstance(entry, list) else [_number(value) for value in entry]
    if not isinstance(before, list) or not set(entry) <= {"more", "but"} or "more" not in entry:
        raise ValueError("a column that goes on from none")
    more = _number(entry["more"])
    column = [value + more for value in before]
    but = entry.get("but", [[], []])
    if not isinstance(but, list) or len(but) != 2 or not all(isinstance(part, list) for part in but):
        raise ValueError("a column with exceptions that can't be read")
    for place, value in zip(*but, strict=True):
        if not 0 <= _number(place) < len(column):
            raise ValueError("a column with an exception behind its end")
        column[place] = _number(value)
    if any(abs(value) >= _BEYOND for value in column):
        raise ValueError("a column with a number that is too large")
    return column


_BEYOND = 2**63


def _number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= _BEYOND:
        raise ValueError("a column with what is no number")
    return value
