"""Arguments as a log has them: how each kind is written, and once for each way a method is called, what is where."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from .call_texts import encode, groups_text, plain_text, text_of
from .known_requests import KnownRequests
from .values import page_ids

__all__ = ["READ_OFTEN", "Shape", "Spelling", "bare", "materialised", "shape_of", "spellings"]

Spelling = Callable[[Any], str]
"""Writes an argument of one kind."""

READ_OFTEN = {int, bool, str, type(None), np.ndarray}
"""Types of what can be read more than once and has nothing in it that can't."""

_READ_ONCE = {"plain", "pages", "groups", "keys"}
"""Kinds that may be given as iterators."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A way to call a method: so many arguments by position, these by name.

    Attributes:
        told: of each argument that a log has, keys aside: its place, the text before it, and how it is written.
        places: where the arguments are, by name.
        once: the places of those that may be iterators.
        wrapped: the places of those that may be recorded objects, or that no log has.
    """

    told: tuple[tuple[int, str, Spelling], ...]
    places: Mapping[str, int]
    once: tuple[int, ...]
    wrapped: tuple[int, ...]


def shape_of(kinds: Mapping[str, str], spelt: Mapping[str, Spelling], by_position: int, names: Any) -> Shape:
    """Reads how a method is called; one argument given in both ways is told as it is by name, and the call fails.

    Args:
        kinds: the kinds of the method's arguments, by name and in order.
        spelt: how each kind is written.
        by_position: so many are given by position.
        names: those that are given by name, behind them.
    """
    places = dict(zip(kinds, range(by_position), strict=False))
    places |= {name: place for place, name in enumerate(names, by_position)}
    own = {name: place for name, place in places.items() if name in kinds}
    unknown = set(range(by_position + len(names))) - set(own.values())
    return Shape(
        tuple((place, f'"{name}":', spelt[kinds[name]]) for name, place in own.items() if kinds[name] != "key"),
        places,
        tuple(place for name, place in own.items() if kinds[name] in _READ_ONCE),
        (*(place for name, place in own.items() if kinds[name] == "tables"), *unknown),
    )


def spellings(requests: KnownRequests, *, whole: bool, ends: bool) -> dict[str, Spelling]:
    """How arguments are written, by their kinds; see `LoggedCall`.

    Args:
        requests: the log's requests, of which it stands what they say now.
        whole: whether the method reads a request's tokens from the first on.
        ends: whether a request is rarely heard of behind it.
    """

    def request_id(value: Any) -> str:
        return text_of(requests.text(value)) if isinstance(value, str) else plain_text(value)

    return {
        "request": partial(requests.told, whole=whole, ends=ends),
        "id": request_id,
        "plain": plain_text,
        "pages": _pages,
        "groups": _groups,
        "hits": _hits,
        "keys": _keys,
        "key": plain_text,
        "tables": _tables,
    }


def _pages(value: Any) -> str:
    return encode(page_ids(value))


def _groups(value: Any) -> str:
    return encode(list(map(page_ids, value)) if isinstance(value, list | tuple) else page_ids(value))


def _hits(value: Any) -> str:
    return groups_text(value) if value is None or hasattr(value, "get_page_ids") else _stranger(value)


def _keys(value: Any) -> str:
    return encode({"keys": len(value)}) if isinstance(value, list | tuple) else plain_text(value)


def _tables(value: Any) -> str:
    number = getattr(value, "__dict__", {}).get("_kvproof_number")
    if number is not None:
        return encode({"k": number})
    return "null" if value is None else _stranger(value)


def _stranger(value: Any) -> str:
    return encode({"type": type(value).__name__})


def bare(value: Any) -> Any:
    """An argument as the engine's own objects know it: not the recorded one."""
    own = getattr(value, "__dict__", None)
    return value if own is None else own.get("_kvproof_thing", value)


def materialised(value: Any) -> Any:
    """An argument that can be read more than once."""
    if type(value) in READ_OFTEN:
        return value
    if hasattr(value, "__next__"):
        value = list(value)
    if isinstance(value, list | tuple) and any(hasattr(entry, "__next__") for entry in value):
        value = [materialised(entry) for entry in value]
    return value
