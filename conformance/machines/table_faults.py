"""Calls on a page table with one fault each: both sides refuse them, and nothing has changed."""

from typing import Any

from hypothesis import strategies as st

from ..properties import step
from .draws import NO_INTS, NO_LISTS, Drawing, likely, one_of
from .table_base import BAD_ROWS, bad_page_lists, page_ids
from .table_steps import TableSteps

__all__ = ["TableFaults"]


class TableFaults(TableSteps):
    """The steps of the table machine that must be refused."""

    max_tokens = 1

    @step("TAB-2", weight=2)
    def misuse_rows(self, data: Drawing) -> None:
        """Appends, adds, moves, swaps, clears or commits with one fault."""
        batches = [self.batch_badly] if self.offers("table", "append_rows_batch") else []
        one_of(data, [self.append_badly, self.append_badly, *batches, self.name_badly, self.commit_badly])(data)

    @step("TAB-2", "TAB-7")
    def misuse_numbers(self, data: Drawing) -> None:
        """Maps slots or slices updates with one fault; constructs a table badly."""
        faults = [self.construct_badly]
        if self.offers("table", "slot_mapping"):
            faults += [self.map_badly, self.map_badly]
        if self.offers("table", "update_slices"):
            faults += [self.slice_badly, self.slice_badly]
        one_of(data, faults)(data)

    def construct_badly(self, data: Drawing) -> None:
        """A table has at least one row, one entry and one token; they are ints."""
        place, wrong = data.draw(st.integers(0, 2)), one_of(data, [0, -1, *NO_INTS])
        arguments = [wrong if place == other else 2 for other in range(3)]
        self.call(f"PageTable{tuple(arguments)}", lambda side: side.names.get("PageTable")(*arguments), "R1")
        dividend, divisor = one_of(data, [(1, 0), (1, -1), (True, 1), (1, 2.0)])
        if self.backend.names.offers("cdiv"):
            self.call(f"cdiv({dividend}, {divisor})", lambda side: side.names.get("cdiv")(dividend, divisor), "R1")
            self.call("cdiv(7, 3)", lambda side: side.names.get("cdiv")(7, 3), "R1")

    def append_badly(self, data: Drawing) -> None:
        """A row that is full, a page that is none, a row that is none."""
        row = self.some_row(data)
        method = one_of(data, ["append_row", "append_row", "add_row"])
        if one_of(data, [False, True]) and self.room(0, row):
            full = [1] * self.room(0, row)
            self.change(f"table.append_row({full}, {row!r})", lambda side: side.table.append_row(full, row), "TAB-2")
        room = self.room(0, row) if method == "append_row" else int(self.spec.table.max_num_pages_per_req)
        too_many: list[int] = [1] * (room + data.draw(st.integers(1, 2)))
        good = page_ids(data, room - 1)
        often: list[tuple[Any, Any]] = [(too_many, row), ([*[1] * (room - 1), -1], row), ([], self.num_rows), ([], -1)]
        seldom = [*((pages, row) for pages in bad_page_lists(good)), *(([], bad) for bad in BAD_ROWS)]
        pages, where = likely(data, often, seldom)
        if where is row and room == 0 and pages is not too_many:
            pages = too_many
        spelling = self.spelling_of_fault(data, pages)
        self.change(
            f"table.{method}({spelling.source(pages) if spelling else repr(pages)}, {where!r})",
            lambda side: getattr(side.table, method)(spelling.of(pages) if spelling else pages, where),
            "TAB-2",
        )

    def batch_badly(self, data: Drawing) -> None:
        """A batch whose last list does not fit or is none; a row named twice that only its sum overfills."""
        row, other = self.some_row(data), self.some_row(data)
        room = self.room(0, row)
        good = [page_ids(data, min(room, self.room(0, other)) // 2)]
        left = room - (len(good[0]) if row == other else 0)
        lists, rows = one_of(
            data,
            [
                ([[1] * room, [1]], [row, row]),
                ([*good, [1] * (left + 1)], [other, row]),
                ([*good, [-1] if left else [1]], [other, row]),
                ([*good, []], [other, self.bad_row(data)]),
                (good, [other, row]),
                ([*good, []], [other]),
                (1, [other]),
                (good, one_of(data, NO_LISTS[:2])),
            ],
        )
        self.change(
            f"table.append_rows_batch({lists}, {rows!r})",
            lambda side: side.table.append_rows_batch(lists, rows),
            "TAB-2",
        )

    def name_badly(self, data: Drawing) -> None:
        """Moves, swaps and clears rows that do not exist."""
        row, wrong = self.some_row(data), self.bad_row(data)
        method, arguments = one_of(
            data,
            [
                ("move_row", (row, wrong)),
                ("move_row", (wrong, row)),
                ("swap_row", (row, wrong)),
                ("swap_row", (wrong, row)),
                *([("clear_row", (wrong,))] if self.offers("table", "clear_row") else []),
            ],
        )
        line = ", ".join(map(repr, arguments))
        self.change(f"table.{method}({line})", lambda side: getattr(side.table, method)(*arguments), "TAB-2")

    def commit_badly(self, data: Drawing) -> None:
        """Commits a number of rows that there is not."""
        self.commit_rows(likely(data, [self.num_rows + 1, -1], BAD_ROWS))

    def map_badly(self, data: Drawing) -> None:
        """Tokens past a row's pages or too many, rows that do not exist, lists of unlike lengths."""
        row = self.some_row(data)
        end = self.counts[0][row]
        some: list[tuple[Any, Any, Any]] = [
            ([row], [end], 1),
            ([self.bad_row(data)], [0], 1),
            ([row], [one_of(data, BAD_ROWS)], 1),
            ([row], [], 1),
            ([], [], one_of(data, [0, *BAD_ROWS])),
            (None, [], 1),
            ([], 1, 1),
        ]
        often = [some[0]]
        if end:
            often.append(([row] * (self.max_tokens + 1), [0] * (self.max_tokens + 1), 1))
        rows, places, size = likely(data, often, some)
        self.change(
            f"table.slot_mapping({rows!r}, {places!r}, {size!r})",
            lambda side: side.table.slot_mapping(rows, places, size),
            "TAB-7",
        )

    def slice_badly(self, data: Drawing) -> None:
        """Runs past a row's pages, too many tokens, a row named twice, numbers that are none."""
        row = self.some_row(data)
        end, wrong = self.counts[0][row], one_of(data, BAD_ROWS)
        some: list[tuple[Any, Any, Any, Any]] = [
            ([row], [end], [1], 1),
            ([row, row], [0, 0], [0, 0], 1),
            ([self.bad_row(data)], [0], [0], 1),
            ([row], [wrong], [0], 1),
            ([row], [0], [wrong], 1),
            ([row], [0], [], 1),
            ([], [], [], one_of(data, [0, *BAD_ROWS])),
            ([], None, [], 1),
        ]
        often = some[:3]
        if end > self.max_tokens:
            often.append(([row], [0], [self.max_tokens + 1], 1))
        rows, starts, lengths, size = likely(data, often, some)
        self.change(
            f"table.update_slices({rows!r}, {starts!r}, {lengths!r}, {size!r})",
            lambda side: side.table.update_slices(rows, starts, lengths, size),
            "TAB-7",
        )
