"""The batched step, held against single calls or against the specification's batched step."""

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from ..calls.kinds import numbers_of
from ..calls.spelling import NUMBERS, Spelling
from .base import Field, Nothing, Side
from .draws import Drawing, one_of, rarely, some
from .groups import GroupSteps
from .manager_admission import IDS
from .operations import operation
from .properties import step

__all__ = ["BatchSteps", "Step"]


_MANY_PAGES = 16
"""Lists that can be longer than this are long ones."""


@dataclass(frozen=True)
class Step:
    """The arguments of a batched step, requests by name.

    Attributes:
        names: the requests.
        computed: their computed tokens.
        new: their new tokens.
        lookahead: their look-ahead.
        delay: whether pages are published late.
        tabled: whether new pages are appended to table rows.
    """

    names: list[str]
    computed: list[int]
    new: list[int]
    lookahead: list[int]
    delay: bool
    tabled: bool


def batch_result(batch: Any, _: Side) -> object:
    """A `SlotBatch` as it is compared: its arrays with their types, and what it says of each request."""
    arrays = [batch.granted, *batch.page_ids, *batch.offsets]
    each = [[list(map(int, group)) for group in batch.get_page_ids(place)] for place in range(len(batch.granted))]
    return [(str(array.dtype), array.tolist()) for array in arrays], each, int(batch.num_granted)


def _rows(side: Any) -> object:
    return [numbers_of(table.get_cpu_tensor()) for table in side.table.page_tables]


