"""CACHE-1: the static properties of a cache: sizes, layout, dtype, shards, and how many pages fit a device."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, Self

import jax
import numpy as np
from numpy.typing import DTypeLike

from kvproof.kernels import CacheLayout
from kvproof.spec.declarations.documents import document, fields_of, parsed

from ..layout.cache_dtypes import CODES, code_of, read_dtype
from ..layout.cache_layout import align_to_multiple, get_dtype_packing, get_num_slices_per_kv_cache_update_page
from ..reading.arguments import flag, integer, refusal
from ..table.page_table import cdiv
from .partitions import DeviceMesh, PartitionManager, num_shards
from .pool_size import per_device_hbm_budget_bytes, size_pool, utilization
from .ragged_metadata import read_version

__all__ = ["RaggedPagesCacheMetaData", "read_metadata"]

_MAY_BE_UNSET = (
    "num_pages",
    "max_num_pages_per_req",
    "num_slices_per_kv_cache_update_page",
    "max_num_tokens",
    "max_num_reqs",
)
_SIZES = (
    "num_hidden_layers",
    "max_model_length",
    "num_kv_heads",
    "k_headdim",
    "v_headdim",
    "page_size",
    "num_head_shards",
    "num_page_shards",
)
_SCALE_BYTES = 4
_MOST_SLOTS = 2**31 - 1
_TABLE_BYTES = 1024 * 1024 // 2


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class RaggedPagesCacheMetaData:
    """The static properties of a cache. Immutable and hashable, part of every view. Made by `create`.

    Attributes:
        num_hidden_layers: layers, each with a view of its own.
        max_model_length: the most tokens of a request.
        num_kv_heads: KV heads of the model: those of all shards together.
        k_headdim: the size of a key head (D).
        v_headdim: the size of a value head (Dv).
        hbm_utilization: the part of a device's free memory that the cache may take, in (0, 1].
        page_size: tokens in a page.
        num_pages: pages of each data shard, with the null page; -1: not known yet.
        max_num_pages_per_req: pages of a request of ``max_model_length`` tokens.
        num_slices_per_kv_cache_update_page: slices that one program of the update kernel moves.
        max_num_tokens: the most tokens of a step; -1: not known.
        max_num_reqs: the most requests of a step; -1: not known.
        version: the layout, ``"v2"`` or ``"v3"``.
        _kvdtype_str: the cache's dtype: f32, bf16, f16, f8_e4m3, f8_e5m2 or int8; longer names become these.
        num_head_shards: devices that share the KV heads, evenly.
        num_page_shards: data shards, each with a pool of ``num_pages`` of its own (POOL-12).
        slot_scales: True if each slot and head has a scale (`ScaledPages`), as always for int8 (CACHE-4).

    Raises:
        TypeError: a field is of the wrong type.
        ValueError: one is out of its bounds, the heads can't be shared evenly, or the dtype has no scales (R1).
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
        read: dict[str, Any] = {name: integer(name, getattr(self, name), minimum=1) for name in _SIZES}
        for name in _MAY_BE_UNSET:
            value = getattr(self, name)
            unset = integer(name, value, minimum=None) == -1
            read[name] = -1 if unset else integer(name, value, minimum=2 if name == "num_pages" else 1)
        read["hbm_utilization"] = utilization("hbm_utilization", self.hbm_utilization)
        read["version"] = read_version(self.version)
        read["_kvdtype_str"] = code_of(read_dtype("_kvdtype_str", self._kvdtype_str))
        eight_bits = CODES[read["_kvdtype_str"]].itemsize == 1
        read["slot_scales"] = flag("slot_scales", self.slot_scales) or read["_kvdtype_str"] == "int8"
        if read["slot_scales"] and not eight_bits:
            raise refusal(ValueError, "CACHE-4", f"slot_scales=True: {read['_kvdtype_str']} has no scales")
        if read["num_kv_heads"] % read["num_head_shards"]:
            raise refusal(
                ValueError, "CACHE-5", f"num_kv_heads={self.num_kv_heads} is no multiple of {self.num_head_shards}"
            )
        for name, value in read.items():
            object.__setattr__(self, name, value)
        if self.num_pages * self.page_size > _MOST_SLOTS:
            raise refusal(ValueError, "CACHE-1", f"num_pages={self.num_pages}: not every slot fits an int32")

    @classmethod
    def create(
        cls,
        mesh: DeviceMesh | None,
        partition_manager: PartitionManager,
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
        """The metadata of a cache that takes as many pages as fit each device (CACHE-1). O(devices).

        Args:
            mesh: the devices; None: one.
            partition_manager: the split of heads and pages over the devices.
            kvdtype: the cache's dtype, or its name.
            num_hidden_layers: layers.
            num_kv_heads: KV heads of the model.
            max_model_length: the most tokens of a request.
            kv_head_dim_size: numbers of a head, of keys and values.
            k_headdim: numbers of a head of a key, where not ``kv_head_dim_size``.
            v_headdim: numbers of a head of a value, where not ``kv_head_dim_size``.
            hbm_utilization: the part of a device's free memory that the cache may take, in (0, 1].
            page_size: tokens in a page.
            version: ``"v2"`` or ``"v3"``.
            budget_bytes: bytes of each device that the cache may take; None: by ``hbm_utilization``.
            max_num_tokens: the most tokens of a step; -1: not known.
            max_num_reqs: the most requests of a step; -1: not known.
            slot_scales: True for a scale for each slot and head; always so for int8.

        Raises:
            TypeError: an argument is of the wrong type.
            ValueError: one is out of its bounds, a head size is missing, the heads can't be shared evenly, or the
                budget does not hold two pages (POOL-1).
        """
        keys, values = (kv_head_dim_size if given is None else given for given in (k_headdim, v_headdim))
        if keys is None or values is None:
            raise refusal(ValueError, "R1", "kv_head_dim_size=None: k_headdim and v_headdim must both be given")
        heads = integer("num_kv_heads", num_kv_heads, minimum=1)
        unsized = cls(
            num_hidden_layers=num_hidden_layers,
            max_model_length=max_model_length,
            num_kv_heads=heads,
            k_headdim=keys,
            v_headdim=values,
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
        budget = per_device_hbm_budget_bytes(unsized.hbm_utilization) if budget_bytes is None else budget_bytes
        fitting = size_pool(budget, [unsized.page_bytes]).num_pages
        return unsized.replace(
            num_pages=min(fitting, _MOST_SLOTS // unsized.page_size),
            max_num_pages_per_req=cdiv(unsized.max_model_length, unsized.page_size),
            num_slices_per_kv_cache_update_page=get_num_slices_per_kv_cache_update_page(unsized.layer_page_bytes),
        )

    # -- Layout -----------------------------------------------------------------------------------

    @property
    def is_v2(self) -> bool:
        """True if the layout is v2."""
        return self.version == "v2"

    @property
    def is_v3(self) -> bool:
        """True if the layout is v3."""
        return self.version == "v3"

    @property
    def kvdtype(self) -> np.dtype[Any]:
        """The dtype of the cache's numbers, independent of how a device stores them."""
        return CODES[self._kvdtype_str]

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
            packing=self.kv_head_packing if self.is_v3 else 1,
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
            The shape `[num_page_shards * num_pages, page_size, ...]` with the layout's last axes, and for each axis
            ``"pages"``, ``"kv_heads"`` or None.

        Raises:
            ValueError: ``num_pages`` is not known (R1).
        """
        if self.num_pages < 2:
            raise refusal(ValueError, "R1", f"num_pages={self.num_pages} must be known to give a shape")
        heads, *rest = self.shard_layout.row_shape
        shape = (self.num_page_shards * self.num_pages, self.page_size, self.num_head_shards * heads, *rest)
        return shape, ("pages", None, "kv_heads", *(None for _ in rest))

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

    # -- Copies and JSON --------------------------------------------------------------------------

    def replace(self, **kwargs: Any) -> Self:
        """The same with other values in the fields named. O(1).

        Raises:
            TypeError: a field does not exist, or a value is of the wrong type.
            ValueError: a value is out of its bounds (R1).
        """
        return dataclasses.replace(self, **kwargs)

    def to_dict(self) -> dict[str, Any]:
        """The fields as a JSON document; see `documents`. O(1)."""
        return document("RaggedPagesCacheMetaData", dataclasses.asdict(self))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Reads what `to_dict` of this class or the specification's wrote. O(1).

        Raises:
            TypeError: ``data`` is no mapping, or a field is of the wrong type.
            ValueError: it is damaged (SEC-3), or a field is out of its bounds (R1).
        """
        names = tuple(field.name for field in dataclasses.fields(cls))
        return cls(**fields_of("RaggedPagesCacheMetaData", data, names))

    def to_json(self, **kwargs: Any) -> str:
        """`to_dict` as text; ``kwargs`` are those of `json.dumps`."""
        return json.dumps(self.to_dict(), **kwargs)

    @classmethod
    def from_json(cls, json_str: str) -> Self:
        """Reads what `to_json` wrote; errors are those of `from_dict`."""
        return cls.from_dict(parsed(json_str))


def read_metadata(metadata: object) -> RaggedPagesCacheMetaData:
    """Validates the metadata of a cache (R1).

    Raises:
        TypeError: it is something else.
    """
    if not isinstance(metadata, RaggedPagesCacheMetaData):
        raise refusal(TypeError, "R1", f"metadata={type(metadata).__name__} must be RaggedPagesCacheMetaData")
    return metadata
