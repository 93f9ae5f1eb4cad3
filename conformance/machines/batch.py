"""The batch machine: batched steps among single calls, good ones and ones with a fault, which change nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from hypothesis import strategies as st

from ..calls.datum import Holder, Slot, Spelled
from ..calls.deviation import SpecificationError
from ..calls.kinds import HASHES
from .base import Field, Nothing
from .batch_steps import TABLE_REF, BatchSteps, Step
from .draws import Drawing, one_of
from .groups import MIXED
from .manager_admission import IDS
from .manager_base import MANAGER_REF
from .properties import start, step
from .worlds import World, worlds

__all__ = ["Batch"]

_TELLING = {"enable_events": True, "counter_sampling": 1}
_OPTIONS: tuple[dict[str, Any], ...] = (
    *({}, {}, {"unhashed_first": True}, _TELLING),
    {"eviction": "adaptive"},
)

_MIXED = worlds(MIXED, counts=(1, 2, 3), room=(1, 3), ample=True, eagle=True, options=_OPTIONS)

_USUAL = worlds(("full",), counts=(1, 1, 1, 2), room=(2, 4), ample=True, options=({}, {}, _TELLING))
"""What most engines have, and backends therefore have a path of its own for: full attention, no keys asked for."""

_LONG = worlds(("full", "window"), room=(3, 3), options=({}, {}, {}, _TELLING), lists=(30, 48))
"""Lists of dozens of pages, which outgrow the room that a backend gives each of them, several in one step."""

_WORLDS = st.sampled_from((_USUAL, _USUAL, _MIXED, _MIXED, _LONG)).flatmap(lambda worlds: worlds)

_CACHED = frozenset({*HASHES, "cached under another key than its own", "keys", "check()"})
"""What is read of all that is cached. A backend may put its books in order where somebody reads them."""

_NOWHERE = {"rows": None, "tables": None}
"""A step that appends to no table."""


@dataclass(frozen=True)
class OtherTables:
    """Tables that are made for a call.

    Attributes:
        length: the most tokens of a request.
        page_sizes: those of the groups.
        rows: the requests whose pages they name, each with its row.
    """

    length: int
    page_sizes: tuple[int, ...]
    rows: tuple[tuple[str, int], ...] = ()

    def made_on(self, holder: Holder) -> Any:
        """A side's own tables."""
        made = holder.names.get("MultiGroupPageTable")(len(IDS) + 1, self.length, 8, list(self.page_sizes))
        for name, row in self.rows:
            made.add_row(holder.thing(MANAGER_REF).get_page_ids(name), row)
        return made


