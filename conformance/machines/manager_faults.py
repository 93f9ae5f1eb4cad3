"""Calls on a manager with one fault each: they are refused, and nothing has changed.

The machines of level safe make the same calls, but for those that a manager of another design may take.
"""

from collections.abc import Iterable
from typing import Any, ClassVar

from hypothesis import strategies as st

from kvproof.spec.declarations import EngineRequestStatus

from ..backends.loading import takes_parameter
from ..calls.datum import Call, Pages, Prompt, Ref, Saying
from ..calls.manager import StrangePage
from ..calls.method import Method, Table
from ..calls.source import Source
from .base import Nothing
from .calling import left_out
from .draws import NO_INTS, Drawing
from .manager_admission import Admission
from .manager_base import MANAGER_REF
from .manager_blame import Case
from .properties import step
from .worlds import Declared, Group

__all__ = ["ManagerFaults"]


NO_NUMBERS: tuple[Any, ...] = ("O", "U5", "f4,f4", "M8[s]", None, "a type", 1)
"""Objects that are not dtypes of numbers, though numpy takes most of them for a dtype (R1)."""


class ManagerFaults(Admission):
    """The steps of the manager machines that must be refused.

    Attributes:
        is_exact: whether all that the specification refuses must be; at level safe other designs may take some of it.
    """

    is_exact: ClassVar[bool] = True

    def call_badly(self, call: Call) -> None:
        """Makes a call that must be refused."""
        self.make_call(call)

    @step("MAN-3", "MAN-4", "MAN-5", "MAN-8", "MAN-10", weight=2)
    def misuse(self, data: Drawing) -> None:
        """Makes a call with one argument that is wrong, or one that makes no sense after those before it."""
        often = [self.go_on_badly, self.go_on_badly, self.hit_badly, self.overreach, self.spoil, self.spoil]
        data.likely(often, [self.spoil])(data)

    # -- One argument that is wrong -------------------------------------------------------------------------

    def can_call(self, row: Method) -> bool:
        """See `Calling.can_call`: what a manager lacks is not called."""
        table, _ = self.row_of(row.name)
        if not table.owner:
            return self.backend.names.offers(row.name)
        return row.form == "build" or hasattr(self.backend.thing(self.ref_of(table)), row.name)

    def can_spoil(self, row: Method, argument: str) -> bool:
        """See `Calling.can_spoil`: a manager may be another object than its class makes it look."""
        table, _ = self.row_of(row.name)
        if row.form == "build" or not table.owner or argument not in left_out(f"{table.owner}.{row.name}"):
            return super().can_spoil(row, argument)
        return takes_parameter(getattr(self.backend.thing(self.ref_of(table)), row.name), argument)

    def ref_of(self, table: Table) -> Ref:
        """The object that a side has of an interface."""
        return Ref(self.held_as.get(table.name, table.name))

    def target_of(self, table: Table, source: Source) -> Ref:
        """See `Calling.target_of`."""
        del source
        return self.ref_of(table)

    def spoil(self, data: Drawing, capability: str = "") -> None:
        """Makes a call with one argument wrong, of a method that a capability has; as a rule of those without.

        Of a capability's methods calls are drawn seldom: then each argument of each is wrong in turn.
        """
        tables = self.tables if capability else self.tables[:1]
        rows = [row for table in tables for row in table if row.spoils and row.capability == capability]
        rows = [row for row in rows if self.can_call(row) and row.faults(self)]
        first = data.one_of([place for place, row in enumerate(rows) for _ in range(row.spoils)])
        if not capability:
            self.make_spoilt(self.spoilt(rows[first], data))
            return
        for row in (*rows[first:], *rows[:first]):
            for call in self.each_spoilt(row, data):
                self.make_spoilt(call)

    def make_spoilt(self, call: Call) -> None:
        """Makes a call of which one argument is wrong."""
        self.call_badly(call)

    def some_request(self, data: Drawing) -> Ref:
        """A request, live or not."""
        return Ref(self.some_case(data))

    def live_request(self, data: Drawing) -> Ref:
        """A live request."""
        return Ref(self.some_live(data))

    def running_request(self, data: Drawing) -> Ref:
        """A live request that runs."""
        name = self.some_live(data)
        if self.cases[name].request.status is not EngineRequestStatus.RUNNING:
            raise Nothing  # that would be another fault
        return Ref(name)

    def asking_request(self, data: Drawing) -> Saying:
        """A request that can ask for a slot."""
        name = self.some_case(data)
        case, computed = self.cases[name], int(self.cases[name].request.num_computed_tokens)
        if case.live:  # else that were a fault as well
            computed = case.given if self.world.has_states else max(case.least, computed)
        if computed >= self.max_model_len:
            raise Nothing
        return Saying(Ref(name), (("num_computed_tokens", computed),))

    def no_groups(self) -> list[Any]:
        """What are no groups: no list, or one with something else in it, or with groups of what are no numbers."""
        if not self.is_exact:
            return [1]
        declares = self.session.backend.offers("CacheGroupSpec")
        return [1, ["group"], *([Declared(Group("full", 1), 0, wrong)] for wrong in NO_NUMBERS if declares)]

    def construct_one(self, numbered: Iterable[tuple[int, Any]], **options: Any) -> None:
        """Constructs another manager, with one argument wrong.

        Args:
            numbered: its groups, each with the number of its layer.
            options: the options that it is given.
        """
        groups = [Declared(group, number) if isinstance(group, Group) else group for number, group in numbered]
        numbers = dict(zip(("num_shards",), self.first, strict=False)) | {"num_pages": 4}
        call = self.call_of(self.made, None, **numbers, kv_cache_groups=groups, max_model_len=8, **options)
        self.call_badly(call)

    # -- What makes no sense after what came before ---------------------------------------------------------

    def overreach(self, data: Drawing) -> None:
        """Asks for slots beyond the longest request, or for hits without their pages; publishes more than has slots."""
        request = self.asking_request(data)
        case, beyond = self.cases[request.request.of], self.max_model_len - dict(request.said)["num_computed_tokens"]
        asked = {"request": request, "num_new_tokens": 1}
        calls: list[tuple[str, dict[str, Any]]] = [
            ("allocate_slots", asked | {"num_new_tokens": beyond + 1}),
            ("allocate_slots", asked | {"num_new_computed_tokens": self.unit}),
        ]
        if case.live and self.offers("manager", "cache_pages"):
            more = {"request": request.request, "num_computed_tokens": case.given + 1}
            calls += [("cache_pages", more)] * 2
        method, given = data.one_of(calls)
        self.call_badly(self.call_of(method, MANAGER_REF, **given))

    def go_on_badly(self, data: Drawing) -> None:
        """Computed tokens that were never given slots, fell, or are no number; another object under a live id."""
        name = self.some_live(data)
        case = self.cases[name]
        wrong = data.likely([*self.impossible_counts(name), "another object"], [-1, *NO_INTS[:2]])
        if wrong == "another object":
            self.take_for_another(data, self.namesake(name, case.request.extra_keys))
            return
        said = Saying(Ref(name), (("num_computed_tokens", wrong),))
        self.call_badly(self.call_of("allocate_slots", MANAGER_REF, request=said, num_new_tokens=1))

    def take_for_another(self, data: Drawing, stranger: Prompt) -> None:
        """Another object under a live id is given to each method that takes a request: most refuse it (MAN-6).

        At level safe to ``allocate_slots`` alone, as no engine does this to itself.
        """
        for row in self.rows():
            if "request" in row.arguments and self.can_call(row) and (self.is_exact or row.name == "allocate_slots"):
                rest = row.drawn(data, self, but="request")
                self.call_badly(self.call_of(row.name, MANAGER_REF, request=stranger, **rest))

    def hit_badly(self, data: Drawing) -> None:
        """Pages as hits that are not the request's own: others, too few, of another group or pool, null pages."""
        self.turn(data)
        self.spoil_hit(data, self.some_case(data))

    def spoil_hit(self, data: Drawing, name: str) -> None:
        """A request asks for slots behind what it hits, with a fault in it."""
        case = self.cases[name]
        if case.request.num_computed_tokens or not self.world.groups:
            return
        found = self.look_up(name) if not case.live else None
        length = found.spec[1] if found is not None and found.spec[1] else self.unit
        pages = [list(group) for group in found.spec[0].get_page_ids()] if found is not None else []
        if found is None or not found.spec[1]:
            pages = [self.some_pages(data, group, length) for group in self.world.groups]
        group = data.draw(st.integers(0, len(pages) - 1))
        strange = [] if self.lacks("groups") else ["another manager's page"]  # a manager without groups makes it
        fault = data.one_of(["page", "page", "page", "null", *strange, "short", "group"])
        if not pages[group]:
            fault = "group"  # the hit ends in the first page
        if fault == "short":
            pages[group] = pages[group][1:]
        elif fault == "group":
            pages = [*pages[:group], *pages[group + 1 :]] if data.one_of([True, False]) else [*pages, []]
        else:
            place = data.draw(st.integers(0, len(pages[group]) - 1))
            page = {"page": data.one_of(self.page_numbers()), "null": 0}.get(fault)
            pages[group][place] = StrangePage() if page is None else page
        self.hit_with(name, pages, length)

    def hit_siblings(self, name: str) -> None:
        """A request asks for slots behind what it hits, of which the last page is of a prompt that differs there."""
        case = self.cases[name]
        if case.request.num_computed_tokens or not self.caching:
            return
        found = self.look_up(name)
        if found.refused or not found.spec[1]:
            return
        pages, length = [list(held) for held in found.spec[0].get_page_ids()], found.spec[1]
        for group, held in enumerate(pages):
            for page in self.siblings(case, group, len(held) - 1)[:1] if held else ():
                self.hit_with(name, [*pages[:group], [*held[:-1], page], *pages[group + 1 :]], length)

    def siblings(self, case: Case, group: int, place: int) -> list[int]:
        """The cached pages of other prompts that are like a request's up to a place, and differ there."""
        size = self.world.groups[group].page_size
        before, end = case.tokens[: place * size], (place + 1) * size
        contents = {page: content for page in self.cached_pages() if (content := self.ghost.contents.get(page))}
        return [
            page
            for page, content in contents.items()
            if content.group == group and len(content.tokens) == end and list(content.tokens)[: len(before)] == before
            if content != self.ghost.full(group, place, case.tokens, case.request.extra_keys)
        ]

    def hit_with(self, name: str, pages: list[list[Any]], length: int) -> None:
        """A request asks for a slot behind pages that are handed over as its hits, some of them by their ids."""
        lists = [[Ref("pages", (page,)) if isinstance(page, int) else page for page in held] for held in pages]
        request = Saying(Ref(name), (("num_computed_tokens", self.cases[name].request.num_computed_tokens),))
        hits = {"num_new_computed_tokens": length, "new_computed_pages": Pages(lists)}
        call = self.call_of("allocate_slots", MANAGER_REF, request=request, num_new_tokens=1, **hits)
        self.call_badly(call)

    def some_pages(self, data: Drawing, group: Group, length: int) -> list[Any]:
        """Some pages in the places of a prefix where a group needs pages."""
        first = group.first_place(length)
        return [
            data.one_of(self.page_numbers()[1:]) if place >= first else 0 for place in range(length // group.page_size)
        ]
