"""The source of decisions: code that draws a call asks one of these, so that any driver can draw every call."""

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from .spelling import LISTED, TOKENS, Spelling

__all__ = ["Nth", "Source"]

T = TypeVar("T")


class Source:
    """A series of integers, and the choices that are made by them: chance, Hypothesis, or every possibility in turn.

    Attributes:
        times: how many times as many pages a call names at most as in a small world.
    """

    times = 1

    def most(self, few: int) -> int:
        """The most pages that a call names which names a few at most in a small world."""
        return few * self.times

    def integer(self, least: int, most: int) -> int:
        """An integer of ``least`` to ``most``; everything else is made of these."""
        raise NotImplementedError

    def one_of(self, options: Sequence[T]) -> T:
        """One of some options; the first is the simplest."""
        return options[self.integer(0, len(options) - 1)]

    def rarely(self) -> bool:
        """True about once in eight times."""
        return self.integer(0, 7) == 7

    def likely(self, often: Sequence[T], seldom: Sequence[T]) -> T:
        """One of the first options twice as often as one of the others, however many there are."""
        return self.one_of([often, often, seldom][self.integer(0, 2)])

    def some(self, options: Sequence[T], most: int, least: int = 0) -> list[T]:
        """A few of some options in any order, each as often as it is among them."""
        left = list(options)
        count = self.integer(min(least, len(left)), min(most, len(left)))
        return [left.pop(self.integer(0, len(left) - 1)) for _ in range(count)]

    def a_few(self, options: Sequence[T], most: int) -> list[T]:
        """Some of the options, as `some` gives them; rarely none."""
        return self.some(options, most, 0 if self.rarely() else 1)

    def several(self, options: Sequence[T], most: int, least: int = 0) -> list[T]:
        """A list of some options, each as often as chance has it."""
        return [self.one_of(options) for _ in range(self.integer(least, most))] if options else []

    def whole(self, least: int, most: int) -> Any:
        """An int, now and then one of numpy's, which is an int as well (R1)."""
        return self.counted(self.integer(least, most))

    def counted(self, number: int) -> Any:
        """A number as an engine hands it over: now and then as one of numpy's."""
        return self.one_of((np.int64, np.int32))(number) if self.rarely() else number

    def spelling(self, options: Sequence[Spelling], iterables: bool = True) -> Spelling:
        """How a list is handed over: as a list where only lists are taken."""
        return self.one_of(options) if iterables else Spelling.LIST

    def token_spelling(self, iterables: bool = True) -> Spelling:
        """How the tokens of a request are handed over, half of the time in the usual way."""
        return self.one_of(self.one_of([TOKENS[:1], TOKENS])) if iterables else self.one_of(LISTED)


class Nth(Source):
    """Takes the option at one place wherever it is asked: so what is drawn by one decision can be gone through in turn.

    Args:
        place: the place.

    Attributes:
        last: the last place of the decision that was asked last.
    """

    last = 0

    def __init__(self, place: int) -> None:
        self._place = place

    def integer(self, least: int, most: int) -> int:
        """See `Source.integer`."""
        self.last = most - least
        return min(least + self._place, most)
