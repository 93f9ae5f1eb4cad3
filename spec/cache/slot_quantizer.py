"""CACHE-4: the quantizer that gives each slot and head of a view's pages a scale."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..declarations.cache_dtypes import CODES, code_of, read_scaled_dtype
from ..layout.cache_dtypes import ScaledPages
from ..reading.arguments import array_of, integer

__all__ = ["SlotQuantizer"]


@dataclass(frozen=True)
class SlotQuantizer:
    """Adds scales by slot and head, all 1, to new pages; updates set them.

    Attributes:
        dtype: code of the element type: int8, f8_e4m3 or f8_e5m2.

    Raises:
        TypeError: ``dtype`` is no element type of a cache.
        ValueError: ``dtype`` does not saturate, and so has no scales (R1).
    """

    dtype: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", code_of(read_scaled_dtype("dtype", self.dtype)))

    def __call__(self, pages: Any, num_kv_heads: int | None = None) -> ScaledPages:
        """Pages with scales of 1.

        Args:
            pages: `[P, page, rows, Dp]` or `[P, page, groups, packing, Dp]`, of the quantizer's dtype.
            num_kv_heads: H; None: half the number of rows, too large if rows are padded.

        Raises:
            TypeError: ``pages`` is no array, or one of another dtype.
            ValueError: ``pages`` has other dimensions (R1).
        """
        four = getattr(pages, "ndim", 0) == 4
        shape = ("P", "page", "rows", "Dp") if four else ("P", "page", "groups", "packing", "Dp")
        values = array_of("pages", pages, shape, (CODES[self.dtype],))
        rows = values.shape[2] if four else values.shape[2] * values.shape[3]
        heads = rows // 2 if num_kv_heads is None else integer("num_kv_heads", num_kv_heads, minimum=1)
        return ScaledPages(values, np.ones((*values.shape[:2], 2 * heads), np.float32))
