"""Paged attention in plain JAX against float64, over poison, for whatever a batch may look like (ATT-1 to ATT-6)."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.kernels import ScaledPages, ragged_paged_attention

from .reference import Batch, Mask, assert_close, bits, dense_attention, make_batch

PAGE, WIDTH, ROWS, TOKENS = 16, 11, 5, 48

OPTIONS: dict[str, tuple[dict[str, Any], Mask, dict[str, Any]]] = {
    "plain": ({}, Mask(), {}),
    "not_causal": ({"version": "v2"}, Mask(causal=False), {}),
    "window": ({"dtype": jnp.bfloat16}, Mask(window=7), {}),
    "window_not_causal": ({"dtype": jnp.float16}, Mask(causal=False, window=30), {}),
    "chunk": ({"head_dim": 64, "version": "v2"}, Mask(chunk=24), {}),
    "window_chunk_cap_sinks": (
        {"head_dim": 64, "dtype": jnp.bfloat16},
        Mask(window=40, chunk=50),
        {"soft_cap": 2.0, "sinks": np.linspace(-3, 3, 6, dtype=np.float32)},
    ),
    "int8": ({"kv_dtype": jnp.int8, "scaled_pages": True, "v_head_dim": 32}, Mask(), {}),
    "e4m3": ({"kv_dtype": jnp.float8_e4m3fn}, Mask(), {"k_scale": 0.5, "v_scale": 2.0, "q_scale": 1.5, "scale": 0.1}),
    "e5m2": ({"kv_dtype": jnp.float8_e5m2, "scaled_pages": True, "version": "v2"}, Mask(window=20), {}),
}
"""How the batch is made, what a query reads, and what else the call says; each is compiled once."""


def attend(batch: Batch, **options: Any) -> Any:
    """What the public function makes of a batch, held as CPU holds it."""
    pages: Any = bits(batch.kv_pages)
    if batch.scales is not None:
        pages = ScaledPages(jnp.asarray(pages), jnp.asarray(batch.scales))
    mask = batch.mask
    return ragged_paged_attention(
        batch.queries,
        pages,
        *batch.arrays[2:],
        causal=mask.causal,
        window=mask.window,
        chunk=mask.chunk,
        num_kv_heads=batch.keys[0].shape[1],
        v_head_dim=batch.values[0].shape[2],
        kv_dtype=batch.kv_pages.dtype,
        **options,
    )


@st.composite
def lengths(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Query and context lengths of up to ROWS sequences with at most TOKENS query rows, edges of pages preferred."""
    room, q_lens, kv_lens = TOKENS, [], []
    for _ in range(draw(st.integers(0, ROWS))):
        q_len = draw(st.one_of(st.just(1), st.integers(0, room))) if room else 0
        room -= q_len
        pages = draw(st.integers(0, WIDTH - 1))
        near = PAGE * pages + draw(st.sampled_from([-1, 0, 1]))
        kv_len = draw(st.one_of(st.integers(0, PAGE * WIDTH), st.just(near)))
        q_lens.append(q_len)
        kv_lens.append(max(q_len, kv_len))
    return q_lens, kv_lens


@pytest.mark.parametrize("name", OPTIONS)
@settings(max_examples=12)
@given(drawn=lengths(), seed=st.integers(0, 2**32))
def test_any_ragged_batch_is_as_in_float64(name: str, drawn: tuple[list[int], list[int]], seed: int) -> None:
    """ATT-1 to ATT-4, ATT-6: poison in dead slots and padding rows, garbage in the table and past the end."""
    shape, mask, options = OPTIONS[name]
    shape = {"num_q_heads": 6, "num_kv_heads": 2, "head_dim": 80, **shape}
    batch = make_batch(
        np.random.default_rng(seed),
        *(drawn if drawn[0] else ([0], [0])),
        page_size=PAGE,
        pages_per_seq=WIDTH,
        num_pages=ROWS * WIDTH + 2,
        max_tokens=TOKENS,
        max_seqs=ROWS,
        mask=mask,
        **shape,
    )
    assert_close(attend(batch, **options), dense_attention(batch, **options))


