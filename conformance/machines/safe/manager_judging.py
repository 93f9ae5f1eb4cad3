"""What is wrong with a small manager at level safe: what the specification, which follows, does not find the same."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from ...backends.capabilities import ESSENTIALS
from ...calls.datum import Call, Pages, Ref
from ...calls.deviation import Outcome, attempt
from ...calls.interfaces import REQUEST
from ...calls.judging import Difference
from ...calls.logged import KeyNumbers, result
from ...calls.manager import MANAGER, PAGE_LISTS
from ...calls.method import Method, Table
from ..base import Charge, Field, Side, Undecided
from ..groups import GroupSteps
from ..manager_blame import Case
from . import showing
from .following import Following
from .showing import Lists

__all__ = ["SAFE_MANAGER", "SafeJudging"]

_IDS = frozenset({"hit", "groups", "ids", "copies"})
"""Kinds of results, by how a log writes them, that are compared by ids and not as objects of the backend's classes."""


def _by_ids(row: Method) -> Method:
    """A row whose result is compared by the ids of pages and requests."""
    kind = row.result.log

    def plain(value: Any, _: Any) -> Any:
        found = result(kind, value, KeyNumbers())
        return sorted(found) if kind == "ids" else found

    return replace(row, result=replace(row.result, plain=plain)) if kind in _IDS else row


SAFE_MANAGER = Table(MANAGER.name, MANAGER.owner, tuple(map(_by_ids, MANAGER)), MANAGER.inner)
"""What managers of every design are asked."""


