"""CACHE-5: how a cache is split over a mesh of devices: KV heads over one axis, pages over another.

A mesh is anything with ``shape``, the number of devices along each axis by its name; None is one device. The
specification has no devices: an array here is the joined content of all devices, split or not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

from ..reading.arguments import refusal

__all__ = ["AxisRules", "PartitionManager", "num_shards"]


class PartitionManager(Protocol):
    """Decides over which axes of a mesh the axes of an array are split."""

    def resolve(self, axes: Sequence[str | None], mode: str, shape: Sequence[int]) -> Sequence[Any]:
        """The mesh axes over which an array's axes are split.

        Args:
            axes: the meaning of each axis of the array: ``pages``, ``kv_heads``, or None for any other.
            mode: the use of the array; a cache passes ``decode``.
            shape: the array's shape.

        Returns:
            For each axis a mesh axis, several mesh axes, or None for an axis that is not split.
        """
        ...


@dataclass(frozen=True)
class AxisRules:
    """The partition manager that names one mesh axis for pages and one for KV heads.

    Attributes:
        pages: the mesh axis over which pages are split (data parallelism, POOL-12); None: no axis.
        kv_heads: the mesh axis over which KV heads are split (tensor parallelism); None: no axis.
    """

    pages: str | None = "dp"
    kv_heads: str | None = "tp"

    def resolve(self, axes: Sequence[str | None], mode: str, shape: Sequence[int]) -> Sequence[Any]:  # noqa: ARG002 - see PartitionManager
        """The mesh axes of an array's axes; see `PartitionManager`."""
        rules = {None: None, "pages": self.pages, "kv_heads": self.kv_heads}
        return tuple(rules.get(axis) for axis in axes)


def num_shards(mesh: Any, partition_manager: Any, axis: str, size: int) -> int:
    """The number of parts into which a mesh splits an axis of a cache; axes that the mesh does not have are ignored.

    Args:
        mesh: the mesh, or None.
        partition_manager: what decides how axes are split, see `PartitionManager`.
        axis: ``pages`` or ``kv_heads``.
        size: the axis' length.

    Raises:
        TypeError: ``mesh`` is no mesh, or ``partition_manager`` is none (R1).
    """
    if not hasattr(partition_manager, "resolve"):
        raise refusal(TypeError, "R1", f"partition_manager={partition_manager!r} must have resolve(axes, mode, shape)")
    if mesh is None:
        return 1
    devices = getattr(mesh, "shape", None)
    if not isinstance(devices, Mapping):
        raise refusal(TypeError, "R1", f"mesh={mesh!r} must have a shape: devices by the name of each axis")
    entries = list(partition_manager.resolve([axis], "decode", [size]))
    entry = entries[0] if entries else None
    names = [entry] if isinstance(entry, str) else list(entry or ())
    return prod(int(devices[name]) for name in names if name in devices)
