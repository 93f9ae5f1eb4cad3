"""Numbers in a log: lists, and columns, which are written as how they differ from the ones before."""

import base64
import binascii
import json
import struct
import sys
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

from .values import plain

__all__ = ["as_column", "decoded", "encoded", "listed", "numbers_of"]

Column = bytes | int
"""Numbers, `i64[n]`, as bytes; or one number for all."""

_SHORT = 8
"""Lists of fewer numbers stand in decimals, which are as short and can be read."""

_BEYOND = 2**63
_INT32, _INT64 = np.dtype(np.int32), np.dtype(np.int64)


def listed(numbers: Any) -> str:
    """A list of numbers as JSON: decimals, or one text where it is long, int32s in base 64, which costs a quarter.

    Args:
        numbers: a list, or an array of integers, `[n]`. What is no integer stands as `plain` has it.
    """
    if type(numbers) is np.ndarray and numbers.dtype is _INT32 and len(numbers) >= _SHORT:
        words = numbers.tobytes() if sys.byteorder == "little" else numbers.byteswap().tobytes()
    else:
        own = numbers.tolist() if type(numbers) is np.ndarray else numbers
        try:
            narrow = array("i", own)
        except (OverflowError, TypeError):
            return json.dumps(plain(own), separators=(",", ":"))
        if len(narrow) < _SHORT:
            return str(narrow.tolist())
        if sys.byteorder != "little":
            narrow.byteswap()
        words = narrow.tobytes()
    return f'"{str(binascii.b2a_base64(words, newline=False), "ascii")}"'


def numbers_of(entry: Any) -> list[int]:
    """Reads a list of numbers.

    Args:
        entry: what `listed` gave, hostile until read.

    Raises:
        ValueError: it is none.
    """
    if isinstance(entry, str):
        try:
            given = base64.b64decode(entry, validate=True)
        except (binascii.Error, ValueError):
            raise ValueError("numbers must be a list or a text in base 64") from None
        if len(given) % 4:
            raise ValueError(f"numbers of 4 bytes each, and {len(given)} bytes")
        return [*struct.unpack(f"<{len(given) // 4}i", given)]
    if not isinstance(entry, list):
        raise ValueError("numbers must be a list or a text in base 64")
    return [_number(value) for value in entry]


def as_column(values: Any) -> Any:
    """A copy of the numbers that a call was given, or the one number; anything that is neither as it is."""
    if type(values) is int:
        return values
    if type(values) is np.ndarray and values.ndim == 1 and values.dtype.kind in "iu":
        return values.tobytes() if values.dtype is _INT64 else values.astype(np.int64).tobytes()
    if isinstance(values, list | tuple | range) and set(map(type, values)) <= {int}:
        return np.array(values, np.int64).tobytes()
    return values


def encoded(column: Column, before: Column | None) -> str:
    """A column as a log has it: a number, ``{"more": d, "but": [[place], [value]]}`` or a list.

    Args:
        column: the numbers, or one for all.
        before: the column of the call before, if there was one.
    """
    if not isinstance(column, bytes):
        return int.__repr__(column)
    if column == before:
        return '{"more":0}'
    now = np.frombuffer(column, np.int64)
    if isinstance(before, bytes) and len(before) == len(column):
        grown = now - np.frombuffer(before, np.int64)
        more = int(grown[-1])
        if grown.tobytes() == more.to_bytes(8, sys.byteorder, signed=True) * len(now):
            return f'{{"more":{more}}}'
        other = (grown != more).nonzero()[0]
        if other.size * 4 <= now.size:
            return f'{{"more":{more},"but":[{listed(other)},{listed(now[other])}]}}'
    return listed(now)


def decoded(entry: Any, before: Sequence[int] | int | None) -> list[int] | int:
    """Reads a column.

    Args:
        entry: what `encoded` gave, hostile until read.
        before: the column of the call before.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(entry, dict):
        return numbers_of(entry) if isinstance(entry, list | str) else _number(entry)
    if not isinstance(before, list) or not set(entry) <= {"more", "but"} or "more" not in entry:
        raise ValueError("a column that goes on from none")
    more = _number(entry["more"])
    column = [value + more for value in before]
    but = entry.get("but", [[], []])
    if not isinstance(but, list) or len(but) != 2:
        raise ValueError("a column with exceptions that can't be read")
    for place, value in zip(*map(numbers_of, but), strict=True):
        if not 0 <= place < len(column):
            raise ValueError("a column with an exception behind its end")
        column[place] = value
    if any(abs(value) >= _BEYOND for value in column):
        raise ValueError("a column with a number that is too large")
    return column


def _number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= _BEYOND:
        raise ValueError("a column with what is no number")
    return value
