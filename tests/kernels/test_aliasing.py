"""Caches are updated in place when they are donated: what XLA's own memory analysis says (CACHE-3)."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kvproof.kernels import (
    ScaledPages,
    copy_pages,
    fused_ragged_paged_attention,
    kv_cache_update,
    mla_cache_update,
    storage_dtype,
    write_states,
)

P, PAGE, H, D, T, S, WIDTH = 512, 16, 4, 128, 8, 4, 5

DTYPES = [jnp.float32, jnp.bfloat16, jnp.float16, jnp.float8_e4m3fn, jnp.float8_e5m2, jnp.int8]
NAMES = [jnp.dtype(dtype).name for dtype in DTYPES]

array: Callable[..., Any] = jax.ShapeDtypeStruct


def ids(*shape: int) -> Any:
    return array(shape, jnp.int32)


def cache(dtype: Any, version: str, scales: bool) -> Any:
    stored = storage_dtype(dtype, "cpu")
    packing = 4 // stored.itemsize
    shape = (2 * H, D) if version == "v2" else (2 * H // packing, packing, D)
    pages = array((P, PAGE, *shape), stored)
    return ScaledPages(pages, array((P, PAGE, 2 * H), jnp.float32)) if scales else pages


def check_in_place(function: Callable[..., Any], pages: Any, *rest: Any) -> None:
    """The pages donated are the pages given back, and what else is needed is small beside them."""
    compiled = jax.jit(function, donate_argnums=0).lower(pages, *rest).compile()
    analysis: Any = compiled.memory_analysis()
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(pages))
    assert analysis.alias_size_in_bytes >= size
    assert analysis.temp_size_in_bytes < size / 4


@pytest.mark.parametrize("version", ["v2", "v3"])
@pytest.mark.parametrize("dtype", DTYPES, ids=NAMES)
def test_an_update_is_in_place(dtype: Any, version: str) -> None:
    """CACHE-3: whatever the cache holds, plain or with scales, by slots or by slices."""
    new: Any = jnp.float32 if jnp.dtype(dtype).itemsize == 1 else dtype
    rows = array((T, H, D), new)
    scale = 1.0 if dtype is jnp.int8 else None
    update = partial(kv_cache_update, kv_dtype=dtype)
    plain = partial(update, k_scale=scale, v_scale=scale)
    check_in_place(plain, cache(dtype, version, False), rows, rows, ids(T))
    if jnp.dtype(dtype).itemsize == 1:
        check_in_place(update, cache(dtype, version, True), rows, rows, ids(T))

    def slices(pages: Any, keys: Any, values: Any, mapping: Any, count: Any) -> Any:
        return plain(pages, keys, values, mapping, num_slices=count)

    check_in_place(slices, cache(dtype, version, False), rows, rows, ids(3, T), ids(1))


@pytest.mark.parametrize(("dtype", "scales"), [(jnp.bfloat16, False), (jnp.int8, True)], ids=["bfloat16", "int8"])
def test_fused_attention_is_in_place(dtype: Any, scales: bool) -> None:
    """CACHE-3, ATT-5."""
    rows = array((T, H, D), jnp.bfloat16)

    def fused(pages: Any, queries: Any, keys: Any, values: Any, *lengths: Any) -> Any:
        return fused_ragged_paged_attention(queries, keys, values, pages, *lengths, kv_dtype=dtype)

    lengths = (ids(S), ids(S, WIDTH), ids(S + 1), ids(1))
    check_in_place(fused, cache(dtype, "v3", scales), array((T, 8, D), jnp.bfloat16), rows, rows, *lengths)


def test_latents_pages_and_states_are_in_place() -> None:
    """CACHE-3, MAN-13."""
    latents = array((T, 512), jnp.bfloat16), array((T, 64), jnp.bfloat16)
    check_in_place(
        partial(mla_cache_update, kv_dtype=jnp.bfloat16), array((P, PAGE, 640), jnp.uint16), *latents, ids(T)
    )
    layers = [cache(jnp.bfloat16, "v3", False), cache(jnp.int8, "v2", True)]
    check_in_place(copy_pages, layers, ids(T), ids(T))
    states = {"conv": array((P, 4, 64), jnp.float16), "ssm": array((P, 64, 16), jnp.float32)}
    new = {"conv": array((S, 4, 64), jnp.float16), "ssm": array((S, 64, 16), jnp.float32)}
    check_in_place(write_states, states, ids(S), new)


def test_the_donated_buffer_is_the_one_that_comes_back() -> None:
    """CACHE-3, run rather than analysed."""
    update = jax.jit(partial(kv_cache_update, kv_dtype=jnp.bfloat16), donate_argnums=0)
    pages = jnp.zeros((P, PAGE, H, 2, D), jnp.uint16)
    before = pages.unsafe_buffer_pointer()
    rows = jnp.ones((T, H, D), jnp.bfloat16)
    after = update(pages, rows, rows, jnp.arange(T, dtype=jnp.int32))
    assert after.unsafe_buffer_pointer() == before
    assert pages.is_deleted()
    assert np.count_nonzero(np.asarray(after)) == T * 2 * H * D
