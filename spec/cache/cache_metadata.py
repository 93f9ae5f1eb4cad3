"""CACHE-1: the static description of a cache, and the number of its pages that fit into a device's memory."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike

from ..declarations.documents import document, fields_of, parsed
from ..layout.cache_dtypes import CODES, LARGEST, code_of, read_dtype
from ..layout.cache_layout import (
    CacheLayout,
    align_to_multiple,
    get_dtype_packing,
    get_num_slices_per_kv_cache_update_page,
)
from ..reading.arguments import flag, integer, refusal
from ..table.page_table import cdiv
from .partitions import num_shards
from .pool_size import per_device_hbm_budget_bytes, read_utilization, size_pool

__all__ = ["RaggedPagesCacheMetaData", "read_metadata", "read_version"]

_KIND = "RaggedPagesCacheMetaData"
_SCALE_BYTES = 4
_MOST_SLOTS = 2**31 - 1


def read_version(version: object) -> str:
    """Reads the name of a layout (R1)."""
    if not isinstance(version, str):
        raise refusal(TypeError, "R1", f"version={version!r} must be a str")
    if version not in ("v2", "v3"):
        raise refusal(ValueError, "R1", f"version={version!r} must be 'v2' or 'v3'")
    return version


def _read_optional(name: str, value: object, minimum: int = 1) -> int:
    """Reads a count, or -1 for a count that is not known (R1)."""
    number = integer(name, value, minimum=None)
    return -1 if number == -1 else integer(name, number, minimum)


@dataclasses.dataclass(frozen=True)
class RaggedPagesCacheMetaData:
    """The static description of a cache; `create` makes one that fills the memory of its devices.

    Attributes:
        num_hidden_layers: number of layers; each has its own pages.
        max_model_length: the most tokens of a request.
        num_kv_heads: H, over all head shards.
        k_headdim: D.
        v_headdim: Dv.
        hbm_utilization: fraction of a device's memory that the cache may use.
        page_size: tokens in a page.
        num_pages: P of each page shard, the null page included; -1: not known.
        max_num_pages_per_req: number of pages of the longest request; -1: not known.
        num_slices_per_kv_cache_update_page: number of update slices that a kernel handles at a time; -1: not known.
        max_num_tokens: the most tokens of a step; -1: not known.
        max_num_reqs: the most requests of a step; -1: not known.
        version: the layout, ``v2`` or ``v3``.
        num_head_shards: number of devices over which the KV heads of a layer are split.
        num_page_shards: number of pools, each of ``num_pages`` pages with ids of its own (POOL-12).
        slot_scales: whether each slot and head has a scale (`ScaledPages`); always true for int8 (CACHE-4).

    Raises:
        TypeError: a field of a wrong type.
        ValueError: a field out of its bounds, heads that can't be split evenly, or scales for floats (R1).
    """

    num_hidden_layers: int
    max_model_length: int
    num_kv_heads: int
    k_headdim: int
    v_headdim: int
    hbm_utilization: float = 0.9
    page_size: int = 128
    num_pages: int = -1
    max_num_pages_per_req: int = -1
    num_slices_per_kv_cache_update_page: int = -1
    max_num_tokens: int = -1
    max_num_reqs: int = -1
    version: str = "v3"
    _kvdtype_str: str = "bf16"
    num_head_shards: int = 1
    num_page_shards: int = 1
    slot_scales: bool = False

    def __post_init__(self) -> None:
        dtype = read_dtype("_kvdtype_str", self._kvdtype_str)
        fields: dict[str, Any] = {
            "hbm_utilization": read_utilization("hbm_utilization", self.hbm_utilization),
            "num_pages": _read_optional("num_pages", self.num_pages, minimum=2),
            "version": read_version(self.version),
            "_kvdtype_str": code_of(dtype),
            "slot_scales": flag("slot_scales", self.slot_scales) or dtype == CODES["int8"],
        }
        for field in dataclasses.fields(self):
            if field.type is int and field.name not in fields:
                read = _read_optional if field.default == -1 else integer
                fields[field.name] = read(field.name, getattr(self, field.name), minimum=1)
        for name, value in fields.items():
            object.__setattr__(self, name, value)
        if self.num_kv_heads % self.num_head_shards:
            raise refusal(
                ValueError,
                "CACHE-5",
                f"num_kv_heads={self.num_kv_heads} must be a multiple of num_head_shards={self.num_head_shards}",
            )
        if self.slot_scales and dtype not in LARGEST:
            raise refusal(ValueError, "CACHE-4", f"slot_scales={self.slot_scales}: {self._kvdtype_str} has no scales")
        if self.num_pages * self.page_size > _MOST_SLOTS:
            raise refusal(ValueError, "CACHE-1", f"num_pages={self.num_pages} has slots that no int32 numbers")

    @classmethod
    def create(
        cls,
        mesh: Any,
        partition_manager: Any,
        kvdtype: DTypeLike,
        num_hidden_layers: int,
        num_kv_heads: int,
        max_model_length: int,
        kv_head_dim_size: int | None = None,
        k_headdim: int | None = None,
        v_headdim: int | None = None,
        hbm_utilization: float = 0.9,
        page_size: int = 128,
        version: str = "v3",
        *,
        budget_bytes: int | None = None,
        max_num_tokens: int = -1,
        max_num_reqs: int = -1,
        slot_scales: bool = False,
    ) -> Self:
        """The metadata of a cache with the most pages that fit (CACHE-1).

        Args:
            mesh: the mesh of devices, see `partitions`; None: one device.
            partition_manager: what decides how heads and pages are split over the mesh.
            kvdtype: the element type of the cache.
            num_hidden_layers: layers.
            num_kv_heads: H, over all devices.
            max_model_length: the most tokens of a request.
            kv_head_dim_size: D and Dv.
            k_headdim: D; None: ``kv_head_dim_size``.
            v_headdim: Dv; None: ``kv_head_dim_size``.
            hbm_utilization: the fraction of a device's memory that the cache may use.
            page_size: tokens in a page.
            version: the layout, ``v2`` or ``v3``.
            budget_bytes: the bytes of each device that the cache may use, in place of ``hbm_utilization``; None: see
                `per_device_hbm_budget_bytes`.
            max_num_tokens: the most tokens of a step; -1: not known.
            max_num_reqs: the most requests of a step; -1: not known.
            slot_scales: whether each slot and head has a scale; always true for int8.

        Raises:
            TypeError: an argument of a wrong type.
            ValueError: an argument out of its bounds, a missing head size, heads that can't be split evenly, or a
                budget of less than two pages.
        """
        k_size = kv_head_dim_size if k_headdim is None else k_headdim
        v_size = kv_head_dim_size if v_headdim is None else v_headdim
        if k_size is None or v_size is None:
            raise refusal(ValueError, "R1", f"kv_head_dim_size=None needs {k_headdim=} and {v_headdim=} as numbers")
        heads = integer("num_kv_heads", num_kv_heads, minimum=1)
        one = cls(
            num_hidden_layers=num_hidden_layers,
            max_model_length=max_model_length,
            num_kv_heads=heads,
            k_headdim=k_size,
            v_headdim=v_size,
            hbm_utilization=hbm_utilization,
            page_size=page_size,
            max_num_tokens=max_num_tokens,
            max_num_reqs=max_num_reqs,
            version=version,
            _kvdtype_str=code_of(read_dtype("kvdtype", kvdtype)),
            num_head_shards=num_shards(mesh, partition_manager, "kv_heads", heads),
            num_page_shards=num_shards(mesh, partition_manager, "pages", 1),
            slot_scales=slot_scales,
        )
        budget = per_device_hbm_budget_bytes(one.hbm_utilization) if budget_bytes is None else budget_bytes
        return one.replace(
            num_pages=min(size_pool(budget, [one.page_bytes]).num_pages, _MOST_SLOTS // one.page_size),
            max_num_pages_per_req=cdiv(one.max_model_length, one.page_size),
            num_slices_per_kv_cache_update_page=get_num_slices_per_kv_cache_update_page(one.layer_page_bytes),
        )

    # -- Layout -----------------------------------------------------------------------------------

    @property
    def is_v2(self) -> bool:
        """Whether the layout is v2."""
        return self.version == "v2"

    @property
    def is_v3(self) -> bool:
        """Whether the layout is v3."""
        return self.version == "v3"

    @property
    def kvdtype(self) -> np.dtype[Any]:
        """The element type of the cache."""
        return CODES[self._kvdtype_str]

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
        rows, *rest = self.shard_layout.slot_shape
        shape = self.num_page_shards * self.num_pages, self.page_size, self.num_head_shards * rows, *rest
        return shape, ("pages", None, "kv_heads", *([None] * len(rest)))

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

    # -- Copies and JSON --------------------------------------------------------------------------

    def replace(self, **kwargs: Any) -> Self:
        """A copy of the metadata with some fields replaced (R1)."""
        return dataclasses.replace(self, **kwargs)

    def to_dict(self) -> dict[str, Any]:
        """The metadata as a document; see `documents`."""
        return document(_KIND, dataclasses.asdict(self))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The metadata from a document.

        Raises:
            TypeError: it is no mapping, or a field is of a wrong type.
            ValueError: it is damaged (SEC-3), or a field is out of its bounds.
        """
        return cls(**fields_of(_KIND, data, [field.name for field in dataclasses.fields(cls)]))

    def to_json(self, **kwargs: Any) -> str:
        """The document as text; ``kwargs`` go to `json.dumps`."""
        return json.dumps(self.to_dict(), **kwargs)

    @classmethod
    def from_json(cls, json_str: str) -> Self:
        """The metadata from a text; see `from_dict`."""
        return cls.from_dict(parsed(json_str))


def read_metadata(metadata: object) -> RaggedPagesCacheMetaData:
    """Reads the metadata of a cache (R1)."""
    if not isinstance(metadata, RaggedPagesCacheMetaData):
        kind = type(metadata).__name__
        raise refusal(TypeError, "R1", f"metadata must be RaggedPagesCacheMetaData, not {kind}")
    return metadata
