"""MAN-11: a whole decode or mixed step in one call.

Most requests of a step find nothing to do: they neither need a page nor fill one nor give one back. One comparison
with a column tells (`LiveRequests.quiet`), and for these only three columns are written. For the others, lengths,
counts and page lists are columns and tables as well: one bulk take, one scatter into the rows and one into the page
tables. Only requests that fill a page are looked at one by one, to publish it. Where pages may run short, or the
order of single takes would show (pages given back that are taken again in the same step), they are served one by one
through the code of the single call.

Small arrays cost what a call costs: `count_nonzero` and a ufunc's ``reduce`` take a third of `any`, `sum` and `max`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .arguments import all_below, id_array, materialised, plain_array, refusal
from .arguments import integer as read_integer
from .batched_publishing import Filled, publish_filled, read_filled
from .cache_group import CacheGroup
from .coordinator import CacheCoordinator
from .page_table import MultiGroupPageTable
from .slot_batch import SlotBatch
from .table_rows import Ids, PageBatch

if TYPE_CHECKING:
    from .cache_manager import CacheManager

__all__ = ["allocate_batch"]

_MOST = 2**40
"""More tokens than a request can have; sums of two stay within 64 bits."""


class Step(NamedTuple):
    """A batched step that was read, an entry for each request, `i64[n]`.

    Attributes:
        requests: their slots.
        computed: their computed tokens.
        promised: these and their new tokens.
        slots: these and their look-ahead, cut at the longest request.
    """

    requests: NDArray[np.int64]
    computed: NDArray[np.int64]
    promised: NDArray[np.int64]
    slots: NDArray[np.int64]


class Growth(NamedTuple):
    """How a group's lists grow in a step, an entry for each request whose list does, `i64[m]`.

    Attributes:
        group: the group.
        places: the requests' places in the step.
        slots: their slots.
        held: how long their lists are.
        ends: how long they are to be.
        taken: how many pages each takes; null pages fill the rest.
        total: how many pages they take together.
        by_one: whether each list grows by one page, as in every decode step.
    """

    group: CacheGroup
    places: NDArray[np.int64]
    slots: NDArray[np.int64]
    held: NDArray[np.int64]
    ends: NDArray[np.int64]
    taken: NDArray[np.int64]
    total: int
    by_one: bool

    def of(self, granted: NDArray[np.bool_]) -> "Growth":
        """Those of the requests that were granted slots."""
        kept = granted[self.places]
        taken = self.taken[kept]
        return self._replace(
            places=self.places[kept],
            slots=self.slots[kept],
            held=self.held[kept],
            ends=self.ends[kept],
            taken=taken,
            total=int(taken.sum()),
        )


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
    step = _read_step(manager, slots, num_computed_tokens, num_new_tokens, num_lookahead_tokens)
    busy = (step.slots >= coordinator.live.quiet[step.requests]).nonzero()[0]
    some = Step(*(column[busy] for column in step))
    growths = [_growth(group, some) for group in coordinator.groups]
    row_ids = _read_rows(coordinator, growths, step.requests, busy, tables, rows)
    filled = Filled([], []) if delay else read_filled(coordinator, some.requests, some.computed, some.promised)
    total = sum(growth.total for growth in growths)
    granted = np.ones(len(step.requests), bool)
    if total <= coordinator.page_pool.get_num_free_pages() and coordinator.takes_in_bulk():
        _write_columns(coordinator, step)
        if coordinator.gives_back:
            _give_back_all(coordinator, some, growths)
        if total:
            _take_all(coordinator, some, growths, total)
    else:
        granted[busy] = served = _take_one_by_one(coordinator, some)
        _write_columns(coordinator, Step(*(np.delete(column, busy) for column in step)))
        growths = [growth.of(served) for growth in growths]
        filled = filled.of(served)
    publish_filled(coordinator, filled)
    coordinator.note_quiet_of(some.requests)
    return _result(busy, growths, granted, tables, row_ids)


# -- Reading (R1) ---------------------------------------------------------------------------------


def _counts(name: str, values: Ids | int, num: int, minimum: int) -> NDArray[np.int64] | int:
    """Reads a count for each of ``num`` requests, or one for all of them."""
    if isinstance(values, int | np.integer):
        return min(read_integer(name, values, minimum), _MOST)
    given = materialised(name, values)
    if len(given) != num:
        raise refusal(ValueError, "MAN-11", f"{name} has {len(given)} entries for {num} slots")
    numbers = plain_array(given)
    if numbers is None or not all_below(numbers - minimum, _MOST):
        numbers = np.array([min(read_integer(name, value, minimum), _MOST) for value in given], np.int64)
    return numbers


def _all_differ(numbers: NDArray[np.int64], size: int) -> bool:
    """Whether numbers below ``size`` are all different: told at a glance where they ascend, else by a scatter."""
    if np.count_nonzero(numbers[1:] > numbers[:-1]) + 1 >= len(numbers):
        return True
    places = np.arange(len(numbers))
    last = np.empty(size, np.int64)
    last[numbers] = places
    return bool((last[numbers] == places).all())


def _read_step(manager: "CacheManager", slots: Ids, computed: Ids, new: Ids | int, lookahead: Ids | int) -> Step:
    live = manager.coordinator.live
    requests = id_array("slots", slots, len(live.requests), "MAN-11")
    num = len(requests)
    if not _all_differ(requests, len(live.requests)):
        raise refusal(ValueError, "MAN-11", f"slots={requests.tolist()} names a slot twice")
    if isinstance(computed, int | np.integer):
        raise refusal(TypeError, "R1", f"num_computed_tokens={computed!r} must be a sequence of ints")
    given: NDArray[np.int64]
    if isinstance(computed, np.ndarray) and computed.dtype == np.int64 and computed.shape == (num,):
        given = np.asarray(computed, np.int64)  # what is negative or too large is found below
    else:
        given = np.asarray(_counts("num_computed_tokens", computed, num, 0), np.int64)
    promised = np.add(given, _counts("num_new_tokens", new, num, 1), dtype=np.int64)
    ahead = _counts("num_lookahead_tokens", lookahead, num, 0)
    # a slot without a request has -1 slots
    bad = (given > live.slots[requests]) | (given < live.computed[requests])
    if manager.coordinator.has_states:
        bad |= given != live.promised[requests]
    if num and (np.count_nonzero(bad) or np.maximum.reduce(promised) > manager.max_model_len):
        if not live.is_live[requests].all():
            worst = requests[live.is_live[requests].argmin()]
            raise refusal(IndexError, "MAN-11", f"slots: no live request has slot {worst}")
        worst = int((bad | (promised > manager.max_model_len)).argmax())
        manager.require_step(int(requests[worst]), int(given[worst]), int(promised[worst]))
    all_slots = promised
    if not isinstance(ahead, int) or ahead:
        all_slots = np.minimum(promised + ahead, manager.max_model_len)
    return Step(requests, given, promised, all_slots)


def _growth(group: CacheGroup, step: Step) -> Growth:
    held = group.lengths[step.requests]
    ends = group.rule.end(step.promised, step.slots)
    places = (ends > held).nonzero()[0]
    held, ends = held[places], ends[places]
    grown = ends - held
    by_one = int(np.add.reduce(grown)) == len(places)  # none is 0
    taken = np.ones(len(places), np.int64) if group.rule.has_states else grown
    total = len(places) if by_one or group.rule.has_states else int(np.add.reduce(taken))
    return Growth(group, places, step.requests[places], held, ends, taken, total, by_one)


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
        The rows of the requests that are busy.
    """
    if (tables is None) != (rows is None):
        raise refusal(ValueError, "MAN-11", "tables and rows must be given together")
    if tables is None or rows is None:
        return np.empty(0, np.int64)
    if not isinstance(tables, MultiGroupPageTable):
        raise refusal(TypeError, "R1", f"tables={tables!r} must be a MultiGroupPageTable")
    num_groups = len(coordinator.groups)
    if len(tables.page_tables) != num_groups:
        raise refusal(ValueError, "MAN-11", f"tables has {len(tables.page_tables)} groups, the manager {num_groups}")
    num_rows = tables.page_tables[0].max_num_reqs
    row_ids = id_array("rows", rows, num_rows, "TAB-2")
    if len(row_ids) != len(requests) or not _all_differ(row_ids, num_rows):
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
    live, requests = coordinator.live, step.requests
    live.computed[requests] = step.computed
    live.promised[requests] = np.maximum(live.promised[requests], step.promised)
    live.slots[requests] = np.maximum(live.slots[requests], step.slots)


