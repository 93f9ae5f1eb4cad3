"""MAN-11: a batched step in which few requests need or fill a page, and none more than one.

Every decode step of some hundred requests is of this kind. Up to some dozens of pages, a loop over them is faster than
the array operations of `batched_step`, whose cost is that of a call for every length: it takes three quarters of their
time where sixteen requests need and sixteen fill a page, nine tenths with 24 of each, and with 32 of each, the most
that `FEW` lets through, the same (256, 384 and 512 requests, measured side by side). All is read before anything
changes (R1); steps of any other kind are left to `batched_step`.
"""

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..groups.cache_group import CacheGroup
from ..groups.coordinator import CacheCoordinator
from ..pool.pool_log import KeyStretch
from ..reading.request_reading import plain_tokens
from ..table.multi_group_table import MultiGroupPageTable
from ..table.page_table import FewAppends
from .batched_publishing import NextPage, publish_next_pages
from .step_reading import WholeStep, too_short

__all__ = ["FEW", "SmallStep", "read_small_step"]

FEW = 64
"""The most requests of a step, those that need and those that fill a page together, that are served here."""

_ONES: NDArray[np.int64] = np.ones(FEW, np.int64)
_ONES.flags.writeable = False


Take = tuple[int, int, int, int]
"""A page to be taken: the request's position in the step, the group's number, the request's slot, and the length of its
list."""


Fill = tuple[CacheGroup, list[NextPage], list[KeyStretch | None]]
"""Pages of a group to be published: (group, pages, their keys; no keys if none are kept)."""


class SmallStep(NamedTuple):
    """The pages that few requests need and fill, one page each.

    Attributes:
        takes: the pages to be taken, request by request and group by group.
        fills: the pages to be published, group by group.
        needs: (slot, new ``needs_at``) of the requests that may need a page.
        due: (slot, new ``due_at``) of the requests that may fill a page.
    """

    takes: list[Take]
    fills: list[Fill]
    needs: list[tuple[int, int]]
    due: list[tuple[int, int]]

    def require_room(self, tables: MultiGroupPageTable, rows: NDArray[np.int64]) -> None:
        """Refuses rows that are too short; ``rows`` are those of all requests of the step."""
        widths = [table.max_num_pages_per_req for table in tables.page_tables]
        for place, number, _, held in self.takes:
            if held >= widths[number]:
                raise too_short(rows.item(place), held + 1, widths[number])

    def serve(
        self,
        coordinator: CacheCoordinator,
        growing: NDArray[np.int64],
        tables: MultiGroupPageTable | None,
        rows: NDArray[np.int64] | None,
    ) -> tuple[tuple[NDArray[np.int32], ...], tuple[NDArray[np.int64], ...], tuple[NDArray[np.int64], ...]]:
        """Takes and publishes the pages, and updates ``needs_at`` and ``due_at`` of their requests.

        Args:
            coordinator: the groups at work.
            growing: the positions of the requests that may need a page.
            tables: the page tables to which the new pages are appended; None: none.
            rows: the rows of all requests of the step in the tables.

        Returns:
            For each group its new pages, the positions of their requests, and 1 for each.
        """
        live, pool, groups = coordinator.live, coordinator.page_pool, coordinator.groups
        takes, fills, needs, due = self
        new: list[list[int]] = [[] for _ in groups]
        if takes:
            taken = iter(pool.take(len(takes)).tolist())
            for _, number, slot, held in takes:
                page = next(taken)
                new[number].append(page)
                group = groups[number]
                group.cell[group.num_origins[slot] + held] = page
                group.num_pages[slot] = held + 1
            for group, own in zip(groups, new, strict=True):
                group.num_cells += len(own)
        for group, entries, keys in fills:
            publish_next_pages(coordinator, group, entries, keys)
        needs_at, due_at = live.num_needs_at, live.num_due_at
        for slot, bound in needs:
            needs_at[slot] = bound
        for slot, bound in due:
            due_at[slot] = bound
        if tables is not None and rows is not None:
            self._append(tables, rows, new)
        places = [growing if len(own) == growing.size else self._places(number) for number, own in enumerate(new)]
        pages = [np.frombuffer(array("i", own), np.int32) for own in new]  # half the time of ``np.array``
        return tuple(pages), tuple(places), tuple([_ONES[: len(own)] for own in new])

    def _places(self, group_id: int) -> NDArray[np.int64]:
        """The positions of the requests that take a page of a group."""
        return np.array([place for place, number, _, _ in self.takes if number == group_id], np.int64)

    def _append(self, tables: MultiGroupPageTable, rows: NDArray[np.int64], new: Sequence[list[int]]) -> None:
        """Appends the new pages to the requests' rows."""
        row_of = rows.item
        for number, (table, pages) in enumerate(zip(tables.page_tables, new, strict=True)):
            if pages:
                width = table.max_num_pages_per_req
                own = [(row_of(place), held) for place, group_id, _, held in self.takes if group_id == number]
                cells = [row * width + held for row, held in own]
                table.write_batch(FewAppends([row for row, _ in own], [held + 1 for _, held in own], cells, pages))


