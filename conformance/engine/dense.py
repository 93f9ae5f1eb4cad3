"""ENG-1: what a model says without paging, in float64 and numpy; and how far rounding may take an engine from it.

Written apart from `model`, of which it shares the names of the weights only: one request at a time, whole n x n masks,
heads in a loop, keys expanded from latents where the model absorbs them, a recurrence that steps through the tokens.

`tolerance` derives the allowed error from the model's own error growth. Every operation of an engine rounds: its result
is off by some e_k, at most b_k, which for attention is what ATT-6 allows, for a product of n terms what n roundings
of either sign add up to, and for the rest some units of the dtype. To first order a logit is then off by
``sum_k J_k e_k``, J_k being how far that operation carries into the logit: through the softmax and the gates of its own
layer, and all layers behind it, each of which adds its own errors and passes on those before, larger or smaller. No
formula in the sizes of a model gives J, as it depends on the weights: worst-case constants exceed the logits after two
layers, fitted ones hold for what they were fitted on. So the float64 model itself is run again with errors of random
sign and full size b_k in all of these places, at once. The root mean square of what that does to a logit is
``s = sqrt(sum_k (J_k b_k)^2)``, whatever J is. If the errors of an engine are independent and of either sign,
Hoeffding's inequality bounds its logit: ``P(|error| > 8 s) <= 2 exp(-32)``, 3e-14. Thus the 8; nothing is fitted. Of a
position's logits the one with the largest s counts, so that few draws are enough to know it.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvproof.spec.reading.arguments import integer, real, refusal, token_list

from .config import ModelConfig

__all__ = ["dense_logits", "tolerance"]

Array = NDArray[np.float64]

_UNITS = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""The most that rounding to a dtype changes a number, relative to it."""

_DEVIATIONS = 8.0


class _Exact:
    """Arithmetic as float64 has it: what the reference computes with."""

    def rounded(self, value: Array, wide: float, narrow: float = 0.0, size: Array | None = None) -> Array:  # noqa: ARG002
        """A value after roundings: ``wide`` in float32, ``narrow`` in the model's dtype, of numbers of this size."""
        return value

    def product(self, x: Array, weight: Array, narrow: float = 1.0) -> Array:  # noqa: ARG002
        """``x @ weight``, summed in float32, then rounded ``narrow`` times to the model's dtype."""
        return x @ weight

    def attended(self, out: Array, largest: Array) -> Array:  # noqa: ARG002
        """What attention gives, where ``largest`` is the largest |value| that a row may read."""
        return out


class _Rounding(_Exact):
    """Arithmetic in which every result is off by what it may be, up or down at random; see the module."""

    def __init__(self, config: ModelConfig, seed: int, attention_error: float | None) -> None:
        self._random = np.random.default_rng(seed)
        self._wide, self._narrow = _UNITS["float32"], _UNITS[config.dtype]
        # ATT-6: of the result itself, and of the largest value.
        self._relative, self._of_largest = (0.0, 2.0**-17) if config.dtype == "float32" else (2.0**-8, 2.0**-8)
        if attention_error is not None:
            self._relative, self._of_largest = 0.0, attention_error

    def _off(self, value: Array, bound: Array) -> Array:
        return value + np.where(self._random.integers(0, 2, value.shape) > 0, bound, -bound)

    def rounded(self, value: Array, wide: float, narrow: float = 0.0, size: Array | None = None) -> Array:
        units = wide * self._wide + narrow * self._narrow
        return self._off(value, units * np.abs(value if size is None else size))

    def product(self, x: Array, weight: Array, narrow: float = 1.0) -> Array:
        # Each of n sums is rounded: of either sign, they make sqrt(n) units of what the terms add up to, squared.
        value, terms = x @ weight, np.sqrt(x**2 @ weight**2)
        return self._off(value, math.sqrt(len(weight)) * self._wide * terms + narrow * self._narrow * np.abs(value))

    def attended(self, out: Array, largest: Array) -> Array:
        return self._off(out, self._relative * np.abs(out) + self._of_largest * largest[:, None])


_EXACT = _Exact()


def dense_logits(params: Any, config: ModelConfig, tokens: Any) -> Array:
    """The logits after every token of one request, in float64 of the weights as stored (ENG-1). O(n^2 + n * weights).

    Args:
        params: the weights, as `model.init_params` gives them; any arrays that numpy can read.
        config: the model.
        tokens: n token ids, at least 1.

    Returns:
        `f64[n, V]`.

    Raises:
        TypeError: ``tokens`` are no integers [R1].
        ValueError: there are none, or more than the model's length, or one is not in its vocabulary [R1].
    """
    return _logits(params, config, _read_tokens(config, tokens), _EXACT)


