"""The multi-group machine: the page tables of several groups, a row being the same request in all of them."""

from typing import Any

from hypothesis import strategies as st

from ..levels import LEVELS
from ..properties import start, step
from ..spelling import NUMBERS, OBJECTS
from .base import Side
from .draws import NO_INTS, Drawing, likely, one_of
from .table_base import BAD_ROWS, bad_page_lists, page_ids
from .table_steps import ROWS, TableSteps

__all__ = ["MultiTable"]


class MultiTable(TableSteps):
    """A side's ``table`` is a MultiGroupPageTable; its ``tables`` are the groups' own."""

    name = "multi_table"
    levels = frozenset(LEVELS)
    capability = "tables"
    examples = 45
    needs = ("MultiGroupPageTable",)

    @start(shape=st.sampled_from([(2, 4, [1, 2]), (1, 2, [1]), (3, 3, [2, 1, 3])]), looking=st.booleans())
    def construct(self, shape: tuple[int, int, list[int]], looking: bool) -> None:
        """Fresh tables are empty; each has room for the longest request."""
        rows, length, sizes = shape

        def make(side: Side) -> tuple[Any, list[Any]]:
            made = side.names.get("MultiGroupPageTable")(rows, length, 8, sizes)
            return made, list(made.page_tables)

        self.build_tables(f"table = MultiGroupPageTable({rows}, {length}, 8, {sizes})", make, looking)

    def lists_for(self, data: Drawing, room: list[int]) -> list[list[int]]:
        """Draws a page list for each group."""
        return [page_ids(data, most) for most in room]

    def rooms(self, row: int) -> list[int]:
        """The room of a row in each group."""
        return [self.room(group, row) for group in range(len(self.spec.tables))]

    @step("TAB-2")
    def set_row(self, data: Drawing) -> None:
        """Adds pages to a row of every group, or replaces the row."""
        row, spelling = self.some_row(data), self.spelling(data, NUMBERS)
        outer = self.spelling(data, OBJECTS)
        method = one_of(data, ["append_row", "add_row"])
        room = self.rooms(row) if method == "append_row" else [3] * len(self.spec.tables)
        room = [min(most, int(t.max_num_pages_per_req)) for most, t in zip(room, self.spec.tables, strict=True)]
        lists = self.lists_for(data, room)
        self.change(
            f"table.{method}({outer.source(lists, spelling.source)}, {row!r})",
            lambda side: getattr(side.table, method)(outer.of(map(spelling.of, lists)), row),
            "TAB-2",
            ROWS,
        )

    @step("TAB-2", when=lambda self: self.offers("table", "append_rows_batch"))
    def append_rows_batch(self, data: Drawing) -> None:
        """Adds pages to several rows of every group, some of them named twice."""
        rows = data.draw(st.lists(st.integers(0, self.num_rows - 1), max_size=3))
        room = [self.rooms(row) for row in range(self.num_rows)]
        lists = []
        for row in rows:
            lists.append(self.lists_for(data, room[row]))
            room[row] = [most - len(pages) for most, pages in zip(room[row], lists[-1], strict=True)]
        spelling, inner = self.spelling(data, NUMBERS), self.spelling(data, NUMBERS)
        outer, middle = self.spelling(data, OBJECTS), self.spelling(data, OBJECTS)
        is_even = len({len(pages) for groups in lists for pages in groups}) == 1 and one_of(data, [False, True])
        given = outer.source(lists, lambda groups: middle.source(groups, inner.source))
        given = inner.source(lists) if is_even else given  # an array is one `[m, groups, k]`
        self.change(
            f"table.append_rows_batch({given}, {spelling.source(rows)})",
            lambda side: side.table.append_rows_batch(
                inner.of(lists) if is_even else outer.of(middle.of(map(inner.of, groups)) for groups in lists),
                spelling.of(rows),
            ),
            "TAB-2",
            ROWS,
        )

    @step("TAB-2")
    def misuse(self, data: Drawing) -> None:
        """A list that does not fit one group, a list too few, rows and groups that do not exist: nothing happens."""
        batches = [self.batch_badly] if self.offers("table", "append_rows_batch") else []
        one_of(data, [self.fill_badly, self.fill_badly, *batches, self.name_badly, self.commit_badly])(data)

    def fill_badly(self, data: Drawing) -> None:
        """One fault in the last group, or the number of groups, or the row."""
        row, groups = self.some_row(data), len(self.spec.tables)
        too_many = [*([[]] * (groups - 1)), [1] * (int(self.spec.tables[-1].max_num_pages_per_req) + 1)]
        empty: list[list[int]] = [[] for _ in range(groups)]
        often: list[tuple[Any, Any]] = [(too_many, row), (empty[1:], row), ([*empty, []], row), (empty, -1)]
        seldom = [
            (None, row),
            *(([*empty[1:], bad], row) for bad in bad_page_lists([])),
            *((empty, wrong) for wrong in (self.num_rows, *BAD_ROWS)),
        ]
        lists, where = likely(data, often, seldom)
        method = one_of(data, ["append_row", "add_row"])
        full = method == "append_row" and self.room(groups - 1, row) == 0
        given = too_many if full and lists is not too_many and where == row else lists
        self.change(
            f"table.{method}({given!r}, {where!r})", lambda side: getattr(side.table, method)(given, where), "TAB-2"
        )

    def batch_badly(self, data: Drawing) -> None:
        """The first request fits, the second does not, in its last group only; or the numbers differ."""
        row, other = self.some_row(data), self.some_row(data)
        groups = len(self.spec.tables)
        good = self.lists_for(data, [most // 2 for most in self.rooms(other)])
        too_many = [*([[]] * (groups - 1)), [1] * (int(self.spec.tables[-1].max_num_pages_per_req) + 1)]
        lists, rows = one_of(
            data,
            [
                ([good, too_many], [other, row]),
                ([good], [other, row]),
                ([good, [[]] * groups], [other, self.bad_row(data)]),
                ([good, [[]] * (groups + 1)], [other, row]),
                (None, [row]),
            ],
        )
        self.change(
            f"table.append_rows_batch({lists}, {rows})", lambda side: side.table.append_rows_batch(lists, rows), "TAB-2"
        )

    def commit_badly(self, data: Drawing) -> None:
        """Commits a number of rows that there is not."""
        self.commit_rows(likely(data, [self.num_rows + 1, -1], BAD_ROWS))

    def name_badly(self, data: Drawing) -> None:
        """Rows, counts of rows and groups that do not exist."""
        row, wrong = self.some_row(data), self.bad_row(data)
        method, arguments = one_of(
            data,
            [
                ("move_row", (row, wrong)),
                ("swap_row", (wrong, row)),
                *([("clear_row", (wrong,))] if self.offers("table", "clear_row") else []),
            ],
        )
        line = ", ".join(map(repr, arguments))
        self.change(f"table.{method}({line})", lambda side: getattr(side.table, method)(*arguments), "TAB-2")
        if self.offers("table", "__getitem__"):
            group = one_of(data, [-1, len(self.spec.tables), *NO_INTS])
            self.read(f"table[{group!r}]", lambda side: side.table[group], "R1")
        bad = one_of(data, [(1, 1, 1, []), (1, 0, 1, [1]), (0, 1, 1, [1]), (1, 1, 1, [0]), (1, 1, 1, 1)])
        self.read(f"MultiGroupPageTable{bad}", lambda side: side.names.get("MultiGroupPageTable")(*bad), "R1")
