"""The machines of page tables: that of one group, those of several, and how many programs commits take (TAB-5)."""

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import jax
import jax.monitoring
import numpy as np
from hypothesis import strategies as st

from ..backends.capabilities import ESSENTIALS
from ..backends.levels import LEVELS
from ..calls.arrays import ATTENTION
from ..calls.datum import Call, Ref
from ..calls.deviation import attempt
from ..calls.interfaces import BUILDS
from ..calls.kinds import numbers_of
from ..calls.method import Method
from ..calls.method import Table as Interface
from ..calls.source import Source
from ..calls.table import TABLE, TABLES
from .base import Both, Field, Side
from .calling import Calling, Calls
from .draws import Drawing
from .properties import operation, start, step

__all__ = ["MultiTable", "Programs", "Table", "TableMachine"]


Rows = tuple[str, list[list[int]]]
"""A table's element type and its rows."""


def _host(side: Any) -> list[Rows]:
    return [numbers_of(table.get_cpu_tensor()) for table in side.tables]


def _counts(side: Any) -> list[list[int]]:
    return [np.asarray(table.num_pages_per_row).tolist() for table in side.tables]


def _broken_handles(side: Any) -> list[str]:
    """Device handles that show other values than when they were taken, or that raise too early."""
    wrong = []
    for place, (handle, values, epoch) in enumerate(side.handles):
        outcome = attempt(functools.partial(numbers_of, handle))
        if outcome.error is not None and epoch == side.epoch:
            wrong.append(f"handle {place} is invalid before the next commit: {outcome}")
        if outcome.error is None and outcome.value != values:
            wrong.append(f"handle {place} shows {outcome.value[1]}, it was {values[1]}")
    return wrong


class TableMachine(Calling):
    """Two page tables side by side, or the tables of several groups.

    A side has its ``table``, the ``tables`` of its groups, device ``handles``, and the ``epoch`` of commits.
    """

    tables: ClassVar[tuple[Interface, ...]] = (TABLE, ATTENTION)
    held_as: ClassVar[Mapping[str, str]] = {"tables": "table"}
    levels = frozenset(LEVELS)
    capability = "tables"
    needs: ClassVar[tuple[str, ...]] = ESSENTIALS["PageTable"]
    always = frozenset({"R1", "TAB-1", "TAB-4", "TAB-6", "TAB-8"})

    looking = True
    several = False
    max_tokens = 4

    def build_tables(self, name: str, *arguments: Any, looking: bool = True) -> None:
        """Builds both sides' tables.

        Args:
            name: their class.
            arguments: what it is given.
            looking: whether the device is looked at after every call, or only when a step does so. A look can
                hide what it looks for: it waits until the device has all that is on its way.
        """
        self.looking, self.several, self.max_tokens = looking, name == TABLES.owner, arguments[2]
        things = {
            "table": Call(None, name, dict(zip(BUILDS[name].arguments, arguments, strict=True))),
            "tables": Ref("table", (".page_tables",)) if self.several else [Ref("table")],
            "handles": [],
            "epoch": 0,
        }
        self.build_things(f"table = {name}({', '.join(map(repr, arguments))})", "TAB-1", things)
        self.watch(
            Field("pages in a row", "TAB-1", _counts),
            Field("host rows", "TAB-1", _host, blame=self._blame_padding),
            *(() if self.lacks("views") else (Field.of("tables that can be changed from outside"),)),
            Field("device rows", "TAB-4", self._looked_at(self._device, "not looked at"), aside=True),
            Field("broken device handles", "TAB-4", self._looked_at(_broken_handles, []), aside=True),
        )

    def _looked_at(self, read: Callable[[Any], object], otherwise: object) -> Callable[[Any], object]:
        """Reads the device, if it is looked at now."""
        return lambda side: read(side) if self.looking else otherwise

    @staticmethod
    def _device(side: Any) -> list[Rows]:
        return [numbers_of(table.get_device_tensor()) for table in side.tables]

    def _blame_padding(self, expected: list[Rows], observed: list[Rows]) -> str:
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

    @property
    def widths(self) -> list[int]:
        """How many pages fit into a row of each group."""
        return [int(table.max_num_pages_per_req) for table in self.spec.tables]

    def rooms(self, row: int) -> list[int]:
        """How many pages fit into a row of each group beside those it names."""
        return [width - counts[row] for width, counts in zip(self.widths, self.counts, strict=True)]

    def target_of(self, table: Interface, source: Source) -> Ref:
        """See `Calling.target_of`: the table, or that of one of its groups."""
        if self.several and table is TABLE:
            return Ref("tables", (source.integer(0, len(self.widths) - 1),))
        return Ref("table")

    # -- Calls --------------------------------------------------------------------------------------------

    def perform(self, side: Side, call: Call, row: Method) -> Any:
        """See `Calling.perform`: a handle taken before a commit may raise from now on."""
        result = super().perform(side, call, row)
        if call.method in ("commit", "clear"):
            side.put({"epoch": side.epoch + 1})
        return result

    def make_call(self, call: Call) -> Both:
        """See `Calling.make_call`: it is held against TAB-8 as well."""
        before, shown, looking = self.versions(), self._versioned(), self.looking
        self.looking = looking or call.method == "get_device_tensor"
        both = super().make_call(call)
        self.looking = looking
        if before is None:
            return both
        after = self.versions() or []
        self.compared("TAB-8")
        changes = not both.refused and "host rows" in self.row_of(call.method)[1].charges
        if not changes and after != before:
            self.differ("TAB-8", f"cpu_version = {before} as before", f"cpu_version = {after}")
        for group, (old, new, was, now) in enumerate(zip(before, after, shown, self._versioned(), strict=True)):
            if new < old or (new == old and was != now):
                self.differ("TAB-8", f"cpu_version of table {group} above {old}", f"cpu_version = {new}")
        return both

    def _versioned(self) -> list[tuple[Rows, list[int]]]:
        """The host rows and counts of each table."""
        return list(zip(_host(self.spec), self.counts, strict=True))

    def versions(self) -> list[int] | None:
        """The versions of the backend's host rows; None if they are not shown."""
        tables = self.backend.tables
        return [table.cpu_version for table in tables] if all(hasattr(t, "cpu_version") for t in tables) else None

    def learn(self, call: Call, _: Both) -> None:
        """See `Calling.learn`: keeps the last handles of the device, to see what they show later; no other result."""
        for side in (self.spec, self.backend):
            result = side.results.pop(call.number)
            if call.method == "get_device_tensor":
                side.handles.append((result, numbers_of(result), side.epoch))
                del side.handles[: -2 * len(side.tables)]


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


