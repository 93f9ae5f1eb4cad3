"""The swap machine: requests go to host memory and come back, while others come, run, are preempted and go."""

from dataclasses import dataclass
from typing import Any, ClassVar

from hypothesis import strategies as st

from kvproof.spec.declarations import EngineRequestStatus, LoraAdapter, Request

from ..properties import start, step
from .base import Both, Field, Nothing, Side
from .draws import NO_INTS, Drawing, likely, one_of, rarely
from .ghost import Content
from .groups import MIXED, GroupSteps
from .manager_blame import Case
from .operations import operation
from .restoring import Restoring
from .worlds import World, worlds

__all__ = ["Swap"]

_KINDS = (*MIXED, *("state",) * 3)
"""Where a state of mode none is among the groups nothing is hit, but what comes back is published all the same."""

_OPTIONS: tuple[dict[str, Any], ...] = (
    {"num_host_pages": 40, "enable_events": True, "counter_sampling": 1},
    {"num_host_pages": 40, "enable_events": True, "counter_sampling": 1, "unhashed_first": True},
    {"num_host_pages": 12},
    {"num_host_pages": 4},
    {"num_host_pages": 0},
)


@dataclass
class _Away:
    """A request that is swapped out, or on its way.

    Attributes:
        case: the request.
        num_tokens: its computed tokens.
        swap_id: the plan under way; None if there is none.
        is_received: whether its pages come from elsewhere.
    """

    case: Case
    num_tokens: int
    swap_id: int | None
    is_received: bool = False


@dataclass(frozen=True)
class _Flight:
    """Copies under way: whose, the plan as the specification made it, and the pages that come back, by group."""

    away: _Away
    plan: Any


