"""Sinks as the kernels read them: a score for every row of a block."""

import jax
import jax.numpy as jnp

from ..options import AttentionOptions
from ..score_units import sinks_as_scores
from .geometry import Geometry

__all__ = ["sink_rows"]


def sink_rows(
    sinks: jax.Array,  # f32[Hq]
    geometry: Geometry,
    options: AttentionOptions,
) -> jax.Array:
    """The sinks as scores: `f32[H, rows]`, as many rows as are copied of a KV head's queries, or a block has.

    Args:
        sinks: `f32[Hq]`.
        geometry: the shapes.
        options: the options.

    Returns:
        Rows behind the last query have anything finite.
    """
    scores = sinks_as_scores(sinks, options).reshape(geometry.layout.num_kv_heads, geometry.group)
    rows = geometry.copied_rows if geometry.splits_keys else geometry.block_rows
    return jnp.tile(scores, (1, -(-rows // geometry.group)))[:, :rows]
