"""What the table machines share: what page tables show, on the host and on the device, and how versions grow."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from ..deviation import attempt
from .base import Both, Field, Machine, Side, same
from .draws import NO_INTS, NO_LISTS, Drawing, likely, whole

__all__ = ["BAD_ROWS", "PAGE_IDS", "TableMachine", "bad_page_lists", "page_ids"]

PAGE_IDS = (1, 2, 3, 4, 0, 2**31 - 1)
"""Page ids that are drawn; an int32 holds no larger one."""

BAD_ROWS = (-1, *NO_INTS)
"""What is no row of any table."""

Rows = tuple[str, list[list[int]]]
"""A table's element type and its rows."""


def page_ids(data: Drawing, most: int) -> list[int]:
    """Draws a page list that fits into ``most`` entries."""
    return data.draw(st.lists(st.sampled_from(PAGE_IDS), max_size=max(min(most, 3), 0)))


def bad_page_lists(good: list[int]) -> list[Any]:
    """What is no list of page ids, good ids standing before the bad one."""
    return [
        *([*good, wrong] for wrong in (-1, 2**31, *NO_INTS)),
        *NO_LISTS,
        np.array([1.0]),
        np.array([[1]]),
        np.array([True]),
    ]


def rows_of(array: Any) -> Rows:
    """A table's values, read so that the array caches nothing and nothing keeps its buffer alive."""
    replicated = getattr(array, "is_fully_replicated", False)
    values = np.array(array.addressable_data(0) if replicated else array)
    return _name_of(values.dtype), values.tolist()


@functools.cache
def _name_of(dtype: np.dtype[Any]) -> str:
    return str(dtype)  # it is put together anew each time: a fifteenth of a small world's time


def _host(side: Any) -> list[Rows]:
    return [rows_of(table.get_cpu_tensor()) for table in side.tables]


def _counts(side: Any) -> list[list[int]]:
    return [np.asarray(table.num_pages_per_row).tolist() for table in side.tables]


def _device(side: Any) -> list[Rows]:
    return [rows_of(table.get_device_tensor()) for table in side.tables]


def _changeable(side: Any) -> list[int]:
    """The tables whose host rows can be changed from outside."""
    return [group for group, table in enumerate(side.tables) if table.get_cpu_tensor().flags.writeable]


def _broken_handles(side: Any) -> list[str]:
    """Device handles that show other values than when they were taken, or that raise too early."""
    wrong = []
    for place, (handle, values, epoch) in enumerate(side.handles):
        outcome = attempt(functools.partial(rows_of, handle))
        if outcome.error is not None and epoch == side.epoch[0]:
            wrong.append(f"handle {place} is invalid before the next commit: {outcome}")
        if outcome.error is None and outcome.value != values:
            wrong.append(f"handle {place} shows {outcome.value[1]}, it was {values[1]}")
    return wrong


