"""Spellings: the ways in which an engine hands over a list, each with the Python source that makes it again.

A list of page ids, rows, counts or tokens may come as a list of ints or of numpy's integers, as a tuple, as another
sequence, as an iterator, or as an array of any integer type, a narrow or an unsigned one too, which need not be
contiguous and may run backwards (R1). The machines draw a spelling beside the values, hand both sides the same one, and
show it.
"""

import enum
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from kvproof.spec.declarations import ExtraKey, Request

__all__ = [
    "LISTED",
    "NUMBERS",
    "OBJECTS",
    "TOKENS",
    "WIDE",
    "ReadOnlyList",
    "SpelledRequest",
    "Spelling",
    "request_as",
    "request_source",
]


class ReadOnlyList(Sequence[Any]):
    """A sequence that is neither a list nor a tuple: a view of a list, as some engines hand out their tokens.

    Args:
        values: the list; what is appended to it shows in the view.
    """

    def __init__(self, values: list[Any]) -> None:
        self._values = values

    def __getitem__(self, place: Any) -> Any:
        return self._values[place]

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"ReadOnlyList({self._values!r})"


class Spelling(enum.Enum):
    """A way in which a list is handed over. The simplest is a list; of a request's tokens, an int32 array."""

    LIST = enum.auto()
    TUPLE = enum.auto()
    READ_ONLY = enum.auto()
    ITERATOR = enum.auto()
    SCALARS = enum.auto()
    INT32 = enum.auto()
    INT64 = enum.auto()
    UINT64 = enum.auto()
    NARROW = enum.auto()
    COLUMN32 = enum.auto()
    COLUMN64 = enum.auto()
    REVERSED32 = enum.auto()

    def of(self, values: Iterable[Any]) -> Any:
        """Some values, spelled. Those of an array are ints, or lists of ints, all of one length."""
        given = list(values)
        if self in _SEQUENCES:
            return _SEQUENCES[self](given)
        if self is Spelling.SCALARS:
            return _scalars(given)
        array = np.array(given, self._dtype(given))
        if self in _COLUMNS:  # beside each number lies another one, which shows where strides are not heeded
            return np.stack([array, ~array], -1)[..., 0]
        return np.ascontiguousarray(array[..., ::-1])[..., ::-1] if self is Spelling.REVERSED32 else array

    def source(self, values: Iterable[Any], each: Callable[[Any], str] = repr) -> str:
        """The spelled values as Python source.

        Args:
            values: the values.
            each: makes the source of one of them.
        """
        given = list(values)
        if self in _SEQUENCES:
            inner = ", ".join(map(each, given))
            return _SOURCES[self].format(f"{inner}," if self is Spelling.TUPLE and len(given) == 1 else inner)
        nested = self._nested(given, each)
        if self is Spelling.SCALARS:
            return nested
        array = f"np.array({nested}, np.{self._dtype(given).__name__})"
        is_empty = all(value == [] for value in given)
        return array if is_empty else array + _VIEWS.get(self, "")

    def _nested(self, given: list[Any], each: Callable[[Any], str]) -> str:
        def one(value: Any) -> str:
            if isinstance(value, list):
                return self._nested(value, each)
            if self is Spelling.SCALARS:
                return f"np.int64({each(value)})"
            return f"[{each(value)}, ~{each(value)}]" if self in _COLUMNS else each(value)

        is_innermost = not any(isinstance(value, list) for value in given)
        turned = given[::-1] if self is Spelling.REVERSED32 and is_innermost else given
        return f"[{', '.join(map(one, turned))}]"

    def _dtype(self, given: list[Any]) -> type[Any]:
        """The integer type of the array; entries that are still to be looked up are taken as small."""
        if self in _DTYPES:
            return _DTYPES[self]
        numbers = [0, *(int(number) for number in _flat(given) if isinstance(number, int | np.integer))]
        return _first_holding(numbers, (np.uint64, np.int64) if self is Spelling.UINT64 else _NARROWEST_FIRST)

    def simpler(self) -> Iterator["Spelling"]:
        """The simplest spellings: whichever is shorter to show is kept."""
        yield from (simple for simple in (Spelling.LIST, Spelling.INT32) if simple is not self)


def _flat(values: list[Any]) -> Iterator[Any]:
    for value in values:
        yield from _flat(value) if isinstance(value, list) else (value,)


def _scalars(values: list[Any]) -> list[Any]:
    return [_scalars(value) if isinstance(value, list) else np.int64(value) for value in values]


