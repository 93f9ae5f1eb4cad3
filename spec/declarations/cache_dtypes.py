"""CACHE-4: the six element types of a cache, their short codes in documents, and the names by which calls take them."""

from typing import Any

import ml_dtypes
import numpy as np

from .reading import refusal

__all__ = ["CODES", "code_of", "read_dtype", "read_scaled_dtype", "spelled_out"]

CODES: dict[str, np.dtype[Any]] = {
    "f32": np.dtype(np.float32),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f16": np.dtype(np.float16),
    "f8_e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "f8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "int8": np.dtype(np.int8),
}
"""The element types of a cache, by code."""

_SPELLINGS = {
    **{code: code for code in CODES},
    **{dtype.name: code for code, dtype in CODES.items()},
    **dict.fromkeys(("f8_e4m3fn", "fp8_e4m3", "fp8_e4m3fn", "float8_e4m3"), "f8_e4m3"),
    "fp8_e5m2": "f8_e5m2",
    "i8": "int8",
}


def read_dtype(name: str, value: object) -> np.dtype[Any]:
    """Reads the element type of a cache: a dtype, a scalar type, or the code or name of one (R1). O(1).

    Raises:
        TypeError: it is no type that a cache can have.
    """
    if isinstance(value, str):
        if value in _SPELLINGS:
            return CODES[_SPELLINGS[value]]
    elif value is not None:
        try:
            dtype: np.dtype[Any] | None = np.dtype(value)  # type: ignore[call-overload]
        except (TypeError, ValueError):  # the latter of a dict
            dtype = None
        if dtype is not None and dtype in CODES.values():
            return dtype
    raise refusal(TypeError, "R1", f"{name}={value!r} must be one of {', '.join(CODES)}")


def spelled_out(value: Any) -> Any:
    """An element type by the name that numpy has for it, where it comes as a code or name of this module. O(1)."""
    return CODES[_SPELLINGS[value]].name if isinstance(value, str) and value in _SPELLINGS else value


def code_of(dtype: np.dtype[Any]) -> str:
    """The code of a cache's element type. O(1)."""
    return _SPELLINGS[dtype.name]


def read_scaled_dtype(name: str, value: object) -> np.dtype[Any]:
    """Reads the element type of pages with a scale for each slot and head: one that saturates (CACHE-4).

    Raises:
        TypeError: it is no type that a cache can have.
        ValueError: it does not saturate, and so has no scales.
    """
    dtype = read_dtype(name, value)
    if dtype.itemsize > 1:
        raise refusal(ValueError, "CACHE-4", f"{name}={code_of(dtype)} has no scales: int8, f8_e4m3 and f8_e5m2 have")
    return dtype
