"""What a warpgroup does with registers, each behind one function, so that all else runs interpreted on any computer.

The interpreter of Mosaic GPU imitates memories, copies, barriers and threads, not the registers of a warpgroup. Here is
all that it has no answer to, and what stands for it:

| on the device | interpreted | why |
|---|---|---|
| `wgmma` of two tiles in shared memory | `dot` of what they hold | takes whole refs only |
| `wgmma` of registers and a tile | `dot` of the array and what the tile holds | takes refs only |
| `layout_cast`, and layouts of loads | nothing | arrays have no layout there |
| a reference as another shape, or turned | the array as another, or turned | knows slices of references only |

What remains unexecuted is the layouts of `wgmma` alone, which the compiler checks against each other.

Shared memory has two ways in, the threads' and that of copies and `wgmma`; what one of them did is seen by the other
after `commit` only. What stands for `wgmma` reads by the threads' way and commits its reads: from JAX 0.11 on the
interpreter tells the two ways apart, and a copy over what a thread read is a race to it.
"""

import math
from collections.abc import Callable
from inspect import Parameter, signature
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from .tiles import TILE_KEYS

__all__ = ["Warpgroup", "by_column", "by_row", "commit", "settled"]

_SUMS: Any = plgpu.WGMMAAccumulatorRef

_OF_LOADS = signature(plgpu.load).parameters

_INDEX: tuple[Any, ...] = ((),) if "idx" in _OF_LOADS and _OF_LOADS["idx"].default is Parameter.empty else ()
"""What loads take beside a reference: JAX 0.10 wants an index, 0.11 none, 0.12 takes none."""

commit: Callable[[], None] = plgpu.commit_smem
"""Makes what this warpgroup wrote to shared memory visible to copies and products."""

settled: Callable[..., Any] = jax.lax.optimization_barrier
"""Arrays as they are, all of them computed before anything that comes after."""


