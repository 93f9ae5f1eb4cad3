"""TAB: the page table of one cache group: the host's rows, their copy on the device, and where tokens go.

The rows are one numpy array, so that a batch is appended in a few array operations for any number of rows; a few
appends, as in most steps, are written one by one. `DeviceLag` tracks which entries differ from the device.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple, NoReturn

import jax
import numpy as np
from jax.sharding import Sharding
from numpy.typing import NDArray

from kvproof.kernels import empty_table, write_cells
from kvproof.spec.declarations.reading import Ids
from kvproof.spec.declarations.showing import ShownTable

from ..reading.arguments import id_array, id_lists, index, integer, refusal
from .slots import slot_mapping, update_slices
from .table_lag import DeviceLag

__all__ = ["FEW", "FewAppends", "PageBatch", "PageTable", "cdiv"]

FEW = 24
"""The most rows, and entries of a row, that are appended one by one; above it array operations are faster."""

_PAGE_IDS = 2**31


class PageBatch(NamedTuple):
    """A batch of appends that was read and fits, ready for `PageTable.write_batch`."""

    rows: NDArray[np.int64]  # i64[m]
    ends: NDArray[np.integer[Any]]  # [m]: the row's count after the append
    cells: NDArray[np.int64]  # i64[n]: row times width plus column
    values: NDArray[np.integer[Any]]  # [n]: the pages


class FewAppends(NamedTuple):
    """A `PageBatch` of few distinct rows."""

    rows: list[int]
    ends: list[int]
    cells: list[int]
    values: list[int]


def cdiv(a: int, b: int) -> int:
    """The quotient ``a / b`` rounded up; ``b`` is at least 1 (R1). O(1).

    >>> cdiv(7, 3)
    3
    """
    return -(-integer("a", a, minimum=None) // integer("b", b, minimum=1))


class PageTable(ShownTable):
    """The page table of one cache group: a host copy that calls change and a device copy that `commit` updates.

    Not thread-safe.

    Args:
        max_num_reqs: rows.
        max_num_pages_per_req: entries of a row.
        max_num_batched_tokens: the most tokens of one step, and the length of every slot mapping, so that the programs
            that read it are compiled once (TAB-7).
        sharding: the sharding of the device table; None: JAX's default device. A mesh axis that splits the
            table must be of the type ``Auto``; over others it may be replicated.

    Attributes:
        cpu_version: a number that every call that changes the host's rows or counts increases (TAB-8).
    """

    def __init__(
        self,
        max_num_reqs: int,
        max_num_pages_per_req: int,
        max_num_batched_tokens: int,
        *,
        sharding: Sharding | None = None,
    ) -> None:
        self.max_num_reqs = integer("max_num_reqs", max_num_reqs, minimum=1, below=2**31)
        self.max_num_pages_per_req = integer("max_num_pages_per_req", max_num_pages_per_req, minimum=1, below=2**31)
        self.max_num_batched_tokens = integer("max_num_batched_tokens", max_num_batched_tokens, minimum=1, below=2**31)
        if sharding is not None and not isinstance(sharding, Sharding):
            raise refusal(TypeError, "R1", f"sharding={sharding!r} must be a jax.sharding.Sharding or None")
        self._host = np.zeros((self.max_num_reqs, self.max_num_pages_per_req), np.int32)
        self._cells = self._host.reshape(-1)  # the same memory: one index array instead of two
        self._counts = np.zeros(self.max_num_reqs, np.int32)
        self._lag = DeviceLag(self._host, self._counts)
        # The same memory for scalar access: an entry is read and written in half the time of numpy.
        self._cell, self._count = self._cells.data, self._counts.data
        self._host_view = self._host.view()
        self._host_view.flags.writeable = False
        self._counts_view = self._counts.view()
        self._counts_view.flags.writeable = False
        self._sharding = sharding
        self._device: jax.Array = empty_table(*self._host.shape, sharding)
        self.cpu_version = 0

    # -- Reading ----------------------------------------------------------------------------------

    @property
    def page_table_cpu(self) -> NDArray[np.int32]:
        """The host table, `i32[max_num_reqs, max_num_pages_per_req]`, 0 past each row's count (TAB-1, TAB-6). O(1).

        A read-only view that shows every later change.
        """
        return self._host_view

    @property
    def num_pages_per_row(self) -> NDArray[np.int32]:
        """The number of pages of each row, `i32[max_num_reqs]`: a read-only view that shows later changes. O(1)."""
        return self._counts_view

    def get_cpu_tensor(self) -> NDArray[np.int32]:
        """The host table; see ``page_table_cpu`` (TAB-6)."""
        return self._host_view

    # -- Changing the rows ------------------------------------------------------------------------

    def append_row(self, page_ids: Ids, row_idx: int) -> None:
        """Adds pages behind those of a row. O(number of pages).

        Args:
            page_ids: the pages; may be empty.
            row_idx: the row.

        Raises:
            TypeError: a page or the row is no integer.
            IndexError: there is no such page or row.
            ValueError: the row has no room for all of them (TAB-2).
        """
        row_idx = index("row_idx", row_idx, self.max_num_reqs, "TAB-2")
        pages = id_array("page_ids", page_ids, _PAGE_IDS)
        start = int(self._counts[row_idx])
        end = start + len(pages)
        self._fit(end, row_idx)
        self._host[row_idx, start:end] = pages
        self._counts[row_idx] = end
        self.cpu_version += 1

    def append_rows_batch(self, page_ids: Iterable[Ids] | NDArray[np.integer[Any]], req_indices: Ids) -> None:
        """Adds pages to several rows, in order, or to none if one does not fit (TAB-2).

        O(rows and pages), with a sort if the rows do not ascend.

        Args:
            page_ids: the pages to add: a list for each of ``req_indices``, or an integer array `[m, k]`.
            req_indices: the rows, `[m]`; one named twice is appended to twice.

        Raises:
            TypeError: a page or a row is no integer.
            IndexError: there is no such page or row.
            ValueError: a row has no room, or there are not as many lists as rows (TAB-2).
        """
        self.write_batch(self.read_batch(page_ids, req_indices))

    def read_batch(
        self,
        page_ids: Iterable[Ids] | NDArray[np.integer[Any]],
        req_indices: Ids,
        pages_name: str = "page_ids",
        rows_name: str = "req_indices",
    ) -> PageBatch | FewAppends:
        """Reads a batch of appends and refuses it unless all of it fits (R1, TAB-2). Changes nothing.

        Errors and complexity are those of `append_rows_batch`.

        Args:
            page_ids: as for `append_rows_batch`.
            req_indices: as for `append_rows_batch`.
            pages_name: what the caller calls the pages.
            rows_name: what the caller calls the rows.
        """
        if type(req_indices) is list and len(req_indices) <= FEW and type(page_ids) is list:
            batch = self._read_few(page_ids, req_indices)
            if batch is not None:
                return batch
        rows = id_array(rows_name, req_indices, self.max_num_reqs, "TAB-2")
        values, lengths, num_lists = id_lists(pages_name, page_ids, _PAGE_IDS)
        if len(rows) != num_lists:
            message = f"{rows_name} names {len(rows)} rows, {pages_name} has {num_lists} lists"
            raise refusal(ValueError, "TAB-2", message)
        if not num_lists:
            return PageBatch(rows, rows, values, values)
        starts = self._counts[rows].astype(np.int64)
        if (rows[1:] <= rows[:-1]).any():
            starts += _earlier_in_batch(rows, np.broadcast_to(lengths, num_lists))
        ends = starts + lengths
        if (ends > self.max_num_pages_per_req).any():
            first = int(np.argmax(ends > self.max_num_pages_per_req))
            self._fit(int(ends[first]), int(rows[first]), pages_name)
        cells = rows * self.max_num_pages_per_req + starts
        if not isinstance(lengths, int):
            cells = np.repeat(cells + lengths - np.cumsum(lengths), lengths) + np.arange(len(values))
        elif lengths != 1:
            cells = (cells[:, None] + np.arange(lengths)).reshape(-1)
        return PageBatch(rows, ends, cells, values)

    def write_batch(self, batch: PageBatch | FewAppends) -> None:
        """Writes a result of `read_batch`, provided that no call changed the table in between. O(rows and pages)."""
        if isinstance(batch, FewAppends):
            for cell, page in zip(batch.cells, batch.values, strict=True):
                self._cell[cell] = page
            for row, end in zip(batch.rows, batch.ends, strict=True):
                self._count[row] = end
        else:
            # Cast first: numpy takes twice as long if it casts while it scatters. For a row listed twice the last end
            # is written last, which is the largest.
            self._cells[batch.cells] = batch.values.astype(np.int32, copy=False)
            self._counts[batch.rows] = batch.ends.astype(np.int32, copy=False)
        self.cpu_version += len(batch.rows)

    def add_row(self, page_ids: Ids, row_idx: int) -> None:
        """Replaces the pages of a row. O(number of pages, before and after).

        Args:
            page_ids: the row's new pages.
            row_idx: the row.

        Raises:
            TypeError: a page or the row is no integer.
            IndexError: there is no such page or row.
            ValueError: the row has no room for all of them (TAB-2).
        """
        self.write_row(*self.read_row(page_ids, row_idx))

    def read_row(self, page_ids: Ids, row_idx: int) -> tuple[NDArray[np.int64], int]:
        """Reads a row's new pages and refuses them unless they fit (R1, TAB-2). Changes nothing."""
        row_idx = index("row_idx", row_idx, self.max_num_reqs, "TAB-2")
        pages = id_array("page_ids", page_ids, _PAGE_IDS)
        self._fit(len(pages), row_idx)
        return pages, row_idx

    def write_row(self, pages: NDArray[np.integer[Any]], row_idx: int) -> None:
        """Writes a result of `read_row`. O(number of pages, before and after)."""
        count = len(pages)
        row = self._host[row_idx]
        row[:count] = pages
        row[count : self._counts[row_idx]] = 0  # TAB-1; empty if the row grew
        self._counts[row_idx] = count
        self._lag.replaced(row_idx)
        self.cpu_version += 1

    def clear_row(self, row_idx: int) -> None:
        """Empties a row. O(its pages).

        Raises:
            TypeError: the row is no integer.
            IndexError: there is no such row (TAB-2).
        """
        row_idx = index("row_idx", row_idx, self.max_num_reqs, "TAB-2")
        self.write_row(self._host[row_idx, :0], row_idx)

    def move_row(self, src: int, tgt: int) -> None:
        """Copies the pages and the count of row ``src`` over row ``tgt``; ``src`` stays as it is (TAB-3).

        O(pages of both).

        Raises:
            TypeError: a row is no integer.
            IndexError: there is no such row (TAB-2).
        """
        src, tgt = self._two_rows(src, tgt)
        self.write_row(self._host[src, : self._counts[src]], tgt)

    def swap_row(self, src: int, tgt: int) -> None:
        """Exchanges the pages and the counts of two rows (TAB-3). O(pages of both).

        Raises:
            TypeError: a row is no integer.
            IndexError: there is no such row (TAB-2).
        """
        src, tgt = self._two_rows(src, tgt)
        both = [src, tgt]
        longest = int(self._counts[both].max())
        self._host[both, :longest] = self._host[both[::-1], :longest]
        self._counts[both] = self._counts[both[::-1]]
        self._lag.replaced(src)
        self._lag.replaced(tgt)
        self.cpu_version += 1

    def clear(self) -> None:
        """Empties every row, on the host and on the device at once (TAB-6). O(entries of the table).

        Device arrays returned before keep their values.
        """
        self._device = empty_table(*self._host.shape, self._sharding)
        self._host[...] = 0
        self._counts[...] = 0
        self._lag.clear()
        self.cpu_version += 1

    # -- The device -------------------------------------------------------------------------------

    @property
    def page_table(self) -> jax.Array:
        """The device table, `i32[max_num_reqs, max_num_pages_per_req]`, as of the last commit (TAB-4). O(1).

        The array is valid until the next commit, which writes into it in place; using it after that raises JAX's
        ``RuntimeError``. Never donate it.
        """
        return self._device

    def get_device_tensor(self) -> jax.Array:
        """The device table; see ``page_table`` (TAB-4)."""
        return self._device

    def commit(self, num_reqs: int) -> None:
        """Makes the first rows of the device equal to the host's; the other rows keep what they have (TAB-4).

        Sends the entries that changed since they were last sent, and nothing if none did (TAB-5). Does not
        wait for the device. O(num_reqs + entries sent).

        Args:
            num_reqs: the number of rows, from 0 to ``max_num_reqs``.

        Raises:
            TypeError: ``num_reqs`` is no integer.
            IndexError: the table has fewer rows (TAB-2).
        """
        num = index("num_reqs", num_reqs, self.max_num_reqs + 1, "TAB-2")
        cells = self._lag.dirty_cells(num)
        if cells is not None:
            self._device = write_cells(self._device, cells, self._sharding)
        self._lag.mark_sent(num)

    # -- Where tokens go (TAB-7) ------------------------------------------------------------------

    def slot_mapping(self, req_indices: Ids, positions: Ids, page_size: int) -> NDArray[np.int32]:
        """The cache slot of each token of a step (TAB-7). O(max_num_batched_tokens).

        Args:
            req_indices: the row of each token, `[num_tokens]`.
            positions: the position of each token in its row, `[num_tokens]`.
            page_size: tokens in a page.

        Returns:
            `i32[max_num_batched_tokens]`: page times ``page_size`` plus offset; -1 past ``num_tokens``.

        Raises:
            TypeError: a row, a position or ``page_size`` is no integer.
            IndexError: a row does not exist, or a token lies past the row's pages.
            ValueError: more tokens than ``max_num_batched_tokens``, or a slot that no int32 holds.
        """
        return slot_mapping(self._host, self._counts, self.max_num_batched_tokens, req_indices, positions, page_size)

    def update_slices(self, req_indices: Ids, starts: Ids, lengths: Ids, page_size: int) -> NDArray[np.int32]:
        """The runs of slots that the tokens of a step fill, none of which leaves its page (TAB-7).

        O(max_slices), independent of the number of tokens in a run.

        Args:
            req_indices: the rows, each once, in the order in which their tokens stand in the step, `[n]`.
            starts: the position of each row's first token in the step, `[n]`.
            lengths: the number of tokens of each row in the step, `[n]`.
            page_size: tokens in a page.

        Returns:
            `i32[3, max_slices]`, a column (first slot, first token of the step, length) for each run; columns
            past the last run are -1. ``max_slices`` is ``min(2 * max_num_reqs + max_num_batched_tokens //
            page_size, max_num_batched_tokens)``, which no step with each row once exceeds.

        Raises:
            TypeError: a row, a start, a length or ``page_size`` is no integer.
            IndexError: a row does not exist, or a token lies past the row's pages.
            ValueError: a row named twice, more tokens than ``max_num_batched_tokens``, a negative start or
                length, or a slot that no int32 holds.
        """
        return update_slices(
            self._host, self._counts, self.max_num_batched_tokens, req_indices, starts, lengths, page_size
        )

    # -- Inside -----------------------------------------------------------------------------------

    def check(self) -> None:
        """Verifies every redundancy of the state. O(entries of the table); waits for the device.

        Raises:
            AssertionError: a check fails; the message shows the whole state.
        """
        device = np.array(self._device)
        width = self.max_num_pages_per_req
        columns = np.arange(width)[None, :]
        lag = self._lag
        counts, synced, device_counts = self._counts[:, None], lag.synced[:, None], lag.device_counts[:, None]
        may_differ = (columns >= synced) & (columns < np.maximum(counts, device_counts))
        if device.shape != self._host.shape or device.dtype != np.int32:
            self._broken("TAB-1", f"the device table is {device.dtype}{list(device.shape)}", device)
        if not ((self._counts >= 0) & (self._counts <= width)).all():
            self._broken("TAB-2", "a count is negative or above the row's length", device)
        if (self._host < 0).any() or (self._host[columns >= counts]).any():
            self._broken("TAB-1", "the host has a negative entry, or one past a row's count that is not 0", device)
        if not ((synced >= 0) & (synced <= np.minimum(counts, device_counts))).all():
            self._broken("TAB-4", "more entries count as sent than a row has", device)
        if (device[columns >= device_counts]).any():
            self._broken("TAB-4", "the device has an entry past what was sent", device)
        if ((device != self._host) & ~may_differ).any():
            self._broken("TAB-4", "host and device differ in an entry that no commit would send", device)

    def _broken(self, clause: str, what: str, device: NDArray[np.int32]) -> NoReturn:
        lines = [f"{what} [{clause}]"]
        for row_idx in range(self.max_num_reqs):
            lines.append(
                f"row {row_idx}: count {self._counts[row_idx]}, synced {self._lag.synced[row_idx]}, "
                f"device count {self._lag.device_counts[row_idx]}, host {self._host[row_idx].tolist()}, "
                f"device {device[row_idx].tolist()}"
            )
        raise AssertionError("\n".join(lines))

    def _read_few(self, lists: list[Any], rows: list[Any]) -> FewAppends | None:
        """A batch of few appends, if it is lists of ints that fit, for distinct rows; None for the general case."""
        if len(lists) != len(rows) or len(set(map(type, rows)) | {int}) > 1 or len(set(rows)) < len(rows):
            return None
        width = self.max_num_pages_per_req
        ends: list[int] = []
        cells: list[int] = []
        values: list[int] = []
        for pages, row in zip(lists, rows, strict=True):
            if not 0 <= row < self.max_num_reqs or type(pages) is not list or len(pages) > FEW:
                return None
            for page in pages:
                if type(page) is not int or not 0 <= page < _PAGE_IDS:
                    return None
            start = self._count[row]
            end = start + len(pages)
            if end > width:
                return None
            ends.append(end)
            cells += range(row * width + start, row * width + end)
            values += pages
        return FewAppends(rows, ends, cells, values)

    def _fit(self, count: int, row_idx: int, name: str = "page_ids") -> None:
        if count > self.max_num_pages_per_req:
            raise refusal(
                ValueError,
                "TAB-2",
                f"{name}: row {row_idx} would have {count} pages of {self.max_num_pages_per_req}",
            )

    def _two_rows(self, src: int, tgt: int) -> tuple[int, int]:
        return index("src", src, self.max_num_reqs, "TAB-2"), index("tgt", tgt, self.max_num_reqs, "TAB-2")


def _earlier_in_batch(rows: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each entry of a batch the number of pages that earlier entries add to the same row. O(m log m)."""
    order = np.argsort(rows, kind="stable")
    grouped = rows[order]
    before = np.cumsum(lengths[order]) - lengths[order]
    earlier = np.empty(len(rows), np.int64)
    earlier[order] = before - before[np.searchsorted(grouped, grouped)]
    return earlier
