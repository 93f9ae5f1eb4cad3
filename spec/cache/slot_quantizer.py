"""CACHE-4: what makes the pages of a view such that each slot and head has a scale."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..layout.cache_dtypes import CODES, LARGEST, ScaledPages, code_of, read_dtype
from ..reading.arguments import integer, refusal
from ..reading.array_arguments import array_of

__all__ = ["SlotQuantizer"]


@dataclass(frozen=True)
class SlotQuantizer:
    """Gives fresh pages scales by slot and head; updates set them.

    Attributes:
        dtype: int8, e4m3 or e5m2; kept as its code.

    Raises:
        TypeError: no such type.
        ValueError: a type that does not saturate, which needs no scales (R1).
    """

    dtype: Any

    def __post_init__(self) -> None:
        dtype = read_dtype("dtype", self.dtype)
        if dtype not in LARGEST:
            raise refusal(
                ValueError, "CACHE-4", f"dtype={code_of(dtype)} has no scales: int8, f8_e4m3 and f8_e5m2 have"
            )
        object.__setattr__(self, "dtype", code_of(dtype))

    def __call__(self, pages: Any, num_kv_heads: int | None = None) -> ScaledPages:
        """Pages with scales of 1.

        Args:
            pages: `[P, page, rows, Dp]` or `[P, page, groups, packing, Dp]`, of the quantizer's dtype.
            num_kv_heads: H; None: half as many as there are rows, padding ones among them.

        Raises:
            TypeError: no array of this dtype.
            ValueError: pages of other dimensions (R1).
        """
        four = getattr(pages, "ndim", 0) == 4
        shape = ("P", "page", "rows", "Dp") if four else ("P", "page", "groups", "packing", "Dp")
        values = array_of("pages", pages, shape, (CODES[self.dtype],))
        rows = values.shape[2] if four else values.shape[2] * values.shape[3]
        heads = rows // 2 if num_kv_heads is None else integer("num_kv_heads", num_kv_heads, minimum=1)
        return ScaledPages(values, np.ones((*values.shape[:2], 2 * heads), np.float32))