def tolerance(
    params: Any, config: ModelConfig, tokens: Any, *, attention_error: float | None = None, draws: int = 4
) -> Array:
    """How far the logits of an engine may be from `dense_logits`, at each position (ENG-1); see the module.

    O(draws) times what `dense_logits` takes. It is the same for the same arguments, everywhere.

    Args:
        params: the weights.
        config: the model; of its dtype are the engine's activations and its cache.
        tokens: n token ids, as there.
        attention_error: how far attention may be off, relative to the largest |value| that a row reads; None: as far
            as ATT-6 allows it in the model's dtype.
        draws: how often errors are drawn.

    Returns:
        `f64[n]`: a bound of |logit of the engine - `dense_logits`|, for all tokens of the vocabulary.

    Raises:
        TypeError: an argument of a wrong type [R1].
        ValueError: as `dense_logits`, or a number out of its range [R1].
    """
    if attention_error is not None and real("attention_error", attention_error) < 0:
        raise refusal(ValueError, "R1", f"attention_error={attention_error} must be at least 0")
    integer("draws", draws, minimum=1)
    read = _read_tokens(config, tokens)
    exact = _logits(params, config, read, _EXACT)
    squares = np.zeros_like(exact)
    for seed in range(draws):
        squares += (_logits(params, config, read, _Rounding(config, seed, attention_error)) - exact) ** 2
    bound: Array = _DEVIATIONS * np.sqrt(squares.max(axis=1) / draws)
    return bound


def _read_tokens(config: ModelConfig, tokens: Any) -> list[int]:
    read = token_list("tokens", tokens)
    if not 0 < len(read) <= config.max_model_len:
        raise refusal(ValueError, "R1", f"tokens: {len(read)} must be 1 to max_model_len={config.max_model_len}")
    for place, token in enumerate(read):
        if not 0 <= token < config.vocab_size:
            raise refusal(ValueError, "R1", f"tokens[{place}] must be in [0, vocab_size={config.vocab_size})")
    return read


def _widened(weights: Any) -> dict[str, Array]:
    """A layer's weights in float64: of one layer at a time, as a model's need not fit twice."""
    return {name: np.asarray(weight).astype(np.float64) for name, weight in weights.items()}


def _logits(params: Any, config: ModelConfig, tokens: list[int], arithmetic: _Exact) -> Array:
    ends = _widened({name: weight for name, weight in params.items() if name != "layers"})
    hidden: Array = ends["embed"][tokens]
    for layer, stored in enumerate(params["layers"]):
        weights = _widened(stored)
        mix = {"mla": _latent_attention, "state": _state_space}.get(config.layers[layer].kind, _attention)
        mixed = mix(weights, config, layer, _norm(hidden, weights["mixer_norm"], config, arithmetic), arithmetic)
        hidden = arithmetic.rounded(hidden + mixed, 0, 1)
        x = _norm(hidden, weights["mlp_norm"], config, arithmetic)
        gated = _silu(arithmetic.product(x, weights["gate"])) * arithmetic.product(x, weights["up"])
        hidden = arithmetic.rounded(
            hidden + arithmetic.product(arithmetic.rounded(gated, 4, 4), weights["down"]), wide=0, narrow=1
        )
    x = _norm(hidden, ends["final_norm"], config, arithmetic)
    logits = arithmetic.product(x, ends["embed"].T if config.tie_embeddings else ends["head"], narrow=0)
    return arithmetic.rounded(_capped(logits, config.final_soft_cap), 4)


def _attention(weights: Any, config: ModelConfig, layer: int, x: Array, arithmetic: _Exact) -> Array:
    queries = _split(arithmetic.product(x, weights["q"]), config.num_heads)
    keys = _split(arithmetic.product(x, weights["k"]), config.num_kv_heads)
    values = _split(arithmetic.product(x, weights["v"]), config.num_kv_heads)
    mask, out = _mask(config, layer, len(x)), []
    for head in range(config.num_heads):
        kv_head = head // (config.num_heads // config.num_kv_heads)
        scores = _rotated(queries[head], config, arithmetic) @ _rotated(keys[kv_head], config, arithmetic).T
        sink = weights["sinks"][head] if config.sinks else None
        probabilities = _softmax(_scaled(scores, config, config.head_size), mask, sink)
        out.append(arithmetic.attended(probabilities @ values[kv_head], _largest(values[kv_head], mask)))
    return arithmetic.product(np.concatenate(out, axis=1), weights["o"])


def _latent_attention(weights: Any, config: ModelConfig, layer: int, x: Array, arithmetic: _Exact) -> Array:
    latents = _norm(arithmetic.product(x, weights["latent"]), weights["latent_norm"], config, arithmetic)
    rotary = _rotated(arithmetic.product(x, weights["rotary"]), config, arithmetic)
    mask, out = _mask(config, layer, len(x)), []
    for head, queries in enumerate(_split(arithmetic.product(x, weights["q"]), config.num_heads)):
        plain, turning = queries[:, : config.head_size], queries[:, config.head_size :]
        keys, absorbing = latents @ weights["up_keys"][head].T, weights["up_keys"][head]
        absorbed_slip = arithmetic.product(plain, absorbing) - plain @ absorbing  # what absorbing would round
        scores = plain @ keys.T + absorbed_slip @ latents.T + _rotated(turning, config, arithmetic) @ rotary.T
        probabilities = _softmax(_scaled(scores, config, queries.shape[1]), mask, None)
        weighted = arithmetic.attended(probabilities @ latents, _largest(latents, mask))
        out.append(arithmetic.product(weighted, weights["up_values"][head]))
    return arithmetic.product(np.concatenate(out, axis=1), weights["o"])


