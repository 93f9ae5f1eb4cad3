"""Page tables that are the specification's but for one fault each."""

from typing import Any

import numpy as np

from kvproof.spec import PageTable

__all__ = ["Changeable", "PadsWithZero", "StaysAtVersion", "SwapsPagesOnly", "WideTable"]


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
