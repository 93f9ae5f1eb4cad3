"""MAN-13: the pages of a state layer (Mamba), which have a state each, in each of its arrays."""

import dataclasses
from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any, Self

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from kvproof.kernels import copy_pages, read_states, storage_dtype, write_states
from kvproof.kernels.storage import from_bits, to_bits
from kvproof.spec.declarations import MambaSpec
from kvproof.spec.declarations.partitions import PartitionManager
from kvproof.spec.declarations.state_arrays import read_state_arrays

from ..reading.arguments import listed, refusal
from .cache_programs import AnyArray, Placement, zeros
from .cache_view import platform_of
from .page_copies import PageIds, padded_rows
from .partitions import AxisRules, axis_spec, num_shards, partition_spec, read_mesh
from .view_arguments import require_kept

__all__ = ["StatePages"]


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["pages"],
    meta_fields=["dtypes", "num_page_shards", "mesh", "specs"],
)
@dataclasses.dataclass(frozen=True, eq=False)
class StatePages:
    """The state pages of one layer: a pytree whose arrays are the pages. Made by `init`.

    A value like a view: what writes returns another, in place; outside of traced code it donates the old one's
    pages, which can't be used afterwards.

    Attributes:
        pages: for each array of the state `[num_page_shards * P, *shape]`; on CPU bfloat16 is stored as bits, see
            `RaggedPagesCacheView`.
        dtypes: the dtype of each array.
        num_page_shards: data shards, each with pages and ids of its own (POOL-12).
        mesh: the devices; None: one device.
        specs: the partition of each array over the devices.
    """

    pages: tuple[jax.Array, ...]
    dtypes: tuple[np.dtype[Any], ...]
    num_page_shards: int
    mesh: Mesh | None
    specs: tuple[PartitionSpec, ...]

    @classmethod
    def init(
        cls,
        mesh: Mesh | None,
        spec: MambaSpec,
        num_pages: int,
        partition_manager: PartitionManager | None = None,
        *,
        head_axes: Sequence[int | None] | None = None,
    ) -> Self:
        """Allocates the state pages of a layer, all zero, each part on its device. O(pages).

        Args:
            mesh: the devices; None: one device.
            spec: the shapes of the state's arrays, and their dtypes: float32, bfloat16 or float16.
            num_pages: pages of each data shard, the null page counted.
            partition_manager: the split of pages and heads over mesh axes; None: `AxisRules`.
            head_axes: for each array the axis of its shape that runs over heads, which are split as KV heads are;
                None: no axis of any.

        Raises:
            TypeError: an argument is of the wrong type.
            IndexError: an array has no such axis.
            ValueError: fewer than 2 pages, or heads that can't be shared evenly (CACHE-5).
        """
        pages, arrays = read_state_arrays(spec, num_pages, head_axes)
        rules = AxisRules() if partition_manager is None else partition_manager
        devices = read_mesh(mesh)
        shards = num_shards(devices, rules, "pages", pages)
        parts = tuple(_part(devices, rules, (shards * pages, *array.shape), array.head_axis) for array in arrays)
        platform = platform_of(devices)
        made = tuple(
            zeros((shards * pages, *array.shape), storage_dtype(array.dtype, platform), devices, part)
            for array, part in zip(arrays, parts, strict=True)
        )
        return cls(made, tuple(array.dtype for array in arrays), shards, devices, parts)

    # -- Steps ------------------------------------------------------------------------------------

    def read(self, page_ids: AnyArray) -> tuple[jax.Array, ...]:
        """The states in pages (MAN-13). O(states).

        Args:
            page_ids: the page of each sequence, `i32[S]`; a negative one gives zeros. With several data shards
                those of the shards concatenated, `i32[shards * S]`.

        Returns:
            `[S, *shape]` for each array.
        """
        pages = require_kept(self.pages)
        read: tuple[jax.Array, ...] = _read(pages, self._ids(page_ids), self.dtypes, self._place, self.specs)
        return read

    def write(self, page_ids: AnyArray, states: Sequence[AnyArray]) -> Self:
        """Writes states into pages, in place, as the class says (MAN-13). O(states).

        Args:
            page_ids: the page of each sequence, `i32[S]`, none twice; a negative one writes nothing. With several
                data shards `i32[shards * S]`.
            states: `[S, *shape]` for each array, of its dtype.

        Raises:
            TypeError: an array is of another dtype.
            ValueError: one is of another shape, or there are not as many (R1).
        """
        given = listed("states", states)
        if len(given) != len(self.dtypes):
            raise refusal(ValueError, "R1", f"states has {len(given)} arrays, not {len(self.dtypes)}")
        for place, (state, dtype) in enumerate(zip(given, self.dtypes, strict=True)):
            if getattr(state, "dtype", None) != dtype:
                kind = getattr(state, "dtype", type(state).__name__)
                raise refusal(TypeError, "R1", f"states[{place}] must be an array of {dtype}, not {kind}")
        return self._with(_write(require_kept(self.pages), self._ids(page_ids), tuple(given), self._place, self.specs))

    def copy_pages(self, sources: PageIds, destinations: PageIds) -> Self:
        """Copies pages onto others, in place; arguments and errors as in `RaggedPagesCache.copy_pages` (MAN-13)."""
        froms, tos = padded_rows(self.num_page_shards, sources=sources, destinations=destinations)
        return self._with(_copy(require_kept(self.pages), froms, tos, self._place, self.specs))

    # -- Inside -----------------------------------------------------------------------------------

    def _ids(self, page_ids: Any) -> Any:
        """Page ids, validated before JAX silently converts int64 to int32."""
        if not isinstance(page_ids, jax.Array | np.ndarray) or page_ids.dtype != np.int32:
            kind = getattr(page_ids, "dtype", type(page_ids).__name__)
            raise refusal(TypeError, "R1", f"page_ids must be an array of int32, not {kind}")
        if page_ids.ndim != 1 or page_ids.shape[0] % self.num_page_shards:
            raise refusal(
                ValueError, "CACHE-5", f"page_ids.shape={page_ids.shape} must be of {self.num_page_shards} shards"
            )
        return page_ids

    def _with(self, pages: tuple[jax.Array, ...]) -> Self:
        return dataclasses.replace(self, pages=pages)

    @property
    def _place(self) -> Placement:
        return Placement(self.mesh, self.specs[0][0] if self.specs and self.specs[0] else None)


