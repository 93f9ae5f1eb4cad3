"""The steps that a page table of one group and one of several have in common: calls on whole rows, and looks."""

from hypothesis import strategies as st

from ..properties import step
from .draws import Drawing, one_of
from .table_base import TableMachine

__all__ = ["ROWS", "TableSteps"]

ROWS = {"host rows": "TAB-2", "pages in a row": "TAB-2"}
"""What wrong rows are charged to after a call that adds pages."""

_MOVED = {"host rows": "TAB-3", "pages in a row": "TAB-3"}


class TableSteps(TableMachine):
    """Rows are moved, exchanged, emptied and committed, in every group of the table."""

    @step("TAB-3")
    def move_or_swap(self, data: Drawing) -> None:
        """Copies a row over another, or exchanges two; they may be the same."""
        method = one_of(data, ["move_row", "swap_row"])
        src, tgt = self.some_row(data), self.some_row(data)
        self.change(
            f"table.{method}({src!r}, {tgt!r})", lambda side: getattr(side.table, method)(src, tgt), "TAB-3", _MOVED
        )

    @step()
    def empty(self, data: Drawing) -> None:
        """Empties a row, or everything, on host and device."""
        if one_of(data, [True, True, False]) and self.offers("table", "clear_row"):
            row = self.some_row(data)
            self.change(f"table.clear_row({row!r})", lambda side: side.table.clear_row(row), "TAB-1")
        else:
            self.clear_all()

    @step()
    def commit(self, data: Drawing) -> None:
        """Commits the first rows; the others keep what the device has and stay dirty."""
        self.commit_rows(data.draw(st.integers(0, self.num_rows)))

    @step()
    def get_device_tensor(self, data: Drawing) -> None:
        """Looks at the device, or takes a handle of it: what the host does later never shows in it."""
        if one_of(data, [True, False]):
            self.look()
        else:
            self.take_handles()
