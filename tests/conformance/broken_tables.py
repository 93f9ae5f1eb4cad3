"""Page tables that are the specification's but for one fault each."""

from typing import Any

import numpy as np

from kvproof.spec import PageTable

__all__ = ["Changeable", "LosesPages", "PadsWithZero", "ReusesHandles", "StaysAtVersion", "SwapsPagesOnly", "WideTable"]


class LosesPages(PageTable):
    """Pages that do not fit are lost."""

    def append_row(self, page_ids: Any, row_idx: int) -> None:
        pages = list(page_ids)
        room = (
            self.max_num_pages_per_req - len(self._rows[row_idx]) if row_idx in range(len(self._rows)) else len(pages)
        )
        super().append_row(pages[:room], row_idx)


class ReusesHandles(PageTable):
    """A device handle shows what later commits write."""

    def commit(self, num_reqs: int) -> None:
        handle = self._device
        super().commit(num_reqs)
        handle.flags.writeable = True
        handle[:] = self._device
        handle.flags.writeable = False
        self._device = handle


class Changeable(PageTable):
    def get_cpu_tensor(self) -> Any:
        return np.array(self.page_table_cpu)


class SwapsPagesOnly(PageTable):
    def swap_row(self, src: int, tgt: int) -> None:
        rows = [list(row) for row in self._rows]
        super().swap_row(src, tgt)
        if src != tgt and min(len(rows[src]), len(rows[tgt])) == 0:
            self._rows = rows


class StaysAtVersion(PageTable):
    def move_row(self, src: int, tgt: int) -> None:
        super().move_row(src, tgt)
        self.cpu_version -= 1


class PadsWithZero(PageTable):
    def slot_mapping(self, *arguments: Any) -> Any:
        return np.maximum(super().slot_mapping(*arguments), 0)


class WideTable(PageTable):
    def get_cpu_tensor(self) -> Any:
        table = self.page_table_cpu.astype(np.int64)
        table.flags.writeable = False
        return table
