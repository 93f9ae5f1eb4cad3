"""The entries of a page table in which the device lags behind the host: those that a commit sends.

Two numbers are kept for each row: how many leading entries the device has already, and how many entries of the device's
row may differ from 0. Appending, by far the most frequent change, writes neither.
"""

import numpy as np
from numpy.typing import NDArray

__all__ = ["DeviceLag"]

# A row with more entries to send than this is copied by itself; below it one gather for several rows is faster.
_LONG = 128


class DeviceLag:
    """The rows of a page table that may differ between host and device. Not thread-safe.

    Args:
        host: the host's rows, `i32[max_num_reqs, max_num_pages_per_req]`; later changes are seen.
        counts: the number of pages of each row, `i32[max_num_reqs]`; later changes are seen.

    Attributes:
        synced: the number of leading entries that are equal on host and device, `i32[max_num_reqs]`. Entries that
            differ are in [synced, max(counts, device_counts)).
        device_counts: the column from which on the device's row is 0, `i32[max_num_reqs]`.
    """

    def __init__(self, host: NDArray[np.int32], counts: NDArray[np.int32]) -> None:
        self._host, self._counts = host, counts
        self.synced = np.zeros(len(counts), np.int32)
        self.device_counts = np.zeros(len(counts), np.int32)

    def replaced(self, row_idx: int) -> None:
        """Records that the pages of a row were replaced. O(1)."""
        self.synced[row_idx] = 0

    def clear(self) -> None:
        """Records that host and device are empty. O(rows)."""
        self.synced[:] = 0
        self.device_counts[:] = 0

    # -- For a commit -----------------------------------------------------------------------------

    def dirty_cells(self, num_rows: int) -> NDArray[np.int32] | None:
        """The entries of the first rows that differ from the device (TAB-5); None if there are none.

        O(num_rows + entries), in array operations.

        Returns:
            `i32[3, n]`: row, column and value of each entry, each entry once.
        """
        synced = self.synced[:num_rows]
        lengths = np.maximum(self._counts[:num_rows], self.device_counts[:num_rows]) - synced
        rows = lengths.nonzero()[0]
        return self._cells(rows, synced[rows], lengths[rows]) if rows.size else None

    def mark_sent(self, num_rows: int) -> None:
        """Records that the device has the first rows as they are. O(num_rows)."""
        self.synced[:num_rows] = self.device_counts[:num_rows] = self._counts[:num_rows]

    def _cells(
        self, rows: NDArray[np.int64], columns: NDArray[np.int32], lengths: NDArray[np.int32]
    ) -> NDArray[np.int32]:
        """The entries of some rows, for each from its first column on and at least 1."""
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
