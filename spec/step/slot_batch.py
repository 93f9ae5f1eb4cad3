"""MAN-11: the batched step: its result, and how its arguments are read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..declarations import EngineRequest
from ..pool.pages import CachePage
from ..reading.arguments import index, integer, listed, refusal
from ..table.multi_group_table import MultiGroupPageTable

__all__ = ["SlotBatch", "batch_of", "read_counts", "read_rows", "read_slots", "require_room"]


@dataclass(frozen=True, eq=False)
class SlotBatch:
    """The result of `CacheManager.allocate_slots_batch` for n requests.

    Attributes:
        granted: whether each request got its slots, `bool[n]`.
        page_ids: ids of the pages appended to the requests' lists, request after request, `i32[total]` for each group;
            with null pages where a state group's list was filled up (MAN-13).
        offsets: bounds of the requests in ``page_ids``, `i64[n + 1]` for each group: request i has
            ``[offsets[i], offsets[i + 1])``.
    """

    granted: NDArray[np.bool_]
    page_ids: tuple[NDArray[np.int32], ...]
    offsets: tuple[NDArray[np.int64], ...]

    @property
    def num_granted(self) -> int:
        """How many requests got their slots."""
        return int(self.granted.sum())

    def get_page_ids(self, place: int) -> tuple[list[int], ...]:
        """The ids of one request's new pages, a list for each group; empty lists if it got no slots.

        Args:
            place: the request's place in the batch.

        Raises:
            IndexError: there is no such place.
        """
        place = index("place", place, len(self.granted), "MAN-11")
        return tuple(
            pages[offsets[place] : offsets[place + 1]].tolist()
            for pages, offsets in zip(self.page_ids, self.offsets, strict=True)
        )


def batch_of(pages: Sequence[Sequence[Sequence[CachePage]] | None], num_groups: int) -> SlotBatch:
    """The `SlotBatch` of each request's new pages, a list for each group, or None for a request without slots."""
    page_ids, offsets = [], []
    for group in range(num_groups):
        ids = [[] if lists is None else [page.page_id for page in lists[group]] for lists in pages]
        page_ids.append(np.array([page_id for own in ids for page_id in own], np.int32))
        offsets.append(np.array([0, *np.cumsum([len(own) for own in ids])], np.int64))
    return SlotBatch(np.array([lists is not None for lists in pages], bool), tuple(page_ids), tuple(offsets))


def read_slots(slots: object, request_in: Mapping[int, EngineRequest]) -> list[EngineRequest]:
    """Reads slots and returns their requests; each slot must be a live request's and named once (R1, MAN-11).

    Args:
        slots: the argument.
        request_in: the live requests by slot.
    """
    numbers = [integer("slots", slot, minimum=None) for slot in listed("slots", slots)]
    for number in numbers:
        if number not in request_in:
            raise refusal(IndexError, "MAN-11", f"slots: no live request has slot {number}")
    if len(set(numbers)) < len(numbers):
        raise refusal(ValueError, "MAN-11", f"slots={numbers} names a slot twice")
    return [request_in[number] for number in numbers]


def read_counts(name: str, values: object, num: int, minimum: int, one_for_all: bool = True) -> list[int]:
    """Reads a token count for each of ``num`` requests, or, with ``one_for_all``, a single one for all (R1)."""
    if one_for_all and isinstance(values, int | np.integer):
        return [integer(name, values, minimum)] * num
    counts = [integer(name, value, minimum) for value in listed(name, values)]
    if len(counts) != num:
        raise refusal(ValueError, "MAN-11", f"{name} has {len(counts)} entries for {num} slots")
    return counts


def read_rows(tables: object, rows: object, num: int, num_groups: int) -> list[int]:
    """Reads a table row for each of ``num`` requests; an empty list if there are no tables (R1).

    Raises:
        TypeError: ``tables`` is no `MultiGroupPageTable`.
        IndexError: there is no such row (TAB-2).
        ValueError: tables without rows or rows without tables; not a table for each group; not one row for each
            request; a row named twice.
    """
    if tables is None and rows is None:
        return []
    if tables is None or rows is None:
        raise refusal(ValueError, "MAN-11", "tables and rows go together: one of them is None")
    if not isinstance(tables, MultiGroupPageTable):
        raise refusal(TypeError, "R1", f"tables={tables!r} must be a MultiGroupPageTable")
    if len(tables) != num_groups:
        raise refusal(ValueError, "MAN-11", f"tables has {len(tables)} groups, the manager {num_groups}")
    row_ids = [index("rows", row, tables[0].max_num_reqs, "TAB-2") for row in listed("rows", rows)]
    if len(row_ids) != num or len(set(row_ids)) < num:
        raise refusal(ValueError, "MAN-11", f"rows={row_ids} must be {num} different rows")
    return row_ids


def require_room(tables: MultiGroupPageTable, row: int, held: Sequence[int], lacking: Sequence[int]) -> None:
    """Refuses a row whose length is not that of its request's lists, or that has no room for the new places (R1).

    Args:
        tables: the tables.
        row: the row.
        held: length of the request's page list in each group.
        lacking: number of new places in each group.
    """
    for table, length, more in zip(tables.page_tables, held, lacking, strict=True):
        named = int(table.num_pages_per_row[row])
        if named != length:
            raise refusal(ValueError, "MAN-11", f"rows: row {row} names {named} pages, its request's list has {length}")
        if length + more > table.max_num_pages_per_req:
            raise refusal(
                ValueError,
                "TAB-2",
                f"rows: row {row} would have {length + more} pages of {table.max_num_pages_per_req}",
            )
