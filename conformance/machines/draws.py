"""What the machines draw with Hypothesis: small worlds, so that counterexamples are short."""

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DataObject, SearchStrategy

from ..calls.source import Source
from ..calls.values import EXTRA_KEYS, NO_INTS, NO_LISTS

__all__ = [
    "EXTRA_KEYS",
    "NO_INTS",
    "NO_LISTS",
    "Drawing",
    "UnrepeatableError",
    "counted",
    "likely",
    "one_of",
    "rarely",
    "some",
    "token_lists",
    "whole",
]

T = TypeVar("T")

token_lists = st.sampled_from([(0, 1), (-1, -2), (0, -1)])
"""Alphabets of two tokens: few, so that prefixes are shared; 0, -1 and -2 because no value is special."""


class UnrepeatableError(Exception):
    """A step cannot be taken again: it draws more than it drew then, or from fewer options."""


class Drawing(Source):
    """Where a step draws from: from Hypothesis, or what it drew before.

    Args:
        source: Hypothesis' data; None to draw again what was drawn.
        before: what was drawn.

    Attributes:
        drawn: what was drawn so far.
    """

    def __init__(self, source: DataObject | None, before: Sequence[Any] = ()) -> None:
        self._source = source
        self._before = before
        self.drawn: list[Any] = []

    def integer(self, least: int, most: int) -> int:
        """See `Source.integer`."""
        return self.draw(st.integers(least, most))

    def draw(self, strategy: SearchStrategy[T]) -> T:
        """Draws a value."""
        if self._source is not None:
            value = self._source.draw(strategy)
        elif len(self.drawn) < len(self._before):
            value = _within(strategy, self._before[len(self.drawn)])
        else:
            raise UnrepeatableError
        self.drawn.append(value)
        return value


def _within(strategy: SearchStrategy[Any], value: Any) -> Any:
    """What was drawn, or where that is no integer of those that can be drawn now, the one next to it."""
    numbers = getattr(strategy, "wrapped_strategy", strategy)
    least, most = getattr(numbers, "start", None), getattr(numbers, "end", None)
    if least is None or most is None:
        return value
    if type(value) is not int:
        raise UnrepeatableError
    return min(max(value, least), most)


def one_of(data: Drawing, options: Sequence[T]) -> T:
    """Draws one of some options; the first is the simplest."""
    place = data.draw(st.integers(0, len(options) - 1))
    if not options or type(place) is not int:
        raise UnrepeatableError
    return options[min(place, len(options) - 1)]  # taken again, there may be fewer


def likely(data: Drawing, often: Sequence[T], seldom: Sequence[T]) -> T:
    """Draws one of the first options twice as often as one of the others, however many there are."""
    return one_of(data, one_of(data, [often, often, seldom]))


def rarely(data: Drawing) -> bool:
    """Draws True about once in eight times."""
    return data.draw(st.integers(0, 7)) == 7


def some(data: Drawing, options: Sequence[T], most: int, least: int = 0) -> list[T]:
    """Draws a few of some options, in any order, each as often as it is among them."""
    places = data.draw(
        st.lists(st.sampled_from(range(len(options))), unique=True, min_size=least, max_size=min(most, len(options)))
        if options
        else st.just([])
    )
    found = [options[place] for place in places if place < len(options)]  # taken again, there may be fewer
    if len(found) < least:
        raise UnrepeatableError
    return found


def whole(data: Drawing, least: int, most: int) -> Any:
    """Draws an int, now and then one of numpy's, which is an int as well (R1)."""
    return counted(data, data.draw(st.integers(least, most)))


def counted(data: Drawing, number: int) -> Any:
    """A number as an engine hands it over: now and then as one of numpy's, which is an int as well (R1)."""
    return np.int64(number) if rarely(data) else number
