"""TAB-7, CACHE-5: the arrays of one step, and their split over page shards."""

import dataclasses
from collections.abc import Iterable
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ..declarations.step_arrays import ARRAYS, StepArrays

__all__ = ["RaggedPagesMetadata"]


@dataclasses.dataclass(frozen=True, eq=False)
class RaggedPagesMetadata(StepArrays[NDArray[np.int32]]):
    """The arrays of one step; `StepArrays` describes the fields."""

    @staticmethod
    def _made(array: NDArray[Any]) -> NDArray[Any]:
        return array.copy()

    @staticmethod
    def _on_host(array: NDArray[Any]) -> NDArray[Any]:
        return array

    @classmethod
    def stack(cls, shards: Iterable[Self]) -> Self:
        """The metadata of several page shards in one: each array joins theirs along the first axis (POOL-12, CACHE-5).

        Args:
            shards: the metadata of each shard, with the same shapes and settings.

        Raises:
            TypeError: an element is no metadata.
            ValueError: there is no shard, or shapes or settings differ (R1).
        """
        parts = cls.read_shards(shards)
        return parts[0].replace(
            **{
                name: np.concatenate([getattr(part, name) for part in parts])
                for name in ARRAYS
                if getattr(parts[0], name) is not None
            }
        )

    def shard(self, number: int, num_shards: int) -> Self:
        """The metadata of one shard, out of metadata that `stack` joined (CACHE-5).

        Args:
            number: the number of the shard.
            num_shards: the number of shards.

        Raises:
            TypeError: an argument is no integer.
            IndexError: there is no such shard.
            ValueError: an array can't be split evenly (R1).
        """
        self.require_shard(number, num_shards)
        arrays = {name: getattr(self, name) for name in ARRAYS}
        parts = {name: np.split(array, num_shards)[number] for name, array in arrays.items() if array is not None}
        return self.replace(**parts)
