"""TAB: the page tables of several cache groups, a row being the same request in all of them."""

from collections.abc import Iterable
from itertools import chain
from typing import Any

import numpy as np
from jax.sharding import Sharding
from numpy.typing import NDArray

from kvproof.spec.declarations.group_tables import GroupTables
from kvproof.spec.declarations.reading import Ids

from ..reading.arguments import id_array, listed, materialised
from .page_table import FEW, PageTable, cdiv

__all__ = ["MultiGroupPageTable"]

_SEQUENCES = frozenset((list, tuple))


class MultiGroupPageTable(GroupTables[PageTable]):
    """The page tables of several cache groups; `GroupTables` has the arguments, and the other calls."""

    @staticmethod
    def _table(
        max_num_reqs: int, max_model_len: int, page_size: int, max_num_batched_tokens: int, sharding: Sharding | None
    ) -> PageTable:
        return PageTable(max_num_reqs, cdiv(max_model_len, page_size), max_num_batched_tokens, sharding=sharding)

    def append_row(self, page_ids: Iterable[Ids] | NDArray[np.integer[Any]], row_idx: int) -> None:
        """Adds pages to a row in every group, or in none if one does not fit (TAB-2). O(pages).

        Args:
            page_ids: the pages, a list for each group, or an integer array `[groups, k]`.
            row_idx: the row.

        Raises:
            TypeError: a page or the row is no integer.
            IndexError: there is no such page or row.
            ValueError: a table has no room, or there are not as many lists as groups (TAB-2).
        """
        self._append([page_ids], [row_idx], "page_ids", "row_idx")

    def append_rows_batch(
        self, page_ids_per_req: Iterable[Iterable[Ids]] | NDArray[np.integer[Any]], req_indices: Ids
    ) -> None:
        """Adds pages to several rows in every group, or to none if one does not fit (TAB-2). O(rows and pages).

        Args:
            page_ids_per_req: for each of ``req_indices`` a list for each group, or an integer array
                `[m, groups, k]`.
            req_indices: the rows, `[m]`.

        Raises:
            TypeError: a page or a row is no integer.
            IndexError: there is no such page or row.
            ValueError: a table has no room, or there are not as many lists as rows or groups (TAB-2).
        """
        self._append(page_ids_per_req, req_indices, "page_ids_per_req", "req_indices")

    def add_row(self, page_ids: Iterable[Ids] | NDArray[np.integer[Any]], row_idx: int) -> None:
        """Replaces the pages of a row in every group, or in none if one list does not fit (TAB-2). O(pages).

        Args:
            page_ids: the row's new pages, a list for each group, or an integer array `[groups, k]`.
            row_idx: the row.

        Raises:
            TypeError: a page or the row is no integer.
            IndexError: there is no such page or row.
            ValueError: a table has no room, or there are not as many lists as groups (TAB-2).
        """
        lists = self._groups("page_ids", page_ids)
        rows = [table.read_row(pages, row_idx) for table, pages in zip(self.page_tables, lists, strict=True)]
        for table, row in zip(self.page_tables, rows, strict=True):
            table.write_row(*row)

    # -- Inside -----------------------------------------------------------------------------------

    def _append(self, requests: object, rows: Ids, pages_name: str, rows_name: str) -> None:
        by_group = self._by_group(pages_name, requests)
        if not (type(rows) is list and len(rows) <= FEW):  # otherwise each table reads its own lists faster
            rows = id_array(rows_name, rows, self.page_tables[0].max_num_reqs, "TAB-2")
        pairs = list(zip(self.page_tables, by_group, strict=True))
        batches = [table.read_batch(lists, rows, pages_name, rows_name) for table, lists in pairs]
        for table, batch in zip(self.page_tables, batches, strict=True):
            table.write_batch(batch)

    def _groups(self, name: str, lists: object) -> list[Any]:
        given = [materialised(name, pages) for pages in listed(name, lists)]
        self.require_groups(name, given)
        return given

    def _by_group(self, name: str, requests: object) -> list[Any]:
        """The lists of several requests, group by group instead of request by request."""
        num_groups = len(self.page_tables)
        if isinstance(requests, np.ndarray) and requests.ndim == 3 and requests.shape[1] == num_groups:
            return [requests[:, group] for group in range(num_groups)]
        given = materialised(name, requests)
        if type(given) is list and _SEQUENCES.issuperset(map(type, given)) and set(map(len, given)) == {num_groups}:
            columns = list(map(list, zip(*given, strict=True)))
            if _SEQUENCES.issuperset(map(type, chain.from_iterable(columns))):
                return columns
        groups = [self._groups(name, lists) for lists in given]
        return [[lists[group] for lists in groups] for group in range(num_groups)]
