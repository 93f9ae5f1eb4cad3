"""The simplest case that still shows a fault: what of a case can be left out is left out, as long as it shows one."""

from collections.abc import Callable, Iterator
from typing import TypeVar

__all__ = ["simplest"]

Case = TypeVar("Case")
Shown = TypeVar("Shown")


def simplest(
    case: Case,
    shown: Shown,
    simpler: Callable[[Case], Iterator[Case]],
    shows: Callable[[Case], Shown | None],
    tries: int,
) -> tuple[Case, Shown]:
    """A case as simple as it gets in some tries that still shows a fault, and what it showed.

    Args:
        case: a case that shows one.
        shown: what it showed.
        simpler: cases that are a little simpler than a case, those to be tried first in front.
        shows: tries a case; returns what it shows, None for nothing.
        tries: the number of cases that may be tried.
    """
    going_on = True
    while going_on:
        going_on = False
        for other in simpler(case):
            if not tries:
                return case, shown
            tries -= 1
            found = shows(other)
            if found is not None:
                case, shown, going_on = other, found, True
                break
    return case, shown
