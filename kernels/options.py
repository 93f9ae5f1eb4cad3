"""What an attention call is compiled for, apart from its shapes."""

from dataclasses import dataclass
from typing import Any

from .layout import CacheLayout

__all__ = ["AttentionOptions"]


@dataclass(frozen=True)
class AttentionOptions:
    """The static options of an attention call, checked and normalised; hashable.

    Attributes:
        layout: how the cache's slots are laid out.
        kv_dtype: what the cache's numbers mean, a numpy dtype; the cache's own but where it is stored as bits.
        score_scale: what the product of a query and a stored key is multiplied by: scale * q_scale * k_scale.
        causal: whether a query reads keys up to its own position only (ATT-1).
        window: a query at p reads keys j > p - window only, causal or not; None: no window.
        chunk: a query at p reads keys j >= p // chunk * chunk only; None: no chunks.
        soft_cap: c: scores s become c * tanh(s / c) before the mask; None: no cap.
        value_scale: what the stored values are multiplied by: v_scale.
    """

    layout: CacheLayout
    kv_dtype: Any
    score_scale: float
    causal: bool = True
    window: int | None = None
    chunk: int | None = None
    soft_cap: float | None = None
    value_scale: float = 1.0