class SafeJudging(Following, GroupSteps):
    """Compares a manager with the specification, which takes the same pages, and tells what no policy explains.

    Attributes:
        making: the call that is made now; None while the managers are built.
        asked: the call for slots that was made last, as the specification is asked.
        is_given: whether it was given slots.
        new: the pages that the last call handed out.
        copying: whether what it hit ends amid a page, and the copies are not taken yet: these tell from which pages.
        before: the pages that the backend showed to be cached before the last call; None where it does not show that.
        fewest: how many tokens the last look-up had to find, where it found fewer.
        kept: full pages of requests that were freed, published and written, no page being taken since (HIT-1).
    """

    shows_answers = True
    levels = frozenset({"safe"})
    tables: ClassVar[tuple[Table, ...]] = (SAFE_MANAGER, PAGE_LISTS, REQUEST)
    needs: ClassVar[tuple[str, ...]] = ESSENTIALS["CacheManager"]
    always = frozenset(
        {"R1", "R2", "POOL-1", "POOL-2", "POOL-3", "POOL-5", "POOL-7", "POOL-9", "POOL-10", "POOL-11", "HASH-2"}
        | {"HIT-1", *(f"MAN-{number}" for number in (1, 2, 3, 4, 5, 6, 8, 10))}
    )
    asked: Call

    def __init__(self) -> None:
        super().__init__()
        self.making: Call | None = None
        self.is_given = self.copying = False
        self.new: set[int] = set()
        self.before: list[int] | None = None
        self.kept: set[int] = set()
        self.fewest: int | None = None

    # -- What the backend shows ----------------------------------------------------------------------------

    def state_fields(self) -> list[Field]:
        """See `ManagerMachine.state_fields`: what the backend shows, which may have fewer pages cached."""
        also = {"hashed pages": ("MAN-4", "POOL-3"), "cached pages": ("MAN-4", "POOL-3")}
        shown = [
            replace(shows, blame=self.blame_cached, also=also[shows.name]) if shows.name in also else shows
            for shows in self.shown_fields()
        ]
        both = {"hashed pages", "cached pages"} <= {shows.name for shows in shown}
        labels = ("MAN-2", "R2", "POOL-1", *self.of_states, *self.own("MAN-8"))
        return [
            Field("pages of requests", "MAN-2", self.lists_of, blame=self.blame_pages, also=labels),
            *shown,
            *([Field("either hashed or cached", "POOL-7", _at_odds)] if both else []),
            *self.usage_fields(),
        ]

    def lists_of(self, side: Side) -> dict[str, Lists]:
        """The pages of the requests that are live, by the specification."""
        return {name: showing.ids_of(side.manager.get_page_ids(name)) for name in self.cases if any(self.held(name))}

    def charges_of(self, row: Method, call: Call) -> Mapping[str, str]:
        """See `Calling.charges_of`: of the state as a backend of any design shows it."""
        charges = dict(super().charges_of(row, call))
        label = row.label(self, call.arguments)
        cached = label if label in ("MAN-4", "POOL-9", "POOL-11") else "MAN-3"
        charges |= {"hashed pages": cached, "cached pages": cached, "number of free pages": label}
        return charges

    def compare_states(self, charge: Charge, fixed: bool = False) -> None:
        """See `Machine.compare_states`: and what takes no page makes the backend forget nothing."""
        if self.copying:
            return  # which pages it copies from its copies tell, and they are held until these are taken
        super().compare_states(charge, fixed)
        before, self.before = self.before, self.resident()
        label = "R1" if fixed else self.keeps_all()
        if label and before is not None and self.before is not None:
            call = self.making
            evicted = call.arguments["page_ids"] if call and call.method == "evict_pages" and not fixed else ()
            left = sorted({*before}.difference(evicted))
            self.compared(label)
            if not {*left} <= {*self.before} and label in self.session.clauses:
                self.differ(label, f"cached pages {left}, as no page was taken", f"cached pages {self.before}")

    def keeps_all(self) -> str:
        """The label of the last call, if nothing is forgotten by it."""
        call = self.making
        if call is None:
            return ""
        case = self.cases.get(self.name_in(call))
        match call.method:
            case "get_computed_pages" | "free_page_hashes" | "get_num_common_prefix_pages" | "evict_pages":
                return self.row_of_call(call)[1].clause
            case "allocate_slots" if not self.is_given and not self.was.released:
                return "MAN-2"
            case "free" if case is None or not case.live:
                return "MAN-5"
        return ""

    def blame_pages(self, expected: Any, observed: Any) -> str:
        """See `ManagerBlame.blame_pages`; a page that two requests hold, and should not, is R2."""
        label = super().blame_pages(expected, observed)
        if label:
            return label
        held = [{page for pages in lists for page in pages if page} for lists in observed.values()]
        if not all(0 <= page < self.world.num_pages for pages in held for page in pages):
            return "POOL-1"
        right = [{page for pages in lists for page in pages if page} for lists in expected.values()]
        counts, rightly = (Counter(page for pages in lists for page in pages) for lists in (held, right))
        return "R2" if any(count > max(rightly[page], 1) for page, count in counts.items()) else ""

    def blame_cached(self, expected: Any, observed: Any) -> str:
        """The clause of pages that are cached wrongly: they were taken, and still are what they were (POOL-3)."""
        return "POOL-3" if {*observed} - {*expected} & self.new & {*(self.before or ())} else ""

    # -- What comes of a call ------------------------------------------------------------------------------

    def compared_call(
        self,
        expected: Outcome,
        observed: Outcome,
        clause: str,
        normal: Callable[[Any, Side], object],
        blame: Callable[[Any, Any], str] | None = None,
    ) -> Difference | None:
        """See `Machine.compared_call`: what an order of eviction explains is no difference."""
        found = super().compared_call(expected, observed, clause, normal, blame)
        if found is None or expected.error is not None or observed.error is not None:
            return found
        seen: Any = attempt(lambda: normal(observed.value, self.backend))
        if seen.error is not None:
            return found
        call = self.making
        assert call is not None, "it is compared what came of it"
        case = self.cases.get(self.name_in(call))
        if call.method == "get_computed_pages" and case is not None:
            return self.flaw_in_hit(case, expected.value, seen.value, found)
        if call.method == "allocate_slots" and case is not None:
            return self.flaw_in_new(case, expected.value, seen.value, found)
        if call.method == "take_page_copies" and self.amid:
            return self.flaw_in_copies(expected.value, seen.value, found)
        return found

    def found_pages(self, found: Any, side: Any) -> Any:
        """See `ManagerMachine.found_pages`."""
        return SAFE_MANAGER["get_computed_pages"].result.plain(found, side)

    # -- Hits ----------------------------------------------------------------------------------------------

    def flaw_in_hit(self, case: Case, right: Any, seen: Any, found: Difference) -> Difference | None:
        """What is wrong with a hit: pages of others, or fewer tokens than are resident, or than were just served."""
        (pages, length), longest = seen, right[1]
        if len(pages) != len(self.world.groups):
            return found
        label = self.flaw_in_content(case, pages)
        if not label and (length or any(map(any, pages))):
            label = self.flaw_in_shape(case, pages, length)
        if label:
            where = "where a group needs one for a hit of that length, null pages elsewhere"
            return found._replace(clause=label, expected=f"pages that hold the request's own prefix, {where}")
        if length >= longest:
            return found if length > longest else None
        if self.before is not None:
            longest = self.longest(case, filter(self.ghost.is_full, self.before))
            label = self.blame_hit(case, (None, longest), seen)
            if length < longest and label in self.session.clauses:
                self.fewest = longest
                return found._replace(clause=label, expected=f"{longest} tokens, the longest prefix that is resident")
        longest = self.longest(case, self.kept) if self.kept else 0
        if length < longest and "HIT-1" in self.session.clauses:
            self.fewest = longest
            said = f"{longest} tokens or more: pages {sorted(self.kept)} were published, and none was taken since"
            return found._replace(clause="HIT-1", expected=said)
        return None

    def longest(self, case: Case, pages: Iterable[int]) -> int:
        """How many tokens of a request the specification finds where it has forgotten all but some pages."""
        manager = self.spec.manager
        requests = [known.request for known in self.cases.values()]
        more = {"hash_function": self.options["hash_function"]} if "hash_function" in self.options else {}
        shadow = type(manager).restore(manager.snapshot(), requests, **more)
        shadow.evict_pages({*(showing.resident(self.spec) or ())}.difference(pages))
        return int(shadow.get_computed_pages(case.request)[1])

    def hits_in(self, call: Call) -> Lists:
        """The pages that a call hands over as hits; -1 stands for a page of another manager."""
        given = call.arguments.get("new_computed_pages")
        if isinstance(given, Ref):
            return showing.ids_of(self.backend.thing(given))
        if not isinstance(given, Pages):
            return [[] for _ in self.world.groups]
        return [
            showing.ids_of([self.backend.thing(group)])[0]
            if isinstance(group, Ref)
            else [int(page.path[0]) if isinstance(page, Ref) else -1 for page in group]
            for group in given.groups
        ]

    def is_hit(self, case: Case, hits: Lists) -> bool:
        """Whether pages may be handed over: they hold what they are said to, and the specification has them cached."""
        cached = {*(showing.resident(self.spec) or ())}
        pages = {page for held in hits for page in held if page}
        return pages <= cached and not self.flaw_in_content(case, hits)

    def is_there(self, case: Case, hits: Lists, given: Mapping[str, Any]) -> bool:
        """Whether the backend has shown that it has what a call hands over: then it must take it."""
        shown, length = self.before, given.get("num_new_computed_tokens", 0)
        if shown is None or not {page for held in hits for page in held if page} <= {*shown}:
            return False
        return not self.ends_amid(length) or length <= self.longest(case, filter(self.ghost.is_full, shown))

    # -- New pages -----------------------------------------------------------------------------------------

    def flaw_in_new(self, case: Case, right: Any, seen: Any, found: Difference) -> Difference:
        """What is wrong with new pages: there are no such pages, or they are held (R2)."""
        name = case.request.request_id
        amid = self.ends_amid(self.asked.arguments.get("num_new_computed_tokens", 0))
        if right is None or seen is None:
            if amid:
                raise Undecided  # of several pages to copy from one may be held already, and another not
            return found
        given = [page for pages in seen for page in pages if page]
        if not all(0 <= page < self.world.num_pages for page in given):
            return found._replace(clause="POOL-1")
        if list(map(len, right)) != list(map(len, seen)):
            return found
        kept = [held[: len(held) - len(new)] for held, new in zip(self.held(name), right, strict=True)]
        lists = [*kept, *(pages for other in self.cases if other != name for pages in self.held(other))]
        in_use = {page for pages in lists for page in pages}
        taken_twice = [page for page in given if page in in_use or given.count(page) > 1]
        if not taken_twice:
            if amid:
                raise Undecided  # the specification copies from a page that the backend took
            return found
        if case.live and self.was_swapped(name, taken_twice[0], kept):
            said = f"{taken_twice[0]} stays in the list of {name}, {kept}: no other page takes its place"
            return found._replace(clause="MAN-2", expected=said)
        if all(given.count(page) == 1 and self.is_own(case, page, kept, seen) for page in taken_twice):
            raise Undecided  # what it is going to compute is there already, held by another
        return found._replace(clause="R2", expected=f"pages that nobody holds, as {found.expected}")

    def was_swapped(self, name: str, page: int, kept: Lists) -> bool:
        """Whether another page stands in a live request's list where a page stood: nobody holds that one twice then."""
        now: Lists = attempt(lambda: self.lists_of(self.backend)[name]).value or []
        pairs = [pair for own, pages in zip(kept, now, strict=False) for pair in zip(own, pages, strict=False)]
        places = [other for own, other in pairs if own == page]
        return bool(places) and all(other not in (0, page) for other in places)

    def is_own(self, case: Case, page: int, kept: Lists, given: Lists) -> bool:
        """Whether a page holds, full, what belongs to the place of a request in which it was given."""
        keys = case.request.extra_keys
        return any(
            self.ghost.contents.get(page) == self.ghost.full(number, len(own) + pages.index(page), case.tokens, keys)
            for number, (own, pages) in enumerate(zip(kept, given, strict=True))
            if page in pages
        )

    # -- Hits that end amid a page (MAN-17) ----------------------------------------------------------------

    def ends_amid(self, length: Any) -> list[int]:
        """The groups in which a hit ends amid a page (MAN-17)."""
        if not self.amid or not isinstance(length, int):
            return []
        return [number for number, group in enumerate(self.world.groups) if length % group.page_size]

    def flaw_in_copies(self, right: Any, seen: Any, found: Difference) -> Difference | None:
        """What is wrong with copies: any cached page may be copied from that begins with the request's tokens."""
        if [copy for copy in right if len(copy) != 4] != [copy for copy in seen if len(copy) != 4]:
            return found._replace(clause="MAN-13")
        told, rightly = (sorted((copy[0], *copy[2:]) for copy in copies if len(copy) == 4) for copies in (right, seen))
        case = self.cases.get(self.name_in(self.asked))
        if told != rightly or case is None:
            return found._replace(clause="MAN-17")
        known, keys = self.resident(), case.request.extra_keys
        for number, source, *_ in (copy for copy in seen if len(copy) == 4):
            begins = self.ghost.begins_with(source, number, case.computed, case.tokens, keys)
            if not begins or source in self.new or (known is not None and source not in known):
                said = f"a cached page that begins with the tokens of {case.request.request_id} up to {case.computed}"
                return found._replace(clause="MAN-17", expected=said)
        return None


def _at_odds(side: Side) -> list[int]:
    """The pages that are either in the cached map or have a hash."""
    return sorted({*(showing.resident(side) or ())} ^ {*(showing.with_hash(side) or ())})
