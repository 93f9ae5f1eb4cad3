"""Plain ``allocate_slots`` calls as a log has them: in columns, a line for those between two other calls."""

from array import array
from collections.abc import Iterator
from operator import sub
from typing import Any

from .call_texts import groups_text
from .columns import listed

__all__ = ["NO_PAGES", "SLOTS", "SlotRuns"]

SLOTS = 7
"""Entries of a plain ``allocate_slots`` among the notes."""

NO_PAGES = ""
"""What stands among the notes for pages of which none is new, where they were read at once."""


class SlotRuns:
    """Writes calls that were noted, each with `SLOTS` entries.

    These are the manager's number, what the log knows of the request, its computed tokens, its tokens, new tokens,
    look-ahead, and None, pages that stay as they are, or the text of their ids, `NO_PAGES` for none.
    """

    def __init__(self) -> None:
        self._nothing: dict[int, Any] = {}

    def lines(self, noted: list[Any], ends: list[int]) -> Iterator[list[str]]:
        """The lines of each run of calls.

        Args:
            noted: the entries of all calls.
            ends: where the entries of each run end.
        """
        numbers, requests, computed, known, new, ahead, pages = (noted[place::SLOTS] for place in range(SLOTS))
        more = list(map(sub, known, computed))
        told = _packed([request.number for request in requests])
        columns = told, _packed(computed), _packed(known), more, new, ahead, pages
        start = 0
        for end in [place // SLOTS for place in ends]:
            lines = []
            for begin, stop in _of_one(numbers, start, end):
                lines.append(self._line(numbers[begin], *(column[begin:stop] for column in columns)))
            yield lines
            start = end

    def _line(
        self, number: int, told: Any, computed: Any, known: Any, more: Any, new: Any, ahead: Any, pages: Any
    ) -> str:
        nothing = self._nothing.get(number, NO_PAGES)
        some = []
        for place, given in [entry for entry in enumerate(pages) if entry[1] is not nothing]:
            if type(given) is str:
                some.append(f"[{place},{given}]")
                continue
            ids = None if given is None else given.get_page_ids()
            if ids is None or any(ids):
                some.append(f"[{place},{groups_text(ids)}]")
            else:
                self._nothing[number] = given  # what gives no pages may be one object for all such calls
        lengths = f'{{"more":{more[0]}}}' if more.count(more[0]) == len(more) else listed(known)
        columns = f"{listed(told)},{listed(computed)},{lengths},{_column(new)},{_column(ahead)}"
        return f'["slots",{number},{columns},[{",".join(some)}]]'


def _of_one(numbers: list[int], start: int, end: int) -> Iterator[tuple[int, int]]:
    """The parts of a run that are of one manager each."""
    while start < end:
        own = numbers[start:end]
        stop = end
        if own.count(own[0]) != len(own):
            stop = start + next(place for place, number in enumerate(own) if number != own[0])
        yield start, stop
        start = stop


def _packed(numbers: list[Any]) -> Any:
    try:
        return array("i", numbers)
    except (OverflowError, TypeError):  # `listed` writes what is no int32
        return numbers


def _column(numbers: list[int]) -> str:
    """A list of numbers, or the one number that stands in all of its places."""
    first = numbers[0]
    return str(first) if type(first) is int and numbers.count(first) == len(numbers) else listed(numbers)
