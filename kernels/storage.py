"""What the numbers in a cache mean: dtypes, bits that stand for them, scales, saturation.

Pages hold numbers of the cache's *value dtype*, in one of three ways:

- as they are;
- as unsigned bits, on CPU: XLA's CPU backend writes a few rows into a bfloat16 or float8 array by rewriting all
  of it (224 ms for 128 MiB, where the same bits as uint16 take 0.03 ms). An argument ``kv_dtype`` then says what
  the bits mean. Blocks that were read are turned into numbers, never the cache;
- as `ScaledPages`: int8 or float8 numbers with a scale for each slot and head, which depends on nothing but
  what is stored there (CACHE-4).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

__all__ = [
    "KV_DTYPES",
    "ScaledPages",
    "as_before",
    "divided",
    "from_bits",
    "is_bits",
    "page_values",
    "quantise",
    "raw",
    "saturated",
    "storage_dtype",
    "to_bits",
    "value_dtype",
]

KV_DTYPES = tuple(
    jnp.dtype(dtype) for dtype in (jnp.float32, jnp.bfloat16, jnp.float16, jnp.float8_e4m3fn, jnp.float8_e5m2, jnp.int8)
)
"""The value dtypes that a cache may have."""

_LARGEST = {"int8": 127.0, "float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}
"""The largest number of the dtypes of 8 bits; the range of int8 is taken as symmetric."""

_CODES = {
    "f32": "float32",
    "bf16": "bfloat16",
    "f16": "float16",
    "f8_e4m3": "float8_e4m3fn",
    "f8_e5m2": "float8_e5m2",
}
"""What the metadata of caches calls the dtypes, for those that it calls otherwise than numpy."""

_SMALLEST_SCALE = float(np.finfo(np.float32).tiny)

_barrier: Callable[[jax.Array], jax.Array] = jax.lax.optimization_barrier


class ScaledPages(NamedTuple):
    """Pages of int8 or float8 numbers with a scale for each slot and head; a pytree.

    Attributes:
        values: `[P, page, ...]`, laid out as any cache: int8, float8_e4m3fn, float8_e5m2, or bits of the float8.
        scales: `f32[P, page, 2H]`, in seq_on_lane `f32[P, 2H, page]`: of K0, V0, K1, V1, ...: the logical heads,
            without padding.
    """

    values: jax.Array
    scales: jax.Array


def page_values(kv_pages: Any) -> Any:
    """The array that holds the numbers: of ScaledPages the values, else the pages themselves. O(1)."""
    return kv_pages.values if isinstance(kv_pages, ScaledPages) else kv_pages


def is_bits(dtype: Any) -> bool:
    """Whether an array of this dtype holds bits that stand for other numbers. O(1)."""
    return jnp.dtype(dtype) in (jnp.dtype(jnp.uint8), jnp.dtype(jnp.uint16))


def storage_dtype(dtype: Any, platform: str) -> Any:
    """The dtype of the arrays that hold a cache on a platform. O(1).

    Args:
        dtype: the value dtype, one of `KV_DTYPES`.
        platform: JAX's name of it: ``"cpu"``, ``"gpu"``, ``"tpu"``.

    Returns:
        The numpy dtype: unsigned bits for bfloat16 and float8 on CPU, else ``dtype`` itself.
    """
    dtype = jnp.dtype(dtype)
    if platform != "cpu" or dtype in (jnp.dtype(jnp.float32), jnp.dtype(jnp.float16), jnp.dtype(jnp.int8)):
        return dtype
    return jnp.dtype(jnp.uint16 if dtype.itemsize == 2 else jnp.uint8)


def value_dtype(kv_pages: Any, kv_dtype: Any = None, name: str = "kv_pages") -> Any:
    """The dtype of the numbers in a cache. O(1).

    Args:
        kv_pages: pages or ScaledPages.
        kv_dtype: what the caller says that they are, a dtype or one of the codes f32, bf16, f16, f8_e4m3, f8_e5m2;
            needed where the pages are unsigned bits.
        name: what the caller calls the pages.

    Returns:
        The numpy dtype, one of `KV_DTYPES`.

    Raises:
        TypeError: if the pages can't hold such numbers, or ``kv_dtype`` is needed and missing [R1].
        ValueError: if ``kv_dtype`` contradicts the pages [R1].
    """
    stored = jnp.dtype(page_values(kv_pages).dtype)
    if kv_dtype is not None:
        meant = _named_dtype(kv_dtype)
        if meant != stored and not (is_bits(stored) and storage_dtype(meant, "cpu") == stored):
            raise ValueError(f"kv_dtype={meant} does not fit {name} of {stored} [R1]")
    elif is_bits(stored):
        raise TypeError(f"kv_dtype=None must say what the bits of {name} ({stored}) mean [R1]")
    elif stored not in KV_DTYPES:
        raise TypeError(f"{name} must hold one of {', '.join(map(str, KV_DTYPES))}, not {stored} [R1]")
    else:
        meant = stored
    if isinstance(kv_pages, ScaledPages) and meant.itemsize != 1:
        raise TypeError(f"{name} must hold int8 or float8 to be ScaledPages, not {meant} [R1]")
    return meant


def _named_dtype(kv_dtype: Any) -> Any:
    """One of `KV_DTYPES`, from whatever numpy takes for it or from its code; else TypeError. O(1)."""
    code = _CODES.get(kv_dtype, kv_dtype) if isinstance(kv_dtype, str) else kv_dtype
    try:
        meant = jnp.dtype(code)
    except TypeError:
        meant = None
    if meant not in KV_DTYPES:
        raise TypeError(f"{kv_dtype=} must be one of {', '.join(map(str, KV_DTYPES))} [R1]")
    return meant


def raw(array: jax.Array) -> jax.Array:
    """An array as unsigned bits if its numbers are bfloat16 or float8, else as it is. O(1) where no copy is made.

    XLA on CPU moves such floats through wider ones, which changes the bits of NaN; bits are moved as they are.
    """
    array = jnp.asarray(array)  # NumPy's, where nothing is traced
    if array.dtype not in KV_DTYPES:
        return array
    return to_bits(array, storage_dtype(array.dtype, "cpu"))


def as_before(bits: jax.Array, array: jax.Array) -> jax.Array:
    """What `raw` made of an array, or of one like it, in that array's dtype again. O(1) where no copy is made."""
    return bits if bits.dtype == array.dtype else jax.lax.bitcast_convert_type(bits, array.dtype)