class TableMachine(Machine):
    """Tables side by side. A side has its ``tables``, device ``handles``, and the ``epoch`` of commits."""

    always = frozenset({"R1", "TAB-1", "TAB-4", "TAB-6", "TAB-8"})

    looking = True

    def build_tables(self, line: str, make: Callable[[Side], tuple[Any, list[Any]]], looking: bool = True) -> None:
        """Builds both sides' tables.

        Args:
            looking: whether the device is looked at after every call, or only when a step does so. A look can
                hide what it looks for: it waits until the device has all that is on its way.
            line: how a report shows the call.
            make: makes a side's object and the list of its tables.
        """
        self.looking = looking

        def act(side: Side) -> dict[str, Any]:
            made, tables = make(side)
            return {"table": made, "tables": tables, "handles": [], "epoch": [0]}

        self.build(line, "TAB-1", act)
        self.watch(
            Field("pages in a row", "TAB-1", _counts),
            Field("host rows", "TAB-1", _host, blame=self.blame_padding),
            *(() if self.lacks("views") else (Field("tables that can be changed from outside", "TAB-6", _changeable),)),
            Field("device rows", "TAB-4", lambda side: _device(side) if self.looking else "not looked at", aside=True),
            Field(
                "broken device handles", "TAB-4", lambda side: _broken_handles(side) if self.looking else [], aside=True
            ),
        )

    def blame_padding(self, expected: list[Rows], observed: list[Rows]) -> str:
        """Whether host rows are wrong only past their counts, or in their type (TAB-1); else who called is to blame."""
        for counts, (dtype, rows), (other_dtype, others) in zip(_counts(self.spec), expected, observed, strict=True):
            if dtype != other_dtype or len(rows) != len(others):
                return "TAB-1"
            if any(row[:count] != other[:count] for count, row, other in zip(counts, rows, others, strict=True)):
                return ""
        return "TAB-1"

    # -- What the specification's tables show ------------------------------------------------------------

    @property
    def counts(self) -> list[list[int]]:
        """How many pages each row of each table names."""
        return _counts(self.spec)

    @property
    def num_rows(self) -> int:
        """How many rows there are."""
        return len(self.counts[0])

    def room(self, group: int, row: int) -> int:
        """How many pages fit into a row beside those it names."""
        return int(self.spec.tables[group].max_num_pages_per_req) - self.counts[group][row]

    def some_row(self, data: Drawing) -> Any:
        """Draws a row."""
        return whole(data, 0, self.num_rows - 1)

    def bad_row(self, data: Drawing) -> Any:
        """Draws what is no row."""
        return likely(data, [self.num_rows, -1], BAD_ROWS)

    # -- Calls --------------------------------------------------------------------------------------------

    def change(self, line: str, act: Callable[[Any], Any], clause: str, charge: Any = None) -> Both:
        """Makes a call that may change the host's rows, and holds it against TAB-8."""
        return self._versioned(line, act, clause, charge, stays=False)

    def read(self, line: str, act: Callable[[Any], Any], clause: str, normal: Any = same, charge: Any = None) -> Both:
        """Makes a call that leaves the host's rows and their version (TAB-8)."""
        return self._versioned(line, act, clause, charge, stays=True, normal=normal)

    def _versioned(
        self, line: str, act: Callable[[Any], Any], clause: str, charge: Any, stays: bool, normal: Any = same
    ) -> Both:
        versions = self._versions()
        host = _host(self.spec), self.counts
        both = self.call(line, act, clause, normal, charge)
        if versions is None:
            return both
        now = self._versions() or []
        self.compared("TAB-8")
        if both.refused or stays:
            if now != versions:
                self.differ("TAB-8", f"cpu_version = {versions} as before", f"cpu_version = {now}")
            return both
        for group, (old, new) in enumerate(zip(versions, now, strict=True)):
            changed = (host[0][group], host[1][group]) != (_host(self.spec)[group], self.counts[group])
            if new < old or (changed and new == old):
                self.differ("TAB-8", f"cpu_version of table {group} above {old}", f"cpu_version = {new}")
        return both

    def _versions(self) -> list[int] | None:
        tables = self.backend.tables
        return [table.cpu_version for table in tables] if all(hasattr(t, "cpu_version") for t in tables) else None

    def commit_rows(self, count: Any) -> None:
        """Commits; a handle taken before may raise from now on."""

        def act(side: Side) -> None:
            side.table.commit(count)
            side.epoch[0] += 1

        self.read(f"table.commit({count!r})", act, "TAB-4")

    def clear_all(self) -> None:
        """Clears; on the device too, so that a handle taken before may raise from now on."""

        def act(side: Side) -> None:
            side.table.clear()
            side.epoch[0] += 1

        self.change("table.clear()", act, "TAB-6", "TAB-6")

    def look(self) -> None:
        """Looks at the device, in an example that does not look after every call."""
        before, self.looking = self.looking, True
        self.read("table.get_device_tensor()", _device, "TAB-4", charge="TAB-4")
        self.looking = before

    def take_handles(self) -> None:
        """Takes the device's tables in hand, to see what they show later."""
        self.calls.append("handle = table.get_device_tensor()")
        for side in (self.spec, self.backend):
            for table in side.tables:
                handle = table.get_device_tensor()
                side.handles.append((handle, rows_of(handle), side.epoch[0]))
            del side.handles[: -2 * len(side.tables)]
