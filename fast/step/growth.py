"""The growth of one group's page lists in a batched step (MAN-11)."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..groups.cache_group import CacheGroup

__all__ = ["Growth", "growth_of"]


class Growth(NamedTuple):
    """The growth of a group's lists in a step, an entry for each request whose list grows, `i64[m]`.

    Attributes:
        group: the group.
        places: the requests' positions among those passed to `growth_of`.
        slots: the requests' slots.
        held: the lengths of the lists before the step.
        ends: the lengths of the lists after the step.
        taken: the number of pages that each list takes; the other new entries are null pages.
        total: the sum of ``taken``.
        by_one: True if each list grows by one page, as in every decode step.
    """

    group: CacheGroup
    places: NDArray[np.int64]
    slots: NDArray[np.int64]
    held: NDArray[np.int64]
    ends: NDArray[np.int64]
    taken: NDArray[np.int64]
    total: int
    by_one: bool

    @property
    def entries(self) -> NDArray[np.int64]:
        """The number of new entries of each list, null pages included, `i64[m]`."""
        return self.taken if self.by_one else self.ends - self.held

    def of(self, granted: NDArray[np.bool_]) -> "Growth":
        """The growth of the requests that were granted slots."""
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

    def deal(self, pages: NDArray[np.int64], begins: NDArray[np.int64] | None) -> NDArray[np.int32]:
        """Appends pages to the lists, which have room for them.

        Args:
            pages: the pages of all groups.
            begins: the index in ``pages`` at which each list's share begins; None: each takes one, in order.

        Returns:
            The new entries of the lists, null pages included, list by list.
        """
        group, taken = self.group, self.taken
        if self.by_one:
            own = (pages if begins is None else pages[begins]).astype(np.int32)
        else:
            if begins is None:
                begins = np.cumsum(taken) - taken
            which, within = _spread(taken)
            last = np.cumsum(self.entries)  # behind the entries of each list
            own = np.zeros(last.item(-1), np.int32)
            own[(last - taken)[which] + within] = pages[begins[which] + within]
        group.cells[self._cells()] = own
        group.lengths[self.slots] = self.ends
        group.num_cells += len(own)
        return own

    def new_entries(self) -> NDArray[np.int32]:
        """The entries that were added to the lists, read back from them, list by list."""
        return self.group.cells[self._cells()]

    def _cells(self) -> NDArray[np.int64]:
        """The indices of the new entries in the group's ``cells``, list by list."""
        origins = self.group.origins[self.slots]
        if self.by_one:
            return origins + self.held
        which, columns = self._columns()
        return origins[which] + columns

    def cells(self, rows: NDArray[np.int64], width: int) -> NDArray[np.int64]:
        """The indices of the new entries in a page table of the same lists.

        Args:
            rows: the lists' rows in the table, `i64[m]`.
            width: entries of a row.

        Returns:
            The entries' cells, row by row of the table, list by list.
        """
        if self.by_one:
            return rows * width + self.held
        which, columns = self._columns()
        return rows[which] * width + columns

    def _columns(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """For each new entry its list, and its place in the list."""
        which, within = _spread(self.ends - self.held)
        return which, self.held[which] + within


def growth_of(
    group: CacheGroup, slots: NDArray[np.int64], promised: NDArray[np.int64], all_slots: NDArray[np.int64]
) -> Growth:
    """The growth that a group's lists need.

    Args:
        group: the group.
        slots: the requests' slots, `i64[n]`.
        promised: their computed and new tokens, `i64[n]`.
        all_slots: these and their look-ahead, `i64[n]`.
    """
    held = group.lengths[slots]
    ends = group.rule.end(promised, all_slots)
    grown = ends - held
    places = (grown > 0).nonzero()[0]
    num = len(places)
    if num < len(held):
        slots, held, ends, grown = slots[places], held[places], ends[places], grown[places]
    by_one = not (grown > 1).nonzero()[0].size
    taken = grown if by_one or not group.rule.has_states else np.ones(num, np.int64)
    total = num if by_one or group.rule.has_states else int(np.add.reduce(taken))
    return Growth(group, places, slots, held, ends, taken, total, by_one)


def _spread(lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For lists of these lengths, laid end to end: the list of each entry, and the entry's place in it."""
    which = np.repeat(np.arange(len(lengths)), lengths)
    return which, np.arange(len(which)) - (np.cumsum(lengths) - lengths)[which]