def from_bits(block: jax.Array, dtype: Any) -> jax.Array:
    """A block that was read, as numbers: bits become ``dtype``, of the same shape; others stay. O(block)."""
    return jax.lax.bitcast_convert_type(block, dtype) if is_bits(block.dtype) else block


def to_bits(values: jax.Array, stored: Any) -> jax.Array:
    """Numbers, as pages of the dtype ``stored`` hold them: as bits if it is unsigned. O(values)."""
    return jax.lax.bitcast_convert_type(values, stored) if is_bits(stored) else values


def saturated(values: jax.Array, dtype: Any) -> jax.Array:
    """Numbers, rounded half to even into a dtype; what is too large becomes its largest number (CACHE-4).

    Args:
        values: floats of any shape; infinities are too large.
        dtype: the value dtype. Into floats of 16 or 32 bits it is a plain cast: those overflow as they always do.

    Returns:
        ``dtype``, of the same shape. O(size).
    """
    dtype = jnp.dtype(dtype)
    if dtype.itemsize > 1:
        return values.astype(dtype)
    values = values.astype(jnp.float32)
    bound = _LARGEST[dtype.name]
    if dtype == jnp.dtype(jnp.int8):
        values = jnp.round(values)
    return jnp.clip(values, -bound, bound).astype(dtype)


def quantise(
    rows: jax.Array,  # [..., n]
    dtype: Any,
) -> tuple[jax.Array, jax.Array]:
    """Rows of numbers, each with a scale of its own (CACHE-4). O(size).

    The scale is the row's largest magnitude over the largest number of the dtype (127, 448, 57344), so that
    nothing is cut off; 1 for a row of zeros. Scales below the smallest normal float32 become that.

    Args:
        rows: `[..., n]`, floats; infinities count as the largest float32.
        dtype: int8, float8_e4m3fn or float8_e5m2.

    Returns:
        ``dtype[..., n]`` and the scales, `f32[...]`: row ~ stored * scale.
    """
    largest = float(np.finfo(np.float32).max)
    dtype = jnp.dtype(dtype)
    rows = jnp.clip(rows.astype(jnp.float32), -largest, largest)
    amax = jnp.max(jnp.abs(rows), axis=-1)
    scales = divided(amax, jnp.float32(_LARGEST[dtype.name]))
    scales = jnp.where(amax == 0, 1.0, jnp.maximum(scales, _SMALLEST_SCALE))
    return saturated(divided(rows, scales[..., None]), dtype), scales


def divided(numbers: jax.Array, divisor: jax.Array) -> jax.Array:
    """Quotients rounded once, whatever they are compiled with. O(size).

    Left alone, XLA multiplies by 1 / divisor where the divisor is a constant or a broadcast one: that rounds twice,
    and a number near the middle of two of int8 goes to the wrong one.

    Args:
        numbers: `f32[...]`.
        divisor: `f32`, a scalar, or of the same number of dimensions and broadcast to them.

    Returns:
        `f32[...]`.
    """
    return numbers / _barrier(jnp.broadcast_to(divisor, numbers.shape))