_SEQUENCES: dict[Spelling, Callable[[list[Any]], Any]] = {
    Spelling.LIST: list,
    Spelling.TUPLE: tuple,
    Spelling.READ_ONLY: ReadOnlyList,
    Spelling.ITERATOR: iter,
}
_SOURCES = {
    Spelling.LIST: "[{}]",
    Spelling.TUPLE: "({})",
    Spelling.READ_ONLY: "ReadOnlyList([{}])",
    Spelling.ITERATOR: "iter([{}])",
}
_DTYPES: dict[Spelling, type[Any]] = {
    Spelling.INT32: np.int32,
    Spelling.INT64: np.int64,
    Spelling.COLUMN32: np.int32,
    Spelling.COLUMN64: np.int64,
    Spelling.REVERSED32: np.int32,
}
_NARROWEST_FIRST: tuple[type[Any], ...] = (np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int32, np.int64)
_COLUMNS = frozenset({Spelling.COLUMN32, Spelling.COLUMN64})
_VIEWS = dict.fromkeys(_COLUMNS, "[..., 0]") | {Spelling.REVERSED32: "[..., ::-1]"}


def _first_holding(numbers: list[int], types: Sequence[type[Any]]) -> type[Any]:
    least, most = min(numbers), max(numbers)
    return next(dtype for dtype in types if np.iinfo(dtype).min <= least and most <= np.iinfo(dtype).max)


OBJECTS = tuple(_SEQUENCES)
"""Spellings of a list of anything, of pages for one."""

NUMBERS = tuple(Spelling)
"""Spellings of a list of ints."""

WIDE = tuple(spelling for spelling in NUMBERS if _DTYPES.get(spelling) is not np.int32)
"""Spellings of a list of ints that an int32 need not hold."""

TOKENS = (Spelling.INT32, *(spelling for spelling in NUMBERS if spelling not in (Spelling.INT32, Spelling.ITERATOR)))
"""Spellings of a request's tokens, which are read again and again: no iterator."""

LISTED = (Spelling.INT32, Spelling.LIST)
"""Spellings of a request's tokens for whoever takes lists and no other iterables."""


class SpelledRequest(Request):
    """A `Request` whose ``all_token_ids`` are spelled otherwise than as an int32 array.

    A list is the same object for as long as the request lives, and a read-only one a view of it, as in engines.

    Args:
        request_id: the request's id.
        token_ids: its prompt.
        spelling: how its tokens are spelled, one of `TOKENS`.
        extra_keys: its extra keys.
        prompt_logprobs: how many log-probabilities are wanted for prompt tokens, or None.
    """

    __slots__ = ("_listed", "spelling")

    def __init__(
        self,
        request_id: str,
        token_ids: Sequence[int] | NDArray[np.int32],
        spelling: Spelling,
        extra_keys: Iterable[ExtraKey] = (),
        prompt_logprobs: int | None = None,
    ) -> None:
        super().__init__(request_id, token_ids, extra_keys, prompt_logprobs)
        self.spelling = spelling
        self._listed: list[int] = super().all_token_ids.tolist()

    @property
    def all_token_ids(self) -> NDArray[np.int32]:
        """The tokens so far, spelled: a sequence of ints, or an integer array `[num_tokens]`."""
        if self.spelling is Spelling.LIST:
            return cast(NDArray[np.int32], self._listed)
        if self.spelling is Spelling.READ_ONLY:
            return cast(NDArray[np.int32], ReadOnlyList(self._listed))
        return cast(NDArray[np.int32], self.spelling.of(self._listed))

    def append(self, token_id: int) -> None:
        """See `Request.append`."""
        super().append(token_id)
        self._listed.append(int(token_id))


def request_as(
    spelling: Spelling,
    request_id: str,
    tokens: Sequence[int],
    extra_keys: Iterable[ExtraKey] = (),
    prompt_logprobs: int | None = None,
) -> Request:
    """A request whose tokens are spelled in one of the ways of `TOKENS`."""
    if spelling is Spelling.INT32:
        return Request(request_id, tokens, extra_keys, prompt_logprobs)
    return SpelledRequest(request_id, tokens, spelling, extra_keys, prompt_logprobs)


def request_source(
    spelling: Spelling,
    request_id: str,
    tokens: Sequence[int],
    extra_keys: Iterable[ExtraKey] = (),
    prompt_logprobs: int | None = None,
) -> str:
    """`request_as` with these arguments as a sequence of calls shows it."""
    keys = tuple(extra_keys)
    details = (f", {keys}" if keys else "") + (f", prompt_logprobs={prompt_logprobs}" if prompt_logprobs else "")
    if spelling is Spelling.INT32:
        return f"Request({request_id!r}, {list(tokens)}{details})"
    return f"SpelledRequest({request_id!r}, {list(tokens)}, {spelling}{details})"
