"""What the steps of the manager machines share: the two managers, the requests, and who is to blame for a hit."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from kvproof.spec.declarations import ExtraKey, Request

from ..deviation import attempt
from .base import Both, Field, Machine, Side
from .ghost import Ghost
from .hash import weak
from .manager_fields import event_fields, follow, pin_fields
from .pool_state import page_list, page_views, pool_fields, pool_options
from .worlds import World

__all__ = ["COUNTS", "HASHES", "Case", "ManagerMachine"]

COUNTS = ("ref_cnt", "free pages", "numbers of free pages", "null page")
"""What shows who holds which page."""

HASHES = ("hashed pages", "cached map")
"""What shows which page is cached."""


@dataclass
class Case:
    """A request as the machine plays it.

    Attributes:
        request: the engine's object; both managers get the same one.
        live: whether it was given slots and not yet freed.
        given: tokens up to which it was given slots, look-ahead left out.
        slots: tokens up to which it was given slots, look-ahead included.
        hits: tokens that it found in the cache at its admission.
        written: tokens that its pages hold, or will when the steps so far are dispatched.
        computed: computed tokens at the last call that gave slots, those found then included.
        told: what the request itself said at the last call.
        void: whether it holds a page whose content was withdrawn, and should have been scheduled anew (MAN-4).
        found: the last look-up's result.
        earlier: what the id stood for before: tokens and extra keys.
    """

    request: Request
    live: bool = False
    given: int = 0
    slots: int = 0
    hits: int = 0
    written: int = 0
    computed: int = 0
    told: int = 0
    void: bool = False
    found: Both | None = None
    earlier: list[tuple[list[int], tuple[ExtraKey, ...]]] = field(default_factory=list)

    @property
    def least(self) -> int:
        """Below this its computed tokens can't fall."""
        return max(self.computed, self.told)

    @property
    def tokens(self) -> list[int]:
        """The request's tokens."""
        return [int(token) for token in self.request.all_token_ids]


