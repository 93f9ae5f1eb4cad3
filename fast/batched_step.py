"""MAN-11: a whole decode or mixed step in one call.

Most requests of a step find nothing to do: they neither need a page nor fill one nor give one back. Comparisons
with two columns tell (`LiveRequests.needs_at`, ``due_at``), and for these only three columns are written. For the
others, lengths, counts and page lists are columns and tables as well: one bulk take, one scatter into the rows and one
into the page tables. Only requests that fill a page are looked at one by one, to publish it. Where pages may run short,
or the order of single takes would show (pages given back that are taken again in the same step), they are served one by
one through the code of the single call; where there are few, in plain loops (`small_step`).

Small arrays cost what a call costs: `count_nonzero` and a ufunc's ``reduce`` take a third of `any`, `sum` and `max`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .arguments import all_below, id_array, materialised, plain_array, refusal
from .arguments import integer as read_integer
from .batched_publishing import publish_filled, read_filled
from .coordinator import CacheCoordinator
from .growth import Growth, growth_of
from .page_table import MultiGroupPageTable
from .slot_batch import SlotBatch
from .small_step import FEW, read_small_step
from .table_rows import Ids, PageBatch

if TYPE_CHECKING:
    from .cache_manager import CacheManager

__all__ = ["allocate_batch"]

_INT64 = np.dtype(np.int64)
"""The one object that numpy has for it, so that arrays of that type are told by identity."""

_NOBODY: NDArray[np.int64] = np.empty(0, np.int64)
_NOBODY.flags.writeable = False

_NOTHING: NDArray[np.int32] = np.empty(0, np.int32)
_NOTHING.flags.writeable = False

_MOST = 2**40
"""More tokens than a request can have; sums of two stay within 64 bits."""


class Step(NamedTuple):
    """A batched step that was read, an entry for each request, `i64[n]`.

    Attributes:
        requests: their slots.
        where: where these lie in columns: themselves, or a slice where they follow one another, as requests get the
            lowest free slots: then columns are read and written as they lie, without gathering entry by entry.
        computed: their computed tokens.
        promised: these and their new tokens.
        slots: these and their look-ahead, cut at the longest request.
    """

    requests: NDArray[np.int64]
    where: NDArray[np.int64] | slice
    computed: NDArray[np.int64]
    promised: NDArray[np.int64]
    slots: NDArray[np.int64]

    def at(self, places: NDArray[np.int64]) -> "Step":
        """The entries of some of the requests."""
        promised = self.promised[places]
        slots = promised if self.slots is self.promised else self.slots[places]  # as where nothing looks ahead
        requests = self.requests[places]
        return Step(requests, requests, self.computed[places], promised, slots)


def allocate_batch(
    manager: "CacheManager",
    slots: Ids,
    num_computed_tokens: Ids,
    num_new_tokens: Ids | int,
    num_lookahead_tokens: Ids | int,
    delay: bool,
    tables: MultiGroupPageTable | None,
    rows: Ids | None,
) -> SlotBatch:
    """`CacheManager.allocate_slots_batch`, whose arguments these are."""
    coordinator = manager.coordinator
    live = coordinator.live
    step = _read_step(manager, slots, num_computed_tokens, num_new_tokens, num_lookahead_tokens)
    needs, is_due = step.slots >= live.needs_at[step.where], step.promised >= live.due_at[step.where]
    if coordinator.gives_back:  # what is given back comes before what is taken
        needs = is_due = needs | is_due
    growing, due = needs.nonzero()[0], is_due.nonzero()[0]
    doing = _NOBODY if delay else due
    granted = np.empty(len(step.requests), bool)
    granted.fill(True)
    small = None
    if len(growing) + len(due) <= FEW:
        small = read_small_step(
            coordinator,
            (step.requests[growing].tolist(), step.slots[growing].tolist()),
            (step.requests[doing].tolist(), step.promised[doing].tolist()),
        )
    growths: list[Growth]
    if small is not None:
        growths = small.growths(coordinator) if tables is not None else []
        row_ids = _read_rows(coordinator, growths, step.requests, growing, tables, rows)
        _write_columns(coordinator, step)
        new = [np.array(ids, np.int32) for ids in small.serve(coordinator)]
    else:
        takers, doers = step.at(growing), step.at(doing)
        growths = [growth_of(group, takers.requests, takers.promised, takers.slots) for group in coordinator.groups]
        row_ids = _read_rows(coordinator, growths, step.requests, growing, tables, rows)
        filled = read_filled(coordinator, doers.requests, doers.computed, doers.promised)
        total = sum([growth.total for growth in growths])
        if total <= coordinator.page_pool.get_num_free_pages() and coordinator.takes_in_bulk():
            if coordinator.gives_back:
                _give_back_all(coordinator, takers, growths)
            new = _take_all(coordinator, takers, growths, total)
        else:
            granted[growing] = served = _take_one_by_one(coordinator, takers)
            if not served.all():
                growths = [growth.of(served) for growth in growths]
                filled = filled.of(granted[due])
                step = step.at(granted.nonzero()[0])
            new = [growth.new_entries() for growth in growths]
        _write_columns(coordinator, step)
        publish_filled(coordinator, filled)
        coordinator.note_needs_of(takers.requests)
        coordinator.note_due_of(takers.requests if coordinator.gives_back else doers.requests)
    if tables is not None:
        _append(growths, new, tables, row_ids)
    if small is None:
        places = [growing[growth.places] for growth in growths]
        counts = [growth.entries for growth in growths]
    elif small.takes:
        places = [growing[own] for own in small.places(coordinator)]
        counts = [np.ones(len(own), np.int64) for own in places]
    else:
        places = counts = [_NOBODY for _ in new]
    return SlotBatch(granted, tuple(new), tuple(places), tuple(counts))


# -- Reading (R1) ---------------------------------------------------------------------------------


def _counts(name: str, values: Ids | int, num: int, minimum: int) -> NDArray[np.int64] | int:
    """Reads a count for each of ``num`` requests, or one for all of them."""
    if type(values) is int and minimum <= values <= _MOST:
        return values
    if isinstance(values, int | np.integer):
        return min(read_integer(name, values, minimum), _MOST)
    given = materialised(name, values)
    if len(given) != num:
        raise refusal(ValueError, "MAN-11", f"{name} has {len(given)} entries for {num} slots")
    numbers = plain_array(given)
    if numbers is None or not all_below(numbers - minimum, _MOST):
        numbers = np.array([min(read_integer(name, value, minimum), _MOST) for value in given], np.int64)
    return numbers


def _read_ids(
    name: str, values: Ids, size: int, clause: str
) -> tuple[NDArray[np.int64], NDArray[np.int64] | slice, bool]:
    """Reads the numbers of things of which ``size`` exist, where they lie, and whether all differ.

    See `id_array` and `Step.where`.
    """
    is_plain = type(values) is np.ndarray and values.dtype is _INT64 and values.ndim == 1
    ids: NDArray[np.int64] = np.asarray(values, np.int64) if is_plain else id_array(name, values, size, clause)
    if not ids.size:
        return ids, ids, True
    last = len(ids) - 1
    if np.count_nonzero(ids[1:] > ids[:-1]) == last:
        ordered, differ = ids, True
    else:
        ordered = np.sort(ids)
        differ = np.count_nonzero(ordered[1:] > ordered[:-1]) == last
    least, most = ordered.item(0), ordered.item(-1)
    if least < 0 or most >= size:
        ids = id_array(name, values, size, clause)  # which refuses them
    return ids, slice(least, most + 1) if ordered is ids and most - least == last else ids, differ


def _read_step(manager: "CacheManager", slots: Ids, computed: Ids, new: Ids | int, lookahead: Ids | int) -> Step:
    live = manager.coordinator.live
    requests, where, differ = _read_ids("slots", slots, len(live.requests), "MAN-11")
    num = len(requests)
    if not differ:
        raise refusal(ValueError, "MAN-11", f"slots={requests.tolist()} names a slot twice")
    if isinstance(computed, int | np.integer):
        raise refusal(TypeError, "R1", f"num_computed_tokens={computed!r} must be a sequence of ints")
    given: NDArray[np.int64]
    if type(computed) is np.ndarray and computed.dtype is _INT64 and computed.shape == requests.shape:
        given = np.asarray(computed, np.int64)  # what is negative or too large is found below
    else:
        given = np.asarray(_counts("num_computed_tokens", computed, num, 0), np.int64)
    promised: NDArray[np.int64] = given + _counts("num_new_tokens", new, num, 1)
    ahead = _counts("num_lookahead_tokens", lookahead, num, 0)
    # a slot without a request has -1 slots
    bad = (given > live.slots[where]) | (given < live.computed[where])
    if manager.coordinator.has_states:
        bad |= given != live.promised[where]
    if num and (np.count_nonzero(bad) or np.maximum.reduce(promised) > manager.max_model_len):
        if not live.is_live[requests].all():
            worst = requests[live.is_live[requests].argmin()]
            raise refusal(IndexError, "MAN-11", f"slots: no live request has slot {worst}")
        worst = int((bad | (promised > manager.max_model_len)).argmax())
        manager.require_step(int(requests[worst]), int(given[worst]), int(promised[worst]))
    if type(ahead) is int and not ahead:
        return Step(requests, where, given, promised, promised)
    return Step(requests, where, given, promised, np.minimum(promised + ahead, manager.max_model_len))


def _read_rows(
    coordinator: CacheCoordinator,
    growths: Sequence[Growth],
    requests: NDArray[np.int64],
    busy: NDArray[np.int64],
    tables: MultiGroupPageTable | None,
    rows: Ids | None,
) -> NDArray[np.int64]:
    """Reads the requests' rows and refuses those that are not theirs or too short, whoever will be granted pages.

    Returns:
        The rows of the requests that are busy; without tables anything.
    """
    if tables is None and rows is None:
        return busy
    if tables is None or rows is None:
        raise refusal(ValueError, "MAN-11", "tables and rows must be given together")
    if not isinstance(tables, MultiGroupPageTable):
        raise refusal(TypeError, "R1", f"tables={tables!r} must be a MultiGroupPageTable")
    num_groups = len(coordinator.groups)
    if len(tables.page_tables) != num_groups:
        raise refusal(ValueError, "MAN-11", f"tables has {len(tables.page_tables)} groups, the manager {num_groups}")
    num_rows = tables.page_tables[0].max_num_reqs
    row_ids, _, differ = _read_ids("rows", rows, num_rows, "TAB-2")
    if len(row_ids) != len(requests) or not differ:
        raise refusal(ValueError, "MAN-11", f"rows={row_ids.tolist()} must be {len(requests)} different rows")
    for growth, table in zip(growths, tables.page_tables, strict=True):
        named, held = table.num_pages_per_row[row_ids], growth.group.lengths[requests]
        if (named != held).any():
            worst = int((named != held).argmax())
            raise refusal(
                ValueError,
                "MAN-11",
                f"rows: row {row_ids[worst]} names {named[worst]} pages, its request holds {held[worst]}",
            )
        if len(growth.ends) and int(growth.ends.max()) > table.max_num_pages_per_req:
            worst = int(growth.ends.argmax())
            raise refusal(
                ValueError,
                "TAB-2",
                f"rows: row {row_ids[busy[growth.places[worst]]]} would have {growth.ends[worst]} pages "
                f"of {table.max_num_pages_per_req}",
            )
    return row_ids[busy]


# -- Taking ---------------------------------------------------------------------------------------


def _give_back_all(coordinator: CacheCoordinator, step: Step, growths: Sequence[Growth]) -> None:
    """`remove_skipped_pages` for the requests that have such pages, in order."""
    some = np.zeros(len(step.requests), bool)
    taken = np.zeros(len(step.requests), np.int64)
    for growth in growths:
        group = growth.group
        taken[growth.places] += growth.taken
        if group.rule.gives_back:
            some |= group.rule.first_place(step.computed) > group.given_back[step.requests]
    pool = coordinator.page_pool
    clock = pool.clock
    earlier = np.cumsum(taken) - taken
    for place in some.nonzero()[0].tolist():
        pool.clock = clock + int(earlier[place])  # as if the requests before had taken theirs already (MAN-12)
        coordinator.remove_skipped_pages(int(step.requests[place]), int(step.computed[place]))
    pool.clock = clock


def _write_columns(coordinator: CacheCoordinator, step: Step) -> None:
    """Notes the counts of requests that were granted slots."""
    live, where = coordinator.live, step.where
    live.computed[where] = step.computed
    live.promised[where] = np.maximum(live.promised[where], step.promised)
    live.slots[where] = np.maximum(live.slots[where], step.slots)


def _take_all(
    coordinator: CacheCoordinator, step: Step, growths: Sequence[Growth], total: int
) -> list[NDArray[np.int32]]:
    """Takes all pages of a step at once and deals them out in the order of the single calls.

    Returns:
        The new entries of each group's lists.
    """
    new = [_NOTHING for _ in growths]
    if total:
        pages = coordinator.page_pool.take(total)
        growing = [growth for growth in growths if growth.total]
        for growth, begins in zip(growing, _begins(growing), strict=True):
            new[growth.group.group_id] = growth.deal(pages, begins)
        if coordinator.has_states:
            _note_copies(coordinator, step, growths)
    return new


def _begins(growths: Sequence[Growth]) -> Sequence[NDArray[np.int64] | None]:
    """Where each list's share of the step's pages begins: request by request, group by group; None: in order."""
    if len(growths) == 1:
        return [None]
    taken = np.concatenate([growth.taken for growth in growths])
    order = np.argsort(np.concatenate([growth.places for growth in growths]), kind="stable")
    begins = np.empty(len(taken), np.int64)
    begins[order] = np.cumsum(taken[order]) - taken[order]
    return np.split(begins, np.cumsum([len(growth.taken) for growth in growths])[:-1])


def _note_copies(coordinator: CacheCoordinator, step: Step, growths: Sequence[Growth]) -> None:
    """Notes the state copies of a step, request by request."""
    with_states = [growth for growth in growths if growth.group.rule.has_states]
    new = [
        (place, growth.group.group_id, slot, end)
        for growth in with_states
        for place, slot, end in zip(growth.places.tolist(), growth.slots.tolist(), growth.ends.tolist(), strict=True)
    ]
    for place, group_id, slot, end in sorted(new):
        group = coordinator.groups[group_id]
        coordinator.note_copy(group, slot, int(step.computed[place]), int(group.rows[slot, end - 1]))


def _take_one_by_one(coordinator: CacheCoordinator, step: Step) -> NDArray[np.bool_]:
    """Serves the requests in order, as single calls would; returns who was granted slots."""
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
    """Appends the new entries to the rows of the requests that are busy."""
    for growth, table, pages in zip(growths, tables.page_tables, new, strict=True):
        if pages.size:
            own = rows[growth.places]
            cells = growth.cells(own, table.max_num_pages_per_req)
            table.write_batch(PageBatch(own, growth.ends, cells, pages.astype(np.int64)))
