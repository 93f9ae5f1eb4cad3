"""The pool machine of level safe: one page pool that takes and evicts whichever pages it likes.

The specification follows it: it takes the pages that the backend takes, finds those that it finds, and forgets what it
has forgotten. In all else the two must agree.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from hypothesis import strategies as st

from kvproof.spec.declarations import ExtraKey

from ...backends.capabilities import ESSENTIALS
from ...backends.levels import Level
from ...calls.datum import Call, GoneError, Key, Prompt, Ref, resolve
from ...calls.deviation import Outcome, attempt
from ...calls.judging import Difference
from ...calls.kinds import IDS_GIVEN
from ...calls.method import Given, Kind, Method, Table
from ...calls.pool import POOL
from ...calls.readings import page_ids
from ...calls.source import Source
from ...calls.values import EXTRA_KEYS
from ..base import Both, Charge, Field, Nothing, Side
from ..calling import Calls
from ..draws import Drawing
from ..pool import PoolMachine
from ..properties import start, step
from . import showing

__all__ = ["SafePool"]

_REFUSED = {
    "PagePool": ("num_pages", "enable_caching"),
    "get_new_pages": ("num_pages",),
    "touch": ("pages",),
    "free_pages": ("ordered_pages",),
    "cache_full_pages": ("request", "pages", "num_cached_pages", "num_full_pages"),
    "evict_pages": ("page_ids",),
}
"""The arguments that pools of every design have, and refuse where they are wrong."""


def _caching(source: Source, known: "SafePool") -> Given:
    """Full pages of a request behind those that are cached already, as engines do it."""
    size, fresh = known.page_size, source.some(known.cacheable(), 3, 1)
    group = source.one_of([0, 0, 0, 1] if known.takes_groups else [0])
    begun = source.one_of([(), *known.sequences])
    tokens = (*begun, *source.several([0, 1], 3 * size, 3 * size))
    extra_keys, how = source.one_of(known.extra_keys), source.token_spelling(known.takes_iterables)
    there = known.pages_before(Prompt(tokens, extra_keys), group)[: len(tokens) // size - len(fresh)]
    first = source.one_of([len(there), len(there), source.integer(0, len(there))])
    end = first + len(fresh)
    tokens = tokens[: end * size + source.integer(0, 1)]
    known.sequences.append(tokens)
    return {
        "request": Prompt(tokens, extra_keys, how),
        "pages": list(map(known.ref, [*there[:first], *fresh])),
        "page_hashes": [],
        "num_cached_pages": first,
        "num_full_pages": end,
        "page_size": size,
        "kv_cache_group_id": group,
    }


_GROUP_IDS = Kind(good=lambda source, known: source.one_of([[0], [0], [1], [0, 1]] if known.takes_groups else [[0]]))
_FOUND = Kind("pages", plain=lambda pages, _: None if pages is None else page_ids(pages))

SAFE_POOL = Table(
    POOL.name,
    POOL.owner,
    (
        POOL["PagePool"],
        replace(POOL["get_new_pages"], result=IDS_GIVEN, refuses=("POOL-1", "POOL-2", "POOL-4"), weight=3),
        replace(POOL["touch"], optional=True),
        replace(POOL["free_pages"], refuses=()),
        replace(POOL["cache_full_pages"], draw=_caching, refuses=("POOL-8", "HASH-3"), optional=True),
        replace(
            POOL["get_cached_page"],
            arguments={**POOL["get_cached_page"].arguments, "kv_cache_group_ids": _GROUP_IDS},
            result=_FOUND,
            refuses=("R2", "HASH-2"),
            optional=True,
            weight=3,
        ),
        POOL["evict_pages"],
        replace(POOL["reset_prefix_cache"], result=Kind(plain=lambda done, _: bool(done)), optional=True),
    ),
)
"""What pools of every design are asked, without what is about the order of free pages."""


class SafePool(PoolMachine):
    """Takes, touches, frees, caches, evicts, looks up and resets.

    Attributes:
        page_size: tokens in a page.
        free: the pages that were free before the last call.
        first: what came of the last call on the backend, where it was made there first.
    """

    name = "safe-pool"
    examples = 80
    levels: ClassVar[frozenset[Level]] = frozenset({"safe"})
    shows_answers = True
    tables: ClassVar[tuple[Table, ...]] = (SAFE_POOL,)
    needs: ClassVar[tuple[str, ...]] = ESSENTIALS["PagePool"]
    always = frozenset({"R1", "POOL-1", "POOL-2", "POOL-3", "POOL-5", "POOL-7", "POOL-10"})
    extra_keys: ClassVar[tuple[tuple[ExtraKey, ...], ...]] = ((),) * (2 * len(EXTRA_KEYS)) + EXTRA_KEYS

    @start(num_pages=st.integers(3, 9), caching=st.sampled_from([True] * 5 + [False]), page_size=st.integers(1, 2))
    def construct(self, num_pages: int, caching: bool, page_size: int) -> None:
        """A fresh pool: all of its pages are free."""
        self.page_size = page_size
        self.first: Outcome | None = None
        self.free: list[int] = []
        self.build_pool(num_pages, caching)
        self.seeded = self.tells = False  # keys are of any kind: those of pages are handed back

    def state_fields(self, options: Mapping[str, Any]) -> list[Field]:
        """See `PoolMachine.state_fields`: what the backend shows."""
        del options
        began = {id(side): showing.count_of_null(side) for side in (self.spec, self.backend)}
        readers: dict[str, tuple[str, Callable[[Side], object]]] = {
            "ref_cnt": ("POOL-5", showing.counts),
            "number of free pages": ("POOL-2", showing.num_free),
            "pages in the queue": ("POOL-2", showing.free_in_queue),
            "usage": ("POOL-10", showing.usage),
            "null page": ("POOL-1", showing.null_page),
            "change of its count": ("POOL-1", lambda side: showing.count_of_null(side) - began[id(side)]),
            "hashed pages": ("POOL-7", showing.with_hash),
            "cached pages": ("POOL-7", showing.resident),
        }
        shown = {name: known for name, known in readers.items() if known[1](self.backend) is not None}
        if "cached pages" not in shown:
            self.session.lacks.add("what shows which pages are cached")
        aside = {"usage", "null page", "change of its count"}
        return [Field(name, clause, read, aside=name in aside) for name, (clause, read) in shown.items()]

    def target_of(self, table: Table, source: Source) -> Ref:
        """See `Calling.target_of`."""
        del table, source
        return Ref("pool")

    # -- What is known ------------------------------------------------------------------------------------

    @property
    def shows_cached(self) -> bool:
        """Whether the backend shows which pages are cached; else the specification forgets none that is not evicted."""
        return any(shows.name == "cached pages" for shows in self.fields)

    def touchable(self) -> list[int]:
        """See `PoolMachine.touchable`: cached pages, where it is shown that they are."""
        return super().touchable() if self.shows_cached else [page for page in self.owned if self.count(page)]

    def pages_before(self, prompt: Prompt, group: int) -> list[int]:
        """The pages that are cached for a request's first pages, up to the first that none is cached for."""
        found: list[int] = []
        for place in range(len(prompt.tokens) // self.page_size):
            pages = self.spec.pool.cached_under(self._spec_key(Key(prompt, self.page_size, place)), group)
            if not pages:
                break
            found.append(int(pages[0].page_id))
        return found

    def can_spoil(self, row: Method, argument: str) -> bool:
        """See `Calling.can_spoil`: of what pools of any design refuse; what is cached already must be shown."""
        known = argument in _REFUSED.get(row.name, ()) and (self.shows_cached or argument != "pages")
        return known and super().can_spoil(row, argument)

    def make_call(self, call: Call) -> Both:
        """See `Calling.make_call`: one that names the null page is left out where the backend shows none."""
        if 0 not in self.backend.pages:
            try:
                resolve((call.target, *call.arguments.values()), self.backend)
            except GoneError:
                raise self.left_out() from None
        return super().make_call(call)

    # -- The specification follows --------------------------------------------------------------------------

    def perform(self, side: Side, call: Call, row: Method) -> Any:
        """See `Calling.perform`: where a backend may choose pages it goes first."""
        if call.target != Ref("pool"):
            return super().perform(side, call, row)
        if side is self.backend and self.first is not None:
            first, self.first = self.first, None
            if first.error is not None:
                raise first.error
            return first.value
        if side is self.spec:
            self.first, self.free = None, [page for page in self.owned if not self.count(page)]
            if self._repeats and row.name == "cache_full_pages" and not call.refused and not self.is_behind(call):
                raise self.left_out()
            if row.name == "get_cached_page":
                return self.find_alike(call, row, super().perform(side, call, row))
            if row.name == "get_new_pages" and _is_count(call.arguments["num_pages"], len(self.free)):
                self.take_first(self.ask_first(call, row), call.arguments["num_pages"])
        return super().perform(side, call, row)

    def is_behind(self, call: Call) -> bool:
        """Whether the pages before those that a call caches are cached for the same request."""
        before = self.ids(call.arguments["pages"][: call.arguments["num_cached_pages"]])
        keys = [self._spec_key(Key(call.arguments["request"], self.page_size, place)) for place in range(len(before))]
        held = [self.spec.pool.key_of_page(page) for page in before]
        return [key and key.page_hash for key in held] == keys

    def ask_first(self, call: Call, row: Method) -> list[int] | None:
        """Makes a call on the backend before it is made on the specification; returns the pages that it gave."""
        self.calls.append(self.line(call, row))
        with self.watched(self.session.noticed(row.clause), "pages"):
            first = self.first = attempt(lambda: super(SafePool, self).perform(self.backend, call, row))
            found: list[int] | None = attempt(lambda: first.value and page_ids(first.value)).value
        self.calls.pop()
        return found

    def take_first(self, pages: list[int] | None, count: int) -> None:
        """Makes the specification take some pages next, if these are right."""
        if pages is not None and len({*pages} & {*self.free}) == len(pages) == count:
            self.spec.pool.free_order.wanted = list(pages)

    def find_alike(self, call: Call, row: Method, found: Any) -> Any:
        """What a look-up may find: of several pages of equal content whichever the backend finds."""
        pages = self.ask_first(call, row)
        if pages is None:
            return found if self.shows_cached or self.first is None or self.first.error is not None else None
        alike = found is not None and list(map(self.held_key, pages)) == [self.held_key(page.page_id) for page in found]
        return [self.spec.pages[page] for page in pages] if alike else found

    def held_key(self, page: int) -> Any:
        """The specification's key of a cached page; None of any other."""
        return self.spec.pool.key_of_page(page)

    def compare_states(self, charge: Charge, fixed: bool = False) -> None:
        """See `Machine.compare_states`: what the backend has forgotten, the specification forgets.

        A look-up, an eviction and a refused call make it forget nothing else, and of what is cached just now a page of
        equal content stays.
        """
        made = self._trace[-1] if self._trace else None
        if not fixed and isinstance(made, Call) and made.method not in ("get_cached_page", "evict_pages"):
            seen = attempt(lambda: showing.resident(self.backend)).value
            gone = [] if seen is None else [page for page in self.cached() if page not in seen]
            fresh = self.ids(made.arguments["pages"]) if made.method == "cache_full_pages" else []
            alone = [
                page for page in fresh if not {self.held_key(page)} & {self.held_key(other) for other in seen or ()}
            ]
            self.spec.pool.evict_pages([page for page in gone if page not in alone])
        super().compare_states(charge, fixed)

    # -- Judging --------------------------------------------------------------------------------------------

    def build_backend(self, line: str, clause: str, act: Callable[[Side], Mapping[str, Any]]) -> None:
        """See `Machine.build_backend`."""
        super().build_backend(line, self.session.noticed(clause), act)

    def call(self, line: str, act: Callable[[Any], Any], clause: str, *more: Any, **named: Any) -> Both:
        """See `Machine.call`."""
        return super().call(line, act, self.session.noticed(clause), *more, **named)

    def charges_of(self, row: Method, call: Call) -> Mapping[str, str]:
        """See `Calling.charges_of`: which pages are free is POOL-2 after every call."""
        del call
        hashes = row.clause if row.clause in ("POOL-3", "POOL-9", "POOL-11") else "POOL-7"
        return {"ref_cnt": row.clause} | dict.fromkeys(("hashed pages", "cached pages"), hashes)

    def compared_call(
        self, expected: Outcome, observed: Outcome, clause: str, *more: Any, **named: Any
    ) -> Difference | None:
        """See `Machine.compared_call`: what is wrong with pages that were chosen, and with what pages hold (R2)."""
        found = super().compared_call(expected, observed, clause, *more, **named)
        if found is None or observed.error is not None or expected.error is not None:
            return found
        made = self._trace[-1]
        assert isinstance(made, Call), "each step is a call"
        pages = attempt(lambda: page_ids(observed.value)).value
        if made.method == "get_new_pages" and pages is not None:
            count = made.arguments["num_pages"]
            label = "POOL-2" if len({*pages}) == len(pages) == count else clause
            label = label if {*pages} <= {*self.owned} else "POOL-1"
            return found._replace(clause=label, expected=f"{count} different pages that nobody holds: of {self.free}")
        if made.method == "get_cached_page" and pages is not None:
            asked = self._spec_key(made.arguments["page_hash"])
            held = [key and key.page_hash.token_ids for key in map(self.held_key, pages)]
            label = "HASH-2" if set(held) == {asked.token_ids} else "R2"
            right = f"pages that hold {list(asked.token_ids)} with these extra keys, or None"
            return found._replace(clause=label, expected=right)
        return found

    # -- Steps ----------------------------------------------------------------------------------------------

    @step("POOL-9", "POOL-11")
    def forget(self, source: Drawing) -> Calls:
        """Drops the hashes of some pages, held or free; or every hash, if no page is held."""
        rows = [row for name in ("reset_prefix_cache", "evict_pages") if self.can_call(row := SAFE_POOL[name])]
        if not rows:
            raise Nothing
        row, held = source.one_of(rows), self.mentions()
        if row.name == "reset_prefix_cache" and held and source.one_of([True, False]):
            yield self.call_of("free_pages", Ref("pool"), ordered_pages=list(map(self.ref, held)))
        yield self.drawn(row, source)

    @step("POOL-4", "POOL-6", "POOL-8", "POOL-11", "HASH-3", weight=3)
    def misuse(self, source: Drawing) -> Calls:
        """Makes a call with one fault."""
        yield self.spoilt(source.one_of(self.spoilable()), source)


def _is_count(value: Any, most: int) -> bool:
    return not isinstance(value, bool) and hasattr(value, "__index__") and 0 <= value <= most
