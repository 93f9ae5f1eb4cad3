"""CACHE-2, CACHE-3: a ``kv_pages`` argument, opened: its element type, its layout, and access to its slots."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..reading.arguments import array_of, refusal
from .cache_dtypes import CODES, LARGEST, ScaledPages, read_scale, saturated, scale_of, stored_dtype
from .cache_layout import layout_of_shape

__all__ = ["OpenPages"]


class OpenPages:
    """The pages of one layer, of any layout, with or without scales by slot and head.

    Args:
        kv_pages: the argument: an array or `ScaledPages`.
        head_dim: D.
        v_head_dim: Dv.
        num_kv_heads: H; None: the number that the pages have room for.
        kv_dtype: element type where the pages hold bits; see `stored_dtype`.
        k_scale: factor of stored keys; None: 1.
        v_scale: factor of stored values; None: 1.
        version: name of the layout; None: v2 or v3, see `layout_of_shape`.

    Attributes:
        layout: layout of the pages.
        num_pages: P.
        page_size: slots in a page.

    Raises:
        TypeError: a dtype that pages can't have.
        ValueError: a shape that is not that of such pages, or int8 pages without scales (CACHE-4).
    """

    def __init__(
        self,
        kv_pages: Any,
        head_dim: int,
        v_head_dim: int,
        num_kv_heads: int | None,
        kv_dtype: object,
        k_scale: object,
        v_scale: object,
        version: object = None,
    ) -> None:
        scaled = isinstance(kv_pages, ScaledPages)
        name = "kv_pages.values" if scaled else "kv_pages"
        values = kv_pages.values if scaled else kv_pages
        array = array_of(name, values, tuple(map(str, range(getattr(values, "ndim", 0)))), ())
        dtype = stored_dtype(name, array, kv_dtype)
        self.layout = layout_of_shape(array.shape, dtype, head_dim, v_head_dim, num_kv_heads, version)
        self._array_dtype = array.dtype
        self._slots = self.layout.slots_first(array.view(dtype))
        self.num_pages, self.page_size = self._slots.shape[:2]
        self._scales: NDArray[np.float32] | None = None
        if scaled:
            if dtype not in LARGEST:
                raise refusal(TypeError, "R1", f"kv_pages.values.dtype={dtype.name} has no scales: int8 and fp8 have")
            heads = 2 * self.layout.num_kv_heads
            last = (heads, self.page_size) if self.layout.slots_last else (self.page_size, heads)
            scales = array_of("kv_pages.scales", kv_pages.scales, (self.num_pages, *last), (CODES["f32"],))
            self._scales = self.layout.slots_first(scales)
        factors = read_scale("k_scale", k_scale), read_scale("v_scale", v_scale)
        if dtype == CODES["int8"] and not scaled and None in factors:
            raise refusal(
                ValueError,
                "CACHE-4",
                f"kv_pages of int8 need scales: ScaledPages, or k_scale={k_scale} and v_scale={v_scale} as numbers",
            )
        self._k_scale, self._v_scale = (1.0 if factor is None else factor for factor in factors)

    # -- Reading ----------------------------------------------------------------------------------

    def read(self, page_ids: NDArray[Any], offsets: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The keys and values in slots, multiplied by their scales.

        Args:
            page_ids: the slots' pages, which must exist, `int[n]`.
            offsets: the slots' offsets in them, `int[n]`.

        Returns:
            Keys `f64[n, H, D]` and values `f64[n, H, Dv]`.
        """
        stored_keys, stored_values = self.layout.unpack(self._slots[page_ids, offsets])
        keys = stored_keys.astype(np.float64) * self._k_scale
        values = stored_values.astype(np.float64) * self._v_scale
        if self._scales is not None:
            scales = self._scales[page_ids, offsets].astype(np.float64)
            keys *= scales[:, 0::2, np.newaxis]
            values *= scales[:, 1::2, np.newaxis]
        return keys, values

    # -- Writing ----------------------------------------------------------------------------------

    def copy_to_write(self) -> None:
        """Copies the pages, so that writes do not change the argument."""
        self._slots = self._slots.copy()
        if self._scales is not None:
            self._scales = self._scales.copy()

    def write(self, slot: int, keys: NDArray[Any], values: NDArray[Any]) -> None:
        """Writes one token into one slot; the slot's padding becomes 0 (CACHE-3).

        Args:
            slot: page times ``page_size`` plus offset; one that the pages don't have is not written.
            keys: `[H, D]`.
            values: `[H, Dv]`.
        """
        if not 0 <= slot < self.num_pages * self.page_size:
            return
        page, offset = divmod(slot, self.page_size)
        keys = keys.astype(np.float64) / self._k_scale
        values = values.astype(np.float64) / self._v_scale
        dtype = self._slots.dtype
        if self._scales is not None:
            for head in range(self.layout.num_kv_heads):
                for numbers, place in ((keys, 2 * head), (values, 2 * head + 1)):
                    scale = scale_of(numbers[head], dtype)
                    self._scales[page, offset, place] = scale
                    numbers[head] /= np.float64(scale)
        self._slots[page, offset] = self.layout.pack(saturated(keys, dtype), saturated(values, dtype))

    @property
    def pages(self) -> Any:
        """The pages, of the same kind as the argument."""
        values = self.layout.as_stored(self._slots.view(self._array_dtype))
        return values if self._scales is None else ScaledPages(values, self.layout.as_stored(self._scales))
