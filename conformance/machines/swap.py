"""The swap machine: requests go to host memory and come back, while others come, run, are preempted and go."""

from typing import Any, ClassVar

from hypothesis import strategies as st

from ..calls.datum import Call, Ref
from .base import Both, Nothing
from .draws import NO_INTS, Drawing, likely, one_of, rarely
from .groups import MIXED, GroupSteps
from .properties import start, step
from .restoring import Restoring
from .swap_steps import Away, Flight, SwapSteps
from .worlds import World, worlds

__all__ = ["Swap"]

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
        """Requests that are not live, or not swapped out; plans that there are not; host memory that is none."""
        name = one_of(data, list(self.cases))
        request = Ref(name)
        often: list[tuple[str, dict[str, Any]]] = [
            ("swap_done", {"swap_id": wrong}) for wrong in (max([*self.flights, -1]) + 1, -1)
        ]
        often += [] if self.cases[name].live else [("swap_out", {"request": request})]
        often += [] if name in self.away else [("swap_in", {"request": request})]
        seldom: list[tuple[str, dict[str, Any]]] = [
            *(("swap_done", {"swap_id": wrong}) for wrong in NO_INTS),
            *((method, {"request": wrong}) for method in ("swap_out", "swap_in") for wrong in (None, 1)),
            *(("get_host_page_ids", {"request_id": wrong}) for wrong in (None, 1)),
        ]
        method, arguments = likely(data, often, seldom)
        if rarely(data) and self.offers("manager", "receive_pages"):
            tokens = one_of(data, (self.unit, 0, -1, *NO_INTS))
            method, arguments = "receive_pages", {"request": request, "num_tokens": tokens}
            if tokens == self.unit and not self.cases[name].live and name not in self.away:
                raise Nothing
        self.call_manager(method, **arguments)
        self.construct_one(4, [], 8, num_host_pages=one_of(data, (-1, *NO_INTS)))
