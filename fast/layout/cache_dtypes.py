"""The six element types of a cache, and their short codes in saved documents."""

import contextlib
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..reading.arguments import refusal

__all__ = ["CODES", "code_of", "read_dtype"]

CODES: dict[str, np.dtype[Any]] = {
    "f32": np.dtype(jnp.float32),
    "bf16": np.dtype(jnp.bfloat16),
    "f16": np.dtype(jnp.float16),
    "f8_e4m3": np.dtype(jnp.float8_e4m3fn),
    "f8_e5m2": np.dtype(jnp.float8_e5m2),
    "int8": np.dtype(jnp.int8),
}
"""The element types that a cache can have, by their codes."""

_CODE_OF = {dtype: code for code, dtype in CODES.items()}
_SPELLINGS = {
    **CODES,
    **{dtype.name: dtype for dtype in CODES.values()},
    **dict.fromkeys(("f8_e4m3fn", "fp8_e4m3", "fp8_e4m3fn", "float8_e4m3"), CODES["f8_e4m3"]),
    "fp8_e5m2": CODES["f8_e5m2"],
    "i8": CODES["int8"],
}


def read_dtype(name: str, value: object) -> np.dtype[Any]:
    """Reads the element type of a cache: a dtype, a scalar type or a name of one (R1). O(1).

    Args:
        name: the name of the argument.
        value: the argument.

    Raises:
        TypeError: the value is not an element type of caches.
    """
    dtype: np.dtype[Any] | None = None
    if isinstance(value, str):
        dtype = _SPELLINGS.get(value)
    elif value is not None:
        with contextlib.suppress(TypeError, ValueError):  # then it is refused below
            dtype = np.dtype(value)  # type: ignore[call-overload]
    if dtype is None or dtype not in _CODE_OF:
        raise refusal(TypeError, "R1", f"{name}={value!r} must be one of {', '.join(CODES)}")
    return dtype


def code_of(dtype: np.dtype[Any]) -> str:
    """The code of a cache's element type. O(1)."""
    return _CODE_OF[dtype]