class Warpgroup:
    """The operations of one warpgroup.

    Args:
        emulated: whether the kernel is interpreted.
        itemsize: bytes of a stored number.
        swizzle: of stored tiles, in bytes: they are read without bank conflicts then, which the compiler checks; 0:
            none.
    """

    def __init__(self, emulated: bool, itemsize: int, swizzle: int) -> None:
        self._emulated = emulated
        self._swizzled = swizzle > 0
        # Of one-byte numbers a thread reads eight at a time, which are 16 bytes when it writes them; of others two.
        wide = self._swizzled and itemsize == 1
        self._stored: Any = _widened(swizzle) if wide else plgpu.Layout.WGMMA

    def scores(self, *pairs: tuple[Any, Any], then: Callable[[], None] = lambda: None) -> jax.Array:
        """The products of the rows of two tiles in shared memory, `f32[m, n]`, done when they are returned.

        Args:
            pairs: queries, a ref `[m, D]`, and keys, a ref `[n, D]` of the same dtype; of several pairs the products
                are added.
            then: called when the products are on their way.
        """
        if self._emulated:
            then()
            return jnp.sum(jnp.stack([_dot(queries[...], keys[...].T) for queries, keys in pairs]), axis=0)

        def multiply(sums: Any) -> jax.Array:
            for queries, keys in pairs:
                plgpu.wgmma(sums, queries, keys.transpose((1, 0)))
            then()
            done: jax.Array = sums[...]
            return done

        (queries, keys), *_ = pairs
        scores: jax.Array = pl.run_scoped(multiply, _SUMS((queries.shape[0], keys.shape[0]), jnp.float32))
        return scores

    def mix(
        self,
        sums: jax.Array,  # f32[m, Dv]
        weights: jax.Array,  # [m, n]
        values: Any,  # [n, Dv]
    ) -> jax.Array:
        """Sums, and to them the values weighted: `f32[m, Dv]`, done when they are returned.

        Args:
            sums: `f32[m, Dv]`.
            weights: `[m, n]`, of the values' dtype.
            values: a ref `[n, Dv]`.
        """
        if self._emulated:
            return sums + _dot(weights, values[...])

        def multiply(into: Any) -> None:
            plgpu.wgmma(into, weights, values)

        mixed: jax.Array = pl.run_state(multiply)(_SUMS.init(sums))
        return mixed

    def full(self, shape: tuple[int, ...], number: float) -> jax.Array:
        """`f32[shape]` of one number: a tile `[m, n]`, or one number for each row, `[m]`."""
        array = jnp.full(shape, number, jnp.float32)
        return array if self._emulated else plgpu.layout_cast(array, _layout(len(shape)))

    def row_numbers(self, count: int) -> jax.Array:
        """`i32[m]`: the number of each row of a stored tile; `by_stored_row` makes a tile of what comes of them."""
        numbers = jax.lax.iota(jnp.int32, count)
        return numbers if self._emulated else plgpu.layout_cast(numbers, self._stored.reduce(1))

    def by_stored_row(self, numbers: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        """What is known of each row of a stored tile, `[m]`, in all columns: `[m, n]`."""
        array = by_row(numbers, shape)
        return array if self._emulated else plgpu.layout_cast(array, self._stored)

    def column_numbers(self, count: int) -> jax.Array:
        """`i32[n]`: the number of each column of a tile; `by_column` makes a tile of them."""
        numbers = jax.lax.iota(jnp.int32, count)
        return numbers if self._emulated else plgpu.layout_cast(numbers, plgpu.Layout.WGMMA.reduce(0))

    def rows(self, ref: Any) -> jax.Array:
        """Reads a number for each row of a tile, `[m]`, or a tile, `[m, n]`, from memory of the device or the block."""
        if self._emulated:
            array: jax.Array = ref[...]
            return array
        return plgpu.load(ref, *_INDEX, layout=_layout(len(ref.shape)), optimized=False)

    def tile(self, ref: Any) -> jax.Array:
        """Reads a stored tile `[m, n]` from shared memory."""
        if self._emulated:
            array: jax.Array = ref[...]
            return array
        return plgpu.load(ref, *_INDEX, layout=self._stored, optimized=self._swizzled)

    def columns(self, ref: Any) -> jax.Array:
        """Reads a number for each column of a tile, `[n]`, from shared memory; `by_column` makes a tile of them."""
        if self._emulated:
            array: jax.Array = ref[...]
            return array
        return plgpu.load(ref, *_INDEX, layout=plgpu.Layout.WGMMA.reduce(0), optimized=False)

    def pairs(self, ref: Any, column: jax.Array, rows: int) -> jax.Array:
        """Reads two columns of an array in shared memory, `[rows, 2]`: of 64 rows one number a thread.

        Args:
            ref: `[rows, n]`, or any shape that holds as much.
            column: `i32[]`: the first of the two.
            rows: how many.
        """
        shape = (rows, math.prod(ref.shape) // rows)
        if self._emulated:
            return jax.lax.dynamic_slice(ref[...].reshape(shape), (0, column), (rows, 2))
        return plgpu.load(ref.reshape(shape).at[:, pl.ds(column, 2)], *_INDEX, layout=_pairs(rows), optimized=False)

    def pair_numbers(self, rows: int) -> jax.Array:
        """`i32[rows, 2]`: the number of the row of what `pairs` reads."""
        numbers = jax.lax.broadcasted_iota(jnp.int32, (rows, 2), 0)
        return numbers if self._emulated else plgpu.layout_cast(numbers, _pairs(rows))

    def store_turned(self, pairs: jax.Array, into: Any) -> None:
        """Writes what `pairs` reads to shared memory as two rows, `[2, rows]`, with a gap between them."""
        if self._emulated:
            into[...] = pairs.T
        else:
            into.transpose((1, 0))[...] = pairs

    def converted(self, ref: Any, dtype: Any) -> jax.Array:
        """Reads a stored tile `[m, n]` from shared memory as another dtype, exactly.

        bfloat16 holds all of int8, float16 all of float8: two instructions a number, or half of one. What else there is
        for integers takes the unit that makes powers of two, which is slower, and which the softmax needs.
        """
        numbers = self.tile(ref)
        if numbers.dtype == dtype:
            return numbers
        between = jnp.bfloat16 if numbers.dtype == jnp.int8 else jnp.float16
        numbers = numbers.astype(between)
        return numbers if dtype == between else numbers.astype(jnp.float32).astype(dtype)


def by_row(numbers: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """One number for each row, `[m]`, in all columns: `[m, n]`."""
    return jax.lax.broadcast_in_dim(numbers, shape, [0])


def by_column(numbers: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """One number for each column, `[n]`, in all rows: `[m, n]`."""
    return jax.lax.broadcast_in_dim(numbers, shape, [1])


def _widened(swizzle: int) -> Any:
    """The layout in which tiles of one-byte numbers are read, and written as 16-bit ones, without bank conflicts.

    It is the compiler's own for copies of 16-bit numbers, in a tile as wide as what is read.

    Args:
        swizzle: of what is read, in bytes: as many columns of one-byte numbers.
    """
    return plgpu.Layout.SMEM_GMEM_COPY((TILE_KEYS, swizzle), jnp.float16, 2 * swizzle)


def _pairs(rows: int) -> Any:
    return plgpu.Layout.WG_STRIDED((rows, 2), vec_size=1)


def _layout(rank: int) -> Any:
    return plgpu.Layout.WGMMA if rank == 2 else plgpu.Layout.WGMMA.reduce(1)


def _dot(left: jax.Array, right: jax.Array) -> jax.Array:
    commit()  # what was read from shared memory for it
    return jnp.dot(left.astype(jnp.float32), right.astype(jnp.float32), precision=jax.lax.Precision.HIGHEST)
