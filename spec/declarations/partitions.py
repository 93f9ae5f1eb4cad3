"""CACHE-5: which axes of a device mesh split a cache: KV heads over one axis, pages over another.

A mesh is anything with ``shape``, the number of devices along each axis by its name; None is one device. Pages that are
split are pools of their own, a pool for each data shard (POOL-12).
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from .codec import Part
from .reading import refusal

__all__ = ["MODE", "AxisRules", "DeviceMesh", "PartitionManager", "axes_to_json", "read_axes", "read_partitions"]

MODE = "decode"
"""The mode for which partition managers are asked: a cache lies the same way in all of them."""


class DeviceMesh(Protocol):
    """The part of a mesh that sizes are computed from: a `jax.sharding.Mesh`, or any object with its ``shape``."""

    @property
    def shape(self) -> Mapping[str, int]:
        """Devices along each axis, by the axis' name."""


class PartitionManager(Protocol):
    """Decides over which axes of a mesh the axes of an array are split."""

    def resolve(self, axes: Sequence[str | None], mode: str, shape: Sequence[int]) -> Any:
        """The mesh axes over which an array is split.

        Args:
            axes: the meaning of each axis of the array: ``"pages"``, ``"kv_heads"``, or None for one that stays whole.
            mode: the purpose of the array; the cache asks for ``"decode"`` only.
            shape: the array's shape.

        Returns:
            A sequence of a mesh axis, several, or None for each axis of the array; axes that the mesh lacks split
            nothing.
        """


@dataclass(frozen=True)
class AxisRules:
    """A partition manager by name: one mesh axis for pages, one for KV heads.

    Attributes:
        pages: the mesh axis over which pages are split (data parallelism, POOL-12); None: no axis.
        kv_heads: the mesh axis over which KV heads are split (tensor parallelism); None: no axis.
    """

    pages: str | None = "dp"
    kv_heads: str | None = "tp"

    def resolve(self, axes: Sequence[str | None], mode: str, shape: Sequence[int]) -> Any:  # noqa: ARG002 - the same for every mode and shape
        """The mesh axes over which an array is split; see `PartitionManager`."""
        return tuple(asdict(self).get(axis or "") for axis in axes)


def axes_to_json(partition_manager: object) -> dict[str, Any]:
    """The mesh axes of a partition manager, as a document has them.

    Raises:
        TypeError: it is no `AxisRules`: nothing is known of others (R1).
    """
    if not isinstance(partition_manager, AxisRules):
        kind = type(partition_manager).__name__
        raise refusal(TypeError, "R1", f"partition_manager must be AxisRules to be saved, not {kind}")
    return asdict(partition_manager)


def read_axes(part: Part) -> dict[str, str | None]:
    """Reads the fields of `AxisRules` in a document.

    Raises:
        ValueError: they are none (SEC-3).
    """
    fields = part.members(("pages", "kv_heads"))
    return {name: None if axis.value is None else axis.text() for name, axis in fields.items()}


def read_partitions(mesh: object, partition_manager: object) -> Mapping[str, int]:
    """Reads a mesh, None or one with its number of devices along each axis, and a partition manager (R1).

    Returns:
        The devices along each axis; none of a mesh that is None.

    Raises:
        TypeError: ``mesh`` is no mesh, or ``partition_manager`` is none.
    """
    if not callable(getattr(partition_manager, "resolve", None)):
        raise refusal(TypeError, "R1", f"partition_manager={partition_manager!r} must have resolve(axes, mode, shape)")
    devices = {} if mesh is None else getattr(mesh, "shape", None)
    if not isinstance(devices, Mapping):
        raise refusal(TypeError, "R1", f"mesh={mesh!r} must have a shape: devices by the name of each axis")
    return devices
