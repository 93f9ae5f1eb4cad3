"""MAN-13: the state pages of one layer: an array of pages for each array of the state."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ..declarations import MambaSpec
from ..declarations.partitions import AxisRules
from ..declarations.state_arrays import read_state_arrays
from ..layout.states import copy_pages, read_states, write_states
from ..reading.arguments import INT32, array_of, integer, listed, refusal
from .partitions import num_shards

__all__ = ["StatePages", "global_ids", "slot_counts"]


@dataclasses.dataclass(frozen=True, eq=False)
class StatePages:
    """The state pages of a layer. The object is immutable: writes return a new one; `init` makes the first.

    Attributes:
        pages: pages for each array of the state, `[num_page_shards * P, *shape]`.
        dtypes: element type of each array.
        num_page_shards: number of pools, each with ids of its own (POOL-12).
        mesh: the mesh of devices; None: one device. Only the checks of `init` depend on it.
    """

    pages: tuple[NDArray[Any], ...]
    dtypes: tuple[np.dtype[Any], ...]
    num_page_shards: int
    mesh: Any

    @classmethod
    def init(
        cls,
        mesh: Any,
        spec: MambaSpec,
        num_pages: int,
        partition_manager: Any = None,
        *,
        head_axes: Sequence[int | None] | None = None,
    ) -> Self:
        """The state pages of a layer, all zero.

        Args:
            mesh: the mesh of devices; None: one device.
            spec: the shapes of the state's arrays, and their dtypes: f32, bf16 or f16.
            num_pages: P of each page shard, the null page included.
            partition_manager: what decides how pages and heads are split over the mesh; None: `AxisRules`.
            head_axes: the axis of each array's shape that is split like KV heads, or None for an array that is not
                split; None: no array is.

        Raises:
            TypeError: an argument of a wrong type.
            IndexError: an array has no such axis.
            ValueError: less than 2 pages (POOL-1), or heads that can't be split evenly (CACHE-5).
        """
        pages, arrays = read_state_arrays(spec, num_pages, head_axes)
        rules = AxisRules() if partition_manager is None else partition_manager
        for array in arrays:
            if array.head_axis is not None:
                heads = array.shape[array.head_axis]
                if heads % num_shards(mesh, rules, "kv_heads", heads):
                    raise refusal(
                        ValueError, "CACHE-5", f"head_axes={array.head_axis}: {heads} heads can't be split evenly"
                    )
        pools = num_shards(mesh, rules, "pages", pages)
        zeros = tuple(np.zeros((pools * pages, *array.shape), array.dtype) for array in arrays)
        return cls(zeros, tuple(array.dtype for array in arrays), pools, mesh)

    def read(self, page_ids: Any) -> tuple[NDArray[Any], ...]:
        """The states in some pages, `[S, *shape]` for each array (MAN-13).

        Args:
            page_ids: the page of each sequence, `i32[S]`; with several shards `i32[shards * S]`, shard after shard;
                for -1 the result is zeros.
        """
        states: tuple[NDArray[Any], ...] = read_states(self.pages, self._global("page_ids", page_ids))
        return states

    def write(self, page_ids: Any, states: Sequence[Any]) -> Self:
        """Writes states into pages (MAN-13).

        Args:
            page_ids: the page of each sequence, as in `read`, none twice; for -1 nothing is written.
            states: `[S, *shape]` for each array, of its dtype.

        Returns:
            The pages after the writes.

        Raises:
            TypeError: an array of another dtype.
            ValueError: an array of another shape, or another number of arrays (R1).
        """
        arrays = tuple(listed("states", states))
        if len(arrays) != len(self.pages):
            raise refusal(ValueError, "R1", f"states has {len(arrays)} arrays, not {len(self.pages)}")
        return dataclasses.replace(self, pages=write_states(self.pages, self._global("page_ids", page_ids), arrays))

    def copy_pages(self, sources: Any, destinations: Any) -> Self:
        """Copies pages onto others; see `RaggedPagesCache.copy_pages` (MAN-13)."""
        shards, pages = self.num_page_shards, self.pages[0].shape[0] // self.num_page_shards
        froms = global_ids("sources", sources, shards, pages)
        tos = global_ids("destinations", destinations, shards, pages)
        return dataclasses.replace(self, pages=copy_pages(self.pages, froms, tos))

    def _global(self, name: str, page_ids: Any) -> NDArray[np.int32]:
        ids = array_of(name, page_ids, ("S",), (INT32,))
        shards = self.num_page_shards
        if len(ids) % shards:
            raise refusal(ValueError, "CACHE-5", f"{name}.shape={ids.shape} must be of {shards} shards")
        return global_ids(name, ids if shards == 1 else ids.reshape(shards, -1), shards, len(self.pages[0]) // shards)


def global_ids(name: str, ids: Any, num_page_shards: int, num_pages: int) -> NDArray[np.int32]:
    """Page ids of all shards, as indices into an array of all shards' pages, shard after shard (POOL-12).

    Args:
        name: the argument's name, for messages.
        ids: page ids, `[n]`; with several shards `[shards, n]`, a row for each shard's own ids. An id that a shard does
            not have becomes -1. An array on a device, `i32`, is taken as well: a backend need not look at it.
        num_page_shards: the number of shards.
        num_pages: P of each shard.

    Raises:
        TypeError: an id is no integer.
        ValueError: an id does not fit an int32, or another shape (R1).
    """
    ids = _on_host(ids)
    rows = [ids] if num_page_shards == 1 else listed(name, ids)
    read = [[integer(name, page, minimum=None) for page in listed(name, row)] for row in rows]
    if len(read) != num_page_shards or len({len(row) for row in read}) > 1:
        raise refusal(ValueError, "R1", f"{name} must have {num_page_shards} rows of as many ids")
    found = []
    for shard, row in enumerate(read):
        for page in row:
            if not -(2**31) <= page < 2**31:
                raise refusal(ValueError, "R1", f"{name}={page} does not fit an int32")
            found.append(shard * num_pages + page if 0 <= page < num_pages else -1)
    return np.array(found, np.int32)


def _on_host(numbers: Any) -> Any:
    """Numbers as they are; an array that is not numpy's, as one of numpy's."""
    return np.asarray(numbers) if hasattr(numbers, "__array__") and not isinstance(numbers, np.ndarray) else numbers


def slot_counts(num_slots: Any, num_page_shards: int, count: int) -> NDArray[np.int32]:
    """Numbers of slots of the pages of all shards, shard after shard, as `global_ids` has the pages.

    Args:
        num_slots: a number for each page, `[n]`; with several shards `[shards, n]`. A negative one becomes -1.
        num_page_shards: the number of shards.
        count: how many pages there are, over all shards.

    Raises:
        TypeError: a number is no integer.
        ValueError: one does not fit an int32, or there is not one for each page (R1).
    """
    num_slots = _on_host(num_slots)
    rows = [num_slots] if num_page_shards == 1 else listed("num_slots", num_slots)
    slots = np.concatenate([np.zeros(0, np.int32), *(global_ids("num_slots", row, 1, 2**31) for row in rows)])
    if len(slots) != count:
        raise refusal(ValueError, "R1", f"num_slots are {len(slots)}, pages {count}")
    return slots
