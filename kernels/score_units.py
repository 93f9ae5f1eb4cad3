"""The units that the kernels keep scores in, between the product of query and key and the power of the softmax.

A softmax sees differences of scores only. Scores far from zero (some -1,000, all of one sign) have few bits left for
what they differ by, and every rounding at their size costs one (ATT-6): so the largest is taken off the products as
they are, or as the soft cap leaves them, and only the difference is multiplied, by the scale and by log2(e) at once. It
takes as many operations as multiplying first.
"""

from collections.abc import Callable
from typing import Protocol

import jax
import jax.numpy as jnp

__all__ = ["exponent_unit", "scores_of", "sinks_as_scores"]

_LOG2_E = 1.4426950408889634

_SMALLEST_SCALE = 1e-30
"""Scales nearer to zero are multiplied into the scores: of a masked score of -2e38 they would leave nothing."""


class Scoring(Protocol):
    """What `AttentionOptions`, `MlaOptions` and `DecodePlan` say of scores."""

    @property
    def score_scale(self) -> float: ...

    @property
    def soft_cap(self) -> float | None: ...


def exponent_unit(scoring: Scoring) -> float:
    """By what a difference of scores is multiplied for its power of two: above zero, so that maxima are maxima."""
    return _logits_per_score(scoring) * _LOG2_E


def scores_of(
    products: jax.Array,
    scoring: Scoring,
    tanh: Callable[[jax.Array], jax.Array] = jnp.tanh,
) -> jax.Array:
    """The scores of products of queries and keys: logits over `_logits_per_score`, of the same shape.

    Args:
        products: `f32[...]`.
        scoring: the scale and the soft cap.
        tanh: the hyperbolic tangent, where the device's own is not the one to take.
    """
    scale, cap = scoring.score_scale, scoring.soft_cap
    if cap is not None:
        return tanh(products * (scale / cap))
    if abs(scale) < _SMALLEST_SCALE:
        return products * scale
    return products if scale > 0 else -products


def sinks_as_scores(sinks: jax.Array, scoring: Scoring) -> jax.Array:
    """Sinks, which are logits, as scores: `f32[...]`."""
    return sinks.astype(jnp.float32) / _logits_per_score(scoring)


def _logits_per_score(scoring: Scoring) -> float:
    """What a score of one is as a logit."""
    if scoring.soft_cap is not None:
        return scoring.soft_cap
    scale = abs(scoring.score_scale)
    return scale if scale >= _SMALLEST_SCALE else 1.0