def _part(mesh: Mesh | None, rules: PartitionManager, shape: tuple[int, ...], head_axis: int | None) -> PartitionSpec:
    """The partition of pages of states."""
    names: list[str | None] = ["pages", *(None for _ in shape[1:])]
    if head_axis is not None:
        names[1 + head_axis] = "kv_heads"
    if mesh is None:
        return partition_spec()
    part = axis_spec(mesh, rules, names, shape)
    for size, entry in zip(shape, part, strict=True):
        parts = prod(mesh.shape[axis] for axis in ([entry] if isinstance(entry, str) else entry or ()))
        if size % parts:
            raise refusal(ValueError, "CACHE-5", f"head_axes: {size} heads can't be shared by {parts} devices")
    return part


_Arrays = tuple[jax.Array, ...]
_Dtypes = tuple[np.dtype[Any], ...]
_Specs = tuple[PartitionSpec, ...]


@partial(jax.jit, static_argnums=(2, 3, 4))
def _read(
    pages: _Arrays, page_ids: jax.Array, dtypes: tuple[np.dtype[Any], ...], place: Placement, specs: _Specs
) -> Any:
    def local(pages: _Arrays, page_ids: jax.Array) -> _Arrays:
        states = read_states(pages, page_ids)
        return tuple(from_bits(state, dtype) for state, dtype in zip(states, dtypes, strict=True))

    return place.run(local, (pages, page_ids), (specs, place.step), specs)


@partial(jax.jit, static_argnums=(3, 4), donate_argnums=0)
def _write(pages: _Arrays, page_ids: jax.Array, states: _Arrays, place: Placement, specs: _Specs) -> Any:
    def local(pages: _Arrays, page_ids: jax.Array, states: _Arrays) -> _Arrays:
        stored = tuple(to_bits(state, page.dtype) for state, page in zip(states, pages, strict=True))
        written: _Arrays = write_states(pages, page_ids, stored)
        return written

    return place.run(local, (pages, page_ids, states), (specs, place.step, specs), specs)


@partial(jax.jit, static_argnums=(3, 4), donate_argnums=0)
def _copy(pages: _Arrays, sources: jax.Array, destinations: jax.Array, place: Placement, specs: _Specs) -> Any:
    return place.run(copy_pages, (pages, sources, destinations), (specs, place.step, place.step), specs)
