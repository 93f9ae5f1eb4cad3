"""SEC-3: a device's arrays and partition managers in a cache's documents, whose format stands in the declarations.

Pages that a device holds as bits are written as the numbers that the bits mean.
"""

from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from numpy.typing import NDArray

from kvproof.kernels.storage import ScaledPages, is_bits
from kvproof.spec.declarations.documents import array_to_json, axes_of, page_arrays_of, page_arrays_to_json

from ..reading.arguments import refusal
from .partitions import AxisRules

__all__ = ["device_array_to_json", "pages_of", "pages_to_json", "rules_of", "rules_to_json"]


def device_array_to_json(array: jax.Array | NDArray[Any]) -> dict[str, Any]:
    """An array as an object; waits for the device. O(size).

    Where other processes have parts of it, all of them are to make this call, and each gets the whole.
    """
    return array_to_json(_on_host(array))


def _on_host(array: jax.Array | NDArray[Any]) -> NDArray[Any]:
    """All of an array; what only other processes have is gathered."""
    if isinstance(array, jax.Array) and not (array.is_fully_addressable or array.is_fully_replicated):
        array = multihost_utils.process_allgather(array, tiled=True)
    return np.asarray(array)


def pages_to_json(kv_pages: jax.Array | ScaledPages, kv_dtype: np.dtype[Any]) -> dict[str, Any]:
    """Pages as an object: an array of numbers, or scaled ones; as `device_array_to_json`. O(size).

    Args:
        kv_pages: the pages.
        kv_dtype: what the pages' bits mean, where they are bits.
    """
    if isinstance(kv_pages, ScaledPages):
        return page_arrays_to_json(_numbers(kv_pages.values, kv_dtype), _on_host(kv_pages.scales))
    return page_arrays_to_json(_numbers(kv_pages, kv_dtype), None)


def _numbers(pages: jax.Array, kv_dtype: np.dtype[Any]) -> NDArray[Any]:
    values = _on_host(pages)
    return values.view(kv_dtype) if is_bits(values.dtype) else values


def pages_of(name: str, value: object, kv_dtype: np.dtype[Any], stored: np.dtype[Any]) -> NDArray[Any] | ScaledPages:
    """Reads pages into the dtype in which a device holds them. O(size).

    Args:
        name: where they stand.
        value: what stands there.
        kv_dtype: what their numbers must be.
        stored: the dtype of the device's array: ``kv_dtype``, or bits for it.

    Raises:
        ValueError: they are damaged, or of another dtype (SEC-3).
    """
    values, scales = page_arrays_of(name, value, kv_dtype)
    held: Any = values.view(stored)
    read_scales: Any = scales
    return held if scales is None else ScaledPages(held, read_scales)


# -- Partition managers ---------------------------------------------------------------------------


def rules_to_json(partition_manager: object) -> dict[str, Any]:
    """The rules of a partition manager.

    Raises:
        TypeError: it is no `AxisRules`: JSON can't tell of another's (R1).
    """
    if not isinstance(partition_manager, AxisRules):
        kind = type(partition_manager).__name__
        raise refusal(TypeError, "R1", f"partition_manager={kind} must be AxisRules to be written")
    return {"pages": partition_manager.pages, "kv_heads": partition_manager.kv_heads}


def rules_of(name: str, value: object) -> AxisRules:
    """Reads the rules of a partition manager.

    Raises:
        ValueError: they are none (SEC-3).
    """
    return AxisRules(**axes_of(name, value))
