"""The device programs of a view: the kernels' calls, compiled, over a mesh where there is one (CACHE-5).

A program is compiled for the cache's metadata, its place and the options, never for a layer. The cache that a
program writes is donated: it is written in place, and the arrays passed are invalid afterwards. Inside another traced
program donation has no effect; the outer program decides it.

On a mesh each device calls the kernels on its own part: its KV heads and the query heads that read them, its pool of
pages, its part of the step's arrays. No device reads data of another.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray

from kvproof.kernels import (
    ScaledPages,
    copy_pages,
    export_pages,
    fused_ragged_paged_attention,
    kv_cache_update,
    ragged_paged_attention,
    unpack_keys,
    unpack_values,
    write_states,
)
from kvproof.kernels.ragged import ragged, slots_of_tokens
from kvproof.kernels.storage import from_bits
from kvproof.spec.declarations.partitions import PartitionManager

from .cache_metadata import RaggedPagesCacheMetaData
from .partitions import axis_spec, partition_spec
from .ragged_metadata import RaggedPagesMetadata

__all__ = [
    "AnyArray",
    "Options",
    "Pages",
    "Placement",
    "attend",
    "combined_rows",
    "copied",
    "exported",
    "heads",
    "imported",
    "place_of",
    "placed",
    "update",
    "update_and_attend",
    "zeros",
]

AnyArray = jax.Array | NDArray[Any]
"""An array of JAX's or of numpy's."""

Pages = jax.Array | ScaledPages

Options = tuple[tuple[str, type, Any], ...]
"""Static options of a call, by name; with each value's type, as 1, 1.0 and True are equal and mean different things."""

_MOVE: dict[AxisType, Callable[[Any, NamedSharding], Any]] = {
    AxisType.Auto: jax.lax.with_sharding_constraint,
    AxisType.Explicit: jax.sharding.reshard,
}


@dataclass(frozen=True)
class Placement:
    """How a cache is split over devices. Hashable.

    Attributes:
        mesh: the devices; None: one device.
        data: the mesh axes over which pages are split; None: none.
        heads: the mesh axes over which KV heads are split; None: none.
        head_axis: which axis of pages, and of their scales, runs over KV heads.
    """

    mesh: Mesh | None = None
    data: Any = None
    heads: Any = None
    head_axis: int = 2

    @property
    def parts(self) -> PartitionSpec:
        """The partition of pages, and of their scales."""
        return partition_spec(self.data, *(None for _ in range(1, self.head_axis)), self.heads)

    @property
    def slots(self) -> PartitionSpec:
        """The partition of what pages hold, `[P, page, heads, ...]`, in any layout."""
        return partition_spec(self.data, None, self.heads)

    def pages(self, kv_pages: Any) -> Any:
        """The partition of each array of a pytree of pages."""
        return jax.tree.map(lambda _: self.parts, kv_pages)

    @property
    def tokens(self) -> PartitionSpec:
        """The partition of `[T, heads, D]`."""
        return partition_spec(self.data, self.heads)

    @property
    def step(self) -> PartitionSpec:
        """The partition of a step's arrays, which are concatenated over the data shards."""
        return partition_spec(self.data)

    def run(self, function: Callable[..., Any], arguments: tuple[Any, ...], ins: tuple[Any, ...], outs: Any) -> Any:
        """Calls a function on each device's parts of the arguments.

        Args:
            function: the function to call.
            arguments: pytrees of arrays.
            ins: the partition of each argument: one, or a pytree of them.
            outs: the partition of what it returns.
        """
        if self.mesh is None or (self.mesh.size == 1 and AxisType.Explicit not in self.mesh.axis_types):
            return function(*arguments)
        # Also over one device whose axes are explicit: outside of a map each operation would have to name its sharding.
        placed = tuple(self.placed(argument, spec) for argument, spec in zip(arguments, ins, strict=True))
        # No collective runs inside, so there is nothing for the check of replication to find; kernels don't take part.
        mapped = jax.shard_map(function, mesh=self.mesh, in_specs=ins, out_specs=outs, check_vma=False)
        return mapped(*placed)

    def placed(self, tree: Any, specs: Any) -> Any:
        """A pytree of arrays in a partition of the mesh, which there is."""
        mesh = self.mesh
        assert mesh is not None
        move = _MOVE[AxisType.Explicit if AxisType.Explicit in mesh.axis_types else AxisType.Auto]

        def moved(spec: PartitionSpec, part: Any) -> Any:
            return jax.tree.map(lambda array: move(jnp.asarray(array), NamedSharding(mesh, spec)), part)

        return jax.tree.map(moved, specs, tree, is_leaf=lambda spec: isinstance(spec, PartitionSpec))


def place_of(mesh: Mesh | None, metadata: RaggedPagesCacheMetaData, partition_manager: PartitionManager) -> Placement:
    """The placement of a cache on a mesh. O(1)."""
    if mesh is None:
        return Placement()
    shape, axes = metadata.get_shape_and_axes()
    spec, head_axis = axis_spec(mesh, partition_manager, axes, shape), axes.index("kv_heads")
    return Placement(mesh, spec[0], spec[head_axis], head_axis)


