"""Kinds of arguments and results that several interfaces share."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .datum import Ref, Spelled
from .method import Kind
from .readings import page_ids, page_list
from .source import Source
from .spelling import OBJECTS, Spelling
from .values import NO_INTS

__all__ = [
    *(
        "ARRAY",
        "COUNTS",
        "HASHES",
        "NONE",
        "PLAIN",
        "PAGES_GIVEN",
        "PAGES_FOUND",
        "PAGE_GIVEN",
        "IDS_GIVEN",
        "NEGATIVE",
        "FLAG",
        "POOL_OPTIONS",
        "REQUEST_ID",
    ),
    *("columns", "grouped", "number", "numbers_of", "recorded", "spelled", "wrong", "wrong_groups", "wrong_numbers"),
]

COUNTS = ("ref_cnt", "not in the queue exactly while at 0", "free pages", "numbers of free pages")
"""Fields of the state that say who holds a page."""

HASHES = ("hashed pages", "cached map")
"""Fields of the state that say what a page is cached for."""

NEGATIVE = (-1, *NO_INTS)
"""Values that are not a count, the likeliest mistake first."""


def recorded(declared: type) -> tuple[str, ...]:
    """The options that a log keeps: all but those of the keys, for which whoever reads it takes its own."""
    return tuple(name for name in declared.__annotations__ if name not in ("hash_seed", "hash_function"))


@functools.cache
def _name_of(dtype: np.dtype[Any]) -> str:
    return str(dtype)  # it is put together each time that it is asked for: a fifteenth of a small world's time


def numbers_of(array: Any) -> tuple[str, Any]:
    """An array's type and its values, read so that the array caches nothing and nothing keeps its buffer alive."""
    replicated = getattr(array, "is_fully_replicated", False)
    values = np.array(array.addressable_data(0) if replicated else array)
    return _name_of(values.dtype), values.tolist()


def wrong(*values: Any, log: str = "plain", **more: Any) -> Kind:
    """A kind of which some values are always wrong, whichever calls came before.

    Args:
        values: these values.
        log: how a log writes it.
        more: what else the kind has.
    """
    return Kind(log, fault=lambda source, *_: source.one_of(values), **more)


PLAIN = Kind()
FLAG = wrong(1, "yes")
"""A bool; R1 takes no int for one."""

REQUEST_ID = wrong(None, 1, log="id")

POOL_OPTIONS: Mapping[str, Kind] = {
    **dict.fromkeys(("unhashed_first", "enable_events"), FLAG),
    "counter_sampling": wrong(0, *NEGATIVE),
    "eviction": wrong("oldest", 1, None),
    **dict.fromkeys(("max_pinned_pages", "max_pinned_pages_per_salt"), wrong(-1, *NO_INTS[:-1])),
}
"""The options of a pool, each with values that make no sense."""
ARRAY = Kind("array", plain=lambda array, _: numbers_of(array))
NONE = Kind("none")
PAGES_GIVEN = Kind("pages", plain=page_list)
PAGE_GIVEN = Kind("page", plain=lambda page, _: int(page.page_id))
IDS_GIVEN = Kind("pages", plain=lambda pages, _: page_ids(pages))
PAGES_FOUND = Kind("pages", plain=lambda pages, side: None if pages is None else page_list(pages, side))


def spelled(source: Source, known: Any, values: Sequence[Any], options: Sequence[Spelling] = OBJECTS) -> Spelled:
    """A list of values, in one of the types in which a list can be given."""
    return Spelled(source.spelling(options, known.takes_iterables), tuple(values))


def grouped(source: Source, known: Any, groups: Sequence[Sequence[Ref]]) -> Spelled:
    """Lists of pages by group, the lists and the list of them in one type."""
    how = source.spelling(OBJECTS, known.takes_iterables)
    return Spelled(how, tuple(Spelled(how, tuple(group)) for group in groups))


def wrong_groups(source: Source, known: Any, good: list[Ref], faults: Sequence[Any]) -> Any:
    """Lists of pages by group, the last of the last one wrong; or no lists."""
    if source.integer(0, 3) == 3:
        return source.one_of([None, 1, [1], [list(good), 1]])
    groups = [source.some(good, 2), [*source.some(good, 1), source.one_of(faults)]]
    return grouped(source, known, groups)


def columns(known: Any, numbers: Sequence[Any]) -> list[Spelled]:
    """Numbers as an array `[n, 1]`, which is no list of numbers (R1); nothing for a backend that takes no arrays."""
    return [Spelled(Spelling.INT64, tuple([number] for number in numbers))] if known.takes_iterables else []


def wrong_numbers(*values: Any) -> Kind:
    """A kind of lists of numbers: some values are always wrong, and so is an array of two dimensions."""
    return Kind(fault=lambda source, known, _: source.one_of([*values, *columns(known, [1])]))


def number(least: int = 0, most: int = 3, faults: Sequence[Any] = NEGATIVE) -> Kind:
    """An int from ``least`` to ``most``; its faults are negative numbers and values of other types."""
    return Kind(
        good=lambda source, _: source.whole(least, most),
        fault=lambda source, *_: source.likely(faults[:1], faults[1:]),
    )
