"""What the machines draw with Hypothesis: small worlds, so that counterexamples are short."""

from collections.abc import Sequence
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.strategies import DataObject, SearchStrategy

from ..calls.source import Source
from ..calls.values import EXTRA_KEYS, NO_INTS

__all__ = ["EXTRA_KEYS", "NO_INTS", "Drawing", "UnrepeatableError", "some", "token_lists"]

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

    def one_of(self, options: Sequence[T]) -> T:
        """See `Source.one_of`; taken again, there may be fewer options, or none."""
        place = self.integer(0, len(options) - 1)
        if not options or type(place) is not int:
            raise UnrepeatableError
        return options[min(place, len(options) - 1)]

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
