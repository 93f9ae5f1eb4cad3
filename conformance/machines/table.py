"""The machines of page tables: that of one group, and those of several, a row being the same request in all of them."""

from hypothesis import strategies as st

from ..calls.arrays import ATTENTION
from ..calls.datum import Ref
from ..calls.method import Method
from ..calls.table import TABLE, TABLES
from .calling import Calls
from .draws import Drawing
from .properties import start, step
from .table_base import TableMachine

__all__ = ["MultiTable", "Table"]


class TableSteps(TableMachine):
    """What needs several calls, and what is refused."""

    @step("TAB-2", "TAB-3", "TAB-7", weight=6)
    def misuse(self, source: Drawing) -> Calls:
        """Makes a call with one fault."""
        yield self.spoilt(source.one_of(self.spoilable()), source)

    @step("TAB-2")
    def overfill(self, source: Drawing) -> Calls:
        """Fills a row in its last group, and appends more."""
        row = source.integer(0, self.num_rows - 1)
        for count in (self.rooms(row)[-1], source.integer(1, 2)):
            pages = [*([] for _ in self.widths[1:]), [1] * count]
            if count:
                yield self.call_of(
                    "append_row", Ref("table"), page_ids=pages if self.several else pages[0], row_idx=row
                )


class Table(TableSteps):
    """A side's ``table`` is a PageTable."""

    name = "table"
    examples = 80

    @classmethod
    def rows(cls) -> list[Method]:
        """See `Calling.rows`: also the division by which pages are counted."""
        return [*super().rows(), ATTENTION["cdiv"]]

    @start(
        shape=st.sampled_from([(2, 3), (1, 1), (3, 2), (4, 5)]),
        max_tokens=st.sampled_from([6, 1, 16]),
        looking=st.booleans(),
    )
    def construct(self, shape: tuple[int, int], max_tokens: int, looking: bool) -> None:
        """A fresh table is empty on host and device."""
        self.build_tables("PageTable", *shape, max_tokens, looking=looking)


class MultiTable(TableSteps):
    """A side's ``table`` is a MultiGroupPageTable; its ``tables`` are the groups' own."""

    name = "multi_table"
    examples = 45
    needs = ("MultiGroupPageTable",)
    tables = (TABLES, TABLE)

    @classmethod
    def rows(cls) -> list[Method]:
        """See `Calling.rows`: also the device table of a group."""
        return [*super().rows(), TABLE["get_device_tensor"]]

    @start(shape=st.sampled_from([(2, 4, [1, 2]), (1, 2, [1]), (3, 3, [2, 1, 3])]), looking=st.booleans())
    def construct(self, shape: tuple[int, int, list[int]], looking: bool) -> None:
        """Fresh tables are empty; each has room for the longest request."""
        rows, length, sizes = shape
        self.build_tables("MultiGroupPageTable", rows, length, 8, sizes, looking=looking)
