"""SEC-3: arrays of a device on the host, for documents. Pages that it holds as bits are the numbers that they mean."""

from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from numpy.typing import NDArray

from kvproof.kernels.storage import ScaledPages, is_bits
from kvproof.spec.declarations.codec import Part
from kvproof.spec.declarations.documents import page_arrays_from_json, page_arrays_to_json

__all__ = ["on_host", "pages_of", "pages_to_json"]


def on_host(array: jax.Array | NDArray[Any]) -> NDArray[Any]:
    """All of an array; waits for the device. O(size).

    Where other processes have parts of it, all of them are to make this call, and each gets the whole.
    """
    if isinstance(array, jax.Array) and not (array.is_fully_addressable or array.is_fully_replicated):
        array = multihost_utils.process_allgather(array, tiled=True)
    return np.asarray(array)


def pages_to_json(kv_pages: jax.Array | ScaledPages, kv_dtype: np.dtype[Any]) -> dict[str, Any]:
    """Pages as an object: an array of numbers, or scaled ones; as `on_host`. O(size).

    Args:
        kv_pages: the pages.
        kv_dtype: what the pages' bits mean, where they are bits.
    """
    values, *scales = (on_host(array) for array in jax.tree.leaves(kv_pages))
    return page_arrays_to_json(values.view(kv_dtype) if is_bits(values.dtype) else values, *scales)


def pages_of(part: Part, kv_dtype: np.dtype[Any], stored: np.dtype[Any]) -> NDArray[Any] | ScaledPages:
    """Reads pages into the dtype in which a device holds them. O(size).

    Args:
        part: what stands where pages should.
        kv_dtype: what their numbers must be.
        stored: the dtype of the device's array: ``kv_dtype``, or bits for it.

    Raises:
        ValueError: they are damaged, or of another dtype (SEC-3).
    """
    values, scales = page_arrays_from_json(part, kv_dtype)
    held: Any = values.view(stored)
    read_scales: Any = scales
    return held if scales is None else ScaledPages(held, read_scales)