def read_small_step(coordinator: CacheCoordinator, step: WholeStep, doing: NDArray[np.int64]) -> SmallStep | None:
    """Reads a step, if it can be served in plain loops; changes nothing (R1).

    Args:
        coordinator: the groups at work.
        step: the arguments of the step.
        doing: the positions of the requests that may fill a page that is to be published now.

    Returns:
        The step's pages. None if a request needs or fills more than one page or fills the page that it takes; if pages
        are freed, are too few, hold states or may have lost their hashes (MAN-4); or if pages of several groups are to
        be published request by request.
    """
    pool, groups = coordinator.page_pool, coordinator.groups
    if not coordinator.keeps_all or (pool.keys.kept and len(groups) > 1):
        return None
    takes: list[Take] = []
    needs: list[tuple[int, int]] = []
    if step.growing.size:
        needed = _read_takes(coordinator, step)
        if needed is None:
            return None
        takes, needs = needed
    fills: list[Fill] = []
    due: list[tuple[int, int]] = []
    if doing.size:
        filled = _read_fills(coordinator, step, doing)
        if filled is None:
            return None
        fills, due = filled
    return SmallStep(takes, fills, needs, due)


def _read_takes(coordinator: CacheCoordinator, step: WholeStep) -> tuple[list[Take], list[tuple[int, int]]] | None:
    """The pages to be taken and the requests' new ``needs_at``; None if one needs several, or too few are free."""
    growing, groups, most = step.growing, coordinator.groups, coordinator.most_slots
    places, growers, wanted = growing.tolist(), step.requests[growing].tolist(), step.wanted.tolist()
    takes: list[Take] = []
    needs: list[tuple[int, int]] = []
    for group in groups:
        number, num_pages, limits, size = group.group_id, group.num_pages, group.num_limits, group.page_size
        bounds: list[tuple[int, int]] = []
        for place, slot, end in zip(places, growers, wanted, strict=True):
            held = num_pages[slot]
            room = held * size
            if end > room:
                if held == limits[slot]:
                    group.make_room(slot, held + 1, 1)
                takes.append((place, number, slot, held))
                room += size
                if end > room:
                    return None
            bounds.append((slot, room + 1 if room < most else most))
        needs = list(map(min, needs, bounds)) if needs else bounds
    if len(groups) > 1:
        takes.sort()
    return (takes, needs) if len(takes) <= coordinator.page_pool.free_order.num_free else None


def _read_fills(
    coordinator: CacheCoordinator, step: WholeStep, doing: NDArray[np.int64]
) -> tuple[list[Fill], list[tuple[int, int]]] | None:
    """The pages to be published and the requests' new ``due_at``; None if one fills several, or one of another kind."""
    pool, live = coordinator.page_pool, coordinator.live
    doers, reached = step.requests[doing].tolist(), step.promised[doing].tolist()
    if pool.num_withdrawals or live.any_withdrawn:
        seen = [live.num_withdrawals[slot] for slot in doers]
        if seen.count(pool.num_withdrawals) < len(seen):
            return None
    request_of, run_cell = live.requests, pool.index.run_cell
    fills: list[Fill] = []
    due: list[tuple[int, int]] = []
    for group in coordinator.groups:
        num_published, cell, num_pages = group.num_published, group.cell, group.num_pages
        is_plain, segments, size = group.is_plain, group.segments, group.page_size
        tail_runs, origins = group.num_tail_runs, group.num_origins
        entries: list[NextPage] = []
        keys: list[KeyStretch | None] = []
        bounds: list[tuple[int, int]] = []
        extra = b""
        for slot, end in zip(doers, reached, strict=True):
            first = num_published[slot]
            full = first * size + size
            if end >= full:
                if end >= full + size or first == num_pages[slot]:
                    return None
                at = origins[slot] + first
                if not tail_runs[slot] and not (first and run_cell[cell[at - 1]]):
                    return None
                if not is_plain:
                    if len(segments[slot]) > 1:
                        return None
                    extra = segments[slot][0].extra
                tokens = plain_tokens(request_of[slot], full - size, full)
                if tokens is None:
                    return None
                entries.append((slot, cell[at], first, tokens, extra))
                if pool.keys.kept:
                    keys.append(pool.keys.ahead(group.tree, tokens, segments[slot], first, cell[at - 1]))
                full += size
            bounds.append((slot, full))
        fills.append((group, entries, keys))
        due = list(map(min, due, bounds)) if due else bounds
    return fills, due
