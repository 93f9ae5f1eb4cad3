"""TAB-7, CACHE-5: the arrays of a step on the device: a pytree, split over data shards."""

import dataclasses
from collections.abc import Iterable
from functools import partial
from typing import Any, Self

import jax
import jax.numpy as jnp
from numpy.typing import NDArray

from kvproof.spec.declarations.step_arrays import ARRAYS, SETTINGS, StepArrays

from .host_arrays import on_host

__all__ = ["RaggedPagesMetadata"]


@partial(jax.tree_util.register_dataclass, data_fields=ARRAYS, meta_fields=SETTINGS)
@dataclasses.dataclass(frozen=True, eq=False)
class RaggedPagesMetadata(StepArrays[jax.Array]):
    """The arrays of one step: a pytree. `StepArrays` describes the fields; those that are no arrays are static."""

    @staticmethod
    def _made(array: NDArray[Any]) -> jax.Array:
        return jnp.array(array)

    @staticmethod
    def _on_host(array: jax.Array) -> NDArray[Any]:
        return on_host(array)

    @classmethod
    def stack(cls, shards: Iterable[Self]) -> Self:
        """The metadata of several data shards as one: arrays concatenated (POOL-12, CACHE-5). O(their size).

        Shard i of a mesh's data axis reads part i. The batch's tokens stand in the same order: T of the first
        shard, then T of the next.

        Args:
            shards: the metadata of each shard, all of the same shapes and static fields.

        Raises:
            TypeError: one is no RaggedPagesMetadata.
            ValueError: there is none, or they differ in a shape or static field (R1).
        """
        stacked: Self = _concatenated(cls.read_shards(shards))
        return stacked

    def shard(self, number: int, num_shards: int) -> Self:
        """The metadata of one of the shards that were stacked (CACHE-5). O(its size).

        Args:
            number: the number of the shard.
            num_shards: the number of shards that were stacked.

        Raises:
            TypeError: an argument is no integer.
            IndexError: there is no such shard.
            ValueError: an array can't be split into as many (R1).
        """
        self.require_shard(number, num_shards)

        def part(array: jax.Array) -> jax.Array:
            size = array.shape[0] // num_shards
            return array[number * size : (number + 1) * size]

        own: Self = jax.tree.map(part, self)
        return own


@jax.jit
def _concatenated(parts: list[Any]) -> Any:
    return jax.tree.map(lambda *arrays: jnp.concatenate(arrays), *parts)
