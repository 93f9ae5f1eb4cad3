"""Small worlds of managers: two requests over two tokens come, hit, run, starve, are freed and come back."""

import functools
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

from kvproof.spec.declarations import EngineRequestStatus
from kvproof.spec.pool.hashing import PageHash

from ...calls.datum import Call, Pages, Ref, Saying
from ..base import Both
from ..manager_admission import Admission
from ..manager_base import MANAGER_REF, POOL_REF, ManagerMachine
from ..properties import step
from ..worlds import World
from .renaming import SALTED, Text, extra_keys_of, swapped, texts_of_keys, tokens_of
from .walk import Move, Way
from .world import SmallWorld

__all__ = ["ManagerShape", "ManagerWorld"]


_PROBE = "p"
"""The id of a request that is only looked up."""


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


class ManagerWorld(SmallWorld, Admission):
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

    # -- What changes nothing ----------------------------------------------------------------------------

    def on_manager(self, method: str, **arguments: Any) -> Call:
        """A call on the managers."""
        return self.call_of(method, MANAGER_REF, **arguments)

    def looks(self) -> list[Move]:
        """Everything that can be looked up or counted; calls that do nothing; calls with one fault.

        Faults that depend on nothing but one request are tried where there is no other.
        """
        names, tokens = self.in_order()
        live = [name for name in names if self.cases[name].live]
        gone = [name for name in names if name not in live]
        alone = len(names) < 2
        looks: list[Move] = []
        if self.offers("manager", "req_to_page_hashes"):
            looks.append(self.on_manager("req_to_page_hashes"))
        looks += [Way("find", (name,)) for name in (*gone, *live)]
        for name in live:
            looks += self._around_live(name, alone)
        looks += [self.on_manager("free", request=Ref(name)) for name in gone]
        if any(self.spec.pages[page].ref_cnt for page in self.spec.pages if page) or not any(
            view.page_hash for view in self.spec.pages.values()
        ):
            looks.append(self.on_manager("reset_prefix_cache"))
        looks += [Way("probe_for", (prompt,)) for prompt in self._probes(tokens)]
        if alone:
            looks += [Way("hit_wrongly", (page,)) for page in self._wrong_hits()]
        return looks

    def _around_live(self, name: str, alone: bool) -> Iterator[Call]:
        """Counts, publishing that does nothing or is refused, computed tokens that cannot be, requests of that id."""
        case, own = self.cases[name], Ref(name)
        stranger = self.namesake(name, case.request.extra_keys)
        counts = self.offers("manager", "get_num_common_prefix_pages")

        def going_on(computed: int, new: int) -> Call:
            request = Saying(own, (("num_computed_tokens", computed),))
            return self.on_manager("allocate_slots", request=request, num_new_tokens=new)

        def counting(count: int) -> Call:
            return self.on_manager("get_num_common_prefix_pages", request=own, num_scheduled_requests=count)

        if counts:
            yield counting(len(self.running()))
        if self.offers("manager", "cache_pages"):
            for count in (0, case.given + 1):
                yield self.on_manager("cache_pages", request=own, num_computed_tokens=count)
        least = case.given if self.world.has_states else max(case.least, int(case.request.num_computed_tokens))
        yield going_on(least, self.max_model_len - least + 1)
        yield going_on(case.slots + 1, 1)
        if case.least:
            yield going_on(case.least - 1, 1)
        yield self.on_manager("get_computed_pages", request=stranger)
        if alone:
            yield going_on(least, 0)
            yield self.on_manager("free", request=self.namesake(name))
            yield self.on_manager("allocate_slots", request=stranger, num_new_tokens=1)
            if counts:
                yield counting(2)
            if self.free_takes_written():
                yield self.on_manager("free", request=own, num_written=-1)

    def _wrong_hits(self) -> Iterator[int]:
        """The null page, and a page without a hash: no request's prefix."""
        yield 0
        yield from [page for page, view in self.spec.pages.items() if page and view.page_hash is None][:1]

    def _probes(self, tokens: tuple[int, int]) -> list[tuple[int, ...]]:
        """Requests that find all that can be found: a hit leaves one token out."""
        if not any(view.page_hash for view in self.spec.pages.values()):
            return [(0,) * self.max_model_len]
        units = (self.max_model_len - 1) // self.unit * self.unit
        return [(*prefix, 0) for prefix in product(tokens, repeat=units)]

    @step()
    def probe_for(self, tokens: tuple[int, ...]) -> None:
        """Looks up a request that nobody has seen before (MAN-1)."""
        self.bring(_PROBE, list(tokens))
        self.look_up(_PROBE)

    @step()
    def hit_wrongly(self, page: int) -> None:
        """A page is handed in as a hit that holds nothing of the request's (MAN-2)."""
        tokens = [0] * min(self.unit + 1, self.max_model_len)
        self.bring(_PROBE, tokens)

        pages = [[Ref("pages", (page,))] * (self.unit // group.page_size) for group in self.world.groups]
        hits = {"num_new_computed_tokens": self.unit, "new_computed_pages": Pages(pages)}
        self.call_manager("allocate_slots", request=Ref(_PROBE), num_new_tokens=1, **hits)

    @step()
    def find(self, name: str) -> None:
        """Looks up a request, waiting or live (MAN-1)."""
        self.look_up(name)
