"""The one arithmetic of masks against the masks themselves (ATT-1, ATT-2)."""

import jax.numpy as jnp
import numpy as np
import pytest

from kvproof.kernels import AttentionOptions, CacheLayout
from kvproof.kernels.masks import end_key, first_key

from .reference import Mask

LAYOUT = CacheLayout("v2", 1, 128, 128, 1)
MASKS = [Mask(causal, window, chunk) for causal in (True, False) for window in (None, 1, 5) for chunk in (None, 1, 7)]


@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_what_a_query_reads_is_the_range_between(mask: Mask) -> None:
    """ATT-1: at every position of a sequence of 20, and at negative ones (ATT-2); neither end ever falls."""
    options = AttentionOptions(LAYOUT, jnp.float32, 1.0, mask.causal, mask.window, mask.chunk)
    positions = jnp.arange(-4, 20, dtype=jnp.int32)
    first = np.asarray(first_key(positions, options))
    end = np.asarray(end_key(positions, jnp.int32(20), options))
    key = np.arange(20)
    np.testing.assert_array_equal((key >= first[:, None]) & (key < end[:, None]), mask.readable(24, 20))
    assert (np.diff(first) >= 0).all()
    assert (np.diff(end) >= 0).all()


@pytest.mark.parametrize("position", [32767, 32768, 40000, 2**31 - 2])
def test_positions_are_int32_and_do_not_overflow(position: int) -> None:
    """ATT-1: scalars as kernels have them, windows and chunks as long as contexts can be."""
    at = jnp.int32(position)
    options = AttentionOptions(LAYOUT, jnp.float32, 1.0, True, 2**31 - 1, None)
    assert int(first_key(at, options)) == 0
    assert int(first_key(jnp.int32(-(2**31)), options)) == 0
    assert int(end_key(at, at + 1, options)) == position + 1
    near = AttentionOptions(LAYOUT, jnp.float32, 1.0, True, 3, 4096)
    assert int(first_key(at, near)) == max(position - 2, position // 4096 * 4096)
    assert first_key(at, near).dtype == end_key(at, at, near).dtype == jnp.int32
