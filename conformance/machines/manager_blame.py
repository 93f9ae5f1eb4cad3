"""Who is to blame: which clause a wrong hit, wrong new pages or a wrong state of a manager break."""

import functools
from dataclasses import dataclass, field
from math import lcm
from typing import Any, ClassVar

import numpy as np

from kvproof.spec.declarations import ExtraKey, Request

from ..calls.deviation import attempt
from .base import Both, Machine
from .ghost import Content, Ghost
from .pool_state import order_clause
from .worlds import World

__all__ = ["Before", "Case", "ManagerBlame"]


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
        published: tokens up to which its full pages are published (MAN-3).
        void: whether it holds a page whose content was withdrawn, and should have been scheduled again (MAN-4).
        found: the last look-up's result.
        found_by: the number of the call that looked it up.
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
    published: int = 0
    void: bool = False
    found: Both | None = None
    found_by: int = 0
    earlier: list[tuple[list[int], tuple[ExtraKey, ...]]] = field(default_factory=list)

    @property
    def least(self) -> int:
        """Below this its computed tokens can't fall."""
        return max(self.computed, self.told)

    @property
    def tokens(self) -> list[int]:
        """The request's tokens."""
        return [int(token) for token in self.request.all_token_ids]


@dataclass(frozen=True)
class Before:
    """What is known just before a call.

    Attributes:
        held: the pages that the request which it is about holds, group by group.
        released: the clauses by which the request will give pages back in it.
        withdraws: whether it says how much of the request's pages was written (MAN-4).
        hits_amid: whether it is given a hit that ends amid a page (MAN-17).
    """

    held: list[list[int]] = field(default_factory=list)
    released: tuple[str, ...] = ()
    withdraws: bool = False
    hits_amid: bool = False