GRID = [
    # Hq, H, D, page, version, dtype
    (4, 4, 64, 1, "v3", jnp.float32),
    (4, 2, 80, 8, "v2", jnp.bfloat16),
    (9, 3, 96, 16, "v3", jnp.bfloat16),
    (5, 1, 128, 32, "v3", jnp.float16),
    (7, 1, 192, 33, "v2", jnp.float32),
    (16, 2, 256, 64, "v3", jnp.bfloat16),
    (16, 1, 64, 128, "v3", jnp.bfloat16),
    (32, 1, 80, 33, "v3", jnp.float32),
    (64, 1, 96, 64, "v2", jnp.bfloat16),
    (15, 5, 64, 8, "v3", jnp.float16),
]
"""Head ratios 1, 2, 3, 5, 7, 8, 16, 32, 64; every head size and every page size."""


@pytest.mark.parametrize(("q_heads", "kv_heads", "dim", "page", "version", "dtype"), GRID)
def test_every_ratio_head_size_and_page_size(
    q_heads: int, kv_heads: int, dim: int, page: int, version: str, dtype: Any
) -> None:
    """ATT-1, ATT-6: lengths round whole pages, decoding and with more query rows; a spare page."""
    kv_lens = [n * page + more for n in (1, 3) for more in (-1, 0, 1)] * 2
    q_lens = [min(1, n) for n in kv_lens[:6]] + [min(n, 5) for n in kv_lens[6:]]
    batch = make_batch(
        np.random.default_rng(dim),
        q_lens,
        kv_lens,
        num_q_heads=q_heads,
        num_kv_heads=kv_heads,
        head_dim=dim,
        page_size=page,
        version=version,
        dtype=dtype,
        max_seqs=len(kv_lens) + 1,
        max_tokens=sum(q_lens) + 2,
    )
    assert_close(attend(batch), dense_attention(batch))


DECODE_KV = [18, 129, 597, 122, 64, 322, 463, 181, 1107, 123, 31, 18, 1229, 229, 87, 1328]
PREFILL_Q = [5, 15, 120, 100, 21, 32, 251, 40, 64, 99, 10, 5, 3, 120, 9, 2]
MIXED_Q = [5, 1, 120, 1, 1, 32, 251, 1, 1, 99, 1, 5, 3, 117, 1, 1]
PEERS = {
    "basic": ([192, 128, 64], [328, 180, 255]),
    "decode": ([1] * 16, DECODE_KV),
    "prefill": (PREFILL_Q, DECODE_KV),
    "mixed": (MIXED_Q, DECODE_KV),
}


@pytest.mark.parametrize("name", PEERS)
def test_the_sequences_that_peers_use(name: str) -> None:
    """ATT-1, ATT-6; one program for all: 32 query and 8 KV heads, page 16."""
    q_lens, kv_lens = PEERS[name]
    kv_lens = [max(q_len, kv_len) for q_len, kv_len in zip(q_lens, kv_lens, strict=True)]
    batch = make_batch(
        np.random.default_rng(0),
        q_lens,
        kv_lens,
        num_q_heads=32,
        num_kv_heads=8,
        head_dim=128,
        pages_per_seq=90,
        num_pages=480,
        max_tokens=900,
        max_seqs=16,
    )
    assert_close(attend(batch), dense_attention(batch))


def test_rows_past_the_last_sequence_are_zeros_under_jit_too() -> None:
    """ATT-4, with nothing to do at all."""
    batch = make_batch(
        np.random.default_rng(0), [0], [0], num_q_heads=2, num_kv_heads=1, head_dim=64, max_tokens=3, max_seqs=2
    )
    out = jax.jit(ragged_paged_attention)(*batch.arrays)
    np.testing.assert_array_equal(np.asarray(out), 0)
    none = (*batch.arrays[:5], np.array([0], np.int32))
    np.testing.assert_array_equal(np.asarray(jax.jit(ragged_paged_attention)(*none)), 0)
