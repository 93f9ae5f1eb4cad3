"""Decode on CPU against gathering everything, and updates in place; f32, 32 query and 8 KV heads of 128, page 16."""

from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kvproof.kernels import kv_cache_update, ragged_paged_attention

from .gather_baseline import gather_attention

Q_HEADS, KV_HEADS, DIM, PAGE = 32, 8, 128, 16


@lru_cache(1)
def decode_batch(rows: int, length: int) -> tuple[jax.Array, ...]:
    """Queries, pages, lengths, table, query starts and number of sequences: every sequence has ``length`` tokens."""
    width = length // PAGE
    pages = rows * width + 1
    rng = np.random.default_rng(0)
    table = 1 + rng.permutation(pages - 1).reshape(rows, width)
    return (
        jax.random.normal(jax.random.key(0), (rows, Q_HEADS, DIM)),
        jax.random.normal(jax.random.key(1), (pages, PAGE, 2 * KV_HEADS, 1, DIM)),
        jnp.full(rows, length, jnp.int32),
        jnp.asarray(table, jnp.int32),
        jnp.arange(rows + 1, dtype=jnp.int32),
        jnp.array([rows], jnp.int32),
    )


@pytest.mark.parametrize("implementation", ["kvproof", "gather"])
@pytest.mark.parametrize(("rows", "length"), [(64, 1024), (8, 4096)])
def test_decode(benchmark: Any, rows: int, length: int, implementation: str) -> None:
    """ATT-1: one token of each sequence; the two agree."""
    queries, pages, lens, table, starts, count = decode_batch(rows, length)
    ours = partial(ragged_paged_attention, queries, pages, lens, table, starts, count)
    theirs = partial(gather_attention, queries, pages, lens, table)
    np.testing.assert_allclose(ours(), theirs(), atol=1e-5)
    chosen = ours if implementation == "kvproof" else theirs
    benchmark.pedantic(lambda: chosen().block_until_ready(), rounds=7, warmup_rounds=1)


def test_update_of_64_rows(benchmark: Any) -> None:
    """CACHE-3: 64 rows into a bfloat16 cache of 256 MiB, held as bits and donated."""
    update = jax.jit(partial(kv_cache_update, kv_dtype=jnp.bfloat16), donate_argnums=0)
    rows = jnp.ones((64, KV_HEADS, DIM), jnp.bfloat16)
    slots = jnp.asarray(np.random.default_rng(0).permutation(65536)[:64], jnp.int32)
    cache = jnp.zeros((65536 // PAGE, PAGE, KV_HEADS, 2, DIM), jnp.uint16)
    assert cache.nbytes == 256 * 2**20

    def step() -> None:
        nonlocal cache
        cache = update(cache, rows, rows, slots).block_until_ready()

    benchmark.pedantic(step, rounds=50, warmup_rounds=3)
