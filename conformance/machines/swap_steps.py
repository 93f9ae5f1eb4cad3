"""The steps by which requests go to host memory and come back; of the machines whose managers have such memory."""

from dataclasses import dataclass
from typing import Any

from kvproof.spec.declarations import EngineRequestStatus, LoraAdapter, Request

from .base import Both, Field, Nothing, Side
from .draws import Drawing, one_of, rarely
from .ghost import Content
from .groups import GroupSteps
from .manager_blame import Case
from .operations import operation
from .properties import step
from .worlds import World

__all__ = ["MOST_PAGES", "Away", "Flight", "SwapSteps", "plan_parts"]

MOST_PAGES = 1000
"""A page of shard n is shown as its id and n times this."""


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
    """Copies under way: whose, and the plan as the specification made it."""

    away: Away
    plan: Any


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
        if "num_host_pages" not in self.options or self.lacks("swaps"):
            return False
        return all(self.offers("manager", method) for method in ("swap_out", "swap_in", "swap_done"))

    def state_fields(self) -> list[Field]:
        """See `ManagerMachine.state_fields`: host pages as well."""
        if not self.swaps():
            return super().state_fields()
        return [
            Field("host pages of requests", "SWAP-1", self.read_host_pages),
            Field("free host pages", "SWAP-1", self.read_free_host_pages),
            *super().state_fields(),
        ]

    def read_host_pages(self, side: Any) -> dict[str, list[list[int]]]:
        """The host pages of every request ever seen."""
        return {name: [list(map(int, own)) for own in side.manager.get_host_page_ids(name)] for name in self.cases}

    def read_free_host_pages(self, side: Any) -> object:
        """How many host pages are free."""
        return int(side.manager.num_free_host_pages)

    def shard_of(self, name: str) -> int:
        """The number of the shard that a request is on; 0 where there is one manager."""
        del name
        return 0

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

    def some_case(self, data: Drawing) -> str:
        """See `Admission.some_case`: a call with one fault for a request that is swapped out would have two."""
        here = [name for name in self.cases if name not in self.away]
        return one_of(data, here) if here else self.arrived(data)

    def free_request(self, name: str, written: int | None) -> None:
        """See `Endings.free_request`: what is swapped out is forgotten."""
        super().free_request(name, written)
        self.away.pop(name, None)

    # -- There and back ---------------------------------------------------------------------------

    @step("SWAP-1", when=lambda self: self.swaps() and self.names_of(live=True), weight=4)
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
        self.write(name, computed)  # drafts may have been accepted
        plan = self.plan(f"manager.swap_out({name})  [num_computed_tokens={computed}]", "swap_out", case.request)
        if plan.refused or plan.spec is None:
            return
        case.live = False
        case.request.status = EngineRequestStatus.PREEMPTED
        self.away[name] = away = Away(case, computed, plan.spec.swap_id, self.shard_of(name))
        self.flights[plan.spec.swap_id] = Flight(away, plan.spec)

    def plan(self, line: str, method: str, request: Request) -> Both:
        """Makes a call that returns a plan."""
        return self.call(
            line,
            lambda side: getattr(side.manager, method)(request),
            "SWAP-1",
            plan_parts,
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
            self.flights[plan.spec.swap_id] = Flight(away, plan.spec)

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
                held = self.ghost.contents.get(away.device_page(copy.device_page))
                self.host[away.shard, copy.host_page] = held
        self.call(
            f"manager.swap_done({number})",
            lambda side: side.manager.swap_done(number),
            "SWAP-1",
            charge=self.charged("SWAP-1"),
        )
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
        name = one_of(data, list(self.away))
        if rarely(data):
            self.free_a_namesake(name)
        self.free_request(name, 0 if rarely(data) and self.free_takes_written() else None)
        if one_of(data, [True, False]):
            self.admitted(data)

    @step("SWAP-1", "MAN-3", "MAN-5", "POOL-11", when=lambda self: self.swaps() and self.names_of(live=True), weight=2)
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


def plan_parts(plan: Any, _: Side) -> Any:
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
