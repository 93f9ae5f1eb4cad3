"""MLA in plain JAX against float64, over poison, and its cache (ATT-1 to ATT-6, CACHE-2, CACHE-3)."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from kvproof.kernels import mla_cache_update, mla_paged_attention

from .reference import Batch, Mask, assert_close, bits, dense_attention, make_latent_batch

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "float32": ({"latent_dim": 128, "rotary_dim": 64}, {}),
    "bfloat16": ({"latent_dim": 512, "rotary_dim": 64, "dtype": jnp.bfloat16}, {}),
    "unaligned_window_cap": ({"latent_dim": 100, "rotary_dim": 24, "mask": Mask(window=9)}, {"soft_cap": 3.0}),
    "not_causal": ({"latent_dim": 64, "rotary_dim": 130, "dtype": jnp.float16, "mask": Mask(causal=False)}, {}),
}


def attend(batch: Batch, latent_dim: int, **options: Any) -> Any:
    return mla_paged_attention(
        batch.queries[..., :latent_dim],
        batch.queries[..., latent_dim:],
        bits(batch.kv_pages),
        *batch.arrays[2:],
        causal=batch.mask.causal,
        window=batch.mask.window,
        kv_dtype=batch.kv_pages.dtype,
        **options,
    )


@pytest.mark.parametrize("name", CASES)
def test_any_ragged_batch_is_as_in_float64(name: str) -> None:
    """ATT-1 to ATT-4, ATT-6."""
    shape, options = CASES[name]
    for seed in range(4):
        rng = np.random.default_rng(seed)
        q_lens = [1, int(rng.integers(0, 20)), 1, int(rng.integers(2, 9)), 0]
        kv_lens = [max(q_len, int(n)) for q_len, n in zip(q_lens, rng.integers(0, 200, 5), strict=True)]
        batch = make_latent_batch(
            rng, q_lens, kv_lens, num_q_heads=3, pages_per_seq=14, num_pages=70, max_tokens=40, max_seqs=6, **shape
        )
        out = attend(batch, shape["latent_dim"], scale=0.1, **options)
        assert_close(out, dense_attention(batch, scale=0.1, **options))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float8_e4m3fn])
def test_latents_are_written_where_they_belong(dtype: Any) -> None:
    """CACHE-2, CACHE-3: latent, zeros, rotary part, zeros; all else stays bit for bit; slices do as slots."""
    rng = np.random.default_rng(0)
    dtype = jnp.dtype(dtype)
    new: Any = np.float32 if dtype.itemsize == 1 else dtype
    latents, rotary = (rng.standard_normal((4, size)).astype(new) for size in (130, 24))
    pages = bits(rng.standard_normal((5, 4, 384)).astype(dtype))
    expected = pages.reshape(20, 384).copy()
    row: Any = np.zeros((4, 384), dtype)
    row[:, :130], row[:, 256:280] = latents.astype(dtype), rotary.astype(dtype)
    slots = np.array([9, -1, 10, 20], np.int32)
    expected[[9, 10]] = bits(row)[[0, 2]]
    after = mla_cache_update(pages, latents, rotary, slots, kv_dtype=dtype, validate=False)
    np.testing.assert_array_equal(np.asarray(after).reshape(20, 384), expected)
    slices = np.array([[9, 10, 0], [0, 2, 0], [1, 1, 4]], np.int32)
    count = np.array([2], np.int32)
    after = mla_cache_update(pages, latents, rotary, slices, num_slices=count, kv_dtype=dtype, validate=True)
    np.testing.assert_array_equal(np.asarray(after).reshape(20, 384), expected)


def test_latents_written_then_read() -> None:
    """CACHE-2, ATT-1: written slot by slot, attention over them is that of the batch's own pages."""
    batch = make_latent_batch(
        np.random.default_rng(0), [1, 4], [30, 17], num_q_heads=2, latent_dim=128, rotary_dim=64, page_size=8
    )
    pages: Any = np.full_like(batch.kv_pages, np.nan)
    for keys, slots in zip(batch.keys, batch.slots, strict=True):
        rows = keys[:, 0].astype(np.float32)
        pages = mla_cache_update(pages, rows[:, :128], rows[:, 128:], slots.astype(np.int32), validate=True)
    out = mla_paged_attention(
        batch.queries[..., :128], batch.queries[..., 128:], pages, *batch.arrays[2:], scale=0.1, validate=True
    )
    assert_close(out, dense_attention(batch, scale=0.1))
