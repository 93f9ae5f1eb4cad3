"""Small worlds of managers: two requests over two tokens come, hit, run, starve, are freed and come back."""

import functools
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

from kvproof.spec.declarations import EngineRequestStatus
from kvproof.spec.pool.hashing import PageHash

from ...calls.datum import Call, Ref
from ..base import Both
from ..manager_base import POOL_REF, ManagerMachine
from ..properties import step
from ..worlds import World
from .manager_looks import ManagerLooks
from .renaming import SALTED, Text, extra_keys_of, swapped, texts_of_keys, tokens_of
from .ways import Move, Way

__all__ = ["ManagerShape", "ManagerWorld"]

NAMES = ("a", "b")

_Shown = tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]
"""What a state of a manager is: its pages, its live requests, and those that went or wait."""

_Ordered = tuple[_Shown, _Shown, list[int], list[str]]


@dataclass(frozen=True)
class ManagerShape:
    """What a world of managers begins with.

    Attributes:
        world: pages, groups, the longest request.
        prompts: what requests begin with, some perhaps with a salt; with each the one in which the two tokens have
            changed places.
        ways: how requests are admitted: ``hits``: with what a look-up finds; ``all``: for all their tokens, without;
            ``one``: for one token; ``late``: for all, to be published later.
        lookahead: whether a step may ask for a look-ahead slot.
    """

    world: World
    prompts: tuple[Text, ...]
    ways: tuple[str, ...] = ("hits", "all", "one", "late")
    lookahead: bool = False


@functools.cache
def _every_text(length: int, salted: bool) -> tuple[Text, ...]:
    bare = tuple(product((0, 1), repeat=length))
    return (*bare, *((*text, SALTED) for text in bare)) if salted else bare


