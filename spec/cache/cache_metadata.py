"""CACHE-1: the sizes of a cache's pages, and the number of pages that fit into a device's memory."""

import dataclasses
from typing import Any, Self

from ..declarations.cache_metadata import MOST_SLOTS, CacheDescription
from ..layout.cache_layout import (
    CacheLayout,
    align_to_multiple,
    get_dtype_packing,
    get_num_slices_per_kv_cache_update_page,
)
from ..reading.arguments import integer, refusal
from ..table.page_table import cdiv
from .partitions import num_shards
from .pool_size import per_device_hbm_budget_bytes, size_pool

__all__ = ["RaggedPagesCacheMetaData"]

_SCALE_BYTES = 4


@dataclasses.dataclass(frozen=True)
class RaggedPagesCacheMetaData(CacheDescription):
    """The static description of a cache, with the sizes of its pages; `CacheDescription` has the fields."""

    @classmethod
    def _num_shards(cls, mesh: Any, partition_manager: Any, num_kv_heads: int, num_pages: int) -> tuple[int, int]:
        return (
            num_shards(mesh, partition_manager, "kv_heads", num_kv_heads),
            num_shards(mesh, partition_manager, "pages", num_pages),
        )

    @classmethod
    def _page_counts(cls, one: Self, budget_bytes: int | None) -> dict[str, int]:
        budget = per_device_hbm_budget_bytes(one.hbm_utilization) if budget_bytes is None else budget_bytes
        return {
            "num_pages": min(size_pool(budget, [one.page_bytes]).num_pages, MOST_SLOTS // one.page_size),
            "max_num_pages_per_req": cdiv(one.max_model_length, one.page_size),
            "num_slices_per_kv_cache_update_page": get_num_slices_per_kv_cache_update_page(one.layer_page_bytes),
        }

    # -- Layout -----------------------------------------------------------------------------------

    @property
    def kv_head_packing(self) -> int:
        """Elements in 32 bits."""
        return get_dtype_packing(self.kvdtype)

    @property
    def shard_layout(self) -> CacheLayout:
        """The layout of one device's slots, with the heads of its shard; see `cache_parts` for all shards (CACHE-5)."""
        return CacheLayout(
            self.version,
            self.num_kv_heads // self.num_head_shards,
            self.k_headdim,
            self.v_headdim,
            self.kv_head_packing,
        )

    @property
    def storage_head_dim(self) -> int:
        """Dp: elements of a row, padding included."""
        return self.shard_layout.storage_head_dim

    @property
    def storage_num_combined_kv_heads(self) -> int:
        """C: rows of a slot over all head shards, padding included."""
        return self.num_head_shards * self.shard_layout.combined_rows

    @property
    def storage_num_kv_groups(self) -> int:
        """The number of groups of `kv_head_packing` rows in a slot, over all head shards."""
        return cdiv(self.storage_num_combined_kv_heads, self.kv_head_packing)

    def get_shape_and_axes(self) -> tuple[tuple[int, ...], tuple[str | None, ...]]:
        """The shape of one layer's pages over all shards, and the meaning of each axis.

        Returns:
            The shape, and for each axis ``pages``, ``kv_heads``, or None for any other.

        Raises:
            ValueError: the number of pages is not known (R1).
        """
        if self.num_pages == -1:
            raise refusal(ValueError, "R1", "num_pages=-1 must be known: pages have no shape without it")
        layout = self.shard_layout
        shape = [self.num_page_shards * self.num_pages, *layout.page_shape(self.page_size)]
        axes: list[str | None] = ["pages", *[None] * len(shape[1:])]
        shape[layout.head_axis] *= self.num_head_shards
        axes[layout.head_axis] = "kv_heads"
        return tuple(shape), tuple(axes)

    # -- Sizes ------------------------------------------------------------------------------------

    @property
    def layer_page_bytes(self) -> int:
        """Bytes of one page of one layer on one device: padding and scales included (CACHE-1)."""
        layout = self.shard_layout
        scales = 2 * layout.num_kv_heads * _SCALE_BYTES if self.slot_scales else 0
        return self.page_size * (layout.slot_elements * self.kvdtype.itemsize + scales)

    @property
    def page_bytes(self) -> int:
        """Bytes of one page on one device, over all layers (CACHE-1)."""
        return self.num_hidden_layers * self.layer_page_bytes

    def get_max_num_seqs(self) -> int:
        """A quarter of the longest requests that a page table of 512 Ki entries has room for; at least 1."""
        return max(1, 1024 * 1024 // 2 // cdiv(self.max_model_length, self.page_size) // 4)

    def get_padded_num_slices(self, num_tokens: int | None = None, max_num_reqs: int | None = None) -> int:
        """The most update slices of a step, rounded up to a multiple of those that a kernel handles at a time.

        Args:
            num_tokens: tokens of the step; None: ``max_num_tokens`` if known, else ``max_model_length``.
            max_num_reqs: requests of the step; None: the field of this name if known, else `get_max_num_seqs`.
        """
        if num_tokens is None:
            num_tokens = self.max_num_tokens if self.max_num_tokens > 0 else self.max_model_length
        if max_num_reqs is None:
            max_num_reqs = self.max_num_reqs if self.max_num_reqs > 0 else self.get_max_num_seqs()
        tokens = integer("num_tokens", num_tokens, minimum=1)
        slices = min(2 * integer("max_num_reqs", max_num_reqs, minimum=1) + tokens // self.page_size, tokens)
        at_a_time = self.num_slices_per_kv_cache_update_page
        if at_a_time == -1:
            at_a_time = get_num_slices_per_kv_cache_update_page(self.layer_page_bytes)
        return align_to_multiple(slices, at_a_time)
