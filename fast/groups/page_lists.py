"""MAN-2: the page lists of one group's requests, one behind the other in one array, so that memory goes by pages held.

Each list lies in a stretch of cells of its own, with some room behind its last page. A list that outgrows its stretch
moves to the free cells behind all stretches. When these are too few, or when pages given back have left far more cells
than the lists need, all lists are laid out again in a new array. Both copy O(1) cells for each page that came or went.

Null pages at the front of a list, in place of pages that a window has left behind, take no cells: a list says at which
place its first cell is.
"""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["PageLists"]

Number = TypeVar("Number", int, NDArray[np.int64])
"""A count of cells, or an array of them."""

_SPARE = 1 << 14
"""So many cells (64 KiB) may be left over without a new layout: a few requests that come and go need none."""


class PageLists:
    """Lists of pages, each by a number, its slot. It trusts its caller.

    Memory is at most 8 bytes for each page held, 160 for each slot and 64 KiB, and twice that while lists are laid out
    again. Scalars are read and written through memoryviews of the columns (half of numpy's
    price); the arrays serve calls about many lists.

    Attributes:
        cells: the pages of all lists, `i32[capacity]`. Place ``p`` of a list is at ``origins[slot] + p``, for places
            from the first one that has a cell.
        cell: ``cells``, for scalar access.
        lengths: how long each list is, `i64[slots]`.
        origins: where place 0 of each list would be in ``cells``, `i64[slots]`.
        begins: where the first place of each list is that has a cell, `i64[slots]`; all before it are null pages.
        limits: how long each list can become where it lies, `i64[slots]`.
        num_pages: ``lengths``, for scalar access; likewise:
        num_origins: ``origins``.
        num_begins: ``begins``.
        num_limits: ``limits``.
        num_cells: how many cells hold places of lists.
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
        """Makes room for as many lists. Where memory ends, nothing has changed."""
        places = np.zeros((4, capacity), np.int64)
        places[:, : self._places.shape[1]] = self._places
        self._places = places
        self.lengths, self.origins, self.begins, self.limits = places
        self.num_pages, self.num_origins = self.lengths.data, self.origins.data
        self.num_begins, self.num_limits = self.begins.data, self.limits.data

    # -- Room -------------------------------------------------------------------------------------

    def make_room(self, slot: int, end: int, count: int) -> None:
        """Makes room for a list that is to be ``end`` long, its last ``count`` places being new pages.

        Called before the pages are taken: where memory ends, nothing has changed. O(1) amortised.
        """
        if end > self.num_limits[slot]:
            length = self.num_pages[slot]
            if length == self.num_begins[slot] - self.num_origins[slot]:
                end = length + count  # null pages behind none but null pages take no cells
            if end > self.num_limits[slot]:
                self._move(slot, end)

    def make_room_for(self, slots: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        """`make_room` for many lists, each of which has a page in its last place."""
        short = (ends > self.limits[slots]).nonzero()[0]
        if short.size:
            for slot, end in zip(slots[short].tolist(), ends[short].tolist(), strict=True):
                if end > self.num_limits[slot]:
                    self._move(slot, end)

    def _move(self, slot: int, end: int) -> None:
        """Moves a list to where it can become ``end`` long."""
        begin, length = self.num_begins[slot], self.num_pages[slot]
        first = begin - self.num_origins[slot]
        room = _with_room(end - first)
        start, stop = self._end, self._end + room
        if stop > len(self.cell):
            self._lay_out(slot, end)
            return
        count = length - first
        self.cell[start : start + count] = self.cell[begin : begin + count]
        self._end = stop
        self.num_begins[slot] = start
        self.num_origins[slot] = start - first
        self.num_limits[slot] = first + room

    def _lay_out(self, slot: int = 0, end: int = 0) -> None:
        """Lays all lists out in a new array, one so that it can become ``end`` long. O(slots and pages held)."""
        firsts = self.begins - self.origins
        counts = self.lengths - firsts
        wanted = counts.copy()
        wanted[slot] = max(wanted.item(slot), end - firsts.item(slot))
        rooms = _with_room(wanted) * (wanted > 0)
        ends = np.cumsum(rooms)
        starts = ends - rooms
        total = ends.item(-1)
        cells = np.empty(total + total // 4 + 8 * len(rooms), np.int32)
        old, new = self.cell, cells.data
        held = counts.nonzero()[0]
        columns = (self.begins[held].tolist(), starts[held].tolist(), counts[held].tolist())
        for begin, start, count in zip(*columns, strict=True):
            new[start : start + count] = old[begin : begin + count]
        places = np.stack([self.lengths, starts - firsts, starts, firsts + rooms])
        self._places[:] = places
        self.cells, self.cell, self._end = cells, new, total
        self._fewest_cells = (len(cells) - 32 * len(rooms) - _SPARE) // 2

    def _save_memory(self) -> None:
        """Lays the lists out again, as they need far fewer cells than there are."""
        try:
            self._lay_out()
        except MemoryError:
            return  # nothing has changed: the call that made this necessary is done, the next one tries again

    # -- Changing ---------------------------------------------------------------------------------

    def open_list(self, slot: int, pages: NDArray[np.int64], first: int) -> None:
        """Makes the empty list of a slot a list of ``pages``, of which those before place ``first`` are null pages."""
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
        """Puts pages at the end of a list that has room for them and is ``end`` long then."""
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
        """Puts null pages at the end of a list that has room for them and is ``end`` long then."""
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
        """Puts null pages at the places below ``stop`` of a list; returns what stood there, the last one first."""
        begin, origin = self.num_begins[slot], self.num_origins[slot]
        end = origin + min(stop, self.num_pages[slot])
        if begin >= end:
            return self.cells[:0].astype(np.int64)
        left = self.cells[begin:end]
        pages: NDArray[np.int64] = left[left != 0][::-1].astype(np.int64)
        self.num_begins[slot] = end
        self.num_cells -= end - begin
        if self.num_cells < self._fewest_cells:
            self._save_memory()
        return pages

    def close_list(self, slot: int) -> None:
        """Empties a list. Its cells are kept for the next list of the slot while there are not too many."""
        first = self.num_begins[slot] - self.num_origins[slot]
        self.num_cells -= self.num_pages[slot] - first
        self.num_pages[slot] = 0
        if first:
            self.num_origins[slot] += first
            self.num_limits[slot] -= first
        if self.num_cells < self._fewest_cells:
            self._save_memory()

    # -- Looking ----------------------------------------------------------------------------------

    def with_cells(self, slot: int) -> NDArray[np.int32]:
        """A list from its first place that has a cell, where it lies."""
        return self.cells[self.num_begins[slot] : self.num_origins[slot] + self.num_pages[slot]]

    def page_at(self, slot: int, place: int) -> int:
        """The page in a place of a list; 0 for a null page."""
        at = self.num_origins[slot] + place
        return self.cell[at] if at >= self.num_begins[slot] else 0

    def holders(self, place: int, page: int) -> NDArray[np.int64]:
        """The slots of the lists that have a page in a place, `i64[holders]`. O(slots), in array operations."""
        at = self.origins + place
        slots = ((self.lengths > place) & (at >= self.begins)).nonzero()[0]
        holders: NDArray[np.int64] = slots[self.cells[at[slots]] == page]
        return holders

    def pages(self, slot: int) -> NDArray[np.int64]:
        """A list, null pages as 0, `i64[num_pages]`; its own copy."""
        return self.pages_between(slot, 0, self.num_pages[slot])

    def pages_between(self, slot: int, start: int, stop: int) -> NDArray[np.int64]:
        """The places ``[start, stop)`` of a list, null pages as 0, `i64[stop - start]`; their own copy."""
        begin, origin = self.num_begins[slot], self.num_origins[slot]
        if origin + start >= begin:
            return self.cells[origin + start : origin + stop].astype(np.int64)
        pages = np.zeros(stop - start, np.int64)
        if origin + stop > begin:
            pages[begin - origin - start :] = self.cells[begin : origin + stop]
        return pages

    def check_lists(self) -> None:
        """Verifies that lists lie in stretches that have room for them and don't overlap. O(slots).

        Raises:
            AssertionError: one does not; the message shows all.
        """
        state = f"lengths, origins, begins, limits {self._places.tolist()}, {self._end} of {len(self.cell)} cells"
        firsts, stops = self.begins - self.origins, self.origins + self.limits
        assert ((firsts >= 0) & (firsts <= self.lengths) & (self.lengths <= self.limits)).all(), f"MAN-2: {state}"
        assert self.num_cells == (self.lengths - firsts).sum(), f"MAN-2: {self.num_cells} cells are used: {state}"
        with_room = (stops > self.begins).nonzero()[0]
        order = with_room[np.argsort(self.begins[with_room])]
        bounds = np.stack([self.begins[order], stops[order]], axis=1).ravel()
        assert (np.diff(bounds) >= 0).all(), f"R2: lists overlap: {state}"
        assert stops.max(initial=0) <= self._end <= len(self.cell), f"R2: a list past the cells: {state}"


def _with_room(count: Number) -> Number:
    """How many cells a list of ``count`` of them gets."""
    return count + count // 4 + 8
