"""What a replay asks of a backend: a manager and its page tables behind the calls of a serving loop, each timed.

`Engine` is the whole of it, and `Sizes` says how large it is. It knows how calls are made, not when: that is
`replay.Replay`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvproof.spec.declarations import CacheGroupSpec, PageCopy, PartCopy, Request
from kvproof.spec.declarations.eviction import EvictionCounters

from ..backends.loading import Backend
from ..backends.raising import Ending, frames
from ..engine.step_ends import copies_states, junction_of
from ..log.lockstep import Lockstep, LockstepError
from ..log.recording import record
from .traces import TraceRequest

__all__ = ["LOOKAHEAD", "DeviationError", "Engine", "Part", "Sizes", "Timings", "described", "num_slots", "sizes_for"]


# -- How large an engine must be to serve a trace ---------------------------------------------------------------------


LOOKAHEAD = 3
"""Tokens that an Eagle draft model proposes a step, for which every step has slots beyond its own."""


@dataclass(frozen=True)
class Sizes:
    """What an engine serves, and how large its pool and tables are.

    Attributes:
        groups: the cache groups.
        num_pages: pages of the pool, the null page included.
        most_live: requests that can be live at once: rows of the tables.
        max_model_len: the most tokens of a request.
        prefill_chunk: the number of tokens at whose next multiple in a prompt a step ends; None: it takes all of them.
        use_eagle: whether an Eagle draft model runs (MAN-9).
        match_unit: the manager's argument: the number of tokens that hits are multiples of (MAN-17); None: whole pages.
    """

    groups: tuple[CacheGroupSpec, ...]
    num_pages: int
    most_live: int
    max_model_len: int
    prefill_chunk: int | None = None
    use_eagle: bool = False
    match_unit: int | None = None

    @property
    def page_sizes(self) -> list[int]:
        """Tokens in a page of each group."""
        return [group.kv_cache_spec.page_size for group in self.groups]


def num_slots(request: TraceRequest) -> int:
    """How many tokens of a request need a slot in the end: all but the last one it generates."""
    return request.input_length + max(request.output_length - 1, 0)


def sizes_for(
    requests: Sequence[TraceRequest],
    groups: tuple[CacheGroupSpec, ...],
    num_pages: int,
    most_live: int,
    prefill_chunk: int | None = None,
    *,
    use_eagle: bool = False,
    match_unit: int | None = None,
) -> Sizes:
    """The sizes of an engine that is to serve a trace; requests that no empty pool could hold don't count.

    A request's pages are counted group by group, as many as it may hold at once: those too that it needs where it
    gives way near its end and is computed again. With a unit a page of each group more may be held, to be copied from.
    """
    lookahead = LOOKAHEAD if use_eagle else 0

    def fits(length: int) -> bool:
        step = lookahead + (length if prefill_chunk is None else prefill_chunk)
        sources = 0 if match_unit is None else len(groups)
        return sources + sum(group.kv_cache_spec.max_num_pages(length, step) for group in groups) < num_pages

    lengths = [num_slots(request) for request in requests]
    longest = max((length for length in lengths if fits(length)), default=1)
    return Sizes(groups, num_pages, min(most_live, len(requests)), longest, prefill_chunk, use_eagle, match_unit)


Part = Literal["look_up", "admit", "decode", "free", "tables"]

Pages = Any
"""A backend's ``CachePages``."""


class DeviationError(Exception):
    """The backend did what it must not: the verdict that ends a replay.

    Args:
        call: the call.
        request_id: whose call it was; None for one about no single request.
        expected: what was due.
        observed: what came.
        clause: the label of the clause that it breaks; "" where only the serving loop judges.

    Attributes:
        step: the step in which it happened; who counts the steps sets it.
    """

    def __init__(self, call: str, request_id: str | None, expected: str, observed: str, clause: str = "") -> None:
        super().__init__(f"{call}: expected {expected}, observed {observed}")
        self.call, self.request_id, self.expected, self.observed = call, request_id, expected, observed
        self.clause, self.step = clause, 0

    @property
    def raised(self) -> tuple[str, ...]:
        """Where the backend raised, frame by frame; empty if it raised nothing."""
        error = self.__cause__.__context__ if isinstance(self.__cause__, LockstepError) else self.__cause__
        return () if error is None else frames(error)


def described(error: BaseException) -> str:
    """An error as one line: its type and the first line of its message."""
    first_line = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__


class _Given(NamedTuple):
    """What a batched call gave a request, read as a backend's ``CachePages`` is read."""

    pages: Sequence[Sequence[int]]

    def get_page_ids(self) -> Sequence[Sequence[int]]:
        """A list of ids for each group."""
        return self.pages


