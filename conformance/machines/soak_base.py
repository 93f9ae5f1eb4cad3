"""What the soak stands on: managers with all that they have, what is known of requests, and how states are compared."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from hypothesis import strategies as st

from kvproof.spec.declarations import EngineRequestStatus, Request

from ..backends.loading import Backend
from ..calls.datum import Call, resolve
from ..calls.kinds import numbers_of
from ..calls.logged import ids_by_group
from ..calls.manager import MANAGER, SHARDS
from ..calls.method import Table, bound
from ..calls.readings import page_views
from .base import Both, Charge, Field, Machine, Nothing, Side
from .meetings import Meetings
from .pool_state import FOLLOWED, event_fields, order_clause, pin_fields, pool_fields, whole_fields
from .properties import start
from .session import TracedStep
from .shards import CHECK_OF_SHARDS, of_every_shard
from .soak_lives import MOST_CALLS, STEPS, WORK
from .worlds import World

__all__ = ["Served", "SoakBase", "hit_of", "page_ids_of", "shard_of_pages"]

_CLOSELY = 4
"""The first calls of a life that are each followed by a look at the whole state."""

_A_CALL = 16
"""What a call costs beside the pages that it touches, in pages."""


_A_STEP = WORK / STEPS
"""The pages that count as a step where a counterexample is made shorter: those of a step of the fullest life."""

_OF_MANY = frozenset({"come_many", "step", "go_many", "restore", "reset", "commit"})
"""The operations that touch what all requests hold."""


_CALLS = {"come_many": (1, 2), "go_many": (0, 1), "rank_often": (2, 1)}
"""The operations that make many calls: which of their arguments says how many, and the calls for each of those."""


@dataclass
class Served:
    """A request as an engine knows it.

    Attributes:
        request: the engine's object; both managers get the same one.
        number: by which its own tokens are told from others'.
        live: whether it was given slots and not yet freed.
        given: tokens up to which it was given slots, look-ahead left out.
        row: its row in the tables; -1 if it has none.
        flights: the plan whose copies are under way, and -2 if it is on its way back or -3 if its pages come from
            elsewhere; -1 if it is in host memory.
    """

    request: Request
    number: int
    live: bool = False
    given: int = 0
    row: int = -1
    flights: list[int] = field(default_factory=list)


def page_ids_of(pages: Any, side: Side) -> object:
    """The pages that a call returned by their ids, group by group; of shards behind the number of theirs."""
    if pages is None:
        return None
    ids = ids_by_group(pages)
    return ids if len(side.shards) == 1 else (shard_of_pages(pages, side), ids)


def shard_of_pages(pages: Any, side: Side) -> int | None:
    """The number of the shard that pages belong to; None if all are null pages."""
    page = next((page for group in pages.pages for page in group if page.page_id), None)
    if page is None:
        return None
    return next(number for number, shard in enumerate(side.shards) if shard.pages[int(page.page_id)] == page)


def hit_of(found: Any, side: Side) -> object:
    """What a look-up found, by ids, and how many tokens."""
    return page_ids_of(found[0], side), int(found[1])


class SoakBase(Machine):
    """Managers with tables, pins, priorities, host memory and events, whatever of it the backend has.

    A side has ``manager``, ``tables`` of all groups with a row for each live request, and ``shards``: of each its
    ``manager``, ``pool``, and ``pages`` by id. A manager without shards is its only one.

    Attributes:
        shards: the number of the manager's shards; 0 for a manager without.
        table: the table of its methods.
        cases: the requests by id; those that went for good are not among them.
        known: the requests that the managers know, whose keys a snapshot names.
        pins: the ids of the pins that are held.
    """

    needs: ClassVar[tuple[str, ...]] = ("CacheManager", "CachePages", "MultiGroupPageTable")
    examples, num_steps = 16, 30
    always = frozenset(
        {"R1", "POOL-1", "POOL-2", "POOL-3", "POOL-5", "POOL-7", "POOL-8", "POOL-9", "POOL-10", "POOL-11", "EVICT-1"}
        | {"HASH-1", "HASH-2", "HASH-3", "MAN-1", "MAN-2", "MAN-3", "MAN-4", "MAN-5", "MAN-8", "MAN-10", "MAN-11"}
        | {"MAN-12", "MAN-13", "MAN-14", "MAN-17", "PIN-1", "PIN-2", "POOL-12", "RET-2"}
        | {"SWAP-1", "SWAP-2", "TAB-1", "TAB-4"}
    )
    capability = "groups"
    compared_by: ClassVar[tuple[str, ...]] = ("queue", "keys")
    """The capabilities by which states are compared."""
    left_out: ClassVar[frozenset[str]] = frozenset()
    """The options of a life's manager that are not judged."""

    def __init__(self) -> None:
        super().__init__()
        self.shards = 0
        self.cases: dict[str, Served] = {}
        self.known: dict[str, Request] = {}
        self.pins: set[int] = set()
        self.met = Meetings()
        self._looked = 0
        self._unseen = 0
        """The work since the whole state was last looked at; see `count_work`."""
        self._unlooked = 0
        """The calls since then: where there are some, it is not known which of them makes a difference."""

    # -- A life ---------------------------------------------------------------------------------------------

    @classmethod
    def missing(cls, backend: Backend) -> list[str]:
        """See `Machine.missing`: without what shows the state there is nothing to compare."""
        return super().missing(backend) or [f"capability {lack}" for lack in cls.compared_by if lack in backend.lacks]

    @property
    def table(self) -> Table:
        """The methods of the manager."""
        return SHARDS if self.shards else MANAGER

    def offers(self, thing: str, method: str) -> bool:
        """See `Machine.offers`: a manager of shards lacks some methods, which is no lack of the backend's."""
        if thing == "manager" and method not in self.table.by_name:
            return False
        return super().offers(thing, method)

    @start(world=st.nothing(), rows=st.nothing(), shards=st.nothing())
    def construct(self, world: World, rows: int, shards: int = 0) -> None:
        """A manager with many pages, or one of a few shards, and tables with many rows."""
        world = world.within(self.backend.names)
        if shards > 1 and not self.lacks("shards") and self.offered("ShardedCacheManager"):
            self.shards = shards
        known = {name: value for name, value in world.options.items() if name not in self.left_out}
        wanted = {"hash_seed": b"kvproof", **known}
        made = "ShardedCacheManager" if self.shards else "CacheManager"
        if not self.backend.names.accepts(made, "use_eagle"):
            world = world.without_eagle()
        self.options = self.options_taken(made, wanted)
        self.world, self.rows = world, rows
        shown = "".join(f", {name}={value!r}" for name, value in self.options.items())
        eagle = ", use_eagle=True" if world.use_eagle else ""
        groups = ", ".join(map(str, world.groups))
        first = f"{self.shards}, " if self.shards else ""
        line = f"{made}({first}{world.num_pages}, [{groups}], max_model_len={world.max_model_len}{eagle}{shown})"
        self.build(f"manager = {line}", "MAN-2", self._parts)
        self.watch(*self.state_fields())

    def state_fields(self) -> list[Field]:
        """What the observable state shows."""
        of_pools, told = pool_fields(True, weak=False, order=order_clause(self.options)), event_fields(self.options)
        return [
            *(self._fields_of_shards() if self.shards else ()),
            Field("pages of requests", "MAN-2", self.pages_of_requests),
            *(map(of_every_shard, of_pools) if self.shards else of_pools),
            self.table_rows(),
            *(map(of_every_shard, told) if self.shards else told),
            *(pin_fields() if "max_pinned_pages" in self.options else ()),
            *whole_fields(self),
        ]

    def table_rows(self) -> Field:
        """The rows of the tables."""
        return Field(
            "table rows", "TAB-1", lambda side: [numbers_of(t.get_cpu_tensor()) for t in side.tables.page_tables]
        )

    def options_of(self, side: Side) -> Mapping[str, Any]:
        """The options with which a side's manager is made."""
        del side
        return self.options

    def _parts(self, side: Side) -> dict[str, Any]:
        world, names = self.world, side.names
        groups = [group.declared(n, names, self.spec.names) for n, group in enumerate(world.groups)]
        made, first = ("ShardedCacheManager", (self.shards,)) if self.shards else ("CacheManager", ())
        flags = self.backend.names.flags(made, *world.flags)
        options = self.options_of(side)
        manager = names.get(made)(*first, world.num_pages, groups, world.max_model_len, *flags, **options)
        return self._of(side, manager) | self.new_tables(names)

    def new_tables(self, names: Backend) -> dict[str, Any]:
        """The tables of a side, with a row for each request that may be live."""
        sizes = [group.page_size for group in self.world.groups]
        return {"tables": names.get("MultiGroupPageTable")(self.rows, self.world.max_model_len, 8, sizes)}

    def parts_of(self, manager: Any) -> dict[str, Any]:
        """A manager, or that of a shard, with its pool and its pages."""
        pool = manager.page_pool
        return {"manager": manager, "pool": pool, "pages": page_views(pool)}

    def _of(self, side: Side, manager: Any) -> dict[str, Any]:
        if self.shards:
            shards = [Side(side.names) for _ in range(self.shards)]
            for shard, own in zip(shards, manager.shards, strict=True):
                shard.put(self.parts_of(own))
            return {"manager": manager, "shards": shards, "pool": shards[0].pool}
        followed = resolve(FOLLOWED, side) if "enable_events" in self.options else {}
        return self.parts_of(manager) | {"shards": [side]} | followed

    def _fields_of_shards(self) -> tuple[Field, ...]:
        return Field.of("shards of requests", self.cases), CHECK_OF_SHARDS

    def pages_of_requests(self, side: Any) -> dict[str, list[list[int]]]:
        """The pages of every request that did not go for good."""
        return {name: [list(map(int, group)) for group in side.manager.get_page_ids(name)] for name in self.cases}

    # -- What is known --------------------------------------------------------------------------------------

    def running(self) -> list[str]:
        """The live requests, in the order of their coming."""
        return [name for name, case in self.cases.items() if case.live]

    def waiting(self) -> list[str]:
        """The requests that came or went, and are nowhere."""
        return [name for name, case in self.cases.items() if not case.live and not case.flights]

    def away(self) -> list[str]:
        """The requests in host memory."""
        return [name for name, case in self.cases.items() if case.flights == [-1]]

    def flying(self) -> list[int]:
        """The plans whose copies are under way."""
        return [flight for case in self.cases.values() for flight in case.flights if flight >= 0]

    def has(self, method: str) -> bool:
        """Whether the backend's manager has a method, and this one was made for it."""
        if method not in self.table.by_name:
            return False
        needed = self.table[method].capability != "pins" or "max_pinned_pages" in self.options
        return needed and self.offers("manager", method)

    def num_free(self, side: Side) -> list[int]:
        """The number of free pages of each shard."""
        return [int(shard.pool.get_num_free_pages()) for shard in side.shards]

    # -- What becomes of requests ---------------------------------------------------------------------------

    def granted(self, name: str, given: int) -> None:
        """Notes that a request was given slots up to some token; the tables hear of its pages."""
        case = self.cases[name]
        self.known[name] = case.request
        case.given = given
        if not case.live:
            case.live = True
            case.request.status = EngineRequestStatus.RUNNING
            taken = {other.row for other in self.cases.values()}
            case.row = next((row for row in range(self.rows) if row not in taken), -1)
            for side in (self.spec, self.backend) if case.row >= 0 else ():
                side.tables.add_row(side.manager.get_page_ids(name), case.row)
        elif case.row >= 0:
            for side in (self.spec, self.backend):
                self.append(side, name)

    def append(self, side: Side, name: str) -> None:
        """Appends the pages to a request's row that it lacks."""
        row, pages = self.cases[name].row, side.manager.get_page_ids(name)
        named = [int(table.num_pages_per_row[row]) for table in side.tables.page_tables]
        side.tables.append_row([held[count:] for held, count in zip(pages, named, strict=True)], row)

    def gone(self, name: str) -> None:
        """Notes that a request has no pages any more."""
        case = self.cases[name]
        for side in (self.spec, self.backend) if case.row >= 0 else ():
            side.tables.clear_row(case.row)
        case.live, case.given, case.row = False, 0, -1
        case.flights = []
        case.request.status = EngineRequestStatus.WAITING
        case.request.num_computed_tokens = 0

    # -- Comparing ------------------------------------------------------------------------------------------

    def count_work(self, name: str, arguments: Sequence[Any]) -> int:
        """Counts the pages that an operation touched, with those of a look at the state: what a life costs.

        The state is looked at where the calls since have cost about as much as a look.
        """
        alone = self.cases.get(arguments[0]) if arguments and isinstance(arguments[0], str) else None
        concerned = [alone] if alone is not None else self.cases.values() if name in _OF_MANY else []
        tokens = sum(case.request.num_tokens for case in concerned)
        work = _A_CALL + len(self.world.groups) * tokens // min(group.page_size for group in self.world.groups)
        looked = self._looked == len(self._trace)
        self._unseen += 0 if looked else work
        return work + (2 * self.world.num_pages if looked else 0)

    def cost_of(self, step: TracedStep | Call) -> float:
        """See `Machine.cost_of`: an operation that makes hundreds of calls costs as much as hundreds of steps."""
        if isinstance(step, Call) or isinstance(step.drawn, Mapping):
            return self.world.num_pages / _A_STEP
        *arguments, _ = step.drawn
        place, each = _CALLS.get(step.name, (0, 0))
        most = MOST_CALLS if step.name == "rank_often" else self.rows  # no more requests than that are live
        calls = each * min(arguments[place], most) if each else 1
        return (self.count_work(step.name, arguments) + _A_CALL * (calls - 1)) / _A_STEP

    def looks_at(self, shows: Field) -> bool:
        """See `Machine.looks_at`: states are compared seldom, and then all of them."""
        del shows
        return True

    def compare_states(self, charge: Charge, fixed: bool = False) -> None:
        """Compares the whole state, where it is its turn; else how many pages are free."""
        place = len(self._trace)
        if self.hurrying:
            return
        sampled = not self.session.repeats and (place <= _CLOSELY or self._unseen > 2 * self.world.num_pages)
        if self.closely or self.closing or sampled:
            super().compare_states({} if self._unlooked and not self.closing else charge, fixed)
            self._looked, self._unseen, self._unlooked = place, 0, 0
        else:
            self._unlooked += 1
            self.count_free()

    def count_free(self) -> None:
        """Compares how many pages are free."""
        free = self.num_free(self.spec)
        self.check("POOL-2", "number of free pages", free, lambda: self.num_free(self.backend))

    def made(
        self, method: str, line: str, act: Callable[[Any], Any], normal: Callable[[Any, Side], object], *features: str
    ) -> Both:
        """Makes a call of the table of managers on both sides; see `Machine.call`.

        Args:
            method: its row, which says by which clauses it is judged.
            line: it as a report shows it.
            act: makes it on a side.
            normal: makes of a result what can be compared.
            features: what it shows of the interface, for the pairs that have met.
        """
        row, blame = self.table[method], None
        amid = ("MAN-17",) if "match_unit" in self.options and normal is hit_of else ()
        if amid or (self.shards and normal in (page_ids_of, hit_of)):
            blame = functools.partial(self._blame, row.clause, amid)
        also = (*row.refuses, *(("POOL-12",) if self.shards and blame else ()), *amid)
        self.session.note_drawn([f"{self.table.name}.{method}"])
        both = self.call(line, act, row.clause, normal, row.charges_by_field, blame, also)
        if not both.refused and both.spec is not None:
            self.met.note((*features, *(["shards"] if self.shards else [])), len(self._trace))
        return both

    def _blame(self, clause: str, amid: tuple[str, ...], expected: Any, observed: Any) -> str:
        """The clause of wrong pages: those of the wrong shard are POOL-12's, and hits that end amid a page MAN-17's."""
        if amid and any(length % self.world.unit for _, length in (expected, observed)):
            clause = amid[0]
        while isinstance(expected, tuple) and isinstance(observed, tuple):
            expected, observed = expected[0], observed[0]
        return "POOL-12" if isinstance(expected, int) and isinstance(observed, int) and expected != observed else clause

    def asked(
        self, method: str, *features: str, normal: Callable[[Any, Side], object] | None = None, **given: Any
    ) -> Both:
        """Makes a call of the table of managers on both sides, of which everything stands in its row; see `made`.

        Args:
            method: its row.
            features: what it shows of the interface.
            normal: makes of a result what can be compared, where that is not what the row says.
            given: its arguments; a request by its id.
        """
        row = self.table[method]
        real = given | ({"request": self.case_of(given["request"]).request} if "request" in given else {})
        texts = {name: value if name == "request" else repr(value) for name, value in given.items()}
        (values, options), (shown, named) = (bound(tuple(row.arguments), own, row.by_name) for own in (real, texts))
        line = f"manager.{method}({', '.join([*shown, *(f'{name}={text}' for name, text in named.items())])})"

        def act(side: Side) -> Any:
            return getattr(side.manager, method)(*values, **options)

        return self.made(method, line, act, normal or row.result.plain, *features)

    def case_of(self, name: str, live: bool | None = None) -> Served:
        """A request by its id; ends the operation where there is none, or it is live or not against what is asked."""
        case = self.cases.get(name)
        if case is None or (live is not None and case.live != live):
            raise Nothing
        return case
