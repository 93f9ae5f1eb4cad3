"""The steps by which requests go to host memory and come back; of the machines whose managers have such memory."""

from dataclasses import dataclass
from typing import Any

from kvproof.spec.declarations import EngineRequestStatus, LoraAdapter

from ..calls.datum import Call, Prompt, Ref, Saying, resolve
from ..calls.manager import MOST_PAGES
from .base import Both, Field, Nothing
from .draws import Drawing, one_of, rarely
from .ghost import Content
from .groups import GroupSteps
from .manager_blame import Case
from .properties import step
from .worlds import World

__all__ = ["Away", "Flight", "SwapSteps"]


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
        if "num_host_pages" not in self.options or self.lacks("swaps"):
            return False
        return all(self.offers("manager", method) for method in ("swap_out", "swap_in", "swap_done"))

    def state_fields(self) -> list[Field]:
        """See `ManagerMachine.state_fields`: host pages as well."""
        if not self.swaps():
            return super().state_fields()
        return [
            Field.of("host pages of requests", "SWAP-1", self.cases),
            self.free_host_pages(),
            *super().state_fields(),
        ]

    def free_host_pages(self) -> Field:
        """How many host pages are free."""
        return Field.of("free host pages", "SWAP-1")

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

    def brought(self, prompt: Prompt) -> None:
        """See `ManagerMachine.brought`: the id of what is swapped out is taken."""
        if prompt.request_id in self.away:
            raise self.left_out()
        super().brought(prompt)

    def some_case(self, data: Drawing) -> str:
        """See `Admission.some_case`: a call with one fault for a request that is swapped out would have two."""
        here = [name for name in self.cases if name not in self.away]
        return one_of(data, here) if here else self.arrived(data)

    def note_free(self, name: str, call: Call, freed: Both) -> None:
        """See `Endings.note_free`: what is swapped out is forgotten."""
        super().note_free(name, call, freed)
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

    def go_out(self, name: str, computed: int) -> None:
        """Plans how a live request goes to host memory."""
        case = self.cases[name]
        if not case.live or computed > case.request.num_tokens:
            raise Nothing
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
        name = one_of(data, self.out())
        if rarely(data):
            self.grow(name, [one_of(data, self.world.alphabet)])
        self.come_in(name)
        self.probe()

    def come_in(self, name: str) -> None:
        """Plans how a request comes back."""
        away = self.away.get(name)
        if away is None or away.swap_id is not None or away.is_received:
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
        number = one_of(data, list(self.flights))
        name = self.flights[number].away.case.request.request_id
        self.end_copies(number)
        if self.cases[name].live and name in self.unfinished() and one_of(data, [True, False]):
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
            if self.can_evict():
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
        stranger = self.namesake(name)
        case.request.num_computed_tokens = 0
        own = Ref(name)
        acts: list[tuple[str, dict[str, Any]]] = [
            ("reset_prefix_cache", {}),
            ("allocate_slots", {"request": own, "num_new_tokens": 1}),
            ("cache_pages", {"request": own, "num_computed_tokens": 1}),
            ("swap_out", {"request": own}),
            ("swap_in", {"request": stranger}),
            ("get_computed_pages", {"request": stranger}),
        ]
        if self.away[name].swap_id is not None:
            acts.append(("swap_in", {"request": own}))
        else:
            kept = (key for key in case.request.extra_keys if not isinstance(key, LoraAdapter))
            adapted = Saying(own, (("extra_keys", (*kept, LoraAdapter("another"))),))
            acts.append(("swap_in", {"request": adapted}))
        if self.offers("manager", "snapshot"):
            acts.append(("snapshot", {}))
        method, arguments = one_of(data, acts)
        self.call_manager(method, **arguments)
