"""A decoder-only transformer of the Llama family in plain JAX. How tokens see each other is not in it: see `Mixer`.

T is the rows of a step: tokens of any number of requests, in any order that the mixer knows; V the vocabulary, E the
hidden size, F that of the MLP, Hq and H the query and KV heads, D their size, R and Dr the latent and its rotary
part, N the numbers of state for each hidden one.

Weights are a pytree of dicts: ``embed [V, E]``, ``final_norm [E]``, ``head [E, V]`` unless it is tied, and ``layers``,
a list of one dict a layer, in the shapes that `param_shapes` gives.
"""

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from kvproof.spec.reading.arguments import integer

from .config import ModelConfig
from .layers import project, rms_norm, rotate, swiglu

__all__ = ["Mixer", "Params", "forward", "init_params", "param_shapes"]

Params = dict[str, Any]
"""Weights by name; ``layers`` is a list of dicts."""


class Mixer(Protocol):
    """Where a request's earlier tokens are, and how a row reads them: paged in an engine, dense in a test.

    One is made for each traced step. It keeps the caches while the step runs; which row is whose it knows itself.
    Mask and soft cap are read from the config, for the layer told.
    """

    def attend(
        self,
        layer: int,
        queries: jax.Array,  # [T, Hq, D]
        keys: jax.Array,  # [T, H, D]
        values: jax.Array,  # [T, H, D]
        *,
        sinks: jax.Array | None,  # f32[Hq]
    ) -> jax.Array:
        """Attention `[T, Hq, D]` over what was written before and the keys and values given (ATT-1, ATT-5)."""
        ...

    def attend_latent(
        self,
        layer: int,
        queries: jax.Array,  # [T, Hq, R]
        rotary_queries: jax.Array,  # [T, Hq, Dr]
        latents: jax.Array,  # [T, R]
        rotary: jax.Array,  # [T, Dr]
        *,
        scale: float,
    ) -> jax.Array:
        """Attention `[T, Hq, R]` of absorbed queries over latents."""
        ...

    def advance(
        self,
        layer: int,
        decay: jax.Array,  # f32[T, E, N]
        inputs: jax.Array,  # f32[T, E, N]
    ) -> jax.Array:
        """The states `f32[T, E, N]` after each row: ``s = decay * s + inputs``, each request's rows in their order."""
        ...


class _Draw(NamedTuple):
    """How one weight is drawn: normal, of this deviation around this centre; ``wide`` ones are float32 always."""

    shape: tuple[int, ...]
    deviation: float
    centre: float = 0.0
    wide: bool = False


def _drawn(config: ModelConfig) -> dict[str, Any]:
    """All weights of a model, each as it is drawn.

    The deviations keep the rows of every block near 1, the attention logits of a random model near 2, so that its
    softmax chooses, and its own logits at 1 to 3.
    """
    width = config.hidden_size**-0.5
    weights: dict[str, Any] = {
        # Tied, an embedding of ones would make each token foretell itself.
        "embed": _Draw((config.vocab_size, config.hidden_size), 2 * width if config.tie_embeddings else 1.0),
        "layers": [_drawn_layer(config, layer.kind) for layer in config.layers],
        "final_norm": _Draw((config.hidden_size,), 0.25, 1.0),
    }
    if not config.tie_embeddings:
        weights["head"] = _Draw((config.hidden_size, config.vocab_size), 2 * width)
    return weights


