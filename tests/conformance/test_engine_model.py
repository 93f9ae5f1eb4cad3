"""The engine's model against the dense reference, which is written apart in float64 (ENG-1)."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvproof.conformance.engine.config import LayerKind, Llama3Rope, ModelConfig
from kvproof.conformance.engine.dense import dense_logits, tolerance
from kvproof.conformance.engine.layers import rotary_frequencies, rotate
from kvproof.conformance.engine.model import Params, init_params, param_shapes

from .dense_mixer import prompt_logits

FULL, WINDOW, CHUNK = LayerKind("full"), LayerKind("window", 5), LayerKind("chunk", 4)
LATENT, STATE = LayerKind("mla"), LayerKind("state")

SMALL = ModelConfig(
    vocab_size=53,
    hidden_size=32,
    intermediate_size=40,
    num_heads=4,
    num_kv_heads=2,
    head_size=16,
    layers=(FULL, FULL),
    max_model_len=64,
    latent_rank=12,
    rotary_size=6,
    state_size=3,
)
ALL = replace(
    SMALL,
    layers=(FULL, WINDOW, CHUNK, LATENT, STATE),
    num_heads=6,
    head_size=20,
    sinks=True,
    soft_cap=8.0,
    final_soft_cap=12.0,
    rope_scaling=Llama3Rope(8.0, 1.0, 4.0, 16),
)

ROUNDING = 2.0**-21
"""How far off dense attention in float32 may be, of the largest value: 16 times as sharp as ATT-6."""


def tokens_of(config: ModelConfig, length: int = 21, seed: int = 0) -> NDArray[np.int32]:
    return np.random.default_rng(seed).integers(0, config.vocab_size, length, dtype=np.int32)


def logits_of(params: Params, config: ModelConfig, tokens: NDArray[np.int32]) -> NDArray[np.float64]:
    logits = prompt_logits(params, config, jnp.asarray(tokens), jnp.arange(len(tokens), dtype=jnp.int32))
    assert logits.dtype == jnp.float32
    return np.asarray(logits, np.float64)


def hold_to_reference(config: ModelConfig, length: int = 21, attention_error: float | None = ROUNDING) -> None:
    params, tokens = init_params(config, seed=1), tokens_of(config, length)
    expected = dense_logits(params, config, tokens)
    allowed = tolerance(params, config, tokens, attention_error=attention_error)
    error = np.abs(logits_of(params, config, tokens) - expected)
    assert (error <= allowed[:, None]).all(), f"{error.max()=}, {allowed.max()=}"
    if config.dtype == "float32":
        assert allowed.max() < 1e-2 * expected.std(), "what is allowed is a small part of what is computed"


@pytest.mark.parametrize(
    "config",
    [
        replace(SMALL, num_heads=6, head_size=20),
        replace(SMALL, layers=(WINDOW, LayerKind("window", 1)), num_heads=3, num_kv_heads=1, head_size=64),
        replace(SMALL, layers=(CHUNK,), num_kv_heads=4, head_size=10, soft_cap=3.0),
        replace(SMALL, layers=(LATENT,), head_size=15, query_scale=0.3),
        replace(SMALL, layers=(STATE,)),
        replace(SMALL, layers=(FULL,), tie_embeddings=True, num_heads=1, num_kv_heads=1, head_size=130),
        ALL,
    ],
    ids=["full", "window", "chunk", "mla", "state", "tied", "all"],
)
def test_the_model_gives_what_dense_attention_gives(config: ModelConfig) -> None:
    """ENG-1, without an engine: every kind of layer, several ratios of heads, aligned and unaligned head sizes."""
    hold_to_reference(config)


@settings(max_examples=3)
@given(
    layers=st.lists(st.sampled_from([FULL, WINDOW, CHUNK, LATENT, STATE]), min_size=1, max_size=3),
    heads=st.sampled_from([(1, 1), (4, 1), (6, 3), (5, 5)]),
    half_head=st.integers(1, 40),
    options=st.fixed_dictionaries(
        {
            "sinks": st.booleans(),
            "tie_embeddings": st.booleans(),
            "soft_cap": st.sampled_from([None, 2.0, 30.0]),
            "rope_theta": st.sampled_from([50.0, 5e5]),
            "query_scale": st.sampled_from([None, 0.2]),
        }
    ),
)
def test_any_mix_of_layers_gives_what_dense_attention_gives(
    layers: list[LayerKind], heads: tuple[int, int], half_head: int, options: dict[str, Any]
) -> None:
    """ENG-1."""
    num_heads, num_kv_heads = heads
    options |= {"num_heads": num_heads, "num_kv_heads": num_kv_heads, "head_size": 2 * half_head}
    hold_to_reference(replace(SMALL, layers=tuple(layers), **options), length=13)


def test_in_bfloat16_the_error_is_of_its_rounding() -> None:
    """ENG-1, within what ATT-6 allows."""
    config = replace(SMALL, layers=(FULL, STATE), dtype="bfloat16", sinks=True)
    assert init_params(config, 0)["layers"][0]["sinks"].dtype == jnp.float32
    hold_to_reference(config, attention_error=None)


@pytest.mark.parametrize(
    "change",
    [
        {"layers": (WINDOW, CHUNK, FULL, LATENT, STATE)},
        {"layers": (FULL, LayerKind("window", 6), CHUNK, LATENT, STATE)},
        {"layers": (FULL, WINDOW, LayerKind("chunk", 5), LATENT, STATE)},
        {"query_scale": 0.2},
        {"soft_cap": 8.5},
        {"final_soft_cap": None},
        {"sinks": False},
        {"rope_theta": 10100.0},
        {"rope_scaling": None},
        {"rms_norm_eps": 1e-2},
    ],
    ids=str,
)
def test_a_model_that_is_another_is_outside_the_tolerance(change: dict[str, Any]) -> None:
    """ENG-1 tells: with each constant a little wrong the logits leave what ATT-6 and rounding allow."""
    params, tokens = init_params(ALL, seed=1), tokens_of(ALL, 21)
    difference = np.abs(dense_logits(params, replace(ALL, **change), tokens) - dense_logits(params, ALL, tokens))
    assert (difference > 2 * tolerance(params, ALL, tokens)[:, None]).any()


def test_the_tolerance_grows_as_errors_do() -> None:
    """ENG-1: with attention's own error, in proportion; with the number of layers; and it is the same every time."""
    config = replace(SMALL, layers=(FULL,) * 6)
    tokens = tokens_of(config)
    params = init_params(config, 0)

    def of(depth: int, attention_error: float | None = None) -> NDArray[np.float64]:
        shallow = replace(config, layers=config.layers[:depth])
        weights = {**params, "layers": params["layers"][:depth]}
        return tolerance(weights, shallow, tokens, attention_error=attention_error)

    deep = of(6)
    np.testing.assert_array_equal(deep, of(6, 2.0**-17), "ATT-6 in float32")
    np.testing.assert_array_equal(deep, of(6))
    np.testing.assert_allclose(of(6, 2.0**-12), 32 * deep, rtol=0.2)
    assert np.median(of(1)) < np.median(of(3)) < np.median(deep)
    assert deep.shape == tokens.shape


