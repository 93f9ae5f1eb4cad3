"""Look-ups at level safe, and the pages that are handed back as hits: what is right is told from what pages hold."""

from typing import Any, Literal

from ...calls.datum import Call, Ref
from ..base import Both
from ..manager_blame import Case
from . import showing
from .part_hits import PartHits
from .showing import Lists

__all__ = ["Hits", "Standing"]

Standing = Literal["right", "wrong", "either"]
"""Whether a call must be answered, must be refused, or may be both."""


def _hit(found: Any) -> tuple[Lists, int]:
    pages, length = found
    return showing.ids_of(pages), int(length)


class Hits(PartHits):
    """What requests find: their own prefix, and the longest that is resident."""

    def look_up(self, name: str) -> Both:
        """See `ManagerMachine.look_up`; where a hit may have ended is policy."""
        return self.call_manager("get_computed_pages", request=Ref(name))

    def judge_get_computed_pages(self, call: Call) -> Both:
        """Nothing changes by it, and what is found is the request's own and the longest that is resident."""
        case = self.cases[self.name_in(call)]
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

    def flaw_in_hit(self, case: Case, pages: Lists, length: int) -> str:
        """The clause by which pages are no hit of a request; "" if they are one."""
        if len(pages) != len(self.world.groups):
            return "MAN-2"
        return self.flaw_in_content(case, pages) or self.flaw_in_shape(case, pages, length)

    def standing(self, case: Case, pages: Lists, length: int) -> Standing:
        """Whether pages may be handed back as hits: they must if they hold the request's prefix and are resident."""
        if not length and not any(map(any, pages)):
            return "right"
        if self.flaw_in_hit(case, pages, length):
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

    def sought(self) -> list[str]:
        """See `ManagerSteps.sought`: what a look-up of a live request finds is policy."""
        return self.names_of(live=False)

    def hit_again(self, name: str) -> None:
        """See `ManagerSteps.hit_again`: every look-up is judged by that."""
        self.look_up(name)

    def hits_in(self, call: Call) -> Lists:
        """The pages that a call hands over as hits; -1 stands for a page of another manager."""
        given = call.arguments.get("new_computed_pages")
        if given is None:
            return [[] for _ in self.world.groups]
        if isinstance(given, Ref):
            return showing.ids_of(self.backend.thing(given))
        return [
            showing.ids_of([self.backend.thing(group)])[0]
            if isinstance(group, Ref)
            else [int(page.path[0]) if isinstance(page, Ref) else -1 for page in group]
            for group in given.groups
        ]
