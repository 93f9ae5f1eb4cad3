"""The batch machine: batched steps among single calls, good ones and ones with a fault, which change nothing."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from ..calls.datum import Call, Holder, New, Ref, Slot, Spelled
from ..calls.deviation import SpecificationError
from ..calls.kinds import HASHES
from ..calls.method import Method
from ..calls.spelling import Spelling
from .base import Field, Nothing
from .batch_steps import TABLE_REF, BatchSteps, Step
from .draws import Drawing
from .groups import MIXED
from .manager_admission import IDS
from .manager_base import MANAGER_REF, POOL_REF
from .properties import start, step
from .worlds import Group, World, worlds

__all__ = ["Batch"]


_MOST_PAGES = 4
"""How many pages requests go on by, one step after another."""

_FEW_PAGES = 3
"""A request can have as many pages as that of the largest group, or more."""

_TELLING = {"enable_events": True, "counter_sampling": 1}
_KEEPING_ALL: dict[str, Any] = {"retention_interval": None, "counter_sampling": 1}
"""All that is let go is kept: a step may then let go of the pages of all its requests at once, but at their times."""

_OPTIONS: tuple[dict[str, Any], ...] = (
    *({}, _KEEPING_ALL, _KEEPING_ALL | {"unhashed_first": True}, _KEEPING_ALL | _TELLING),
    {"eviction": "adaptive"},
)

_MIXED = worlds(MIXED, counts=(1, 2, 3), room=(1, 3), ample=True, eagle=True, options=_OPTIONS)

_USUAL = worlds(("full",), counts=(1, 1, 1, 2), room=(2, 4), ample=True, options=({}, {}, _TELLING))
"""What most engines have, and backends therefore have a path of its own for: full attention, no keys asked for."""

_LONG = worlds(("full", "window"), room=(3, 3), options=({}, {}, _KEEPING_ALL, _KEEPING_ALL | _TELLING), lists=(30, 48))
"""Lists of dozens of pages, which outgrow the room that a backend gives each of them, several in one step."""


@st.composite
def _unequal(draw: DrawFn) -> World:
    """A usual world of two groups whose pages are of several tokens, and not of as many."""
    world = draw(worlds(("full",), counts=(2,), room=(2, 4), ample=True, options=({}, {}, _TELLING)))
    sizes = draw(st.sampled_from([(2, 4), (4, 2), (2, 3), (3, 2)]))
    groups = tuple(Group("full", size) for size in sizes)
    return replace(world, groups=groups, max_model_len=max(world.max_model_len, _FEW_PAGES * max(sizes)))


_LEAVING = ({"unhashed_first": True}, {"eviction": "reuse"}, {"eviction": "adaptive"})
"""With these freed pages go elsewhere than behind all others: a step may take those that it has left behind."""


@st.composite
def _leaving(draw: DrawFn) -> World:
    """Windows, the pages of which are all kept."""
    kinds, options = ("window", "window", "chunk", "full"), [_KEEPING_ALL | more for more in _LEAVING]
    world = draw(worlds(kinds, counts=(1, 1, 2), room=(1, 2), ample=True, options=options))
    return replace(world, caching=world.caching and not (world.options.get("unhashed_first") and draw(st.booleans())))


_STATES = worlds(("aligned", "aligned", "full", "window"), counts=(1, 1, 2), room=(2, 3), ample=True)
"""Recurrent states, alone as well."""

_SORTS = (*(_USUAL,) * 4, _STATES, *(_MIXED,) * 2, _LONG, *(_unequal(),) * 2, *(_leaving(),) * 2)
_WORLDS = st.sampled_from(_SORTS).flatmap(lambda worlds: worlds)

_CACHED = frozenset({*HASHES, "cached under another key than its own", "keys", "check()", "snapshot"})
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
        num_rows: how many rows they have.
    """

    length: int
    page_sizes: tuple[int, ...]
    rows: tuple[tuple[str, int], ...] = ()
    num_rows: int = len(IDS) + 1

    def made_on(self, holder: Holder) -> Any:
        """A side's own tables."""
        made = self._empty.made_on(holder)
        for name, row in self.rows:
            made.add_row(holder.thing(MANAGER_REF).get_page_ids(name), row)
        return made

    @property
    def _empty(self) -> New:
        return New("MultiGroupPageTable", (self.num_rows, self.length, 8, list(self.page_sizes)))

    def as_python(self, write: Callable[[Any], str]) -> str:
        """The call of the constructor; "" where one call does not make them."""
        return "" if self.rows else write(self._empty)