def test_rows_see_each_other_through_the_mixer_only() -> None:
    """ATT-4 for the model: rows that are padding may hold any token and position."""
    params, tokens = init_params(ALL, seed=1), tokens_of(ALL, 18)
    padded = np.append(tokens, np.array([-7, 2**31 - 1, 0], np.int32))
    positions = np.append(np.arange(18, dtype=np.int32), np.array([-1, -(2**31), 2**31 - 1], np.int32))
    logits = prompt_logits(params, ALL, jnp.asarray(padded), jnp.asarray(positions))
    np.testing.assert_allclose(np.asarray(logits)[:18], dense_logits(params, ALL, tokens), atol=1e-4)


@pytest.mark.parametrize("scaling", [None, Llama3Rope(8.0, 1.0, 4.0, 8192)], ids=["plain", "llama3"])
def test_a_late_position_is_rotated_as_exactly_as_an_early_one(scaling: Llama3Rope | None) -> None:
    """ENG-1: float32 angles would be wrong by 0.004 at position 131071; what is rotated here is not."""
    config = replace(SMALL, max_model_len=2**17, rope_theta=5e5, rope_scaling=scaling)
    positions = np.array([0, 1, 255, 256, 65_537, 99_999, 131_071], np.int32)
    x = np.random.default_rng(0).standard_normal((len(positions), 2, 64)).astype(np.float32)
    turned = np.asarray(jax.jit(partial(rotate, config=config))(x, positions))
    turns = np.exp(1j * np.multiply.outer(positions, rotary_frequencies(config, 64)))[:, None]
    expected = (x[..., :32] + 1j * x[..., 32:].astype(np.float64)) * turns
    np.testing.assert_array_equal(turned[0], x[0])
    np.testing.assert_allclose(turned[..., :32], expected.real, atol=2e-6)
    np.testing.assert_allclose(turned[..., 32:], expected.imag, atol=2e-6)


def test_random_weights_depend_on_the_seed_alone() -> None:
    first, again, other = (init_params(ALL, seed) for seed in (3, 3, 4))
    jax.tree.map(np.testing.assert_array_equal, first, again)
    assert not np.array_equal(first["embed"], other["embed"])
    shapes = jax.tree.map(lambda weight: weight.shape, first)
    assert shapes == param_shapes(ALL)
    assert all((np.asarray(weight) < 0).any() for weight in jax.tree.leaves(first) if weight.size > 100)


@pytest.mark.parametrize("config", [SMALL, ALL, replace(ALL, tie_embeddings=True)], ids=["full", "all", "tied"])
def test_random_models_tell_tokens_apart(config: ModelConfig) -> None:
    """ENG-1 can compare tokens only where logits differ by more than the tolerance: at most positions they do."""
    params, tokens = init_params(config, seed=5), tokens_of(config, 40)
    logits = dense_logits(params, config, tokens)
    best = np.sort(logits, axis=1)
    assert 1 < logits.std() < 3
    assert np.mean(best[:, -1] - best[:, -2] > 2 * tolerance(params, config, tokens)) > 0.8
    assert len(set(logits.argmax(axis=1))) > 10


