"""MAN-11, R1: reading the arguments of a batched step, before it changes anything.

Whole columns are read and compared, and the number of array operations matters, as the cost of small arrays is the
call. The requests of a step are mostly those of the step before; their slots are then known to be valid and distinct
(`LiveRequests.last_slots`).
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvproof.spec.declarations.reading import Ids

from ..groups.coordinator import CacheCoordinator
from ..groups.live_requests import DistinctIds, LiveRequests
from ..reading.arguments import all_below, id_array, materialised, plain_array, refusal
from ..reading.arguments import integer as read_integer
from ..table.multi_group_table import MultiGroupPageTable

__all__ = ["WholeStep", "read_rows", "read_step", "too_short"]

_INT64 = np.dtype(np.int64)
"""The object that numpy shares for this dtype, so that arrays of it are recognised by identity."""

_ONE: NDArray[np.int64] = np.ones((), np.int64)
"""An array: numpy takes a third of a microsecond longer for the Python number."""

_MOST = 2**40
"""A number of tokens above that of any request; sums of two stay within 64 bits."""


class WholeStep(NamedTuple):
    """The arguments of a batched step as read, an entry for each request, `i64[n]`, and the requests with work to do.

    Attributes:
        requests: the requests' slots.
        where: an index for columns: the slots, or a slice if they are consecutive, which is frequent since requests get
            the lowest free slots; columns are then read and written without a gather.
        computed: the numbers of computed tokens.
        promised: the numbers of computed and new tokens.
        slots: the numbers of computed, new and look-ahead tokens, at most those of the longest request; ``promised``
            itself if there are no look-ahead tokens.
        wanted: the slots of the requests that may need a page, `i64[k]`.
        growing: the positions in the step of the requests that may need a page, `i64[k]`.
        due: the positions of the requests that may fill a page. If a group frees pages of live requests, ``due`` and
            ``growing`` both have all requests with work to do, since pages are freed before pages are taken.
        steady: True if every request has computed all the tokens it has slots for, so no count went down (MAN-8).
    """

    requests: NDArray[np.int64]
    where: NDArray[np.int64] | slice
    computed: NDArray[np.int64]
    promised: NDArray[np.int64]
    slots: NDArray[np.int64]
    wanted: NDArray[np.int64]
    growing: NDArray[np.int64]
    due: NDArray[np.int64]
    steady: bool


def read_step(
    coordinator: CacheCoordinator, slots: Ids, computed: Ids, new: Ids | int, lookahead: Ids | int
) -> WholeStep:
    """Reads the numbers of `CacheManager.allocate_slots_batch`, whose arguments these are."""
    live = coordinator.live
    named = _read_named(live.last_slots, "slots", slots, len(live.requests), "MAN-11", "names a slot twice", live)
    live.last_slots = named
    _, _, requests, where = named
    cut: dict[str, list[int]] = {}
    given: NDArray[np.int64]
    added: NDArray[np.int64] | int
    try:
        if type(computed) is np.ndarray and computed.dtype is _INT64 and computed.shape == requests.shape:
            given = np.asarray(computed, np.int64)  # what is negative or too large is found below
        elif isinstance(computed, int | np.integer):
            raise refusal(TypeError, "R1", f"num_computed_tokens={computed!r} must be a sequence of ints")
        else:
            given = np.asarray(_counts("num_computed_tokens", computed, len(requests), 0, cut), np.int64)
        if type(new) is int and 0 < new <= _MOST:
            added = _ONE if new == 1 else new
        else:
            added = _counts("num_new_tokens", new, len(requests), 1, cut)
        promised: NDArray[np.int64] = given + added
        reach = promised
        if type(lookahead) is not int or lookahead:
            reach = promised + _counts("num_lookahead_tokens", lookahead, len(requests), 0, cut)
    except (TypeError, ValueError):
        _require_live(live, requests)  # of two faults the slot is told: with it, the numbers may be right
        raise
    had = live.slots[where]
    steady = given.tobytes() == had.tobytes()  # a quarter of the time of a comparison of some hundred numbers
    if steady and not coordinator.has_states:
        is_bad = False
    else:
        bad = (given > had) | (given < live.computed[where])
        if coordinator.has_states:
            bad |= given != live.promised[where]
        is_bad = bad.nonzero()[0].size > 0
    needs, is_due = reach >= live.needs_at[where], promised >= live.due_at[where]
    if coordinator.gives_back:
        needs = is_due = needs | is_due
    growing, due = needs.nonzero()[0], is_due.nonzero()[0]
    wanted = promised[growing]
    # `needs_at` is at most ``most_slots``: a request with too many tokens is among those that may need a page, and so
    # is an unused slot whose computed tokens equal its slots
    if is_bad or (growing.size and wanted.item(wanted.argmax()) >= coordinator.most_slots):
        _refuse(coordinator, requests, given, promised, cut)
    if reach is promised:
        return WholeStep(requests, where, given, promised, promised, wanted, growing, due, steady)
    all_slots = np.minimum(reach, coordinator.max_model_len)
    return WholeStep(requests, where, given, promised, all_slots, all_slots[growing], growing, due, steady)


def _refuse(
    coordinator: CacheCoordinator,
    requests: NDArray[np.int64],
    given: NDArray[np.int64],
    promised: NDArray[np.int64],
    cut: dict[str, list[int]],
) -> None:
    """Raises the error of the single call of the first faulty request, or of a slot without a request, if any.

    Messages show the numbers as passed; those too large to be computed with are in ``cut``.
    """
    _require_live(coordinator.live, requests)
    all_computed = cut.get("num_computed_tokens", given.tolist())
    all_new = cut.get("num_new_tokens", (promised - given).tolist())
    for slot, computed, new in zip(requests.tolist(), all_computed, all_new, strict=True):
        coordinator.require_step(slot, computed, computed + new)


def _require_live(live: LiveRequests, requests: NDArray[np.int64]) -> None:
    """Refuses slots without a live request."""
    is_live = live.is_live[requests]
    if not is_live.all():
        raise refusal(IndexError, "MAN-11", f"slots: no live request has slot {requests[is_live.argmin()]}")


def _counts(name: str, values: Ids | int, num: int, minimum: int, cut: dict[str, list[int]]) -> NDArray[np.int64] | int:
    """Reads a count for each of ``num`` requests, or one for all; ``cut`` gets values that are too large, as passed."""
    if isinstance(values, int | np.integer):
        number = read_integer(name, values, minimum)
        if number > _MOST:
            cut[name] = [number] * num
        return min(number, _MOST)
    given = materialised(name, values)
    if len(given) != num:
        raise refusal(ValueError, "MAN-11", f"{name} has {len(given)} entries for {num} slots")
    numbers = plain_array(given)
    if numbers is None or not all_below(numbers - minimum, _MOST):
        cut[name] = [read_integer(name, value, minimum) for value in given]
        numbers = np.array([min(number, _MOST) for number in cut[name]], np.int64)
    return numbers


def _read_named(
    last: DistinctIds, name: str, values: Ids, size: int, clause: str, twice: str, live: LiveRequests | None = None
) -> DistinctIds:
    """Reads distinct numbers below ``size``.

    Args:
        last: the last result.
        name: the name of the argument.
        values: the argument.
        size: the number of things that exist.
        clause: the label of the clause that other numbers violate.
        twice: what is said of numbers that repeat.
        live: the live requests where these are their slots: one without a request is told before one that repeats.
    """
    if type(values) is not np.ndarray or values.dtype is not _INT64 or values.ndim != 1:
        values = id_array(name, values, size, clause)
    data = values.tobytes()
    if data == last.data and last.size <= size:
        return last
    ids: NDArray[np.int64] = np.frombuffer(data, np.int64)  # the caller's array may change
    if not ids.size:
        return DistinctIds(data, size, ids, ids)
    num = len(ids) - 1
    ascends = np.count_nonzero(ids[1:] > ids[:-1]) == num
    ordered = ids if ascends else np.sort(ids)
    least, most = ordered.item(0), ordered.item(-1)
    if least < 0 or most >= size:
        id_array(name, ids, size, clause)  # which refuses them
    if not ascends and np.count_nonzero(ordered[1:] > ordered[:-1]) < num:
        if live is not None:
            _require_live(live, ids)
        raise refusal(ValueError, "MAN-11", f"{name}={ids.tolist()} {twice}")
    return DistinctIds(data, size, ids, slice(least, most + 1) if ascends and most - least == num else ids)


def read_rows(
    coordinator: CacheCoordinator,
    where: NDArray[np.int64] | slice,
    num: int,
    tables: MultiGroupPageTable | None,
    rows: Ids | None,
) -> NDArray[np.int64] | None:
    """Reads the rows of a step's requests in page tables and refuses those that are not theirs.

    Args:
        coordinator: the groups at work.
        where: the index of the requests in columns; see `WholeStep`.
        num: the number of requests.
        tables: see `CacheManager.allocate_slots_batch`.
        rows: see `CacheManager.allocate_slots_batch`.

    Returns:
        The rows, `i64[n]`; None without tables.
    """
    if tables is None and rows is None:
        return None
    if tables is None or rows is None:
        lacking = "tables" if tables is None else "rows"
        raise refusal(ValueError, "MAN-11", f"{lacking}=None: tables and rows must be given together")
    if not isinstance(tables, MultiGroupPageTable):
        raise refusal(TypeError, "R1", f"tables={tables!r} must be a MultiGroupPageTable")
    num_groups = len(coordinator.groups)
    if len(tables.page_tables) != num_groups:
        raise refusal(ValueError, "MAN-11", f"tables has {len(tables.page_tables)} groups, the manager {num_groups}")
    num_rows = tables.page_tables[0].max_num_reqs
    live = coordinator.live
    fault = f"must be {num} different rows"
    live.last_rows = read = _read_named(live.last_rows, "rows", rows, num_rows, "TAB-2", fault)
    row_ids = read.ids
    if len(row_ids) != num:
        raise refusal(ValueError, "MAN-11", f"rows={row_ids.tolist()} {fault}")
    for group, table in zip(coordinator.groups, tables.page_tables, strict=True):
        named, held = table.num_pages_per_row[read.where], group.lengths[where]
        others = (named != held).nonzero()[0]
        if others.size:
            worst = others[0]
            raise refusal(
                ValueError,
                "MAN-11",
                f"rows: row {row_ids[worst]} names {named[worst]} pages, its request holds {held[worst]}",
            )
    return row_ids


def too_short(row: Any, end: Any, width: int) -> Exception:
    """The error for a row of a page table that has no room for a request's pages."""
    return refusal(ValueError, "TAB-2", f"rows: row {row} would have {end} pages of {width}")