_LONG_ROW = 200
"""Entries of a row as long as those of engines: a backend may send long rows in another way than short ones."""


class Table(TableSteps):
    """A side's ``table`` is a PageTable."""

    name = "table"
    examples = 80

    @classmethod
    def rows(cls) -> list[Method]:
        """See `Calling.rows`: also the division by which pages are counted."""
        return [*super().rows(), ATTENTION["cdiv"]]

    @start(
        shape=st.sampled_from([(2, 3), (1, 1), (3, 2), (4, 5), (2, 3), (3, 2), (4, 5), (2, _LONG_ROW)]),
        max_tokens=st.sampled_from([6, 1, 16]),
        looking=st.booleans(),
    )
    def construct(self, shape: tuple[int, int], max_tokens: int, looking: bool) -> None:
        """A fresh table is empty on host and device."""
        self.build_tables("PageTable", *shape, max_tokens, looking=looking)

    @step("TAB-2", "TAB-5", when=lambda self: self.widths[0] == _LONG_ROW, weight=4)
    def send_a_long_row(self, source: Drawing) -> Calls:
        """A row is sent, grows by more pages than a request has in the other tables, and is sent again."""
        table, row = Ref("table"), source.integer(0, self.num_rows - 1)
        if self.rooms(row)[0] < _LONG_ROW and self.can_call(TABLE["clear_row"]):
            yield self.call_of("clear_row", table, row_idx=row)
        elif self.rooms(row)[0] < _LONG_ROW:  # as those without it do
            yield self.call_of("add_row", table, page_ids=[], row_idx=row)
        few, many = source.integer(0, 2), _LONG_ROW - source.integer(2, _LONG_ROW // 3)
        for pages in ([1] * few, list(range(1, many + 1))):
            yield self.call_of("append_row", table, page_ids=pages, row_idx=row)
            yield self.call_of("commit", table, num_reqs=self.num_rows)


_TOKENS = 8
"""The most tokens of a step of several groups."""


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
        self.build_tables("MultiGroupPageTable", rows, length, _TOKENS, sizes, looking=looking)

    def wind_up(self) -> None:
        """See `Machine.wind_up`: a step of all groups is built, after one for which a group has too few pages.

        Where there is a row for which the first group has pages and the last has none, it is that row's step.
        """
        if not self.offered("MultiGroupMetadataBuilder"):
            return
        rooms = [
            [count * size for count, size in zip(counts, self.spec.table.page_sizes, strict=True)]
            for counts in zip(*self.counts, strict=True)
        ]
        least = [min(of_row) for of_row in rooms]
        short = max(range(self.num_rows), key=lambda row: rooms[row][0] - rooms[row][-1])
        self.build_steps([room - (row != short) if room else 0 for row, room in enumerate(least)], short)
        self.build_steps([max(room - 1, 0) for room in least])

    @operation
    def build_steps(self, computed: list[int], short: int = -1) -> None:
        """Builds the metadata of a step with a token for each row that has pages in all groups.

        Args:
            computed: the tokens before it, row by row.
            short: a row that gets a token in any case.
        """
        rooms = [min(of_row) for of_row in zip(*self.counts, strict=True)]
        new = [int(row == short or room > 0) for row, room in enumerate(rooms)]

        def act(side: Side) -> Any:
            sizes = [self.spec.table.page_sizes, self.num_rows, self.widths, _TOKENS]
            steps = side.names.get("MultiGroupMetadataBuilder")(*sizes).build(side.table, computed, new)
            side.put({"epoch": side.epoch + 1})
            return steps

        line = f"MultiGroupMetadataBuilder(..., {_TOKENS}).build(table, {computed}, {new})"
        self.call(line, act, "TAB-7", _steps)


def _steps(steps: Any, _: Side) -> object:
    """What the metadata of a step says, group by group: the tables and the slots."""
    return [(numbers_of(of_group.pages_tables), np.asarray(of_group.slot_mapping).tolist()) for of_group in steps]


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