# -- Making and copying ---------------------------------------------------------------------------


def zeros(shape: tuple[int, ...], dtype: Any, mesh: Mesh | None, spec: PartitionSpec) -> jax.Array:
    """Zeros, made where they are to lie. O(size).

    Args:
        shape: the array's.
        dtype: the array's.
        mesh: the devices; None: one device.
        spec: the partition of the array over the devices.
    """
    return _maker(shape, dtype, None if mesh is None else NamedSharding(mesh, spec))()


@lru_cache
def _maker(shape: tuple[int, ...], dtype: Any, sharding: NamedSharding | None) -> Callable[[], jax.Array]:
    """The program that makes the pages of a layer: the same one for all layers."""
    return jax.jit(partial(jnp.zeros, shape, dtype), out_shardings=sharding)


def placed(pages: Any, place: Placement) -> Any:
    """A layer's pages where the mesh wants them; those that lie there stay. O(what is moved)."""
    if place.mesh is None:
        return pages
    sharding = NamedSharding(place.mesh, place.parts)
    return jax.tree.map(lambda array: jax.device_put(array, sharding), pages)


@partial(jax.jit, static_argnums=(2, 3), donate_argnums=0)
def copied(pages: Any, orders: tuple[jax.Array, ...], place: Placement, version: str) -> Any:
    """Pages copied onto others, in each array of a pytree (MAN-13, MAN-17). O(pages copied).

    Args:
        pages: a pytree of arrays `[P, ...]`, donated.
        orders: sources and destinations, `i32[n]`, the ids of the data shards concatenated; each shard has ids of its
            own. And the number of slots of each, `i32[n]`, where it is not all of them.
        place: the placement of the pages.
        version: the name of their layout.
    """
    parts, copy = place.pages(pages), partial(copy_pages, version=version)
    return place.run(copy, (pages, *orders), (parts, *(place.step for _ in orders)), parts)


@partial(jax.jit, static_argnums=(3, 4))
def exported(pages: Any, page_ids: jax.Array, num_slots: jax.Array, place: Placement, version: str) -> Any:
    """Pages on their way off the devices, dead slots zeroed (SWAP-2); arguments as in `copied`. O(pages exported).

    ``page_ids`` are as the sources there, and ``num_slots``, `i32[n]`, is the number of leading slots in use of each
    page.
    """
    parts, export = place.pages(pages), partial(export_pages, version=version)
    return place.run(export, (pages, page_ids, num_slots), (parts, place.step, place.step), parts)


@partial(jax.jit, static_argnums=3, donate_argnums=0)
def imported(pages: Any, page_ids: jax.Array, block: Any, place: Placement) -> Any:
    """Pages replaced by those of a block (SWAP-2); arguments as in `exported`. O(pages imported).

    ``block`` is a pytree like ``pages``, of arrays `[n, ...]`.
    """
    parts = place.pages(pages)
    return place.run(write_states, (pages, page_ids, block), (parts, place.step, parts), parts)


# -- Steps ----------------------------------------------------------------------------------------


def _named(options: Options) -> dict[str, Any]:
    return {name: value for name, _, value in options}


def _slots(step: RaggedPagesMetadata, num_tokens: int, metadata: RaggedPagesCacheMetaData) -> jax.Array:
    """The slots of a step's tokens, computed from the table and the lengths (TAB-7)."""
    room = step.pages_tables.shape[1] * metadata.page_size
    with jax.enable_x64(False):  # 32-bit arithmetic, even if 64-bit types are enabled elsewhere
        batch = ragged(step.context_lens, step.query_start_loc, step.num_seqs, num_tokens, room)
        return slots_of_tokens(batch, step.pages_tables, num_tokens, metadata.num_pages, metadata.page_size)


@partial(jax.jit, static_argnames=("metadata", "place", "options"), donate_argnames="kv_pages")
def update(
    kv_pages: Pages,
    keys: jax.Array,  # [T, H, D]
    values: jax.Array,  # [T, H, Dv]
    step: RaggedPagesMetadata,
    *,
    metadata: RaggedPagesCacheMetaData,
    place: Placement,
    options: Options,
) -> Pages:
    """Writes a step's keys and values (CACHE-3). O(T)."""

    def local(kv_pages: Pages, keys: jax.Array, values: jax.Array, step: RaggedPagesMetadata) -> Pages:
        slots = step.slot_mapping
        if slots is None:
            slots = _slots(step, keys.shape[0], metadata)
        written: Pages = kv_cache_update(
            kv_pages,
            keys,
            values,
            slots,
            num_slices=step.num_kv_update_slices,
            kv_dtype=metadata.kvdtype,
            version=metadata.version,
            **_named(options),
        )
        return written

    parts = place.pages(kv_pages)
    ins = (parts, place.tokens, place.tokens, place.step)
    written: Pages = place.run(local, (kv_pages, keys, values, step), ins, parts)
    return written