class ManagerWorld(ManagerLooks):
    """One manager and two requests.

    Two states are the same if they differ in the names of pages, in the names of requests, or in which token is which.
    The contract treats pages alike but for their places in the queue (see `PoolWorld`), and requests alike but for the
    order of their admission: live ones are known by it, the others by what they are. Tokens enter only by whether they
    are equal. Beside what the pool keeps (see there) a manager keeps the page lists of the live requests, how far they
    are published, promised and computed, after which tokens states are, and the requests whose keys it knows: all that
    is in a snapshot (MAN-14) but what no call here reads (slots, counters, clocks). The machine's own book is in it
    too: whether a request was turned away for want of room since it last got slots, was live before, or holds a page
    that was withdrawn. States are told apart by that although the specification forgets it, since backends may not.
    """

    shape: ClassVar[ManagerShape]
    needs = (*ManagerMachine.needs, "CacheGroupSpec")
    always = ManagerMachine.always | {"MAN-3", "MAN-4", "MAN-5", "MAN-8", "MAN-10", "POOL-9", "POOL-11"}

    @step()
    def begin(self) -> None:
        """A manager without requests."""
        self.build_managers(self.shape.world)
        self.turned_away: set[str] = set()
        self.came_back: set[str] = set()
        self.text_of: dict[PageHash, Text] = {}
        for size in {group.page_size for group in self.world.groups}:
            every = _every_text(self.max_model_len // size * size, any(map(extra_keys_of, self.shape.prompts)))
            self.text_of |= texts_of_keys(self.spec.pool, every, size)

    # -- The state ----------------------------------------------------------------------------------------

    def key(self) -> Hashable:
        """See the class."""
        shown, other, _, _ = self._ordered()
        return min(shown, other)

    def _ordered(self) -> _Ordered:
        """See `_put_in_order`; it is done once in each state."""
        self._order = self._order or self._put_in_order()
        found: _Ordered = self._order
        return found

    def _put_in_order(self) -> _Ordered:
        """What this state is, what it were if the two tokens changed places, and its pages and requests in order.

        The pages stand in an order that no name changes; so do the requests: live ones as they were admitted, others
        by what they are, and last those that are unknown.
        """
        hashes = self._hashes()
        free = [int(page.page_id) for page in self.spec.pool.free_page_queue.get_all_free_pages()]
        held = self.spec.manager.coordinator.held
        names = {0: -1} | {page: place for place, page in enumerate(free)}
        for groups in held.values():
            for group in groups:
                for page in group.pages:
                    names.setdefault(page.page_id, len(names) - 1)
        pages = [(place, self.count(page), *hashes[page]) for page, place in names.items() if page]
        live = [
            (
                self._book(name),
                tuple(
                    (
                        tuple(names[page.page_id] for page in group.pages),
                        group.num_hits,
                        group.num_published,
                        tuple(group.states.items()),
                    )
                    for group in groups
                ),
            )
            for name, groups in held.items()
        ]
        gone = [(self._book(name), name) for name in NAMES if name in self.cases and name not in held]
        others = sorted(((swapped(book[0]), *book[1:]), name) for book, name in gone)
        gone.sort()
        shown = tuple(pages), tuple(live), tuple(book for book, _ in gone)
        other = (
            tuple((*page[:3], swapped(page[3]), page[4]) for page in pages),
            tuple(((swapped(book[0]), *book[1:]), groups) for book, groups in live),
            tuple(book for book, _ in others),
        )
        known = [*held, *(name for _, name in (others if other < shown else gone))]
        requests = [*known, *(name for name in NAMES if name not in known)]
        return shown, other, [page for page in names if page], requests

    def in_order(self) -> tuple[list[str], tuple[int, int]]:
        """See the class's base."""
        shown, other, _, names = self._ordered()
        return [name for name in names if name in self.cases], (1, 0) if other < shown else (0, 1)

    def _book(self, name: str) -> tuple[Any, ...]:
        """What the engine knows of a request."""
        case = self.cases[name]
        own = self._text(name), name in self.turned_away, name in self.came_back
        if not case.live:
            return own
        return *own, case.given, case.slots, case.told, case.computed, case.written, case.hits, case.void

    def _text(self, name: str) -> Text:
        """The tokens of a request, and whether it has a salt."""
        case = self.cases[name]
        return *case.tokens, *([SALTED] if case.request.extra_keys else [])

    def _hashes(self) -> dict[int, tuple[int, Text, int]]:
        """Of every page the group, the text and the rank of its hash; of one without, none."""
        found: dict[int, tuple[int, Text, int]] = dict.fromkeys(range(1, self.world.num_pages), (-1, (), 0))
        for key, pages in self.spec.pool.cached_page_hash_to_page.items():
            for rank, page in enumerate(pages):
                found[int(page.page_id)] = key.group_id, self.text_of[key.page_hash], rank
        return found

    def count(self, page: int) -> int:
        """How often a page is held."""
        return int(self.spec.pages[page].ref_cnt)

    # -- Moves ----------------------------------------------------------------------------------------------

    def moves(self) -> list[Move]:
        """What two requests can do next, and what makes the cache forget."""
        shown, other, pages, names = self._ordered()
        changed = other < shown
        cached = [page for page in pages if self.spec.pages[page].page_hash is not None]
        live = [name for name in names if name in self.cases and self.cases[name].live]
        gone = [name for name in names if name not in live]
        alike = len(gone) == 2 and len({name in self.cases and self._book(name) for name in gone}) == 1
        prompts = tuple(map(swapped, self.shape.prompts)) if changed else self.shape.prompts
        ways: list[Move] = []
        for name in gone[:1] if alike else gone:
            ways += self._admissions(name, prompts, bool(cached))
        for name in live:
            ways += self._steps(name, (1, 0) if changed else (0, 1))
            if self.offers("manager", "cache_pages") and self._unpublished(name):
                given = self.cases[name].given
                ways.append(self.on_manager("cache_pages", request=Ref(name), num_computed_tokens=given))
            ways.append(Way("give_back", (name, None)))
            if self.free_takes_written():
                ways += [Way("give_back", (name, written)) for written in sorted({0, self.cases[name].given - 1})]
        if self.offers("manager", "free_page_hashes"):
            ways += [Way("drop", (name,)) for name in gone if name in self.cases]
        if self.offers("pool", "evict_pages"):
            ways += [self.call_of("evict_pages", POOL_REF, page_ids=[page]) for page in cached]
        if cached and not any(self.count(page) for page in pages):
            ways.append(self.on_manager("reset_prefix_cache"))
        return ways

    def _admissions(self, name: str, prompts: tuple[Text, ...], cached: bool) -> Iterator[Way]:
        """A waiting request, or another under its id, is admitted; where nothing is cached there are no hits."""
        own = self._text(name) if name in self.cases else None
        ways = self.shape.ways if cached else tuple(dict.fromkeys("all" if w == "hits" else w for w in self.shape.ways))
        for tokens in (*((None,) if own else ()), *(prompt for prompt in prompts if prompt != own)):
            for how in ways:
                if how != "one" or len(tokens_of(own or () if tokens is None else tokens)) > 1:
                    yield Way("admit", (name, tokens, how))

    def _steps(self, name: str, tokens: tuple[int, int]) -> Iterator[Way]:
        case = self.cases[name]
        computed, known = min(case.given, case.request.num_tokens), case.request.num_tokens
        options = [{}, {"num_lookahead_tokens": 1}] if self.shape.lookahead else [{}]
        for more in options:
            if computed < known:
                yield Way("advance", (name, None, known - computed, more))
                if known - computed > 1:
                    yield Way("advance", (name, None, 1, more))
            elif known < self.max_model_len:
                yield from (Way("advance", (name, token, 1, more)) for token in tokens)

    def _unpublished(self, name: str) -> bool:
        """Whether a live request has full pages that are not published."""
        known = min(self.cases[name].given, self.cases[name].request.num_tokens)
        held = self.spec.manager.coordinator.held[name]
        return any(
            group.kind != "state" and known // group.page_size > pages.num_published
            for group, pages in zip(self.world.groups, held, strict=True)
        )

    @step()
    def admit(self, name: str, tokens: Text | None, how: str) -> None:
        """A request comes and gets slots: for its tokens with the hits or without, for one, or published late.

        Args:
            name: its id.
            tokens: its tokens; None: the request that was freed, or turned away, comes again.
            how: "hits", "all", "one" or "late".
        """
        if tokens is not None:
            self.bring(name, list(tokens_of(tokens)), extra_keys_of(tokens))
            self.turned_away.discard(name)
            self.came_back.discard(name)
        case = self.cases[name]
        found = self.lightly(lambda: self.look_up(name)) if how == "hits" else None
        hits = None if found is None else int(found.spec[1])
        new = 1 if how == "one" else case.request.num_tokens - (hits or 0)
        self._grant(name, self.allocate(name, new, hits, **({"delay_cache_pages": True} if how == "late" else {})))

    @step()
    def advance(self, name: str, token: int | None, new: int, options: dict[str, Any]) -> None:
        """A live request goes on: with tokens of its prompt, or with one that it just got."""
        case = self.cases[name]
        computed = min(case.given, case.request.num_tokens)
        if token is not None:
            self.grow(name, [token])
        case.request.num_computed_tokens = computed
        self._grant(name, self.allocate(name, new, **options))

    def _grant(self, name: str, allocated: Both) -> None:
        if allocated.spec is None:
            self.turned_away.add(name)
            return
        self.turned_away.discard(name)
        if any(group.kind == "aligned" for group in self.world.groups):
            self.call_manager("take_page_copies")

    def note_cache_pages(self, name: str, call: Call, _: Both) -> None:
        """Notes that tokens are written."""
        self.write(name, min(call.arguments["num_computed_tokens"], self.cases[name].given))

    @step()
    def give_back(self, name: str, written: int | None) -> None:
        """A request goes, its last step dispatched or not (MAN-4, MAN-5)."""
        live = self.cases[name].live
        self.free_request(name, written)
        if live:
            self.came_back.add(name)
            self.turned_away.discard(name)
            self.cases[name].request.status = EngineRequestStatus.PREEMPTED

    @step()
    def drop(self, name: str) -> None:
        """A request that went is finished: its keys are dropped (MAN-6)."""
        self.drop_keys(name)
        del self.cases[name]
        self.turned_away.discard(name)
        self.came_back.discard(name)
