"""The units of scores against the softmax itself (ATT-1, ATT-6)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof.kernels import AttentionOptions, CacheLayout
from kvproof.kernels.score_units import exponent_unit, scores_of, sinks_as_scores

LAYOUT = CacheLayout("v2", 1, 128, 128, 1)


def options_of(scale: float, soft_cap: float | None = None) -> AttentionOptions:
    return AttentionOptions(LAYOUT, jnp.float32, scale, soft_cap=soft_cap)


def weights(scores: jax.Array, options: AttentionOptions) -> np.ndarray:
    """What the kernels make of scores: weights over that of the largest."""
    found: np.ndarray = np.asarray(jnp.exp2((scores - jnp.max(scores)) * exponent_unit(options)))
    return found


def expected(products: np.ndarray, options: AttentionOptions) -> np.ndarray:
    """The same of their products, in float64, from the formula."""
    logits = products.astype(np.float64) * options.score_scale
    if options.soft_cap is not None:
        logits = options.soft_cap * np.tanh(logits / options.soft_cap)
    found: np.ndarray = np.exp(logits - logits.max())
    return found


@given(
    scale=st.sampled_from([0.125, 128**-0.5, -0.3, 7.0, 0.0, -0.0, 1e-31, -1e-31, 1e-30, 1e-20]),
    offset=st.sampled_from([0.0, -8192.0, 8192.0, 1e6]),
    seed=st.integers(0, 2**32 - 1),
)
def test_weights_are_those_of_the_logits(scale: float, offset: float, seed: int) -> None:
    """ATT-6: however far from zero products are, negative and vanishing scales included.

    The products are whole numbers, so that all that is off is a rounding of the difference's product with the unit and
    one of the unit: of exponents down to -126.
    """
    products = (offset + np.random.default_rng(seed).integers(-40, 41, 16)).astype(np.float32)
    options = options_of(scale)
    seen = weights(scores_of(jnp.asarray(products), options), options)
    np.testing.assert_allclose(seen, expected(products, options), rtol=2.0**-16, atol=2.0**-126)


@given(
    scale=st.sampled_from([0.125, 128**-0.5, -0.3, 0.0, 1e-31]),
    soft_cap=st.none() | st.sampled_from([1.0, 30.0]),
    sink=st.floats(-20, 20, width=32),
)
def test_sinks_stand_among_the_scores(scale: float, soft_cap: float | None, sink: float) -> None:
    """ATT-1: a sink is a logit, neither scaled nor capped; taken for a score it weighs as much.

    To the last bit of a float32, or as a score to its smallest normal number: devices flush what is smaller to zero.
    """
    options = options_of(scale, soft_cap)
    unit = exponent_unit(options) * np.log(2)
    as_score = float(sinks_as_scores(jnp.float32(sink), options))
    assert abs(as_score * unit - sink) <= max(abs(sink) * 2.0**-23, 2.0**-126 * max(abs(unit), 1.0))


@given(soft_cap=st.sampled_from([1.0, 5.0, 30.0]), seed=st.integers(0, 2**32 - 1))
def test_capped_scores_are_fractions_of_the_cap(soft_cap: float, seed: int) -> None:
    """ATT-1, ATT-6: the cap comes before the maximum; products that it holds back entirely are all the same."""
    products = (np.random.default_rng(seed).standard_normal(16) * 300).astype(np.float32)
    products[:2] = 3e8
    options = options_of(128**-0.5, soft_cap)
    scores = scores_of(jnp.asarray(products), options)
    np.testing.assert_allclose(weights(scores, options), expected(products, options), rtol=soft_cap * 2.0**-20)
    assert (np.abs(scores) <= 1).all()


@pytest.mark.parametrize("scale", [1.0, -1.0, 1e-30, 1e-31, 0.0])
def test_what_is_masked_weighs_nothing(scale: float) -> None:
    """ATT-2: -2e38 stands for a masked score in the kernels, whatever the scale; scores stay in their order."""
    options = options_of(scale)
    assert exponent_unit(options) > 0
    masked = jnp.exp2((jnp.float32(-2e38) - scores_of(jnp.float32(1.0), options)) * exponent_unit(options))
    assert float(masked) == 0
    jaxpr = jax.make_jaxpr(lambda x: scores_of(x, options_of(2.0)))(jnp.float32(1.0))
    assert not jaxpr.eqns, "a scale above zero takes no operation before the maximum"
