"""The table machine: the page table of one group, its device copy, and where its tokens go."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from ..levels import LEVELS
from ..properties import start, step
from ..spelling import NUMBERS, OBJECTS
from .base import Side
from .draws import Drawing, one_of, some
from .table_base import page_ids
from .table_faults import TableFaults
from .table_steps import ROWS

__all__ = ["Table"]


class Table(TableFaults):
    """A side's ``table`` is a PageTable."""

    name = "table"
    levels = frozenset(LEVELS)
    capability = "tables"
    examples = 80
    needs = ("PageTable",)

    @start(
        shape=st.sampled_from([(2, 3), (1, 1), (3, 2), (4, 5)]),
        max_tokens=st.sampled_from([6, 1, 16]),
        looking=st.booleans(),
    )
    def construct(self, shape: tuple[int, int], max_tokens: int, looking: bool) -> None:
        """A fresh table is empty on host and device."""
        self.max_tokens = max_tokens

        def make(side: Side) -> tuple[Any, list[Any]]:
            table = side.names.get("PageTable")(*shape, max_tokens)
            return table, [table]

        self.build_tables(f"table = PageTable({shape[0]}, {shape[1]}, {max_tokens})", make, looking)

    @step("TAB-2")
    def append_row(self, data: Drawing) -> None:
        """Adds pages behind those of a row; none is no error."""
        row = self.some_row(data)
        pages, spelling = page_ids(data, self.room(0, row)), self.spelling(data, NUMBERS)
        self.change(
            f"table.append_row({spelling.source(pages)}, {row!r})",
            lambda side: side.table.append_row(spelling.of(pages), row),
            "TAB-2",
            ROWS,
        )

    @step("TAB-2")
    def add_row(self, data: Drawing) -> None:
        """Replaces a row by a shorter or longer one."""
        row = self.some_row(data)
        pages = page_ids(data, self.spec.table.max_num_pages_per_req)
        spelling = self.spelling(data, NUMBERS)
        self.change(
            f"table.add_row({spelling.source(pages)}, {row!r})",
            lambda side: side.table.add_row(spelling.of(pages), row),
            "TAB-2",
            ROWS,
        )

    @step("TAB-2", when=lambda self: self.offers("table", "append_rows_batch"))
    def append_rows_batch(self, data: Drawing) -> None:
        """Adds pages to several rows, some of them named twice."""
        rows = data.draw(st.lists(st.integers(0, self.num_rows - 1), max_size=4))
        room = [self.room(0, row) for row in range(self.num_rows)]
        lists = []
        for row in rows:
            lists.append(page_ids(data, room[row]))
            room[row] -= len(lists[-1])
        spelling, inner = self.spelling(data, NUMBERS), self.spelling(data, NUMBERS)
        outer = self.spelling(data, OBJECTS)
        is_even = len(set(map(len, lists))) == 1 and one_of(data, [False, True])  # then an array is one `[m, k]`
        source = inner.source(lists) if is_even else outer.source(lists, inner.source)
        self.change(
            f"table.append_rows_batch({source}, {spelling.source(rows)})",
            lambda side: side.table.append_rows_batch(
                inner.of(lists) if is_even else outer.of(map(inner.of, lists)), spelling.of(rows)
            ),
            "TAB-2",
            ROWS,
        )

    @step("TAB-7")
    def where_tokens_go(self, data: Drawing) -> None:
        """Slot mappings and update slices, where the backend has them."""
        acts = [
            act
            for name, act in (("slot_mapping", self.map_slots), ("update_slices", self.slice_updates))
            if self.offers("table", name)
        ]
        if acts:
            one_of(data, acts)(data)
        else:
            self.commit(data)

    def map_slots(self, data: Drawing) -> None:
        """The slot of each token of a step; tokens in any order."""
        size = data.draw(st.integers(1, 3))
        rows = [row for row in range(self.num_rows) if self.counts[0][row]]
        tokens = data.draw(st.lists(st.sampled_from(rows), max_size=min(self.max_tokens, 5))) if rows else []
        places = [data.draw(st.integers(0, self.counts[0][row] * size - 1)) for row in tokens]
        spelling = self.spelling(data, NUMBERS)
        self.read(
            f"table.slot_mapping({spelling.source(tokens)}, {spelling.source(places)}, {size})",
            lambda side: side.table.slot_mapping(spelling.of(tokens), spelling.of(places), size),
            "TAB-7",
            _array,
        )

    def slice_updates(self, data: Drawing) -> None:
        """The runs of slots that a step fills: each row once, any of its tokens."""
        size = data.draw(st.integers(1, 3))
        left = self.max_tokens
        starts, lengths = [], []
        rows = some(data, range(self.num_rows), most=3)
        for row in rows:
            first = data.draw(st.integers(0, self.counts[0][row] * size))
            starts.append(first)
            lengths.append(data.draw(st.integers(0, min(self.counts[0][row] * size - first, left))))
            left -= lengths[-1]
        spelling = self.spelling(data, NUMBERS)
        given = ", ".join(map(spelling.source, (rows, starts, lengths)))
        self.read(
            f"table.update_slices({given}, {size})",
            lambda side: side.table.update_slices(*map(spelling.of, (rows, starts, lengths)), size),
            "TAB-7",
            _array,
        )


def _array(array: Any, _: Side) -> tuple[str, Any]:
    values = np.asarray(array)
    return str(values.dtype), values.tolist()
