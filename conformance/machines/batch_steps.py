"""What the batch machine is built on: steps of several requests in one call, and tables that their pages go into."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from ..calls.datum import Call, Ref, Slot, Spelled
from ..calls.interfaces import BUILDS
from ..calls.kinds import numbers_of
from ..calls.manager import step_columns
from ..calls.method import Method
from ..calls.spelling import NUMBERS
from ..calls.table import TABLES
from .base import Both, Field, Nothing, Side
from .draws import Drawing, some
from .groups import GroupSteps
from .manager_admission import IDS
from .manager_base import MANAGER_REF
from .properties import step

__all__ = ["TABLE_REF", "BatchSteps", "Step"]


TABLE_REF = Ref("table")

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

    def of(self, places: Sequence[int]) -> "Step":
        """The same of some of the requests, by their places in it."""
        computed, new, ahead = (
            [numbers[place] for place in places] for numbers in (self.computed, self.new, self.lookahead)
        )
        return Step([self.names[place] for place in places], computed, new, ahead, self.delay, self.tabled)


def _rows(side: Any) -> object:
    return [numbers_of(table.get_cpu_tensor()) for table in side.table.page_tables]


class BatchSteps(GroupSteps):
    """A side has, beside the managers', a ``table`` of all groups with a row for each request id."""

    def things(self, manager: Call) -> dict[str, Any]:
        """See `ManagerMachine.things`: the tables as well."""
        sizes = [group.page_size for group in self.world.groups]
        given = (len(IDS) + 1, self.max_model_len, 8, sizes)
        made = BUILDS["MultiGroupPageTable"]
        table = Call(None, made.name, dict(zip(made.arguments, given, strict=True)))
        return super().things(manager) | {"table": table}

    def state_fields(self) -> list[Field]:
        """See `ManagerMachine.state_fields`: table rows and slots as well."""
        return [
            *super().state_fields(),
            Field("table rows", "MAN-11", _rows),
            Field.of("slots", self.cases),
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
            self.perform(side, Call(TABLE_REF, "add_row", {"page_ids": pages, "row_idx": row}), TABLES["add_row"])
            return
        named = [int(table.num_pages_per_row[row]) for table in side.table.page_tables]
        lacking = [held[count:] for held, count in zip(pages, named, strict=True)]
        self.perform(side, Call(TABLE_REF, "append_row", {"page_ids": lacking, "row_idx": row}), TABLES["append_row"])

    def can_go_on(self) -> bool:
        """Whether a request can go on, or one can be admitted."""
        room = self.num_free and self.unused()
        return bool(self.unfinished() or room)

    def chunk(self, data: Drawing, start: int, end: int) -> int:
        """See `Admission.chunk`: seldom all at once, so that several requests go on for several steps."""
        return min(super().chunk(data, start, end), data.one_of([self.unit, self.unit + 1, 2 * self.unit]))

    @step("MAN-3", "MAN-5", "MAN-8", "MAN-11", "MAN-12", when=can_go_on, weight=14)
    def allocate_slots_batch(self, data: Drawing) -> None:
        """Live requests go on in one call, some of which may not fit: as if each had been called in turn."""
        self.step_together(data, self.draw_step(data))

    def step_together(self, data: Drawing, asked: Step) -> None:
        """Some live requests go on in one call, its arguments handed over in one way or another."""
        spelling, one_for_all = self.spelling(data, NUMBERS), data.one_of([True, False])

        def listed(numbers: list[int], alike: bool = False) -> Any:
            return numbers[0] if alike and one_for_all and len(set(numbers)) == 1 else Spelled(spelling, tuple(numbers))

        rows = Spelled(spelling, tuple(map(self.row, asked.names)))
        self.call_manager(
            "allocate_slots_batch",
            slots=Spelled(spelling, tuple(Slot(MANAGER_REF, name) for name in asked.names)),
            num_computed_tokens=listed(asked.computed),
            num_new_tokens=listed(asked.new, alike=True),
            num_lookahead_tokens=listed(asked.lookahead, alike=True),
            delay_cache_pages=asked.delay,
            **({"tables": TABLE_REF, "rows": rows} if asked.tabled else {}),
        )
        self.probe()

    def fitting(self, row: Method, call: Call) -> dict[str, Any]:
        """See `Calling.fitting`: a step without those that are not live, which go on from where they are now."""
        given = super().fitting(row, call)
        columns = {name: own.values for name, own in step_columns(given).items()}
        slots, computed = columns.get("slots", ()), columns.get("num_computed_tokens", ())
        known = all(isinstance(slot, Slot) for slot in slots) and {*map(len, columns.values())} == {len(slots)}
        if row.name != "allocate_slots_batch" or not slots or not known:
            return given
        live = self.names_of(live=True)
        places = [place for place, slot in enumerate(slots) if slot.request_id in live]
        if not places:
            raise self.left_out()
        new = columns.get("num_new_tokens", (given["num_new_tokens"],) * len(slots))
        counts = [self.fitting_counts(slots[place].request_id, computed[place], new[place]) for place in places]
        fitted = step_columns(given, places)
        own = fitted["num_computed_tokens"]
        fitted["num_computed_tokens"] = replace(own, values=tuple(number for number, _ in counts))
        if [number for _, number in counts] != [new[place] for place in places]:
            own = fitted.get("num_new_tokens", own)
            fitted["num_new_tokens"] = replace(own, values=tuple(number for _, number in counts))
        return given | fitted

    def note_allocate_slots_batch(self, _: str, call: Call, granted: Both) -> None:
        """Notes which of some requests were given slots."""
        given = call.arguments
        names = [slot.request_id for slot in given["slots"].values]

        def numbers(name: str) -> list[int]:
            value = given[name]
            return list(map(int, value.values)) if isinstance(value, Spelled) else [int(value)] * len(names)

        each = map(numbers, ("num_computed_tokens", "num_new_tokens", "num_lookahead_tokens"))
        for place, (name, computed, new, ahead) in enumerate(zip(names, *each, strict=True)):
            self.cases[name].request.num_computed_tokens = self.cases[name].told = computed
            if granted.spec.granted[place]:
                self.grant(name, computed, 0, new, ahead)
            else:
                self.write(name, computed)

    def make_room(self, whole: bool = False) -> None:
        """Requests that came to an end make room for others; or all of them do."""
        for name in self.names_of(live=True):
            if whole or name not in self.unfinished():
                self.free_request(name, None)

    def draw_step(self, data: Drawing) -> Step:
        """Draws a step of live requests, now and then of none; first those that came to an end make room for others."""
        self.make_room()
        for _ in range(3 - len(self.unfinished())):
            if self.num_free:
                self.admitted(data)
        running = self.unfinished()
        if not running:
            raise Nothing
        least = 0 if data.rarely() and data.rarely() else max(len(running) - 1, 1)
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
            data.one_of([True, False]),
        )

    @step("MAN-3", "MAN-4", "MAN-5", when=lambda self: self.names_of(live=True), weight=2)
    def come_back(self, data: Drawing) -> None:
        """A request ends that steps have served, and a part of its text comes again: it hits what they published."""
        name = data.one_of(self.names_of(live=True))
        case = self.cases[name]
        self.free_request(name, None)
        length = data.draw(st.integers(1, len(case.tokens)))
        self.bring(name, case.tokens[:length], case.request.extra_keys)
        self.look_up(name)

    def lookahead(self, data: Drawing, extras: list[dict[str, Any]]) -> list[int]:
        """The look-ahead of each request of a step; now and then, more often for long lists, all that there can be."""
        seldom = 2 if self.max_model_len > _MANY_PAGES * self.unit else 7
        if data.one_of([False] * seldom + [True]):
            return [self.max_model_len] * len(extras)
        return [extra.get("num_lookahead_tokens", 0) for extra in extras]
