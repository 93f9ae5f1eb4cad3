"""CACHE-2: where the keys and values of a slot lie in its page: the three layouts.

There are P pages of ``page`` slots, H KV heads, keys of D and values of Dv elements. A slot consists of rows of
Dp = align(max(D, Dv), 128) elements; each holds one head's key or value, padded with zeros. Keys and values alternate:
row 2h is the key of head h, row 2h + 1 its value. The rows of a slot::

    v2   [P, page, 2H, Dp]
    v3   [P, page, groups, packing, Dp]     packing = 32 // bits of an element
         C = align(2H, packing) rows; row r is lane r % packing of group r // packing; rows from 2H on are zeros
    seq_on_lane   [P, 2H, Dp, page]         a slot is a column; Dp = align(max(D, Dv), 8 * packing)

In v3 with D = Dv = 64, a head's key (columns 0 to 63) and value (columns 64 to 127) share a row: row h is head h, and
C = align(H, packing).

Layout seq_on_lane is what some kernels of tpu-inference read. Its pages have four dimensions as those of v2, so that
whoever hands them over names the layout; their scales are `f32[P, 2H, page]`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..declarations.cache_dtypes import read_dtype
from ..declarations.cache_metadata import read_version
from ..reading.arguments import integer, refusal
from ..table.page_table import cdiv

__all__ = [
    "CacheLayout",
    "align_to_multiple",
    "get_dtype_packing",
    "get_num_slices_per_kv_cache_update_page",
    "get_page_size_bytes",
    "layout_of_shape",
    "previous_power_of_2",
]

_LANES = 128
"""The width of a TPU's vector registers; rows are padded to a multiple of it."""

_SUBLANES = 8
"""The height of those registers, in 32-bit words."""

_UPDATE_BYTES = 16 * 2**20
_UPDATE_SLICES = 64


def align_to_multiple(value: int, multiple: int) -> int:
    """The least multiple of ``multiple`` that is at least ``value`` (R1)."""
    step = integer("multiple", multiple, minimum=1)
    return cdiv(integer("value", value, minimum=None), step) * step


def previous_power_of_2(n: int) -> int:
    """The largest power of two that is at most ``n``; 0 for 0 (R1)."""
    number = integer("n", n)
    return 1 << (number.bit_length() - 1) if number else 0


def get_dtype_packing(dtype: Any) -> int:
    """The number of elements of a cache's dtype in 32 bits.

    Args:
        dtype: an element type of a cache, or its code.
    """
    return 4 // read_dtype("dtype", dtype).itemsize


