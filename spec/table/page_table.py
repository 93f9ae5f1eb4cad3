"""TAB: the page table of one cache group: which page holds which tokens of which row, on the host and on the device."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..declarations.showing import ShownTable
from ..reading.arguments import index, integer, listed, refusal

__all__ = ["PageTable", "cdiv"]


def cdiv(a: int, b: int) -> int:
    """The quotient ``a / b`` rounded up; ``b`` is at least 1 (R1)."""
    return -(-integer("a", a, minimum=None) // integer("b", b, minimum=1))


class PageTable(ShownTable):
    """The page table of one cache group: a host table that calls change, and a device table that `commit` updates.

    Args:
        max_num_reqs: number of rows.
        max_num_pages_per_req: number of entries of a row.
        max_num_batched_tokens: the most tokens of one step. Every slot mapping has this length, so that the programs
            that read it are compiled once (TAB-7).
        sharding: placement of the device table; without effect here, where that table is an array on the host.

    Attributes:
        cpu_version: version of the host table; grows with every call that changes its rows or counts (TAB-8).
    """

    def __init__(
        self,
        max_num_reqs: int,
        max_num_pages_per_req: int,
        max_num_batched_tokens: int,
        *,
        sharding: object = None,
    ) -> None:
        del sharding
        self.max_num_reqs = integer("max_num_reqs", max_num_reqs, minimum=1, below=2**31)
        self.max_num_pages_per_req = integer("max_num_pages_per_req", max_num_pages_per_req, minimum=1, below=2**31)
        self.max_num_batched_tokens = integer("max_num_batched_tokens", max_num_batched_tokens, minimum=1, below=2**31)
        self._rows: list[list[int]] = [[] for _ in range(self.max_num_reqs)]
        self._device = self._zeros()
        self.cpu_version = 0

    # -- Reading ----------------------------------------------------------------------------------

    @property
    def page_table(self) -> NDArray[np.int32]:
        """The device table, `i32[max_num_reqs, max_num_pages_per_req]`, as of the last commit (TAB-4)."""
        return self._device

    @property
    def page_table_cpu(self) -> NDArray[np.int32]:
        """The host table, `i32[max_num_reqs, max_num_pages_per_req]`, 0 past each row's count (TAB-1, TAB-6)."""
        table = self._zeros()
        table.flags.writeable = True
        for row_idx, row in enumerate(self._rows):
            table[row_idx, : len(row)] = row
        table.flags.writeable = False
        return table

    @property
    def num_pages_per_row(self) -> NDArray[np.int32]:
        """The number of pages of each row, `i32[max_num_reqs]`; read-only."""
        counts = np.array([len(row) for row in self._rows], np.int32)
        counts.flags.writeable = False
        return counts

    def get_device_tensor(self) -> NDArray[np.int32]:
        """The device table; see ``page_table``."""
        return self.page_table

    def get_cpu_tensor(self) -> NDArray[np.int32]:
        """The host table; see ``page_table_cpu``."""
        return self.page_table_cpu

    # -- Changing the host table -----------------------------------------------------------------

    def append_row(self, page_ids: Sequence[int], row_idx: int) -> None:
        """Appends pages to a row.

        Args:
            page_ids: the pages to append; may be empty.
            row_idx: the row.

        Raises:
            IndexError: there is no such row.
            ValueError: the row has no room for all of them (TAB-2).
        """
        self._append(self.read_batch([page_ids], [row_idx], rows_name="row_idx"))

    def append_rows_batch(self, page_ids: Sequence[Sequence[int]], req_indices: Sequence[int]) -> None:
        """Appends pages to several rows, in order, or to none if one does not fit (TAB-2).

        Args:
            page_ids: the pages to append, a list for each of ``req_indices``.
            req_indices: the rows; a row that is named twice gets both lists.
        """
        self._append(self.read_batch(page_ids, req_indices))

    def read_batch(
        self,
        page_ids: Sequence[Sequence[int]],
        req_indices: Sequence[int],
        pages_name: str = "page_ids",
        rows_name: str = "req_indices",
    ) -> list[tuple[int, list[int]]]:
        """Reads a batch of appends; refuses it unless all of them fit (R1, TAB-2). Changes nothing.

        Args:
            page_ids: as for `append_rows_batch`.
            req_indices: as for `append_rows_batch`.
            pages_name: what the caller calls the pages.
            rows_name: what the caller calls the rows.
        """
        rows = [index(rows_name, row, self.max_num_reqs, "TAB-2") for row in listed(rows_name, req_indices)]
        lists = [self._page_ids(pages, pages_name) for pages in listed(pages_name, page_ids)]
        if len(rows) != len(lists):
            message = f"{rows_name} names {len(rows)} rows, {pages_name} has {len(lists)} lists"
            raise refusal(ValueError, "TAB-2", message)
        lengths = [len(row) for row in self._rows]
        for row_idx, pages in zip(rows, lists, strict=True):
            lengths[row_idx] += len(pages)
            self._fit(lengths[row_idx], row_idx, pages_name)
        return list(zip(rows, lists, strict=True))

    def _append(self, batch: list[tuple[int, list[int]]]) -> None:
        for row_idx, pages in batch:
            self._rows[row_idx] += pages
            self.cpu_version += 1

    def add_row(self, page_ids: Sequence[int], row_idx: int) -> None:
        """Replaces the pages of a row.

        Args:
            page_ids: the row's new pages.
            row_idx: the row.
        """
        row_idx, pages = self.read_row(page_ids, row_idx)
        self._rows[row_idx] = pages
        self.cpu_version += 1

    def read_row(self, page_ids: Sequence[int], row_idx: int) -> tuple[int, list[int]]:
        """Reads a row's new pages; refuses them unless they fit (R1, TAB-2). Changes nothing."""
        row_idx = index("row_idx", row_idx, self.max_num_reqs, "TAB-2")
        pages = self._page_ids(page_ids)
        self._fit(len(pages), row_idx)
        return row_idx, pages

    def clear_row(self, row_idx: int) -> None:
        """Empties a row."""
        self._rows[index("row_idx", row_idx, self.max_num_reqs, "TAB-2")] = []
        self.cpu_version += 1

    def move_row(self, src: int, tgt: int) -> None:
        """Copies the pages and the count of row ``src`` over row ``tgt``; ``src`` stays as it is (TAB-3)."""
        src, tgt = self._two_rows(src, tgt)
        self._rows[tgt] = list(self._rows[src])
        self.cpu_version += 1

    def swap_row(self, src: int, tgt: int) -> None:
        """Exchanges the pages and the counts of two rows (TAB-3)."""
        src, tgt = self._two_rows(src, tgt)
        self._rows[src], self._rows[tgt] = self._rows[tgt], self._rows[src]
        self.cpu_version += 1

    def clear(self) -> None:
        """Empties every row, on the host and on the device at once (TAB-6).

        Device handles from before keep their values or raise, as after a commit (TAB-4).
        """
        self._rows = [[] for _ in range(self.max_num_reqs)]
        self._device = self._zeros()
        self.cpu_version += 1

    # -- The device -------------------------------------------------------------------------------

    def commit(self, num_reqs: int) -> None:
        """Copies the first rows of the host table to the device; later device rows stay as they are (TAB-4).

        A backend with a device sends only the changed entries, by at most 4 compiled programs (TAB-5). Here the
        whole table is copied.

        Args:
            num_reqs: number of rows, from 0 to ``max_num_reqs``.
        """
        count = index("num_reqs", num_reqs, self.max_num_reqs + 1, "TAB-2")
        device = self._device.copy()  # earlier device handles keep their values
        device[:count] = self.page_table_cpu[:count]
        device.flags.writeable = False
        self._device = device

    # -- Where tokens go (TAB-7) ------------------------------------------------------------------

    def slot_mapping(self, req_indices: Sequence[int], positions: Sequence[int], page_size: int) -> NDArray[np.int32]:
        """The cache slot of each token of a step (TAB-7).

        Args:
            req_indices: the row of each token, `[num_tokens]`.
            positions: the position of each token in its row, `[num_tokens]`.
            page_size: tokens in a page.

        Returns:
            `i32[max_num_batched_tokens]`: page times ``page_size`` plus offset; -1 past ``num_tokens``.

        Raises:
            IndexError: a row does not exist, or a token lies past the row's pages.
            ValueError: more tokens than ``max_num_batched_tokens``, or a slot that no int32 holds.
        """
        size = integer("page_size", page_size, minimum=1)
        rows = [index("req_indices", row, self.max_num_reqs, "TAB-2") for row in listed("req_indices", req_indices)]
        places = listed("positions", positions)
        if len(rows) != len(places):
            raise refusal(ValueError, "TAB-7", f"req_indices names {len(rows)} tokens, positions {len(places)}")
        if len(rows) > self.max_num_batched_tokens:
            most = f"max_num_batched_tokens={self.max_num_batched_tokens}"
            raise refusal(ValueError, "TAB-7", f"req_indices names {len(rows)} tokens, which exceed {most}")
        mapping = np.full(self.max_num_batched_tokens, -1, np.int32)
        for place, (row, position) in enumerate(zip(rows, places, strict=True)):
            mapping[place] = self.slot_of(row, position, size)
        return mapping

    def update_slices(
        self, req_indices: Sequence[int], starts: Sequence[int], lengths: Sequence[int], page_size: int
    ) -> NDArray[np.int32]:
        """The slices of consecutive slots that the tokens of a step fill, each within one page (TAB-7).

        Args:
            req_indices: the rows, in the order of their tokens in the step, `[n]`.
            starts: the position in its row of each row's first token of the step, `[n]`.
            lengths: the number of tokens of each row in the step, `[n]`.
            page_size: tokens in a page.

        Returns:
            `i32[3, max_slices]`, a column (first slot, first token of the step, length) for each slice; columns
            past the last slice are -1. ``max_slices`` is ``min(2 * max_num_reqs + max_num_batched_tokens //
            page_size, max_num_batched_tokens)``: the most that a step can have which names each row once.
        """
        size = integer("page_size", page_size, minimum=1)
        rows = [index("req_indices", row, self.max_num_reqs, "TAB-2") for row in listed("req_indices", req_indices)]
        firsts = [integer("starts", start) for start in listed("starts", starts)]
        counts = [integer("lengths", length) for length in listed("lengths", lengths)]
        if not len(rows) == len(firsts) == len(counts):
            raise refusal(
                ValueError,
                "TAB-7",
                f"req_indices names {len(rows)} rows, starts {len(firsts)}, lengths {len(counts)}",
            )
        if len(set(rows)) < len(rows):
            raise refusal(ValueError, "TAB-7", f"req_indices={rows} names a row twice")
        if sum(counts) > self.max_num_batched_tokens:
            raise refusal(
                ValueError,
                "TAB-7",
                f"lengths: {sum(counts)} tokens exceed max_num_batched_tokens={self.max_num_batched_tokens}",
            )
        most = min(2 * self.max_num_reqs + self.max_num_batched_tokens // size, self.max_num_batched_tokens)
        places = [
            (row, position)
            for row, first, count in zip(rows, firsts, counts, strict=True)
            for position in range(first, first + count)
        ]
        return self.slices_of(places, size, most)

    def slices_of(self, places: Sequence[tuple[int, int]], page_size: int, num_slices: int) -> NDArray[np.int32]:
        """The slices that tokens fill, whose rows and positions are known; see `update_slices` (TAB-7).

        Args:
            places: row and position of each token; the tokens of a row are consecutive.
            page_size: tokens in a page.
            num_slices: number of columns.
        """
        runs: list[list[int]] = []
        for token, (row, position) in enumerate(places):
            slot = self.slot_of(row, position, page_size, "starts: position")
            if token and places[token - 1][0] == row and position % page_size:
                runs[-1][2] += 1
            else:
                runs.append([slot, token, 1])
        slices = np.full((3, num_slices), -1, np.int32)
        slices[:, : len(runs)] = np.array(runs, np.int32).reshape(-1, 3).T
        return slices

    def slot_of(self, row: int, position: object, page_size: int, name: str = "positions") -> int:
        """The slot of a position of a row, which must have a page there (TAB-7); refusals call it by a name."""
        place = index(name, position, len(self._rows[row]) * page_size, "TAB-7")
        slot = self._rows[row][place // page_size] * page_size + place % page_size
        if slot >= 2**31:
            raise refusal(ValueError, "TAB-7", f"{name}={position}: slot {slot} does not fit an int32")
        return slot

    # -- Inside -----------------------------------------------------------------------------------

    def _zeros(self) -> NDArray[np.int32]:
        table = np.zeros((self.max_num_reqs, self.max_num_pages_per_req), np.int32)
        table.flags.writeable = False
        return table

    def _page_ids(self, page_ids: object, name: str = "page_ids") -> list[int]:
        return [index(name, page_id, 2**31) for page_id in listed(name, page_ids)]

    def _fit(self, count: int, row_idx: int, name: str = "page_ids") -> None:
        if count > self.max_num_pages_per_req:
            raise refusal(
                ValueError,
                "TAB-2",
                f"{name}: row {row_idx} would have {count} pages of {self.max_num_pages_per_req}",
            )

    def _two_rows(self, src: int, tgt: int) -> tuple[int, int]:
        return index("src", src, self.max_num_reqs, "TAB-2"), index("tgt", tgt, self.max_num_reqs, "TAB-2")

    def check(self) -> None:
        """Verifies that every row fits the table, and that every page id is an int32 of at least 0.

        Raises:
            AssertionError: a row does not; the message has the whole state.
        """
        for row_idx, row in enumerate(self._rows):
            fits = len(row) <= self.max_num_pages_per_req and all(0 <= page < 2**31 for page in row)
            assert fits, f"TAB-2: row {row_idx} of {self._rows}"