class BatchSteps(GroupSteps):
    """A side has, beside the managers', a ``table`` of all groups with a row for each request id."""

    def parts(self, side: Side, manager: Any) -> dict[str, Any]:
        """See `ManagerMachine.parts`: the tables as well."""
        return super().parts(side, manager) | {"table": self.tables(side, self.max_model_len)}

    def tables(self, side: Side, length: int, groups: int | None = None) -> Any:
        """Empty tables for requests of some length, of all groups or of the first ones."""
        sizes = [group.page_size for group in self.world.groups][:groups]
        return side.names.get("MultiGroupPageTable")(len(IDS) + 1, length, 8, sizes)

    def state_fields(self) -> list[Field]:
        """See `ManagerMachine.state_fields`: table rows and slots as well."""
        return [
            *super().state_fields(),
            Field("table rows", "MAN-11", _rows),
            Field("slots", "MAN-11", self.read_slots),
        ]

    def row(self, name: str) -> int:
        """The table row of a request: another number than its slot, as a rule."""
        return len(IDS) - IDS.index(name)

    def grant(self, name: str, computed: int, found: int, new: int, lookahead: int) -> None:
        """See `ManagerMachine.grant`: what the request's row lacks is appended to it."""
        admitted = not self.cases[name].live
        super().grant(name, computed, found, new, lookahead)
        for side in (self.spec, self.backend):
            self.append(side, name, replace=admitted)

    def append(self, side: Side, name: str, replace: bool = False) -> None:
        """Appends the pages to a request's row that it lacks, or replaces it."""
        row, pages = self.row(name), side.manager.get_page_ids(name)
        if replace:
            side.table.add_row(pages, row)
            return
        named = [int(table.num_pages_per_row[row]) for table in side.table.page_tables]
        side.table.append_row([held[count:] for held, count in zip(pages, named, strict=True)], row)

    def can_go_on(self) -> bool:
        """Whether a request can go on, or one can be admitted."""
        room = self.spec.pool.get_num_free_pages() and len(self.names_of(live=True)) < len(IDS)
        return bool(self.unfinished() or room)

    def chunk(self, data: Drawing, start: int, end: int) -> int:
        """See `Admission.chunk`: seldom all at once, so that several requests go on for several steps."""
        return min(super().chunk(data, start, end), one_of(data, [self.unit, self.unit + 1, 2 * self.unit]))

    @step("MAN-3", "MAN-5", "MAN-8", "MAN-11", "MAN-12", when=can_go_on, weight=14)
    def allocate_slots_batch(self, data: Drawing) -> None:
        """Live requests go on in one call, some of which may not fit: as if each had been called in turn."""
        asked = self.draw_step(data)
        singly = not self.options.get("enable_events") and one_of(data, [True, False])
        spelling, one_for_all = self.spelling(data, NUMBERS), one_of(data, [True, False])
        tokens = list(zip(asked.names, asked.computed, asked.new, asked.lookahead, strict=True))
        self.go_on_together(tokens, asked.delay, asked.tabled, singly, spelling, one_for_all)
        self.probe()

    @operation
    def go_on_together(
        self,
        requests: list[tuple[str, int, int, int]],
        delay: bool,
        tabled: bool,
        singly: bool,
        spelling: Spelling,
        one_for_all: bool,
    ) -> None:
        """Live requests go on in one call.

        Args:
            requests: for each its id, its computed tokens, its new tokens, and its look-ahead.
            delay: see `Step`.
            tabled: see `Step`.
            singly: whether the specification is called once for each.
            spelling: how the numbers are handed over.
            one_for_all: whether one number stands for equal ones.
        """
        if not all(self.cases[name].live for name, *_ in requests):
            raise Nothing
        names, computed, news, ahead = [list(of_all) for of_all in zip(*requests, strict=True)] or [[], [], [], []]
        asked = Step(names, computed, news, ahead, delay, tabled)
        new = asked.new[0] if one_for_all and len(set(asked.new)) == 1 else asked.new
        lookahead = asked.lookahead[0] if one_for_all and len(set(asked.lookahead)) == 1 else asked.lookahead

        def act(side: Side) -> Any:
            if side is self.spec and singly:
                return self.singly(asked)
            return side.manager.allocate_slots_batch(
                spelling.of(side.manager.slot_of(name) for name in asked.names),
                spelling.of(asked.computed),
                new if isinstance(new, int) else spelling.of(new),
                lookahead if isinstance(lookahead, int) else spelling.of(lookahead),
                delay_cache_pages=asked.delay,
                **({"tables": side.table, "rows": spelling.of(map(self.row, asked.names))} if asked.tabled else {}),
            )

        shown = [value if isinstance(value, int) else spelling.source(value) for value in (computed, new, lookahead)]
        rows = f", tables=table, rows={spelling.source(map(self.row, asked.names))}" if asked.tabled else ""
        granted = self.call(
            f"manager.allocate_slots_batch({spelling.source(asked.names, 'slot of {}'.format)}, "
            f"{', '.join(map(str, shown))}, delay_cache_pages={asked.delay}{rows})",
            act,
            "MAN-11",
            lambda batch, side: batch if isinstance(batch, tuple) else batch_result(batch, side),
            self.charged("MAN-11"),
        )
        for place, name in enumerate(asked.names):
            self.cases[name].request.num_computed_tokens = self.cases[name].told = asked.computed[place]
            if granted.backend.granted[place]:
                self.grant(name, asked.computed[place], 0, asked.new[place], asked.lookahead[place])
            else:
                self.write(name, asked.computed[place])

    def draw_step(self, data: Drawing) -> Step:
        """Draws a step of live requests, now and then of none; first those that came to an end make room for others."""
        for name in self.names_of(live=True):
            if name not in self.unfinished():
                self.free_request(name, None)
        for _ in range(3 - len(self.unfinished())):
            if self.spec.pool.get_num_free_pages():
                self.admitted(data)
        running = self.unfinished()
        if not running:
            raise Nothing
        least = 0 if rarely(data) and rarely(data) else max(len(running) - 1, 1)
        names = some(data, running, most=len(IDS), least=least)
        chunks = [self.next_chunk(data, name) for name in names]
        names = [name for name, (_, new) in zip(names, chunks, strict=True) if new]
        chunks = [chunk for chunk in chunks if chunk[1]]
        extras = [self.extras(data) for _ in names]
        ahead = self.lookahead(data, extras)
        return Step(
            names,
            [computed for computed, _ in chunks],
            [new for _, new in chunks],
            ahead,
            any("delay_cache_pages" in extra for extra in extras),
            one_of(data, [True, False]),
        )

    @step("MAN-3", "MAN-4", "MAN-5", when=lambda self: self.names_of(live=True), weight=2)
    def come_back(self, data: Drawing) -> None:
        """A request ends that steps have served, and a part of its text comes again: it hits what they published."""
        name = one_of(data, self.names_of(live=True))
        case = self.cases[name]
        self.free_request(name, None)
        length = data.draw(st.integers(1, len(case.tokens)))
        self.bring(name, case.tokens[:length], case.request.extra_keys)
        self.look_up(name)

    def lookahead(self, data: Drawing, extras: list[dict[str, Any]]) -> list[int]:
        """The look-ahead of each request of a step; now and then, more often for long lists, all that there can be."""
        seldom = 2 if self.max_model_len > _MANY_PAGES * self.unit else 7
        if one_of(data, [False] * seldom + [True]):
            return [self.max_model_len] * len(extras)
        return [extra.get("num_lookahead_tokens", 0) for extra in extras]

    def singly(self, asked: Step) -> tuple[Any, ...]:
        """Calls the specification once for each request; what came of it as a batch shows it."""
        each: list[list[list[int]]] = []
        granted: list[bool] = []
        for place, name in enumerate(asked.names):
            request = self.cases[name].request
            before, request.num_computed_tokens = request.num_computed_tokens, asked.computed[place]
            pages = self.spec.manager.allocate_slots(
                request,
                asked.new[place],
                num_lookahead_tokens=asked.lookahead[place],
                delay_cache_pages=asked.delay,
            )
            request.num_computed_tokens = before  # the batched step does not read it
            granted.append(pages is not None)
            each.append([[] for _ in self.world.groups] if pages is None else list(pages.get_page_ids()))
            if granted[-1] and asked.tabled:
                self.append(self.spec, name)
        groups = range(len(self.world.groups))
        ids = [("int32", [page for own in each for page in own[group]]) for group in groups]
        lengths = [[len(own[group]) for own in each] for group in groups]
        offsets = [("int64", [sum(own[:place]) for place in range(len(own) + 1)]) for own in lengths]
        return [("bool", granted), *ids, *offsets], each, sum(granted)
