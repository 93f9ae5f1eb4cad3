"""The pages of one layer on the device, and the operations of a step on them."""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Self

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from kvproof.kernels import storage_dtype
from kvproof.spec.declarations.documents import SavedOnMesh, document, fields_of
from kvproof.spec.declarations.partitions import PartitionManager, axes_to_json, read_axes
from kvproof.spec.declarations.showing import ShownView

from ..reading.arguments import flag, index, instance, refusal
from . import cache_programs as programs
from .cache_metadata import RaggedPagesCacheMetaData
from .cache_programs import AnyArray, Placement
from .host_arrays import pages_of, pages_to_json
from .partitions import AxisRules, read_mesh
from .ragged_metadata import RaggedPagesMetadata
from .slot_quantizer import SlotQuantizer
from .view_arguments import (
    read_queries,
    read_rows,
    read_sinks,
    require_kept,
    require_pages,
    require_step,
    static_options,
    validate_step,
)

__all__ = ["RaggedPagesCacheView", "platform_of"]


def platform_of(mesh: Mesh | None) -> str:
    """JAX's name of the platform of a mesh; of the default device where there is no mesh. O(1)."""
    if mesh is not None:
        return str(mesh.devices.flat[0].platform)
    with jax.ensure_compile_time_eval():  # the default device is where an array goes; inside traced code, too
        (device,) = jnp.zeros(()).devices()
    return str(device.platform)


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["kv_pages"],
    meta_fields=["metadata", "layer_index", "partition_manager", "mesh"],
)
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class RaggedPagesCacheView(ShownView, SavedOnMesh):
    """The pages of one layer: a pytree whose arrays are the pages, all else being static. Made by `init`.

    A view is a value: what writes returns another. The memory is written in place all the same: outside of traced
    code a call that writes donates the old view's pages, and the old view can't be used afterwards. Under `jax.jit`
    pass the view (or the whole cache) as a donated argument to have that.

    Attributes:
        metadata: the metadata of the cache.
        layer_index: the index of the layer.
        kv_pages: the pages as the device stores them: `[P, page, 2H, Dp]` (v2), `[P, page, groups, packing, Dp]`
            (v3), `[P, 2H, Dp, page]` (seq_on_lane), or `ScaledPages` of such. On CPU bfloat16 and float8 are stored as
            unsigned bits, since XLA rewrites a whole array of those to change one slot.
        partition_manager: the partition manager that splits the pages over mesh axes; hashable.
        mesh: the devices; None: one device.
    """

    metadata: RaggedPagesCacheMetaData
    layer_index: int
    kv_pages: Any
    partition_manager: PartitionManager = dataclasses.field(default_factory=AxisRules)
    mesh: Mesh | None = None

    @classmethod
    def init(
        cls,
        mesh: Mesh | None,
        metadata: RaggedPagesCacheMetaData,
        layer_index: int,
        partition_manager: PartitionManager,
        quantizer: Callable[[Any], Any] | None = None,
    ) -> Self:
        """Allocates the pages of a layer, all zero, each part on its device. O(cache).

        Args:
            mesh: the devices; None: one device.
            metadata: the metadata of the cache.
            layer_index: the index of the layer.
            partition_manager: the split of the pages over mesh axes.
            quantizer: called with the pages, it returns what is kept in their place, as `SlotQuantizer` does; None:
                the pages, with scales if ``metadata.slot_scales`` says so.

        Raises:
            TypeError: an argument is of the wrong type.
            IndexError: there is no such layer.
            ValueError: the mesh does not split the cache as the metadata says (CACHE-5), the number of pages is not
                known, or what the quantizer returns are no such pages (CACHE-1).
        """
        metadata = instance("metadata", metadata, RaggedPagesCacheMetaData)
        layer = index("layer_index", layer_index, metadata.num_hidden_layers)
        metadata.require_mesh(read_mesh(mesh), partition_manager)
        shape, _ = metadata.get_shape_and_axes()
        place = programs.place_of(mesh, metadata, partition_manager)
        if quantizer is not None and not callable(quantizer):
            raise refusal(TypeError, "R1", f"quantizer={quantizer!r} must be callable or None")
        stored = storage_dtype(metadata.kvdtype, platform_of(mesh))
        pages: Any = programs.zeros(shape, stored, mesh, place.parts)
        if quantizer is None and metadata.slot_scales:
            quantizer = SlotQuantizer(metadata.kvdtype)
        if isinstance(quantizer, SlotQuantizer):
            pages = quantizer(pages, metadata.num_kv_heads, metadata.version)
        elif quantizer is not None:
            pages = quantizer(pages)
        require_pages(pages, metadata, "CACHE-1")
        return cls(metadata, layer, programs.placed(pages, place), partition_manager, mesh)

    # -- Steps ------------------------------------------------------------------------------------

    def concatenate_to_cache(
        self,
        key: AnyArray,
        value: AnyArray,
        cache_metadata: RaggedPagesMetadata,
        *,
        k_scale: float | None = None,
        v_scale: float | None = None,
    ) -> Self:
        """Writes the keys and values of a step (CACHE-3): in place, as the class says. O(tokens).

        Args:
            key: `[batch, seq, H, D]`, or `[T, H, D]`: f32, bf16 or f16.
            value: the same with Dv.
            cache_metadata: the step, whose ``slot_mapping`` has their slots; if it is None the table's positions do.
            k_scale: the divisor of keys before they are stored; None: 1.
            v_scale: the same for values.

        Returns:
            The view with the keys and values written.

        Raises:
            TypeError: an argument is of the wrong type or dtype.
            ValueError: one is of a shape that does not fit (R1). The view is as it was.
        """
        require_step(cache_metadata, self.metadata)
        scales = static_options({"k_scale": k_scale, "v_scale": v_scale})
        written = programs.update(
            require_kept(self.kv_pages),
            read_rows("key", key, self.metadata, self.metadata.k_headdim),
            read_rows("value", value, self.metadata, self.metadata.v_headdim),
            cache_metadata,
            metadata=self.metadata,
            place=self.place,
            options=scales,
        )
        return self.replace(kv_pages=written)

    def attend(
        self,
        queries: AnyArray,
        cache_metadata: RaggedPagesMetadata,
        *,
        sinks: AnyArray | None = None,
        validate: bool = False,
        **options: Any,
    ) -> jax.Array:
        """Attention of a step's queries (ATT-1). O(queries and the keys that they read).

        Args:
            queries: `[T, Hq, D]`.
            cache_metadata: the step.
            sinks: one more logit a head, `f32[Hq]`; None: none.
            validate: True to check the values of the step's arrays, which must be concrete then.
            options: those of `ragged_paged_attention` that are static: ``scale``, ``causal``, ``window``, ``chunk``,
                ``soft_cap``, ``q_scale``, ``k_scale``, ``v_scale``, ``decode_block``, ``prefill_block``.

        Returns:
            `[T, Hq, Dv]` in the queries' dtype; rows of no sequence are zeros.

        Raises:
            TypeError: an argument is of the wrong type or dtype, or there is no such option.
            ValueError: one is of a shape that does not fit, or out of its bounds; with ``validate``, lengths that do
                not agree (R1).
            IndexError: with ``validate``, the table names a page that does not exist.
        """
        require_step(cache_metadata, self.metadata)
        call = partial(
            programs.attend,
            read_queries(queries, self.metadata),
            require_kept(self.kv_pages),
            read_sinks(sinks, queries),
            cache_metadata,
            metadata=self.metadata,
            place=self.place,
            options=static_options(options),
        )
        if flag("validate", validate):
            validate_step(call, cache_metadata, self.metadata, queries, writes=False)
        out: jax.Array = call()
        return out

    def update_and_attend(
        self,
        queries: AnyArray,
        key: AnyArray,
        value: AnyArray,
        cache_metadata: RaggedPagesMetadata,
        *,
        sinks: AnyArray | None = None,
        validate: bool = False,
        **options: Any,
    ) -> tuple[jax.Array, Self]:
        """Writes all of a step's tokens, then attends (ATT-5): in place, as the class says.

        Tokens go where the table has their positions; ``slot_mapping`` is not looked at. Arguments are those of
        `concatenate_to_cache` and `attend`, and so are errors; after an error the view is as it was.

        Returns:
            `[T, Hq, Dv]`, and the view with the tokens written.
        """
        require_step(cache_metadata, self.metadata)
        call = partial(
            programs.update_and_attend,
            read_queries(queries, self.metadata),
            read_rows("key", key, self.metadata, self.metadata.k_headdim),
            read_rows("value", value, self.metadata, self.metadata.v_headdim),
            require_kept(self.kv_pages),
            read_sinks(sinks, queries),
            cache_metadata,
            metadata=self.metadata,
            place=self.place,
            options=static_options(options),
        )
        if flag("validate", validate):
            validate_step(call, cache_metadata, self.metadata, queries, writes=True)
        out, written = call()
        return out, self.replace(kv_pages=written)

    # -- Reading back -----------------------------------------------------------------------------

    @property
    def key_pages(self) -> jax.Array:
        """The keys of all pages, `[P, page, H, D]`: in the cache's dtype, or f32 if scaled (CACHE-2). O(cache)."""
        return self._heads("keys")

    @property
    def value_pages(self) -> jax.Array:
        """The values of all pages, `[P, page, H, Dv]`: in the cache's dtype, or f32 if scaled (CACHE-2). O(cache)."""
        return self._heads("values")

    def flattened_kv_pages(self) -> jax.Array:
        """The numbers of all pages as stored, padding and all, in the cache's dtype: `[P, page, C, Dp]`. O(cache)."""
        rows: jax.Array = programs.combined_rows(require_kept(self.kv_pages), metadata=self.metadata, place=self.place)
        return rows

    # -- Documents --------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """The view as a JSON document; see `documents`. Waits for the device. O(cache).

        On a mesh of several processes all of them are to make this call, and each gets the whole document.

        Raises:
            TypeError: the partition manager is not `AxisRules`.
        """
        fields = {
            "metadata": self.metadata.to_dict(),
            "layer_index": self.layer_index,
            "kv_pages": pages_to_json(require_kept(self.kv_pages), self.metadata.kvdtype),
            "partition_manager": axes_to_json(self.partition_manager),
        }
        return document("RaggedPagesCacheView", fields)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], mesh: Mesh | None = None) -> Self:
        """Reads a document; see `SavedOnMesh.from_dict`. O(cache)."""
        fields = fields_of("RaggedPagesCacheView", data, ("metadata", "layer_index", "kv_pages", "partition_manager"))
        described: Any = fields["metadata"].value
        metadata = RaggedPagesCacheMetaData.from_dict(described)
        layer = index("layer_index", fields["layer_index"].value, metadata.num_hidden_layers)
        rules = AxisRules(**read_axes(fields["partition_manager"]))
        metadata.require_mesh(read_mesh(mesh), rules)
        stored = storage_dtype(metadata.kvdtype, platform_of(mesh))
        pages = pages_of(fields["kv_pages"], metadata.kvdtype, stored)
        require_pages(pages, metadata, "SEC-3")
        place = programs.place_of(mesh, metadata, rules)
        return cls(metadata, layer, programs.placed(jax.tree.map(jnp.array, pages), place), rules, mesh)

    # -- Inside -----------------------------------------------------------------------------------

    @property
    def place(self) -> Placement:
        """The placement of the pages, for `cache_programs`. O(1)."""
        return programs.place_of(self.mesh, self.metadata, self.partition_manager)

    def _heads(self, part: str) -> jax.Array:
        pages = require_kept(self.kv_pages)
        read: jax.Array = programs.heads(pages, metadata=self.metadata, place=self.place, part=part)
        return read
