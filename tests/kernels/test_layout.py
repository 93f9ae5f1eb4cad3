"""Where keys and values stand in a slot: `kernels.layout` against the reference's own packing (CACHE-2, CACHE-3)."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kvproof.kernels import CacheLayout, layout_of, pack_rows, unpack_keys, unpack_values

from .reference import pack

DTYPES = [jnp.float32, jnp.bfloat16, jnp.float8_e4m3fn, jnp.int8]


HEADS_AND_SIZES = [(1, 64, 64), (3, 80, 80), (5, 64, 64), (8, 128, 128), (2, 96, 192), (9, 192, 64), (3, 64, 32)]


@pytest.mark.parametrize("version", ["v2", "v3"])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.dtype.name)
def test_rows_stand_where_the_reference_puts_them_and_come_back(version: str, dtype: type) -> None:
    """CACHE-2, for sizes that are shared, padded, whole and unequal."""
    rng = np.random.default_rng(0)
    for heads, k_dim, v_dim in HEADS_AND_SIZES:
        keys: Any = rng.integers(1, 100, (3, heads, k_dim)).astype(dtype)
        values: Any = rng.integers(1, 100, (3, heads, v_dim)).astype(dtype)
        expected = pack(keys, values, version)
        layout = layout_of(expected[None], k_dim, v_dim, heads)
        assert layout.row_shape == expected.shape[1:]
        rows, k_back, v_back = _there_and_back(keys, values, layout)
        np.testing.assert_array_equal(np.asarray(rows), expected)
        np.testing.assert_array_equal(np.asarray(k_back), keys)
        np.testing.assert_array_equal(np.asarray(v_back)[0], values)


@partial(jax.jit, static_argnums=2)
def _there_and_back(keys: jax.Array, values: jax.Array, layout: CacheLayout) -> tuple[jax.Array, jax.Array, jax.Array]:
    rows = pack_rows(keys, values, layout, keys.dtype)
    return rows, unpack_keys(rows, layout), unpack_values(rows[None], layout)


@pytest.mark.parametrize(
    ("shape", "dtype", "dim", "heads"),
    [
        ((4, 16, 16, 128), np.float32, 128, 8),
        ((4, 16, 16, 128), np.float32, 64, 8),
        ((4, 16, 8, 1, 128), np.float32, 64, 8),
        ((4, 16, 8, 2, 128), np.uint16, 80, 8),
        ((4, 16, 1, 4, 128), np.uint8, 64, 4),
        ((4, 16, 3, 2, 256), np.float16, 192, 3),
    ],
)
def test_heads_are_as_many_as_the_rows_hold(shape: tuple[int, ...], dtype: type, dim: int, heads: int) -> None:
    assert layout_of(np.empty(shape, dtype), dim, dim).num_kv_heads == heads


@pytest.mark.parametrize(
    ("shape", "dim", "v_dim", "heads"),
    [
        ((4, 16, 128), 128, 128, None),  # too few dimensions
        ((4, 16, 15, 128), 128, 128, None),  # half a head
        ((4, 16, 16, 64), 64, 64, 8),  # rows are of 128 in v2 also where heads are of 64
        ((4, 16, 16, 128), 192, 192, 8),  # heads larger than rows
        ((4, 16, 16, 256), 128, 128, 8),  # rows larger than heads need
        ((4, 16, 16, 128), 128, 192, 8),  # values larger than rows
        ((4, 16, 8, 2, 128), 128, 128, 8),  # the packing of another dtype
        ((4, 16, 16, 1, 128), 128, 128, 4),  # rows for other heads
        ((4, 16, 0, 1, 128), 128, 128, None),
    ],
)
def test_a_shape_that_fits_no_layout_is_refused(
    shape: tuple[int, ...], dim: int, v_dim: int, heads: int | None
) -> None:
    """R1."""
    with pytest.raises(ValueError, match=r"^kv_pages\.shape=.*\[R1\]$"):
        layout_of(np.empty(shape, np.float32), dim, v_dim, heads)
