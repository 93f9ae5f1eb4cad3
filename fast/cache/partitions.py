"""CACHE-5: which axis of a device mesh splits which axis of a cache.

A cache is split in two ways: KV heads over the devices of one mesh axis (tensor parallelism), and pages into pools
of their own, a pool for each data shard (POOL-12). What says so is a partition manager; ours is `AxisRules`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol

from jax.sharding import Mesh, PartitionSpec

from ..reading.arguments import refusal

__all__ = [
    "MODE",
    "AxisRules",
    "DeviceMesh",
    "PartitionManager",
    "axis_spec",
    "num_shards",
    "partition_spec",
    "read_mesh",
]

partition_spec: Callable[..., PartitionSpec] = PartitionSpec
"""`PartitionSpec`, whose constructor JAX does not annotate."""

MODE = "decode"
"""The mode for which partition managers are asked: a cache lies the same way in all of them."""


class DeviceMesh(Protocol):
    """The part of a mesh that sizes are computed from: a `jax.sharding.Mesh`, or any object with its ``shape``."""

    @property
    def shape(self) -> Mapping[str, int]:
        """Devices along each axis, by the axis' name."""


class PartitionManager(Protocol):
    """Says how the axes of an array are split."""

    def resolve(self, axes: Sequence[str | None], mode: str, shape: Sequence[int]) -> PartitionSpec:
        """The mesh axes over which an array is split.

        Args:
            axes: the meaning of each axis of the array: ``"pages"``, ``"kv_heads"``, or None for one that stays whole.
            mode: the purpose of the array; the cache asks for ``"decode"`` only.
            shape: the array's shape.

        Returns:
            A mesh axis, several, or None for each axis of the array; those that the mesh lacks split nothing.
        """


@dataclass(frozen=True)
class AxisRules:
    """A partition manager by name: one mesh axis for pages, one for KV heads.

    Attributes:
        pages: the mesh axis whose devices have pools of their own; None: no axis.
        kv_heads: the mesh axis whose devices share the KV heads; None: no axis.
    """

    pages: str | None = "dp"
    kv_heads: str | None = "tp"

    def resolve(self, axes: Sequence[str | None], mode: str, shape: Sequence[int]) -> PartitionSpec:  # noqa: ARG002 - the same for every mode and shape
        """The mesh axes over which an array is split; see `PartitionManager`."""
        return partition_spec(*({"pages": self.pages, "kv_heads": self.kv_heads}.get(axis or "") for axis in axes))


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
    if not callable(getattr(partition_manager, "resolve", None)):
        raise refusal(TypeError, "R1", f"partition_manager={partition_manager!r} must have resolve(axes, mode, shape)")
    if mesh is None:
        return 1
    if not isinstance(getattr(mesh, "shape", None), Mapping):
        raise refusal(TypeError, "R1", f"mesh={mesh!r} must have a shape: devices by the name of each axis")
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
