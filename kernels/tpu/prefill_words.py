"""Memory as 32-bit words: how the general kernel reads keys, values and queries out of VMEM, and writes outputs.

A TPU's vector unit reads and shifts rows of 32-bit words; narrower numbers share words. TPU interpret mode has no
memory of words, only arrays: the three functions that take ``emulated`` are all that differs between the two.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ..layout import LANES
from .prefill_geometry import Geometry

__all__ = ["load_rows", "load_words", "numbers_in", "store_rows"]

Ref = Any

_bitcast = lax.bitcast_convert_type


def load_words(block: Ref, tile: int, row: int | jax.Array, geometry: Geometry, emulated: bool) -> jax.Array:
    """A word row of all slots of a key block: `i32[columns, 128]`.

    Args:
        block: the key block in VMEM, `[column_tiles, columns, *row_buffer]`.
        tile: which 128 numbers of each stored row.
        row: which word row of each slot; in v2 it has to be static.
        geometry: the shapes.
        emulated: whether this is interpreted.
    """
    if emulated:
        if geometry.layout.version == "v3":
            numbers = block[tile, :, row]
        else:
            numbers = block[tile, :, pl.ds(row * geometry.packing, geometry.packing)]
        return _bitcast(jnp.moveaxis(numbers, 1, 2) if geometry.packing > 1 else numbers[:, 0], jnp.int32)
    part = block.at[tile]
    stride = geometry.stride
    if geometry.layout.version == "v3":
        words = part.bitcast(jnp.int32).reshape(geometry.columns * stride, LANES)
    else:
        words = part.reshape(geometry.columns * geometry.row_buffer[0], LANES).bitcast(jnp.int32)
    loaded: jax.Array = words[pl.ds(row, geometry.columns, stride)]
    return loaded


def load_rows(tokens: Ref, geometry: Geometry, emulated: bool) -> jax.Array:
    """The query rows of one KV head, as they are multiplied: `compute_dtype[rows, n]`.

    Args:
        tokens: the head's queries in VMEM, `query_dtype[block_queries, group / packing, packing, n]`.
        geometry: the shapes.
        emulated: whether this is interpreted.
    """
    width, packing = tokens.shape[-1], geometry.query_packing
    if emulated:
        rows: jax.Array = tokens[...].reshape(geometry.rows, width)
    elif packing == 1:
        rows = tokens.reshape(geometry.rows, width)[...]
    else:
        words = tokens.bitcast(jnp.int32).reshape(geometry.rows // packing, width)[...]
        rows = pltpu.bitcast(words, geometry.query_dtype)
    return rows.astype(geometry.compute_dtype)


def store_rows(tokens: Ref, rows: jax.Array, geometry: Geometry, emulated: bool) -> None:
    """Writes the output rows of one KV head: the inverse of `load_rows`.

    Args:
        tokens: the head's outputs in VMEM, `query_dtype[block_queries, group / packing, packing, n]`.
        rows: `f32[rows, n]`; fewer than the block has: its first.
        geometry: the shapes.
        emulated: whether this is interpreted.
    """
    width, packing = tokens.shape[-1], geometry.query_packing
    rows = rows.astype(geometry.query_dtype)
    if emulated:
        tokens[...] = rows.reshape(tokens.shape)
    elif packing == 1:
        tokens.reshape(geometry.rows, width)[...] = rows
    else:
        words = tokens.bitcast(jnp.int32).reshape(geometry.rows // packing, width)
        words[...] = pltpu.bitcast(rows, jnp.int32)


def numbers_in(words: jax.Array, lane: int, kv_dtype: Any, compute_dtype: Any) -> jax.Array:
    """The numbers that stand in one lane of words.

    Args:
        words: `i32[n, 128]`.
        lane: which of the numbers in each word, the lowest bits first.
        kv_dtype: what the bits mean.
        compute_dtype: float32 or bfloat16; it holds all of the cache's numbers.

    Returns:
        `compute_dtype[n, 128]`.
    """
    kv_dtype = jnp.dtype(kv_dtype)
    if kv_dtype.itemsize == 4:
        numbers = _bitcast(words, jnp.float32)
    elif kv_dtype == jnp.dtype(jnp.bfloat16):
        numbers = _bitcast(words & -65536 if lane == 1 else words << 16, jnp.float32)
    elif kv_dtype == jnp.dtype(jnp.int8):
        numbers = (words << (24 - 8 * lane) >> 24).astype(jnp.float32)
    else:
        numbers = _widened(words >> (8 * lane), {"float8_e4m3fn": 3, "float8_e5m2": 2}[kv_dtype.name])
    return numbers.astype(compute_dtype)


def _widened(words: jax.Array, mantissa: int) -> jax.Array:
    """The float of 8 bits in the low byte of each word, ``mantissa`` bits its mantissa, as float32: exact if finite."""
    exponents = 7 - mantissa
    bias = (127 - (1 << (exponents - 1)) + 1) << 23
    magnitude = (words & 0x7F) << (23 - mantissa)
    # A number below the normal ones has no leading 1: with the exponent of the smallest normal it gets one, which is
    # subtracted again.
    smallest = bias + (1 << 23)
    below = _bitcast(magnitude + smallest, jnp.float32) - _bitcast(jnp.int32(smallest), jnp.float32)
    normal = _bitcast(magnitude + bias, jnp.float32)
    value = jnp.where(magnitude < (1 << 23), below, normal)
    return jnp.where((words & 0x80) == 0, value, -value)
