"""CACHE-4: the quantizer that gives the pages of a view a scale for each slot and head."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from kvproof.kernels import ScaledPages, storage_dtype
from kvproof.spec.declarations.cache_dtypes import CODES, code_of, read_scaled_dtype

from ..reading.arguments import integer, refusal
from .cache_programs import AnyArray

__all__ = ["SlotQuantizer"]


@dataclass(frozen=True)
class SlotQuantizer:
    """Adds scales by slot and head to new pages; updates of the cache set them.

    Attributes:
        dtype: int8, e4m3 or e5m2; kept as its code.

    Raises:
        TypeError: no cache can be of this dtype.
        ValueError: a dtype that does not saturate, and so needs no scales (CACHE-4).
    """

    dtype: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", code_of(read_scaled_dtype("dtype", self.dtype)))

    def __call__(self, pages: AnyArray, num_kv_heads: int | None = None) -> ScaledPages:
        """Pages with scales of 1. O(scales).

        Args:
            pages: `[P, page, rows, Dp]` or `[P, page, groups, packing, Dp]`, of the quantizer's dtype or bits of it.
            num_kv_heads: H; None: half as many as there are rows, padding ones among them.

        Raises:
            TypeError: no array of this dtype.
            ValueError: pages of other dimensions (R1).
        """
        dtype = CODES[self.dtype]
        if getattr(pages, "dtype", None) not in (dtype, storage_dtype(dtype, "cpu")):
            kind = getattr(pages, "dtype", type(pages).__name__)
            raise refusal(TypeError, "R1", f"pages must be an array of {dtype}, not {kind}")
        if pages.ndim not in (4, 5):
            raise refusal(ValueError, "R1", f"pages.shape={pages.shape} must have 4 dimensions (v2) or 5 (v3)")
        rows = pages.shape[2] if pages.ndim == 4 else pages.shape[2] * pages.shape[3]
        heads = rows // 2 if num_kv_heads is None else integer("num_kv_heads", num_kv_heads, minimum=1)
        values = jnp.asarray(pages)
        return ScaledPages(values, jnp.ones((*pages.shape[:2], 2 * heads), jnp.float32))
