"""Arrays that the device machines make: numbers that show mistakes, poison, and what is compared of results."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["FINE_BITS", "SLIGHT", "Array", "Near", "array_of", "bits", "exact", "poisoned", "shape_and_type", "worst"]

Array = NDArray[Any]

FINE_BITS = 17
"""ATT-6: the bits of the largest value to which results in f32 are right; others are to 8 bits."""

SLIGHT = 64
"""The multiple of the tolerance up to which an error is rounding (ATT-6, CACHE-4); beyond, it is another number."""

_EXACT = ("float32", "float16", "bfloat16")


def exact(dtype: str) -> bool:
    """Whether a cache keeps values as they are, in that it only rounds them to its type."""
    return dtype in _EXACT


def poisoned(shape: tuple[int, ...], dtype: str) -> Array:
    """An array of NaN; of a large number where the type has none."""
    kind = np.dtype(dtype)
    return np.full(shape, 113, kind) if kind.kind in "iu" else np.full(shape, np.nan, kind)


def array_of(value: Any) -> Array:
    """What a backend's array holds."""
    return np.asarray(value)


def shape_and_type(value: Any, _: object) -> object:
    """An array's shape and the name of its type: what is compared of a result that is judged by a tolerance."""
    return tuple(value.shape), str(value.dtype)


def bits(value: Any) -> Array:
    """An array's bits: NaN is equal to itself there, and 0.0 differs from -0.0."""
    array = np.ascontiguousarray(array_of(value))
    return array.view(f"u{array.dtype.itemsize}")


@dataclass(frozen=True)
class Near:
    """What a result must be near to.

    Attributes:
        right: the values.
        tolerance: how far off each may be.
    """

    right: Array
    tolerance: Array

    def told(self, place: tuple[int, ...], seen: Array) -> tuple[str, str]:
        """What must stand at a place, and what does, as a report shows them."""
        at = f"out[{', '.join(map(str, place))}] = "
        within = f"{self.right[place]:.9g} within {self.tolerance[place]:.3g}"
        return f"{at}{within}", f"{at}{float(seen[place]):.9g}"


def worst(near: Near, seen: Array) -> tuple[int, ...] | None:
    """The place of the largest error of those beyond the tolerance, NaN before all; None if there is none.

    Args:
        near: what is right.
        seen: what was seen, of the same shape.
    """
    error = np.abs(seen.astype(np.float64) - near.right)
    error = np.where(np.isnan(error), np.inf, error)
    beyond = np.where(error > near.tolerance, error, -1.0)
    if not beyond.size or beyond.max() < 0:
        return None
    return tuple(int(place) for place in np.unravel_index(int(beyond.argmax()), beyond.shape))
