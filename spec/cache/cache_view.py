"""CACHE-2 to CACHE-5: the pages of one layer, which a model's attention writes and reads."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ..attention.attention import fused_ragged_paged_attention, ragged_paged_attention
from ..declarations.documents import SavedOnMesh, document, fields_of, page_arrays_from_json, page_arrays_to_json
from ..declarations.partitions import AxisRules, axes_to_json, read_axes
from ..declarations.showing import ShownView
from ..layout.cache_dtypes import CODES, FLOATS, ScaledPages
from ..layout.cache_update import kv_cache_update
from ..layout.open_pages import OpenPages
from ..reading.arguments import array_of, index, instance, refusal
from .cache_metadata import RaggedPagesCacheMetaData
from .cache_parts import CachePart, CacheParts, require_pages
from .ragged_metadata import RaggedPagesMetadata
from .slot_quantizer import SlotQuantizer

__all__ = ["RaggedPagesCacheView"]

_KIND = "RaggedPagesCacheView"


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class RaggedPagesCacheView(ShownView, SavedOnMesh):
    """The pages of one layer. A view is immutable: writes return a new view; `init` makes the first.

    Attributes:
        metadata: the static description of the cache.
        layer_index: number of the layer.
        kv_pages: the pages, `[P, page, 2H, Dp]` (v2), `[P, page, groups, packing, Dp]` (v3), `[P, 2H, Dp, page]`
            (seq_on_lane), or `ScaledPages`.
        partition_manager: what decides how the pages are split over the mesh.
        mesh: the mesh of devices; None: one device. Only the checks of `init` depend on it.
    """

    metadata: RaggedPagesCacheMetaData
    layer_index: int
    kv_pages: Any
    partition_manager: Any = dataclasses.field(default_factory=AxisRules)
    mesh: Any = None

    @classmethod
    def init(
        cls,
        mesh: Any,
        metadata: RaggedPagesCacheMetaData,
        layer_index: int,
        partition_manager: Any,
        quantizer: Callable[..., Any] | None = None,
    ) -> Self:
        """The pages of a layer, all zero.

        Args:
            mesh: the mesh of devices; None: one device.
            metadata: the static description of the cache.
            layer_index: the number of the layer.
            partition_manager: what decides how the pages are split over the mesh.
            quantizer: a function such as `SlotQuantizer` from pages to the pages that are kept; None: they are kept
                as they are, with scales if ``metadata.slot_scales``.

        Raises:
            TypeError: an argument of a wrong type.
            IndexError: there is no such layer.
            ValueError: the mesh splits the cache otherwise than the metadata says (CACHE-5), the number of pages is
                not known, or the quantizer returns pages that do not fit the metadata (CACHE-1).
        """
        metadata = instance("metadata", metadata, RaggedPagesCacheMetaData)
        layer = index("layer_index", layer_index, metadata.num_hidden_layers)
        metadata.require_mesh(mesh, partition_manager)
        if quantizer is not None and not callable(quantizer):
            raise refusal(TypeError, "R1", f"quantizer={quantizer!r} must be callable")
        pages: Any = np.zeros(metadata.get_shape_and_axes()[0], metadata.kvdtype)
        if isinstance(quantizer, SlotQuantizer):
            pages = quantizer(pages, metadata.num_kv_heads, metadata.version)
        elif quantizer is not None:
            pages = quantizer(pages)
        elif metadata.slot_scales:
            pages = SlotQuantizer(metadata.kvdtype)(pages, metadata.num_kv_heads, metadata.version)
        require_pages(metadata, pages, "CACHE-1")
        return cls(metadata, layer, pages, partition_manager, mesh)

    # -- Writing ----------------------------------------------------------------------------------

    def concatenate_to_cache(
        self,
        key: Any,
        value: Any,
        cache_metadata: RaggedPagesMetadata,
        *,
        k_scale: float | None = None,
        v_scale: float | None = None,
    ) -> Self:
        """Writes the keys and values of a step, in any layout (CACHE-3).

        Args:
            key: `[T, H, D]`, or `[batch, seq, H, D]` with T = batch * seq.
            value: `[T, H, Dv]`, or `[batch, seq, H, Dv]`.
            cache_metadata: the step; tokens are written to its slots or slices, or if it has none, to the slots that
                the page table has for their positions.
            k_scale: factor of stored keys, by which new keys are divided when they are written; None: 1.
            v_scale: factor of stored values, by which new values are divided when they are written; None: 1.

        Returns:
            The view after the update.

        Raises:
            TypeError: an argument of a wrong type or dtype.
            ValueError: a wrong shape, or metadata of other pages (R1).
        """
        step = self._read_step(cache_metadata)
        keys = self._read_tokens("key", key, self.metadata.k_headdim)
        values = self._read_tokens("value", value, self.metadata.v_headdim)
        written = {}
        for part in self._parts:
            own = self._parts.step(step, part)
            tokens = self._parts.tokens(keys, part), self._parts.tokens(values, part)
            slots, count = own.slot_mapping, own.num_kv_update_slices
            if slots is None:
                slots, count = self._parts.slots(step, part, len(tokens[0])), None
            pages = self._parts.pages(self.kv_pages, part)
            written[part] = kv_cache_update(
                pages,
                *tokens,
                slots,
                num_slices=count,
                k_scale=k_scale,
                v_scale=v_scale,
                version=self.metadata.version,
            )
        return self.replace(kv_pages=self._parts.joined_pages(written))

    # -- Reading ----------------------------------------------------------------------------------

    def attend(
        self,
        queries: Any,
        cache_metadata: RaggedPagesMetadata,
        *,
        sinks: Any = None,
        validate: bool = False,
        **options: Any,
    ) -> Any:
        """Attention of a step's queries over these pages (ATT-1 to ATT-4).

        Args:
            queries: `[T, Hq, D]`.
            cache_metadata: the step.
            sinks: see `AttentionOptions`.
            validate: see `AttentionOptions`.
            options: further `AttentionOptions`.

        Returns:
            `[T, Hq, Dv]`, in the dtype of ``queries``.

        Raises:
            TypeError: an argument of a wrong type or dtype.
            ValueError: a wrong shape or option, or metadata of other pages (R1).
        """
        step = self._read_step(cache_metadata)
        queries = array_of("queries", queries, ("T", "Hq", self.metadata.k_headdim), FLOATS)
        out = {
            part: ragged_paged_attention(
                self._parts.tokens(queries, part),
                self._parts.pages(self.kv_pages, part),
                *self._parts.batch(step, part),
                num_kv_heads=self.metadata.shard_layout.num_kv_heads,
                v_head_dim=self.metadata.v_headdim,
                version=self.metadata.version,
                sinks=self._parts.sinks(sinks, part),
                validate=validate,
                **options,
            )
            for part in self._parts
        }
        return self._parts.joined(out, axis=1)

    def update_and_attend(
        self,
        queries: Any,
        key: Any,
        value: Any,
        cache_metadata: RaggedPagesMetadata,
        *,
        sinks: Any = None,
        validate: bool = False,
        **options: Any,
    ) -> tuple[Any, Self]:
        """Writes all tokens of the step into the slots that the page table has for them, then attends (ATT-5).

        Args:
            queries: `[T, Hq, D]`.
            key: see `concatenate_to_cache`.
            value: see `concatenate_to_cache`.
            cache_metadata: the step.
            sinks: see `attend`.
            validate: see `attend`.
            options: further `AttentionOptions`.

        Returns:
            `[T, Hq, Dv]`, and the view after the update.

        Raises:
            TypeError: an argument of a wrong type or dtype.
            ValueError: a wrong shape or option, or metadata of other pages (R1).
        """
        step = self._read_step(cache_metadata)
        queries = array_of("queries", queries, ("T", "Hq", self.metadata.k_headdim), FLOATS)
        keys = self._read_tokens("key", key, self.metadata.k_headdim)
        values = self._read_tokens("value", value, self.metadata.v_headdim)
        out, written = {}, {}
        for part in self._parts:
            out[part], written[part] = fused_ragged_paged_attention(
                self._parts.tokens(queries, part),
                self._parts.tokens(keys, part),
                self._parts.tokens(values, part),
                self._parts.pages(self.kv_pages, part),
                *self._parts.batch(step, part),
                version=self.metadata.version,
                sinks=self._parts.sinks(sinks, part),
                validate=validate,
                **options,
            )
        return self._parts.joined(out, axis=1), self.replace(kv_pages=self._parts.joined_pages(written))

    @property
    def key_pages(self) -> NDArray[Any]:
        """All keys, `[P, page, H, D]`, in the cache's dtype, or in f32 if the cache has scales (CACHE-2)."""
        return self._all_slots()[0]

    @property
    def value_pages(self) -> NDArray[Any]:
        """All values, `[P, page, H, Dv]`, in the cache's dtype, or in f32 if the cache has scales (CACHE-2)."""
        return self._all_slots()[1]

    def flattened_kv_pages(self) -> NDArray[Any]:
        """The stored numbers, padding included, `[P, page, C, Dp]`, in the cache's dtype."""
        values = self.kv_pages.values if isinstance(self.kv_pages, ScaledPages) else self.kv_pages
        slots = self.metadata.shard_layout.slots_first(np.asarray(values))
        rows = self.metadata.storage_num_combined_kv_heads
        return slots.reshape(*slots.shape[:2], rows, self.metadata.storage_head_dim)

    # -- Documents --------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """The view as a document; see `documents`. The mesh is not in it.

        Raises:
            TypeError: the partition manager is not `AxisRules`.
        """
        arrays = self.kv_pages if isinstance(self.kv_pages, ScaledPages) else (self.kv_pages,)
        return document(
            _KIND,
            {
                "metadata": self.metadata.to_dict(),
                "layer_index": self.layer_index,
                "kv_pages": page_arrays_to_json(*arrays),
                "partition_manager": axes_to_json(self.partition_manager),
            },
        )

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], mesh: Any = None) -> Self:
        """Reads a document; see `SavedOnMesh.from_dict`."""
        fields = fields_of(_KIND, data, ("metadata", "layer_index", "kv_pages", "partition_manager"))
        described: Any = fields["metadata"].value
        metadata = RaggedPagesCacheMetaData.from_dict(described)
        layer = index("layer_index", fields["layer_index"].value, metadata.num_hidden_layers)
        values, scales = page_arrays_from_json(fields["kv_pages"])
        pages = values.copy() if scales is None else ScaledPages(values.copy(), scales.copy())
        require_pages(metadata, pages, "SEC-3")
        rules = AxisRules(**read_axes(fields["partition_manager"]))
        return cls(metadata, layer, pages, rules, mesh)

    # -- Inside -----------------------------------------------------------------------------------

    @property
    def _parts(self) -> CacheParts:
        return CacheParts(self.metadata)

    def _all_slots(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """All keys and all values."""
        layout = self.metadata.shard_layout
        dtype = CODES["f32"] if self.metadata.slot_scales else self.metadata.kvdtype
        keys: dict[CachePart, NDArray[Any]] = {}
        values: dict[CachePart, NDArray[Any]] = {}
        for part in self._parts:
            own = self._parts.pages(self.kv_pages, part)
            pages = OpenPages(own, layout.head_dim, layout.v_head_dim, layout.num_kv_heads, None, 1, 1, layout.version)
            everywhere = np.divmod(np.arange(pages.num_pages * pages.page_size), pages.page_size)
            for found, read in zip((keys, values), pages.read(*everywhere), strict=True):
                found[part] = read.astype(dtype).reshape(pages.num_pages, pages.page_size, *read.shape[1:])
        return self._parts.joined(keys, axis=2), self._parts.joined(values, axis=2)

    def _read_step(self, cache_metadata: object) -> RaggedPagesMetadata:
        cache_metadata = instance("cache_metadata", cache_metadata, RaggedPagesMetadata)
        if cache_metadata.page_size != self.metadata.page_size:
            raise refusal(
                ValueError,
                "R1",
                f"cache_metadata.page_size={cache_metadata.page_size} must be {self.metadata.page_size}",
            )
        shards = self.metadata.num_page_shards
        if cache_metadata.num_seqs.shape not in ((shards,), cache_metadata.context_lens.shape):
            raise refusal(
                ValueError,
                "CACHE-5",
                f"cache_metadata.num_seqs.shape={cache_metadata.num_seqs.shape} must be ({shards},)",
            )
        return cache_metadata

    def _read_tokens(self, name: str, array: Any, head_dim: int) -> NDArray[Any]:
        four = getattr(array, "ndim", 0) == 4
        shape = ("batch", "seq") if four else ("T",)
        read = array_of(name, array, (*shape, self.metadata.num_kv_heads, head_dim), FLOATS)
        return read.reshape(-1, *read.shape[2:]) if four else read
