"""MAN-13: the arrays of a state layer: how its declaration is read when its pages are made."""

from typing import Any, NamedTuple

import numpy as np

from .cache_dtypes import CODES
from .groups import MambaSpec
from .reading import index, instance, integer, listed, refusal

__all__ = ["StateArray", "read_state_arrays"]

_DTYPES = tuple(CODES[code] for code in ("f32", "bf16", "f16"))


class StateArray(NamedTuple):
    """One array of a layer's state.

    Attributes:
        shape: shape of a state.
        dtype: element type.
        head_axis: axis of ``shape`` that is split like KV heads; None: the array is not split.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    head_axis: int | None


def read_state_arrays(spec: object, num_pages: object, head_axes: object) -> tuple[int, list[StateArray]]:
    """Reads how many pages a state layer is to have, and the arrays of its state (R1).

    Args:
        spec: the declaration of the layer.
        num_pages: pages of each page shard, the null page included.
        head_axes: for each array its axis that is split like KV heads, or None; None: no array is split.

    Raises:
        TypeError: no `MambaSpec`, or an element type other than f32, bf16 and f16.
        IndexError: an array has no such axis.
        ValueError: less than 2 pages (POOL-1), or numbers of shapes, dtypes and axes that differ.
    """
    layer = instance("spec", spec, MambaSpec, "a MambaSpec")
    pages = integer("num_pages", num_pages, minimum=2)
    shapes = [tuple(integer("spec.shapes", size, minimum=1) for size in shape) for shape in layer.shapes]
    dtypes = [np.dtype(dtype) for dtype in layer.dtypes]
    for dtype in dtypes:
        if dtype not in _DTYPES:
            raise refusal(TypeError, "R1", f"spec.dtypes={dtype.name} must be float32, bfloat16 or float16")
    axes = [None] * len(shapes) if head_axes is None else listed("head_axes", head_axes)
    if not len(shapes) == len(dtypes) == len(axes):
        raise refusal(
            ValueError, "R1", f"spec has {len(shapes)} shapes and {len(dtypes)} dtypes, head_axes {len(axes)} axes"
        )
    arrays = []
    for shape, dtype, axis in zip(shapes, dtypes, axes, strict=True):
        arrays.append(StateArray(shape, dtype, None if axis is None else index("head_axes", axis, len(shape))))
    return pages, arrays
