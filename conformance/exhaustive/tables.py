"""Small worlds of page tables: two rows of few entries, on the host and on the device, of one group or two."""

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

import numpy as np

from ..levels import LEVELS
from ..machines.base import Both, Side
from ..machines.table_base import TableMachine
from ..machines.table_steps import ROWS
from ..properties import step
from .ways import PASSING_OVER, Way
from .world import SmallWorld

__all__ = ["TableShape", "TableWorld"]

_MOVED = {"host rows": "TAB-3", "pages in a row": "TAB-3"}

_EXCHANGED = str.maketrans("12", "21")
"""The ids that rows name have one digit; each changes places with the other."""

Pages = list[Any]
"""The page ids of a row: a list, or one for each group."""


@dataclass(frozen=True)
class TableShape:
    """What a world of tables begins with.

    Attributes:
        rows: rows.
        entries: entries of a row, for each group.
        page_ids: the ids that rows name: 1, or 1 and 2.
        several: whether it is a table of several groups, even if there is one.
    """

    rows: int
    entries: tuple[int, ...]
    page_ids: tuple[int, ...] = (1, 2)
    several: bool = False


class TableWorld(SmallWorld, TableMachine):
    """One page table, or the tables of several groups.

    Two states are the same if they differ in which page id is which: a table only carries ids. Rows are told apart,
    as a commit counts them from the first. The host's rows and the device's are all that a table keeps; how often the
    host's were changed is held against TAB-8 at every call. A handle of the device's rows is taken before some calls,
    and must show the same after them, or raise.
    """

    shape: ClassVar[TableShape]
    capability = "tables"
    levels = frozenset(LEVELS)

    @step()
    def begin(self) -> None:
        """Empty tables."""
        rows, entries = self.shape.rows, self.shape.entries

        def make(side: Side) -> tuple[Any, list[Any]]:
            if not self.shape.several:
                made = side.names.get("PageTable")(rows, entries[0], 4)
                return made, [made]
            made = side.names.get("MultiGroupPageTable")(rows, entries[0], 4, self._page_sizes())
            return made, list(made.page_tables)

        line = f"{entries[0]}, 4"
        if self.shape.several:
            self.build_tables(f"table = MultiGroupPageTable({rows}, {line}, {self._page_sizes()})", make)
        else:
            self.build_tables(f"table = PageTable({rows}, {line})", make)

    def _page_sizes(self) -> list[int]:
        """Page sizes by which the longest request has so many pages in each group."""
        return [-(-self.shape.entries[0] // entries) for entries in self.shape.entries]

    # -- The state ----------------------------------------------------------------------------------------

    def key(self) -> Hashable:
        """See the class."""
        return repr(self.counts), min(self._shown())

    def _shown(self) -> tuple[str, str]:
        """The rows, and what they were if the two ids changed places; read once in each state."""
        if self._order is None:
            tables = self.spec.tables
            rows = repr([(table.get_cpu_tensor().tolist(), table.get_device_tensor().tolist()) for table in tables])
            self._order = rows, rows.translate(_EXCHANGED) if len(self.shape.page_ids) > 1 else rows
        found: tuple[str, str] = self._order
        return found

    def _page_ids(self) -> tuple[int, ...]:
        """The ids that rows name, in an order that renaming changes as it changes the rows."""
        shown, renamed = self._shown()
        return self.shape.page_ids[::-1] if renamed < shown else self.shape.page_ids

    # -- Moves ----------------------------------------------------------------------------------------------

    def moves(self) -> list[Way]:
        """Everything that changes a row, on the host or on the device."""
        rows, page_ids, counts = range(self.shape.rows), self._page_ids(), self.counts
        replaced = list(self._lists(page_ids, self.shape.entries))
        ways = []
        for row in rows:
            room = [entries - used[row] for entries, used in zip(self.shape.entries, counts, strict=True)]
            added = [pages for pages in self._lists(page_ids, room) if any(_flat(pages))]
            ways += [Way("fill", ("append_row", pages, row)) for pages in added]
            ways += [Way("fill", ("add_row", pages, row)) for pages in replaced]
            if any(used[row] for used in counts):
                ways += [Way("empty_row", (row,))] if self.offers("table", "clear_row") else []
        for one, other in product(rows, rows):
            if one != other:
                ways.append(Way("exchange", ("move_row", one, other)))
            if one < other:
                ways.append(Way("exchange", ("swap_row", one, other)))
        ways += [Way("append_batch", batch) for batch in self._batches(page_ids, counts)]
        ways += [Way("commit", (count,)) for count in range(1, self.shape.rows + 1)]
        ways.append(Way("clear"))
        return [*ways, *(Way("hold_over", (way,)) for way in self._held_over())]

    def _lists(self, page_ids: tuple[int, ...], room: Any) -> Iterator[Pages]:
        """Page lists of no page, one or two that differ, for each group as far as there is room."""
        for ids in ((), *((page,) for page in page_ids), page_ids[::-1]):
            lists = [list(ids[:most]) for most in room]
            if all(len(pages) == min(len(ids), most) for pages, most in zip(lists, room, strict=True)):
                yield lists if self.shape.several else lists[0]

    def _batches(self, page_ids: tuple[int, ...], counts: list[list[int]]) -> Iterator[tuple[Pages, list[int]]]:
        one: Pages = [[page_ids[0]]] * len(self.shape.entries) if self.shape.several else [page_ids[0]]
        none: Pages = [[] for _ in self.shape.entries] if self.shape.several else []
        last = self.shape.rows - 1
        for lists, rows in (([one, one], [last, 0]), ([one, one], [0, 0]), ([none, one], [0, last])):
            if self._fits(lists, rows, counts):
                yield lists, rows

    def _fits(self, lists: Pages, rows: list[int], counts: list[list[int]]) -> bool:
        """Whether a batch that appends one page to each group of some rows finds room."""
        added = [
            sum(row == other and bool(_flat(pages)) for pages, other in zip(lists, rows, strict=True))
            for row in range(self.shape.rows)
        ]
        return all(
            entries - used[row] >= added[row]
            for entries, used in zip(self.shape.entries, counts, strict=True)
            for row in range(self.shape.rows)
        )

    def _held_over(self) -> Iterator[Way]:
        yield Way("commit", (self.shape.rows,))
        yield Way("exchange", ("swap_row", 0, self.shape.rows - 1))
        yield Way("clear")

    def change(self, line: str, act: Callable[[Any], Any], clause: str, charge: Any = None) -> Both:
        """Makes a call that may change the host's rows; TAB-8 is looked at where it is made for the first time."""
        if self._care is PASSING_OVER:
            return self.call(line, act, clause)
        return super().change(line, act, clause, charge)

    @step("TAB-2")
    def fill(self, method: str, pages: Pages, row: int) -> None:
        """Adds pages to a row, or replaces it (TAB-2)."""
        self.change(
            f"table.{method}({pages}, {row})", lambda side: getattr(side.table, method)(pages, row), "TAB-2", ROWS
        )

    @step("TAB-2")
    def append_batch(self, lists: Pages, rows: list[int]) -> None:
        """Adds pages to several rows, or to one twice (TAB-2)."""
        self.change(
            f"table.append_rows_batch({lists}, {rows})",
            lambda side: side.table.append_rows_batch(lists, rows),
            "TAB-2",
            ROWS,
        )

    @step("TAB-2", "TAB-3")
    def exchange(self, method: str, one: int, other: int) -> None:
        """Copies a row over another, or exchanges two (TAB-3)."""
        self.change(
            f"table.{method}({one}, {other})", lambda side: getattr(side.table, method)(one, other), "TAB-3", _MOVED
        )

    @step("TAB-2")
    def empty_row(self, row: int) -> None:
        """Empties a row (TAB-1)."""
        self.change(f"table.clear_row({row})", lambda side: side.table.clear_row(row), "TAB-1")

    @step("TAB-2")
    def commit(self, count: int) -> None:
        """Commits the first rows (TAB-4)."""
        self.commit_rows(count)

    @step()
    def clear(self) -> None:
        """Empties every row, on the host and on the device (TAB-6)."""
        self.clear_all()

    @step("TAB-3")
    def hold_over(self, way: Way) -> None:
        """Makes a call while somebody holds a handle of the device's rows (TAB-4)."""
        self.take_handles()
        getattr(self, way.name)(*way.arguments)

    # -- Looks ----------------------------------------------------------------------------------------------

    def looks(self) -> list[Way]:
        """Where tokens go; calls that change nothing; calls that are refused as a whole.

        Refusals that depend on nothing but the table's shape are asked for while the device's rows are empty.
        """
        rows, groups = self.shape.rows, range(len(self.shape.entries))
        none: Pages = [[] for _ in groups] if self.shape.several else []
        ways = [Way("commit", (0,)), Way("exchange", ("swap_row", 0, 0))]
        for row in range(rows):
            full = [[1] * self.room(group, row) for group in groups]
            full[-1].append(1)
            too_many = full if self.shape.several else full[0]
            ways.append(Way("fill", ("append_row", too_many, row)))
            ways.append(Way("append_batch", ([self._half(row), self._half(row)], [row, row])))
            other = [[1] if self.room(group, 1 - row) else [] for group in groups]
            ways.append(Way("append_batch", ([other if self.shape.several else other[0], too_many], [1 - row, row])))
        if not any(table.get_device_tensor().any() for table in self.spec.tables):
            ways += self._beyond(none)
        return ways if self.shape.several else [*ways, *self._where_tokens_go()]

    def _beyond(self, none: Pages) -> Iterator[Way]:
        rows, entries = self.shape.rows, self.shape.entries
        large = [[1] * entry for entry in entries]
        large[-1].append(1)
        yield Way("fill", ("add_row", large if self.shape.several else large[0], 0))
        yield Way("append_batch", ([none, none], [0, rows]))
        for row in (-1, rows):
            yield from (Way("fill", (method, none, row)) for method in ("append_row", "add_row"))
            yield from (Way("exchange", (method, 0, row)) for method in ("move_row", "swap_row"))
            yield Way("commit", (row if row < 0 else rows + 1,))
            if self.offers("table", "clear_row"):
                yield Way("empty_row", (row,))

    def _half(self, row: int) -> Pages:
        """Pages that a row has room for once, and not twice."""
        lists = [[1] * (self.room(group, row) // 2) for group in range(len(self.shape.entries))]
        lists[-1] = [1] * (self.room(len(lists) - 1, row) // 2 + 1)
        return lists if self.shape.several else lists[0]

    def _where_tokens_go(self) -> Iterator[Way]:
        counts = self.counts[0]
        rows = [row for row in range(self.shape.rows) if counts[row]]
        if self.offers("table", "slot_mapping"):
            tokens = [(row, counts[row] * 2 - 1) for row in rows] + [(row, 0) for row in rows]
            yield Way("map_to", ([row for row, _ in tokens], [place for _, place in tokens], 2))
            yield Way("map_to", ([0], [counts[0]], 1))
        if self.offers("table", "update_slices"):
            yield Way("slice_into", (rows, [counts[row] - 1 for row in rows], [1] * len(rows), 1))
            yield Way("slice_into", ([0], [1], [2 * counts[0]], 2))

    @step("TAB-7")
    def map_to(self, rows: list[int], places: list[int], size: int) -> None:
        """The slot of each token of a step (TAB-7)."""
        self.read(
            f"table.slot_mapping({rows}, {places}, {size})",
            lambda side: side.table.slot_mapping(rows, places, size),
            "TAB-7",
            _array,
        )

    @step("TAB-7")
    def slice_into(self, rows: list[int], starts: list[int], lengths: list[int], size: int) -> None:
        """The runs of slots that a step fills (TAB-7)."""
        self.read(
            f"table.update_slices({rows}, {starts}, {lengths}, {size})",
            lambda side: side.table.update_slices(rows, starts, lengths, size),
            "TAB-7",
            _array,
        )


def _array(array: Any, _: Side) -> tuple[str, Any]:
    values = np.asarray(array)
    return str(values.dtype), values.tolist()


def _flat(pages: Pages) -> list[Any]:
    """The page ids of a list, or of a list for each group."""
    return [page for entry in pages for page in (entry if isinstance(entry, list) else [entry])]
