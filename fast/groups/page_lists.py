"""MAN-2: the page lists of one group's requests, one behind the other in one array, so that memory fits their sizes.

Each list has a range of cells of its own, with some room behind its last page. A list that outgrows its range moves to
the free cells behind all ranges. When these are too few, or when freed pages have left far more cells than the lists
need, all lists are copied to a new array. Both copy O(1) cells for each page added or removed.

Null pages at the front of a list, in place of pages that a window has left behind, take no cells: the first place that
has one is stored for each list.
"""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["PageLists"]

Number = TypeVar("Number", int, NDArray[np.int64])
"""A count of cells, or an array of them."""

_NONE: NDArray[np.int64] = np.empty(0, np.int64)
_NONE.flags.writeable = False

_SPARE = 1 << 14
"""The number of unused cells (64 KiB) up to which lists are not copied to a smaller array."""


class PageLists:
    """Lists of pages by slot numbers. It trusts its caller.

    Memory is at most 8 bytes for each page in a list, 80 for each slot and 64 KiB, and twice that while all lists are
    copied. Scalars are read and written through memoryviews of the columns (half of numpy's price); the arrays serve
    calls about many lists.

    Attributes:
        cells: the pages of all lists, `i32[capacity]`. Place ``p`` of a list is at ``origins[slot] + p``, for places
            from the first one that has a cell.
        cell: ``cells``, for scalar access.
        lengths: the length of each list, `i64[slots]`.
        origins: the index in ``cells`` at which place 0 of each list would be, `i64[slots]`.
        begins: the index in ``cells`` of the first place of each list that has a cell, `i64[slots]`; all places before
            it are null pages.
        limits: the length up to which each list can grow without moving, `i64[slots]`.
        num_pages: ``lengths``, for scalar access.
        num_origins: ``origins``, for scalar access.
        num_begins: ``begins``, for scalar access.
        num_limits: ``limits``, for scalar access.
        num_cells: the number of cells that places of lists use.
    """

    __slots__ = (
        "_end",
        "_fewest_cells",
        "_places",
        "begins",
        "cell",
        "cells",
        "lengths",
        "limits",
        "num_begins",
        "num_cells",
        "num_limits",
        "num_origins",
        "num_pages",
        "origins",
    )

    def __init__(self) -> None:
        self._places: NDArray[np.int64] = np.zeros((4, 0), np.int64)
        self.cells: NDArray[np.int32] = np.zeros(0, np.int32)
        self.cell = self.cells.data
        self.num_cells = self._end = self._fewest_cells = 0
        self.resize(0)

    def resize(self, capacity: int) -> None:
        """Makes room for ``capacity`` lists. After a MemoryError nothing has changed."""
        places = np.zeros((4, capacity), np.int64)
        places[:, : self._places.shape[1]] = self._places
        self._places = places
        self.lengths, self.origins, self.begins, self.limits = places
        self.num_pages, self.num_origins = self.lengths.data, self.origins.data
        self.num_begins, self.num_limits = self.begins.data, self.limits.data

    # -- Room -------------------------------------------------------------------------------------

    def make_room(self, slot: int, end: int, count: int) -> None:
        """Makes room for a list that will be ``end`` long, its last ``count`` places being new pages.

        Called before the pages are taken: after a MemoryError nothing has changed. O(1) amortised.
        """
        if end > self.num_limits[slot]:
            length = self.num_pages[slot]
            if length == self.num_begins[slot] - self.num_origins[slot]:
                end = length + count  # a list of null pages only takes no cells
            if end > self.num_limits[slot]:
                self._move(slot, end)

    def make_room_for(self, slots: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        """`make_room` for many lists, with cells for null pages among the new places.

        The next copy to a new array may end this room: until the pages are in the lists, no other call but
        `leave_behind` is made.
        """
        short = (ends > self.limits[slots]).nonzero()[0]
        if short.size:
            moving, reached = slots[short], ends[short]
            firsts = self.begins[moving] - self.origins[moving]
            if self._end + int(_with_room(reached - firsts).sum()) > len(self.cell):
                self._lay_out(slots, ends)  # for all of them: those that have room would lose it
                return
            for slot, end in zip(moving.tolist(), reached.tolist(), strict=True):
                self._move(slot, end)

    def _move(self, slot: int, end: int) -> None:
        """Moves a list to cells where it can grow to ``end``."""
        begin, length = self.num_begins[slot], self.num_pages[slot]
        first = begin - self.num_origins[slot]
        room = _with_room(end - first)
        start, stop = self._end, self._end + room
        if stop > len(self.cell):
            self._lay_out(np.array([slot]), np.array([end]))
            return
        count = length - first
        self.cell[start : start + count] = self.cell[begin : begin + count]
        self._end = stop
        self.num_begins[slot] = start
        self.num_origins[slot] = start - first
        self.num_limits[slot] = first + room

    def _lay_out(self, slots: NDArray[np.int64] = _NONE, ends: NDArray[np.int64] = _NONE) -> None:
        """Copies all lists to a new array; lists ``slots`` can grow to ``ends`` in it. O(slots and pages in lists)."""
        firsts = self.begins - self.origins
        counts = self.lengths - firsts
        wanted = counts.copy()
        wanted[slots] = np.maximum(wanted[slots], ends - firsts[slots])
        rooms = _with_room(wanted) * (wanted > 0)
        ends = np.cumsum(rooms)
        starts = ends - rooms
        total = ends.item(-1)
        cells = np.empty(total + total // 4 + 2 * len(rooms), np.int32)
        old, new = self.cell, cells.data
        held = counts.nonzero()[0]
        columns = (self.begins[held].tolist(), starts[held].tolist(), counts[held].tolist())
        for begin, start, count in zip(*columns, strict=True):
            new[start : start + count] = old[begin : begin + count]
        places = np.stack([self.lengths, starts - firsts, starts, firsts + rooms])
        self._places[:] = places
        self.cells, self.cell, self._end = cells, new, total
        self._fewest_cells = (len(cells) - 12 * len(rooms) - _SPARE) // 2

    def save_memory(self) -> None:
        """Copies the lists to a smaller array if they need far fewer cells. Room made for lists is lost."""
        if self.num_cells >= self._fewest_cells:
            return
        try:
            self._lay_out()
        except MemoryError:
            return  # nothing has changed: the next call that frees pages tries again

    # -- Changing ---------------------------------------------------------------------------------

    def open_list(self, slot: int, pages: NDArray[np.int64], first: int) -> None:
        """Fills the empty list of a slot with ``pages``, of which those before place ``first`` are null pages."""
        count = len(pages) - first
        if count > self.num_limits[slot]:
            self._move(slot, count)
        begin = self.num_begins[slot]
        if first:
            pages = pages[first:]
            self.num_origins[slot] = begin - first
            self.num_limits[slot] += first
        self.cells[begin : begin + count] = pages
        self.num_pages[slot] = first + count
        self.num_cells += count

    def add_pages(self, slot: int, pages: NDArray[np.int64], end: int) -> None:
        """Appends pages to a list that has room for them; its new length is ``end``."""
        at = self.num_origins[slot] + end
        self.cells[at - len(pages) : at] = pages
        self.num_pages[slot] = end
        self.num_cells += len(pages)

    def add_page(self, slot: int, page: int, end: int) -> None:
        """`add_pages` for one page."""
        self.cell[self.num_origins[slot] + end - 1] = page
        self.num_pages[slot] = end
        self.num_cells += 1

    def add_nulls(self, slot: int, end: int) -> None:
        """Appends null pages to a list that has room for them; its new length is ``end``."""
        length, origin = self.num_pages[slot], self.num_origins[slot]
        count = end - length
        if length == self.num_begins[slot] - origin:
            self.num_origins[slot] = origin - count
            self.num_limits[slot] += count
        else:
            self.cells[origin + length : origin + end] = 0
            self.num_cells += count
        self.num_pages[slot] = end

    def leave_behind(self, slot: int, stop: int) -> NDArray[np.int64]:
        """Replaces the pages at places below ``stop`` of a list by null pages; returns them, the last one first.

        All lists keep their room; the caller calls `save_memory` when room that was made for pages is filled.
        """
        begin, origin = self.num_begins[slot], self.num_origins[slot]
        end = origin + min(stop, self.num_pages[slot])
        if begin >= end:
            return self.cells[:0].astype(np.int64)
        left = self.cells[begin:end]
        pages: NDArray[np.int64] = left[left != 0][::-1].astype(np.int64)
        self.num_begins[slot] = end
        self.num_cells -= end - begin
        return pages

    def close_list(self, slot: int) -> None:
        """Empties a list. Its cells are kept for the next list of the slot unless too many are unused."""
        first = self.num_begins[slot] - self.num_origins[slot]
        self.num_cells -= self.num_pages[slot] - first
        self.num_pages[slot] = 0
        if first:
            self.num_origins[slot] += first
            self.num_limits[slot] -= first
        if self.num_cells < self._fewest_cells:
            self.save_memory()

    # -- Looking ----------------------------------------------------------------------------------

    def with_cells(self, slot: int) -> NDArray[np.int32]:
        """A view of a list from its first place that has a cell."""
        return self.cells[self.num_begins[slot] : self.num_origins[slot] + self.num_pages[slot]]

    def page_at(self, slot: int, place: int) -> int:
        """The page in a place of a list; 0 for a null page."""
        at = self.num_origins[slot] + place
        return self.cell[at] if at >= self.num_begins[slot] else 0

    def holds(self, slot: int, place: int, page: int) -> bool:
        """True if a list has ``page`` at ``place``, which may lie behind its end."""
        return place < self.num_pages[slot] and self.page_at(slot, place) == page

    def holders(self, place: int, page: int) -> NDArray[np.int64]:
        """The slots of the lists that have ``page`` at ``place``, `i64[n]`. O(slots), in array operations."""
        at = self.origins + place
        slots = ((self.lengths > place) & (at >= self.begins)).nonzero()[0]
        holders: NDArray[np.int64] = slots[self.cells[at[slots]] == page]
        return holders

    def pages(self, slot: int) -> NDArray[np.int64]:
        """A copy of a list, null pages as 0, `i64[num_pages]`."""
        return self.pages_between(slot, 0, self.num_pages[slot])

    def pages_between(self, slot: int, start: int, stop: int) -> NDArray[np.int64]:
        """A copy of the places ``[start, stop)`` of a list, null pages as 0, `i64[stop - start]`."""
        begin, origin = self.num_begins[slot], self.num_origins[slot]
        if origin + start >= begin:
            return self.cells[origin + start : origin + stop].astype(np.int64)
        pages = np.zeros(stop - start, np.int64)
        if origin + stop > begin:
            pages[begin - origin - start :] = self.cells[begin : origin + stop]
        return pages

    def check_lists(self) -> None:
        """Verifies that the lists' ranges have room for them and don't overlap. O(slots).

        Raises:
            AssertionError: a check fails; the message shows all lists.
        """

        def state() -> str:
            return f"lengths, origins, begins, limits {self._places.tolist()}, {self._end} of {len(self.cell)} cells"

        firsts, stops = self.begins - self.origins, self.origins + self.limits
        assert ((firsts >= 0) & (firsts <= self.lengths) & (self.lengths <= self.limits)).all(), f"MAN-2: {state()}"
        assert self.num_cells == (self.lengths - firsts).sum(), f"MAN-2: {self.num_cells} cells are used: {state()}"
        with_room = (stops > self.begins).nonzero()[0]
        order = with_room[np.argsort(self.begins[with_room])]
        bounds = np.stack([self.begins[order], stops[order]], axis=1).ravel()
        assert (np.diff(bounds) >= 0).all(), f"R2: lists overlap: {state()}"
        assert stops.max(initial=0) <= self._end <= len(self.cell), f"R2: a list past the cells: {state()}"


def _with_room(count: Number) -> Number:
    """The number of cells given to a list that needs ``count``."""
    return count + count // 4 + 4
