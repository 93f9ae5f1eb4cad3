"""R1: reading array arguments: the dtype first, then the shape."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .arguments import refusal

__all__ = ["INT32", "array_of"]

INT32 = np.dtype(np.int32)
"""The dtype of every length, page id and slot; int64 is refused, as devices would silently truncate it."""


def array_of(name: str, value: object, shape: Sequence[int | str], dtypes: Sequence[np.dtype[Any]]) -> NDArray[Any]:
    """Reads an array argument: its dtype, its number of dimensions, and the sizes that are fixed (R1).

    Args:
        name: the argument's name.
        value: the argument: an array of numpy or of a device, no list, as that has no dtype.
        shape: the size of each dimension: a number, or a name for a dimension of any size.
        dtypes: the allowed dtypes; empty: all.

    Raises:
        TypeError: the value is no array, or has another dtype.
        ValueError: the array has another shape.
    """
    if not (hasattr(value, "shape") and hasattr(value, "dtype")):
        raise refusal(TypeError, "R1", f"{name} must be an array, not {type(value).__name__}")
    array = np.asarray(value)
    if dtypes and array.dtype not in dtypes:
        names = " or ".join(dtype.name for dtype in dtypes)
        raise refusal(TypeError, "R1", f"{name}.dtype={array.dtype} must be {names}")
    wanted = "[" + ", ".join(map(str, shape)) + "]"
    fits = len(shape) == array.ndim and all(
        isinstance(size, str) or size == own for size, own in zip(shape, array.shape, strict=True)
    )
    if not fits:
        raise refusal(ValueError, "R1", f"{name}.shape={array.shape} must be {wanted}")
    return array
