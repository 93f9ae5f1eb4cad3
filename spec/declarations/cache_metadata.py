"""CACHE-1: the static description of a cache: its fields, what they may be, and its document."""

import dataclasses
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike

from .cache_dtypes import CODES, code_of, read_dtype
from .documents import Saved, document, fields_of
from .partitions import PartitionManager
from .pool_size import read_utilization
from .reading import flag, integer, refusal

__all__ = ["MOST_SLOTS", "VERSIONS", "CacheDescription", "read_version"]

MOST_SLOTS = 2**31 - 1
"""The most slots of a pool: an int32 numbers them."""

VERSIONS = ("v2", "v3", "seq_on_lane")
"""The names of the layouts."""

_KIND = "RaggedPagesCacheMetaData"


def read_version(version: object) -> str:
    """Reads the name of a layout (R1).

    Raises:
        TypeError: it is no str.
        ValueError: it is none of `VERSIONS`.
    """
    if not isinstance(version, str):
        raise refusal(TypeError, "R1", f"version={version!r} must be a str")
    if version not in VERSIONS:
        raise refusal(ValueError, "R1", f"version={version!r} must be 'v2', 'v3' or 'seq_on_lane'")
    return version


@dataclasses.dataclass(frozen=True)
class CacheDescription(Saved):
    """The static description of a cache. Immutable and hashable; `create` makes one that fills its devices' memory.

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
        version: the layout: ``v2``, ``v3``, or ``seq_on_lane``, in which a slot is a column of its page.
        _kvdtype_str: code of the element type: f32, bf16, f16, f8_e4m3, f8_e5m2 or int8; longer names become these.
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
        read: dict[str, Any] = {
            "hbm_utilization": read_utilization("hbm_utilization", self.hbm_utilization),
            "version": read_version(self.version),
            "_kvdtype_str": code_of(dtype),
            "slot_scales": flag("slot_scales", self.slot_scales) or dtype == CODES["int8"],
        }
        for field in dataclasses.fields(self):
            if field.type is int:
                number = integer(field.name, getattr(self, field.name), minimum=None)
                known = field.default != -1 or number != -1
                least = 2 if field.name == "num_pages" else 1
                read[field.name] = integer(field.name, number, minimum=least) if known else -1
        for name, value in read.items():
            object.__setattr__(self, name, value)
        if self.num_kv_heads % self.num_head_shards:
            raise refusal(
                ValueError,
                "CACHE-5",
                f"num_kv_heads={self.num_kv_heads} must be a multiple of num_head_shards={self.num_head_shards}",
            )
        if self.slot_scales and dtype.itemsize > 1:
            raise refusal(ValueError, "CACHE-4", f"slot_scales={self.slot_scales}: {self._kvdtype_str} has no scales")
        if self.num_pages * self.page_size > MOST_SLOTS:
            raise refusal(ValueError, "CACHE-1", f"num_pages={self.num_pages} has slots that no int32 numbers")

    @classmethod
    def create(
        cls,
        mesh: Any,
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
        num_pages: int | None = None,
        max_num_tokens: int = -1,
        max_num_reqs: int = -1,
        slot_scales: bool = False,
    ) -> Self:
        """The description of a cache with the most pages that fit (CACHE-1). O(devices).

        Args:
            mesh: the mesh of devices, see `partitions`; None: one device.
            partition_manager: what decides how heads and pages are split over the mesh.
            kvdtype: the element type of the cache, or its code.
            num_hidden_layers: layers.
            num_kv_heads: H, over all devices.
            max_model_length: the most tokens of a request.
            kv_head_dim_size: D and Dv.
            k_headdim: D; None: ``kv_head_dim_size``.
            v_headdim: Dv; None: ``kv_head_dim_size``.
            hbm_utilization: the fraction of a device's memory that the cache may use.
            page_size: tokens in a page.
            version: the layout: ``v2``, ``v3`` or ``seq_on_lane``.
            budget_bytes: the bytes of each device that the cache may use, in place of ``hbm_utilization``; None: see
                `per_device_hbm_budget_bytes`.
            num_pages: P, in place of both: as many pages as that, each page shard its own.
            max_num_tokens: the most tokens of a step; -1: not known.
            max_num_reqs: the most requests of a step; -1: not known.
            slot_scales: whether each slot and head has a scale; always true for int8.

        Raises:
            TypeError: an argument of a wrong type.
            ValueError: an argument out of its bounds, a missing head size, heads that can't be split evenly, a
                budget of less than two pages (POOL-1), or a budget and ``num_pages`` as well.
        """
        k_size = kv_head_dim_size if k_headdim is None else k_headdim
        v_size = kv_head_dim_size if v_headdim is None else v_headdim
        if k_size is None or v_size is None:
            raise refusal(ValueError, "R1", f"kv_head_dim_size=None needs {k_headdim=} and {v_headdim=} as numbers")
        if num_pages is not None and budget_bytes is not None:
            raise refusal(ValueError, "R1", f"{num_pages=} and {budget_bytes=}: one of them says how many pages")
        pages = None if num_pages is None else integer("num_pages", num_pages, minimum=2, clause="POOL-1")
        heads = integer("num_kv_heads", num_kv_heads, minimum=1)
        head_shards, page_shards = cls._num_shards(mesh, partition_manager, heads, 1)
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
            num_head_shards=head_shards,
            num_page_shards=page_shards,
            slot_scales=slot_scales,
        )
        return one.replace(**cls._page_counts(one, budget_bytes if pages is None else pages * one.page_bytes))

    @classmethod
    @abstractmethod
    def _num_shards(
        cls, mesh: Any, partition_manager: PartitionManager, num_kv_heads: int, num_pages: int
    ) -> tuple[int, int]:
        """The numbers of head shards and of page shards on a mesh (CACHE-5)."""

    @classmethod
    @abstractmethod
    def _page_counts(cls, one: Self, budget_bytes: int | None) -> dict[str, int]:
        """The fields that depend on the size of a page, by name (CACHE-1).

        Args:
            one: a description without them.
            budget_bytes: the bytes of each device that the cache may use; None: by ``hbm_utilization``.
        """

    @property
    @abstractmethod
    def page_bytes(self) -> int:
        """Bytes of one page, over all layers, on each device that has a part of it (CACHE-1)."""

    def require_mesh(self, mesh: Any, partition_manager: PartitionManager) -> None:
        """Refuses a mesh that splits the cache otherwise than the description says (CACHE-5). O(1).

        Raises:
            TypeError: ``mesh`` is no mesh, or ``partition_manager`` is none.
            ValueError: the numbers of shards are others.
        """
        found = self._num_shards(mesh, partition_manager, self.num_kv_heads, self.num_pages)
        for name, shards in zip(("num_head_shards", "num_page_shards"), found, strict=True):
            if getattr(self, name) != shards:
                raise refusal(
                    ValueError, "CACHE-5", f"metadata.{name}={getattr(self, name)}, but the mesh makes it {shards}"
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
        """The element type of the cache, independent of how a device stores it."""
        return CODES[self._kvdtype_str]

    # -- Documents --------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """The description as a document; see `documents`."""
        return document(_KIND, dataclasses.asdict(self))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Reads a document; see `Saved.from_dict`."""
        fields: dict[str, Any] = fields_of(_KIND, data, [field.name for field in dataclasses.fields(cls)])
        return cls(**{name: part.value for name, part in fields.items()})