class Batch(BatchSteps):
    """Up to four requests of one to three groups go on at a time.

    Attributes:
        last_slots: each request's slot when it was last given slots for tokens.
        seldom: whether nothing is read of what is cached but what look-ups find; never in worlds with options.
    """

    name = "batch"
    capability = "batch"
    examples = 40
    needs: ClassVar[tuple[str, ...]] = (
        *BatchSteps.needs,
        *("CacheManager.allocate_slots_batch", "CacheManager.slot_of", "MultiGroupPageTable"),
    )
    labels = frozenset({"MAN-7", "MAN-8", "MAN-9"})
    always = BatchSteps.always | labels | {"MAN-11", "MAN-12", "MAN-13"}

    @start(world=_WORLDS, seldom=st.booleans())
    def construct(self, world: World, seldom: bool) -> None:
        """A manager of one to three groups, and tables of them."""
        self.last_slots: dict[str, int] = {}
        self.seldom = seldom and not world.options.keys() - {"retention_interval"}
        self.build_managers(world)

    def state_fields(self) -> list[Field]:
        """See `ManagerMachine.state_fields`; where what is cached is seldom looked at, the rest of it."""
        return [shows for shows in super().state_fields() if not (self.seldom and shows.name in _CACHED)]

    def grant(self, name: str, computed: int, found: int, new: int, lookahead: int) -> None:
        """See `BatchSteps.grant`; the request's slot is noted."""
        super().grant(name, computed, found, new, lookahead)
        self.last_slots[name] = self.spec.manager.slot_of(name)

    @step("MAN-3", "MAN-5", "TAB-2", when=BatchSteps.can_go_on, weight=2)
    def misuse_batch(self, data: Drawing) -> None:
        """One fault in one of several requests, in the numbers or in the tables: none of them gets anything."""
        asked = self.draw_step(data)
        if not asked.names:
            raise Nothing
        good: dict[str, Any] = {
            "slots": [Slot(MANAGER_REF, name) for name in asked.names],
            "num_computed_tokens": asked.computed,
            "num_new_tokens": asked.new,
            "num_lookahead_tokens": asked.lookahead,
            "rows": list(map(self.row, asked.names)),
            "tables": TABLE_REF,
        }
        faults = [self.numbers, self.slots_and_lengths, self.rows_and_tables, self.rows_and_tables]
        if one_of(data, [True, False, False, False]):  # its slot is nobody's for as long as nobody comes
            self.free_request(asked.names[-1], None)
            faults = [self.freed_slots]
        elif self.freed_slots(asked, good):
            faults += [self.freed_slots] * 4
        given = good | one_of(data, one_of(data, faults)(asked, good))
        spelled = {}
        for name, value in given.items():
            numbers = [0 if isinstance(slot, Slot) else slot for slot in value] if isinstance(value, list) else value
            how = self.spelling_of_fault(data, numbers)
            spelled[name] = value if how is None else Spelled(how, tuple(value))
        if not self.call_manager("allocate_slots_batch", **spelled).refused and self.session.refuses("MAN-11"):
            raise SpecificationError(f"the specification is wrong: {self.calls[-1]} was not refused")

    def numbers(self, asked: Step, good: dict[str, Any]) -> list[dict[str, Any]]:
        """A number that is impossible for the last request, those before it being fine."""
        case = self.cases[asked.names[-1]]
        beyond = self.max_model_len - asked.computed[-1] + 1
        wrong: dict[str, list[Any]] = {
            "num_new_tokens": [0, -1, True, 1.0, beyond, beyond, beyond],
            "num_computed_tokens": [-1, True, case.slots + 1, case.slots + 1],
            "num_lookahead_tokens": [-1, "1"],
        }
        if self.world.has_states:
            wrong["num_computed_tokens"] += [case.given - 1] * 2
        elif case.least:
            wrong["num_computed_tokens"] += [case.least - 1] * 2
        return [{name: [*good[name][:-1], number]} for name, numbers in wrong.items() for number in numbers]

    def slots_and_lengths(self, asked: Step, good: dict[str, Any]) -> list[dict[str, Any]]:
        """A slot of no request, a slot twice, lists of unlike lengths, no lists, a flag that is none."""
        lists = ("num_computed_tokens", "num_new_tokens", "num_lookahead_tokens")
        twice = {name: [*good[name], good[name][0]] for name in ("slots", *lists)}
        return [
            twice | _NOWHERE,
            twice | _NOWHERE,
            *({"slots": [*good["slots"][:-1], wrong]} for wrong in (99, -1, True, 1.0)),
            *({name: good[name][:-1]} for name in lists),
            *({name: [*good[name], 1]} for name in lists),
            {"slots": None},
            {"num_computed_tokens": asked.computed[0]},
            {"num_new_tokens": 0},
            {"delay_cache_pages": 1},
        ]

    def freed_slots(self, asked: Step, good: dict[str, Any]) -> list[dict[str, Any]]:
        """A slot that a request had and nobody has, with a step that this one could have made again."""
        held = [self.spec.manager.slot_of(name) for name, case in self.cases.items() if case.live]
        left = [(slot, self.cases[name].computed) for name, slot in self.last_slots.items() if slot not in held]
        others = (good["slots"][:-1], asked.computed[:-1], asked.new[:-1], asked.lookahead[:-1])
        names = ("slots", "num_computed_tokens", "num_new_tokens", "num_lookahead_tokens")
        return [
            {name: [*own, last] for name, own, last in zip(names, others, (slot, computed, 1, 0), strict=True)}
            | _NOWHERE
            for slot, computed in left
        ]

    def rows_and_tables(self, asked: Step, good: dict[str, Any]) -> list[dict[str, Any]]:
        """Rows that do not exist, are another request's or too short; tables of other groups, or none."""
        rows = good["rows"]
        faults: list[dict[str, Any]] = [
            *({"rows": [*rows[:-1], wrong]} for wrong in (0, 0, len(self.cases) + 9, -1, True)),
            {"rows": rows[:-1]},
            {"rows": None},
            {"tables": None},
            {"tables": "no table"},
        ]
        if len(rows) > 1:
            faults.append({"rows": [*rows[:-1], rows[0]]})
        if len(self.world.groups) > 1:
            faults.append({"tables": self.other_tables(self.max_model_len, groups=len(self.world.groups) - 1)})
        if self.would_be_short(asked):
            far = {"num_lookahead_tokens": [*asked.lookahead[:-1], self.max_model_len]}
            faults += [far | {"tables": self.other_tables(self.shortest(asked), asked.names)}] * 4
        return faults

    def other_tables(self, length: int, names: Sequence[str] = (), groups: int | None = None) -> OtherTables:
        """Other tables than those at hand, with the pages of some requests."""
        sizes = tuple(group.page_size for group in self.world.groups)[:groups]
        return OtherTables(length, sizes, tuple((name, self.row(name)) for name in names))

    def shortest(self, asked: Step) -> int:
        """The length of tables that have just room for what the requests of a step have slots for."""
        return max(self.cases[name].slots for name in asked.names)

    def would_be_short(self, asked: Step) -> bool:
        """Whether such tables have no room for the longest request."""
        length = self.shortest(asked)
        return any(
            -(-self.max_model_len // group.page_size) > -(-length // group.page_size)
            for group in self.world.groups
            if not group.keeps_states
        )
