"""The parts of a layer that look at one token at a time: norms, projections, rotation, and the MLP.

T is the rows of a step, of whatever requests; no function here lets one row see another.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from .config import ModelConfig

__all__ = ["project", "rms_norm", "rotary_frequencies", "rotate", "swiglu"]

_FINE = 256
"""Positions are split into multiples of this and a rest, whose angles have a table each."""


def rms_norm(
    x: jax.Array,  # [..., n]
    weight: jax.Array,  # [n]
    eps: float,
) -> jax.Array:
    """Rows divided by their root mean square, and weighted; in float32, given in the dtype of ``x``. O(size)."""
    wide = x.astype(jnp.float32)
    inverse = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    scaled = wide * inverse * weight.astype(jnp.float32).reshape((1,) * (x.ndim - 1) + weight.shape)
    return scaled.astype(x.dtype)


def project(
    x: jax.Array,  # [T, n]
    weight: jax.Array,  # [n, m]
) -> jax.Array:
    """The matrix product `[T, m]`, summed in float32 on every platform, given in the dtype of ``x``. O(T n m)."""
    wide = x.astype(jnp.float32), weight.astype(jnp.float32)  # XLA's CPU has no product of bfloat16 into float32
    return jnp.matmul(*wide, precision=jax.lax.Precision.HIGHEST).astype(x.dtype)


def swiglu(
    x: jax.Array,  # [T, E]
    gate: jax.Array,  # [E, F]
    up: jax.Array,  # [E, F]
    down: jax.Array,  # [F, E]
) -> jax.Array:
    """The MLP: ``(silu(x gate) * (x up)) down``, `[T, E]`. O(T E F)."""
    return project(jax.nn.silu(project(x, gate)) * project(x, up), down)


def rotary_frequencies(config: ModelConfig, size: int) -> NDArray[np.float64]:
    """How far each pair of a rotated vector turns from one position to the next, in radians, `f64[size // 2]`."""
    frequencies: NDArray[np.float64] = config.rope_theta ** (-np.arange(0, size, 2, dtype=np.float64) / size)
    scaling = config.rope_scaling
    if scaling is None:
        return frequencies
    waves = scaling.original_length * frequencies / (2 * math.pi)  # turns within the context of pre-training
    kept = (waves - scaling.low_frequency_factor) / (scaling.high_frequency_factor - scaling.low_frequency_factor)
    kept = np.clip(kept, 0.0, 1.0)
    return frequencies * (kept + (1.0 - kept) / scaling.factor)


def rotate(
    x: jax.Array,  # [T, heads, size]
    positions: jax.Array,  # i32[T]
    config: ModelConfig,
) -> jax.Array:
    """Rotary embedding, the pairs being the first and the second half of a vector, as in Llama (RoPE). O(size of x).

    A float32 angle of position 100,000 would be wrong by 1/200 radian. So the sines and cosines come from two tables
    made in float64, of the multiples of 256 positions and of the rest, and are put together by the addition theorem:
    they are right to some units of float32 wherever a token stands.

    Args:
        x: `[T, heads, size]`, size even.
        positions: `i32[T]`; one outside the model's length is taken for the nearest inside.
        config: whose frequencies and length they are.

    Returns:
        `[T, heads, size]`, of the dtype of ``x``.
    """
    half = x.shape[2] // 2
    frequencies = rotary_frequencies(config, x.shape[2])
    positions = jnp.clip(positions, 0, config.max_model_len - 1)
    coarse = _turn(np.arange(-(-config.max_model_len // _FINE)) * _FINE, frequencies)[positions // _FINE]
    fine = _turn(np.arange(min(_FINE, config.max_model_len)), frequencies)[positions % _FINE]
    cos = (coarse[:, :half] * fine[:, :half] - coarse[:, half:] * fine[:, half:])[:, None]  # [T, 1, half]
    sin = (coarse[:, half:] * fine[:, :half] + coarse[:, :half] * fine[:, half:])[:, None]
    first, second = x[..., :half].astype(jnp.float32), x[..., half:].astype(jnp.float32)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x.dtype)


def _turn(positions: NDArray[np.int64], frequencies: NDArray[np.float64]) -> jax.Array:
    """Cosines, then sines, of all pairs at some positions, `f32[n, size]`."""
    angles = np.outer(positions, frequencies)
    return jnp.asarray(np.concatenate([np.cos(angles), np.sin(angles)], axis=1), jnp.float32)
