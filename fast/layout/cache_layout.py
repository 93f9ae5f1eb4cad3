"""The small formulas around a cache's layout; the layout itself is the kernels' `CacheLayout`."""

import numpy as np
from numpy.typing import DTypeLike

from kvproof.kernels import CacheLayout
from kvproof.spec.declarations.cache_dtypes import read_dtype

from ..reading.arguments import integer

__all__ = [
    "align_to_multiple",
    "get_dtype_packing",
    "get_num_slices_per_kv_cache_update_page",
    "get_page_size_bytes",
    "previous_power_of_2",
]

_UPDATE_BYTES = 16 << 20
_UPDATE_SLICES = 64


def align_to_multiple(value: int, multiple: int) -> int:
    """The least multiple of ``multiple``, which is at least 1, that is no less than ``value`` (R1). O(1).

    >>> align_to_multiple(129, 128)
    256
    """
    step = integer("multiple", multiple, minimum=1)
    return -(-integer("value", value, minimum=None) // step) * step


def previous_power_of_2(n: int) -> int:
    """The largest power of two that is no more than ``n``; 0 for 0 (R1). O(1).

    >>> previous_power_of_2(48)
    32
    """
    number = integer("n", n)
    return 1 << (number.bit_length() - 1) if number else 0


def get_dtype_packing(dtype: DTypeLike) -> int:
    """The number of elements of a cache's dtype in 32 bits: 1 for float32, 2 for bfloat16, 4 for int8 (R1). O(1).

    Raises:
        TypeError: a cache can't have this dtype.
    """
    return 4 // read_dtype("dtype", dtype).itemsize


def get_num_slices_per_kv_cache_update_page(page_size_bytes: int) -> int:
    """The number of slices that an update kernel handles at a time, limited by its memory. O(1).

    Args:
        page_size_bytes: bytes of one page of one layer.

    Returns:
        The largest power of two that is no more than 16 MiB / ``page_size_bytes``, from 1 to 64.
    """
    fitting = _UPDATE_BYTES // integer("page_size_bytes", page_size_bytes, minimum=1)
    return max(1, min(_UPDATE_SLICES, previous_power_of_2(fitting)))


def get_page_size_bytes(page_size: int, num_kv_heads: int, head_size: int, kv_cache_dtype: DTypeLike) -> int:
    """Bytes of one page of one layer in layout v3, its padding counted (CACHE-1). O(1).

    Args:
        page_size: tokens in a page.
        num_kv_heads: key/value heads of one device.
        head_size: numbers of a head, of keys and values alike; 64 shares rows.
        kv_cache_dtype: the element type of the cache.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: a size is below 1 (R1).
    """
    dtype = read_dtype("kv_cache_dtype", kv_cache_dtype)
    size = integer("head_size", head_size, minimum=1)
    layout = CacheLayout("v3", integer("num_kv_heads", num_kv_heads, minimum=1), size, size, get_dtype_packing(dtype))
    slot = layout.combined_rows * layout.storage_head_dim
    return integer("page_size", page_size, minimum=1) * slot * np.dtype(dtype).itemsize
