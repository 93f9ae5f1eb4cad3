"""The soak of level safe: long lives of managers that may evict in an order of their own.

The specification follows, as in small worlds (`following`) and where logs are replayed (`calls.following`). A call that
says what is cached of a prefix is made on the backend first, too, and both go on from the prefix that this found.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from kvproof.spec.declarations import Request

from ...backends.capabilities import ESSENTIALS
from ...backends.levels import Level
from ...backends.loading import Backend
from ...calls.contrast import shown
from ...calls.deviation import Outcome, attempt
from ...calls.following import compared, follows, strays, taken
from ...calls.judging import Difference
from ...calls.logged import KeyNumbers, result
from ...calls.manager import MANAGER
from ...calls.method import Method
from ..base import Both, Field, Nothing, Side, Undecided
from ..pool_state import follower_field, pin_fields
from ..properties import operation
from ..shards import of_every_shard
from ..sides import unread
from ..soak import Soak
from ..soak_base import shard_of_pages
from . import showing
from .following import Following
from .showing import Lists

__all__ = ["SafeSoak"]


@dataclass(frozen=True)
class _Hit:
    """What is handed over for a request as found before.

    Attributes:
        name: the request's id.
        pages: the ids of the pages, a list for each group.
        shard: the shard whose they are.
    """

    name: str
    pages: Lists
    shard: int


class _Importing:
    """A manager by which a prefix is imported, and which notes where its pages go.

    Args:
        manager: a side's manager.

    Attributes:
        plan: what its `receive_pages` returned.
    """

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self.plan: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    def receive_pages(self, *given: Any, **named: Any) -> Any:
        """See `CacheManager.receive_pages`."""
        self.plan = self._manager.receive_pages(*given, **named)
        return self.plan


class SafeSoak(Following, Soak):
    """Managers with those of tables, pins, host memory and events that the backend has.

    Attributes:
        row: the method of the call that is being followed; None between such calls.
        right: what the specification returned in that call.
        sought: the request that was looked up last; None if it is none of the life.
        handed: what is handed over as a hit in that call.
        reached: for each live request its computed tokens at the last call for it, hits included.
        promised: for each live request the most tokens that it was given slots for, look-ahead left out.
    """

    name = "safe-soak"
    levels: ClassVar[frozenset[Level]] = frozenset({"safe"})
    needs: ClassVar[tuple[str, ...]] = ESSENTIALS["CacheManager"]
    examples = 8
    capability = ""
    compared_by: ClassVar[tuple[str, ...]] = ()
    left_out: ClassVar[frozenset[str]] = frozenset({"match_unit"})
    """From which page the first tokens are copied depends on what was evicted: `SafeAmid` judges that."""
    always = frozenset(
        {"R1", "POOL-1", "POOL-2", "POOL-5", "POOL-9", "POOL-10", "POOL-11", "POOL-12", "PIN-1", "TAB-1"}
        | {"SWAP-1", "SWAP-2", "TAB-4"}
        | {f"MAN-{number}" for number in (1, 2, 3, 4, 5, 7, 10, 11, 12, 13, 14)}
    )

    def __init__(self) -> None:
        super().__init__()
        self.row: Method | None = None
        self.right: Any = None
        self.sought: Request | None = None
        self.handed: _Hit | None = None
        self.reached: dict[str, int] = {}
        self.promised: dict[str, int] = {}

    # -- What the backend has -------------------------------------------------------------------------------

    def options_of(self, side: Side) -> Mapping[str, Any]:
        """See `SoakBase.options_of`: the specification keeps all that may be kept, and is told what it evicts."""
        return self.options if side is self.backend else self.keeping_all(self.options)

    def new_tables(self, names: Backend) -> dict[str, Any]:
        """See `SoakBase.new_tables`: a backend may have none."""
        if self.lacks("tables") or not self.offered("MultiGroupPageTable"):
            self.rows = 0
            return {}
        return super().new_tables(names)

    def parts_of(self, manager: Any) -> dict[str, Any]:
        """See `SoakBase.parts_of`."""
        return self.shown_parts(manager)

    def num_free(self, side: Side) -> list[Any]:
        """See `SoakBase.num_free`; None of a pool that does not tell."""
        return list(map(showing.num_free, side.shards))

    # -- The state ------------------------------------------------------------------------------------------

    def state_fields(self) -> list[Field]:
        """See `SoakBase.state_fields`: what the backend shows, without what is about the order of free pages."""
        told = self.shown_fields()
        return [
            *((Field.of("shards of requests", self.cases),) if self.shards else ()),
            Field("pages of requests", "MAN-2", self.pages_of_requests),
            *(map(of_every_shard, told) if self.shards else told),
            *self.usage_fields(),
            *((self.table_rows(),) if self.rows else ()),
            *((follower_field(),) if "enable_events" in self.options else ()),
            *(pin_fields()[:1] if "max_pinned_pages" in self.options else ()),
        ]

    def count_free(self) -> None:
        """See `SoakBase.count_free`; where they are not as many, whose pages are others is told first."""
        free = attempt(lambda: self.num_free(self.backend)).value
        if free is not None and None in free:
            return
        if free != self.num_free(self.spec):
            before, self.closely = self.closely, True
            try:
                self.compare_states({})
            finally:
                self.closely = before
        super().count_free()

    def drained(self) -> tuple[str, Callable[[list[int], Side], object]]:
        """See `Soak.drained`: in any order."""
        return "POOL-2", lambda pages, _: sorted(pages)

    # -- What is cached -------------------------------------------------------------------------------------

    def is_resident(self, pages: Lists, shard: int) -> bool:
        """Whether the backend shows that it has pages of the same content as each of some of the specification's."""
        seen = self.resident(shard)
        key_of = self.spec.shards[shard].pool.key_of_page
        there = {key_of(page) for page in seen or ()}
        return seen is not None and all(key_of(page) in there for group in pages for page in group if page)

    def forget(self) -> None:
        """Makes the specification forget the free pages that the backend has forgotten: nobody can publish them again.

        Those of live requests may be published later, by their next calls.
        """
        for number, shard in enumerate(self.spec.shards):
            seen = self.resident(number)
            if seen is not None:
                gone = {*(showing.resident(shard) or ())} - {*seen}
                shard.pool.evict_pages([page for page in gone if not shard.pages[page].ref_cnt])

    def finds_alike(self, request: Request) -> bool:
        """Whether both sides find the same pages for a request."""
        shadow = self.known["shadow"] = Request("shadow", [*map(int, request.all_token_ids), 7], request.extra_keys)
        found = []
        for side in (self.spec, self.backend):
            pages, length = side.manager.get_computed_pages(shadow)
            found.append((showing.ids_of(pages), int(length)))
        return found[0] == found[1]

    # -- Calls that are followed ----------------------------------------------------------------------------

    def made(
        self, method: str, line: str, act: Callable[[Any], Any], normal: Callable[[Any, Side], object], *features: str
    ) -> Both:
        """See `SoakBase.made`: where a backend may choose pages it goes first, and the specification follows."""
        row = self.table[method]
        if row.by_eviction:
            return super().made(method, line, act, unread, *features)
        if method == "free" and normal is row.result.plain:
            return super().made(method, line, act, lambda held, _: sorted(map(str, held or ())), *features)
        if not follows(row):
            return super().made(method, line, act, normal, *features)

        def plain(value: Any, _: Any = None) -> Any:
            return result(row.result.log, value, KeyNumbers())

        def pages_of(value: Any) -> list[int]:
            return taken(method, attempt(lambda: plain(value)).value)

        if self.shards or row.result.log in ("pin", "plan"):
            self.forget()
        self.row = row
        try:
            return super().made(method, line, self.followed(line, row.clause, act, pages_of), plain, *features)
        finally:
            self.row = None

    def follow(self, first: Outcome, act: Callable[[], Any]) -> Any:
        """See `Following.follow`."""
        del first
        self.right = act()
        return self.right

    def compared_call(
        self,
        expected: Outcome,
        observed: Outcome,
        clause: str,
        normal: Callable[[Any, Side], object],
        blame: Callable[[Any, Any], str] | None = None,
    ) -> Difference | None:
        """See `Machine.compared_call`: what an order of eviction explains is no difference."""
        found, row = super().compared_call(expected, observed, clause, normal, blame), self.row
        if row is None or expected.error is not None:
            return found
        if observed.error is not None:
            if self.handed is not None and not self.is_resident(self.handed.pages, self.handed.shard):
                raise Undecided  # it has forgotten what it found before
            return found
        seen = attempt(lambda: normal(observed.value, self.backend))
        if seen.error is not None:
            return found
        shard = self.shard_of(self.right, observed.value)
        self.require_handed(shard)
        if row.result.log in ("pin", "plan") and self.holds_others(shard):
            raise Undecided
        if found is None:
            return None
        if strays(row, found) or _is_another_plan(row, expected.value, seen.value):
            raise Undecided
        flaw = compared(row, expected, seen, self.spec.shards[shard].pool)
        if row.result.log != "hit":
            return flaw
        if flaw is None:
            return self.flaw_in_length(expected.value, seen.value, shard)
        label: str | None = attempt(lambda: self.flaw_in_content(seen.value[0], shard)).value
        return flaw._replace(clause=label or flaw.clause)

    def flaw_in_content(self, pages: Lists, shard: int) -> str:
        """The label of a hit on pages that do not hold the request's own prefix; "" where they do.

        Args:
            pages: the pages that were found.
            shard: their shard.
        """
        if self.sought is None:
            return ""
        pool = self.spec.shards[shard].pool
        hashed = self.spec.names.get("hash_request_tokens")
        label = ""
        for group, own in zip(self.world.groups, pages, strict=True):
            keys = hashed(pool.hash_function, group.page_size, self.sought, none_hash=pool.none_hash)
            for page, right in zip(own, keys, strict=False):
                if not page:
                    continue
                held = pool.key_of_page(page)
                if held is None or held.page_hash.token_ids != right.token_ids:
                    return "R2"
                if held.page_hash != right:
                    label = "HASH-2"
        return label

    def flaw_in_length(self, right: Any, seen: Any, shard: int) -> Difference | None:
        """A hit that is shorter than the specification's is wrong where the backend has cached all of that one.

        With Eagle it needs a page more, which no result shows.
        """
        (pages, longest), length = right, seen[1]
        if length == longest or self.world.eagle_groups or not self.is_resident(pages, shard):
            return None
        label = "MAN-13" if self.world.has_states else "MAN-7" if len(self.world.groups) > 1 else "MAN-1"
        said = f"{longest} tokens, the longest prefix that is resident: {shown(pages)}"
        return Difference(label, said, f"{length} tokens: {shown(seen[0])}")

    def shard_of(self, right: Any, seen: Any) -> int:
        """The shard from which both sides gave pages, or of which they found some.

        Which one it is depends on what is cached: nothing is decided where the sides have not the same.
        """
        if not self.shards:
            return 0
        sides = (self.spec, right), (self.backend, seen)
        one, other = (_shard_in(value, side) for side, value in sides)
        if one is not None and other is not None and one != other:
            if any(self.resident(number) != showing.resident(shard) for number, shard in enumerate(self.spec.shards)):
                raise Undecided
            self.differ("POOL-12", f"pages of shard {one}", f"pages of shard {other}")
        return one or 0

    def holds_others(self, shard: int) -> bool:
        """Whether the sides hold other pages of equal content, of which a call may find any: no plan tells which."""
        held = showing.counts(self.spec.shards[shard]) or {}
        seen: dict[int, int] | None = attempt(lambda: showing.counts(self.backend.shards[shard])).value
        if seen is None:
            return False
        more: Counter[Any] = Counter()
        for page, count in held.items():
            if count != seen.get(page):
                more[self.spec.shards[shard].pool.key_of_page(page)] += count - seen.get(page, 0)
        return bool(more) and None not in more and not any(more.values())

    def require_handed(self, shard: int) -> None:
        """Nothing is decided behind a request that holds other pages of equal content than were handed over."""
        if self.handed is None:
            return
        sides = (self.spec, self.backend)
        right, seen = (showing.ids_of(side.manager.get_page_ids(self.handed.name)) for side in sides)
        key_of = self.spec.shards[shard].pool.key_of_page
        if right != seen and list(map(len, right)) == list(map(len, seen)):
            pairs = [pair for groups in zip(right, seen, strict=True) for pair in zip(*groups, strict=True)]
            others = [(one, other) for one, other in pairs if one != other]
            if all(one and other and key_of(one) is not None and key_of(one) == key_of(other) for one, other in others):
                raise Undecided

    def found_alike(self, found: Both) -> Both:
        """What each side goes on from: of the specification its own pages with the ids that the backend found."""
        if found.refused:
            return found
        pages, length = found.backend
        shard = self.spec.shards[_shard_in(pages, self.backend) or 0 if self.shards else 0]
        own = [[shard.pages[page] for page in group] for group in showing.ids_of(pages)]
        return Both((self.spec.names.get("CachePages")(own), int(length)), found.backend)

    # -- Requests -------------------------------------------------------------------------------------------

    @operation
    def come_many(self, first: int, count: int, tokens: int, shared: int) -> None:
        """See `Soak.come_many`: the specification follows request by request."""
        requests, shared, tells = self.bring_many(first, count, tokens, shared)

        def line(end: int) -> str:
            return f"for n in range({first}, {end}): manager.allocate_slots({tells}, <behind its hit>)"

        before, place, self.hurrying = self.hurrying, len(self.calls), True
        try:
            for number, request in enumerate(requests, first):
                self.calls[place:] = [line(number)]
                found = self.look_up(request.request_id)
                start = 0 if found.refused else found.spec[1]
                more = ["many", *(["hit"] if shared else [])]
                self.allocate(request.request_id, start, request.num_tokens - start, found, 0, False, *more)
                if not self.cases[request.request_id].live:
                    del self.cases[request.request_id]
        finally:
            self.hurrying = before
        self.calls[place:] = [line(first + count)]
        self.compare_states({})

    def found(self, request: Request, name: str, *features: str) -> Both:
        """See `Soak.found`."""
        self.sought = request
        return self.found_alike(super().found(request, name, *features))

    def looked_up(self, line: str, act: Callable[[Side], Any]) -> Both:
        """See `SoakMoves.looked_up`."""
        self.sought = None
        return self.found_alike(self.made("get_computed_pages", line, act, unread))

    def allocate(
        self, name: str, start: int, new: int, found: Both | None, lookahead: int, delay: bool, *features: str
    ) -> None:
        """See `Soak.allocate`: without the options that the backend lacks."""
        if "together" in features and not self.session.gives_bad_input:
            found, end = self.look_up(name), start + new  # what was found before may be gone
            start = found.spec[1]
            new = min(max(end - start, 1), self.cases[name].request.num_tokens - start)
        lookahead = lookahead if self.takes_option("allocate_slots", "num_lookahead_tokens") else 0
        delay = delay and self.takes_option("allocate_slots", "delay_cache_pages")
        if found is not None and start:
            pages = found.backend[0]
            shard = _shard_in(pages, self.backend) or 0 if self.shards else 0
            self.handed = _Hit(name, showing.ids_of(pages), shard)
        try:
            super().allocate(name, start, new, found, lookahead, delay, *features)
        finally:
            self.handed = None
        if self.cases[name].live:
            self.reached[name] = start
            self.note_promised(name)

    @operation
    def step(self, *given: Any) -> None:
        """See `Soak.step`."""
        super().step(*given)
        for name in self.running():
            self.note_promised(name)

    def note_promised(self, name: str) -> None:
        """Notes how far a live request has got slots."""
        self.promised[name] = max(self.promised.get(name, 0), self.cases[name].given)

    def gone(self, name: str) -> None:
        """See `SoakBase.gone`."""
        super().gone(name)
        self.promised.pop(name, None)

    def goes_on(self, name: str, computed: int) -> None:
        """See `Soak.goes_on`: what it has computed may be published now, also where it gets no slots (MAN-2)."""
        self.reached[name] = computed
        self.spec.manager.cache_pages(self.cases[name].request, computed)

    @operation
    def publish(self, name: str) -> None:
        """See `Soak.publish`."""
        if not self.offers("manager", "cache_pages"):
            raise Nothing
        super().publish(name)

    @operation
    def go(self, name: str, unwritten: int | None) -> None:
        """See `Soak.go`: what it had computed at its last call was written, as an engine tells of it in order."""
        case = self.case_of(name)
        if unwritten is not None and case.live:
            most = max(case.given - self.reached.get(name, 0), 0)
            unwritten = min(unwritten, most) if self.takes_option("free", "num_written") else None
        self.ends(name, unwritten)
        super().go(name, unwritten)

    @operation
    def go_many(self, count: int, last: bool) -> None:
        """See `Soak.go_many`."""
        for name in self.running()[-count:] if last else self.running()[:count]:
            self.ends(name, None)
        super().go_many(count, last)

    def ends(self, name: str, unwritten: int | None) -> None:
        """A request is about to go: what was written of it may be published now, also what was to be later (MAN-4)."""
        case = self.cases[name]
        if case.live:
            most = max(self.promised.get(name, 0), case.given)
            written = most if unwritten is None else max(case.given - unwritten, 0)
            self.spec.manager.cache_pages(case.request, written)

    @operation
    def commit(self) -> None:
        """See `Soak.commit`."""
        if not self.rows:
            raise Nothing
        super().commit()

    @operation
    def reset(self) -> None:
        """See `Soak.reset`."""
        if not self.offers("manager", "reset_prefix_cache"):
            raise Nothing
        super().reset()

    def drain_shard(self, number: int, free: int, alone: int) -> None:
        """See `Soak.drain_shard`: of a pool that can be asked."""
        pool = self.backend.shards[number].pool
        if all(hasattr(pool, method) for method in ("get_new_pages", "free_pages")):
            super().drain_shard(number, free, alone)

    @operation
    def look(self) -> None:
        """See `Soak.look`."""
        if not self.usage_fields():
            raise Nothing
        self.call("manager.usage", showing.usage, "POOL-10")

    # -- Prefixes from elsewhere ----------------------------------------------------------------------------

    def exported(self, line: str, request: Request, act: Callable[[Side], Any]) -> Both:
        """See `SoakMoves.exported`: of a request of which both sides find the same pages."""
        self.forget()
        if not self.finds_alike(request):
            raise Nothing
        return super().exported(line, request, act)

    def imported(self, line: str, request: Request, act: Callable[..., bool]) -> Both:
        """See `SoakMoves.imported`: of a request of which both sides find the same pages."""
        self.forget()
        if not self.finds_alike(request):
            raise Nothing
        into = _Importing(self.backend.manager)
        row = MANAGER["receive_pages"]

        def pages_of(_: Any) -> list[int]:
            return taken(row.name, result(row.result.log, into.plan, KeyNumbers()))

        def importing(side: Side) -> bool:
            return act(side, into) if side is self.backend else act(side)

        return super().imported(line, request, self.followed(line, "SWAP-2", importing, pages_of))


def _is_another_plan(row: Method, right: Any, seen: Any) -> bool:
    """Whether two plans have different numbers, by which later calls name them."""
    return row.result.log == "plan" and bool(right and seen) and right[0] != seen[0]


def _shard_in(value: Any, side: Side) -> int | None:
    """The shard whose pages were found or given; None where there are none."""
    pages: Any = value[0] if isinstance(value, tuple) else value
    return shard_of_pages(pages, side) if hasattr(pages, "get_page_ids") else None
