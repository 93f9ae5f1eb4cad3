"""TAB: the page tables of several cache groups; a request has the same row in all of them."""

from collections.abc import Sequence

from ..declarations.group_tables import GroupTables
from ..reading.arguments import listed
from .page_table import PageTable, cdiv

__all__ = ["MultiGroupPageTable"]


class MultiGroupPageTable(GroupTables[PageTable]):
    """The page tables of several cache groups; `GroupTables` has the arguments, and the other calls."""

    @staticmethod
    def _table(
        max_num_reqs: int, max_model_len: int, page_size: int, max_num_batched_tokens: int, sharding: object
    ) -> PageTable:
        return PageTable(max_num_reqs, cdiv(max_model_len, page_size), max_num_batched_tokens, sharding=sharding)

    def append_row(self, page_ids: Sequence[Sequence[int]], row_idx: int) -> None:
        """Appends pages to a row in every group, or in none if one does not fit (TAB-2).

        Args:
            page_ids: the pages, a list for each group.
            row_idx: the row.
        """
        self._append([page_ids], [row_idx], "page_ids", "row_idx")

    def append_rows_batch(
        self, page_ids_per_req: Sequence[Sequence[Sequence[int]]], req_indices: Sequence[int]
    ) -> None:
        """Appends pages to several rows in every group, or to none if one does not fit (TAB-2).

        Args:
            page_ids_per_req: the pages to append, for each of ``req_indices`` a list for each group.
            req_indices: the rows.
        """
        self._append(page_ids_per_req, req_indices, "page_ids_per_req", "req_indices")

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

    def _append(self, page_ids: object, row_ids: object, pages_name: str, rows_name: str) -> None:
        requests = [self._groups(pages_name, lists) for lists in listed(pages_name, page_ids)]
        rows = listed(rows_name, row_ids)
        for group, table in enumerate(self.page_tables):
            table.read_batch([lists[group] for lists in requests], rows, pages_name, rows_name)
        for group, table in enumerate(self.page_tables):
            table.append_rows_batch([lists[group] for lists in requests], rows)

    def _groups(self, name: str, lists: object) -> list[list[int]]:
        """Reads lists of pages, one for each group (R1, TAB-2)."""
        read = [listed(name, pages) for pages in listed(name, lists)]
        self.require_groups(name, read)
        return read