@partial(jax.jit, static_argnames=("metadata", "place", "options"))
def attend(
    queries: jax.Array,  # [T, Hq, D]
    kv_pages: Pages,
    sinks: jax.Array | None,  # f32[Hq]
    step: RaggedPagesMetadata,
    *,
    metadata: RaggedPagesCacheMetaData,
    place: Placement,
    options: Options,
) -> jax.Array:
    """Attention of a step's queries (ATT-1): `[T, Hq, Dv]`. O(queries and the keys they read)."""

    def local(queries: jax.Array, kv_pages: Pages, sinks: jax.Array | None, step: RaggedPagesMetadata) -> jax.Array:
        out: jax.Array = ragged_paged_attention(
            queries, kv_pages, sinks=sinks, **_batch(step), **_shapes(metadata), **_named(options)
        )
        return out

    ins = (place.tokens, place.pages(kv_pages), partition_spec(place.heads), place.step)
    out: jax.Array = place.run(local, (queries, kv_pages, sinks, step), ins, place.tokens)
    return out


@partial(jax.jit, static_argnames=("metadata", "place", "options"), donate_argnames="kv_pages")
def update_and_attend(
    queries: jax.Array,  # [T, Hq, D]
    keys: jax.Array,  # [T, H, D]
    values: jax.Array,  # [T, H, Dv]
    kv_pages: Pages,
    sinks: jax.Array | None,  # f32[Hq]
    step: RaggedPagesMetadata,
    *,
    metadata: RaggedPagesCacheMetaData,
    place: Placement,
    options: Options,
) -> tuple[jax.Array, Pages]:
    """Writes all of a step's tokens where the table has them, then attends (ATT-5)."""

    def local(
        queries: jax.Array,
        keys: jax.Array,
        values: jax.Array,
        kv_pages: Pages,
        sinks: jax.Array | None,
        step: RaggedPagesMetadata,
    ) -> tuple[jax.Array, Pages]:
        out, written = fused_ragged_paged_attention(
            queries, keys, values, kv_pages, sinks=sinks, **_batch(step), **_shapes(metadata), **_named(options)
        )
        return out, written

    parts = place.pages(kv_pages)
    ins = (place.tokens, place.tokens, place.tokens, parts, partition_spec(place.heads), place.step)
    outs = (place.tokens, parts)
    done: tuple[jax.Array, Pages] = place.run(local, (queries, keys, values, kv_pages, sinks, step), ins, outs)
    return done


def _batch(step: RaggedPagesMetadata) -> dict[str, Any]:
    return {
        "kv_lens": step.context_lens,
        "page_table": step.pages_tables,
        "cu_q_lens": step.query_start_loc,
        "num_seqs": step.num_seqs,
    }


def _shapes(metadata: RaggedPagesCacheMetaData) -> dict[str, Any]:
    layout = metadata.shard_layout
    return {
        "num_kv_heads": layout.num_kv_heads,
        "v_head_dim": layout.v_head_dim,
        "kv_dtype": metadata.kvdtype,
        "version": metadata.version,
    }


# -- Reading back ---------------------------------------------------------------------------------


@partial(jax.jit, static_argnames=("metadata", "place", "part"))
def heads(kv_pages: Pages, *, metadata: RaggedPagesCacheMetaData, place: Placement, part: str) -> jax.Array:
    """The keys or values of all pages (CACHE-2): `[P, page, H, D]` or `[P, page, H, Dv]`. O(cache).

    Args:
        kv_pages: the pages.
        metadata: the cache's.
        place: the placement of the pages.
        part: ``"keys"`` or ``"values"``.
    """
    layout = metadata.shard_layout
    unpack, first = (unpack_keys, 0) if part == "keys" else (unpack_values, 1)

    def local(kv_pages: Pages) -> jax.Array:
        values = kv_pages.values if isinstance(kv_pages, ScaledPages) else kv_pages
        numbers = from_bits(unpack(layout.slots_first(values), layout), metadata.kvdtype)
        if not isinstance(kv_pages, ScaledPages):
            return numbers
        return numbers.astype(jnp.float32) * layout.slots_first(kv_pages.scales)[..., first::2, None]

    parts = place.pages(kv_pages)
    read: jax.Array = place.run(local, (kv_pages,), (parts,), place.slots)
    return read


@partial(jax.jit, static_argnames=("metadata", "place"))
def combined_rows(kv_pages: Pages, *, metadata: RaggedPagesCacheMetaData, place: Placement) -> jax.Array:
    """The stored numbers of all pages without groups: `[P, page, C, Dp]`, in the cache's dtype. O(cache)."""
    layout = metadata.shard_layout

    def local(kv_pages: Pages) -> jax.Array:
        stored = layout.slots_first(kv_pages.values if isinstance(kv_pages, ScaledPages) else kv_pages)
        rows = stored.reshape(*stored.shape[:2], layout.combined_rows, layout.storage_head_dim)
        return from_bits(rows, metadata.kvdtype)

    parts = place.pages(kv_pages)
    read: jax.Array = place.run(local, (kv_pages,), (parts,), place.slots)
    return read
