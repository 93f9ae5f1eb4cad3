"""R1: reading arguments. Every public call reads all its arguments with these functions before it changes anything."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..declarations.reading import INT32, attribute, flag, index, instance, integer, listed, real, refusal, shown

__all__ = [
    "INT32",
    "array_of",
    "attribute",
    "flag",
    "index",
    "instance",
    "integer",
    "listed",
    "real",
    "refusal",
    "shown",
    "token_list",
]


def token_list(name: str, tokens: object) -> list[int]:
    """Reads token ids: integers that fit an int32, in an iterable or a one-dimensional integer array (R1).

    Messages show none of them (SEC-2).
    """
    if isinstance(tokens, np.ndarray):
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
            raise refusal(
                TypeError, "R1", f"{name} must be a 1-d integer array, not {tokens.dtype}{list(tokens.shape)}"
            )
        values: list[Any] = tokens.tolist()
        if tokens.dtype == np.int32:
            return values
    else:
        values = listed(name, tokens)
    for position, token in enumerate(values):
        if isinstance(token, bool | np.bool_) or not isinstance(token, int | np.integer):
            raise refusal(TypeError, "R1", f"{name}[{position}] must be an int, not a {type(token).__name__}")
        if not -(2**31) <= token < 2**31:
            raise refusal(ValueError, "R1", f"{name}[{position}]={token} does not fit an int32")
    return [int(token) for token in values]


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
