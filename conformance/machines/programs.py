"""The programs machine: how many programs the commits of one table are compiled into (TAB-5)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import jax
import jax.monitoring

from ..calls.datum import Call, Ref
from ..calls.method import Method
from .base import Both
from .calling import Calls
from .draws import Drawing
from .properties import start, step
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
    always = TableMachine.always | {"TAB-2", "TAB-5"}
    examples, num_steps = 6, 16

    @classmethod
    def rows(cls) -> list[Method]:
        """See `Calling.rows`: none is drawn alone."""
        return []

    @start()
    def construct(self) -> None:
        """A fresh table, and no program that an earlier example compiled."""
        forget: Callable[[], None] = jax.clear_caches
        forget()
        self.compiled = 0
        self.build_tables("PageTable", _ROWS, _ENTRIES, 8)

    @step("TAB-5")
    def commit(self, source: Drawing) -> Calls:
        """Changes some entries and commits some rows: at most 4 programs, whatever their numbers."""
        table = Ref("table")
        for row in range(source.integer(0, _ROWS)):
            yield self.call_of("add_row", table, page_ids=[row + 1] * source.integer(0, _ENTRIES), row_idx=row)
        yield self.call_of("commit", table, num_reqs=source.integer(0, _ROWS))

    def make_call(self, call: Call) -> Both:
        """See `Calling.make_call`: programs that a commit compiles are counted (TAB-5)."""
        with _compilations() as seen:
            both = super().make_call(call)
        self.compiled += len(seen) if call.method == "commit" else 0
        self.compared("TAB-5")
        if self.compiled > _MOST:
            self.differ("TAB-5", f"at most {_MOST} programs", f"{self.compiled} programs compiled by the commits")
        return both
