"""The machines of swaps: requests go to host memory and come back; with a unit, hits end amid pages."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from kvproof.spec.declarations import EngineRequestStatus, LoraAdapter

from ..calls.datum import Call, Prompt, Ref, Saying, resolve
from ..calls.manager import MOST_PAGES
from .base import Both, Field, Nothing
from .draws import Drawing
from .ghost import Content
from .groups import MIXED, GroupSteps
from .manager_admission import IDS
from .manager_blame import Case
from .properties import start, step
from .snapshots import Restoring
from .worlds import World, worlds

__all__ = ["Amid", "Swap", "SwapSteps"]


@dataclass
class Away:
    """A request that is swapped out, or on its way.

    Attributes:
        case: the request.
        num_tokens: its computed tokens.
        swap_id: the plan under way; None if there is none.
        shard: the number of its shard; 0 where there is one manager.
        is_received: whether its pages come from elsewhere.
    """

    case: Case
    num_tokens: int
    swap_id: int | None
    shard: int = 0
    is_received: bool = False

    def device_page(self, page: int) -> int:
        """A page of its shard as the machine tells pages apart."""
        return page + self.shard * MOST_PAGES


@dataclass(frozen=True)
class Flight:
    """Copies under way: whose, the plan as the specification made it, and the number of the call that planned it."""

    away: Away
    plan: Any
    call: int


class SwapSteps(GroupSteps):
    """What pages hold is followed to host memory and back (R2).

    Attributes:
        away: the requests that are swapped out or on their way, by their ids.
        flights: the copies under way, by the ids of their plans.
        host: what each host page of each shard holds, as far as anything is known of it.
    """

    def build_managers(self, world: World) -> None:
        """See `ManagerMachine.build_managers`: nothing is swapped out."""
        self.away: dict[str, Away] = {}
        self.flights: dict[int, Flight] = {}
        self.host: dict[tuple[int, int], Content | None] = {}
        super().build_managers(world)

    def swaps(self) -> bool:
        """Whether the managers have host memory."""
        methods = ("swap_out", "swap_in", "swap_done")
        return "num_host_pages" in self.options and all(self.offers("manager", method) for method in methods)

    def state_fields(self) -> list[Field]:
        """See `ManagerMachine.state_fields`: host pages as well."""
        if not self.swaps():
            return super().state_fields()
        return [
            Field.of("host pages of requests", self.cases),
            self.free_host_pages(),
            *super().state_fields(),
        ]

    def free_host_pages(self) -> Field:
        """How many host pages are free."""
        return Field.of("free host pages")

    def shard_of(self, name: str) -> int:
        """The number of the shard that a request is on; 0 where there is one manager."""
        del name
        return 0

    # -- What others do ---------------------------------------------------------------------------

    def names_of(self, live: bool) -> list[str]:
        """See `ManagerBlame.names_of`: what is swapped out is neither live nor waiting."""
        return [name for name in super().names_of(live) if live or name not in self.away]

    def unused(self) -> list[str]:
        """See `Admission.unused`: what is swapped out keeps its id."""
        return [name for name in super().unused() if name not in self.away]

    def arrived(self, data: Drawing) -> str:
        """See `Admission.arrived`: there may be no id left."""
        if not self.unused():
            raise Nothing
        return super().arrived(data)

    def brought(self, prompt: Prompt) -> None:
        """See `ManagerMachine.brought`: the id of what is swapped out is taken."""
        if prompt.request_id in self.away:
            raise self.left_out()
        super().brought(prompt)

    def some_case(self, data: Drawing) -> str:
        """See `Admission.some_case`: a call with one fault for a request that is swapped out would have two."""
        here = [name for name in self.cases if name not in self.away]
        return data.one_of(here) if here else self.arrived(data)

    def note_free(self, name: str, call: Call, freed: Both) -> None:
        """See `Admission.note_free`: what is swapped out is forgotten."""
        super().note_free(name, call, freed)
        self.away.pop(name, None)

    def wind_up(self) -> None:
        """See `ManagerSteps.wind_up`: copies end first; while a request is in host memory nothing is forgotten."""
        for number in list(self.flights):
            self.end_copies(number)
        self.receive_last()
        super().wind_up()
        for number in list(self.flights):
            self.end_copies(number)
        if self.away:
            for name in list(self.away):
                self.free_request(name, None)
            self.reset()

    def receive_last(self) -> None:
        """What comes from elsewhere before all requests go, if anything does."""

    # -- There and back ---------------------------------------------------------------------------

    @step("SWAP-1", when=lambda self: self.swaps() and self.names_of(live=True), weight=4)
    def swap_out(self, data: Drawing) -> None:
        """A live request goes to host memory, as a rule with all that was computed of it.

        Where hits end amid pages, as often with what it had before its last step: while copies wait it has no more.
        """
        name = data.one_of(self.names_of(live=True))
        case = self.cases[name]
        known = min(case.given, case.request.num_tokens)
        least = min(case.least, known)
        usual = data.one_of([known, least]) if self.amid else known
        computed = data.one_of(range(least, known + 1)) if data.rarely() else usual
        self.go_out(name, computed)
        self.probe()

    def go_out(self, name: str, computed: int) -> None:
        """Plans how a live request goes to host memory."""
        case = self.cases[name]
        if not case.live or case.void or computed > case.request.num_tokens:
            raise Nothing  # what is void is to be freed, not kept (MAN-4)
        self.call_manager("swap_out", request=Saying(Ref(name), (("num_computed_tokens", computed),)))

    def note_swap_out(self, name: str, call: Call, plan: Both) -> None:
        """Notes that a request is on its way to host memory."""
        case = self.cases[name]
        computed = int(case.request.num_computed_tokens)
        self.write(name, computed, self.was.held)  # drafts may have been accepted
        if plan.spec is None:
            return
        case.live = False
        case.request.status = EngineRequestStatus.PREEMPTED
        self.away[name] = away = Away(case, computed, plan.spec.swap_id, self.shard_of(name))
        self.flights[plan.spec.swap_id] = Flight(away, plan.spec, call.number)

    def out(self) -> list[str]:
        """The requests in host memory, no copies of theirs being under way."""
        return [name for name, away in self.away.items() if away.swap_id is None]

    @step("SWAP-1", when=out, weight=4)
    def swap_in(self, data: Drawing) -> None:
        """A request comes back, as a rule with what it had; it may have more tokens by now."""
        name = data.one_of(self.out())
        if data.rarely():
            self.grow(name, [data.one_of(self.world.alphabet)])
        self.come_in(name)
        self.probe()

    def come_in(self, name: str) -> None:
        """Plans how a request comes back."""
        away = self.away.get(name)
        if away is None or away.swap_id is not None or away.is_received or away.case.void:
            raise Nothing
        self.call_manager("swap_in", request=Ref(name))

    def note_swap_in(self, name: str, call: Call, plan: Both) -> None:
        """Notes that a request is on its way back."""
        if plan.spec is not None:
            self.away[name].swap_id = plan.spec.swap_id
            self.flights[plan.spec.swap_id] = Flight(self.away[name], plan.spec, call.number)

    @step("SWAP-1", "MAN-3", when=lambda self: self.flights, weight=5)
    def swap_done(self, data: Drawing) -> None:
        """Copies have ended, in any order; who is live again goes on, or others look for what was published."""
        number = data.one_of(list(self.flights))
        name = self.flights[number].away.case.request.request_id
        self.end_copies(number)
        if self.cases[name].live and name in self.unfinished() and data.one_of([True, False]):
            self.go_on(data, name)
        self.probe()

    def end_copies(self, number: int) -> None:
        """The fence: what was under way has been copied."""
        if number not in self.flights:
            raise Nothing
        self.call_manager("swap_done", swap_id=Ref(self.flights[number].call, (".swap_id",)))

    def note_swap_done(self, _: str, call: Call, __: Both) -> None:
        """Notes what was copied, and that a request is live again."""
        flight = self.flights.pop(int(resolve(call.arguments["swap_id"], self.spec)))
        away, plan = flight.away, flight.plan
        name = away.case.request.request_id
        for copy in plan.copies:
            if plan.direction == "out":
                held = self.ghost.contents.get(away.device_page(copy.device_page))
                self.host[away.shard, copy.host_page] = held
        away.swap_id = None
        if plan.direction == "in" and self.away.get(name) is away:
            del self.away[name]
            self.arrive(away, plan)

    def arrive(self, away: Away, plan: Any) -> None:
        """Notes that a request is live again, and holds its pages against what it had (R2)."""
        case, end = away.case, away.num_tokens
        case.live = True
        case.request.status = EngineRequestStatus.RUNNING
        case.request.num_computed_tokens = end
        case.given = case.slots = case.hits = case.written = case.computed = case.told = end
        held = self.held(case.request.request_id)
        for copy in plan.copies:
            content, page = self.host[away.shard, copy.host_page], away.device_page(copy.device_page)
            if content is not None:
                self.ghost.contents[page] = content
            else:
                self.ghost.contents.pop(page, None)
        wrong = [] if case.void else self.ghost.unread(held, end, case.request)
        self.compared("R2")
        if wrong:
            self.differ("R2", f"{case.request.request_id} comes back with its pages", f"others at {wrong} of {held}")

    @step("SWAP-1", "MAN-3", "MAN-4", "MAN-5", when=lambda self: self.away, weight=2)
    def abort(self, data: Drawing) -> None:
        """A request that is swapped out, or on its way, is aborted; its id may come back before the fence."""
        name = data.one_of(list(self.away))
        if data.rarely():
            self.free_a_namesake(name)
        self.free_request(name, 0 if data.rarely() and self.free_takes_written() else None)
        if data.one_of([True, False]):
            self.admitted(data)

    @step("SWAP-1", "MAN-3", "MAN-5", "POOL-11", when=lambda self: self.swaps() and self.names_of(live=True), weight=2)
    def there_and_back(self, data: Drawing) -> None:
        """A request goes out, others take or evict what it had, and it comes back to hit the rest."""
        name = data.one_of(self.names_of(live=True))
        self.reach_the_host(name)
        if data.one_of([True, False]):
            if self.can_evict():
                self.forget_some(data)
        elif len(self.names_of(live=True)) + len(self.away) < 4:
            self.admitted(data)
        self.come_in(name)
        self.end_the_way_back(name)
        self.probe()

    def reach_the_host(self, name: str) -> None:
        """A live request goes to host memory with all that was computed of it, and is there; if it has room for it."""
        case = self.cases[name]
        self.go_out(name, min(case.given, case.request.num_tokens))
        if name not in self.away:
            raise Nothing
        self.end_copies(max(self.flights))

    def end_the_way_back(self, name: str) -> None:
        """A request that was just planned to come back is live again; nothing happens where there was no room."""
        if name in self.away and self.away[name].swap_id is not None:
            self.end_copies(max(self.flights))

    def has_a_writer(self) -> bool:
        """Whether a live request can leave before its tokens were written, and another one can come."""
        live = self.names_of(live=True)
        return self.swaps() and bool(live) and len(live) + len(self.away) < len(IDS) and self.free_takes_written()

    @step("SWAP-1", "MAN-3", "MAN-4", "MAN-5", when=has_a_writer, weight=2)
    def lose_hits_on_the_way(self, data: Drawing) -> None:
        """A request is on its way back behind hits when who published them leaves before they were written."""
        writer = data.one_of(self.names_of(live=True))
        case = self.cases[writer]
        name = self.unused()[0]
        self.bring(
            name, [*case.tokens, data.one_of(self.world.alphabet)][: self.max_model_len], case.request.extra_keys
        )
        hits = self.look_up(name).spec[1]
        self.admit_with(name, self.cases[name].request.num_tokens - hits, hits)
        if not self.cases[name].live:
            return  # there was no room for it
        self.reach_the_host(name)
        self.come_in(name)
        self.free_request(writer, data.draw(st.integers(0, hits)))
        self.end_the_way_back(name)
        if self.cases[name].void:
            self.free_request(name, None)
        self.probe()

    # -- What is refused --------------------------------------------------------------------------

    @step("SWAP-1", "POOL-9", "MAN-5", "MAN-6", "MAN-10", "MAN-14", when=lambda self: self.away, weight=2)
    def meddle(self, data: Drawing) -> None:
        """What can't be done with a request that is swapped out: it is admitted, or comes back as another one."""
        name = data.one_of(list(self.away))
        case = self.away[name].case
        case.request.num_computed_tokens = 0
        if data.one_of([True, False, False]):
            self.take_for_another(data, self.namesake(name))
            return
        own = Ref(name)
        acts: list[tuple[str, dict[str, Any]]] = [
            ("reset_prefix_cache", {}),
            ("allocate_slots", {"request": own, "num_new_tokens": 1}),
            ("cache_pages", {"request": own, "num_computed_tokens": 1}),
            ("swap_out", {"request": own}),
        ]
        if self.away[name].swap_id is not None:
            acts.append(("swap_in", {"request": own}))
        else:
            kept = (key for key in case.request.extra_keys if not isinstance(key, LoraAdapter))
            adapted = Saying(own, (("extra_keys", (*kept, LoraAdapter("another"))),))
            acts.append(("swap_in", {"request": adapted}))
        if self.offers("manager", "snapshot"):
            acts.append(("snapshot", {}))
        method, arguments = data.one_of(acts)
        self.call_manager(method, **arguments)


