"""A mixer of one request whose whole prompt is one step: dense attention in JAX, so that the model is tested alone."""

from functools import partial

import jax
import jax.numpy as jnp

from kvproof.conformance.engine.config import ModelConfig
from kvproof.conformance.engine.model import Params, forward

__all__ = ["DenseMixer", "prompt_logits"]


class DenseMixer:
    """See `kvproof.conformance.engine.model.Mixer`."""

    def __init__(self, config: ModelConfig) -> None:
        self._config = config

    def attend(
        self, layer: int, queries: jax.Array, keys: jax.Array, values: jax.Array, *, sinks: jax.Array | None
    ) -> jax.Array:
        group = queries.shape[1] // keys.shape[1]
        keys, values = (jnp.repeat(array, group, axis=1) for array in (keys, values))
        scores = self._product("ihd,jhd->hij", queries, keys) * self._config.scale_of(layer)
        probabilities = self._softmax(layer, scores, sinks)
        return self._product("hij,jhd->ihd", probabilities, values).astype(queries.dtype)

    def attend_latent(
        self,
        layer: int,
        queries: jax.Array,
        rotary_queries: jax.Array,
        latents: jax.Array,
        rotary: jax.Array,
        *,
        scale: float,
    ) -> jax.Array:
        scores = self._product("ihr,jr->hij", queries, latents) + self._product("ihr,jr->hij", rotary_queries, rotary)
        probabilities = self._softmax(layer, scores * scale, None)
        return self._product("hij,jr->ihr", probabilities, latents).astype(queries.dtype)

    def advance(self, layer: int, decay: jax.Array, inputs: jax.Array) -> jax.Array:
        def advanced(state: jax.Array, row: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            state = row[0] * state + row[1]
            return state, state

        return jax.lax.scan(advanced, jnp.zeros_like(inputs[0]), (decay, inputs))[1]

    def _softmax(self, layer: int, scores: jax.Array, sinks: jax.Array | None) -> jax.Array:
        heads, length, _ = scores.shape
        position, key = jnp.arange(length)[:, None], jnp.arange(length)[None]
        read = key <= position
        if window := self._config.window_of(layer):
            read &= key > position - window
        if chunk := self._config.chunk_of(layer):
            read &= key >= position // chunk * chunk
        if cap := self._config.soft_cap:
            scores = cap * jnp.tanh(scores / cap)
        scores = jnp.where(read[None], scores, -jnp.inf)
        if sinks is not None:
            scores = jnp.concatenate([scores, jnp.broadcast_to(sinks[:, None, None], (heads, length, 1))], axis=2)
        return jax.nn.softmax(scores, axis=2)[:, :, :length]

    @staticmethod
    def _product(sums: str, left: jax.Array, right: jax.Array) -> jax.Array:
        return jnp.einsum(sums, left.astype(jnp.float32), right.astype(jnp.float32))


# Each program runs once: compiling it less well takes 1 s instead of 2.6 for five layers.
@partial(jax.jit, static_argnames="config", compiler_options={"xla_backend_optimization_level": 0})
def prompt_logits(params: Params, config: ModelConfig, tokens: jax.Array, positions: jax.Array) -> jax.Array:
    """The model's logits after each token of one request."""
    return forward(params, config, tokens, positions, DenseMixer(config))
