"""TAB: the page tables of several cache groups; a request has the same row in all of them."""

from collections.abc import Sequence

from ..declarations.uncopied import Uncopied
from ..reading.arguments import index, integer, listed, refusal
from .page_table import PageTable, cdiv

__all__ = ["MultiGroupPageTable"]


class MultiGroupPageTable(Uncopied):
    """The page tables of several cache groups; a request has the same row in all of them.

    Args:
        max_num_reqs: number of rows.
        max_model_len: the most tokens of a request; the rows of every table have room for them.
        max_num_batched_tokens: the most tokens of one step.
        page_sizes: tokens in a page, for each group.
        sharding: see `PageTable`.

    Attributes:
        page_tables: the groups' tables.
    """

    def __init__(
        self,
        max_num_reqs: int,
        max_model_len: int,
        max_num_batched_tokens: int,
        page_sizes: Sequence[int],
        *,
        sharding: object = None,
    ) -> None:
        length = integer("max_model_len", max_model_len, minimum=1, below=2**31)
        self.page_sizes = [integer("page_sizes", size, minimum=1) for size in listed("page_sizes", page_sizes)]
        if not self.page_sizes:
            raise refusal(ValueError, "R1", "page_sizes=[] names no group")
        self.page_tables = [
            PageTable(max_num_reqs, cdiv(length, size), max_num_batched_tokens, sharding=sharding)
            for size in self.page_sizes
        ]

    def __getitem__(self, group: int) -> PageTable:
        """The table of one group."""
        return self.page_tables[index("group", group, len(self.page_tables))]

    def __len__(self) -> int:
        return len(self.page_tables)

    def append_row(self, page_ids: Sequence[Sequence[int]], row_idx: int) -> None:
        """Appends pages to a row in every group, or in none if one does not fit (TAB-2).

        Args:
            page_ids: the pages, a list for each group.
            row_idx: the row.
        """
        self.append_rows_batch([page_ids], [row_idx])

    def append_rows_batch(
        self, page_ids_per_req: Sequence[Sequence[Sequence[int]]], req_indices: Sequence[int]
    ) -> None:
        """Appends pages to several rows in every group, or to none if one does not fit (TAB-2).

        Args:
            page_ids_per_req: the pages to append, for each of ``req_indices`` a list for each group.
            req_indices: the rows.
        """
        requests = [self._groups("page_ids_per_req", lists) for lists in listed("page_ids_per_req", page_ids_per_req)]
        rows = listed("req_indices", req_indices)
        for group, table in enumerate(self.page_tables):
            table.read_batch([lists[group] for lists in requests], rows)
        for group, table in enumerate(self.page_tables):
            table.append_rows_batch([lists[group] for lists in requests], rows)

    def add_row(self, page_ids: Sequence[Sequence[int]], row_idx: int) -> None:
        """Replaces the pages of a row in every group, or in none if one list does not fit (TAB-2).

        Args:
            page_ids: the row's new pages, a list for each group.
            row_idx: the row.
        """
        lists = self._groups("page_ids", page_ids)
        for table, pages in zip(self.page_tables, lists, strict=True):
            table.read_row(pages, row_idx)
        for table, pages in zip(self.page_tables, lists, strict=True):
            table.add_row(pages, row_idx)

    def clear_row(self, row_idx: int) -> None:
        """Empties a row in every group."""
        for table in self.page_tables:
            table.clear_row(row_idx)

    def move_row(self, src: int, tgt: int) -> None:
        """Copies row ``src`` over row ``tgt`` in every group (TAB-3)."""
        for table in self.page_tables:
            table.move_row(src, tgt)

    def swap_row(self, src: int, tgt: int) -> None:
        """Exchanges two rows in every group (TAB-3)."""
        for table in self.page_tables:
            table.swap_row(src, tgt)

    def commit(self, num_reqs: int) -> None:
        """Commits the first ``num_reqs`` rows of every group (TAB-4)."""
        for table in self.page_tables:
            table.commit(num_reqs)

    def clear(self) -> None:
        """Empties every row of every group, on host and device (TAB-6)."""
        for table in self.page_tables:
            table.clear()

    def check(self) -> None:
        """Verifies every table's state."""
        for table in self.page_tables:
            table.check()

    def _groups(self, name: str, lists: object) -> list[list[int]]:
        """Reads lists of pages, one for each group (R1, TAB-2)."""
        read = [listed(name, pages) for pages in listed(name, lists)]
        if len(read) != len(self.page_tables):
            raise refusal(ValueError, "TAB-2", f"{name} has {len(read)} lists for {len(self.page_tables)} groups")
        return read