def _drawn_layer(config: ModelConfig, kind: str) -> dict[str, _Draw]:
    hidden, inner, head_size = config.hidden_size, config.intermediate_size, config.head_size
    queries, rank = config.num_heads * head_size, config.latent_rank
    width = hidden**-0.5
    weights = {
        "mixer_norm": _Draw((hidden,), 0.25, 1.0),
        "mlp_norm": _Draw((hidden,), 0.25, 1.0),
        "gate": _Draw((hidden, inner), 1.5 * width),
        "up": _Draw((hidden, inner), 1.5 * width),
        "down": _Draw((inner, hidden), 1.5 * inner**-0.5),
    }
    if kind == "state":
        states = (hidden, config.state_size)
        return weights | {
            "input": _Draw((hidden, hidden), width),
            "state_gate": _Draw((hidden, hidden), width),
            "step": _Draw((hidden, hidden), 0.5 * width),
            "step_bias": _Draw((hidden,), 0.5, -1.0, wide=True),
            "log_decay": _Draw(states, 1.0, -0.5, wide=True),
            "to_state": _Draw(states, 2 * width),
            "from_state": _Draw(states, 2 * (hidden * config.state_size) ** -0.5),
            "skip": _Draw((hidden,), 0.5, wide=True),
            "o": _Draw((hidden, hidden), 2 * width),
        }
    weights["o"] = _Draw((queries, hidden), 2 * queries**-0.5)
    if kind == "mla":
        return weights | {
            "q": _Draw((hidden, config.num_heads * (head_size + config.rotary_size)), 1.5 * width),
            "latent": _Draw((hidden, rank), width),
            "latent_norm": _Draw((rank,), 0.25, 1.0),
            "rotary": _Draw((hidden, config.rotary_size), 1.5 * width),
            "up_keys": _Draw((config.num_heads, head_size, rank), 1.5 * rank**-0.5),
            "up_values": _Draw((config.num_heads, rank, head_size), rank**-0.5),
        }
    keys = config.num_kv_heads * head_size
    weights |= {
        "q": _Draw((hidden, queries), 1.5 * width),
        "k": _Draw((hidden, keys), 1.5 * width),
        "v": _Draw((hidden, keys), width),
    }
    return weights | ({"sinks": _Draw((config.num_heads,), 1.0, wide=True)} if config.sinks else {})


def param_shapes(config: ModelConfig) -> dict[str, Any]:
    """The shapes of a model's weights, nested as the weights are. O(weights by name)."""
    return dict(jax.tree.map(lambda draw: draw.shape, _drawn(config), is_leaf=lambda node: isinstance(node, _Draw)))


def init_params(config: ModelConfig, seed: int) -> Params:
    """Random weights: the same for the same config and seed, everywhere. O(weights).

    Args:
        config: the model.
        seed: at least 0.

    Raises:
        TypeError: ``seed`` is no integer [R1].
        ValueError: it is negative [R1].
    """
    random = np.random.default_rng(integer("seed", seed))

    def draw(rule: _Draw) -> jax.Array:
        numbers = rule.centre + rule.deviation * random.standard_normal(rule.shape)
        return jnp.asarray(numbers.astype(jnp.dtype("float32" if rule.wide else config.dtype)))

    return dict(jax.tree.map(draw, _drawn(config), is_leaf=lambda node: isinstance(node, _Draw)))


def forward(
    params: Params,
    config: ModelConfig,
    tokens: jax.Array,  # i32[T]
    positions: jax.Array,  # i32[T]
    mixer: Mixer,
) -> jax.Array:
    """The logits after each row of a step.

    Rows that are padding may hold anything: no row sees another but through the mixer.

    Args:
        params: the weights.
        config: the model.
        tokens: `i32[T]`.
        positions: `i32[T]`, of each token in its own request.
        mixer: what the rows see of each other.

    Returns:
        `f32[T, V]`.
    """
    hidden = params["embed"].at[tokens].get(mode="clip")
    for layer, weights in enumerate(params["layers"]):
        mix = _MIXES[config.layers[layer].kind]
        normed = rms_norm(hidden, weights["mixer_norm"], config.rms_norm_eps)
        hidden = hidden + mix(weights, config, layer, normed, positions, mixer)
        normed = rms_norm(hidden, weights["mlp_norm"], config.rms_norm_eps)
        hidden = hidden + swiglu(normed, weights["gate"], weights["up"], weights["down"])
    hidden = rms_norm(hidden, params["final_norm"], config.rms_norm_eps)
    head = params["embed"].T if config.tie_embeddings else params["head"]
    logits = project(hidden.astype(jnp.float32), head)
    cap = config.final_soft_cap
    return logits if cap is None else cap * jnp.tanh(logits / cap)


