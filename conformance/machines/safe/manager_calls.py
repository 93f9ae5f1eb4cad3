"""The calls on small managers at level safe: what the specification must know to follow, and both sides go on from."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from kvproof.spec.declarations.reading import refusal

from ...backends.loading import takes_parameter
from ...calls.datum import Call, GoneError, Pages, Ref, said_of
from ...calls.deviation import REFUSALS, Outcome, attempt
from ...calls.following import taken
from ...calls.manager import MANAGER
from ...calls.method import Method, Table
from ..base import Both, Nothing, Side, Undecided
from ..draws import Drawing
from ..manager_blame import Case
from ..worlds import World
from . import showing
from .manager_judging import SAFE_MANAGER, SafeJudging
from .showing import Lists

__all__ = ["SafeCalls"]

_REFUSED = {
    "CacheManager": ("num_pages", "kv_cache_groups", "max_model_len"),
    "get_computed_pages": ("request",),
    "allocate_slots": (
        *("request", "num_new_tokens", "num_new_computed_tokens", "num_lookahead_tokens", "delay_cache_pages"),
    ),
    "cache_pages": ("request", "num_computed_tokens"),
    "free": ("request", "num_written"),
    "get_page_ids": ("request_id",),
    "get_num_common_prefix_pages": ("request", "num_scheduled_requests"),
}
"""The arguments that managers of every design have, and refuse where they are wrong."""


class SafeCalls(SafeJudging):
    """The specification follows a small manager, and goes on from the prefixes that this finds.

    Attributes:
        following: makes the call for slots that was made last; None where the specification was to refuse it.
        is_lost: whether the sides have made other things of the call that is made now, and nothing is told by that.
        hidden: the held pages that lost their hash to a call; they are found no more.
    """

    is_exact = False
    following: Callable[[Side], Any] | None
    is_lost: bool

    def wind_up(self) -> None:
        """See `ManagerSteps.wind_up`: left out, as what follows a reset is policy; that all go is a step here."""

    # -- What the backend has ------------------------------------------------------------------------------

    def build_managers(self, world: World) -> None:
        """See `ManagerMachine.build_managers`: without Eagle where the backend knows none."""
        self.hidden: set[int] = set()
        if not takes_parameter(self.backend.names.get("CacheManager"), "use_eagle"):
            world = world.without_eagle()
        super().build_managers(world)

    def built_for_spec(self, call: Call) -> Call:
        """See `ManagerMachine.built_for_spec`: it keeps all that may be kept."""
        return call.given(**self.keeping_all({}))

    def things(self, manager: Call) -> dict[str, Any]:
        """See `ManagerMachine.things`: what else a side has depends on what its manager shows."""
        return {"manager": manager}

    def make(self, side: Side, name: str, value: Any) -> None:
        """See `Calling.make`."""
        super().make(side, name, value)
        side.put(self.shown_parts(side.manager))

    def page_numbers(self) -> list[int]:
        """See `ManagerMachine.page_numbers`: those whose views are known."""
        return sorted(self.backend.pages)

    def cached_pages(self) -> list[int]:
        """See `ManagerMachine.cached_pages`: those that were shown as cached after the last call."""
        return self.before or []

    def can_spoil(self, row: Method, argument: str) -> bool:
        """See `Calling.can_spoil`: of what managers of any design refuse."""
        return argument in _REFUSED.get(row.name, ()) and super().can_spoil(row, argument)

    def can_evict(self) -> bool:
        """See `ManagerSteps.can_evict`: of a backend whose pages are known."""
        return bool(self.backend.pages) and super().can_evict()

    def free_takes_written(self) -> bool:
        """See `Admission.free_takes_written`."""
        return self.takes_option("free", "num_written")

    # -- Calls ---------------------------------------------------------------------------------------------

    @classmethod
    def row_of_call(cls, call: Call) -> tuple[Table, Method]:
        """See `Calling.row_of_call`."""
        table, row = super().row_of_call(call)
        return (SAFE_MANAGER, SAFE_MANAGER[row.name]) if table is MANAGER else (table, row)

    def call(self, line: str, act: Callable[[Any], Any], clause: str, *more: Any, **named: Any) -> Both:
        """See `Machine.call`."""
        return super().call(line, act, self.session.noticed(clause), *more, **named)

    def call_badly(self, call: Call) -> None:
        """See `ManagerFaults.call_badly`: not where callers make no mistakes."""
        if self.session.gives_bad_input and not self.covers_all(call):
            super().call_badly(call)

    def make_call(self, call: Call) -> Both:
        """See `Calling.make_call`: calls that no engine makes are left out, unless they shall be refused."""
        if self.covers_all(call) or not (call.refused or call.fault or self.makes_sense(call)):
            raise self.left_out()
        self.making, self.is_lost = call, False
        if call.method != "take_page_copies":
            self.new, self.is_given = set(), False
        try:
            return super().make_call(call)
        finally:
            if self.is_lost:
                raise Undecided

    def covers_all(self, call: Call) -> bool:
        """Whether a call hands over pages of all tokens of a request, which no engine does: the last is computed."""
        case = self.cases.get(self.name_in(call))
        if case is None or not any(map(any, self.hits_in(call))):
            return False
        found = call.arguments.get("num_new_computed_tokens")
        return isinstance(found, int) and found >= min(case.request.num_tokens, self.max_model_len)

    def makes_sense(self, call: Call) -> bool:
        """Whether an engine makes a call now: of a request that it has not withdrawn, with numbers that it knows."""
        name = self.name_in(call)
        case = self.cases.get(name)
        if case is None:
            return True
        match call.method:
            case "cache_pages":
                return case.live and not case.void
            case "free":
                return call.arguments.get("num_written") is None or call.arguments["num_written"] >= case.least
            case "get_num_common_prefix_pages":
                return name in self.running()
            case "allocate_slots":
                return not case.void and (self.session.gives_bad_input or self.is_allowed(call))
        return True

    def is_allowed(self, call: Call) -> bool:
        """Whether a call for slots has no fault that is seen before it is made."""
        case, given = self.cases.get(self.name_in(call)), call.arguments
        if case is None or call.fault:
            return False
        computed = _number(dict(said_of(given["request"])).get("num_computed_tokens", 0))
        found, new = _number(given.get("num_new_computed_tokens", 0)), _number(given["num_new_tokens"])
        may_compute = case.least <= computed <= case.slots and not found if case.live else not computed
        fits = min(computed, found, new - 1) >= 0 and computed + found + new <= self.max_model_len
        return may_compute and fits and self.is_hit(case, self.hits_in(call))

    def repeat_call(self, call: Call) -> None:
        """See `Calling.repeat_call`: all of a hit is as much as the look-up finds now.

        Copies are taken by the call for slots that they are about.
        """
        self._num_calls, pages = call.number, call.arguments.get("new_computed_pages")
        with suppress(GoneError):
            if isinstance(pages, Ref):
                call = call.given(num_new_computed_tokens=int(self.backend.thing(Ref(pages.of, (1,)))))
            if call.method != "take_page_copies":
                super().repeat_call(call)

    def perform(self, side: Side, call: Call, row: Method) -> Any:
        """See `Calling.perform`: the backend goes first where it chooses pages, and the specification publishes first.

        What a request has computed may be published by its next call, also where that gets no slots (MAN-2).
        """
        name = self.name_in(call)
        case = self.cases.get(name)
        if row.name == "evict_pages":
            pages = self.to_evict(side, 0, call.arguments["page_ids"]) if not call.fault else None
            return super().perform(side, call if pages is None else call.given(page_ids=pages), row)
        if side is self.spec and case is not None and case.live and not case.void:
            if row.name == "allocate_slots":
                self.publish_before(case, dict(said_of(call.arguments["request"])).get("num_computed_tokens"))
            elif row.name == "free" and not self.amid:
                self.publish_before(case, call.arguments.get("num_written", case.given))
        if row.name != "allocate_slots":
            return super().perform(side, call, row)
        if side is self.spec:
            self.asked = call
            self.following = self.followed_call(call, row) if self.is_allowed(call) else None
        if self.following is not None:
            return self.following(side)
        made = super().perform(side, call, row)
        self.is_lost = self.is_lost or side is self.spec  # it should have refused the call
        return made

    def followed_call(self, call: Call, row: Method) -> Callable[[Side], Any]:
        """See `Following.followed`: a call that is not refused; else the specification can do so first."""

        def act(of: Side) -> Any:
            return super(SafeCalls, self).perform(of, call if of is self.backend else self.asked, row)

        def pages_of(value: Any) -> list[int]:
            return taken(row.name, attempt(lambda: row.result.plain(value, self.backend)).value)

        return self.followed(self.line(call, row), row.clause, act, pages_of)

    def follow(self, first: Outcome, act: Callable[[], Any]) -> Any:
        """See `Following.follow`: the specification refuses a hit that the backend has forgotten, and says so.

        At its admission a request may hold other pages of equal content than it was told of: those it is given.
        """
        hits, case = self.hits_in(self.asked), self.cases.get(self.name_in(self.asked))
        if case is not None and any(map(any, hits)):
            if first.error is not None and not self.is_there(case, hits, self.asked.arguments):
                raise refusal(ValueError, "MAN-2", "what was found before was forgotten since")
            if first.value is not None and not case.live:
                self.asked = self.with_pages_held(case, hits)
        try:
            given = act()
        except REFUSALS:
            self.is_lost = first.error is None  # nothing tells whether the backend had to refuse it, too
            raise
        self.is_given = given is not None
        self.new = {page for pages in showing.ids_of(given or []) for page in pages if page}
        self.copying = self.is_given and bool(self.ends_amid(self.asked.arguments.get("num_new_computed_tokens", 0)))
        return given

    def publish_before(self, case: Case, tokens: Any) -> None:
        """The specification publishes what a request has computed, or is to write, so far as it was given slots."""
        if isinstance(tokens, int | np.integer) and type(tokens) is not bool and case.least <= tokens <= case.slots:
            self.spec.manager.cache_pages(case.request, min(int(tokens), case.given))

    def with_pages_held(self, case: Case, hits: Lists) -> Call:
        """A call for slots that hands over the pages that the request holds then, where they hold the same."""
        held = attempt(lambda: showing.ids_of(self.backend.manager.get_page_ids(case.request.request_id))).value
        cached, contents = {*(showing.resident(self.spec) or ())}, self.ghost.contents
        pairs = [list(zip(own, pages, strict=False)) for own, pages in zip(hits, held or hits, strict=False)]
        alike = [
            [page if page in cached and contents.get(page) == contents.get(own) else own for own, page in pages]
            for pages in pairs
        ]
        if alike == hits or list(map(len, alike)) != list(map(len, hits)):
            return self.asked
        return self.asked.given(new_computed_pages=Pages([[Ref("pages", (page,)) for page in own] for own in alike]))

    # -- What is noted -------------------------------------------------------------------------------------

    def look_up(self, name: str) -> Both:
        """See `ManagerMachine.look_up`: what each side goes on from; where a hit may have ended is policy."""
        found = self.call_manager("get_computed_pages", request=Ref(name))
        return found if found.refused else self.cases[name].found or found

    def note_get_computed_pages(self, name: str, call: Call, found: Both) -> None:
        """See `ManagerMachine.note_get_computed_pages`: both sides go on from what the backend found."""
        pages, length = self.found_pages(found.backend, self.backend)
        own = self.spec.names.get("CachePages")([[self.spec.pages[page] for page in held] for held in pages])
        self.spec.results[call.number] = (own, int(length))
        super().note_get_computed_pages(name, call, Both((own, int(length)), found.backend))
        self.compared("HIT-1")

    def note_allocate_slots(self, name: str, call: Call, allocated: Both) -> None:
        """See `ManagerMachine.note_allocate_slots`: and takes the copies that are for these slots."""
        case = self.cases[name]
        if allocated.spec is None:
            super().note_allocate_slots(name, call, allocated)
            return
        if self.new:
            self.kept.clear()
            self.hidden -= self.new
        published = case.published if case.live else 0
        super().note_allocate_slots(name, call, allocated)
        promised = min(case.given, case.request.num_tokens)
        case.published = published if call.arguments.get("delay_cache_pages") else promised
        self.take_all_copies()

    def take_all_copies(self) -> None:
        """See `GroupSteps.take_all_copies`: the pages that are copied from are in use until then (MAN-17)."""
        copies = bool(self.amid) or any(group.kind == "aligned" for group in self.world.groups)
        copying, self.copying = self.copying, False
        if not copies or not self.offers("manager", "take_page_copies"):
            return
        free = attempt(lambda: showing.num_free(self.backend)).value
        taken = self.call_manager("take_page_copies")
        if copying and free is not None:
            in_use = {page for name in self.cases for pages in self.held(name) for page in pages}
            in_use |= {int(copy[1]) for copy in taken.backend if len(copy) == 4}
            right = self.world.num_pages - len(in_use | {0})
            self.compared("MAN-17")
            if free != right and "MAN-17" in self.session.clauses:
                said = f"{right} free pages before the copies {[tuple(copy) for copy in taken.backend]} were taken"
                self.differ("MAN-17", said, f"{free}")

    def note_cache_pages(self, name: str, call: Call, made: Both) -> None:
        """See `ManagerSteps.note_cache_pages`."""
        super().note_cache_pages(name, call, made)
        case, count = self.cases[name], int(call.arguments["num_computed_tokens"])
        case.published = max(case.published, min(count, case.request.num_tokens))

    def note_evict_pages(self, name: str, call: Call, made: Both) -> None:
        """Notes that pages are found no more."""
        del name, made
        self.hidden |= set(call.arguments["page_ids"])
        self.kept -= self.hidden

    def note_reset_prefix_cache(self, name: str, call: Call, made: Both) -> None:
        """Notes that nothing is found, if nothing was held."""
        del name, call
        if made.spec:
            self.kept.clear()

    def note_free(self, name: str, call: Call, freed: Both) -> None:
        """See `Admission.note_free`; and what it leaves to be found: pages of groups that keep all of a prefix."""
        case, written = self.cases[name], call.arguments.get("num_written")
        if case.live and not case.void:  # drafts may have been accepted
            self.write(name, case.given if written is None else min(int(written), case.given), self.was.held)
        if written is not None:
            self.kept.clear()
        elif self.caching and case.live and all(group.kind in ("full", "mla") for group in self.world.groups):
            for group, pages in zip(self.world.groups, self.was.held, strict=True):
                self.kept |= set(pages[: case.published // group.page_size]) - self.hidden
        super().note_free(name, call, freed)

    # -- What requests do ----------------------------------------------------------------------------------

    def hits_of(self, name: str, tokens: int) -> dict[str, Any]:
        """See `ManagerMachine.hits_of`: all of a hit, where the backend lets nobody make lists of pages."""
        if not self.backend.names.offers("CachePages"):
            found = self.cases[name].found
            tokens = found.spec[1] if found is not None else tokens
        return super().hits_of(name, tokens)

    def hit_badly(self, data: Drawing) -> None:
        """See `ManagerFaults.hit_badly`: by a waiting request, where the backend's pages are known."""
        waiting = self.names_of(live=False)
        if waiting and self.backend.pages and self.backend.names.offers("CachePages"):
            self.spoil_hit(data, data.one_of(waiting))

    def impossible_counts(self, name: str) -> list[int]:
        """See `Admission.impossible_counts`: without slots nothing need be known of what was said."""
        case, counts = self.cases[name], super().impossible_counts(name)
        said = range(case.computed, case.least) if not self.world.gives_back else ()
        return [count for count in counts if count not in said]

    def sought(self) -> list[str]:
        """See `ManagerSteps.sought`: what a look-up of a live request finds is policy."""
        return self.names_of(live=False)

    def hit_again(self, name: str) -> None:
        """See `ManagerSteps.hit_again`: every look-up is judged by that."""
        self.look_up(name)

    def free_request(self, name: str, written: int | None = None) -> None:
        """See `Admission.free_request`: requests whose pages were withdrawn go, too, as in an engine (MAN-4)."""
        case, held = self.cases[name], self.held(name)
        written = None if written is None else max(written, case.least)
        given = {} if written is None else {"num_written": written}
        freed = self.call_manager("free", request=Ref(name), **given)
        if written is None or freed.refused:
            return
        first = max(case.hits, written)
        lost = {
            page
            for group, pages in zip(self.world.groups, held, strict=True)
            for page in pages[first // group.page_size :]
        }
        for other in freed.spec:
            places = [
                place * group.page_size
                for group, pages in zip(self.world.groups, self.held(other), strict=True)
                for place, page in enumerate(pages)
                if page in lost
            ]
            if self.cases[other].live:
                self.free_request(other, min(places, default=0))

    def finish(self, name: str) -> None:
        """A request ends, if it is live."""
        if self.cases[name].live:
            self.free_request(name)

    def free_a_namesake(self, name: str) -> None:
        """See `Admission.free_a_namesake`; no engine does this to itself."""
        if self.session.gives_bad_input:
            super().free_a_namesake(name)

    def reset(self) -> None:
        """See `ManagerSteps.reset`; behind it nothing is found."""
        if not self.offers("manager", "reset_prefix_cache"):
            raise Nothing
        if self.call_manager("reset_prefix_cache").spec:
            for name in self.names_of(live=False):
                self.look_up(name)


def _number(value: Any) -> int:
    """A number of tokens; -1 for what is none."""
    return int(value) if isinstance(value, int | np.integer) and type(value) is not bool else -1