def _state_space(weights: Any, config: ModelConfig, layer: int, x: Array, arithmetic: _Exact) -> Array:  # noqa: ARG001
    inner, step = arithmetic.product(x, weights["input"]), arithmetic.product(x, weights["step"])
    step = arithmetic.rounded(np.logaddexp(0.0, step + weights["step_bias"]), 4)
    entering = arithmetic.product(x, weights["to_state"], narrow=0)
    leaving = arithmetic.product(x, weights["from_state"], narrow=0)
    gate = _silu(arithmetic.product(x, weights["state_gate"]))
    rate, state, out = np.exp(weights["log_decay"]), np.zeros_like(weights["log_decay"]), np.zeros_like(inner)
    for token in range(len(x)):
        exponent = step[token][:, None] * rate
        decay = arithmetic.rounded(np.exp(-exponent), 1, size=np.exp(-exponent) * (2 + 4 * exponent))
        kept, added = decay * state, np.outer(step[token] * inner[token], entering[token])
        state = arithmetic.rounded(kept + added, 4, size=np.abs(kept) + np.abs(added))
        out[token] = arithmetic.product(state, leaving[token][:, None], narrow=0)[:, 0] + weights["skip"] * inner[token]
    return arithmetic.product(arithmetic.rounded(out * gate, 6, 1), weights["o"])


def _norm(x: Array, weight: Array, config: ModelConfig, arithmetic: _Exact) -> Array:
    normed = x / np.sqrt(np.mean(x**2, axis=1, keepdims=True) + config.rms_norm_eps) * weight
    return arithmetic.rounded(normed, 4 + math.sqrt(x.shape[1]), 1)


def _silu(x: Array) -> Array:
    return x * np.exp(-np.logaddexp(0.0, -x))


def _capped(x: Array, cap: float | None) -> Array:
    return x if cap is None else cap * np.tanh(x / cap)


def _scaled(scores: Array, config: ModelConfig, key_size: int) -> Array:
    scale = 1 / math.sqrt(key_size) if config.query_scale is None else config.query_scale
    return _capped(scores * scale, config.soft_cap)


def _split(x: Array, num_heads: int) -> Array:
    """`[n, heads * size]` as `[heads, n, size]`."""
    return x.reshape(len(x), num_heads, -1).transpose(1, 0, 2)


def _mask(config: ModelConfig, layer: int, length: int) -> NDArray[np.bool_]:
    """Which key (column) a position (row) reads (ATT-1)."""
    position, key = np.mgrid[:length, :length]
    window, chunk = config.window_of(layer), config.chunk_of(layer)
    mask: NDArray[np.bool_] = key <= position
    if window is not None:
        mask &= key > position - window
    if chunk is not None:
        mask &= key // chunk == position // chunk
    return mask


def _softmax(scores: Array, mask: NDArray[np.bool_], sink: float | None) -> Array:
    top = np.max(np.where(mask, scores, -np.inf), axis=1, keepdims=True)
    top = top if sink is None else np.maximum(top, sink)
    raised = np.where(mask, np.exp(np.minimum(scores - top, 0.0)), 0.0)
    total = raised.sum(axis=1, keepdims=True)
    probabilities: Array = raised / (total if sink is None else total + np.exp(sink - top))
    return probabilities


def _largest(values: Array, mask: NDArray[np.bool_]) -> Array:
    """The largest |value| that each position may read, `f64[n]`."""
    largest: Array = np.max(np.where(mask, np.abs(values).max(axis=1), 0.0), axis=1)
    return largest


def _rotated(x: Array, config: ModelConfig, arithmetic: _Exact) -> Array:
    """Each pair, a number of the first half and one of the second, as a complex number that turns (RoPE)."""
    half = x.shape[1] // 2
    pairs = x[:, :half] + 1j * x[:, half:]
    turned = pairs * np.exp(1j * np.outer(np.arange(len(x)), list(_frequencies(config, half))))
    size = np.concatenate([np.abs(turned), np.abs(turned)], axis=1)
    return arithmetic.rounded(np.concatenate([turned.real, turned.imag], axis=1), 6, 1, size)


def _frequencies(config: ModelConfig, half: int) -> Iterator[float]:
    """Radians from one position to the next, of each pair."""
    scaling = config.rope_scaling
    for pair in range(half):
        frequency = math.exp(-pair / half * math.log(config.rope_theta))
        wavelength = 2 * math.pi / frequency
        if scaling is None or wavelength < scaling.original_length / scaling.high_frequency_factor:
            yield frequency
        elif wavelength > scaling.original_length / scaling.low_frequency_factor:
            yield frequency / scaling.factor
        else:
            low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
            share = (scaling.original_length / wavelength - low) / (high - low)
            yield share * frequency + (1 - share) * frequency / scaling.factor