def _take_all(coordinator: CacheCoordinator, step: Step, growths: Sequence[Growth], total: int) -> None:
    """Takes all pages of a step at once and deals them out in the order of the single calls."""
    pages = coordinator.page_pool.take(total)
    for growth, begins in zip(growths, _begins(growths), strict=True):
        if len(growth.places):
            _deal(growth, pages, begins)
    if coordinator.has_states:
        _note_copies(coordinator, step, growths)


def _begins(growths: Sequence[Growth]) -> list[NDArray[np.int64]]:
    """Where each list's share of the step's pages begins: request by request, group by group."""
    if len(growths) == 1:
        taken = growths[0].taken
        return [np.arange(len(taken)) if growths[0].by_one else np.cumsum(taken) - taken]
    taken = np.concatenate([growth.taken for growth in growths])
    order = np.argsort(np.concatenate([growth.places for growth in growths]), kind="stable")
    begins = np.empty(len(taken), np.int64)
    begins[order] = np.cumsum(taken[order]) - taken[order]
    return np.split(begins, np.cumsum([len(growth.taken) for growth in growths])[:-1])


def _deal(growth: Growth, pages: NDArray[np.int64], begins: NDArray[np.int64]) -> None:
    """Puts a group's share of the pages at the ends of its lists."""
    group, taken = growth.group, growth.taken
    group.widen(int(np.maximum.reduce(growth.ends)))
    if growth.by_one:
        group.rows[growth.slots, growth.held] = pages[begins]
    else:
        which, within = _spread(taken)
        group.rows[growth.slots[which], (growth.ends - taken)[which] + within] = pages[begins[which] + within]
    group.lengths[growth.slots] = growth.ends


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
    granted = np.zeros(len(step.requests), bool)
    for place, (slot, computed, promised, slots) in enumerate(zip(*(column.tolist() for column in step), strict=True)):
        granted[place] = coordinator.advance(slot, computed, promised, slots) is not None
    return granted