def test_what_is_not_asked_for_is_left_out() -> None:
    config = ModelConfig(5, 4, 3, 2, 1, 2, (FULL, WINDOW, CHUNK), 8)
    assert (config.soft_cap, config.final_soft_cap, config.query_scale, config.rope_scaling) == (None,) * 4
    assert not config.sinks
    assert not config.tie_embeddings
    assert "sinks" not in init_params(config, 0)["layers"][0]
    assert config.num_layers == 3
    assert config.scale_of(0) == pytest.approx(2**-0.5)
    assert [config.window_of(layer) for layer in range(3)] == [None, 5, None]
    assert [config.chunk_of(layer) for layer in range(3)] == [None, None, 4]


def test_a_seed_is_a_number_from_zero() -> None:
    """R1."""
    with pytest.raises(ValueError, match=r"seed=-1 .* \[R1\]"):
        init_params(SMALL, -1)
    with pytest.raises(TypeError, match=r"seed=0.5 .* \[R1\]"):
        init_params(SMALL, 0.5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": ()}, r"layers=\(\)"),
        ({"vocab_size": 0}, "vocab_size=0"),
        ({"num_kv_heads": 3}, "num_heads=4 must be a multiple of num_kv_heads=3"),
        ({"head_size": 15}, "head_size=15 must be even"),
        ({"layers": (LATENT,), "rotary_size": 5}, "rotary_size=5 must be even"),
        ({"layers": (LATENT,), "latent_rank": 0}, "latent_rank=0"),
        ({"layers": (STATE,), "state_size": 0}, "state_size=0"),
        ({"state_size": -1}, "state_size=-1"),
        ({"soft_cap": 0.0}, "soft_cap=0.0"),
        ({"final_soft_cap": -1.0}, "final_soft_cap=-1.0"),
        ({"query_scale": float("nan")}, "query_scale=nan"),
        ({"rms_norm_eps": 0.0}, "rms_norm_eps=0.0"),
        ({"dtype": "int8"}, "dtype='int8'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_model_that_makes_no_sense_is_refused(change: dict[str, Any], message: str) -> None:
    """R1."""
    with pytest.raises(ValueError, match=rf"{message}.*\[R1\]"):
        replace(SMALL, **change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": [FULL]}, "layers="),
        ({"layers": ("full",)}, "layers="),
        ({"num_heads": True}, "num_heads=True"),
        ({"tie_embeddings": 1}, "tie_embeddings=1"),
        ({"rope_theta": "10000"}, "rope_theta='10000'"),
        ({"rope_scaling": 8.0}, "rope_scaling=8.0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_type_is_refused(change: dict[str, Any], message: str) -> None:
    """R1."""
    with pytest.raises(TypeError, match=rf"{message}.*\[R1\]"):
        replace(SMALL, **change)


@pytest.mark.parametrize(
    ("kind", "extent", "message"),
    [
        ("window", 0, "extent=0 of kind window must be at least 1"),
        ("chunk", 0, "extent=0 of kind chunk must be at least 1"),
        ("full", 4, "extent=4 of kind full must be 0"),
        ("state", 1, "extent=1 of kind state must be 0"),
        ("mamba", 0, "kind='mamba' must be one of full, window, chunk, mla, state"),
    ],
)
def test_a_kind_of_layer_has_an_extent_or_none(kind: str, extent: int, message: str) -> None:
    """R1."""
    with pytest.raises(ValueError, match=rf"{message} \[R1\]"):
        LayerKind(kind, extent)


@pytest.mark.parametrize("factors", [(0.5, 1.0, 4.0, 16), (8.0, 4.0, 4.0, 16), (8.0, 0.0, 4.0, 16), (8.0, 1.0, 4.0, 0)])
def test_a_stretch_of_rotation_that_makes_no_sense_is_refused(factors: tuple[float, float, float, int]) -> None:
    """R1."""
    with pytest.raises(ValueError, match=r"\[R1\]"):
        Llama3Rope(*factors)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([], "tokens: 0 must be 1 to max_model_len=64"),
        ([1] * 65, "tokens: 65 must be"),
        ([1, 53], r"tokens\[1\] must be in \[0, vocab_size=53\)"),
    ],
    ids=["none", "too many", "not in the vocabulary"],
)
def test_the_reference_refuses_what_is_no_request(tokens: list[int], message: str) -> None:
    """R1; SEC-2: the token itself is not shown."""
    params = init_params(SMALL, 0)
    for look in (dense_logits, tolerance):
        with pytest.raises(ValueError, match=rf"^{message}.*\[R1\]"):
            look(params, SMALL, tokens)


def test_a_tolerance_needs_draws_and_errors_that_are_none_below_zero() -> None:
    """R1."""
    params = init_params(SMALL, 0)
    with pytest.raises(ValueError, match=r"draws=0.*\[R1\]"):
        tolerance(params, SMALL, [1], draws=0)
    with pytest.raises(ValueError, match=r"attention_error=-1.*\[R1\]"):
        tolerance(params, SMALL, [1], attention_error=-1.0)
