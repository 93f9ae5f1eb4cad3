"""What numbers in a cache mean: scales, saturation, bits (CACHE-4)."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof.kernels import ScaledPages, storage_dtype
from kvproof.kernels.storage import from_bits, quantise, saturated, to_bits, value_dtype

from .reference import scaled

SMALL = [jnp.int8, jnp.float8_e4m3fn, jnp.float8_e5m2]
NAMES = [jnp.dtype(dtype).name for dtype in SMALL]
LARGEST = {"int8": 127.0, "float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}
RELATIVE = {"int8": 0.0, "float8_e4m3fn": 2.0**-4, "float8_e5m2": 2.0**-3}
ABSOLUTE = {"int8": 0.5, "float8_e4m3fn": 2.0**-10, "float8_e5m2": 2.0**-17}
"""Half of the distance of neighbours, of int8; of the floats half the smallest subnormal."""

quantised = {jnp.dtype(dtype).name: jax.jit(lambda rows, dtype=dtype: quantise(rows, dtype)) for dtype in SMALL}


@given(seed=st.integers(0, 2**32), name=st.sampled_from(NAMES), spread=st.floats(0, 20))
def test_the_error_is_bounded_and_the_scale_is_the_rows_own(seed: int, name: str, spread: float) -> None:
    """CACHE-4, for rows of magnitudes far apart; a row quantised alone gives the same as among others."""
    rng = np.random.default_rng(seed)
    rows = (rng.standard_normal((7, 3, 16)) * np.exp(spread * rng.standard_normal((7, 3, 1)))).astype(np.float32)
    rows[0, 0] = 0
    stored, scales = (np.asarray(part) for part in quantised[name](rows))
    expected, expected_scales = scaled(rows, stored.dtype)
    np.testing.assert_array_equal(scales, expected_scales)
    np.testing.assert_array_equal(stored.view(np.uint8), expected.view(np.uint8))
    assert scales[0, 0] == 1
    exact, scale = rows.astype(np.float64), scales[..., None].astype(np.float64)
    error = np.abs(stored.astype(np.float64) * scale - exact)
    assert (error <= (RELATIVE[name] * np.abs(exact) + ABSOLUTE[name] * scale) * (1 + 1e-6)).all()


@pytest.mark.parametrize("dtype", SMALL, ids=NAMES)
def test_what_is_too_large_saturates(dtype: Any) -> None:
    """CACHE-4: infinities and the largest floats, plain and scaled; nothing becomes NaN."""
    bound = LARGEST[jnp.dtype(dtype).name]
    largest = float(np.finfo(np.float32).max)
    extremes = jnp.array([bound, bound * 1.01, 1e30, largest, jnp.inf], jnp.float32)
    for sign in (1, -1):
        np.testing.assert_array_equal(np.asarray(saturated(sign * extremes, dtype)).astype(float), sign * bound)
    stored, scales = quantise(extremes[None], dtype)
    read = np.asarray(stored).astype(np.float64)[0] * float(scales[0])
    assert np.isfinite(read).all()
    np.testing.assert_allclose(read[-2:], largest, rtol=1e-6)


@pytest.mark.parametrize("dtype", SMALL, ids=NAMES)
def test_rows_of_the_smallest_numbers_stay_finite(dtype: Any) -> None:
    """CACHE-4: a scale never underflows to zero."""
    stored, scales = quantise(jnp.full((1, 8), 1e-38, jnp.float32), dtype)
    assert float(scales[0]) > 0
    assert np.isfinite(np.asarray(stored).astype(np.float64)).all()


@pytest.mark.parametrize("dtype", SMALL[1:], ids=NAMES[1:])
def test_floats_are_rounded_half_to_even(dtype: Any) -> None:
    """CACHE-4: bit for bit as the conversion of ml_dtypes, which rounds once."""
    bound = LARGEST[jnp.dtype(dtype).name]
    numbers = np.arange(0, 2**32, 999_983, dtype=np.uint64).astype(np.uint32).view(np.float32)
    numbers = numbers[np.isfinite(numbers)]
    got = np.asarray(saturated(jnp.asarray(numbers), dtype))
    expected = np.clip(numbers, -bound, bound).astype(dtype)
    np.testing.assert_array_equal(got.view(np.uint8), expected.view(np.uint8))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, *SMALL[1:]])
def test_bits_stand_for_the_same_numbers(dtype: Any) -> None:
    """CACHE-2."""
    numbers = jnp.asarray(np.random.default_rng(0).standard_normal((3, 5))).astype(dtype)
    stored = storage_dtype(dtype, "cpu")
    assert stored.kind == "u"
    assert storage_dtype(dtype, "tpu") == dtype
    bits = to_bits(numbers, stored)
    assert bits.dtype == stored
    assert from_bits(bits, dtype).dtype == dtype
    assert (np.asarray(from_bits(bits, dtype)) == np.asarray(numbers)).all()


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16, jnp.int8])
def test_other_numbers_are_stored_as_they_are(dtype: Any) -> None:
    assert storage_dtype(dtype, "cpu") == dtype
    numbers = jnp.ones(3, dtype)
    assert to_bits(numbers, numbers.dtype) is numbers
    assert from_bits(numbers, dtype) is numbers


def _pages(dtype: Any, scales: bool = False) -> Any:
    pages = jnp.zeros((2, 4, 4, 128), dtype)
    return ScaledPages(pages, jnp.ones((2, 4, 4))) if scales else pages


def test_what_pages_hold_is_known() -> None:
    assert value_dtype(_pages(jnp.float32)) == jnp.float32
    assert value_dtype(_pages(jnp.bfloat16), "bfloat16") == jnp.bfloat16
    assert value_dtype(_pages(jnp.uint8), "f8_e4m3") == jnp.float8_e4m3fn
    assert value_dtype(_pages(jnp.uint16), jnp.bfloat16) == jnp.bfloat16
    assert value_dtype(_pages(jnp.uint8, scales=True), jnp.float8_e5m2) == jnp.float8_e5m2
    assert value_dtype(_pages(jnp.int8, scales=True)) == jnp.int8


@pytest.mark.parametrize(
    ("pages", "kv_dtype", "error"),
    [
        (_pages(jnp.uint16), None, TypeError),
        (_pages(jnp.uint8), None, TypeError),
        (_pages(jnp.int32), None, TypeError),
        (_pages(jnp.float32), jnp.int32, TypeError),
        (_pages(jnp.float32), "float33", TypeError),
        (_pages(jnp.float32), jnp.bfloat16, ValueError),
        (_pages(jnp.uint16), jnp.float16, ValueError),
        (_pages(jnp.uint16), jnp.float8_e5m2, ValueError),
        (_pages(jnp.uint8), jnp.int8, ValueError),
        (_pages(jnp.float32, scales=True), None, TypeError),
        (_pages(jnp.uint16, scales=True), jnp.bfloat16, TypeError),
    ],
)
def test_pages_that_can_not_hold_such_numbers_are_refused(pages: Any, kv_dtype: Any, error: type[Exception]) -> None:
    """R1."""
    with pytest.raises(error, match=r"\[R1\]$"):
        value_dtype(pages, kv_dtype)