# -- What came of it ------------------------------------------------------------------------------


def _result(
    busy: NDArray[np.int64],
    growths: Sequence[Growth],
    granted: NDArray[np.bool_],
    tables: MultiGroupPageTable | None,
    row_ids: NDArray[np.int64],
) -> SlotBatch:
    """Reads the new pages off the lists, and appends them to the table rows."""
    all_pages, all_places, all_counts = [], [], []
    for number, growth in enumerate(growths):
        counts = growth.ends - growth.held
        own_slots, columns, which = growth.slots, growth.held, None
        if not growth.by_one:
            which, within = _spread(counts)
            own_slots, columns = own_slots[which], columns[which] + within
        pages = growth.group.rows[own_slots, columns]
        if tables is not None and pages.size:
            table = tables.page_tables[number]
            own_rows = row_ids[growth.places]
            cells = (own_rows if which is None else own_rows[which]) * table.max_num_pages_per_req + columns
            table.write_batch(PageBatch(own_rows, growth.ends, cells, pages.astype(np.int64)))
        all_pages.append(pages)
        all_places.append(busy[growth.places])
        all_counts.append(counts)
    return SlotBatch(granted, tuple(all_pages), tuple(all_places), tuple(all_counts))


def _spread(lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For lists of these lengths, laid end to end: the list of each entry, and the entry's place in it."""
    which = np.repeat(np.arange(len(lengths)), lengths)
    return which, np.arange(len(which)) - (np.cumsum(lengths) - lengths)[which]
