"""MAN-11: a whole decode or mixed step in one call.

Most requests of a step neither need a page nor fill or free one. They are found by comparisons with two columns
(`LiveRequests.needs_at`, ``due_at``), and only three columns are written for them. For the others one array operation
takes all pages, one scatters them into the page lists and one into the page tables. Only requests that fill a page are
visited one by one, to publish it. Where pages may run short, or the order of single calls makes a difference (pages
freed and taken again in the same step), requests are served one by one by the code of the single call; where few have
something to do, in plain loops (`small_step`).

Small arrays cost what a call costs: `nonzero` and a ufunc's ``reduce`` take a third of the time of `any`, `sum` and
`max`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvproof.spec.declarations.reading import Ids

from ..groups.coordinator import CacheCoordinator
from ..table.multi_group_table import MultiGroupPageTable
from ..table.page_table import PageBatch
from .batched_publishing import publish_filled, read_filled
from .growth import Growth, growth_of
from .slot_batch import SlotBatch
from .small_step import FEW, read_small_step
from .step_reading import WholeStep, read_rows, read_step, too_short

__all__ = ["allocate_batch"]

_NO_REQUESTS: NDArray[np.int64] = np.empty(0, np.int64)
_NO_REQUESTS.flags.writeable = False

_NOTHING: NDArray[np.int32] = np.empty(0, np.int32)
_NOTHING.flags.writeable = False


def allocate_batch(
    coordinator: CacheCoordinator,
    slots: Ids,
    num_computed_tokens: Ids,
    num_new_tokens: Ids | int,
    num_lookahead_tokens: Ids | int,
    delay: bool,
    tables: MultiGroupPageTable | None,
    rows: Ids | None,
) -> SlotBatch:
    """`CacheManager.allocate_slots_batch`, whose arguments these are."""
    step = read_step(coordinator, slots, num_computed_tokens, num_new_tokens, num_lookahead_tokens)
    requests, where, computed, promised, all_slots, _, growing, due, steady = step
    doing = _NO_REQUESTS if delay else due
    num_busy = growing.size + doing.size
    small = read_small_step(coordinator, step, doing) if 0 < num_busy <= FEW else None
    row_ids = read_rows(coordinator, where, len(requests), tables, rows)
    granted = np.empty(len(requests), bool)
    granted.fill(True)
    if small is not None:
        if tables is not None and row_ids is not None:
            small.require_room(tables, row_ids)
        _write_columns(coordinator, steady, where, computed, promised, all_slots)
        return SlotBatch(granted, *small.serve(coordinator, growing, tables, row_ids))
    if num_busy:
        return _serve_many(coordinator, step, doing, granted, tables, row_ids)
    _write_columns(coordinator, steady, where, computed, promised, all_slots)
    num_groups = len(coordinator.groups)
    none = (_NO_REQUESTS,) * num_groups
    return SlotBatch(granted, (_NOTHING,) * num_groups, none, none)


def _write_columns(
    coordinator: CacheCoordinator,
    steady: bool,
    where: NDArray[np.int64] | slice,
    computed: NDArray[np.int64],
    promised: NDArray[np.int64],
    slots: NDArray[np.int64],
) -> None:
    """Writes the counts of requests that were granted slots; ``steady`` is `WholeStep.steady`."""
    live = coordinator.live
    live.computed[where] = computed
    if steady:  # the counts before were smaller
        live.promised[where] = promised
        live.slots[where] = slots
        return
    live.promised[where] = np.maximum(live.promised[where], promised)
    live.slots[where] = np.maximum(live.slots[where], slots)


# -- Many at once ---------------------------------------------------------------------------------


class StepPart(NamedTuple):
    """Some requests of a batched step, an entry for each, `i64[n]`.

    Attributes:
        requests: the requests' slots.
        computed: the numbers of computed tokens.
        promised: the numbers of computed and new tokens.
        slots: the numbers of computed, new and look-ahead tokens, at most those of the longest request.
    """

    requests: NDArray[np.int64]
    computed: NDArray[np.int64]
    promised: NDArray[np.int64]
    slots: NDArray[np.int64]


def _step_of(step: WholeStep, places: NDArray[np.int64]) -> StepPart:
    """The entries of some of the requests."""
    promised = step.promised[places]
    slots = promised if step.slots is step.promised else step.slots[places]  # without look-ahead tokens
    return StepPart(step.requests[places], step.computed[places], promised, slots)


def _serve_many(
    coordinator: CacheCoordinator,
    step: WholeStep,
    doing: NDArray[np.int64],
    granted: NDArray[np.bool_],
    tables: MultiGroupPageTable | None,
    rows: NDArray[np.int64] | None,
) -> SlotBatch:
    """Serves the requests that need, fill or free pages, in array operations.

    Args:
        coordinator: the groups at work.
        step: the arguments of the step.
        doing: the positions of the requests that may fill a page that is to be published now.
        granted: True for each request that is granted slots; written by this function.
        tables: the page tables to which the new pages are appended; None: none.
        rows: the requests' rows in the tables.
    """
    growing = step.growing
    takers, doers = _step_of(step, growing), _step_of(step, doing)
    growths = [growth_of(group, takers.requests, takers.promised, takers.slots) for group in coordinator.groups]
    if tables is not None and rows is not None:
        _require_room(growths, tables, rows[growing])
    filled = read_filled(coordinator, doers.requests, doers.computed, doers.promised)
    for growth in growths:  # before anything changes: a MemoryError may occur here
        if growth.total:
            growth.group.make_room_for(growth.slots, growth.ends)
    total = sum([growth.total for growth in growths])
    _, where, computed, promised, slots, *_ = step
    if total <= coordinator.page_pool.free_order.num_free and coordinator.takes_in_bulk():
        new = _take_all(coordinator, takers, growths, total)
        for group in coordinator.groups:
            group.save_memory()
    else:
        granted[growing] = served = _take_one_by_one(coordinator, takers)
        if not served.all():
            growths = [growth.of(served) for growth in growths]
            filled = filled.of(granted[doing])
            where, computed, promised, slots = _step_of(step, granted.nonzero()[0])
        new = [growth.new_entries() for growth in growths]
    _write_columns(coordinator, step.steady, where, computed, promised, slots)
    publish_filled(coordinator, filled)
    coordinator.set_needs_at(takers.requests)
    coordinator.set_due_at(takers.requests if coordinator.gives_back else doers.requests)
    if tables is not None and rows is not None:
        _append(growths, new, tables, rows[growing])
    places = [growing[growth.places] for growth in growths]
    return SlotBatch(granted, tuple(new), tuple(places), tuple([growth.entries for growth in growths]))


def _require_room(growths: Sequence[Growth], tables: MultiGroupPageTable, rows: NDArray[np.int64]) -> None:
    """Refuses rows that are too short, even of requests not granted pages; ``rows`` are those of requests that grow."""
    for growth, table in zip(growths, tables.page_tables, strict=True):
        width = table.max_num_pages_per_req
        short = (growth.ends > width).nonzero()[0]
        if short.size:
            worst = growth.ends.argmax()
            raise too_short(rows[growth.places[worst]], growth.ends[worst], width)


def _give_back_and_take(
    coordinator: CacheCoordinator, step: StepPart, growths: Sequence[Growth], total: int
) -> NDArray[np.int64]:
    """`CacheCoordinator.remove_skipped_pages` for the requests that have such pages, and all pages of the step.

    Both in the order of single calls, if it makes a difference: what is let go is then taken in the same step (RET-3).
    """
    some = np.zeros(len(step.requests), bool)
    taken = np.zeros(len(step.requests), np.int64)
    for growth in growths:
        group = growth.group
        taken[growth.places] += growth.taken
        if group.rule.gives_back:
            some |= group.rule.first_place(step.computed) > group.given_back[step.requests]
    pool = coordinator.page_pool
    clock = pool.log.clock
    earlier = np.cumsum(taken) - taken
    pages: list[NDArray[np.int64]] = []
    done = 0
    for place in some.nonzero()[0].tolist():
        before = int(earlier[place])
        if not coordinator.retention.judges:
            pool.log.clock = clock + before  # the time at which single calls would free these pages (MAN-12)
        elif before > done:
            pages.append(pool.take(before - done))
            done = before
        coordinator.remove_skipped_pages(int(step.requests[place]), int(step.computed[place]))
    if not coordinator.retention.judges:
        pool.log.clock = clock
    if total > done:
        pages.append(pool.take(total - done))
    return np.concatenate(pages) if len(pages) > 1 else pages[0] if pages else _NO_REQUESTS


def _take_all(
    coordinator: CacheCoordinator, step: StepPart, growths: Sequence[Growth], total: int
) -> list[NDArray[np.int32]]:
    """Takes all pages of a step at once and distributes them in the order of the single calls.

    Returns:
        The new entries of each group's lists.
    """
    new = [_NOTHING for _ in growths]
    if coordinator.gives_back:
        pages = _give_back_and_take(coordinator, step, growths, total)
    elif total:
        pages = coordinator.page_pool.take(total)
    if total:
        growing = [growth for growth in growths if growth.total]
        for growth, begins in zip(growing, _begins(growing), strict=True):
            new[growth.group.group_id] = growth.deal(pages, begins)
        if coordinator.has_states:
            _note_copies(coordinator, step, growths)
    return new


def _begins(growths: Sequence[Growth]) -> Sequence[NDArray[np.int64] | None]:
    """The index at which each list's share of the step's pages begins; None if the shares are in order."""
    if len(growths) == 1:
        return [None]
    taken = np.concatenate([growth.taken for growth in growths])
    order = np.argsort(np.concatenate([growth.places for growth in growths]), kind="stable")
    begins = np.empty(len(taken), np.int64)
    begins[order] = np.cumsum(taken[order]) - taken[order]
    return np.split(begins, np.cumsum([len(growth.taken) for growth in growths])[:-1])


def _note_copies(coordinator: CacheCoordinator, step: StepPart, growths: Sequence[Growth]) -> None:
    """Records the state copies of a step, request by request."""
    with_states = [growth for growth in growths if growth.group.rule.has_states]
    new = [
        (place, growth.group.group_id, slot, end)
        for growth in with_states
        for place, slot, end in zip(growth.places.tolist(), growth.slots.tolist(), growth.ends.tolist(), strict=True)
    ]
    for place, group_id, slot, end in sorted(new):
        group = coordinator.groups[group_id]
        coordinator.note_copy(group, slot, int(step.computed[place]), group.page_at(slot, end - 1))


def _take_one_by_one(coordinator: CacheCoordinator, step: StepPart) -> NDArray[np.bool_]:
    """Serves the requests in order, as single calls would; returns True for each that was granted slots."""
    columns = (step.requests, step.computed, step.promised, step.slots)
    entries = zip(*[column.tolist() for column in columns], strict=True)
    return np.array([coordinator.advance(*entry) is not None for entry in entries], bool)


# -- What came of it ------------------------------------------------------------------------------


def _append(
    growths: Sequence[Growth],
    new: Sequence[NDArray[np.int32]],
    tables: MultiGroupPageTable,
    rows: NDArray[np.int64],
) -> None:
    """Appends the new entries to the rows of the requests that have some."""
    for growth, table, pages in zip(growths, tables.page_tables, new, strict=True):
        if pages.size:
            own = rows[growth.places]
            cells = growth.cells(own, table.max_num_pages_per_req)
            table.write_batch(PageBatch(own, growth.ends, cells, pages.astype(np.int64)))
