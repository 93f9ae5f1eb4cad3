"""How things stand in a log: numbers, token ids, texts of results (`calls.logged`), states."""

import base64
import binascii
import json
import os
import struct
import sys
import zlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from json.encoder import encode_basestring_ascii
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..calls.logged import KeyNumbers, new_pages, page_ids, plain, refused_places, result
from ..calls.readings import (
    cached_entries,
    cached_pages,
    free_pages,
    hashed_pages,
    page_hashes,
    pages_of_requests,
    ref_counts,
    usage,
)
from ..report.redaction import Redaction

__all__ = [
    *("FIELDS", "TokenTexts", "as_column", "decoded", "digest", "encode", "encoded", "groups_text", "listed"),
    *("numbers_of", "outcome_text", "plain_text", "read_state", "text_of", "tokens_of"),
]


# -- Numbers: lists, and columns, which are written as how they differ from the ones before ---------------------------

Column = bytes | int
"""Numbers, `i64[n]`, as bytes; or one number for all."""

_SHORT = 8
"""Lists of fewer numbers stand in decimals, which are as short and can be read."""

_BEYOND = 2**63
_INT32, _INT64 = np.dtype(np.int32), np.dtype(np.int64)


def listed(numbers: Any) -> str:
    """A list of numbers as JSON: decimals, or one text where it is long, int32s in base 64, which costs a quarter.

    Args:
        numbers: a list, or an array of integers, `[n]`. Other entries stand as `plain` has them.
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
    if type(values) is int or isinstance(values, np.integer):
        return int(values)
    if type(values) is np.ndarray and values.ndim == 1 and values.dtype.kind in "iu":
        return values.tobytes() if values.dtype is _INT64 else values.astype(np.int64).tobytes()
    if (
        isinstance(values, Sequence)
        and not isinstance(values, str | bytes)
        and all(kind is int or issubclass(kind, np.integer) for kind in set(map(type, values)))
    ):
        return np.array(list(values), np.int64).tobytes()
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


# -- Token ids: under other names, at the price of one look-up each (SEC-2) -------------------------------------------

_COMMON = 1 << 18
"""Token ids below this, which vocabularies have, are spelt in four digits of base 64."""

_DIGITS = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)


class TokenTexts:
    """Spells token ids, as they are or mapped one to one by what is drawn for this object and kept nowhere else.

    Common ids are mapped by a permutation drawn at random, so that nothing but equality can be told from them; all
    others keep their sign and are never mapped to a common one.

    Args:
        shown: whether they stand as they are.
    """

    def __init__(self, *, shown: bool) -> None:
        self._ids = np.arange(_COMMON, dtype=np.int32)
        self._others = None if shown else Redaction()
        if not shown:
            self._ids = np.frombuffer(os.urandom(8 * _COMMON), np.uint64).argsort().astype(np.int32)
        shifts = np.array([18, 12, 6, 0], np.int32)
        self._spelt: NDArray[np.uint32] = _DIGITS[self._ids[:, None] >> shifts & 63].view(np.uint32)[:, 0]

    def entry(self, tokens: NDArray[np.int32]) -> str | dict[str, str]:
        """How token ids stand in a log: four digits each, or ``{"i32": text}`` where one is not common.

        Args:
            tokens: `i32[n]`, contiguous.
        """
        try:
            words = self._spelt.take(tokens.view(np.uint32))
        except IndexError:
            return {"i32": base64.b64encode(self._mapped(tokens).astype("<i4", copy=False).tobytes()).decode()}
        return str(words.tobytes(), "ascii")

    def text(self, tokens: NDArray[np.int32]) -> str:
        """The same as JSON."""
        entry = self.entry(tokens)
        return f'"{entry}"' if type(entry) is str else '{"i32":"' + entry["i32"] + '"}'  # type: ignore[index]

    def _mapped(self, tokens: NDArray[np.int32]) -> NDArray[np.int32]:
        common = (tokens >= 0) & (tokens < _COMMON)
        mapped = tokens.copy()
        mapped[common] = self._ids[tokens[common]]
        away = ~common
        while self._others is not None and away.any():  # those that fall among the common ones go on
            mapped[away] = self._others.tokens(mapped[away])
            away &= (mapped >= 0) & (mapped < _COMMON)
        return mapped


def tokens_of(entry: Any) -> NDArray[np.int32]:
    """Reads token ids, `i32[n]`.

    Args:
        entry: what `TokenTexts.entry` gave, hostile until read.

    Raises:
        ValueError: it is none.
    """
    text, wide = (entry.get("i32"), 4) if isinstance(entry, dict) else (entry, 3)
    if not isinstance(text, str):
        raise ValueError("token ids must be a text in base 64")
    try:
        given = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("token ids must be a text in base 64") from None
    if len(given) % wide:
        raise ValueError(f"token ids of {wide} bytes each, and {len(given)} bytes")
    if wide == 4:
        return np.frombuffer(given, "<i4").astype(np.int32)
    digits = np.frombuffer(given, np.uint8).reshape(-1, 3).astype(np.int32)
    return digits[:, 0] << 16 | digits[:, 1] << 8 | digits[:, 2]


# -- Texts: the results that engines get most are written without a general encoder -----------------------------------

text_of = encode_basestring_ascii
"""A text as JSON."""


def encode(value: Any) -> str:
    """Anything as JSON; what JSON has not, as `plain` has it."""
    try:
        return _ENCODER.encode(value)
    except (TypeError, ValueError):  # a key that is no text, or a number that is not finite
        return _ENCODER.encode(plain(value))


_ENCODER = json.JSONEncoder(separators=(",", ":"), default=plain, allow_nan=False)


def plain_text(value: Any) -> str:
    """A number, a text or a list of such things as JSON."""
    return _whole_text(value) or encode(value)


def _whole_text(value: Any) -> str | None:
    """An integer or a list of them as JSON; None for all else."""
    if type(value) is int:
        return int.__repr__(value)
    if type(value) is list and set(map(type, value)) == {int}:
        return f"[{','.join(map(int.__repr__, value))}]"
    return None


def groups_text(pages: Any) -> str:
    """Pages by group, as page lists that tell their ids, or as lists of ids or views."""
    if pages is None:
        return "null"
    if hasattr(pages, "get_page_ids"):
        pages = pages.get_page_ids()
    elif not isinstance(pages, list | tuple):
        pages = [page_ids(group) for group in pages.pages]
    return f"[{','.join(map(listed, pages))}]"


def outcome_text(kind: str, value: Any, keys: KeyNumbers) -> str:
    """A result as JSON; see `result`."""
    if kind == "ids" and not value:
        return "[]"
    if value is None:
        return "null"
    if kind == "hit":
        return f"[{groups_text(value[0])},{plain_text(value[1])}]"
    if kind == "groups":
        return groups_text(value)
    if kind == "batch":
        return f"[{listed(refused_places(value))},[{','.join(map(_new_pages, new_pages(value)))}]]"
    return (kind == "plain" and _whole_text(value)) or encode(result(kind, value, keys))


def _new_pages(group: tuple[Any, Any, Any]) -> str:
    places, counts, pages = group
    return f"[{listed(places)},{listed(counts) if type(counts) is list else counts},{listed(pages)}]"


# -- States: what an object shows, read off public names only ---------------------------------------------------------

FIELDS = (
    *("free pages", "ref_cnt", "hashed pages", "cached map", "usage", "pages of requests"),
    *("pages in a row", "host rows", "device rows", "numbers of free pages"),
)
"""What a state shows, in the order in which it is compared; see `kvproof.conformance.calls.readings.SHOWS`."""

_LONGEST = 2_000
"""Characters of a field that stands as it is; what is longer is given by its CRC-32."""


def read_state(name: str, thing: Any, views: Mapping[int, Any], live: Iterable[str], device: bool) -> dict[str, Any]:
    """What an object shows now, by field. O(pages), or O(entries) of a table.

    Args:
        name: its class.
        thing: the object.
        views: of a manager or a pool: views of its pages.
        live: of a manager: the ids of requests whose pages are to be shown, of those that hold any.
        device: whether tables show the device's rows, for which they wait for the device.
    """
    if name == "PageTable":
        return _tables([thing], device)
    if name == "MultiGroupPageTable":
        return _tables(list(thing.page_tables), device)
    if name == "PagePool":
        return _pool(thing, views)
    held = {name: groups for name, groups in pages_of_requests(thing, sorted(live)).items() if any(groups)}
    return {**_pool(thing.page_pool, views), "pages of requests": held}


def _pool(pool: Any, views: Mapping[int, Any]) -> dict[str, Any]:
    return {
        "free pages": free_pages(pool),
        "ref_cnt": {str(page_id): count for page_id, count in ref_counts(views).items() if count},
        "hashed pages": hashed_pages(page_hashes(views)),
        "cached map": list(map(list, cached_pages(cached_entries(pool)))),
        "usage": usage(pool),
    }


def _tables(tables: list[Any], device: bool) -> dict[str, Any]:
    shown = {
        "pages in a row": [np.asarray(table.num_pages_per_row).tolist() for table in tables],
        "host rows": [np.asarray(table.get_cpu_tensor()).tolist() for table in tables],
    }
    if device:
        # a copy: an array that caches its value would keep a buffer alive that the next commit wants to reuse
        shown["device rows"] = [np.array(table.get_device_tensor()).tolist() for table in tables]
    return shown


def digest(value: Any) -> Any:
    """A field's value as a log has it: itself, or ``{"crc32": c}`` where it is long."""
    text = json.dumps(value, separators=(",", ":"), sort_keys=True)
    return value if len(text) <= _LONGEST else {"crc32": zlib.crc32(text.encode())}
