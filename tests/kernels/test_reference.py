"""The tests' own dense attention against the specification's, which shares nothing with it (ATT-1 to ATT-4)."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from kvproof import spec

from .reference import Batch, Mask, bits, dense_attention, make_batch, make_latent_batch

Q_LENS, KV_LENS = [1, 7, 0, 1, 20], [40, 7, 5, 1, 64]

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "shared_rows": ({"head_dim": 64, "kv_dtype": jnp.bfloat16}, {"sinks": np.array([-1, 0, 1, 2], np.float32)}),
    "window": ({"version": "v2", "mask": Mask(window=9)}, {"soft_cap": 2.0}),
    "window_not_causal_chunk": ({"mask": Mask(causal=False, window=30, chunk=25)}, {"scale": 0.3}),
    "int8": ({"kv_dtype": np.int8, "scaled_pages": True, "v_head_dim": 130}, {}),
    "e4m3": ({"kv_dtype": jnp.float8_e4m3fn}, {"q_scale": 2.0, "k_scale": 0.5, "v_scale": 3.0}),
}


def check(batch: Batch, out: Any, expected: np.ndarray[Any, Any]) -> None:
    """The specification computes in float64, and gives float32 here: its own rounding is all that may differ."""
    np.testing.assert_allclose(out.astype(np.float64), expected, rtol=2.0**-23, atol=1e-7)
    np.testing.assert_array_equal(out[sum(Q_LENS) :], 0)
    assert out.dtype == batch.queries.dtype == np.float32


@pytest.mark.parametrize("name", CASES)
def test_two_references_agree(name: str) -> None:
    shape, options = CASES[name]
    shape = {"num_q_heads": 4, "num_kv_heads": 2, "head_dim": 80, "max_tokens": 33, "max_seqs": 7, **shape}
    batch = make_batch(np.random.default_rng(0), Q_LENS, KV_LENS, **shape)
    pages: Any = bits(batch.kv_pages)
    if batch.scales is not None:
        pages = spec.ScaledPages(pages, batch.scales)
    out = spec.ragged_paged_attention(
        batch.queries,
        pages,
        *batch.arrays[2:],
        causal=batch.mask.causal,
        window=batch.mask.window,
        chunk=batch.mask.chunk,
        num_kv_heads=2,
        v_head_dim=batch.values[0].shape[2],
        kv_dtype=batch.kv_pages.dtype,
        **options,
    )
    check(batch, out, dense_attention(batch, **options)[0])


def test_two_references_agree_over_latents() -> None:
    batch = make_latent_batch(
        np.random.default_rng(0),
        Q_LENS,
        KV_LENS,
        num_q_heads=3,
        latent_dim=100,
        rotary_dim=24,
        max_tokens=33,
        max_seqs=7,
        mask=Mask(window=9),
    )
    queries, rotary = batch.queries[..., :100], batch.queries[..., 100:]
    out = spec.mla_paged_attention(queries, rotary, batch.kv_pages, *batch.arrays[2:], scale=0.1, window=9)
    check(batch, out, dense_attention(batch, scale=0.1)[0])