class ManagerMachine(Machine):
    """Two managers side by side. A side has ``manager``, its ``pool``, and ``pages`` by id.

    Attributes:
        world: what was drawn to begin with.
        options: the managers' keywords.
        cases: the requests by id.
        ghost: what the pages hold.
        made: the class of the managers.
        first: its arguments before the number of pages.
        labels: beside the clauses of one full-attention group those that the groups of the machine are about.
    """

    needs: ClassVar[tuple[str, ...]] = ("CacheManager", "CachePages")
    made: ClassVar[str] = "CacheManager"
    first: tuple[int, ...] = ()
    labels: ClassVar[frozenset[str]] = frozenset()
    always = frozenset(
        {"R1", "R2", "POOL-1", "POOL-2", "POOL-3", "POOL-5", "POOL-7", "POOL-8", "POOL-10", "HASH-1", "HASH-2"}
        | {"HASH-3", "MAN-1", "MAN-2", "MAN-6"}
    )
    world: World
    cases: dict[str, Case]
    ghost: Ghost
    options: dict[str, Any]

    def build_managers(self, world: World) -> None:
        """Builds both managers, with those options that the backend's constructor knows."""
        wanted = {"hash_seed": b"kvproof", **world.options}
        options = pool_options((self.spec.names, self.backend.names), self.made, wanted)
        self.world, self.options, self.cases, self.ghost = world, options, {}, Ghost(world.groups)
        flags = (world.caching, True) if world.use_eagle else (world.caching,)
        shown = "".join(f", {name}={getattr(value, '__name__', repr(value))}" for name, value in options.items())

        def act(side: Side) -> dict[str, Any]:
            groups = [group.declared(n, side.names, self.spec.names) for n, group in enumerate(world.groups)]
            make = functools.partial(side.names.get(self.made), *self.first)
            return self.parts(side, make(world.num_pages, groups, world.max_model_len, *flags, **options))

        numbers = ", ".join(map(str, (*self.first, world.num_pages)))
        line = f"{numbers}, [{', '.join(map(str, world.groups))}], max_model_len={world.max_model_len}"
        named = ", ".join(f"{name}={flag}" for name, flag in zip(("caching", "use_eagle"), flags, strict=False))
        self.build(f"manager = {self.made}({line}, {named}{shown})", "MAN-2", act)
        self.watch(*self.state_fields())

    def parts(self, side: Side, manager: Any) -> dict[str, Any]:
        """What a side has, beside its names."""
        made = {"manager": manager, "pool": manager.page_pool, "pages": page_views(manager.page_pool)}
        return made | (follow(side) if "enable_events" in self.options else {})

    def state_fields(self) -> list[Field]:
        """What the managers show."""
        weakly = self.options.get("hash_function") is weak
        fields = [
            replace(shows, blame=self.blame_published, also=self.of_states) if shows.name in HASHES else shows
            for shows in pool_fields("hash_seed" in self.options, weakly)
        ]
        return [
            Field("pages of requests", "MAN-2", self.read_page_ids, blame=self.blame_pages, also=self.of_states),
            *fields,
            Field("usage of the manager", "POOL-10", lambda side: round(float(side.manager.usage), 9)),
            *(event_fields() if "enable_events" in self.options else ()),
            *(pin_fields() if "max_pinned_pages" in self.options else ()),
        ]

    def held(self, name: str) -> list[list[int]]:
        """The pages that a request holds, group by group."""
        return [list(map(int, group)) for group in self.spec.manager.get_page_ids(name)]

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
    def unit(self) -> int:
        """Tokens of which every hit is a multiple."""
        return self.world.unit

    @property
    def caching(self) -> bool:
        """Whether prefixes are cached and found."""
        return self.world.caching and bool(self.world.groups)

    @property
    def of_states(self) -> tuple[str, ...]:
        """The clause about states, if there are any."""
        return ("MAN-13",) if self.world.has_states else ()

    def own(self, *labels: str) -> tuple[str, ...]:
        """Those of some labels that the machine's groups are about."""
        return tuple(label for label in labels if label in self.labels)

    # -- Requests ---------------------------------------------------------------------------------------

    def names_of(self, live: bool) -> list[str]:
        """The ids that are live, or that are not."""
        return [name for name, case in self.cases.items() if case.live == live]

    def look_up(self, name: str) -> Both:
        """Looks a request up on both sides; nothing changes in the pool, and what is found is the request's own."""
        case = self.cases[name]
        found = self.call(
            f"manager.get_computed_pages({name})",
            lambda side: side.manager.get_computed_pages(case.request),
            "MAN-1",
            self.found_pages,
            "MAN-1",
            lambda expected, observed: self.blame_hit(case, expected, observed),
            also=("R2", "MAN-6", "HASH-2", *self.own("MAN-7", "MAN-9"), *self.of_states),
        )
        if not found.refused and found.spec[1]:
            self.judge(case, found)
        case.found = found
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

    def flaw_in_content(self, case: Case, pages: list[list[int]]) -> str:
        """The clause that a hit breaks with pages that hold something else than the request's own; "" if none does."""
        keys = case.request.extra_keys
        for group, held in enumerate(pages):
            for place, page in enumerate(held):
                content = self.ghost.contents.get(page)
                right = self.ghost.full(group, place, case.tokens, keys)
                if page == 0 or content == right:
                    continue
                if content is not None and content.group != group and len(self.world.groups) > 1:
                    return "MAN-7"
                if any(content == self.ghost.full(group, place, *earlier) for earlier in case.earlier):
                    return "MAN-6"
                return "HASH-2" if content is not None and content.tokens == right.tokens else "R2"
        return ""

    def flaw_in_shape(self, case: Case, pages: list[list[int]], length: int) -> str:
        """The clause that a hit breaks by its length, or by null pages where there must be none; "" if it does not."""
        if length % self.unit or length >= case.request.num_tokens or not any(map(any, pages)):
            return "MAN-1"
        for group, held in zip(self.world.groups, pages, strict=True):
            first, end = group.first_place(length), length // group.page_size
            if [page != 0 for page in held] != [place >= first for place in range(end)]:
                return "MAN-13" if group.keeps_states else (*self.own("MAN-7"), "MAN-1")[0]
        return ""

    def blame_hit(self, case: Case, expected: Any, observed: Any) -> str:
        """The clause of a wrong look-up: by what its pages hold, then by where there are none, then by its length."""
        pages, length = observed
        if not isinstance(pages, list) or not all(isinstance(held, list) for held in pages):
            return "MAN-1"
        clause = self.flaw_in_content(case, pages)
        if clause or length == expected[1]:
            return clause or "MAN-1"
        if length > expected[1]:
            clause = self.flaw_in_shape(case, pages, length)
        return (
            clause or (*(["MAN-9"] if self.world.eagle_groups else []), *self.of_states, *self.own("MAN-7"), "MAN-1")[0]
        )

    # -- Slots ------------------------------------------------------------------------------------------

    def allocate(self, name: str, new: Any, found: Both | None = None, **options: Any) -> Both:
        """Allocates slots on both sides.

        Args:
            name: the request's id.
            new: tokens to be computed.
            found: a look-up's result that is handed back.
            options: the other arguments.
        """
        case = self.cases[name]
        tokens = found.spec[1] if found is not None else 0
        computed = case.request.num_computed_tokens
        shown = "".join(f", {option}={value!r}" for option, value in options.items())
        with_hits = f", {tokens}, {found.spec[0]!r}" if found is not None else ""
        at = f"  [num_computed_tokens={computed}]" if computed else ""
        released = self.giving_back(name, computed)
        allocated = self.call(
            f"manager.allocate_slots({name}, {new!r}{with_hits}{shown}){at}",
            lambda side: side.manager.allocate_slots(
                case.request, new, *([tokens, found.of(self, side)[0]] if found is not None else []), **options
            ),
            "MAN-2",
            self.page_lists,
            lambda pages: self.charge_allocation(pages, released),
            lambda expected, observed: self.blame_allocation(expected, observed, released),
            also=(*self.of_states, *released),
        )
        if not allocated.refused and allocated.spec is not None:
            self.grant(name, int(computed), int(tokens), int(new), options.get("num_lookahead_tokens", 0))
        if not allocated.refused:
            case.told = int(computed)
        return allocated

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

    def giving_back(self, name: str, computed: Any) -> tuple[str, ...]:
        """The clauses by which a live request's next call gives pages back (MAN-8, MAN-13)."""
        if not self.cases[name].live or not isinstance(computed, int):
            return ()
        labels = []
        for group, held in zip(self.world.groups, self.held(name), strict=True):
            if group.gives_back and any(held[: group.first_place(computed)]):
                labels.append("MAN-13" if group.keeps_states else "MAN-8")
        return tuple(dict.fromkeys(labels))

    def charge_allocation(self, pages: Any, released: tuple[str, ...]) -> Mapping[str, str]:
        """Labels for what a call left behind: without slots only what was given back has changed (MAN-2)."""
        clause = "MAN-2" if pages is None or not released else released[0]
        return dict.fromkeys(("pages of requests", *COUNTS), clause) | dict.fromkeys(HASHES, "MAN-3")

    def blame_allocation(self, expected: Any, observed: Any, released: tuple[str, ...]) -> str:
        """The clause of wrong new pages: the one about states where only these are wrong."""
        if expected is None or observed is None:
            return released[0] if released and observed is None else "MAN-2"
        wrong = [
            group for group, own, other in zip(self.world.groups, expected, observed, strict=False) if own != other
        ]
        return "MAN-13" if wrong and all(group.keeps_states for group in wrong) else "MAN-2"

    # -- Who is to blame for the state --------------------------------------------------------------------

    def blame_pages(self, expected: Any, observed: Any) -> str:
        """The clause of wrong page lists: about states in a state group; else who called is to blame."""
        wrong = [
            group
            for name, held in expected.items()
            for group, own, other in zip(self.world.groups, held, observed[name], strict=False)
            if own != other
        ]
        return "MAN-13" if wrong and all(group.keeps_states for group in wrong) else ""

    def blame_published(self, expected: Any, observed: Any) -> str:
        """The clause of wrongly cached pages: about states if only these are wrong; else who called is to blame."""
        wrong = set(_flat(expected)) ^ set(_flat(observed))
        states = {
            page
            for name in self.names_of(live=True)
            for group, held in zip(self.world.groups, self.held(name), strict=True)
            for page in held
            if group.keeps_states
        }
        return "MAN-13" if wrong and wrong <= states else ""


def _flat(cached: Any) -> list[Any]:
    """The pages of a list of hashed pages, or of a cached map."""
    return [page for entry in cached for page in (entry[1] if isinstance(entry, tuple) else [entry])]
