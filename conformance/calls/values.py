"""Values that calls are drawn from: extra keys of every kind, and what is wrong with any argument of some sort."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvproof.spec.declarations import (
    CacheSalt,
    ExtraKey,
    LoraAdapter,
    MultimodalItem,
    PromptEmbeddings,
    WeightsVersion,
)

__all__ = ["BAD_TIMES", "EXTRA_KEYS", "NO_INTS", "NO_LISTS", "PRIORITIES", "STRANGER", "signed"]

NO_INTS: tuple[Any, ...] = (True, 1.0, "1", None)
"""Values that are not ints (R1)."""

NO_LISTS: tuple[Any, ...] = (None, 1, "12")
"""Values that are not lists of pages or ids (R1)."""

STRANGER = "no page"
"""Values that are neither a page nor a key."""

BAD_TIMES: tuple[Any, ...] = (float("nan"), float("inf"), "1", True)
"""Values that are not times (R1)."""

PRIORITIES = (1, 1, 2, -1, 0, -(2**31), 2**31 - 1)
"""Priorities that are drawn."""

EXTRA_KEYS: tuple[tuple[ExtraKey, ...], ...] = (
    (),
    (CacheSalt("a"),),
    (CacheSalt(""),),
    (LoraAdapter("a"),),
    (WeightsVersion("a"),),
    (MultimodalItem(b"\0\0a", 0, 1),),
    (MultimodalItem(b"\0\0b", 0, 1),),
    (MultimodalItem(b"\0\0a", 1, 2),),
    (MultimodalItem(b"\0\0b", 0, 2), MultimodalItem(b"\0\0a", 3, 1)),
    (PromptEmbeddings(b"a", 0, 1),),
    (LoraAdapter("a"), CacheSalt("a")),
    (CacheSalt("a"), LoraAdapter("a")),
)
"""Extra keys of every kind, with the same text under different kinds, and contents that begin alike."""


def signed(seed: int, shape: tuple[int, ...], dtype: str = "float32", scale: float = 1.0) -> NDArray[Any]:
    """Normal numbers of both signs, the same for the same seed: with uniform ones most mistakes don't show."""
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(dtype)
