"""The simplest case that still shows a fault: what of a case can be left out is left out, as long as it shows one.

Every search for a short counterexample is made of these two: `thinned` leaves out runs of a sequence (delta debugging),
`simplest` tries one simpler case after another.
"""

from collections.abc import Callable, Iterator
from typing import TypeVar

__all__ = ["simplest", "thinned"]

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


def thinned(count: Callable[[], int], leave_out: Callable[[int, int], bool], size: int) -> None:
    """Leaves runs out of a sequence, long ones first, then halves of them, ... and single entries last.

    Args:
        count: how many entries there are now.
        leave_out: leaves out the entries of a place to before another, if the rest will do; returns whether it did.
        size: the length of the first runs.
    """
    while size:
        place = 0
        while place < count():
            if not leave_out(place, min(place + size, count())):
                place += size
        size //= 2