_KINDS = (*MIXED, *("state",) * 3)
"""Where a state of mode none is among the groups nothing is hit, but what comes back is published all the same."""

_OPTIONS: tuple[dict[str, Any], ...] = (
    {"num_host_pages": 40, "enable_events": True, "counter_sampling": 1},
    {"num_host_pages": 40, "enable_events": True, "counter_sampling": 1, "unhashed_first": True},
    {"num_host_pages": 12},
    {"num_host_pages": 40, "eviction": "adaptive"},
    {"num_host_pages": 4},
    {"num_host_pages": 0},
)


class Swap(SwapSteps, Restoring):
    """Any groups; while nothing is swapped out the backend's manager may be restored from a snapshot (MAN-14)."""

    name = "swap"
    capability = "swaps"
    examples = 28
    needs: ClassVar[tuple[str, ...]] = (
        *GroupSteps.needs,
        *("CacheManager.swap_out", "CacheManager.swap_in", "CacheManager.swap_done", "CacheManager(num_host_pages)"),
    )
    labels = frozenset({"MAN-7", "MAN-8", "MAN-9"})
    always = GroupSteps.always | labels | {"MAN-12", "MAN-13", "MAN-14", "SWAP-1"}

    @start(
        world=worlds(_KINDS, counts=(1, 2, 2), room=(1, 3), ample=True, eagle=True, options=_OPTIONS),
        restoring=st.booleans(),
    )
    def construct(self, world: World, restoring: bool) -> None:
        """A manager of one or two groups, with host memory for some requests, for part of one, or for none.

        It may be restored after every change that leaves nothing swapped out.
        """
        self.begin_restoring(restoring)
        self.build_managers(world)

    # -- Snapshots --------------------------------------------------------------------------------

    def can_restore(self) -> bool:
        """See `Restoring.can_restore`: no snapshot tells of what is swapped out or on its way."""
        if self.away or self.flights or self.lacks("snapshots"):
            return False
        return self.offers("manager", "snapshot") and self.offers("manager", "restore")

    @step("MAN-14", when=can_restore, weight=2)
    def restore(self, data: Drawing) -> None:
        """The backend goes on from its own snapshot, or from the specification's, with what went and came back."""
        self.restore_from(own=data.one_of([True, True, False]))

    # -- From elsewhere ---------------------------------------------------------------------------

    def can_receive(self) -> bool:
        """Whether a request waits, and the backend takes pages from elsewhere."""
        return bool(self.world.groups and self.names_of(live=False)) and self.offers("manager", "receive_pages")

    @step("SWAP-2", when=can_receive, weight=3)
    def receive_pages(self, data: Drawing) -> None:
        """Pages of a waiting request come from elsewhere; as a rule as many tokens as whole pages hold."""
        name = data.one_of(self.names_of(live=False))
        case = self.cases[name]
        whole = min(case.request.num_tokens, self.max_model_len) // self.unit
        odd: bool = data.rarely()
        if not whole and not odd:
            raise Nothing
        most = case.request.num_tokens + 1
        tokens = data.one_of(range(most + 1)) if odd else data.one_of(range(whole, 0, -1)) * self.unit
        self.receive(name, tokens)
        ends: bool = data.one_of([True, False])
        if self.flights and ends:
            self.end_copies(max(self.flights))
        self.probe()

    def receive_last(self) -> None:
        """See `SwapSteps.receive_last`: pages of a request like a live one, whose pages it hits; those go meanwhile."""
        for like in self.names_of(live=True):
            whole, unused = self.cases[like].given // self.unit * self.unit, self.unused()
            if whole and unused and self.can_receive():
                self.bring(unused[0], self.cases[like].tokens, self.cases[like].request.extra_keys)
                self.receive(unused[0], whole)

    def receive(self, name: str, tokens: int) -> None:
        """Plans how pages of a waiting request come from elsewhere."""
        if self.cases[name].live or name in self.away:
            raise Nothing
        self.call_manager("receive_pages", request=Ref(name), num_tokens=tokens)

    def note_receive_pages(self, name: str, call: Call, plan: Both) -> None:
        """Notes that pages of a request are on their way."""
        if plan.spec is not None:
            away = Away(self.cases[name], call.arguments["num_tokens"], plan.spec.swap_id, is_received=True)
            self.away[name] = away
            self.flights[plan.spec.swap_id] = Flight(away, plan.spec, call.number)

    def arrive(self, away: Away, plan: Any) -> None:
        """See `SwapSteps.arrive`: of pages from elsewhere it is noted what they hold; look-ups judge the rest (R2)."""
        if not away.is_received:
            super().arrive(away, plan)
            return
        end = away.num_tokens
        places = [
            (number, place)
            for number, group in enumerate(self.world.groups)
            for place in range(group.first_place(end), end // group.page_size)
        ]
        for copy in plan.copies:
            group, place = places[copy.host_page]
            self.ghost.contents[copy.device_page] = self.ghost.full(
                group, place, away.case.tokens, away.case.request.extra_keys
            )

    # -- What is refused --------------------------------------------------------------------------

    @step("SWAP-1", when=lambda self: self.cases)
    def misuse_swaps(self, data: Drawing) -> None:
        """Requests that are not live, or not swapped out; plans that there are not; what is wrong in any case."""
        name = data.one_of(list(self.cases))
        live, request = self.cases[name].live, {"request": Ref(name)}
        calls: list[tuple[str, dict[str, Any]]] = [("swap_out", {"request": self.namesake(name)} if live else request)]
        calls += [] if name in self.away else [("swap_in", request)]
        if (live or name in self.away) and self.offers("manager", "receive_pages"):
            calls.append(("receive_pages", request | {"num_tokens": self.unit}))
        if data.one_of([True, False, False]):
            method, arguments = data.one_of(calls)
            self.call_manager(method, **arguments)
        else:
            self.spoil(data, "swaps")


_AMID_KINDS = ("full", "full", "window", "chunk", "mla", "full", "window", "aligned")

_AMID_OPTIONS: tuple[dict[str, Any], ...] = (
    *({}, {}, {"num_host_pages": 40}, {"unhashed_first": True}, {"eviction": "adaptive"}),
    {"enable_events": True, "counter_sampling": 1},
    {"num_host_pages": 40, "enable_events": True, "counter_sampling": 1},
    {"num_host_pages": 12},
)


@st.composite
def _amid_worlds(draw: DrawFn) -> World:
    """A world with a unit that divides every page size; in one of three, windows over lists of many pages."""
    if draw(st.integers(0, 2)):
        world = draw(
            worlds(_AMID_KINDS, counts=(1, 1, 2, 2, 3), room=(1, 4), ample=True, eagle=True, options=_AMID_OPTIONS)
        )
    else:
        narrow = draw(
            worlds(("window", "chunk"), counts=(1, 1, 2), room=(2, 4), ample=True, options=_AMID_OPTIONS, lists=(6, 12))
        )
        size = draw(st.integers(1, 3))
        interval = narrow.options.get("retention_interval")
        world = replace(
            narrow,
            options=narrow.options | ({"retention_interval": size * interval} if interval else {}),
            groups=tuple(replace(group, page_size=size, extent=size * group.extent) for group in narrow.groups),
            max_model_len=size * narrow.max_model_len,
            text=tuple(token for token in narrow.text for _ in range(size)),
            probing=True,
        )
    return replace(world, options={**world.options, "match_unit": draw(st.sampled_from(world.match_units))})


class Amid(Swap):
    """Any groups with a unit: hits are multiples of it, and the first tokens of their last pages are copied."""

    name = "amid"
    capability = "swaps"
    examples = 42
    needs: ClassVar[tuple[str, ...]] = (*Swap.needs, "CacheManager(match_unit)")
    labels = frozenset({"MAN-7", "MAN-8", "MAN-9", "MAN-17"})
    always = Swap.always | labels

    @start(world=_amid_worlds(), restoring=st.sampled_from([False, False, True]))
    def construct(self, world: World, restoring: bool) -> None:
        """A manager of one to three groups, with host memory or none."""
        self.begin_restoring(restoring)
        self.build_managers(world)

    @step("SWAP-1", "MAN-3", "MAN-17", when=lambda self: self.swaps() and self.unused(), weight=3)
    def preempt_before_a_step(self, data: Drawing) -> None:
        """A request that begins as another is admitted, and goes to host memory before its first step.

        As a rule with its hits alone. If they end amid a page, their last tokens still wait to be copied.
        """
        stems = [list(case.tokens) for case in self.cases.values()] or [list(self.world.text)]
        stem, name = data.one_of(stems), self.unused()[0]
        length = data.draw(st.integers(1, max(len(stem), 1)))
        self.bring(name, [*stem[:length], data.one_of(self.world.alphabet)][: self.max_model_len])
        hits, case = self.look_up(name).spec[1], self.cases[name]
        self.admit_with(name, data.counted(self.chunk(data, hits, case.request.num_tokens)), hits)
        if case.live and case.least:
            self.go_out(name, case.given if data.rarely() else case.least)
        self.probe()

    def forget_some(self, data: Drawing) -> None:
        """See `ManagerSteps.forget_some`: any of the cached pages; then prefixes of what requests have are looked up.

        Each of them may end before another of the gaps.
        """
        cached, unused, text = self.cached_pages(), self.unused(), self.world.text
        if not (cached and unused and text):
            super().forget_some(data)
            return
        self.evict(data.some(cached, len(cached), 1))
        for length in data.some(range(1, len(text) + 1), 4, 1):
            self.bring(unused[0], list(text[:length]))
            self.look_up(unused[0])

    @step("MAN-17", when=lambda self: self.world.groups)
    def match_badly(self, data: Drawing) -> None:
        """A unit that is no positive int, or that does not divide every page size, is refused."""
        size = max(group.page_size for group in self.world.groups)
        self.construct_one(enumerate(self.world.groups), match_unit=data.one_of([0, -1, size + 1, 2 * size]))
