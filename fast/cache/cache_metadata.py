"""CACHE-1: the sizes of a cache's pages on the device, and how many fit a device."""

import dataclasses
from typing import Self

import jax

from kvproof.kernels import CacheLayout
from kvproof.spec.declarations.cache_metadata import MOST_SLOTS, CacheDescription
from kvproof.spec.declarations.partitions import DeviceMesh, PartitionManager

from ..layout.cache_layout import align_to_multiple, get_dtype_packing, get_num_slices_per_kv_cache_update_page
from ..reading.arguments import integer, refusal
from ..table.page_table import cdiv
from .partitions import num_shards
from .pool_size import per_device_hbm_budget_bytes, size_pool

__all__ = ["RaggedPagesCacheMetaData"]

_SCALE_BYTES = 4
_TABLE_BYTES = 1024 * 1024 // 2


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class RaggedPagesCacheMetaData(CacheDescription):
    """The static description of a cache, part of every view, with the sizes of its pages.

    `CacheDescription` describes the fields.
    """

    @classmethod
    def _num_shards(
        cls, mesh: DeviceMesh | None, partition_manager: PartitionManager, num_kv_heads: int, num_pages: int
    ) -> tuple[int, int]:
        heads = num_shards(mesh, partition_manager, "kv_heads", num_kv_heads)
        return heads, num_shards(mesh, partition_manager, "pages", num_pages)

    @classmethod
    def _page_counts(cls, one: Self, budget_bytes: int | None) -> dict[str, int]:
        budget = per_device_hbm_budget_bytes(one.hbm_utilization) if budget_bytes is None else budget_bytes
        fitting = size_pool(budget, [one.page_bytes]).num_pages
        return {
            "num_pages": min(fitting, MOST_SLOTS // one.page_size),
            "max_num_pages_per_req": cdiv(one.max_model_length, one.page_size),
            "num_slices_per_kv_cache_update_page": get_num_slices_per_kv_cache_update_page(one.layer_page_bytes),
        }

    # -- Layout -----------------------------------------------------------------------------------

    @property
    def kv_head_packing(self) -> int:
        """Numbers of the cache's dtype in a 32-bit word."""
        return get_dtype_packing(self.kvdtype)

    @property
    def shard_layout(self) -> CacheLayout:
        """The layout of what one device holds."""
        return CacheLayout(
            version=self.version,
            num_kv_heads=self.num_kv_heads // self.num_head_shards,
            head_dim=self.k_headdim,
            v_head_dim=self.v_headdim,
            packing=1 if self.is_v2 else self.kv_head_packing,
        )

    @property
    def storage_head_dim(self) -> int:
        """Numbers of a stored row, padding counted."""
        return self.shard_layout.storage_head_dim

    @property
    def storage_num_combined_kv_heads(self) -> int:
        """Rows of keys and values in a slot, padding counted, over all head shards."""
        return self.num_head_shards * self.shard_layout.combined_rows

    @property
    def storage_num_kv_groups(self) -> int:
        """Groups of ``kv_head_packing`` rows in a slot, over all head shards."""
        return cdiv(self.storage_num_combined_kv_heads, self.kv_head_packing)

    def get_shape_and_axes(self) -> tuple[tuple[int, ...], tuple[str | None, ...]]:
        """The shape of a layer's pages over all shards, and what each axis is.

        Returns:
            The shape `[num_page_shards * num_pages, ...]` with the axes of a page behind, and for each axis
            ``"pages"``, ``"kv_heads"`` or None.

        Raises:
            ValueError: ``num_pages`` is not known (R1).
        """
        if self.num_pages < 2:
            raise refusal(ValueError, "R1", f"num_pages={self.num_pages} must be known to give a shape")
        layout = self.shard_layout
        page = layout.page_shape(self.page_size)
        axes = tuple("kv_heads" if axis == layout.head_axis else None for axis in range(1, len(page) + 1))
        sizes = (size * self.num_head_shards if name else size for size, name in zip(page, axes, strict=True))
        return (self.num_page_shards * self.num_pages, *sizes), ("pages", *axes)

    # -- Sizes ------------------------------------------------------------------------------------

    @property
    def layer_page_bytes(self) -> int:
        """Bytes of one page of one layer on one device, padding and scales counted (CACHE-1)."""
        layout = self.shard_layout
        slot_bytes = layout.combined_rows * layout.storage_head_dim * self.kvdtype.itemsize
        if self.slot_scales:
            slot_bytes += 2 * layout.num_kv_heads * _SCALE_BYTES
        return self.page_size * slot_bytes

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all layers on one device, padding and scales counted (CACHE-1)."""
        return self.num_hidden_layers * self.layer_page_bytes

    def get_max_num_seqs(self) -> int:
        """The most requests of ``max_model_length`` whose int32 page table takes half a MiB; at least 1. O(1)."""
        return max(1, _TABLE_BYTES // cdiv(self.max_model_length, self.page_size) // 4)

    def get_padded_num_slices(self, num_tokens: int | None = None, max_num_reqs: int | None = None) -> int:
        """The most slices that a step can need, rounded up to a multiple of what the update kernel moves at once. O(1).

        Args:
            num_tokens: tokens of the step; None: ``max_num_tokens``, or ``max_model_length`` where that is unset.
            max_num_reqs: requests of the step; None: ``max_num_reqs``, or `get_max_num_seqs` where that is unset.
        """
        tokens = self.max_num_tokens if self.max_num_tokens > 0 else self.max_model_length
        reqs = self.max_num_reqs if self.max_num_reqs > 0 else self.get_max_num_seqs()
        if num_tokens is not None:
            tokens = integer("num_tokens", num_tokens, minimum=1)
        if max_num_reqs is not None:
            reqs = integer("max_num_reqs", max_num_reqs, minimum=1)
        multiple = self.num_slices_per_kv_cache_update_page
        if multiple < 1:
            multiple = get_num_slices_per_kv_cache_update_page(self.layer_page_bytes)
        return align_to_multiple(min(2 * reqs + tokens // self.page_size, tokens), multiple)
