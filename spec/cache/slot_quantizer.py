"""CACHE-4: the quantizer that gives each slot and head of a view's pages a scale."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..declarations.cache_dtypes import CODES, code_of, read_scaled_dtype
from ..declarations.cache_metadata import read_version
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

    def __call__(self, pages: Any, num_kv_heads: int | None = None, version: str | None = None) -> ScaledPages:
        """Pages with scales of 1.

        Args:
            pages: `[P, page, rows, Dp]`, `[P, page, groups, packing, Dp]`, or `[P, rows, Dp, page]` in seq_on_lane, of
                the quantizer's dtype.
            num_kv_heads: H; None: half the number of rows, too large if rows are padded.
            version: name of the layout, which ``seq_on_lane`` needs; None: any other layout.

        Raises:
            TypeError: ``pages`` is no array, or one of another dtype; ``version`` is no str.
            ValueError: ``pages`` has other dimensions (R1).
        """
        on_lane = version is not None and read_version(version) == "seq_on_lane"
        four = on_lane or getattr(pages, "ndim", 0) == 4
        shape = ("P", "page", "rows", "Dp") if four else ("P", "page", "groups", "packing", "Dp")
        values = array_of("pages", pages, shape, (CODES[self.dtype],))
        rows = values.shape[1 if on_lane else 2] * (1 if four else values.shape[3])
        heads = rows // 2 if num_kv_heads is None else integer("num_kv_heads", num_kv_heads, minimum=1)
        last = (2 * heads, values.shape[3]) if on_lane else (values.shape[1], 2 * heads)
        return ScaledPages(values, np.ones((len(values), *last), np.float32))