def get_num_slices_per_kv_cache_update_page(page_size_bytes: int) -> int:
    """The number of update slices that a kernel handles at a time; a page for each must fit into its memory.

    Args:
        page_size_bytes: bytes of one page of one layer.

    Returns:
        The largest power of two that is at most 16 MiB / ``page_size_bytes``, but at least 1 and at most 64.
    """
    return max(
        1, min(_UPDATE_SLICES, previous_power_of_2(_UPDATE_BYTES // integer("page_size_bytes", page_size_bytes, 1)))
    )


def get_page_size_bytes(page_size: int, num_kv_heads: int, head_size: int, kv_cache_dtype: Any) -> int:
    """The bytes of one page of one layer in layout v3, its padding included (CACHE-1).

    Args:
        page_size: tokens in a page.
        num_kv_heads: H.
        head_size: D, of keys and values.
        kv_cache_dtype: the cache's element type, or its code.
    """
    dtype = read_dtype("kv_cache_dtype", kv_cache_dtype)
    layout = CacheLayout(
        "v3",
        integer("num_kv_heads", num_kv_heads, 1),
        integer("head_size", head_size, 1),
        head_size,
        get_dtype_packing(dtype),
    )
    return integer("page_size", page_size, 1) * layout.slot_elements * dtype.itemsize


@dataclass(frozen=True)
class CacheLayout:
    """How the slots of one cache are laid out.

    Attributes:
        version: ``v2``, ``v3`` or ``seq_on_lane``.
        num_kv_heads: H.
        head_dim: D.
        v_head_dim: Dv.
        packing: elements in 32 bits; not used by v2.
    """

    version: str
    num_kv_heads: int
    head_dim: int
    v_head_dim: int
    packing: int

    @property
    def shares_rows(self) -> bool:
        """Whether a head's key and value share a row."""
        return self.version == "v3" and self.head_dim == self.v_head_dim == _LANES // 2

    @property
    def storage_head_dim(self) -> int:
        """Dp: the elements of a row."""
        multiple = _SUBLANES * self.packing if self.slots_last else _LANES
        return align_to_multiple(max(self.head_dim, self.v_head_dim), multiple)

    @property
    def combined_rows(self) -> int:
        """C: the rows of a slot."""
        if self.version != "v3":
            return 2 * self.num_kv_heads
        return align_to_multiple(self.num_kv_heads * (1 if self.shares_rows else 2), self.packing)

    @property
    def slot_shape(self) -> tuple[int, ...]:
        """The shape of a slot."""
        if self.version != "v3":
            return self.combined_rows, self.storage_head_dim
        return self.combined_rows // self.packing, self.packing, self.storage_head_dim

    @property
    def slot_elements(self) -> int:
        """The elements of a slot, padding included (CACHE-1)."""
        return self.combined_rows * self.storage_head_dim

    @property
    def slots_last(self) -> bool:
        """Whether slots are the last axis of pages and of their scales, not the second."""
        return self.version == "seq_on_lane"

    @property
    def head_axis(self) -> int:
        """The axis of pages, and of their scales, that belongs to heads."""
        return 1 if self.slots_last else 2

    def page_shape(self, page_size: int) -> tuple[int, ...]:
        """The shape of a page."""
        return (*self.slot_shape, page_size) if self.slots_last else (page_size, *self.slot_shape)

    def slots_first(self, pages: NDArray[Any]) -> NDArray[Any]:
        """A view of pages, or of their scales, in which slots are the second axis."""
        return np.moveaxis(pages, -1, 1) if self.slots_last else pages

    def as_stored(self, pages: NDArray[Any]) -> NDArray[Any]:
        """The way back from `slots_first`."""
        return np.ascontiguousarray(np.moveaxis(pages, 1, -1)) if self.slots_last else pages

    def key_place(self, head: int) -> tuple[int, slice]:
        """The row of a head's key and its columns."""
        return (head if self.shares_rows else 2 * head), slice(0, self.head_dim)

    def value_place(self, head: int) -> tuple[int, slice]:
        """The row of a head's value and its columns."""
        if self.shares_rows:
            return head, slice(self.head_dim, 2 * self.head_dim)
        return 2 * head + 1, slice(0, self.v_head_dim)

    def pack(self, keys: NDArray[Any], values: NDArray[Any]) -> NDArray[Any]:
        """One token as a slot, its padding 0 (CACHE-3).

        Args:
            keys: `[H, D]`, in the cache's dtype.
            values: `[H, Dv]`, in the cache's dtype.
        """
        rows = np.zeros((self.combined_rows, self.storage_head_dim), keys.dtype)
        for head in range(self.num_kv_heads):
            rows[self.key_place(head)] = keys[head]
            rows[self.value_place(head)] = values[head]
        return rows.reshape(self.slot_shape)

    def unpack(self, slots: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """The keys and values in slots (CACHE-2).

        Args:
            slots: `[..., *slot_shape]`.

        Returns:
            Keys `[..., H, D]` and values `[..., H, Dv]`.
        """
        lead = slots.shape[: slots.ndim - len(self.slot_shape)]
        rows = slots.reshape(*lead, self.combined_rows, self.storage_head_dim)
        heads = range(self.num_kv_heads)
        keys = np.stack([rows[..., *self.key_place(head)] for head in heads], axis=-2)
        values = np.stack([rows[..., *self.value_place(head)] for head in heads], axis=-2)
        return keys, values


def layout_of_shape(
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    head_dim: int,
    v_head_dim: int,
    num_kv_heads: int | None,
    version: object = None,
) -> CacheLayout:
    """The layout of pages of some shape (R1).

    Args:
        shape: `[P, page, 2H, Dp]`, `[P, page, groups, packing, Dp]`, or `[P, 2H, Dp, page]` in seq_on_lane.
        dtype: the pages' element type.
        head_dim: D.
        v_head_dim: Dv.
        num_kv_heads: H; None: the number that the rows have room for, too large if rows are padded.
        version: the name of the layout; None: v2 or v3, as the shape has four dimensions or five.

    Raises:
        TypeError: the name of the layout is no str.
        ValueError: the shape is not that of pages of these heads, or has more slots than an int32 can number.
    """
    if len(shape) not in (4, 5):
        raise refusal(ValueError, "R1", f"kv_pages.shape={shape} must have 4 dimensions (v2) or 5 (v3)")
    name = read_version(version) if version is not None else "v2" if len(shape) == 4 else "v3"
    if len(shape) != (5 if name == "v3" else 4):
        raise refusal(ValueError, "R1", f"kv_pages.shape={shape} has not the dimensions of layout {name}")
    packing = get_dtype_packing(dtype)
    if num_kv_heads is None:
        one = CacheLayout(name, 1, head_dim, v_head_dim, packing)
        rows = shape[2] * shape[3] if name == "v3" else shape[one.head_axis]
        num_kv_heads = max(1, rows if one.shares_rows else rows // 2)
    layout = CacheLayout(name, num_kv_heads, head_dim, v_head_dim, packing)
    num_pages, page_size = shape[0], shape[-1 if layout.slots_last else 1]
    wanted = layout.page_shape(page_size)
    if shape[1:] != wanted:
        raise refusal(
            ValueError,
            "R1",
            f"kv_pages.shape={shape} must end in {wanted} for {num_kv_heads} KV heads with keys of "
            f"{head_dim}, values of {v_head_dim} and {dtype.name}",
        )
    require_slots(shape, num_pages * page_size)
    return layout


def require_slots(shape: tuple[int, ...], num_slots: int) -> None:
    """Refuses pages with more slots than an int32 can number (R1).

    Args:
        shape: that of the pages, for the message.
        num_slots: the number of their slots.
    """
    if num_slots >= 2**31:
        raise refusal(ValueError, "R1", f"kv_pages.shape={shape}: too many for an int32 slot")