class ManagerBlame(Machine):
    """Says it from what the pages hold and what the groups need.

    Attributes:
        world: what was drawn to begin with.
        options: the managers' keywords.
        cases: the requests by id.
        ghost: what the pages hold.
        labels: beside the clauses of one full-attention group those that the groups of the machine are about.
        was: what was known just before the last call.
    """

    labels: ClassVar[frozenset[str]] = frozenset()
    was = Before()
    world: World
    options: dict[str, Any]
    cases: dict[str, Case]
    ghost: Ghost

    @property
    def unit(self) -> int:
        """Tokens of which every hit of whole pages is a multiple."""
        return self.world.unit

    @property
    def amid(self) -> tuple[str, ...]:
        """The clause about hits that end amid a page, if there are any."""
        return ("MAN-17",) if self.options.get("match_unit") is not None else ()

    @property
    def hit_step(self) -> int:
        """Tokens of which every hit is a multiple."""
        if not self.amid:
            return self.unit
        aligned = [group.page_size for group in self.world.groups if group.keeps_states]
        return lcm(int(self.options["match_unit"]), *aligned)

    @property
    def of_states(self) -> tuple[str, ...]:
        """The clause about states, if there are any."""
        return ("MAN-13",) if self.world.has_states else ()

    @property
    def of_parts(self) -> tuple[str, ...]:
        """The clause about pages that only some hits need, if there are any: which keep their hash, where they go."""
        return ("RET-3",) if self.world.caching and self.world.gives_back else ()

    def own(self, *labels: str) -> tuple[str, ...]:
        """Those of some labels that the machine's groups are about."""
        return tuple(label for label in labels if label in self.labels)

    def held(self, name: str) -> list[list[int]]:
        """The pages that a request holds, group by group."""
        return [list(map(int, group)) for group in self.spec.manager.get_page_ids(name)]

    def names_of(self, live: bool) -> list[str]:
        """The ids that are live, or that are not."""
        return [name for name, case in self.cases.items() if case.live == live]

    # -- Hits ---------------------------------------------------------------------------------------------

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
                if content is not None and self.world.groups[group].keeps_states and _is_prefix(content, case.tokens):
                    return "MAN-13"  # the request's own state, after other tokens
                if any(content == self.ghost.full(group, place, *earlier) for earlier in case.earlier):
                    return "MAN-6"
                return "HASH-2" if content is not None and content.tokens == right.tokens else "R2"
        return ""

    def flaw_in_shape(self, case: Case, pages: list[list[int]], length: int) -> str:
        """The clause that a hit breaks by its length, or by null pages where there must be none; "" if it does not."""
        is_null = not any(map(any, pages)) and not any(length % group.page_size for group in self.world.groups)
        if length % self.hit_step or length >= case.request.num_tokens or is_null:
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
        if not clause and length >= expected[1]:
            clause = self.flaw_in_shape(case, pages, length)
        if clause or length == expected[1]:
            return clause or "MAN-1"
        eagle = ("MAN-9",) if self.world.eagle_groups else ()
        amid = self.amid if expected[1] % self.unit or length % self.unit else ()
        labels: tuple[str, ...] = (*amid, *eagle, *self.of_states, *self.own("MAN-7"), "MAN-1")
        return labels[0]

    # -- Slots ------------------------------------------------------------------------------------------

    def giving_back(self, name: str, computed: Any) -> tuple[str, ...]:
        """The clauses by which a live request's next call gives pages back (MAN-8, MAN-13)."""
        if not self.cases[name].live or not isinstance(computed, int | np.integer):
            return ()
        labels = []
        for group, held in zip(self.world.groups, self.held(name), strict=True):
            if group.gives_back and any(held[: group.first_place(int(computed))]):
                labels.append("MAN-13" if group.keeps_states else "MAN-8")
        return tuple(dict.fromkeys(labels))

    def blame_allocation(self, name: str, expected: Any, observed: Any, released: tuple[str, ...]) -> str:
        """The clause of wrong new pages: of what was given back just before, if anything was, or of states."""
        if expected is None or observed is None:
            return "MAN-17" if self.was.hits_amid else self.blame_room(name)
        wrong = [
            group for group, own, other in zip(self.world.groups, expected, observed, strict=False) if own != other
        ]
        states = wrong and all(group.keeps_states for group in wrong)
        return (*released, "MAN-13" if states else "MAN-2")[0]

    def blame_room(self, name: str) -> str:
        """The clause by which a request gets pages on one side only: what it gave back, or how many it asks for."""
        other: Any = attempt(lambda: self.backend.manager.get_page_ids(name)).value or ()
        for group, held, seen in zip(self.world.groups, self.held(name), other, strict=False):
            if group.gives_back and _unlike(held, seen):
                return "MAN-13" if group.keeps_states else "MAN-8"
        return "MAN-2"

    # -- The state --------------------------------------------------------------------------------------

    def blame_pages(self, expected: Any, observed: Any) -> str:
        """The clause of wrong page lists: of pages that gave way, of states, of pages given back; else of the call."""
        if any(self.gave_way(name, held, observed[name]) for name, held in expected.items()):
            return "MAN-2"
        wrong = [
            (group, own, other)
            for name, held in expected.items()
            for group, own, other in zip(self.world.groups, held, observed[name], strict=False)
            if own != other
        ]
        if wrong and all(group.keeps_states for group, _, _ in wrong):
            return "MAN-13"
        return "MAN-8" if any(group.gives_back and _unlike(own, other) for group, own, other in wrong) else ""

    def gave_way(self, name: str, held: Any, seen: Any) -> bool:
        """Whether another page stands where a request's list had one before the last call, and still must have it."""
        before: Any = self._before.get("pages of requests", {})
        return any(
            was == page != other and page and other
            for pages in zip(before.get(name, []), held, seen, strict=False)
            for was, page, other in zip(*pages, strict=False)
        )

    def blame_published(self, expected: Any, observed: Any) -> str:
        """The clause of wrongly cached pages.

        A page may be cached twice (POOL-8); the right pages may be cached under wrong keys; or states alone may be
        wrong, or pages that were cached and are let go (RET-3), or not full (MAN-17). Else the call is to blame.
        """
        seen = _flat(observed)
        if len(seen) > len(set(seen)):
            return "POOL-8"
        wrong = set(_flat(expected)) ^ set(seen)
        if not wrong:
            return self.blame_keys()
        states = {
            page
            for name in self.names_of(live=True)
            for group, held in zip(self.world.groups, self.held(name), strict=True)
            for page in held
            if group.keeps_states
        }
        if wrong <= states:
            return "MAN-13"
        gone, known = self.let_go(), {*_flat(self._before.get("hashed pages", []))}
        if self.amid and wrong <= {*gone} - known:
            return "MAN-17"  # a page that is published as it is let go is one that is not full
        parts = {page for page, group in gone.items() if self.world.groups[group].gives_back}
        return "RET-3" if self.of_parts and not self.was.withdraws and wrong <= parts & known else ""

    def let_go(self) -> dict[int, int]:
        """The pages that requests held before the last call and nobody holds after it, each with its group."""
        counts: Any = self._after["ref_cnt"]
        requests: Any = self._before.get("pages of requests", {})
        return {
            page: group
            for lists in requests.values()
            for group, held in enumerate(lists)
            for page in held
            if page and not counts[page]
        }

    def blame_counts(self, expected: Any, observed: Any) -> str:
        """The clause of wrong reference counts: of pages in no request's list, which copies are made from.

        That is of hits that end amid a page, or of states; else the call is to blame.
        """
        if not isinstance(observed, dict):
            return ""
        states: list[Any] = [self._before.get("pages of requests", {}), self._after["pages of requests"]]
        held = {page for requests in states for lists in requests.values() for pages in lists for page in pages}
        wrong = {page for page in expected if expected[page] != observed.get(page)}
        return "" if not wrong or wrong & held else (*self.amid, *self.of_states, "")[0]

    def blame_order(self, expected: Any, observed: Any) -> str:
        """The clause of free pages in a wrong order: a policy's, or that of pages which only some hits need.

        Where the pages of some group are let go head first, or others are free, the call is to blame; two pages of
        which only some hits need one may have changed places as well for their class (RET-3). Where the pages of
        requests are in order, and those that the tokens of hits amid a page are copied from are not, it is MAN-17.
        """
        gone = self.let_go()
        if not isinstance(observed, list) or {*expected} != {*observed}:
            return ""
        for group in {*gone.values()}:
            right, seen = ([page for page in order if gone.get(page) == group] for order in (expected, observed))
            by_class = bool(self.of_parts) and self.world.groups[group].gives_back
            if right != seen and right == seen[::-1] and (len(right) > 2 or not by_class):
                return ""
        before: Any = self._before.get("ref_cnt", {})
        right, seen = ([page for page in order if page in gone] for order in (expected, observed))
        if self.amid and right == seen and any(before.get(page) for page in {*expected} - {*gone}):
            return "MAN-17"
        policy = order_clause(self.options) == "EVICT-1"
        if not self.of_parts or not any(self.world.groups[group].gives_back for group in gone.values()):
            return "EVICT-1" if policy else ""
        hashed = next(shows.read for shows in self.fields if shows.name == "hashed pages")
        kept, seen = (attempt(functools.partial(hashed, side)).value for side in (self.spec, self.backend))
        if kept != seen:
            return self.blame_published(kept, seen)
        return "EVICT-1" if policy else "RET-3"

    def blame_keys(self) -> str:
        """The clause of pages that are cached under wrong keys; "" if keys are right, or not shown."""
        for shows in self.fields:
            if shows.name == "keys" and shows.blame is not None:
                right, seen = (attempt(functools.partial(shows.read, side)).value for side in (self.spec, self.backend))
                return shows.blame(right, seen) if right and seen and right != seen else ""
        return ""


def _is_prefix(content: Content, tokens: list[int]) -> bool:
    """Whether a page is about some tokens of a request, or about all and more."""
    length = min(len(content.tokens), len(tokens))
    return list(content.tokens[:length]) == tokens[:length]


def _unlike(held: list[int], other: list[int]) -> bool:
    """Whether null pages stand at other places."""
    return any((own == 0) != (page == 0) for own, page in zip(held, other, strict=False))


def _flat(cached: Any) -> list[Any]:
    """The pages of a list of hashed pages, or of a cached map."""
    return [page for entry in cached for page in (entry[1] if isinstance(entry, tuple) else [entry])]
