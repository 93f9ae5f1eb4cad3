"""CACHE-4: the quantizer that gives the pages of a view a scale for each slot and head."""

from dataclasses import dataclass
from math import prod
from typing import Any

import jax.numpy as jnp

from kvproof.kernels import ScaledPages, storage_dtype
from kvproof.spec.declarations.cache_dtypes import CODES, code_of, read_scaled_dtype
from kvproof.spec.declarations.cache_metadata import read_version

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

    def __call__(self, pages: AnyArray, num_kv_heads: int | None = None, version: str | None = None) -> ScaledPages:
        """Pages with scales of 1. O(scales).

        Args:
            pages: `[P, page, rows, Dp]`, `[P, page, groups, packing, Dp]`, or in seq_on_lane `[P, rows, Dp, page]`, of
                the quantizer's dtype or bits of it.
            num_kv_heads: H; None: half as many as there are rows, padding ones among them.
            version: the layout's name, which seq_on_lane needs; None: any other's.

        Raises:
            TypeError: no array of this dtype, or ``version`` is no str.
            ValueError: pages of other dimensions (R1).
        """
        dtype = CODES[self.dtype]
        if getattr(pages, "dtype", None) not in (dtype, storage_dtype(dtype, "cpu")):
            kind = getattr(pages, "dtype", type(pages).__name__)
            raise refusal(TypeError, "R1", f"pages must be an array of {dtype}, not {kind}")
        last = version is not None and read_version(version) == "seq_on_lane"
        if pages.ndim not in ((4,) if last else (4, 5)):
            raise refusal(ValueError, "R1", f"pages.shape={pages.shape} must have 4 dimensions (5 in v3)")
        page, rows = (pages.shape[3], pages.shape[1]) if last else (pages.shape[1], prod(pages.shape[2:-1]))
        heads = rows // 2 if num_kv_heads is None else integer("num_kv_heads", num_kv_heads, minimum=1)
        shape = (pages.shape[0], 2 * heads, page) if last else (pages.shape[0], page, 2 * heads)
        return ScaledPages(jnp.asarray(pages), jnp.ones(shape, jnp.float32))
