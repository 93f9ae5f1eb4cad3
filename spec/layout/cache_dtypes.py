"""CACHE-4: the cast into each of the six element types of a cache, and scales by slot and head.

By their codes::

    f32, bf16, f16      values, rounded to nearest even; values too large for f16 become infinite
    f8_e4m3, f8_e5m2    values divided by a scale, saturated
    int8                values divided by a scale, rounded to nearest even, saturated; never without a scale

A scale is one static number for all keys (or all values) of a cache, or, in `ScaledPages`, one for each slot and
head: amax / 127 for int8, amax / 448 for e4m3, amax / 57344 for e5m2, but never less than the least normal float32;
and 1.0 for a head of zeros.

The error of a value x stored with a scale s that is exact and large enough for x (CACHE-4):

- int8: at most s / 2;
- e4m3: at most 2^-4 |x|, or half the least subnormal, 2^-10 s;
- e5m2: at most 2^-3 |x|, or half the least subnormal, 2^-17 s.

There is no bound for values below 2^-126, as devices treat subnormal float32 numbers as zeros.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..declarations.cache_dtypes import CODES, read_dtype
from ..reading.arguments import real, refusal

__all__ = [
    "CODES",
    "FLOATS",
    "LARGEST",
    "ScaledPages",
    "as_bits",
    "read_dtype",
    "read_scale",
    "saturated",
    "scale_of",
    "stored_dtype",
]

FLOATS = (CODES["f32"], CODES["bf16"], CODES["f16"])
"""The element types of queries, keys, values and states."""

LARGEST: dict[np.dtype[Any], float] = {
    CODES["int8"]: 127.0,
    CODES["f8_e4m3"]: 448.0,
    CODES["f8_e5m2"]: 57344.0,
}
"""The largest number of each element type that saturates; only these have scales by slot and head."""


class ScaledPages(NamedTuple):
    """Pages in which each slot and head has a scale of its own (CACHE-4).

    The value of a stored number is the number times the scale of its slot and head.

    Attributes:
        values: the pages, `int8` or fp8 `[P, page, 2H, Dp]` (v2) or `[P, page, groups, packing, Dp]` (v3).
        scales: `f32[P, page, 2H]`, in the order K0, V0, K1, V1, ..., without padding.
    """

    values: Any
    scales: Any


def stored_dtype(name: str, array: NDArray[Any], kv_dtype: object) -> np.dtype[Any]:
    """The element type of an array of pages: its dtype, or ``kv_dtype`` if the array holds bits (R1).

    A backend may store two-byte floats as `u16` and one-byte floats as `u8`, where its device copies bits faster.

    Args:
        name: the array's name, for messages.
        array: pages.
        kv_dtype: the element type; required if the array is unsigned, else None or the array's own dtype.

    Raises:
        TypeError: the dtype is no element type of a cache, or is unsigned without a ``kv_dtype``.
        ValueError: ``kv_dtype`` contradicts the array.
    """
    wanted = None if kv_dtype is None else read_dtype("kv_dtype", kv_dtype)
    if array.dtype in (np.dtype(np.uint8), np.dtype(np.uint16)):
        if wanted is None:
            raise refusal(TypeError, "R1", f"kv_dtype=None must say what the bits of {name} ({array.dtype}) are")
        if wanted.itemsize != array.dtype.itemsize or wanted == CODES["int8"]:
            raise refusal(ValueError, "R1", f"kv_dtype={wanted.name} does not fit {name} of {array.dtype}")
        return wanted
    if array.dtype not in CODES.values():
        raise refusal(TypeError, "R1", f"{name}.dtype={array.dtype} must be one of {', '.join(CODES)}")
    if wanted not in (None, array.dtype):
        raise refusal(ValueError, "R1", f"kv_dtype={wanted.name} contradicts {name} of {array.dtype}")
    return array.dtype


def as_bits(array: NDArray[Any]) -> NDArray[Any]:
    """The same memory as unsigned integers, so that arrays can be compared bit for bit (CACHE-3)."""
    kinds = {1: np.uint8, 2: np.uint16, 4: np.uint32}
    return np.ascontiguousarray(array).view(kinds[array.dtype.itemsize])


def read_scale(name: str, value: object) -> float | None:
    """Reads a static scale: None, or a positive number (R1)."""
    if value is None:
        return None
    number = real(name, value)
    if number <= 0:
        raise refusal(ValueError, "R1", f"{name}={number} must be above 0")
    return number


def scale_of(numbers: NDArray[np.float64], dtype: np.dtype[Any]) -> np.float32:
    """The scale of one head of one slot (CACHE-4). O(D).

    Args:
        numbers: the head's key or value, `f64[D]`.
        dtype: a type that saturates.

    Returns:
        The largest magnitude divided by the type's largest number, between the least normal float32 and the largest
        float32 divided by that number; 1.0 for zeros.
    """
    limits = np.finfo(np.float32)
    amax = min(np.max(np.abs(numbers), initial=0.0), float(limits.max))
    return np.float32(max(amax / LARGEST[dtype], float(limits.tiny))) if amax else np.float32(1.0)


def saturated(numbers: NDArray[np.float64], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Casts into a cache's element type: round to nearest even; fp8 and int8 saturate (CACHE-4).

    Args:
        numbers: `f64[...]`, divided by their scale.
        dtype: the element type of the cache.
    """
    if dtype in LARGEST:
        numbers = np.clip(numbers, -LARGEST[dtype], LARGEST[dtype])
    if dtype == CODES["int8"]:
        numbers = np.nan_to_num(np.rint(numbers))
    with np.errstate(over="ignore"):  # values too large for f16 become infinite, as documented above
        return numbers.astype(dtype)
