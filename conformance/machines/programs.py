"""The programs machine: how many programs the commits of one table are compiled into (TAB-5)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.monitoring
from hypothesis import strategies as st

from ..levels import LEVELS
from ..properties import start, step
from .base import Side
from .draws import Drawing
from .table_base import TableMachine

__all__ = ["Programs"]

_MOST = 4
_ROWS, _ENTRIES = 6, 7
_COMPILED = "/jax/core/compile/backend_compile_duration"


@contextmanager
def _compilations() -> Iterator[list[str]]:
    """Collects an entry for each program that is compiled meanwhile."""
    seen: list[str] = []

    def listen(event: str, duration_secs: float, **_: str | int) -> None:  # noqa: ARG001 - jax names it
        if event == _COMPILED:
            seen.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield seen
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


class Programs(TableMachine):
    """Commits with any number of rows and of dirty entries, with no program compiled before."""

    name = "programs"
    levels = frozenset(LEVELS)
    capability = "tables"
    needs = ("PageTable",)
    always = TableMachine.always | {"TAB-2"}
    examples, num_steps = 6, 16

    @start()
    def construct(self) -> None:
        """A fresh table, and no program that an earlier example compiled."""
        forget: Callable[[], None] = jax.clear_caches
        forget()
        self.compiled = 0

        def make(side: Side) -> tuple[Any, list[Any]]:
            table = side.names.get("PageTable")(_ROWS, _ENTRIES, 8)
            return table, [table]

        self.build_tables(f"table = PageTable({_ROWS}, {_ENTRIES}, 8)", make)

    def set_row(self, pages: list[int], row: int) -> None:
        """Replaces a row."""
        self.change(f"table.add_row({pages}, {row})", lambda side: side.table.add_row(pages, row), "TAB-2")

    @step("TAB-5")
    def commit(self, data: Drawing) -> None:
        """Changes some entries and commits some rows: at most 4 programs, whatever their numbers."""
        lengths = data.draw(st.lists(st.integers(0, _ENTRIES), max_size=_ROWS))
        for row, length in enumerate(lengths):
            pages = [row + 1] * length
            self.set_row(pages, row)
        count = data.draw(st.integers(0, _ROWS))
        with _compilations() as seen:
            self.commit_rows(count)
        self.compiled += len(seen)
        self.compared("TAB-5")
        if self.compiled > _MOST:
            self.differ("TAB-5", f"at most {_MOST} programs", f"{self.compiled} programs compiled by the commits")
