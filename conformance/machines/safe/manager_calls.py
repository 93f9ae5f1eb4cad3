"""The calls on a manager at level safe, each judged by the model: a method for each method of the manager."""

from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from kvproof.spec.declarations import EngineRequestStatus

from ...backends.loading import takes_parameter
from ...calls.contrast import shown
from ...calls.datum import Call, GoneError, Prompt, Ref, said_of
from ...calls.deviation import Outcome
from ...calls.interfaces import REQUEST
from ...calls.method import Method
from ..base import Both, Nothing
from ..draws import Drawing
from ..manager_base import MANAGER_REF
from ..manager_blame import Case
from . import showing
from .demand import Asked, Demand, demand
from .hits import Hits, Standing
from .part_hits import Sources
from .showing import Lists

__all__ = ["ManagerCalls"]

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

_WHY = {
    "MAN-2": "those pages do not hold the request's prefix, or the tokens are too many",
    "MAN-3": "the request has fewer slots",
    "MAN-6": "another object has this id, and is live",
    "MAN-8": "these tokens can't be computed: they were never given slots, or more were computed before",
}
"""What is wrong with a call, by the clause that refuses it; of R1 it is an argument."""


class ManagerCalls(Hits):
    """Each is made on the backend, and judged by what the model knows. A look-up's result is kept as that reads it."""

    is_exact = False

    # -- Making ---------------------------------------------------------------------------------------

    def make_call(self, call: Call) -> Both:
        """See `Calling.make_call`: a call is judged by the method that is called like it.

        One that was drawn with a fault must be refused. It is not made where nobody looks at that, as nothing could be
        told after it, nor where, being made again, it has no fault any more.
        """
        table, row = self.row_of_call(call)
        if table is REQUEST:
            return self.change(call, row)
        if not call.refused:
            judged: Both = getattr(self, f"judge_{call.method}")(call)
            return judged
        clause = self.fault_in(call)
        if clause and self.session.refuses(clause):
            said = self.said_before(call)
            self.refuse(call, clause, _WHY.get(clause, f"{call.fault or 'an argument'} is wrong"))
            self.say_again(said)
        return Both(refused=True)

    def call_badly(self, call: Call) -> None:
        """See `ManagerFaults.call_badly`: any exception refuses it."""
        self.make_call(replace(call, refused=True))

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

    def fault_in(self, call: Call) -> str:
        """The clause by which a call that was drawn with a fault must be refused; "" if it has none by now."""
        if call.fault or call.target is None:
            return "R1"
        request = call.arguments["request"]
        if isinstance(request, Prompt):
            return "MAN-6" if request.request_id in self.names_of(live=True) else ""
        case = self.cases[self.name_in(call)]
        if call.method == "cache_pages":
            return "" if case.live and call.arguments["num_computed_tokens"] <= case.given else "MAN-3"
        computed = dict(said_of(request))["num_computed_tokens"]
        is_number = isinstance(computed, int | np.integer) and type(computed) is not bool
        if not is_number or not self.least_computed(case) <= computed <= (case.slots if case.live else 0):
            return "MAN-8"
        asked = self.asked(call)
        if asked.promised > self.max_model_len:
            return "MAN-2"
        beyond = any(map(any, asked.hits)) and asked.found >= min(case.request.num_tokens, self.max_model_len)
        return "" if beyond or not asked.found or not self.flaw_in_hit(case, asked.hits, asked.found) else "MAN-2"

    def least_computed(self, case: Case) -> int:
        """Below this the computed tokens of a request can't be said to be."""
        return max(case.least, case.given if self.world.has_states else 0) if case.live else 0

    # -- What must be refused ---------------------------------------------------------------------------

    def can_spoil(self, row: Method, argument: str) -> bool:
        """See `Calling.can_spoil`: of what managers of any design refuse."""
        return argument in _REFUSED.get(row.name, ()) and super().can_spoil(row, argument)

    def show(self, ref: Ref) -> str:
        """See `Calling.show`: the side of the specification has nothing."""
        if not isinstance(ref.of, int):
            return str(ref.path[-1] if ref.of == "pages" else ref)
        found = self.backend.thing(ref)
        return str(showing.ids_of([found])[0]) if ".pages" in ref.path else f"<pages {showing.ids_of(found)}>"

    def hit_badly(self, data: Drawing) -> None:
        """See `ManagerFaults.hit_badly`: by a waiting request, where the backend's pages are known."""
        waiting = self.names_of(live=False)
        if waiting and self.backend.pages and self.backend.names.offers("CachePages"):
            self.spoil_hit(data, data.one_of(waiting))

    def lists_found(self, found: Both) -> list[list[Any]]:
        """See `ManagerFaults.lists_found`."""
        return [list(group) for group in found.spec[0]]

    # -- Slots ------------------------------------------------------------------------------------------

    def asked(self, call: Call) -> Asked:
        """What a call asks for."""
        given, name = call.arguments, self.name_in(call)
        computed = int(dict(said_of(given["request"]))["num_computed_tokens"])
        found = int(given.get("num_new_computed_tokens", 0))
        promised = computed + found + int(given["num_new_tokens"])
        slots = min(promised + self.lookahead_of(call), self.max_model_len)
        return Asked(name, self.hits_in(call), computed, found, promised, slots)

    def judge_allocate_slots(self, call: Call) -> Both:
        """What is not wrong is answered, by pages where there is room for them."""
        asked = self.asked(call)
        name, case = asked.name, self.cases[asked.name]
        least = max(self.least_computed(case), self.reached.get(name, 0))
        may_compute = least <= asked.computed <= case.slots if case.live else not asked.computed
        if case.void or not may_compute or asked.promised <= asked.start or (case.live and asked.found):
            raise self.left_out()  # that is bad input
        fits = asked.promised <= self.max_model_len
        standing = self.standing(case, asked.hits, asked.found) if fits else "wrong"
        if standing == "wrong" and not self.session.gives_bad_input:
            raise self.left_out()
        wanted = demand(self.world.groups, self.lists, asked)
        sources = self.sources(case, asked.found) if self.amid and standing != "wrong" else Sources()
        answer = self.try_out(call, "MAN-2", lambda pages: None if pages is None else showing.ids_of(pages))
        self.compared("MAN-2")
        self.judge_answer(answer, standing, wanted, sources)
        if answer.error is not None:
            self.unchanged("R1", "a refused call changes nothing")
            return Both(refused=True)
        if answer.value is None:
            self.judge_none(name, wanted, asked.computed)
        else:
            if case.live:
                self.write(name, asked.computed)  # drafts were accepted, or what was delayed has come
            self.grant_pages(asked, answer.value, wanted)
            if self.amid:
                self.judge_sources(sources)
                self.judge_copies(name, answer.value, asked.found)
            self.write_granted(asked, bool(call.arguments.get("delay_cache_pages")))
            self.settle("MAN-2")
            self.judge_new(name, answer.value)
            if not self.amid:
                self.judge_copies(name, answer.value, 0)
        if answer.value is not None or self.world.gives_back:
            case.told = asked.computed  # without slots nothing changed, so that nothing need be known of it
        return Both(answer.value, answer.value)

    def judge_answer(self, answer: Outcome, standing: Standing, wanted: Demand, sources: Sources) -> None:
        """Whether the call was to be refused, to be answered by None, or by pages."""
        room = f"{wanted.new} new pages and {wanted.used_up} hits that nobody holds, {self.num_free} free"
        room += f" and {wanted.released} given back" if wanted.released else ""
        room += f" and {sources.least} to {sources.most} to copy from" if sources.most else ""
        given = answer.value is not None
        fits = wanted.net + (sources.least if given else sources.most) <= self.num_free
        if answer.error is not None:
            if standing == "right":
                self.differ("MAN-2", "an answer: nothing is wrong with the call", str(answer), answer.error)
        elif standing == "wrong" and answer.value is not None:
            why = "the hits are not the request's prefix, or the tokens are too many"
            self.differ("MAN-2", f"a refusal: {why}", shown(answer.value))
        elif fits != given and standing == "right":
            self.differ("MAN-2", f"{'pages' if fits else 'None'}: {room}", shown(answer.value))

    def judge_none(self, name: str, wanted: Demand, computed: int) -> None:
        """Without slots nothing changes, but for the pages that are given back (MAN-2).

        What the request had computed before may be published: when that is done is policy, and its pages stay its own.
        """
        if self.cases[name].live:
            self.write(name, computed)  # the drafts that were accepted are, with new slots or without
            before, self.reached[name] = self.lists, computed
            self.lists = before | {name: wanted.kept}
        was: Any = self.known.get("cached pages", [])
        expected = dict(self.lists)
        self.settle("MAN-2")
        if self.lists != expected:
            self.differ("MAN-2", f"None changes no page list: {expected}", f"{self.lists}")
        now: Any = self.known.get("cached pages", [])
        published = set(now) - {page for pages in self.held(name) for page in pages}  # what it had computed, at last
        kept = published <= set(was) and (bool(wanted.released) or set(was) <= set(now))
        self.hold("MAN-2", kept, f"None leaves the cached pages {was} as they are, but for those of {name}", f"{now}")

    def grant_pages(self, asked: Asked, given: Lists, wanted: Demand) -> None:
        """Notes that a request was given pages; they are new, and as many as it asked for (MAN-2, R2).

        Args:
            asked: what it asked for.
            given: the pages that it was given, null pages before that of a state.
            wanted: what that takes.
        """
        name, case = asked.name, self.cases[asked.name]
        short = [length - len(kept) for length, kept in zip(wanted.lengths, wanted.kept, strict=True)]
        if list(map(len, given)) != short:
            self.differ("MAN-2", f"{short} new pages, group by group", f"{given}")
        others = {page for other, lists in self.lists.items() if other != name for pages in lists for page in pages}
        taken = [page for pages in wanted.kept for page in pages if page]
        for number, (kept, pages) in enumerate(zip(wanted.kept, given, strict=True)):
            for place, page in enumerate(pages, len(kept)):
                if not 0 <= page < self.world.num_pages:
                    self.differ("POOL-1", f"pages of 1 to {self.world.num_pages - 1}", f"{given}")
                own = page in others and self.holds(page, case, number, place)
                if page and (page in taken or (page in others and not own)):
                    if case.live and self.was_swapped(name, page, wanted.kept):
                        why = f"page {page} stays in the list of {name}, {wanted.kept}"
                        self.differ("MAN-2", why, f"another took its place, and it is handed out again: {given}")
                    self.differ("R2", "pages that nobody holds", f"{given}, page {page} of which is held")
                if page:
                    taken.append(page)
                    if not own:
                        self.fresh.add(page)
        if self.fresh:
            self.kept.clear()
            self.hidden -= self.fresh
        if not case.live:
            case.request.status = EngineRequestStatus.RUNNING
            case.given = case.slots = case.published = 0
            case.hits = case.written = case.computed = asked.found
            case.void, case.live = False, True
            self.newest = name
        case.given = max(case.given, asked.promised)
        case.slots = max(case.slots, asked.slots)
        self.reached[name] = asked.start
        self.lists = self.lists | {name: [kept + pages for kept, pages in zip(wanted.kept, given, strict=True)]}

    def was_swapped(self, name: str, page: int, kept: Lists) -> bool:
        """Whether another page stands in a live request's list where a page stood: nobody holds that one twice then."""
        now: Lists = self.see("pages of requests", "MAN-2")[name]
        places = [(n, place) for n, pages in enumerate(kept) for place, stood in enumerate(pages) if stood == page]
        return bool(places) and all(now[n][place] not in (0, page) for n, place in places)

    def write_granted(self, asked: Asked, delayed: bool) -> None:
        """Notes what the pages hold once a request's next step is dispatched; before, that the step reads its own.

        Args:
            asked: what it asked for.
            delayed: whether what the new tokens need comes later.
        """
        name, case = asked.name, self.cases[asked.name]
        for page in self.fresh:
            self.ghost.contents.pop(page, None)
            self.writers[page] = case
        wrong = self.ghost.unread(self.lists[name], asked.start, case.request)
        if wrong:
            self.differ("R2", f"{name} reads its own pages", f"others at (group, place) {wrong} of {self.lists[name]}")
        if not delayed:
            self.write(name, asked.promised)
            case.published = max(case.published, min(asked.promised, case.request.num_tokens))
        case.computed = asked.start

    def judge_new(self, name: str, given: Lists) -> None:
        """The pages returned are those behind the request's lists (MAN-2)."""
        behind = [held[len(held) - len(pages) :] for held, pages in zip(self.lists[name], given, strict=True)]
        if behind != given:
            self.differ("MAN-2", f"{given} at the ends of the lists of {name}", f"{self.lists[name]}")

    def judge_copies(self, name: str, given: Lists, found: int) -> None:
        """A new state begins as a copy of another, the page in which a hit ends as one of its tokens (MAN-13, MAN-17).

        Args:
            name: the request.
            given: the pages that it was given.
            found: the tokens that it hit in this call, where these may end amid a page.
        """
        reached = self.reached[name]
        copies = [
            (number, held[group.first_place(reached)], pages[-1])
            for number, (group, held, pages) in enumerate(zip(self.world.groups, self.lists[name], given, strict=True))
            if group.kind == "aligned" and pages and reached
        ]
        copied = bool(self.amid) or any(group.kind == "aligned" for group in self.world.groups)
        if copied and self.offers("manager", "take_page_copies"):
            call = self.call_of("take_page_copies", MANAGER_REF)
            taken = self.ask(call, "MAN-13", lambda noted: [tuple(map(int, copy)) for copy in noted])
            if self.amid:
                taken = self.judge_part_copies(name, given, found, taken)
            if copies or taken or not self.amid:
                self.hold("MAN-13", taken == copies, f"copies {copies}, each (group, source, destination)", f"{taken}")

    def judge_cache_pages(self, call: Call) -> Both:
        """What was delayed has come."""
        name, count = self.name_in(call), int(call.arguments["num_computed_tokens"])
        case = self.cases[name]
        if not case.live or case.void or count > case.given:
            raise self.left_out()
        self.write(name, count)
        self.ask(call, "MAN-3")
        case.published = max(case.published, min(count, case.request.num_tokens))
        self.settle("MAN-3")
        return Both()

    def judge_get_num_common_prefix_pages(self, call: Call) -> Both:
        """The pages that all running requests share, told the right number of them or a wrong one."""
        running, counts = self.running(), [0 for _ in self.world.groups]
        if self.name_in(call) not in running:
            raise self.left_out()
        for number, group in enumerate(self.world.groups):
            for pages in zip(*(self.lists[name][number] for name in running), strict=False):
                is_shared = len(set(pages)) == 1 and call.arguments["num_scheduled_requests"] == len(running)
                if group.kind not in ("full", "mla") or not is_shared:
                    break
                counts[number] += 1
        answer = self.ask(call, "MAN-10", lambda found: list(map(int, found)))
        self.hold("MAN-10", answer == counts, f"{counts}, as {self.lists} are held", f"{answer}")
        return Both()

    # -- Giving back ------------------------------------------------------------------------------------

    def free_takes_written(self) -> bool:
        """Whether the backend's manager can be told what was written."""
        return takes_parameter(self.backend.manager.free, "num_written")

    def free_request(self, name: str, written: int | None = None) -> None:
        """See `Admission.free_request`: requests whose pages were withdrawn go, too, as in an engine (MAN-4)."""
        written = None if written is None else max(written, self.reached.get(name, 0))
        given = {} if written is None else {"num_written": written}
        void = self.call_manager("free", request=Ref(name), **given).spec
        for other, end in void.items():
            if self.cases[other].live:
                self.free_request(other, end)

    def judge_free(self, call: Call) -> Both:
        """The pages of a live request are free, and only its own; what it did not write is withdrawn (MAN-4, MAN-5).

        Returns:
            The requests that hold what was withdrawn, each with the tokens of it that are left.
        """
        name, written = self.name_in(call), call.arguments.get("num_written")
        if not name:
            self.ask(call, "MAN-5")
            self.unchanged("MAN-5", "another object with that id is not that request")
            return Both({})
        case = self.cases[name]
        if written is not None and written < self.reached.get(name, 0):
            raise self.left_out()
        clause = "MAN-5" if written is None else "MAN-4"
        withdrawn = self.withdrawn(name, written) if case.live else {}
        void = {
            other: min(place * group.page_size for group, place in self.where(other, withdrawn))
            for other in self.names_of(live=True)
            if other != name and self.where(other, withdrawn)
        }
        if case.live and not case.void:
            self.write(name, case.given if written is None else min(written, case.given))
        if written is not None:
            self.kept.clear()
        elif case.live:
            self.keep(name)
        was_live, case.live = case.live, False
        label = self.session.noticed(clause) if was_live else clause
        answer = self.ask(call, label, lambda held: sorted(map(str, held)))
        case.request.num_computed_tokens = 0
        self.lists = {other: lists for other, lists in self.lists.items() if other != name}
        for page in withdrawn:
            self.ghost.contents.pop(page, None)
        for other in void:
            self.cases[other].void = True
        if was_live:
            self.settle(clause)
        else:
            self.unchanged(clause, "a request that is not live is passed over")
        if written is not None:
            holders = f"the requests that hold any of {sorted(withdrawn)}: {sorted(void)}"
            self.hold("MAN-4", answer == sorted(void), holders, f"{answer}")
        return Both(void)

    def finish(self, name: str) -> None:
        """A request ends, if it is live."""
        if self.cases[name].live:
            self.free_request(name)

    def free_a_namesake(self, name: str) -> None:
        """See `Admission.free_a_namesake`; no engine does this to itself."""
        if self.session.gives_bad_input:
            super().free_a_namesake(name)

    def judge_free_page_hashes(self, call: Call) -> Both:
        """Dropped keys change nothing else."""
        self.ask(call, "MAN-6")
        self.unchanged("MAN-6", "dropped keys change nothing else")
        return Both()

    # -- Forgetting -------------------------------------------------------------------------------------

    def can_evict(self) -> bool:
        """See `ManagerSteps.can_evict`: of a backend whose pages are known."""
        return bool(self.backend.pages) and super().can_evict()

    def judge_evict_pages(self, call: Call) -> Both:
        """These pages are found no more, and nothing else changes."""
        before, pages = self.cached_pages(), call.arguments["page_ids"]
        self.ask(call, "POOL-11")
        self.hidden |= set(pages)
        self.kept -= self.hidden
        self.settle("POOL-11")
        right = [page for page in before if page not in pages]
        if self.resident is not None:
            self.hold("POOL-11", self.resident == right, f"cached pages {right}", f"{self.resident}")
        return Both()

    def reset(self) -> None:
        """See `ManagerSteps.reset`; behind it nothing is found."""
        if not self.offers("manager", "reset_prefix_cache"):
            raise Nothing
        if self.call_manager("reset_prefix_cache").spec:
            for name in self.names_of(live=False):
                self.look_up(name)

    def judge_reset_prefix_cache(self, call: Call) -> Both:
        """Everything is forgotten, if no page is held."""
        idle = self.num_free == self.world.num_pages - 1
        done = self.ask(call, "POOL-9", bool)
        self.hold("POOL-9", done == idle, f"{idle}, as {self.lists} are held", f"{done}")
        if not done:
            self.unchanged("POOL-9", "a reset that did nothing")
            return Both(False)
        self.ghost.contents.clear()
        self.kept.clear()
        self.settle("POOL-9")
        if self.resident is not None:
            self.hold("POOL-9", not self.resident, "no cached page", f"cached pages {self.resident}")
        return Both(True)

    # -- What was withdrawn -----------------------------------------------------------------------------

    def withdrawn(self, name: str, written: int | None) -> dict[int, int]:
        """The pages that a request wrote or was to write, and that do not lie wholly below a number of tokens."""
        case = self.cases[name]
        if written is None or not self.caching:
            return {}
        first = max(case.hits, written)
        return {
            page: place
            for group, pages in zip(self.world.groups, self.lists[name], strict=True)
            for place, page in enumerate(pages)
            if page and place >= first // group.page_size and self.writers.get(page) is case
        }

    def where(self, name: str, pages: dict[int, int]) -> list[tuple[Any, int]]:
        """Where a request holds any of some pages: the group and the place."""
        return [
            (group, place)
            for group, held in zip(self.world.groups, self.lists[name], strict=True)
            for place, page in enumerate(held)
            if page in pages
        ]
