"""The page tables of the ordered backend: a dictionary of rows on the host, an array for each commit on the device."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .ordered_reading import items, number

__all__ = ["MultiGroupPageTable", "PageTable"]


class PageTable:
    """See the contract."""

    def __init__(self, max_num_reqs: int, max_num_pages_per_req: int, max_num_batched_tokens: int) -> None:
        self.max_num_reqs = number(max_num_reqs, least=1)
        self.max_num_pages_per_req = number(max_num_pages_per_req, least=1)
        self.max_num_batched_tokens = number(max_num_batched_tokens, least=1)
        self.rows: dict[int, tuple[int, ...]] = {}
        self.device = self.page_table_cpu
        self.cpu_version = 0

    @property
    def num_pages_per_row(self) -> NDArray[np.int32]:
        """How many pages each row names."""
        return np.array([len(self.rows.get(row, ())) for row in range(self.max_num_reqs)], np.int32)

    @property
    def page_table_cpu(self) -> NDArray[np.int32]:
        """The rows, zeros behind them."""
        width = self.max_num_pages_per_req
        lists = [list(self.rows.get(row, ())) for row in range(self.max_num_reqs)]
        table = np.array([[*pages, *[0] * (width - len(pages))] for pages in lists], np.int32)
        table.flags.writeable = False
        return table

    def get_cpu_tensor(self) -> NDArray[np.int32]:
        """The rows on the host."""
        return self.page_table_cpu

    def get_device_tensor(self) -> NDArray[np.int32]:
        """The rows on the device."""
        return self.device

    def row(self, row: Any) -> int:
        """Reads a row."""
        return number(row, least=None, below=self.max_num_reqs)

    def with_pages(self, rows: dict[int, tuple[int, ...]], row: int, pages: Any) -> dict[int, tuple[int, ...]]:
        """The rows with pages behind one of them."""
        added = tuple(number(page, least=None, below=2**31) for page in items(pages))
        whole = rows.get(row, ()) + added
        if len(whole) > self.max_num_pages_per_req:
            raise ValueError(f"row {row} has no room for {len(whole)} pages")
        return rows | {row: whole}

    def change(self, rows: dict[int, tuple[int, ...]]) -> None:
        """Has other rows from now on."""
        self.rows = rows
        self.cpu_version += 1

    def appended(self, page_ids: Any, req_indices: Any) -> dict[int, tuple[int, ...]]:
        """The rows with a batch behind them."""
        places, lists = [self.row(row) for row in items(req_indices)], items(page_ids)
        if len(places) != len(lists):
            raise ValueError(f"{len(lists)} lists for {len(places)} rows")
        rows = self.rows
        for row, pages in zip(places, lists, strict=True):
            rows = self.with_pages(rows, row, pages)
        return rows

    def append_row(self, page_ids: Any, row_idx: int) -> None:
        """Adds pages to a row."""
        self.append_rows_batch([page_ids], [row_idx])

    def append_rows_batch(self, page_ids: Any, req_indices: Any) -> None:
        """Adds pages to rows."""
        self.change(self.appended(page_ids, req_indices))

    def add_row(self, page_ids: Any, row_idx: int) -> None:
        """Replaces a row."""
        self.change(self.replaced(page_ids, row_idx))

    def replaced(self, page_ids: Any, row_idx: Any) -> dict[int, tuple[int, ...]]:
        """The rows with another one in the place of one."""
        row = self.row(row_idx)
        return self.with_pages(self.rows | {row: ()}, row, page_ids)

    def clear_row(self, row_idx: int) -> None:
        """Empties a row."""
        self.change(self.rows | {self.row(row_idx): ()})

    def move_row(self, src: int, tgt: int) -> None:
        """Copies a row over another."""
        source, target = self.row(src), self.row(tgt)
        self.change(self.rows | {target: self.rows.get(source, ())})

    def swap_row(self, src: int, tgt: int) -> None:
        """Exchanges two rows."""
        one, other = self.row(src), self.row(tgt)
        self.change(self.rows | {one: self.rows.get(other, ()), other: self.rows.get(one, ())})

    def commit(self, num_reqs: int) -> None:
        """Makes the device's first rows those of the host."""
        count = number(num_reqs, least=None, below=self.max_num_reqs + 1)
        self.device = np.concatenate([self.page_table_cpu[:count], self.device[count:]])

    def clear(self) -> None:
        """Empties everything."""
        self.change({})
        self.device = self.page_table_cpu


class MultiGroupPageTable:
    """See the contract."""

    def __init__(self, max_num_reqs: int, max_model_len: int, max_num_batched_tokens: int, page_sizes: Any) -> None:
        length = number(max_model_len, least=1)
        sizes = [number(size, least=1) for size in items(page_sizes)]
        if not sizes:
            raise ValueError("no group")
        self.page_tables = [PageTable(max_num_reqs, -(-length // size), max_num_batched_tokens) for size in sizes]

    def __getitem__(self, group: int) -> PageTable:
        return self.page_tables[number(group, least=None, below=len(self.page_tables))]

    def each(self, lists: Any) -> list[list[Any]]:
        """Reads a list for each group."""
        given = [items(pages) for pages in items(lists)]
        if len(given) != len(self.page_tables):
            raise ValueError(f"{len(given)} lists for {len(self.page_tables)} groups")
        return given

    def append_row(self, page_ids: Any, row_idx: int) -> None:
        """Adds pages to a row of each group."""
        self.append_rows_batch([page_ids], [row_idx])

    def append_rows_batch(self, page_ids_per_req: Any, req_indices: Any) -> None:
        """Adds pages to rows of each group."""
        lists, rows = [self.each(given) for given in items(page_ids_per_req)], items(req_indices)
        changed = [
            table.appended([groups[number_of] for groups in lists], rows)
            for number_of, table in enumerate(self.page_tables)
        ]
        for table, after in zip(self.page_tables, changed, strict=True):
            table.change(after)

    def add_row(self, page_ids: Any, row_idx: int) -> None:
        """Replaces a row of each group."""
        lists = self.each(page_ids)
        changed = [table.replaced(pages, row_idx) for table, pages in zip(self.page_tables, lists, strict=True)]
        for table, after in zip(self.page_tables, changed, strict=True):
            table.change(after)

    def clear_row(self, row_idx: int) -> None:
        """Empties a row of each group."""
        for table in self.page_tables:
            table.clear_row(row_idx)

    def move_row(self, src: int, tgt: int) -> None:
        """Copies a row over another."""
        for table in self.page_tables:
            table.move_row(src, tgt)

    def swap_row(self, src: int, tgt: int) -> None:
        """Exchanges two rows."""
        for table in self.page_tables:
            table.swap_row(src, tgt)

    def commit(self, num_reqs: int) -> None:
        """Commits each group."""
        for table in self.page_tables:
            table.commit(num_reqs)

    def clear(self) -> None:
        """Empties each group."""
        for table in self.page_tables:
            table.clear()