class Swap(Restoring):
    """Whatever the groups; what pages hold is followed to host memory and back (R2).

    While nothing is swapped out the backend's manager may be restored from a snapshot (MAN-14).

    Attributes:
        away: the requests that are swapped out or on their way, by their ids.
        flights: the copies under way, by the ids of their plans.
        host: what each host page holds, as far as anything is known of it.
    """

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
        world=worlds(_KINDS, counts=(1, 1, 2), room=(1, 3), ample=True, eagle=True, options=_OPTIONS),
        restoring=st.sampled_from([False, False, True]),
    )
    def construct(self, world: World, restoring: bool) -> None:
        """A manager of one or two groups, with host memory for some requests, for part of one, or for none.

        It may be restored after every change that leaves nothing swapped out.
        """
        self.begin_restoring(restoring)
        self.away: dict[str, _Away] = {}
        self.flights: dict[int, _Flight] = {}
        self.host: dict[int, Content | None] = {}
        self.build_managers(world)

    def state_fields(self) -> list[Field]:
        """See `ManagerMachine.state_fields`: host pages as well."""
        return [
            Field("host pages of requests", "SWAP-1", self.read_host_pages),
            Field("free host pages", "SWAP-1", lambda side: int(side.manager.num_free_host_pages)),
            *super().state_fields(),
        ]

    def read_host_pages(self, side: Any) -> dict[str, list[list[int]]]:
        """The host pages of every request ever seen."""
        return {name: [list(map(int, own)) for own in side.manager.get_host_page_ids(name)] for name in self.cases}

    # -- What others do ---------------------------------------------------------------------------

    def names_of(self, live: bool) -> list[str]:
        """See `ManagerBlame.names_of`: what is swapped out is neither live nor waiting."""
        return [name for name in super().names_of(live) if live or name not in self.away]

    def arrived(self, data: Drawing) -> str:
        """See `Admission.arrived`: there may be no id left."""
        if len(self.names_of(live=True)) + len(self.away) >= 4:
            raise Nothing
        return super().arrived(data)

    def bring(self, name: str, *args: Any) -> None:
        """See `Admission.bring`: the id of what is swapped out is taken."""
        if name in self.away:
            raise Nothing
        super().bring(name, *args)

    def free_request(self, name: str, written: int | None) -> None:
        """See `Endings.free_request`: what is swapped out is forgotten."""
        super().free_request(name, written)
        self.away.pop(name, None)

    # -- There and back ---------------------------------------------------------------------------

    @step("SWAP-1", when=lambda self: self.names_of(live=True), weight=4)
    def swap_out(self, data: Drawing) -> None:
        """A live request goes to host memory, as a rule with all that was computed of it."""
        name = one_of(data, self.names_of(live=True))
        case = self.cases[name]
        known = min(case.given, case.request.num_tokens)
        computed = one_of(data, range(min(case.least, known), known + 1)) if rarely(data) else known
        self.go_out(name, computed)
        self.probe()

    @operation
    def go_out(self, name: str, computed: int) -> None:
        """Plans how a live request goes to host memory."""
        case = self.cases[name]
        if not case.live or computed > case.request.num_tokens:
            raise Nothing
        case.request.num_computed_tokens = computed
        plan = self.plan(f"manager.swap_out({name})  [num_computed_tokens={computed}]", "swap_out", case.request)
        if plan.refused or plan.spec is None:
            return
        case.live = False
        case.request.status = EngineRequestStatus.PREEMPTED
        self.away[name] = away = _Away(case, computed, plan.spec.swap_id)
        self.flights[plan.spec.swap_id] = _Flight(away, plan.spec)

    def plan(self, line: str, method: str, request: Request) -> Both:
        """Makes a call that returns a plan."""
        return self.call(
            line,
            lambda side: getattr(side.manager, method)(request),
            "SWAP-1",
            _plan,
            self.charged("SWAP-1"),
        )

    def out(self) -> list[str]:
        """The requests in host memory, no copies of theirs being under way."""
        return [name for name, away in self.away.items() if away.swap_id is None]

    @step("SWAP-1", when=out, weight=4)
    def swap_in(self, data: Drawing) -> None:
        """A request comes back, as a rule with what it had; it may have more tokens by now."""
        name = one_of(data, self.out())
        if rarely(data):
            self.grow(name, [one_of(data, self.world.alphabet)])
        self.come_in(name)
        self.probe()

    @operation
    def come_in(self, name: str) -> None:
        """Plans how a request comes back."""
        away = self.away.get(name)
        if away is None or away.swap_id is not None or away.is_received:
            raise Nothing
        plan = self.plan(f"manager.swap_in({name})", "swap_in", away.case.request)
        if not plan.refused and plan.spec is not None:
            away.swap_id = plan.spec.swap_id
            self.flights[plan.spec.swap_id] = _Flight(away, plan.spec)

    @step("SWAP-1", "MAN-3", when=lambda self: self.flights, weight=5)
    def swap_done(self, data: Drawing) -> None:
        """Copies have ended, in any order; who is live again goes on, or others look for what was published."""
        number = one_of(data, list(self.flights))
        name = self.flights[number].away.case.request.request_id
        self.end_copies(number)
        if self.cases[name].live and name in self.unfinished() and one_of(data, [True, False]):
            self.go_on(data, name)
        self.probe()

    @operation
    def end_copies(self, number: int) -> None:
        """The fence: what was under way has been copied."""
        if number not in self.flights:
            raise Nothing
        flight = self.flights.pop(number)
        away, plan = flight.away, flight.plan
        name = away.case.request.request_id
        for copy in plan.copies:
            if plan.direction == "out":
                self.host[copy.host_page] = self.ghost.contents.get(copy.device_page)
        self.call(
            f"manager.swap_done({number})",
            lambda side: side.manager.swap_done(number),
            "SWAP-1",
            charge=self.charged("SWAP-1"),
        )
        away.swap_id = None
        if plan.direction == "in" and self.away.get(name) is away:
            del self.away[name]
            if away.is_received:
                self.arrive_from_elsewhere(away, plan)
            else:
                self.come_alive(away, plan)

    def come_alive(self, away: _Away, plan: Any) -> None:
        """Notes that a request is live again, and holds its pages against what it had (R2)."""
        case, end = away.case, away.num_tokens
        case.live = True
        case.request.status = EngineRequestStatus.RUNNING
        case.request.num_computed_tokens = end
        case.given = case.slots = case.hits = case.written = case.computed = case.told = end
        held = self.held(case.request.request_id)
        for copy in plan.copies:
            content = self.host[copy.host_page]
            if content is not None:
                self.ghost.contents[copy.device_page] = content
            else:
                self.ghost.contents.pop(copy.device_page, None)
        wrong = [] if case.void else self.ghost.unread(held, end, case.request)
        self.compared("R2")
        if wrong:
            self.differ("R2", f"{case.request.request_id} comes back with its pages", f"others at {wrong} of {held}")

    # -- Snapshots --------------------------------------------------------------------------------

    def can_restore(self) -> bool:
        """See `Restoring.can_restore`: no snapshot tells of what is swapped out or on its way."""
        if self.away or self.flights or self.lacks("snapshots"):
            return False
        return self.offers("manager", "snapshot") and self.offers("manager", "restore")

    @step("MAN-14", when=can_restore, weight=2)
    def restore(self, data: Drawing) -> None:
        """The backend goes on from its own snapshot, or from the specification's, with what went and came back."""
        self.restore_from(own=one_of(data, [True, True, False]))

    # -- From elsewhere ---------------------------------------------------------------------------

    def can_receive(self) -> bool:
        """Whether a request waits, and the backend takes pages from elsewhere."""
        return bool(self.world.groups and self.names_of(live=False)) and self.offers("manager", "receive_pages")

    @step("SWAP-2", when=can_receive, weight=3)
    def receive_pages(self, data: Drawing) -> None:
        """Pages of a waiting request come from elsewhere; as a rule as many tokens as whole pages hold."""
        name = one_of(data, self.names_of(live=False))
        case = self.cases[name]
        whole = min(case.request.num_tokens, self.max_model_len) // self.unit
        odd: bool = rarely(data)
        if not whole and not odd:
            raise Nothing
        most = case.request.num_tokens + 1
        tokens = one_of(data, range(most + 1)) if odd else one_of(data, range(whole, 0, -1)) * self.unit
        self.receive(name, tokens)
        ends: bool = one_of(data, [True, False])
        if self.flights and ends:
            self.end_copies(max(self.flights))
        self.probe()

    @operation
    def receive(self, name: str, tokens: int) -> None:
        """Plans how pages of a waiting request come from elsewhere."""
        case = self.cases[name]
        if case.live or name in self.away:
            raise Nothing
        plan = self.call(
            f"manager.receive_pages({name}, {tokens})",
            lambda side: side.manager.receive_pages(case.request, tokens),
            "SWAP-2",
            _plan,
            self.charged("SWAP-2"),
        )
        if not plan.refused and plan.spec is not None:
            self.away[name] = away = _Away(case, tokens, plan.spec.swap_id, is_received=True)
            self.flights[plan.spec.swap_id] = _Flight(away, plan.spec)

    def arrive_from_elsewhere(self, away: _Away, plan: Any) -> None:
        """Notes what pages that came hold; look-ups judge the rest (R2)."""
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

    @step("SWAP-1", "MAN-3", "MAN-4", "MAN-5", when=lambda self: self.away, weight=2)
    def abort(self, data: Drawing) -> None:
        """A request that is swapped out, or on its way, is aborted; its id may come back before the fence."""
        name = one_of(data, list(self.away))
        if rarely(data):
            self.free_a_namesake(name)
        self.free_request(name, 0 if rarely(data) and self.free_takes_written() else None)
        if one_of(data, [True, False]):
            self.admitted(data)

    @step("SWAP-1", "MAN-3", "MAN-5", "POOL-11", when=lambda self: self.names_of(live=True), weight=2)
    def there_and_back(self, data: Drawing) -> None:
        """A request goes out, others take or evict what it had, and it comes back to hit the rest."""
        name = one_of(data, self.names_of(live=True))
        case = self.cases[name]
        self.go_out(name, min(case.given, case.request.num_tokens))
        if name not in self.away:
            raise Nothing
        self.end_copies(max(self.flights))
        if one_of(data, [True, False]):
            if self.offers("pool", "evict_pages"):
                self.forget_some(data)
        elif len(self.names_of(live=True)) + len(self.away) < 4:
            self.admitted(data)
        self.come_in(name)
        if name in self.away and self.away[name].swap_id is not None:
            self.end_copies(max(self.flights))
        self.probe()

    # -- What is refused --------------------------------------------------------------------------

    @step("SWAP-1", "POOL-9", "MAN-6", "MAN-14", when=lambda self: self.away, weight=2)
    def meddle(self, data: Drawing) -> None:
        """What can't be done with a request that is swapped out: it is admitted, or comes back as another one."""
        name = one_of(data, list(self.away))
        case = self.away[name].case
        stranger = Request(name, case.tokens)
        case.request.num_computed_tokens = 0
        acts: list[tuple[str, Any]] = [
            ("reset_prefix_cache()", lambda side: side.manager.reset_prefix_cache()),
            (f"allocate_slots({name}, 1)", lambda side: side.manager.allocate_slots(case.request, 1)),
            (f"cache_pages({name}, 1)", lambda side: side.manager.cache_pages(case.request, 1)),
            (f"swap_out({name})", lambda side: side.manager.swap_out(case.request)),
            (f"swap_in(<another request {name!r}>)", lambda side: side.manager.swap_in(stranger)),
            (
                f"get_computed_pages(<another request {name!r}>)",
                lambda side: side.manager.get_computed_pages(stranger),
            ),
        ]
        if self.away[name].swap_id is not None:
            acts.append((f"swap_in({name})", lambda side: side.manager.swap_in(case.request)))
        else:
            acts.append((f"swap_in({name}), with another adapter", lambda side: _with_adapter(side, case.request)))
        if self.offers("manager", "snapshot"):
            acts.append(("snapshot()", lambda side: side.manager.snapshot()))
        line, act = one_of(data, acts)
        self.call(f"manager.{line}", act, "SWAP-1", charge=self.charged("SWAP-1"))

    @step("SWAP-1", when=lambda self: self.cases)
    def misuse_swaps(self, data: Drawing) -> None:
        """Requests that are not live, or not swapped out; plans that there are not; host memory that is none."""
        name = one_of(data, list(self.cases))
        request = self.cases[name].request
        often: list[tuple[str, Any]] = [("swap_done", max([*self.flights, -1]) + 1), ("swap_done", -1)]
        often += [] if self.cases[name].live else [("swap_out", request)]
        often += [] if name in self.away else [("swap_in", request)]
        seldom: list[tuple[str, Any]] = [
            *(("swap_done", wrong) for wrong in NO_INTS),
            *((method, wrong) for method in ("swap_out", "swap_in", "get_host_page_ids") for wrong in (None, 1)),
        ]
        method, argument = likely(data, often, seldom)
        more: tuple[Any, ...] = ()
        if rarely(data) and self.offers("manager", "receive_pages"):
            method, argument, more = "receive_pages", request, (one_of(data, (self.unit, 0, -1, *NO_INTS)),)
            if more[0] == self.unit and not self.cases[name].live and name not in self.away:
                raise Nothing
        self.call(
            f"manager.{method}{(argument, *more)!r}",
            lambda side: getattr(side.manager, method)(argument, *more),
            "SWAP-1",
            charge="R1",
        )
        wrong = one_of(data, (-1, *NO_INTS))
        self.call(
            f"CacheManager(4, [], 8, num_host_pages={wrong!r})",
            lambda side: side.names.get("CacheManager")(4, [], 8, num_host_pages=wrong),
            "SWAP-1",
        )


def _plan(plan: Any, _: Side) -> Any:
    """A plan as it is compared: its parts, and each copy's."""
    if plan is None:
        return None
    copies = [tuple(int(number) for number in copy) for copy in plan.copies]
    return int(plan.swap_id), plan.request_id, plan.direction, int(plan.num_tokens), copies


def _with_adapter(side: Side, request: Request) -> Any:
    """Swaps a request in that has another adapter than when it went; it has its own again afterwards."""
    own = request.extra_keys
    request.extra_keys = (*(key for key in own if not isinstance(key, LoraAdapter)), LoraAdapter("another"))
    try:
        return side.manager.swap_in(request)
    finally:
        request.extra_keys = own
