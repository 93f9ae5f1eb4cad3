"""Faults at the boundary of an engine: what its manager, tables and steps say is spoilt on the way to the device.

Each is modelled on a fault that was reported of a real engine and showed in what it answered. They are faults of no one
class, so that no machine looks for them: the oracle over whole engines does (`kvproof.conformance.oracle`). Those by
which pages are found under wrong keys are in `served_keys`. The last few a machine finds as well, the one of engines.
"""

import dataclasses
import importlib
from collections.abc import Callable
from itertools import pairwise
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvproof.spec.declarations import SlidingWindowSpec

from ..engine.plans import Chunk, Plan
from ..engine.scheduler import Scheduler
from .patching import backend_with, derived, scheduled, with_scheduler
from .registry import FORESEEN, seeded, served

__all__: list[str] = []


# -- What a scheduler plans -----------------------------------------------------------------------------------------


def _later(fast: ModuleType, when: Callable[[Any], bool]) -> SimpleNamespace:
    """A backend that computes some requests, when they are admitted with a hit, from one token too late on."""

    def place(self: Any, served: Any, budget: int) -> int:
        waits = not served.is_running
        count = int(Scheduler._place(self, served, budget))
        if waits and count > 1 and served.request.num_computed_tokens and when(served):
            served.request.num_computed_tokens += 1
            return count - 1
        return count

    return with_scheduler(fast, _place=place)


@served(64, "ENG-4", "prefix")
def a_token_late_behind_hits(fast: ModuleType) -> SimpleNamespace:
    """Behind a hit the first token is taken for computed: it goes on from the wrong place (vLLM 50388)."""
    return _later(fast, lambda _: True)


@served(23, "ENG-7", "pressure")
def a_token_late_when_resumed(fast: ModuleType) -> SimpleNamespace:
    """A request that gave way counts what it had before its hit is known (nano-vllm 211): a token is never computed."""
    return _later(fast, lambda served: bool(served.preemptions))


@served(73, "ENG-6", "chunks", also=("ENG-12",))
def chunk_counted_and_not_run(fast: ModuleType) -> SimpleNamespace:
    """A part of a prompt that found no room in the step any more counts as computed (sglang 24318)."""

    def schedule(self: Any) -> Plan:
        plan = Scheduler.schedule(self)
        last = plan.chunks[-1] if len(plan.chunks) > 1 else None
        self.left_out = last if last is not None and last.end < last.served.request.num_tokens else None
        return dataclasses.replace(plan, chunks=plan.chunks[:-1]) if self.left_out else plan

    def note_computed(self: Any, plan: Plan) -> None:
        chunks = (*plan.chunks, self.left_out) if self.left_out else plan.chunks
        Scheduler.note_computed(self, dataclasses.replace(plan, chunks=chunks))

    return with_scheduler(fast, schedule=schedule, note_computed=note_computed)


@served(FORESEEN, "ENG-6", "chunks", by=scheduled("schedule"))
def ends_with_a_full_chunk(self: Any) -> Plan:
    """A prompt that ends just where a step's last chunk does counts one token twice: its answer ends too soon."""
    plan = Scheduler.schedule(self)
    for chunk in plan.chunks:
        if chunk.end == chunk.served.num_prompt and chunk.count == self.limits.max_num_batched_tokens:
            chunk.served.max_tokens = max(1, chunk.served.max_tokens - 1)
    return plan


@served(53, "ENG-2", "warm", by=scheduled("_place"))
def whole_hits_wait_for_ever(self: Any, served: Any, budget: int) -> int:
    """A prompt that is found but for its last token waits for ever (TensorRT-LLM 15401)."""
    if not served.is_running and self.manager.get_computed_pages(served.request)[1] + 1 == served.num_prompt:
        return 0
    return int(Scheduler._place(self, served, budget))


# -- Who owns which page --------------------------------------------------------------------------------------------


