"""vLLM's block tables, on the CPU, as page tables."""

from collections.abc import Iterable
from typing import Any

from .vllm import VLLM

__all__ = ["MultiGroupPageTable", "PageTable"]

_tables = VLLM.module("vllm.v1.worker.block_table")
_torch = VLLM.module("torch")

_NO_SLOTS = _tables.SlotMappingMode.NONE
"""The slot mapping is a Triton kernel; without it rows are as wide as asked for, else padded to 128 tokens."""


class _Rows:
    """What one table and the tables of several groups do alike: vLLM's classes have the same names for it."""

    table: Any

    def clear_row(self, row_idx: Any) -> None:
        """See ``clear_row``."""
        self.table.clear_row(row_idx)

    def move_row(self, src: Any, tgt: Any) -> None:
        """See ``move_row``."""
        self.table.move_row(src, tgt)

    def swap_row(self, src: Any, tgt: Any) -> None:
        """See ``swap_row``."""
        self.table.swap_row(src, tgt)

    def commit(self, num_reqs: Any) -> None:
        """See ``commit_block_table``."""
        self.table.commit_block_table(num_reqs)

    def clear(self) -> None:
        """See ``clear``."""
        self.table.clear()


class PageTable(_Rows):
    """vLLM's ``BlockTable``.

    Args:
        max_num_reqs: see ``max_num_reqs``.
        max_num_pages_per_req: see ``max_num_blocks_per_req``.
        max_num_batched_tokens: see ``max_num_batched_tokens``.
        table: the table to look at; None makes one.
    """

    def __init__(
        self, max_num_reqs: Any, max_num_pages_per_req: Any, max_num_batched_tokens: Any, *, table: Any = None
    ) -> None:
        self.table = table or _tables.BlockTable(
            1, max_num_reqs, max_num_pages_per_req, max_num_batched_tokens, False, _torch.device("cpu"), 1,
            slot_mapping_mode=_NO_SLOTS,
        )  # fmt: skip

    @property
    def num_pages_per_row(self) -> Any:
        """See ``num_blocks_per_row``."""
        return self.table.num_blocks_per_row

    def get_cpu_tensor(self) -> Any:
        """See ``get_numpy_array``, which is what its host tensor holds."""
        return self.table.get_numpy_array()

    def get_device_tensor(self) -> Any:
        """See ``get_device_tensor``; all rows of it, as an array."""
        return self.table.get_device_tensor(self.table.max_num_reqs).numpy()

    def append_row(self, page_ids: Iterable[Any], row_idx: Any) -> None:
        """See ``append_row``, which takes a list."""
        self.table.append_row(list(page_ids), row_idx)

    def add_row(self, page_ids: Iterable[Any], row_idx: Any) -> None:
        """See ``add_row``, which takes a list."""
        self.table.add_row(list(page_ids), row_idx)


class MultiGroupPageTable(_Rows):
    """vLLM's ``MultiGroupBlockTable``.

    Args:
        max_num_reqs: see ``max_num_reqs``.
        max_model_len: the longest request, of which each group's ``max_num_blocks`` follow.
        max_num_batched_tokens: see ``max_num_batched_tokens``.
        page_sizes: see ``block_sizes``.
    """

    def __init__(self, max_num_reqs: Any, max_model_len: Any, max_num_batched_tokens: Any, page_sizes: Any) -> None:
        widths = [-(-max_model_len // size) for size in page_sizes]
        self.table = _tables.MultiGroupBlockTable(
            max_num_reqs, max_num_batched_tokens, False, _torch.device("cpu"), page_sizes, widths,
            slot_mapping_modes=[_NO_SLOTS] * len(widths),
        )  # fmt: skip

    @property
    def page_tables(self) -> list[PageTable]:
        """See ``block_tables``."""
        return [PageTable(0, 0, 0, table=table) for table in self.table.block_tables]

    def __getitem__(self, group: Any) -> PageTable:
        return PageTable(0, 0, 0, table=self.table[group])

    def append_row(self, page_ids: Any, row_idx: Any) -> None:
        """See ``append_row``, which takes a list for each group."""
        self.table.append_row([list(group) for group in page_ids], row_idx)

    def add_row(self, page_ids: Any, row_idx: Any) -> None:
        """See ``add_row``, which takes a list for each group."""
        self.table.add_row([list(group) for group in page_ids], row_idx)
