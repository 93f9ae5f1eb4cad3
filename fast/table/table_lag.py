"""What the device lacks of a page table: which entries a commit sends.

Two numbers a row tell it: how many leading entries the device has already, and how many entries of the device's row
may differ from 0. Appending, by far the most frequent change, touches neither. Beside them stand the rows that
changed since the last commit, while they are few: a step in which some rows of many grow looks at no other.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

__all__ = ["FEW", "DeviceLag"]

# So many rows, or entries of one, are seen to one by one: array operations take as long, whatever their number.
FEW = 24

# A row with more entries to send than this is copied by itself: a gather takes as long for so many.
_LONG = 128


class DeviceLag:
    """What the device has of each row of a page table. Not thread-safe.

    Args:
        host: the host's rows, `i32[max_num_reqs, max_num_pages_per_req]`; later changes are seen.
        counts: how many pages each row names, `i32[max_num_reqs]`; later changes are seen.

    Attributes:
        synced: how many leading entries the device has as the host has them, `i32[max_num_reqs]`. An entry of a row
            that differs stands in [synced, max(counts, device_counts)).
        device_counts: from where on the device's row is 0, `i32[max_num_reqs]`.
        num_known: of the first so many rows it is known which ones may lack an entry; of the others any may.
        changed: those; rows further back may be among them.
    """

    def __init__(self, host: NDArray[np.int32], counts: NDArray[np.int32]) -> None:
        self._host, self._counts = host, counts
        self.synced = np.zeros(len(counts), np.int32)
        self.device_counts = np.zeros(len(counts), np.int32)
        self.num_known = len(counts)
        self.changed: set[int] = set()
        # Of one entry: half the time that it takes through numpy.
        self._cell, self._count = host.reshape(-1).data, counts.data
        self._synced, self._device_count = self.synced.data, self.device_counts.data

    def appended(self, rows: Iterable[int]) -> None:
        """Notes that a few rows have pages behind those that they had. O(rows)."""
        self.changed.update(rows)

    def appended_to_many(self) -> None:
        """Notes that any rows may have pages behind those that they had. O(1)."""
        self.num_known = 0

    def replaced(self, row_idx: int) -> None:
        """Notes that a row has other pages. O(1)."""
        self._synced[row_idx] = 0
        self.changed.add(row_idx)

    def clear(self) -> None:
        """Notes that host and device are empty. O(rows)."""
        self.synced[:] = 0
        self.device_counts[:] = 0
        self.num_known = len(self.synced)
        self.changed.clear()

    # -- For a commit -----------------------------------------------------------------------------

    def dirty_cells(self, num_rows: int) -> NDArray[np.int32] | None:
        """The entries of the first rows that the device lacks (TAB-5), or None.

        O(rows that changed + entries) where those are few, O(num_rows + entries) where not.

        Returns:
            `i32[3, n]`: row, column and value of each entry; none stands there twice.
        """
        if num_rows <= self.num_known and len(self.changed) <= FEW:
            few = self._few_cells(num_rows)
            if few is not None:
                return np.array(few, np.int32) if few[0] else None
        synced = self.synced[:num_rows]
        lengths = np.maximum(self._counts[:num_rows], self.device_counts[:num_rows]) - synced
        rows = lengths.nonzero()[0]
        return self._cells(rows, synced[rows], lengths[rows]) if rows.size else None

    def mark_sent(self, num_rows: int) -> None:
        """Notes that the device has the first rows as they are now. O(rows that changed), O(num_rows) if many did."""
        if num_rows <= self.num_known and len(self.changed) <= FEW:
            for row in [row for row in self.changed if row < num_rows]:
                self._synced[row] = self._device_count[row] = self._count[row]
                self.changed.remove(row)
        else:
            self.synced[:num_rows] = self.device_counts[:num_rows] = self._counts[:num_rows]
            self.num_known = num_rows
            self.changed.clear()

    def _few_cells(self, num_rows: int) -> tuple[list[int], list[int], list[int]] | None:
        """Rows, columns and values of the entries that few rows lack; None if one of them lacks many."""
        rows: list[int] = []
        columns: list[int] = []
        values: list[int] = []
        width = self._host.shape[1]
        for row in self.changed:
            if row < num_rows:
                begin, end = self._synced[row], max(self._count[row], self._device_count[row])
                if end - begin > FEW:
                    return None
                rows += [row] * (end - begin)
                columns += range(begin, end)
                values += self._cell[row * width + begin : row * width + end]
        return rows, columns, values

    def _cells(
        self, rows: NDArray[np.int64], columns: NDArray[np.int32], lengths: NDArray[np.int32]
    ) -> NDArray[np.int32]:
        """The entries of some rows: of each the first column and how many, at least 1."""
        total = int(np.add.reduce(lengths))
        cells = np.empty((3, total), np.int32)
        begin = 0
        if total > len(rows):
            is_long = lengths > _LONG
            for row, column, length in zip(*(each[is_long].tolist() for each in (rows, columns, lengths)), strict=True):
                own = cells[:, begin : begin + length]
                own[0], own[1], own[2] = row, np.arange(column, column + length), self._host[row, column:][:length]
                begin += length
            rows, columns, lengths = rows[~is_long], columns[~is_long], lengths[~is_long]
            if total - begin > len(rows):
                ahead = np.arange(total - begin) - np.repeat(np.cumsum(lengths) - lengths, lengths)
                rows, columns = np.repeat(rows, lengths), np.repeat(columns, lengths) + ahead.astype(np.int32)
        rest = cells[:, begin:]
        rest[0], rest[1], rest[2] = rows, columns, self._host[rows, columns]
        return cells