@served(7, "ENG-2", "aborts", also=("ENG-14",), by=scheduled("remove"))
def aborted_twice_freed(self: Any, served: Any) -> None:
    """Two paths free the pages of a request that is taken back, also those that it shares (sglang-jax 982)."""
    is_aborted = served.request.num_tokens - served.num_prompt < served.max_tokens
    held = self.manager.get_page_ids(served.request.request_id) if served.is_running else ()
    Scheduler.remove(self, served)
    pool = self.manager.page_pool
    if is_aborted:
        pool.free_pages([page for own in held for page in own if page and pool.pages[page].ref_cnt])


@served(FORESEEN, "ENG-2", "aborts", also=("ENG-14",), by=scheduled("remove"))
def aborted_keeps_its_pages(self: Any, served: Any) -> None:
    """A request that is taken back amid its answer keeps its pages for ever: after some of them nobody is served."""
    is_aborted = served.request.num_tokens - served.num_prompt < served.max_tokens
    if is_aborted and served.is_running:
        held = self.manager.get_page_ids(served.request.request_id)
        self.manager.page_pool.touch([[page for page in own if page] for own in held])
    Scheduler.remove(self, served)


@served(37, "ENG-14", "aborts")
def abort_clears_a_neighbours_row(fast: ModuleType) -> SimpleNamespace:
    """A request that is taken back clears a row that has become another's meanwhile: its first page is gone."""

    def remove(self: Any, served: Any) -> None:
        is_aborted = served.request.num_tokens - served.num_prompt < served.max_tokens
        self.gone = self.__dict__.get("gone", False) or (is_aborted and served.is_running)
        Scheduler.remove(self, served)

    def schedule(self: Any) -> Plan:
        plan = Scheduler.schedule(self)
        if self.__dict__.pop("gone", False) and plan.chunks:
            served = plan.chunks[0].served
            lists = [list(own) for own in self.manager.get_page_ids(served.request.request_id)]
            self.tables.add_row([[0, *own[1:]] for own in lists], served.row)
        return plan

    return with_scheduler(fast, remove=remove, schedule=schedule)


@served(6, "ENG-7", "pressure")
def own_hits_evicted(fast: ModuleType) -> SimpleNamespace:
    """New pages are taken before a request's hits are held: in a full pool they are its own hits (vLLM 10507)."""

    def place(self: Any, served: Any, budget: int) -> int:
        waits = not served.is_running
        count = int(Scheduler._place(self, served, budget))
        if waits and count and served.request.num_computed_tokens and self.manager.page_pool.get_num_free_pages() < 4:
            self.__dict__.setdefault("spoilt", set()).add(served.request.request_id)
        return count

    def schedule(self: Any) -> Plan:
        plan = Scheduler.schedule(self)
        for chunk in plan.chunks:
            if chunk.served.request.request_id in self.__dict__.get("spoilt", ()):
                lists = [list(own) for own in self.manager.get_page_ids(chunk.served.request.request_id)]
                self.tables.add_row([[own[-1], *own[1:]] for own in lists], chunk.served.row)
        return plan

    return with_scheduler(fast, _place=place, schedule=schedule)


@served(7, "ENG-13", "conversation", by=scheduled("remove"))
def last_page_published_unwritten(self: Any, served: Any) -> None:
    """A page counts as full by a finished request's last token, which is never computed (TensorRT-LLM 15018)."""
    if served.is_running and served.request.num_computed_tokens < served.request.num_tokens:
        self.manager.allocate_slots(served.request, 1)
    Scheduler.remove(self, served)


# -- What tables say ------------------------------------------------------------------------------------------------


def _with_rows(fast: ModuleType, change: Callable[[Any, Plan, Chunk, list[list[int]]], None]) -> SimpleNamespace:
    """A backend in whose tables the rows of a step are changed before it runs; the next step finds them right again."""

    def schedule(self: Any) -> Plan:
        plan = Scheduler.schedule(self)
        for chunk in plan.chunks:
            lists = [list(own) for own in self.manager.get_page_ids(chunk.served.request.request_id)]
            change(self, plan, chunk, lists)
            self.tables.add_row(lists, chunk.served.row)
        return plan

    return with_scheduler(fast, schedule=schedule)


