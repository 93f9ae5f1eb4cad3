"""Small worlds of page tables: two rows of few entries, on the host and on the device, of one group or two."""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

from ...calls.datum import Call, Ref
from ...calls.table import TABLE
from ..calling import Calls
from ..properties import step
from ..table import TableMachine
from .walk import PASSING_OVER, Move, Way
from .world import SmallWorld

__all__ = ["TableShape", "TableWorld"]

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

    @step()
    def begin(self) -> None:
        """Empty tables."""
        rows, entries = self.shape.rows, self.shape.entries
        if self.shape.several:
            self.build_tables("MultiGroupPageTable", rows, entries[0], 4, self._page_sizes())
        else:
            self.build_tables("PageTable", rows, entries[0], 4)

    def _page_sizes(self) -> list[int]:
        """Page sizes by which the longest request has the world's number of pages in each group."""
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

    def moves(self) -> list[Move]:
        """Everything that changes a row, on the host or on the device."""
        rows, page_ids, counts = range(self.shape.rows), self._page_ids(), self.counts
        replaced = list(self._lists(page_ids, self.shape.entries))
        calls = []
        for row in rows:
            added = [pages for pages in self._lists(page_ids, self.rooms(row)) if any(_flat(pages))]
            calls += [self._fill("append_row", pages, row) for pages in added]
            calls += [self._fill("add_row", pages, row) for pages in replaced]
            if any(used[row] for used in counts) and self.can_call(TABLE["clear_row"]):
                calls.append(self._on_table("clear_row", row_idx=row))
        for one, other in product(rows, rows):
            if one != other:
                calls.append(self._exchange("move_row", one, other))
            if one < other:
                calls.append(self._exchange("swap_row", one, other))
        for lists, batch in self._batches(page_ids):
            calls += self._append(lists, batch)
        calls += [self._commit(count) for count in range(1, self.shape.rows + 1)]
        calls.append(self._on_table("clear"))
        held_over = self._commit(self.shape.rows), self._exchange("swap_row", 0, self.shape.rows - 1), calls[-1]
        return [*calls, *(Way("hold_over", (call,)) for call in held_over)]

    def _lists(self, page_ids: tuple[int, ...], room: Sequence[int]) -> Iterator[Pages]:
        """Page lists of no page, one or two that differ, for each group as far as there is room."""
        for ids in ((), *((page,) for page in page_ids), page_ids[::-1]):
            lists = [list(ids[:most]) for most in room]
            if all(len(pages) == min(len(ids), most) for pages, most in zip(lists, room, strict=True)):
                yield self._of_groups(lists)

    def _of_groups(self, lists: list[list[int]]) -> Pages:
        return lists if self.shape.several else lists[0]

    def _batches(self, page_ids: tuple[int, ...]) -> Iterator[tuple[Pages, list[int]]]:
        """Batches that append one page to each group of some rows, if there is room."""
        one = self._of_groups([[page_ids[0]]] * len(self.shape.entries))
        last = self.shape.rows - 1
        for lists, rows in (([one, one], [last, 0]), ([one, one], [0, 0]), ([self._none(), one], [0, last])):
            added = [row for pages, row in zip(lists, rows, strict=True) if any(_flat(pages))]
            if all(min(self.rooms(row)) >= added.count(row) for row in added):
                yield lists, rows

    # -- Calls ----------------------------------------------------------------------------------------------

    def _none(self) -> Pages:
        return self._of_groups([[] for _ in self.shape.entries])

    def _on_table(self, name: str, **arguments: Any) -> Call:
        return self.call_of(name, Ref("table"), **arguments)

    def _fill(self, name: str, pages: Pages, row: int) -> Call:
        return self._on_table(name, page_ids=pages, row_idx=row)

    def _append(self, lists: Pages, rows: list[int]) -> list[Call]:
        """A batch, where the backend takes batches."""
        if not self.can_call(TABLE["append_rows_batch"]):
            return []
        name = "page_ids_per_req" if self.shape.several else "page_ids"
        return [self._on_table("append_rows_batch", **{name: lists, "req_indices": rows})]

    def _exchange(self, name: str, one: int, other: int) -> Call:
        return self._on_table(name, src=one, tgt=other)

    def _commit(self, count: int) -> Call:
        return self._on_table("commit", num_reqs=count)

    def versions(self) -> list[int] | None:
        """See `TableMachine.versions`; they are looked at where a call is made for the first time."""
        return None if self._care is PASSING_OVER else super().versions()

    @step("TAB-3")
    def hold_over(self, call: Call) -> Calls:
        """Makes a call while somebody holds a handle of the device's rows (TAB-4)."""
        for group in range(len(self.shape.entries)):
            yield self.call_of("get_device_tensor", Ref("tables", (group,)))
        yield call

    # -- Looks ----------------------------------------------------------------------------------------------

    def looks(self) -> list[Call]:
        """Where tokens go; calls that change nothing; calls that are refused as a whole.

        Refusals that depend on nothing but the table's shape are asked for while the device's rows are empty.
        """
        calls = [self._commit(0), self._exchange("swap_row", 0, 0)]
        for row in range(self.shape.rows):
            full = [[1] * room for room in self.rooms(row)]
            full[-1].append(1)
            calls.append(self._fill("append_row", self._of_groups(full), row))
            calls += self._append([self._half(row), self._half(row)], [row, row])
            other = self._of_groups([[1][:room] for room in self.rooms(1 - row)])
            calls += self._append([other, self._of_groups(full)], [1 - row, row])
        if not any(table.get_device_tensor().any() for table in self.spec.tables):
            calls += self._beyond()
        return calls if self.shape.several else [*calls, *self._where_tokens_go()]

    def _beyond(self) -> Iterator[Call]:
        rows, none = self.shape.rows, self._none()
        large = [[1] * entry for entry in self.shape.entries]
        large[-1].append(1)
        yield self._fill("add_row", self._of_groups(large), 0)
        yield from self._append([none, none], [0, rows])
        for row in (-1, rows):
            yield from (self._fill(name, none, row) for name in ("append_row", "add_row"))
            yield from (self._exchange(name, 0, row) for name in ("move_row", "swap_row"))
            yield self._commit(row if row < 0 else rows + 1)
            if self.can_call(TABLE["clear_row"]):
                yield self._on_table("clear_row", row_idx=row)

    def _half(self, row: int) -> Pages:
        """Pages that a row has room for once, and not twice."""
        lists = [[1] * (room // 2) for room in self.rooms(row)]
        lists[-1] = [1] * (self.rooms(row)[-1] // 2 + 1)
        return self._of_groups(lists)

    def _where_tokens_go(self) -> Iterator[Call]:
        counts = self.counts[0]
        rows = [row for row in range(self.shape.rows) if counts[row]]
        if self.can_call(TABLE["slot_mapping"]):
            tokens = [(row, counts[row] * 2 - 1) for row in rows] + [(row, 0) for row in rows]
            for mapped, size in ((tokens, 2), ([(0, counts[0])], 1)):
                named, places = [row for row, _ in mapped], [place for _, place in mapped]
                yield self._on_table("slot_mapping", req_indices=named, positions=places, page_size=size)
        if self.can_call(TABLE["update_slices"]):
            for runs, size in (([(row, counts[row] - 1, 1) for row in rows], 1), ([(0, 1, 2 * counts[0])], 2)):
                named, starts, lengths = ([run[place] for run in runs] for place in range(3))
                yield self._on_table("update_slices", req_indices=named, starts=starts, lengths=lengths, page_size=size)


def _flat(pages: Pages) -> list[Any]:
    """The page ids of a list, or of a list for each group."""
    return [page for entry in pages for page in (entry if isinstance(entry, list) else [entry])]