def _attention(
    weights: Params, config: ModelConfig, layer: int, x: jax.Array, positions: jax.Array, mixer: Mixer
) -> jax.Array:
    """Grouped-query attention, full, over a window or within chunks: `[T, E]` to `[T, E]`."""
    queries = _heads(project(x, weights["q"]), config.num_heads)
    keys = _heads(project(x, weights["k"]), config.num_kv_heads)
    values = _heads(project(x, weights["v"]), config.num_kv_heads)
    queries, keys = rotate(queries, positions, config), rotate(keys, positions, config)
    out = mixer.attend(layer, queries, keys, values, sinks=weights.get("sinks"))
    return project(out.reshape(len(x), -1), weights["o"])


def _latent_attention(
    weights: Params, config: ModelConfig, layer: int, x: jax.Array, positions: jax.Array, mixer: Mixer
) -> jax.Array:
    """Multi-head latent attention, absorbed: queries are taken to the latents, not latents to keys and values."""
    queries = _heads(project(x, weights["q"]), config.num_heads)
    rotary_queries = rotate(queries[..., config.head_size :], positions, config)
    absorbed = _per_head(queries[..., : config.head_size], weights["up_keys"])
    latents = rms_norm(project(x, weights["latent"]), weights["latent_norm"], config.rms_norm_eps)
    rotary = rotate(project(x, weights["rotary"])[:, None], positions, config)[:, 0]
    out = mixer.attend_latent(layer, absorbed, rotary_queries, latents, rotary, scale=config.scale_of(layer))
    return project(_per_head(out, weights["up_values"]).reshape(len(x), -1), weights["o"])


def _state_space(
    weights: Params,
    config: ModelConfig,  # noqa: ARG001 - as the other kinds
    layer: int,
    x: jax.Array,
    positions: jax.Array,  # noqa: ARG001 - a state knows the order
    mixer: Mixer,
) -> jax.Array:
    """A selective state space as Mamba's, without its convolution: step, input and output depend on the token."""
    wide = x.astype(jnp.float32)
    inner = project(x, weights["input"]).astype(jnp.float32)
    step = jax.nn.softplus(project(x, weights["step"]).astype(jnp.float32) + weights["step_bias"][None])  # [T, E]
    decay = jnp.exp(-step[:, :, None] * jnp.exp(weights["log_decay"])[None])
    entering = project(wide, weights["to_state"])  # [T, N]
    leaving = project(wide, weights["from_state"])
    states = mixer.advance(layer, decay, (step * inner)[:, :, None] * entering[:, None])
    out = jnp.sum(states * leaving[:, None], axis=2) + weights["skip"][None] * inner
    gate = jax.nn.silu(project(x, weights["state_gate"]).astype(jnp.float32))
    return project((out * gate).astype(x.dtype), weights["o"])


_MIXES = {
    "full": _attention,
    "window": _attention,
    "chunk": _attention,
    "mla": _latent_attention,
    "state": _state_space,
}


def _heads(x: jax.Array, num_heads: int) -> jax.Array:
    """`[T, heads * size]` as `[T, heads, size]`."""
    return x.reshape(len(x), num_heads, -1)


def _per_head(
    x: jax.Array,  # [T, Hq, n]
    weights: jax.Array,  # [Hq, n, m]
) -> jax.Array:
    """A matrix product for each head, `[T, Hq, m]`, summed in float32."""
    wide = x.astype(jnp.float32), weights.astype(jnp.float32)
    return jnp.einsum("thn,hnm->thm", *wide, precision=jax.lax.Precision.HIGHEST).astype(x.dtype)
