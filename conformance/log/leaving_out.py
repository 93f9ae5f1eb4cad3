"""Leaves out of a log that deviates what the deviation does not need: by method, by request, then one by one."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ..calls.simplest import thinned

__all__ = ["Part", "leave_out"]

T = TypeVar("T")


@dataclass(frozen=True)
class Part:
    """An operation before the one that deviates.

    Attributes:
        number: its number.
        kind: its object and its method: reads and tables are left out first, as mostly nothing else depends on them.
        requests: the numbers of the requests that it is about and cannot go on without.
    """

    number: int
    kind: Hashable
    requests: tuple[int, ...]


def leave_out(
    best: T,
    parts_of: Callable[[T], Sequence[Part]],
    without: Callable[[T, set[int]], T | None],
    keep: Callable[[T], None],
) -> None:
    """Leaves out operations, some together, until each one that is left is needed.

    Args:
        best: what is begun with.
        parts_of: its operations before the last, in order.
        without: tries it without operations of some numbers; None where that shows another deviation, or none.
        keep: told each try that has fewer operations; the last one told is the result.
    """
    count = -1
    while count != len(parts_of(best)):
        count = len(parts_of(best))
        for units_of in (_kinds, _requests, _each):
            best = _without_units(best, units_of(parts_of(best)), parts_of, without, keep)


def _without_units(
    best: T,
    units: list[set[int]],
    parts_of: Callable[[T], Sequence[Part]],
    without: Callable[[T, set[int]], T | None],
    keep: Callable[[T], None],
) -> T:
    """What is left when no unit, a set of operations that are left out together, can be left out any more."""

    def drop(start: int, end: int) -> bool:
        nonlocal best
        found = without(best, set().union(*units[start:end]))
        if found is None or len(parts_of(found)) >= len(parts_of(best)):
            return False
        best = found
        keep(best)
        del units[start:end]
        return True

    thinned(units.__len__, drop, len(units))
    return best


def _kinds(parts: Sequence[Part]) -> list[set[int]]:
    return _grouped((part.kind, part.number) for part in parts)


def _requests(parts: Sequence[Part]) -> list[set[int]]:
    return _grouped((request, part.number) for part in parts for request in part.requests)


def _each(parts: Sequence[Part]) -> list[set[int]]:
    return [{part.number} for part in parts]


def _grouped(numbers: Iterable[tuple[Hashable, int]]) -> list[set[int]]:
    """The numbers that have the same key, in the order in which the keys come."""
    of: dict[Hashable, set[int]] = {}
    for key, number in numbers:
        of.setdefault(key, set()).add(number)
    return list(of.values())
