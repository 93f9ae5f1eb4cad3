"""The model of a manager at level safe: who holds which page, what it holds, how many are free, what is cached."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from ...backends.capabilities import ESSENTIALS
from ...backends.loading import takes_parameter
from ..ghost import Ghost
from ..groups import GroupSteps
from ..manager_blame import Case
from ..sides import Side
from ..worlds import World
from . import showing
from .alone import Alone
from .demand import needed_places
from .showing import Lists

__all__ = ["ManagerModel"]


class ManagerModel(Alone, GroupSteps):
    """One manager, judged after every call by what any correct one shows then.

    Attributes:
        ghost: what the pages hold.
        lists: the page lists of the live requests, as last shown and found right.
        reached: for each live request its computed tokens at the last call for it, hits included (MAN-8).
        writers: the request that was given a page last, as the object that plays it.
        fresh: the pages that the last call handed out.
        kept: full pages of requests that were freed, published and written, no page being taken since (HIT-1).
        hidden: the held pages that lost their hash to a call; they are found no more.
        newest: the request that the last call admitted; "" if it admitted none.
        unfilled: pages that were first shown as cached when a request that held them was freed, where hits may end
            amid a page: of what they hold any part may be found (MAN-17).
    """

    needs: ClassVar[tuple[str, ...]] = ESSENTIALS["CacheManager"]
    always = frozenset(
        {"R1", "R2", "POOL-1", "POOL-2", "POOL-3", "POOL-7", "POOL-9", "POOL-10", "POOL-11", "HASH-2", "HIT-1"}
        | {f"MAN-{number}" for number in (1, 2, 3, 4, 5, 6, 8, 10)}
    )

    def build_managers(self, world: World) -> None:
        """Builds a manager, with those options that the backend's constructor knows."""
        names = self.backend.names
        made = names.get("CacheManager")
        world = world.within(names)
        if not takes_parameter(made, "use_eagle"):
            world = replace(world, use_eagle=False)
        self.world, self.cases, self.ghost = world, {}, Ghost(world.groups)
        self.lists: dict[str, Lists] = {}
        self.reached: dict[str, int] = {}
        self.writers: dict[int, Case] = {}
        self.fresh: set[int] = set()
        self.kept: set[int] = set()
        self.hidden: set[int] = set()
        self.newest = ""
        self.unfilled: set[int] = set()
        wanted = {"hash_seed": b"kvproof", **world.options}
        self.options = {name: value for name, value in wanted.items() if takes_parameter(made, name)}
        flags = (world.caching, True) if world.use_eagle else (world.caching,)

        line = f"manager = {self.construction(world, flags)}"
        call = self.built(0)
        row = self.row_of_thing(call)
        self.build_backend(line, "MAN-2", lambda side: self.parts(side, self.perform(side, call, row)))
        self.show_fields(self.readers())
        self.settle("MAN-2")

    def parts(self, side: Side, manager: Any) -> dict[str, Any]:
        """See `ManagerMachine.parts`: a manager may show no pool."""
        del side
        pool = getattr(manager, "page_pool", None)
        return {"manager": manager, "pool": pool, "pages": showing.known_views(pool, not self.lacks("queue"))}

    def readers(self) -> Mapping[str, Any]:
        """What a manager may show, each by what reads it off; None is read off what it does not show."""
        return {
            "pages of requests": self.read_lists,
            "number of free pages": showing.num_free,
            "free pages": showing.free_in_queue,
            "usage": showing.usage,
            "pages with a count": showing.with_count,
            "pages with a hash": showing.with_hash,
            "cached pages": showing.resident,
        }

    def read_lists(self, side: Any) -> dict[str, Lists]:
        """The pages of every live request."""
        return {name: showing.ids_of(side.manager.get_page_ids(name)) for name in self.names_of(live=True)}

    def held(self, name: str) -> Lists:
        """The pages that a request holds, group by group."""
        return self.lists.get(name, [[] for _ in self.world.groups])

    @property
    def num_free(self) -> int:
        """See `ManagerMachine.num_free`: how many pages nobody holds."""
        held = {page for lists in self.lists.values() for pages in lists for page in pages if page}
        return self.world.num_pages - 1 - len(held)

    def page_numbers(self) -> list[int]:
        """See `ManagerMachine.page_numbers`: those whose views are known."""
        return sorted(self.backend.pages)

    def cached_pages(self) -> list[int]:
        """See `ManagerMachine.cached_pages`: those that were shown as cached after the last call."""
        return self.resident or []

    # -- After a call -----------------------------------------------------------------------------------

    def settle(self, clause: str) -> None:
        """Judges what the backend shows after a call that was answered.

        Args:
            clause: the label that a fault is charged to where it has none of its own.
        """
        lists: dict[str, Lists] = self.see("pages of requests", clause)
        for name, groups in lists.items():
            self.judge_shape(clause, name, groups)
        self.judge_owners(lists)
        self.judge_kept(lists)
        for name, groups in lists.items():
            self.judge_content(name, groups)
        self.lists = lists
        self.known["pages of requests"] = lists
        self.judge_numbers(clause)
        self.judge_cached(clause)

    def judge_shape(self, clause: str, name: str, groups: Lists) -> None:
        """A live request has a list for each group, as long as its calls made it, of pages that there are."""
        lengths = list(map(len, groups))
        right = self.lengths(name)
        if lengths != right:
            self.differ(clause, f"{name} holds lists of {right} pages", f"{groups}")
        strange = [page for pages in groups for page in pages if not 0 <= page < self.world.num_pages]
        if strange:
            self.differ("POOL-1", f"pages of 1 to {self.world.num_pages - 1}", f"{strange} in the pages of {name}")
        self.compared("POOL-1")
        for group, pages in zip(self.world.groups, groups, strict=True):
            stands = [place for place, page in enumerate(pages) if page]
            places = needed_places(group, len(pages), self.reached[name])
            label = "MAN-13" if group.keeps_states else "MAN-8" if group.gives_back else "POOL-1"
            self.compared(label)
            if stands != places:
                self.differ(label, f"pages of {name} at the places {places} of {group}, nulls elsewhere", f"{pages}")

    def lengths(self, name: str) -> list[int]:
        """How long the lists of a live request are."""
        return [len(pages) for pages in self.held(name)]

    def judge_kept(self, lists: Mapping[str, Lists]) -> None:
        """Page lists are what the requests' own calls made of them: a page table hears of nothing else (MAN-2).

        At its admission a request may be given other pages than it was told of, of equal content.
        """
        newest, self.newest = self.newest, ""
        self.compared("MAN-2")
        for name, groups in lists.items():
            if name != newest and groups != self.held(name):
                why = "no other page takes the place of one that it was given"
                self.differ("MAN-2", f"{name} holds {self.held(name)}: {why}", f"{groups}")

    def judge_owners(self, lists: Mapping[str, Lists]) -> None:
        """A page has one holder, or several whose own prefix it holds (R2)."""
        self.compared("R2")
        holders: dict[int, list[tuple[str, int, int]]] = defaultdict(list)
        for name, groups in lists.items():
            for number, pages in enumerate(groups):
                for place, page in enumerate(pages):
                    holders[page].append((name, number, place))
        for page, several in holders.items():
            for name, number, place in several if page and len(several) > 1 else ():
                case = self.cases[name]
                if not case.void and not self.holds(page, case, number, place):
                    said = " and ".join(f"{other} (group {g}, place {p})" for other, g, p in several)
                    self.differ(
                        "R2", f"page {page}, on which {name} may still write, held by {name} alone", f"held by {said}"
                    )

    def holds(self, page: int, case: Case, number: int, place: int) -> bool:
        """Whether a page holds the content that belongs to a place of a request, all of it."""
        return self.ghost.contents.get(page) == self.ghost.full(number, place, case.tokens, case.request.extra_keys)

    def judge_content(self, name: str, groups: Lists) -> None:
        """The pages behind what a live request has computed hold its own content, whichever pages they are (R2)."""
        case = self.cases[name]
        for number, (group, pages) in enumerate(zip(self.world.groups, groups, strict=True)):
            if group.keeps_states or case.void:
                continue
            full = range(group.first_place(self.reached[name]), case.written // group.page_size)
            wrong = [place for place in full if not self.holds(pages[place], case, number, place)]
            if wrong:
                said = f"other content at the places {wrong} of {pages}, group {number}"
                self.differ("R2", f"pages that hold the tokens of {name}", said)

    def judge_numbers(self, clause: str) -> None:
        """As many pages are in use as are held, the null page left out (POOL-2, POOL-10)."""
        free, pages = self.num_free, self.world.num_pages - 1
        held = {page for lists in self.lists.values() for group in lists for page in group if page}
        right = {
            "number of free pages": (clause, free),
            "free pages": ("POOL-2", sorted(set(range(1, pages + 1)) - held)),
            "pages with a count": ("POOL-2", sorted(held)),
            "usage": ("POOL-10", round((pages - free) / pages, 9)),
        }
        self.hold_shown(right, f", as {sorted(held)} are held")

    def may_be_cached(self, page: int) -> bool:
        """Whether a page may be found by its content."""
        return self.ghost.is_full(page)

    def judge_cached(self, clause: str) -> None:
        """What is cached is full of known content, and all that shows it agrees (POOL-3, POOL-7, MAN-3, MAN-4)."""
        fresh, self.fresh = self.fresh, set()
        if "cached pages" not in self.shows:
            return
        seen = self.see("cached pages", "POOL-7")
        before: Any = self._before.get("cached pages", [])
        self.known["cached pages"] = seen
        hashed = seen
        if "pages with a hash" in self.shows:
            hashed = self.known["pages with a hash"] = self.see("pages with a hash", "POOL-7")
        self.unfilled = (self.unfilled & set(seen)) - fresh
        if clause == "MAN-5" and self.amid:
            self.unfilled |= set(seen) - set(before)
        bare = sorted(page for page in {*seen, *hashed} if not self.may_be_cached(page))
        stale = [page for page in bare if page in before and page in fresh]
        self.hold("POOL-3", not stale, f"{stale} forgotten, as they were allocated again", f"cached pages {seen}")
        self.hold("POOL-7", hashed == seen, f"the cached pages {seen} have hashes, no others", f"{hashed}")
        label = "MAN-4" if clause == "MAN-4" else "MAN-3"
        said = f"cached pages that are full of tokens that are known and written: not {bare}"
        self.hold(label, not bare, said, f"cached pages {seen}")
