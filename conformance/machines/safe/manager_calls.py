"""The calls on a manager at level safe: look-ups, slots, and giving back, each judged by the model."""

from typing import Any, Literal

from kvproof.spec.declarations import EngineRequestStatus

from ...backends.loading import takes_parameter
from ...calls.contrast import shown
from ...calls.datum import Call, Ref, Saying
from ...calls.deviation import Outcome
from ...calls.method import Method
from ..base import Both, Nothing
from ..draws import Drawing
from ..manager_base import MANAGER_REF, POOL_REF
from ..manager_blame import Case
from ..properties import operation
from . import showing
from .demand import Demand, demand
from .manager_model import Lists
from .part_hits import PartHits, Sources

__all__ = ["ManagerCalls"]

Standing = Literal["right", "wrong", "either"]
"""Whether a call must be answered, must be refused, or may be both."""

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


def _hit(found: Any) -> tuple[Lists, int]:
    pages, length = found
    return showing.ids_of(pages), int(length)


class ManagerCalls(PartHits):
    """Each is made on the backend, and judged by what the model knows. A look-up's result is kept as that reads it."""

    is_exact = False

    # -- Hits -------------------------------------------------------------------------------------------

    @operation
    def look_up(self, name: str) -> Both:
        """Looks a request up; nothing changes by it, and what is found is its own and the longest that is resident."""
        case, call = self.cases[name], self.call_of("get_computed_pages", MANAGER_REF, request=Ref(name))
        pages, length = self.ask(call, "MAN-1", _hit)
        self.unchanged("MAN-1", "a look-up changes nothing")
        self.judge_hit(case, pages, length)
        case.found, case.found_by = Both((pages, length)), call.number
        return case.found

    def judge_hit(self, case: Case, pages: Lists, length: int) -> None:
        """Holds a hit against what the pages hold and which of them are resident."""
        said = f"{pages}, {length} tokens"
        if length == 0:
            self.hold("MAN-1", not any(map(any, pages)), "no pages with a hit of 0 tokens", said)
        else:
            self.session.hits += 1
            for label in ("R2", "HASH-2", *(("MAN-6",) if case.earlier else ())):
                self.compared(label)
            wrong = self.flaw_in_content(case, pages)
            if wrong:
                self.differ(wrong, "pages that hold the request's own prefix", said)
            wrong = self.flaw_in_shape(case, pages, length)
            if wrong:
                where = "pages where a group needs one for a hit of that length, null pages elsewhere"
                self.differ(wrong, f"{where}, not null pages alone, and at most all but the last token", said)
        longest = self.longest(case)
        eagle = self.own("MAN-9") if self.world.eagle_groups else ()
        amid = self.amid if longest is not None and longest % self.unit else ()
        labels = (*amid, *eagle, *self.of_states, *self.own("MAN-7"), "MAN-1")
        for label in labels:
            self.compared(label)
        if self.amid:
            self.compared("MAN-17")
            if length and not self.is_served(case, length):
                label = "MAN-17" if self.ends_amid(length) or self.world.eagle_groups else "MAN-1"
                self.differ(label, "a length up to which every group holds the request's tokens", said)
        if longest is not None and (length < longest or (length > longest and not self.amid)):
            label = labels[0] if length < longest else "MAN-1"
            more = " or more" if self.amid else ""
            self.hold(label, False, f"{longest} tokens{more}, the longest prefix that is resident", said)
        self.judge_again(case, length, said)

    def judge_again(self, case: Case, length: int, said: str) -> None:
        """Holds a hit against what was served just before, whether or not anything shows what is resident (HIT-1)."""
        if self.caching and self.kept and case.request.sampling_params.prompt_logprobs is None:
            keys = case.request.extra_keys
            least = self.ghost.longest(self.world, self.kept, case.tokens, keys, self.match_unit)
            if least:
                expected = f"{least} tokens or more: pages {sorted(self.kept)} were published, and none was taken since"
                self.hold("HIT-1", length >= least, expected, said)

    def keep(self, name: str) -> None:
        """Notes what a request that is freed now leaves to be found: pages of groups that keep all of a prefix."""
        case = self.cases[name]
        whole = [group for group in self.world.groups if group.kind in ("full", "mla")]
        if self.caching and not case.void and len(whole) == len(self.world.groups):
            for group, pages in zip(self.world.groups, self.held(name), strict=True):
                self.kept |= set(pages[: case.published // group.page_size]) - self.hidden

    def longest(self, case: Case) -> int | None:
        """How many tokens a request must hit; None where nothing shows what is resident.

        With a unit it may hit more: how much is found of a page that was left unfilled is policy.
        """
        sampling = case.request.sampling_params
        if not self.caching or sampling.prompt_logprobs is not None:
            return 0
        resident = self.resident
        if resident is None:
            return None
        full = [page for page in resident if page not in self.unfilled]
        return self.ghost.longest(self.world, full, case.tokens, case.request.extra_keys, self.match_unit)

    def standing(self, case: Case, pages: Lists, length: int) -> Standing:
        """Whether pages may be handed back as hits: they must if they hold the request's prefix and are resident."""
        if not length:
            return "right"
        if self.flaw_in_content(case, pages) or self.flaw_in_shape(case, pages, length):
            return "wrong"
        sources = self.sources(case, length)
        if not sources.are_there:
            return "wrong"
        resident = self.resident
        shown_all = resident is not None and {page for held in pages for page in held if page} <= set(resident)
        return "right" if shown_all and sources.are_certain else "either"

    def hits_of(self, name: str, tokens: int) -> dict[str, Any]:
        """See `ManagerMachine.hits_of`: all of a hit, where the backend lets nobody make lists of pages."""
        if not self.backend.names.offers("CachePages"):
            found = self.cases[name].found
            tokens = found.spec[1] if found is not None else tokens
        return super().hits_of(name, tokens)

    def lists_of(self, name: str, tokens: int) -> Lists:
        """The pages of the first tokens of what a request's last look-up found."""
        found = self.cases[name].found
        lists, length = found.spec if found is not None else ([[] for _ in self.world.groups], tokens)
        ends = [tokens // group.page_size if tokens < length else None for group in self.world.groups]
        return [held[:end] for held, end in zip(lists, ends, strict=True)]

    def sought(self) -> list[str]:
        """See `ManagerSteps.sought`: what a look-up of a live request finds is policy."""
        return self.names_of(live=False)

    def hit_again(self, name: str) -> None:
        """See `ManagerSteps.hit_again`: every look-up is judged by that."""
        self.look_up(name)

    # -- What must be refused ---------------------------------------------------------------------------

    def can_spoil(self, row: Method, argument: str) -> bool:
        """See `Calling.can_spoil`: of what managers of any design refuse."""
        return argument in _REFUSED.get(row.name, ()) and super().can_spoil(row, argument)

    def call_badly(self, call: Call, clause: str, why: str) -> None:
        """See `ManagerFaults.call_badly`: any exception refuses it."""
        said = self.said_before(call)
        self.refuse(call, clause, why)
        self.say_again(said)

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

    def hit_with(self, name: str, pages: list[list[Any]], length: int) -> None:
        """See `ManagerFaults.hit_with`: but for pages that by chance are the request's own."""
        case = self.cases[name]
        whole = [len(held) for held in pages] == [length // group.page_size for group in self.world.groups]
        own = whole and not (self.flaw_in_content(case, pages) or self.flaw_in_shape(case, pages, length))
        if not own and length < min(case.request.num_tokens, self.max_model_len):
            super().hit_with(name, pages, length)

    # -- Requests ---------------------------------------------------------------------------------------

    @operation
    def bring(self, name: str, *given: Any) -> None:
        """See `Admission.bring`."""
        super().bring(name, *given)

    @operation
    def set_status(self, name: str, status: EngineRequestStatus) -> None:
        """See `ManagerSteps.set_status`."""
        super().set_status(name, status)

    @operation
    def admit_with(self, name: str, new: int, hits: int | None = None, **options: Any) -> None:
        """See `Admission.admit_with`."""
        super().admit_with(name, new, hits, **options)

    @operation
    def continue_with(self, name: str, computed: int, new: int, **options: Any) -> None:
        """See `Admission.continue_with`."""
        super().continue_with(name, computed, new, **options)

    @operation
    def grow(self, name: str, tokens: list[int]) -> None:
        """See `Admission.grow`."""
        super().grow(name, tokens)

    # -- Slots ------------------------------------------------------------------------------------------

    def allocate(self, name: str, new: Any, hits: int | None = None, **options: Any) -> Both:
        """Allocates slots: what is not wrong is answered, by pages where there is room for them.

        Args:
            name: the request's id.
            new: tokens to be computed.
            hits: how many tokens of what its last look-up found are handed back; None to hand nothing back.
            options: the other arguments, those left out that the backend's manager does not take.
        """
        case = self.cases[name]
        request = Saying(Ref(name), (("num_computed_tokens", case.request.num_computed_tokens),))
        given = {} if hits is None else self.hits_of(name, hits)
        given |= {option: value for option, value in options.items() if self.takes(option)}
        call = self.call_of("allocate_slots", MANAGER_REF, request=request, num_new_tokens=new, **given)
        tokens = int(given.get("num_new_computed_tokens", 0))
        lists = self.lists_of(name, tokens) if "new_computed_pages" in given else [[] for _ in self.world.groups]
        computed = int(case.request.num_computed_tokens)
        promised = computed + tokens + int(new)
        least = max(case.least, self.reached.get(name, 0), case.given if self.world.has_states else 0)
        if case.live and not least <= computed <= case.slots:
            raise Nothing  # made again, where that is bad input
        slots = min(promised + self.lookahead_of(call), self.max_model_len)
        standing = self.standing(case, lists, tokens) if promised <= self.max_model_len else "wrong"
        if standing == "wrong" and not self.session.gives_bad_input:
            raise Nothing
        wanted = demand(self.world.groups, self.lists, name, lists, computed, promised, slots)
        sources = self.sources(case, tokens) if self.amid and standing != "wrong" else Sources()
        answer = self.try_out(call, "MAN-2", lambda pages: None if pages is None else showing.ids_of(pages))
        self.compared("MAN-2")
        self.judge_answer(answer, standing, wanted, sources)
        if answer.error is not None:
            self.unchanged("R1", "a refused call changes nothing")
            return Both(refused=True)
        if answer.value is None:
            self.judge_none(name, wanted, computed)
        else:
            if case.live:
                self.write(name, computed)  # drafts were accepted, or what was delayed has come
            self.grant_pages(name, answer.value, wanted, (computed, tokens, promised, slots))
            if self.amid:
                self.judge_sources(sources)
                self.judge_copies(name, answer.value, tokens)
            self.write_granted(name, computed + tokens, promised, bool(given.get("delay_cache_pages")))
            self.settle("MAN-2")
            self.judge_new(name, answer.value)
            if not self.amid:
                self.judge_copies(name, answer.value, 0)
        if answer.value is not None or self.world.gives_back:
            case.told = computed  # without slots nothing changed, so that nothing need be known of it
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

    def grant_pages(self, name: str, given: Lists, wanted: Demand, counts: tuple[int, int, int, int]) -> None:
        """Notes that a request was given pages; they are new, and as many as it asked for (MAN-2, R2).

        Args:
            name: the request's id.
            given: the pages that it was given, null pages before that of a state.
            wanted: what it asked for.
            counts: computed tokens, those just found, these and the new ones, these and look-ahead.
        """
        computed, found, promised, slots = counts
        case = self.cases[name]
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
            case.hits = case.written = case.computed = found
            case.void, case.live = False, True
            self.newest = name
        case.given = max(case.given, promised)
        case.slots = max(case.slots, slots)
        self.reached[name] = computed + found
        self.lists = self.lists | {name: [kept + pages for kept, pages in zip(wanted.kept, given, strict=True)]}

    def was_swapped(self, name: str, page: int, kept: Lists) -> bool:
        """Whether another page stands in a live request's list where a page stood: nobody holds that one twice then."""
        now: Lists = self.see("pages of requests", "MAN-2")[name]
        places = [(n, place) for n, pages in enumerate(kept) for place, stood in enumerate(pages) if stood == page]
        return bool(places) and all(now[n][place] not in (0, page) for n, place in places)

    def write_granted(self, name: str, start: int, promised: int, delayed: bool) -> None:
        """Notes what the pages hold once a request's next step is dispatched; before, that the step reads its own.

        Args:
            name: the request's id.
            start: its computed tokens, hits included.
            promised: these and the new ones.
            delayed: whether what the new ones need comes later.
        """
        case = self.cases[name]
        for page in self.fresh:
            self.ghost.contents.pop(page, None)
            self.writers[page] = case
        wrong = self.ghost.unread(self.lists[name], start, case.request)
        if wrong:
            self.differ("R2", f"{name} reads its own pages", f"others at (group, place) {wrong} of {self.lists[name]}")
        if not delayed:
            self.write(name, promised)
            case.published = max(case.published, min(promised, case.request.num_tokens))
        case.computed = start

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

    @operation
    def publish(self, name: str, count: int) -> None:
        """See `ManagerSteps.publish`: what was delayed has come."""
        case = self.cases[name]
        if not case.live or count > case.given:
            raise Nothing
        self.write(name, count)
        self.ask(self.call_of("cache_pages", MANAGER_REF, request=Ref(name), num_computed_tokens=count), "MAN-3")
        case.published = max(case.published, min(count, case.request.num_tokens))
        self.settle("MAN-3")

    @operation
    def count_common(self, asked: str, count: int) -> None:
        """See `ManagerSteps.count_common`."""
        running, counts = self.running(), [0 for _ in self.world.groups]
        if asked not in running:
            raise Nothing
        for number, group in enumerate(self.world.groups):
            for pages in zip(*(self.lists[name][number] for name in running), strict=False):
                if group.kind not in ("full", "mla") or len(set(pages)) > 1 or count != len(running):
                    break
                counts[number] += 1
        given = {"request": Ref(asked), "num_scheduled_requests": count}
        call = self.call_of("get_num_common_prefix_pages", MANAGER_REF, **given)
        answer = self.ask(call, "MAN-10", lambda found: list(map(int, found)))
        self.hold("MAN-10", answer == counts, f"{counts}, as {self.lists} are held", f"{answer}")

    # -- Giving back ------------------------------------------------------------------------------------

    def free_takes_written(self) -> bool:
        """Whether the backend's manager can be told what was written."""
        return takes_parameter(self.backend.manager.free, "num_written")

    @operation
    def free_request(self, name: str, written: int | None = None) -> None:
        """Frees a request. Those whose pages were withdrawn with it are freed next, as an engine does (MAN-4).

        Args:
            name: the request's id.
            written: its tokens that are written; None: all.
        """
        case = self.cases[name]
        if written is not None:
            written = max(written, self.reached.get(name, 0))
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
        given = {} if written is None else {"num_written": written}
        call = self.call_of("free", MANAGER_REF, request=Ref(name), **given)
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
        for other, end in void.items():
            if self.cases[other].live:
                self.free_request(other, end)
                self.cases[other].request.status = EngineRequestStatus.PREEMPTED

    def finish(self, name: str) -> None:
        """A request ends, if it is live."""
        if self.cases[name].live:
            self.free_request(name)
            self.cases[name].request.status = EngineRequestStatus.FINISHED

    @operation
    def free_a_namesake(self, name: str) -> None:
        """See `Admission.free_a_namesake`; no engine does this to itself."""
        if not self.session.gives_bad_input:
            return
        self.ask(self.call_of("free", MANAGER_REF, request=self.namesake(name)), "MAN-5")
        self.unchanged("MAN-5", "another object with that id is not that request")

    @operation
    def drop_keys(self, name: str) -> None:
        """See `Admission.drop_keys`."""
        if not self.offers("manager", "free_page_hashes"):
            return
        self.ask(self.call_of("free_page_hashes", MANAGER_REF, request=Ref(name)), "MAN-6")
        self.unchanged("MAN-6", "dropped keys change nothing else")

    # -- Forgetting -------------------------------------------------------------------------------------

    def can_evict(self) -> bool:
        """See `ManagerSteps.can_evict`: of a backend whose pages are known."""
        return bool(self.backend.pages) and super().can_evict()

    @operation
    def evict(self, pages: list[int]) -> None:
        """See `ManagerSteps.evict`: nothing else changes."""
        before = self.cached_pages()
        self.ask(self.call_of("evict_pages", POOL_REF, page_ids=pages), "POOL-11")
        self.hidden |= set(pages)
        self.kept -= self.hidden
        self.settle("POOL-11")
        right = [page for page in before if page not in pages]
        if self.resident is not None:
            self.hold("POOL-11", self.resident == right, f"cached pages {right}", f"{self.resident}")

    @operation
    def reset(self) -> None:
        """See `ManagerSteps.reset`: everything is forgotten, if no page is held."""
        if not self.offers("manager", "reset_prefix_cache"):
            raise Nothing
        idle = self.num_free == self.world.num_pages - 1
        done = self.ask(self.call_of("reset_prefix_cache", MANAGER_REF), "POOL-9", bool)
        self.hold("POOL-9", done == idle, f"{idle}, as {self.lists} are held", f"{done}")
        if not done:
            self.unchanged("POOL-9", "a reset that did nothing")
            return
        self.ghost.contents.clear()
        self.kept.clear()
        self.settle("POOL-9")
        if self.resident is not None:
            self.hold("POOL-9", not self.resident, "no cached page", f"cached pages {self.resident}")
        for name in self.names_of(live=False):
            self.look_up(name)

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
