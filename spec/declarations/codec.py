"""SEC-3: reads JSON that anybody may have written: each value has the type and the bounds asked for, or is refused.

A message begins with the place of the value in its document.

Both packages read snapshots, events and documents with it, so that they refuse the same ones with the same messages.

Messages do not show values, which may be tokens or fingerprints of salts (SEC-2), or numbers of any length.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .reading import refusal

__all__ = ["BEYOND", "Part", "plain"]

BEYOND = 1 << 63
"""The bound of every number: an int64 holds those below."""


class Part:
    """One value of a document.

    Args:
        name: the place of the value, from the document on; messages begin with it.
        value: the value, as the JSON parser gives it.
        clause: the label of the clause by which the value, and any part of it, is refused.
    """

    __slots__ = ("_clause", "_name", "value")

    def __init__(self, name: str, value: object, clause: str = "MAN-14") -> None:
        self._name = name
        self.value = value
        self._clause = clause

    def damaged(self, problem: str, clause: str | None = None) -> Exception:
        """The error for a value that is damaged or contradicts another one."""
        return refusal(ValueError, clause or self._clause, f"{self._name} {problem}")

    def _part(self, place: str, value: object) -> "Part":
        return Part(f"{self._name}{place}", value, self._clause)

    # -- Objects and lists ------------------------------------------------------------------------

    def members(self, names: Iterable[str]) -> dict[str, "Part"]:
        """The members of an object, which must be those named."""
        wanted = list(names)
        if not isinstance(self.value, Mapping) or set(self.value) != set(wanted):
            raise self.damaged(f"must be an object with the keys {wanted} and no others")
        return {name: self._part(f".{name}", self.value[name]) for name in wanted}

    def member(self, name: str) -> "Part":
        """One member of an object, which may have others."""
        if not isinstance(self.value, Mapping) or name not in self.value:
            raise self.damaged(f"must be an object with the key {name!r}")
        return self._part(f".{name}", self.value[name])

    def __len__(self) -> int:
        return len(self._list())

    def items(self, length: int | None = None) -> list["Part"]:
        """The elements of a list, perhaps of a given length."""
        return [self._part(f"[{place}]", value) for place, value in enumerate(self._list(length))]

    def _list(self, length: int | None = None) -> list[Any] | tuple[Any, ...]:
        if not isinstance(self.value, list | tuple) or (length is not None and len(self.value) != length):
            raise self.damaged(f"must be a list{'' if length is None else f' of {length}'}")
        return self.value

    # -- Single values ----------------------------------------------------------------------------

    def integer(self, minimum: int = 0, below: int = BEYOND) -> int:
        """An integer in [minimum, below)."""
        value = self.value
        if type(value) is not int:
            raise self.damaged("must be an integer")
        if not minimum <= value < below:
            raise self.damaged(f"must be in [{minimum}, {below})")
        return value

    def flag(self) -> bool:
        """True or false."""
        if not isinstance(self.value, bool):
            raise self.damaged("must be true or false")
        return self.value

    def text(self) -> str:
        """A text."""
        if not isinstance(self.value, str):
            raise self.damaged("must be a text")
        return self.value

    def unicode(self) -> str:
        """A text that has an encoding: lone surrogates have none."""
        text = self.text()
        try:
            text.encode()
        except UnicodeEncodeError:
            raise self.damaged("must be Unicode text") from None
        return text

    def digest(self) -> bytes:
        """Bytes, as hexadecimal digits two by two."""
        digits = self.text()
        if len(digits) % 2 or not set(digits) <= set("0123456789abcdef"):
            raise self.damaged("must be bytes as lower-case hexadecimal digits")
        return bytes.fromhex(digits)

    def optional_time(self) -> float | None:
        """A finite number, or None for null."""
        return None if self.value is None else self.time()

    def time(self) -> float:
        """A finite number."""
        value = self.value
        try:
            number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.inf
        except OverflowError:  # of an int
            number = math.inf
        if not math.isfinite(number):
            raise self.damaged("must be a finite number")
        return number

    # -- Many integers ----------------------------------------------------------------------------

    def integers(self, minimum: int = 0, below: int = BEYOND) -> NDArray[np.int64]:
        """A list of integers in [minimum, below), `i64[n]`."""
        return self._integers(self._list(), minimum, below)

    def tokens(self) -> bytes:
        """A list of token ids, as little-endian int32 bytes."""
        return self._integers(self._list(), -(2**31), 2**31).astype("<i4").tobytes()

    def table(self, *below: int) -> NDArray[np.int64]:
        """A list of lists of as many integers as bounds are given, each in [0, its bound), `i64[n, bounds]`."""
        rows = self._list()
        if not all(isinstance(row, list | tuple) and len(row) == len(below) for row in rows):
            raise self.damaged(f"must be a list of lists of {len(below)}")
        columns = [
            self._integers([row[place] for row in rows], 0, end) if rows else np.empty(0, np.int64)
            for place, end in enumerate(below)
        ]
        return np.stack(columns, axis=1)

    def _integers(self, values: list[Any] | tuple[Any, ...], minimum: int, below: int) -> NDArray[np.int64]:
        if not set(map(type, values)) <= {int}:
            raise self.damaged("must have integers only")
        if values and not (minimum <= min(values) and max(values) < below):
            raise self.damaged(f"must have integers in [{minimum}, {below}) only")
        return np.array(values, np.int64)


def plain(value: Any) -> Any:
    """A value with lists where it has tuples, and dicts where it has other mappings: equal where its JSON is."""
    if isinstance(value, Mapping):
        return {name: plain(own) for name, own in value.items()}
    return [plain(own) for own in value] if isinstance(value, list | tuple) else value
