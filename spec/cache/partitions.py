"""CACHE-5: into how many parts a mesh of devices splits an axis of a cache.

The specification has no devices: an array here is the joined content of all devices, split or not.
"""

from math import prod
from typing import Any

from ..declarations.partitions import MODE, read_partitions

__all__ = ["num_shards"]


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
    devices = read_partitions(mesh, partition_manager)
    if not devices:
        return 1
    entries = list(partition_manager.resolve([axis], MODE, [size]))
    entry = entries[0] if entries else None
    names = [entry] if isinstance(entry, str) else list(entry or ())
    return prod(int(devices[name]) for name in names if name in devices)
