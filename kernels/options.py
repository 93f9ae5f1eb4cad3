"""What an attention call is compiled for, apart from its shapes: static, checked, normalised and hashable."""

from dataclasses import dataclass
from typing import Any

from .layout import LANES, CacheLayout, round_up

__all__ = ["AnyOptions", "AttentionOptions", "MlaOptions", "UpdateOptions"]


@dataclass(frozen=True)
class UpdateOptions:
    """How new keys and values become rows of a cache's slots.

    Attributes:
        layout: how the cache's slots are laid out.
        kv_dtype: what the cache's numbers mean, a numpy dtype; the cache's own but where it is stored as bits.
        k_scale: what keys are divided by before they are stored, and multiplied by when they are read; None: 1.
        v_scale: the same for values.
    """

    layout: CacheLayout
    kv_dtype: Any
    k_scale: float | None = None
    v_scale: float | None = None


@dataclass(frozen=True)
class AttentionOptions:
    """The options of attention over pages of keys and values.

    Attributes:
        layout: how the cache's slots are laid out.
        kv_dtype: what the cache's numbers mean, a numpy dtype; the cache's own but where it is stored as bits.
        score_scale: what the product of a query and a stored key is multiplied by: scale * q_scale * k_scale.
        causal: whether a query reads keys up to its own position only (ATT-1).
        window: a query at p reads keys j > p - window only, causal or not; None: no window.
        chunk: a query at p reads keys j >= p // chunk * chunk only; None: no chunks.
        soft_cap: c: scores s become c * tanh(s / c) before the mask; None: no cap.
        value_scale: what the stored values are multiplied by: v_scale.
        decode_block: keys of a block where a TPU's kernel decodes; None: as it chooses.
        prefill_block: query tokens and keys of a block of a TPU's general kernel; None: as it chooses.
    """

    layout: CacheLayout
    kv_dtype: Any
    score_scale: float
    causal: bool = True
    window: int | None = None
    chunk: int | None = None
    soft_cap: float | None = None
    value_scale: float = 1.0
    decode_block: int | None = None
    prefill_block: tuple[int, int] | None = None


@dataclass(frozen=True)
class MlaOptions:
    """The options of attention over pages of latents (MLA): one KV head, whose values are the latents.

    Attributes:
        latent_dim: R, the size of a latent.
        rotary_dim: Dr, the size of the rotary part of a key.
        kv_dtype: what the cache's numbers mean, a numpy dtype.
        score_scale: what the product of a query and a key is multiplied by.
        causal: as in `AttentionOptions`, and so on.
        window: the same.
        chunk: the same; there is no such model yet, but masks are the same for all.
        soft_cap: the same.
    """

    latent_dim: int
    rotary_dim: int
    kv_dtype: Any
    score_scale: float
    causal: bool = True
    window: int | None = None
    chunk: int | None = None
    soft_cap: float | None = None

    @property
    def value_scale(self) -> float:
        """1: values are the latents as they are; for what reads both kinds of options."""
        return 1.0

    @property
    def rotary_start(self) -> int:
        """The column of a slot at which the rotary part begins: R rounded up to 128."""
        return round_up(self.latent_dim, LANES)

    @property
    def width(self) -> int:
        """The numbers of a slot, padding included."""
        return self.rotary_start + round_up(self.rotary_dim, LANES)


AnyOptions = AttentionOptions | MlaOptions
"""What the code that both kinds of cache share takes."""
