"""What the steps of the manager machines share: the two managers, what they show, look-ups and slots."""

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from ..backends.loading import takes_parameter
from ..calls.deviation import attempt
from ..calls.readings import page_list
from ..calls.spelling import LISTED
from .base import Both, Field, Side
from .ghost import Ghost
from .hash import weak
from .manager_blame import Case, ManagerBlame
from .manager_fields import event_fields, follow, pin_fields
from .operations import operation
from .pool_state import order_clause, page_views, pool_fields, pool_options
from .worlds import World

__all__ = ["COUNTS", "HASHES", "ManagerMachine"]

COUNTS = ("ref_cnt", "free pages", "numbers of free pages", "null page")
"""What shows who holds which page."""

HASHES = ("hashed pages", "cached map")
"""What shows which page is cached."""


class ManagerMachine(ManagerBlame):
    """Two managers side by side. A side has ``manager``, its ``pool``, and ``pages`` by id.

    Attributes:
        options: the managers' keywords.
        made: the class of the managers.
        first: its arguments before the number of pages.
    """

    needs: ClassVar[tuple[str, ...]] = ("CacheManager", "CachePages")
    made: ClassVar[str] = "CacheManager"
    first: tuple[int, ...] = ()
    always = frozenset(
        {"R1", "R2", "POOL-1", "POOL-2", "POOL-3", "POOL-5", "POOL-7", "POOL-8", "POOL-10", "HASH-1", "HASH-2"}
        | {"HASH-3", "EVICT-1", "MAN-1", "MAN-2", "MAN-6", "RET-2"}
    )
    options: dict[str, Any]

    def build_managers(self, world: World) -> None:
        """Builds both managers, with those options that the backend's constructor knows."""
        world = world.within(self.backend.names)
        if self.lacks("iterables"):
            world = replace(world, spellings=tuple(known for known in world.spellings if known in LISTED))
        wanted = {"hash_seed": b"kvproof", **world.options}
        for option, capability in (("enable_events", "events"), ("counter_sampling", "counters")):
            if option in wanted and (self.lacks("events") or self.lacks(capability)):
                del wanted[option]
        options = pool_options((self.spec.names, self.backend.names), self.made, wanted)
        self.world, self.options, self.cases, self.ghost = world, options, {}, Ghost(world.groups)
        flags = (world.caching, True) if world.use_eagle else (world.caching,)

        def act(side: Side) -> dict[str, Any]:
            if side is not self.spec or self.takes_interval():
                return self.parts(side, self.new_manager(side))
            # a backend that takes none shows which it goes by; one that shows none keeps all pages, as all once did
            other = attempt(functools.partial(self.new_manager, self.backend)).value
            shown = getattr(next(iter(getattr(other, "shards", [])), other), "retention_interval", None)
            return self.parts(side, self.new_manager(side, retention_interval=shown))

        self.build(f"manager = {self.construction(world, flags)}", "MAN-2", act)
        self.watch(*self.state_fields())

    def takes_interval(self) -> bool:
        """Whether the backend's manager can be told which lengths to keep (RET-1)."""
        return self.backend.names.accepts(self.made, "retention_interval")

    def new_manager(self, side: Side, **more: Any) -> Any:
        """A manager of this world; ``more`` are other keywords, which take the places of those of the world."""
        world = self.world
        groups = [group.declared(n, side.names, self.spec.names) for n, group in enumerate(world.groups)]
        flags = (world.caching, True) if world.use_eagle else (world.caching,)
        make = functools.partial(side.names.get(self.made), *self.first, world.num_pages, groups, world.max_model_len)
        return make(*flags, **(self.options | more))

    def construction(self, world: World, flags: tuple[bool, ...]) -> str:
        """The call of the constructor as a report shows it."""
        shown = "".join(f", {name}={getattr(value, '__name__', repr(value))}" for name, value in self.options.items())
        numbers = ", ".join(map(str, (*self.first, world.num_pages)))
        line = f"{numbers}, [{', '.join(map(str, world.groups))}], max_model_len={world.max_model_len}"
        named = ", ".join(f"{name}={flag}" for name, flag in zip(("caching", "use_eagle"), flags, strict=False))
        return f"{self.made}({line}, {named}{shown})"

    def parts(self, side: Side, manager: Any) -> dict[str, Any]:
        """What a side has, beside its names."""
        pages = page_views(manager.page_pool, "queue" not in side.names.lacks)
        made = {"manager": manager, "pool": manager.page_pool, "pages": pages}
        return made | (follow(side) if "enable_events" in self.options else {})

    def state_fields(self) -> list[Field]:
        """What the managers show."""
        weakly = self.options.get("hash_function") is weak
        lacks = frozenset(filter(self.lacks, ("queue", "keys")))
        fields = [
            replace(shows, blame=self.blame_published, also=self.of_states) if shows.name in HASHES else shows
            for shows in pool_fields("hash_seed" in self.options, weakly, lacks, order_clause(self.options))
        ]
        also = ("MAN-2", *self.of_states, *self.own("MAN-8"))
        usage = Field("usage of the manager", "POOL-10", lambda side: round(float(side.manager.usage), 9), aside=True)
        return [
            Field("pages of requests", "MAN-2", self.read_page_ids, blame=self.blame_pages, also=also),
            *fields,
            *((usage,) if self.offers("manager", "usage") else ()),
            *(event_fields(not self.lacks("counters")) if "enable_events" in self.options else ()),
            *(pin_fields() if "max_pinned_pages" in self.options else ()),
        ]

    def read_slots(self, side: Any) -> dict[str, Any]:
        """The slot of every live request; the kind of error for the others, which have none (MAN-11)."""
        tried = {name: attempt(functools.partial(side.manager.slot_of, name)) for name in self.cases}
        return {name: type(slot.error).__name__ if slot.error else int(slot.value) for name, slot in tried.items()}

    def read_page_ids(self, side: Any) -> dict[str, list[list[int]]]:
        """The pages of every request ever seen."""
        return {name: [list(map(int, group)) for group in side.manager.get_page_ids(name)] for name in self.cases}

    # -- The world ----------------------------------------------------------------------------------------

    @property
    def max_model_len(self) -> int:
        """The most tokens of a request."""
        return self.world.max_model_len

    @property
    def caching(self) -> bool:
        """Whether prefixes are cached and found."""
        return self.world.caching and bool(self.world.groups)

    def charged(self, clause: str) -> dict[str, str]:
        """One label for all that the managers show, but for what they tell of it (MAN-12)."""
        return {shows.name: clause for shows in self.fields if shows.clause != "MAN-12"}

    # -- Requests ---------------------------------------------------------------------------------------

    @operation
    def look_up(self, name: str) -> Both:
        """Looks a request up on both sides; nothing changes in the pool, and what is found is the request's own."""
        case = self.cases[name]
        found = self.call(
            f"manager.get_computed_pages({name})",
            lambda side: side.manager.get_computed_pages(case.request),
            "MAN-1",
            self.found_pages,
            self.charged("MAN-1"),
            lambda expected, observed: self.blame_hit(case, expected, observed),
            also=("R2", "MAN-6", "HASH-2", *self.own("MAN-7", "MAN-9"), *self.of_states),
        )
        if not found.refused and found.spec[1]:
            self.session.hits += 1
            self.judge(case, found)
        case.found = found
        if self.world.gives_back and self.offers("manager", "get_junction"):
            self.call(
                f"manager.get_junction({name})",
                lambda side: side.manager.get_junction(case.request),
                "RET-2",
                lambda junction, _: int(junction),
                self.charged("RET-2"),
            )
        return found

    def found_pages(self, found: Any, side: Any) -> Any:
        """A look-up's result as it is compared."""
        return self.page_lists(found[0], side), int(found[1])

    def judge(self, case: Case, found: Both) -> None:
        """Holds a hit against what the pages hold, which no hash function and no key is asked about (R2)."""
        pages, length = self.found_pages(found.backend, self.backend)
        clause = self.flaw_in_content(case, pages) or self.flaw_in_shape(case, pages, length)
        if clause:
            self.differ(clause, "pages that hold the request's own prefix", f"{pages}, {length} tokens")

    # -- Slots ------------------------------------------------------------------------------------------

    def allocate(self, name: str, new: Any, found: Both | None = None, **options: Any) -> Both:
        """Allocates slots on both sides.

        Args:
            name: the request's id.
            new: tokens to be computed.
            found: a look-up's result that is handed back.
            options: the other arguments, those left out that the backend's manager does not take.
        """
        case = self.cases[name]
        options = {option: value for option, value in options.items() if self.takes(option)}
        tokens = found.spec[1] if found is not None else 0
        computed = case.request.num_computed_tokens
        shown = "".join(f", {option}={value!r}" for option, value in options.items())
        with_hits = f", {tokens}, {found.spec[0]!r}" if found is not None else ""
        at = f"  [num_computed_tokens={computed!r}]" if computed else ""
        released = self.giving_back(name, computed)
        allocated = self.call(
            f"manager.allocate_slots({name}, {new!r}{with_hits}{shown}){at}",
            lambda side: side.manager.allocate_slots(
                case.request, new, *([tokens, found.of(self, side)[0]] if found is not None else []), **options
            ),
            "MAN-2",
            self.page_lists,
            lambda pages: self.charge_allocation(pages, released),
            lambda expected, observed: self.blame_allocation(name, expected, observed, released),
            also=(*self.of_states, *released),
        )
        if allocated.refused:
            return allocated
        if allocated.spec is not None:
            self.grant(name, int(computed), int(tokens), int(new), options.get("num_lookahead_tokens", 0))
        elif case.live:
            self.write(name, int(computed))  # the drafts that were accepted are, with new slots or without
        case.told = int(computed)
        return allocated

    def takes(self, option: str) -> bool:
        """Whether the backend's ``allocate_slots`` takes an option."""
        taken = takes_parameter(self.backend.manager.allocate_slots, option)
        if not taken:
            self.session.lacks.add(f"manager.allocate_slots({option})")
        return taken

    def page_lists(self, pages: Any, side: Any) -> Any:
        """Pages that a manager returned as they are compared: the ids of each group's, or None."""
        return None if pages is None else [page_list(group, side) for group in pages.pages]

    def grant(self, name: str, computed: int, found: int, new: int, lookahead: int) -> None:
        """Notes that a request was given slots, and holds what its step reads against what the pages hold (R2)."""
        case = self.cases[name]
        if not case.live:
            case.given = case.slots = 0
            case.hits = case.written = case.computed = found
            case.void = False
        case.live = True
        start, promised = computed + found, computed + found + new
        case.given = max(case.given, promised)
        case.slots = max(case.slots, min(promised + lookahead, self.max_model_len))
        self.write(name, start)  # a draft may have been accepted, so that what it wrote is known now
        pages = self.held(name)
        wrong = [] if case.void else self.ghost.unread(pages, start, case.request)
        self.compared("R2")
        if wrong:
            self.differ("R2", f"{name} reads its own pages", f"others at (group, place) {wrong} of {pages}")
        self.write(name, promised)
        case.computed = start

    def write(self, name: str, end: int) -> None:
        """Notes that a request's pages hold its tokens up to ``end``, as far as they are known."""
        case = self.cases[name]
        if end > case.written or not self.world.has_states:
            case.written = max(case.written, min(end, case.request.num_tokens))
            self.ghost.write(self.held(name), case.computed, case.written, case.request)

    def charge_allocation(self, pages: Any, released: tuple[str, ...]) -> Mapping[str, str]:
        """Labels for what a call left behind: without slots only what was given back has changed (MAN-2)."""
        clause = "MAN-2" if pages is None or not released else released[0]
        return dict.fromkeys(("pages of requests", *COUNTS), clause) | dict.fromkeys(HASHES, "MAN-3")