@dataclass
class Timings:
    """Time inside the library by part, in nanoseconds."""

    look_up: int = 0
    admit: int = 0
    decode: int = 0
    free: int = 0
    tables: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return sum(astuple(self))

    def add(self, part: Part, nanoseconds: int) -> None:
        """Adds to one part."""
        setattr(self, part, getattr(self, part) + nanoseconds)


class Engine:
    """A backend at work for a serving loop: every call into the library passes through here.

    The timer runs around calls into the library and nothing else; a call that raises is a `DeviationError`, since the
    loop asks for nothing that may be refused.

    Args:
        backend: whose ``CacheManager`` and ``MultiGroupPageTable`` are used; those of a `Lockstep` go in step with the
            specification's.
        sizes: how large they are.
        hash_seed: the seed of the keys, given to a manager that takes one.
        batched: whether `advance` is one ``allocate_slots_batch`` where there are surely pages for all.
        eviction: the policy by which free pages are evicted, given to a manager that takes one (EVICT-1).
        with_tables: whether there are page tables; without them nothing is asked of any.
        file: where all calls are recorded, if anywhere, see `record`, with the tokens of the trace and the seed; a
            `Lockstep` has a file of its own.

    Attributes:
        eviction: the policy in force.
        timings: the time inside the library so far.
    """

    def __init__(
        self,
        backend: Backend,
        sizes: Sizes,
        hash_seed: bytes,
        *,
        batched: bool = False,
        eviction: str = "lru",
        with_tables: bool = True,
        file: Path | None = None,
    ) -> None:
        self.timings, self._batched = Timings(), batched
        self._lockstep = backend.holder if isinstance(backend.holder, Lockstep) else None
        self._page_sizes, self._slots = sizes.page_sizes, dict[str, int]()
        manager_class = backend.get("CacheManager")
        tables_class = backend.get("MultiGroupPageTable") if with_tables else None
        options: dict[str, Any] = {"use_eagle": True} if sizes.use_eagle else {}
        if backend.accepts("CacheManager", "hash_seed"):
            options["hash_seed"] = hash_seed
        self.eviction = eviction if backend.accepts("CacheManager", "eviction") else "lru"
        if self.eviction != "lru":
            options["eviction"] = self.eviction
        if sizes.match_unit is not None:
            options["match_unit"] = sizes.match_unit
        self._copies_states = copies_states(sizes.groups)
        self._makes_copies = self._copies_states or sizes.match_unit is not None
        length = sizes.max_model_len
        try:
            self.manager = manager_class(sizes.num_pages, list(sizes.groups), length, **options)
            if tables_class is not None:
                # no slot mappings are made here: the most tokens of a step are as good as any number
                self.tables = tables_class(sizes.most_live, length, length, sizes.page_sizes)
        except (MemoryError, Ending):
            raise
        except BaseException as error:
            raise deviation(error, "CacheManager, MultiGroupPageTable", None, "both built") from error
        self._log: Any = self._lockstep
        if file is not None:
            seed = {"hash_seed": options["hash_seed"]} if "hash_seed" in options else {}
            self._log = self.manager = record(self.manager, file, show_tokens=True, options=seed)
            self.tables = record(self.tables, self.manager)
        if with_tables:
            self._compile_commits(sizes)
        self._lookahead = LOOKAHEAD if sizes.use_eagle else 0

    def open(self, request_id: str, tokens: NDArray[np.int32], num_tokens: int) -> Request:
        """The object that stands for a request.

        Args:
            request_id: its id.
            tokens: all tokens that it will ever have. They lie in the request's buffer from the first, so that a
                step generates one by raising ``num_tokens``.
            num_tokens: how many of them it has already.
        """
        request = Request(request_id, tokens)
        request.num_tokens = num_tokens
        return request

    # -- The manager ------------------------------------------------------------------------------

    def look_up(self, request: Request) -> tuple[Pages, int]:
        """The cached pages of a request's prefix, and how many tokens they hold."""
        with self._library("look_up", "get_computed_pages", request):
            pages, num_tokens = self.manager.get_computed_pages(request)
        return pages, num_tokens

    def junction(self, request: Request) -> int:
        """The length at which a request parts from an earlier one, where a step is to end (RET-2); 0: none is known."""
        if not self._copies_states:
            return 0
        with self._library("look_up", "get_junction", request):
            return junction_of(self.manager, request)

    def admit(self, request: Request, num_new_tokens: int, hits: Pages, num_hit_tokens: int) -> Pages | None:
        """Slots for the first new tokens of a request, behind those that it hit; None for want of pages."""
        with self._library("admit", "allocate_slots at admission", request):
            pages = self._allocate_slots()(request, num_new_tokens, num_hit_tokens, hits)
        if self._batched and pages is not None:
            with self._library("admit", "slot_of", request):
                self._slots[request.request_id] = self.manager.slot_of(request.request_id)
        return pages

    def advance(self, requests: Sequence[Request], num_new_tokens: Sequence[int]) -> list[Pages]:
        """Slots for more tokens of live requests, in order, up to the first that gets none.

        Args:
            requests: the requests.
            num_new_tokens: how many tokens each is to have more.

        Returns:
            What those were given that got theirs.
        """
        if self._fits_one_call(num_new_tokens):
            return self._advance_all(requests, num_new_tokens)
        granted: list[Pages] = []
        allocate_slots, grant = self._allocate_slots(), granted.append
        start = perf_counter_ns()
        try:
            for request, num_tokens in zip(requests, num_new_tokens, strict=True):
                pages = allocate_slots(request, num_tokens)
                if pages is None:
                    break
                grant(pages)
        except Ending:
            raise
        except BaseException as error:
            place = len(granted)
            call, request_id = self.advance_call(num_new_tokens[place]), requests[place].request_id
            raise deviation(error, call, request_id, "pages or None") from error
        self.timings.decode += perf_counter_ns() - start
        return granted

    def _fits_one_call(self, num_new_tokens: Sequence[int]) -> bool:
        """Whether steps are batched and this one has requests, and surely pages for some more tokens of each."""
        if not self._batched or not num_new_tokens:
            return False
        # new tokens begin and end amid pages
        most = sum((num + self._lookahead) // size + 2 for size in self._page_sizes for num in num_new_tokens)
        return self.num_free_pages() >= most

    def _advance_all(self, requests: Sequence[Request], num_new_tokens: Sequence[int]) -> list[Pages]:
        """`advance` in one call. Only that is timed: the arrays that it takes an engine has anyway."""
        slots = np.array([self._slots[request.request_id] for request in requests])
        computed = np.array([request.num_computed_tokens for request in requests])
        with self._library("decode", "allocate_slots_batch"):
            batch = self.manager.allocate_slots_batch(slots, computed, np.array(num_new_tokens), self._lookahead)
        with self._library(None, "SlotBatch"):
            every = [_Given(batch.get_page_ids(place)) for place in range(len(requests))]
            num_granted = sum(map(bool, batch.granted))
        if num_granted < len(requests):
            observed = f"{num_granted} of {len(requests)} granted"
            raise DeviationError("allocate_slots_batch", None, "slots for all, since there are pages", observed)
        return every

    def advance_call(self, num_new_tokens: int) -> str:
        """What `advance` calls for one request, as verdicts name it."""
        lookahead = f", num_lookahead_tokens={self._lookahead}" if self._lookahead else ""
        return f"allocate_slots(request, {num_new_tokens}{lookahead})"

    def _allocate_slots(self) -> Any:
        if self._lookahead:
            return partial(self.manager.allocate_slots, num_lookahead_tokens=self._lookahead)
        return self.manager.allocate_slots

    def new_page_ids(self, granted: Sequence[Pages]) -> list[tuple[int, Sequence[Sequence[int]]]]:
        """The pages among what `advance` gave: (place, a list of ids a group) where there are any."""
        with self._library(None, "CachePages.pages"):
            grown = [place for place, pages in enumerate(granted) if any(map(len, pages.pages))]
        with self._library("decode", "CachePages.get_page_ids"):
            return [(place, granted[place].get_page_ids()) for place in grown]

    def take_copies(self) -> list[PageCopy | PartCopy]:
        """The copies of pages that must be run before the step; none are asked for where no group makes any."""
        if not self._makes_copies:
            return []
        with self._library("decode", "take_page_copies"):
            copies: list[PageCopy | PartCopy] = self.manager.take_page_copies()
        return copies

    def free(self, request: Request, *, finished: bool) -> list[str]:
        """Gives a request's pages back; a finished one's keys are dropped as well. Returns what `free` did."""
        with self._library("free", "free", request):
            losers: list[str] = self.manager.free(request)
            self._slots.pop(request.request_id, None)
            if finished:
                self.manager.free_page_hashes(request)
        return losers

    # -- The tables -------------------------------------------------------------------------------

    def _compile_commits(self, sizes: Sizes) -> None:
        """Commits ever more pages, of one row and then of more rows, up to all that the tables hold; empties them.

        So programs that commits of some sizes need are compiled now, and don't count as time of the requests that
        happen to be the first to need them.
        """
        widths = [-(-sizes.max_model_len // page_size) for page_size in sizes.page_sizes]
        longest = max(widths)
        fills = [(1, 1 << power) for power in range((longest - 1).bit_length() + 1)]
        fills += [
            (min(1 << power, sizes.most_live), longest) for power in range(1, (sizes.most_live - 1).bit_length() + 1)
        ]
        with self._library(None, "a first commit"):
            for num_rows, length in fills:
                page_ids = [[1] * min(length, width) for width in widths]
                for row in range(num_rows):
                    self.tables.add_row(page_ids, row)
                self.tables.commit(num_rows)
            self.tables.clear()

    def fill_row(self, request: Request, row: int) -> None:
        """Enters all pages of a request in a row."""
        with self._library("tables", "add_row", request):
            self.tables.add_row(self.manager.get_page_ids(request.request_id), row)

    def append_rows(self, page_ids: Sequence[Sequence[Sequence[int]]], rows: Sequence[int]) -> None:
        """Adds new pages to rows: for each row a list of ids a group."""
        with self._library("tables", "append_rows_batch"):
            self.tables.append_rows_batch(page_ids, rows)

    def drop_row(self, row: int, last: int) -> None:
        """Takes a row out of the table; the last one moves into the hole."""
        with self._library("tables", "move_row, clear_row"):
            if row != last:
                self.tables.move_row(last, row)
            self.tables.clear_row(last)

    def commit(self, num_rows: int) -> None:
        """Brings the first rows to the device."""
        with self._library("tables", "commit"):
            self.tables.commit(num_rows)

    # -- Looking, untimed -------------------------------------------------------------------------

    def usage(self) -> float:
        """The share of the pool in use."""
        with self._library(None, "usage"):
            return float(self.manager.usage)

    def num_free_pages(self) -> int:
        """How many pages are free."""
        with self._library(None, "page_pool.get_num_free_pages"):
            return int(self.manager.page_pool.get_num_free_pages())

    def num_evictions(self) -> int | None:
        """How many pages lost their hash because they were handed out; None if the manager does not count."""
        with self._library(None, "counters"):
            counters = getattr(self.manager, "counters", None)
            return None if counters is None else int(counters.evictions)

    def eviction_counters(self) -> EvictionCounters | None:
        """What the eviction policy has seen (EVICT-1); None if the pool does not tell."""
        with self._library(None, "page_pool.eviction_counters"):
            seen: EvictionCounters | None = getattr(self.manager.page_pool, "eviction_counters", None)
        return seen

    def num_cached_pages(self) -> int:
        """How many pages carry a hash. O(pages)."""
        with self._library(None, "page_pool.cached_page_hash_to_page"):
            return sum(map(len, self.manager.page_pool.cached_page_hash_to_page.values()))

    def check(self) -> None:
        """Has the manager and the tables verify themselves, as far as they offer to. O(pages)."""
        for part in (self.manager, self.tables):
            if hasattr(part, "check"):
                with self._library(None, f"{type(part).__name__}.check"):
                    part.check()

    def end_replay(self) -> None:
        """Called when the last request is gone, whose pages must all have come back.

        In lockstep with the specification the whole state is compared once more.

        Raises:
            DeviationError: some have not, or what is left is not what it must be.
        """
        if self._lockstep is not None:
            with self._library(None, "the whole state"):
                self._lockstep.compare()
        self.check()
        usage = self.usage()
        if usage != 0.0:
            raise DeviationError("usage after the last request", None, "0.0", repr(usage))

    def close(self) -> None:
        """Ends the log, if there is one."""
        if self._log is not None:
            self._log.close()

    @contextmanager
    def _library(self, part: Part | None, call: str, request: Request | None = None) -> Iterator[None]:
        """Around calls into the library: counts their time to a part, if any, and names what raises.

        Args:
            part: the part.
            call: the call.
            request: the request that it is about, which the library must leave as it is: it is the engine's.
        """
        request_id = None if request is None else request.request_id
        before = request and (request.num_tokens, request.num_computed_tokens)
        start = perf_counter_ns()
        try:
            yield
        except Ending:
            raise
        except BaseException as error:
            raise deviation(error, call, request_id, "no error") from error
        if part is not None:
            self.timings.add(part, perf_counter_ns() - start)
        after = request and (request.num_tokens, request.num_computed_tokens)
        if after != before:
            counts = "the request's token counts after"
            raise DeviationError(f"{counts} {call}", request_id, repr(before), repr(after))


def deviation(error: BaseException, call: str, request_id: str | None, expected: str) -> DeviationError:
    """What a call that raised is called: a difference from the specification by its clause, all else as it is.

    Args:
        error: what it raised.
        call: the call.
        request_id: whose call it was.
        expected: what was due.
    """
    if isinstance(error, LockstepError):
        return DeviationError(error.call, request_id, error.expected, error.observed, error.clause)
    return DeviationError(call, request_id, expected, described(error))
