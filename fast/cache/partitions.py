"""CACHE-5: how a mesh of devices splits the arrays of a cache, as `PartitionSpec`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from jax.sharding import Mesh, PartitionSpec

from kvproof.spec.declarations import partitions as declared
from kvproof.spec.declarations.partitions import MODE, DeviceMesh, PartitionManager, read_partitions

from ..reading.arguments import refusal

__all__ = ["AxisRules", "axis_spec", "num_shards", "partition_spec", "read_mesh"]

partition_spec: Callable[..., PartitionSpec] = PartitionSpec
"""`PartitionSpec`, whose constructor JAX does not annotate."""


@dataclass(frozen=True)
class AxisRules(declared.AxisRules):
    """The rules of the declarations, which describe the attributes; they answer with a `PartitionSpec`."""

    def resolve(self, axes: Sequence[str | None], mode: str, shape: Sequence[int]) -> PartitionSpec:
        """The mesh axes over which an array is split; see `PartitionManager`."""
        return partition_spec(*super().resolve(axes, mode, shape))


def axis_spec(
    mesh: DeviceMesh, partition_manager: PartitionManager, axes: Sequence[str | None], shape: Sequence[int]
) -> PartitionSpec:
    """The manager's partition of an array, without the axes that the mesh lacks. O(axes)."""
    entries = [(entry,) if isinstance(entry, str) else entry for entry in partition_manager.resolve(axes, MODE, shape)]
    there = [tuple(axis for axis in entry or () if axis in mesh.shape) for entry in entries]
    return partition_spec(*(entry[0] if len(entry) == 1 else entry or None for entry in there))


def num_shards(mesh: DeviceMesh | None, partition_manager: PartitionManager, axis: str, size: int) -> int:
    """The number of parts into which a mesh splits an axis of a cache; axes that it lacks split nothing. O(1).

    Args:
        mesh: the mesh; None: one device.
        partition_manager: the partition manager.
        axis: ``"pages"`` or ``"kv_heads"``.
        size: the axis' length.

    Raises:
        TypeError: an argument is not a mesh, or not a partition manager (R1).
    """
    read_partitions(mesh, partition_manager)
    if mesh is None:
        return 1
    spec = axis_spec(mesh, partition_manager, [axis], [size])
    entry = spec[0] if len(spec) else None
    return prod(mesh.shape[name] for name in ((entry,) if isinstance(entry, str) else entry or ()))


def read_mesh(mesh: object) -> Mesh | None:
    """Reads the mesh on which arrays are to lie (R1).

    Raises:
        TypeError: it is neither a `jax.sharding.Mesh` nor None.
    """
    if mesh is not None and not isinstance(mesh, Mesh):
        raise refusal(TypeError, "R1", f"mesh={mesh!r} must be a jax.sharding.Mesh or None")
    return mesh