def _windows(scheduler: Any) -> list[tuple[int, int, int]]:
    """Of each group of a sliding window its number, its page size and its window."""
    specs = [group.kv_cache_spec for group in scheduler.limits.groups]
    return [
        (number, spec.page_size, spec.sliding_window)
        for number, spec in enumerate(specs)
        if isinstance(spec, SlidingWindowSpec)
    ]


def _without_before(scheduler: Any, lists: list[list[int]], position: int) -> None:
    """Takes the pages that lie before a position's window, or hold its beginning, out of windows' lists."""
    for number, size, window in _windows(scheduler):
        for place in range(min(max(position - window + 1, 0) // size, len(lists[number]))):
            lists[number][place] = 0


@served(72, "ENG-13", "conversation", by=_with_rows)
def window_page_lost(scheduler: Any, plan: Plan, chunk: Chunk, lists: list[list[int]]) -> None:
    """The page in which a window begins goes when the window has moved into it, not past it (sglang 29860)."""
    del plan
    for number, size, window in _windows(scheduler):
        first = chunk.start - window + 1
        if first > 0 and first % size and chunk.start % size == 0:
            lists[number][first // size] = 0


@served(45, "ENG-6", "chunks", by=_with_rows)
def chunk_with_the_window_of_its_end(scheduler: Any, plan: Plan, chunk: Chunk, lists: list[list[int]]) -> None:
    """All queries of a chunk begin at the window of its last one (ejkernel v3, tpu-inference 1954)."""
    del plan
    _without_before(scheduler, lists, chunk.end - 1)


@served(61, "ENG-13", "conversation", by=_with_rows)
def window_released_early(scheduler: Any, plan: Plan, chunk: Chunk, lists: list[list[int]]) -> None:
    """Window pages go by the tokens that a step will have computed, not by those that are (vLLM 47728)."""
    del plan
    _without_before(scheduler, lists, chunk.end)


@served(24, "ENG-10", "twice", by=_with_rows)
def hit_before_it_is_written(scheduler: Any, plan: Plan, chunk: Chunk, lists: list[list[int]]) -> None:
    """A page that one request writes in this step is read by another before it is there (vLLM 42359, nano-vllm 208)."""
    for other in plan.chunks:
        if other is chunk or other.served.arrival > chunk.served.arrival:
            continue
        theirs = scheduler.manager.get_page_ids(other.served.request.request_id)
        for own, their in zip(lists, theirs, strict=True):
            size = scheduler.limits.groups[0].kv_cache_spec.page_size
            for place in range(other.start // size, min(chunk.start // size, len(own), len(their))):
                if own[place] == their[place]:
                    own[place] = 0


@served(36, "ENG-5", "batch", also=("ENG-6", "ENG-7"), by=scheduled("schedule"))
def rows_in_order_of_arrival(self: Any) -> Plan:
    """Pages are laid out in the order in which requests came, tokens in that of rows: two requests change places."""
    plan = Scheduler.schedule(self)
    for chunk in plan.chunks:
        self.tables.add_row(self.manager.get_page_ids(chunk.served.request.request_id), chunk.served.row)
    for one, other in pairwise(plan.chunks):
        lists = [self.manager.get_page_ids(chunk.served.request.request_id) for chunk in (one, other)]
        if one.served.row > other.served.row and len({len(own[0]) for own in lists}) == 1:
            self.tables.add_row(lists[0], other.served.row)
            self.tables.add_row(lists[1], one.served.row)
    return plan


@served(37, "ENG-8", "eviction", by=scheduled("_take_row"))
def stale_first_page(self: Any, served: Any) -> None:
    """A row that is taken again begins with the page of the request before (vLLM 39589, 37728)."""
    Scheduler._take_row(self, served)
    before = self.__dict__.setdefault("before", {})
    lists = [list(own) for own in self.manager.get_page_ids(served.request.request_id)]
    stale = before.get(served.row)
    before[served.row] = [list(own) for own in lists]
    if stale and served.request.num_computed_tokens:
        lists[0][0] = stale[0][0]
        self.tables.add_row(lists, served.row)


@served(37, "ENG-7", "pressure")
def resumed_with_its_old_page(fast: ModuleType) -> SimpleNamespace:
    """The row of a request that gave way ends, when it goes on, with a page that it had before (vLLM 39589, 37728)."""

    def preempt(self: Any, served: Any) -> None:
        held = self.manager.get_page_ids(served.request.request_id)
        self.__dict__.setdefault("held", {})[served.request.request_id] = list(held[0])
        Scheduler._preempt(self, served)

    def take_row(self: Any, served: Any) -> None:
        Scheduler._take_row(self, served)
        before = self.__dict__.get("held", {}).pop(served.request.request_id, None)
        if before:
            lists = [list(own) for own in self.manager.get_page_ids(served.request.request_id)]
            lists[0][-1] = before[min(len(lists[0]), len(before)) - 1]
            self.tables.add_row(lists, served.row)

    return with_scheduler(fast, _preempt=preempt, _take_row=take_row)


@served(70, "ENG-4", "prefix", also=("ENG-3",), by=scheduled("_take_row"))
def pages_of_another_group_behind_hits(self: Any, served: Any) -> None:
    """Where a hit is taken over, page ids of one group stand in the row of another (tpu-inference 2652, vLLM 44103)."""
    Scheduler._take_row(self, served)
    if served.request.num_computed_tokens:
        lists = [list(own) for own in self.manager.get_page_ids(served.request.request_id)]
        last = served.request.num_computed_tokens // self.limits.groups[0].kv_cache_spec.page_size - 1
        lists[-1][last] = lists[0][last]
        self.tables.add_row(lists, served.row)


# -- What a step's arrays say ---------------------------------------------------------------------------------------


def _with_steps(fast: ModuleType, change: Callable[..., dict[str, NDArray[np.int32]]]) -> SimpleNamespace:
    """A backend whose steps have some arrays changed, by the counts of computed and scheduled tokens of each row."""

    def build(self: Any, tables: Any, computed: Any, scheduled: Any) -> list[Any]:
        steps = fast.MultiGroupMetadataBuilder.build(self, tables, computed, scheduled)
        made = importlib.import_module("jax.numpy").asarray
        return [
            dataclasses.replace(step, **{name: made(value) for name, value in changed.items()})
            for step in steps
            for changed in [change(step, np.asarray(computed), np.asarray(scheduled))]
        ]

    return backend_with(fast, MultiGroupMetadataBuilder=derived(fast.MultiGroupMetadataBuilder, {"build": build}))


@served(47, "ENG-5", "batch", also=("ENG-3", "ENG-8"), by=_with_steps)
def page_ids_cut(step: Any, computed: Any, scheduled: Any) -> dict[str, NDArray[np.int32]]:
    """Page ids lose their high bits on the way to the kernel (ATOM 702: at 65,536 pages; here at 16)."""
    del computed, scheduled
    return {"pages_tables": np.asarray(step.pages_tables) & np.int32(15)}


@served(36, "ENG-5", "batch", by=_with_steps)
def last_row_not_committed(step: Any, computed: Any, scheduled: Any) -> dict[str, NDArray[np.int32]]:
    """The last row of a batch of several does not get to the device (EasyDeL: ``commit(-1)``)."""
    del computed
    tables = np.array(step.pages_tables)
    if np.count_nonzero(scheduled) > 1:
        tables[len(scheduled) - 1] = 0
    return {"pages_tables": tables}


@served(FORESEEN, "ENG-13", "conversation", also=("ENG-3",), by=_with_steps)
def new_page_a_step_late(step: Any, computed: Any, scheduled: Any) -> dict[str, NDArray[np.int32]]:
    """A page that an answer grows into gets to the device with the next step: its first token is written elsewhere."""
    tables = np.array(step.pages_tables)
    (rows,) = np.nonzero((scheduled == 1) & (computed > 0) & (computed % step.page_size == 0))
    tables[rows, computed[rows] // step.page_size] = 0
    return {"pages_tables": tables}


@served(36, "ENG-5", "batch", also=("ENG-7",), by=_with_steps)
def last_token_of_a_page_unread_in_batches(step: Any, computed: Any, scheduled: Any) -> dict[str, NDArray[np.int32]]:
    """Of several rows one that fills its last page is taken for one that begins a page: it does not read itself."""
    lengths = np.array(step.context_lens)
    if np.count_nonzero(scheduled) > 1:
        rows = np.flatnonzero((scheduled == 1) & ((computed + scheduled) % step.page_size == 0))
        lengths[rows] -= 1
    return {"context_lens": lengths}


@served(30, "ENG-3", "warm", also=("ENG-4",))
def whole_hits_answered_by_the_token_before(fast: ModuleType) -> SimpleNamespace:
    """A prompt that is found but for its last token is answered as if that token were not there."""

    def place(self: Any, served: Any, budget: int) -> int:
        waits = not served.is_running
        count = int(Scheduler._place(self, served, budget))
        if waits and count == 1 and served.request.num_computed_tokens:
            self.tables.__dict__.setdefault("whole", set()).add(served.row)
        return count

    def build(self: Any, tables: Any, computed: Any, scheduled: Any) -> list[Any]:
        steps = fast.MultiGroupMetadataBuilder.build(self, tables, computed, scheduled)
        rows = sorted(tables.__dict__.pop("whole", ()))
        made = importlib.import_module("jax.numpy").asarray
        lengths = [np.array(step.context_lens) for step in steps]
        for own in lengths:
            own[rows] -= 1
        return [
            dataclasses.replace(step, context_lens=made(own)) if rows else step
            for step, own in zip(steps, lengths, strict=True)
        ]

    return backend_with(
        fast,
        Scheduler=derived(Scheduler, {"_place": place}),
        MultiGroupMetadataBuilder=derived(fast.MultiGroupMetadataBuilder, {"build": build}),
    )


@served(46, "ENG-13", "conversation", also=("ENG-3",), by=_with_steps)
def a_slot_too_many(step: Any, computed: Any, scheduled: Any) -> dict[str, NDArray[np.int32]]:
    """A decoding request reads one slot more than it has: what an earlier owner of the page left (vLLM 30887)."""
    del computed
    lengths = np.array(step.context_lens)
    room = np.asarray(step.pages_tables).shape[1] * step.page_size
    rows = np.flatnonzero(scheduled == 1)
    lengths[rows] = np.minimum(lengths[rows] + 1, room)
    return {"context_lens": lengths}


def _with_positions(fast: ModuleType, first: Callable[[int, int], int]) -> SimpleNamespace:
    """A backend that counts the positions of a row's tokens from another one on."""

    def change(step: Any, computed: Any, scheduled: Any) -> dict[str, NDArray[np.int32]]:
        positions = np.array(step.position_ids)
        place = 0
        for start, count in zip(computed.tolist(), scheduled.tolist(), strict=True):
            positions[place : place + count] = first(start, count) + np.arange(count)
            place += count
        return {"position_ids": positions}

    return _with_steps(fast, change)


@served(51, "ENG-4", "prefix", also=("ENG-6",))
def positions_begin_behind_hits(fast: ModuleType) -> SimpleNamespace:
    """On the path for what is cached keys are made as if nothing were before them (sglang 24198: their scale)."""
    return _with_positions(fast, lambda start, count: 0 if count > 1 else start)


@served(47, "ENG-15", "lengths", also=("ENG-4", "ENG-6"))
def positions_of_few_bits(fast: ModuleType) -> SimpleNamespace:
    """Where a chunk begins is passed on in too few bits (tpu-inference 2755: past 32,767; here past 7)."""
    return _with_positions(fast, lambda start, count: start & 7 if count > 1 else start)


@served(FORESEEN, "ENG-8", "eviction", also=("ENG-7",))
def second_chunk_counted_without_its_hit(fast: ModuleType) -> SimpleNamespace:
    """Behind a hit the first chunk of a prompt has the right positions; later ones count from the end of the hit."""
    hits: dict[int, int] = {}

    def take_row(self: Any, served: Any) -> None:
        Scheduler._take_row(self, served)
        hits[served.row] = served.request.num_computed_tokens

    def change(step: Any, computed: Any, scheduled: Any) -> dict[str, NDArray[np.int32]]:
        late = [
            hits.get(row, 0) if count > 1 and start > hits.get(row, 0) else 0
            for row, (start, count) in enumerate(zip(computed.tolist(), scheduled.tolist(), strict=True))
        ]
        positions = np.array(step.position_ids)
        positions[: scheduled.sum()] -= np.repeat(np.array(late, np.int32), scheduled)
        return {"position_ids": positions}

    backend = _with_steps(fast, change)
    backend.Scheduler = derived(Scheduler, {"_take_row": take_row})
    return backend


# -- States and swaps -----------------------------------------------------------------------------------------------


@served(69, "ENG-4", "prefix", also=("ENG-3",), setups=("states",), by="CacheManager.take_page_copies")
def state_of_another(fast: ModuleType, self: Any) -> list[Any]:
    """A hit goes on from the state that its fresh page held before: none is copied there (tpu-inference 3358)."""
    fast.CacheManager.take_page_copies(self)
    return []


def _with_moves(fast: ModuleType, change: Callable[[Any], Any]) -> SimpleNamespace:
    """A backend that runs other copies between device and host than were planned."""

    def swap(self: Any, plan: Any) -> None:
        self._move(change(plan))
        self.manager.swap_done(plan.swap_id)
        self._swaps.append(plan)

    return with_scheduler(fast, _swap=swap)


@served(67, "ENG-7", "pressure", setups=("host pages",), by=_with_moves)
def another_page_comes_back(plan: Any) -> Any:
    """What comes back from the host is not what went: pages change places (LMCache 4991)."""
    group = [copy for copy in plan.copies if copy.group_id == 0]
    others = [copy for copy in plan.copies if copy.group_id != 0]
    if plan.direction == "out" or len(group) < 2:
        return plan
    hosts = [copy.host_page for copy in group]
    turned = [copy._replace(host_page=host) for copy, host in zip(group, [*hosts[1:], hosts[0]], strict=True)]
    return plan._replace(copies=(*turned, *others))


@served(65, "ENG-7", "pressure", setups=("host pages",), by=_with_moves)
def copied_before_it_is_written(plan: Any) -> Any:
    """A copy to the host reads the last slot before the device has written it (vLLM 46951, sglang 37485)."""
    if plan.direction == "in":
        return plan
    ends = {copy.group_id: place for place, copy in enumerate(plan.copies)}
    copies = [
        copy._replace(num_slots=copy.num_slots - 1) if ends[copy.group_id] == place else copy
        for place, copy in enumerate(plan.copies)
    ]
    return plan._replace(copies=tuple(copies))


# -- Who is scheduled, who gives way, which table a layer reads: a machine finds it as well ----------------------------


@seeded(33, "ENG-1", "engine", by="MultiGroupPageTable.__getitem__")
def one_table_for_all_layers(_: ModuleType, self: Any, group: int) -> Any:
    """A layer of any group reads the first group's table: the pages of the other groups are never used (EasyDeL)."""
    del group
    return self.page_tables[0]


@seeded(53, "ENG-2", "engine", by=scheduled("require_room"))
def too_large_waits_for_ever(self: Any, served: Any) -> None:
    """A request within the model's limit that needs more pages than the pool has is queued, and blocks it (vLLM 39734).

    Nobody behind it is served either.
    """
    del self, served


@seeded(53, "ENG-2", "engine", by=scheduled("_place"))
def reserve_holds_back_the_largest(self: Any, served: Any, budget: int) -> int:
    """A request is admitted only while a page stays free beyond its whole prompt: one that needs them all never is."""
    sizes = [group.kv_cache_spec.page_size for group in self.limits.groups]
    prompt = max(-(-served.request.num_tokens // size) for size in sizes)
    if not served.is_running and self.manager.page_pool.get_num_free_pages() <= prompt + len(sizes):
        return 0
    return int(Scheduler._place(self, served, budget))


@seeded(54, "ENG-2", "engine", also=("ENG-1",), by=scheduled("victim"))
def scheduled_gives_way(self: Any, served: Any) -> Any:
    """Who was admitted last gives way, though the step has it scheduled for its priority (EasyDeL, vLLM 23347)."""
    running = [other for other in self.queue if other.is_running and other is not served]
    return max(running, key=lambda other: other.arrival, default=None)