class Batch(BatchSteps):
    """Up to four requests of one to three groups go on at a time.

    Attributes:
        last_slots: each request's slot when it was last given slots for tokens, by the request's place among `IDS`;
            both sides have it.
        seldom: whether nothing is read of what is cached but what look-ups find; never in worlds with options
            that say how pages are kept or told of.
    """

    name = "batch"
    capability = "batch"
    examples = 48
    needs: ClassVar[tuple[str, ...]] = (
        *BatchSteps.needs,
        *("CacheManager.allocate_slots_batch", "CacheManager.slot_of", "MultiGroupPageTable"),
    )
    labels = frozenset({"MAN-7", "MAN-8", "MAN-9"})
    always = BatchSteps.always | labels | {"MAN-11", "MAN-12", "MAN-13"}

    @start(world=_WORLDS, seldom=st.sampled_from([True, True, False]))
    def construct(self, world: World, seldom: bool) -> None:
        """A manager of one to three groups, and tables of them."""
        self.last_slots: dict[int, int] = {}
        self.seldom = seldom and not world.options.keys() - {"retention_interval", "counter_sampling"}
        self.build_managers(world)
        for side in (self.spec, self.backend):
            side.put({"last_slots": self.last_slots})

    def state_fields(self) -> list[Field]:
        """See `ManagerMachine.state_fields`; where what is cached is seldom looked at, the rest of it."""
        return [shows for shows in super().state_fields() if not (self.seldom and shows.name in _CACHED)]

    def grant(self, name: str, computed: int, found: int, new: int, lookahead: int) -> None:
        """See `BatchSteps.grant`; the request's slot is noted."""
        super().grant(name, computed, found, new, lookahead)
        self.last_slots[IDS.index(name)] = self.spec.manager.slot_of(name)

    @step("MAN-3", "MAN-5", "MAN-8", "MAN-11", "MAN-12", "POOL-7", when=BatchSteps.can_go_on, weight=14)
    def decode(self, data: Drawing) -> None:
        """Requests come, and all decode token after token, as in most of an engine's steps, over a page or two.

        Together, into tables or not, or one by one; with drafts in look-ahead slots, of which the next step accepts
        some; of one tenant, or with images at their beginnings. Requests that came to an end make room for them. A page
        may be found by its key before, or amid it, as others than requests find it: keys are kept up from then on, and
        what was decoded is found by them behind it.
        """
        largest = max((group.page_size for group in self.world.groups), default=1)
        sought = data.one_of([None, "before", "amid", "amid"])
        amid = sought == "amid"
        self.make_room(whole=amid)
        coming = data.one_of([1, 2]) if amid else max(3 - len(self.unfinished()), 1)
        found_at = {"before": 0, "amid": data.one_of([1, largest]), None: -1}[sought]
        keys = data.one_of(self.extra_keys)
        for name in self.unused()[:coming]:
            most = min(2 * largest + (not amid), self.max_model_len - 1)
            least = most if amid else min(data.one_of([1, 2 * largest, 2 * largest]), most)
            tokens = data.draw(st.lists(st.sampled_from(self.world.alphabet), min_size=least, max_size=most))
            self.bring(name, tokens, keys)
            self.admit_with(name, self.cases[name].request.num_tokens)
        together, tabled = data.one_of([(True, True), (True, False), (False, False)])
        ahead = 0 if self.world.has_states else data.one_of([0, 1, 2])
        earlier: list[int] = []
        for number in range(max(2 * largest, _MOST_PAGES) if amid else data.one_of([1, 2]) * largest):
            if number == found_at:
                earlier = self.cached_pages()
                self.find_by_key(data, earlier)
            names = [name for name in self.unfinished() if self.cases[name].request.num_tokens < self.max_model_len]
            computed = [self.decoded(name, data) for name in names]
            if together and names:
                count = len(names)
                self.step_together(data, Step(names, computed, [1] * count, [ahead] * count, False, tabled))
            for name, known in zip([] if together else names, computed, strict=False):
                self.continue_with(name, known, 1, num_lookahead_tokens=ahead)
        if sought:
            held = {page for name in self.names_of(live=True) for group in self.held(name) for page in group}
            found = [page for page in self.cached_pages() if page in held]
            self.find_by_key(data, [page for page in found if page not in earlier] or found)

    def can_leave_behind(self) -> bool:
        """Whether requests can go on, and give pages back when they do."""
        return self.world.gives_back and self.can_go_on()

    @step("MAN-3", "MAN-5", "MAN-8", when=can_leave_behind, weight=6)
    def leave_behind(self, data: Drawing) -> None:
        """Requests go on together page after page: in one step each takes pages and leaves others behind."""
        self.make_room()
        tokens = st.lists(st.sampled_from(self.world.alphabet), min_size=self.unit + 1, max_size=self.max_model_len)
        for name in self.unused()[: max(3 - len(self.unfinished()), 1)]:
            self.bring(name, data.draw(tokens)[: self.max_model_len])
            self.admit_with(name, min(self.unit, self.cases[name].request.num_tokens))
        for _ in range(_MOST_PAGES):
            names = [name for name in self.unfinished() if self.cases[name].given < self.cases[name].request.num_tokens]
            if not names:
                break
            known = [self.cases[name].given for name in names]
            new = [min(self.unit, self.cases[name].request.num_tokens - self.cases[name].given) for name in names]
            self.step_together(data, Step(names, known, new, [0] * len(names), False, True))

    def decoded(self, name: str, data: Drawing) -> int:
        """How many tokens of a live request are computed now, accepted drafts among them; it has one more, at least."""
        case = self.cases[name]
        known = min(case.given, case.request.num_tokens)
        if known == case.request.num_tokens:
            most = min(case.slots, self.max_model_len - 1)
            accepted = 0 if self.world.has_states else data.draw(st.integers(0, max(most - known, 0)))
            self.grow(name, [data.one_of(self.world.alphabet) for _ in range(accepted + 1)])
            known += accepted
        return known

    def find_by_key(self, data: Drawing, cached: list[int]) -> None:
        """One of some cached pages is found by its key, where there is one and pools can find it so."""
        if cached and not self.lacks("keys") and self.offers("pool", "get_cached_page"):
            self.make_call(self.call_of("get_cached_page", POOL_REF, **self.key_of(data.one_of(cached))))

    def key_of(self, page: int) -> dict[str, Any]:
        """The key of a cached page, and its group, as arguments."""
        group = self.spec.pages[page].page_hash.group_id
        return {"page_hash": Ref("pages", (page, ".page_hash", ".page_hash")), "kv_cache_group_ids": [group]}

    def fitting(self, row: Method, call: Call) -> dict[str, Any]:
        """See `BatchSteps.fitting`: instead of a page that is not cached now, the last of a request's that is."""
        given = super().fitting(row, call)
        if row.name != "get_cached_page":
            return given
        cached = self.cached_pages()
        if given["page_hash"].path[0] in cached:
            return given
        lists = [group for name in self.names_of(live=True) for group in self.held(name)]
        held = [page for pages in lists for page in pages if page in cached]
        if not held:
            raise self.left_out()
        return given | self.key_of(held[-1])

    def can_accept_drafts(self) -> bool:
        """Whether requests with states can go on."""
        return self.world.has_states and self.can_go_on()

    @step("MAN-3", "MAN-5", "MAN-13", when=can_accept_drafts, weight=6)
    def accept_drafts(self, data: Drawing) -> None:
        """Requests with states go on from drafts in their look-ahead slots, all of which a step has accepted: refused.

        To a backend such a step may look like any other in which each request has computed all that it has slots for.
        """
        self.make_room(whole=True)
        most = self.max_model_len - 1  # computed tokens, with one to come
        tokens = st.lists(st.sampled_from(self.world.alphabet), min_size=1, max_size=max(min(self.unit, most - 2), 1))
        for name in self.unused()[: data.one_of([1, 1, 2])]:
            self.bring(name, data.draw(tokens))
            self.admit_with(name, self.cases[name].request.num_tokens)
        names = self.names_of(live=True)
        computed = [self.decoded(name, data) for name in names]
        ahead = [int(known < most - 1) for known in computed]
        asked = Step(names, computed, [1] * len(names), ahead, False, data.one_of([True, False]))
        self.step_together(data, asked)
        names = [name for name in names if self.cases[name].given < self.cases[name].slots <= most]
        computed, one = [self.cases[name].slots for name in names], [1] * len(names)
        again = Step(names, computed, one, [0] * len(names), False, True)
        self.be_refused(self.call_of("allocate_slots_batch", MANAGER_REF, **self.arguments(again)), "MAN-13")

    def be_refused(self, call: Call, clause: str) -> None:
        """Makes a call that a clause refuses."""
        if not self.make_call(call).refused and self.session.refuses(clause):
            raise SpecificationError(f"the specification is wrong: {self.calls[-1]} was not refused")

    @step("MAN-3", "MAN-5", "TAB-2", when=BatchSteps.can_go_on, weight=4)
    def misuse_batch(self, data: Drawing) -> None:
        """One fault in one of several requests, in the numbers or in the tables: none of them gets anything."""
        spoilt = functools.partial(self.spoilt, self.row_of("allocate_slots_batch")[1])
        kinds: list[Callable[[Drawing], Call]] = [spoilt, self.step_badly, self.step_badly_again, self.short_by_a_page]
        call = data.one_of(kinds)(data)
        spelled = {}
        for name, value in call.arguments.items():
            numbers = value
            if isinstance(value, list):
                numbers = [0 if isinstance(number, Slot | Ref) else number for number in value]
            how = self.spelling_of_fault(data, numbers)
            spelled[name] = value if how is None else Spelled(how, tuple(value))
        self.be_refused(call.given(**spelled), "MAN-11")

    def good_step(self, data: Drawing) -> dict[str, Any]:
        """The arguments of a step of some requests."""
        return self.arguments(self.draw_step(data))

    def arguments(self, asked: Step) -> dict[str, Any]:
        """The arguments of a step, which appends to table rows."""
        if not asked.names:
            raise Nothing
        return {
            "slots": [Slot(MANAGER_REF, name) for name in asked.names],
            "num_computed_tokens": asked.computed,
            "num_new_tokens": asked.new,
            "num_lookahead_tokens": asked.lookahead,
            "tables": TABLE_REF,
            "rows": list(map(self.row, asked.names)),
        }

    def step_badly(self, data: Drawing) -> Call:
        """A step in which one of several requests can't go on like that, after what came before."""
        asked = self.draw_step(data)
        good = self.arguments(asked)
        faults = [self.numbers, self.numbers, self.twice, *[self.rows_and_tables] * 4]
        if data.one_of([True, False, False, False]):  # its slot stays free until a request comes
            self.free_request(asked.names[-1], None)
            faults = [self.freed_slots]
        elif self.freed_slots(asked, good):
            faults += [self.freed_slots] * 4
        given = good | data.one_of(data.one_of(faults)(asked, good))
        return self.call_of("allocate_slots_batch", MANAGER_REF, **given)

    def step_badly_again(self, data: Drawing) -> Call:
        """The requests of a step go on, with the rows that they had, in other tables: of fewer rows, or empty ones.

        Some requests, in the order of their rows; slots and rows in arrays, as an engine keeps them. A backend may
        remember what it read of the step before, and that it was right.
        """
        asked = self.draw_step(data)
        order = sorted(range(len(asked.names)), key=lambda place: self.row(asked.names[place]))
        asked = asked.of(order[: data.one_of([1, 2, 3])])
        self.step_together(data, replace(asked, tabled=True))
        chunks = {name: self.next_chunk(data, name) for name in asked.names if name in self.unfinished()}
        going = {name: chunk for name, chunk in chunks.items() if chunk[1]}
        computed, new = ([chunk[place] for chunk in going.values()] for place in (0, 1))
        good = self.arguments(replace(asked, names=list(going), computed=computed, new=new, lookahead=[0] * len(going)))
        named = [(name, row) for name, row in zip(going, good["rows"], strict=True) if row < max(good["rows"])]
        others = self.other_tables(self.max_model_len)
        few = replace(others, rows=tuple(named), num_rows=max(good["rows"]))
        array = self.spelling(data, [Spelling.INT64])
        arrays = {name: Spelled(array, tuple(good[name])) for name in ("slots", "rows")}
        given = good | arrays | {"tables": data.one_of([few, few, others])}
        return self.call_of("allocate_slots_batch", MANAGER_REF, **given)

    def short_by_a_page(self, data: Drawing) -> Call:
        """A step in which the longest request needs a page that tables lack, and no other needs more than one.

        A backend may have a way of its own for it.
        """
        asked = self.draw_step(data)
        if not asked.names or not self.would_be_short(asked):
            return self.step_badly(data)
        length, ahead = self.shortest(asked), [0] * len(asked.names)
        sizes = [group.page_size for group in self.world.groups if not group.keeps_states]
        room = min(-(-length // size) * size for size in sizes)
        place = [self.cases[name].slots for name in asked.names].index(length)
        ahead[place] = max(room - asked.computed[place], 0)
        given = self.arguments(replace(asked, new=[1] * len(ahead), lookahead=ahead))
        given["tables"] = self.other_tables(length, asked.names)
        return self.call_of("allocate_slots_batch", MANAGER_REF, **given)

    def numbers(self, asked: Step, good: dict[str, Any]) -> list[dict[str, Any]]:
        """A number that is impossible for the last request, those before it being fine."""
        case = self.cases[asked.names[-1]]
        beyond = self.max_model_len - asked.computed[-1] + 1
        wrong = {"num_new_tokens": [beyond], "num_computed_tokens": [case.slots + 1]}
        if self.world.has_states:
            wrong["num_computed_tokens"] += [case.given - 1]
        elif case.least:
            wrong["num_computed_tokens"] += [case.least - 1]
        return [{name: [*good[name][:-1], number]} for name, numbers in wrong.items() for number in numbers]

    def twice(self, asked: Step, good: dict[str, Any]) -> list[dict[str, Any]]:
        """A slot that is named twice."""
        del asked
        names = ("slots", "num_computed_tokens", "num_new_tokens", "num_lookahead_tokens")
        return [{name: [*good[name], good[name][0]] for name in names} | _NOWHERE]

    def freed_slots(self, asked: Step, good: dict[str, Any]) -> list[dict[str, Any]]:
        """A slot that a request had and nobody has, with a step that this one could have made again."""
        held = [self.spec.manager.slot_of(name) for name, case in self.cases.items() if case.live]
        left = [
            (Ref("last_slots", (place,)), self.cases[IDS[place]].computed)
            for place, slot in self.last_slots.items()
            if slot not in held
        ]
        others = (good["slots"][:-1], asked.computed[:-1], asked.new[:-1], asked.lookahead[:-1])
        names = ("slots", "num_computed_tokens", "num_new_tokens", "num_lookahead_tokens")
        return [
            {name: [*own, last] for name, own, last in zip(names, others, (slot, computed, 1, 0), strict=True)}
            | _NOWHERE
            for slot, computed in left
        ]

    def rows_and_tables(self, asked: Step, good: dict[str, Any]) -> list[dict[str, Any]]:
        """Rows that are another request's or too short; tables of other groups."""
        rows = good["rows"]
        faults: list[dict[str, Any]] = [{"rows": [*rows[:-1], 0]}]
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
