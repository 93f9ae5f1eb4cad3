"""Paged attention in plain JAX against float64, over poison, for whatever a batch may look like (ATT-1 to ATT-6)."""

from dataclasses import dataclass, field, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.kernels import ScaledPages, ragged_paged_attention

from .reference import FULL, Batch, Mask, assert_close, bits, dense_attention, make_batch

ROWS, TOKENS = 5, 48


@dataclass(frozen=True)
class Case:
    """A kind of call: each is compiled once, for ROWS sequences and TOKENS query rows.

    Attributes:
        heads: query and KV heads.
        dim: the head size.
        page: slots of a page.
        width: pages of a row of the table.
        shape: what else the batch is made with.
        mask: what a query reads.
        options: what else the call says.
    """

    heads: tuple[int, int]
    dim: int
    page: int
    width: int
    shape: dict[str, Any]
    mask: Mask = FULL
    options: dict[str, Any] = field(default_factory=dict)

    def batch(self, seed: int, q_lens: list[int], kv_lens: list[int]) -> Batch:
        return make_batch(
            np.random.default_rng(seed),
            q_lens,
            kv_lens,
            num_q_heads=self.heads[0],
            num_kv_heads=self.heads[1],
            head_dim=self.dim,
            page_size=self.page,
            pages_per_seq=self.width,
            num_pages=ROWS * self.width + 2,
            max_tokens=TOKENS,
            max_seqs=ROWS,
            mask=self.mask,
            **self.shape,
        )


SINKS = np.array([-np.inf, -50, 0, 2, 3, 60, 1, 1], np.float32)

CASES = {
    "plain": Case((4, 4), 64, 1, 70, {}),
    "not_causal": Case((4, 2), 80, 8, 20, {"version": "v2", "dtype": jnp.bfloat16}, Mask(causal=False)),
    "window": Case((9, 3), 96, 16, 11, {"dtype": jnp.bfloat16}, Mask(window=7)),
    "window_not_causal": Case((5, 1), 128, 32, 6, {"dtype": jnp.float16}, Mask(causal=False, window=30)),
    "chunk": Case((7, 1), 192, 33, 6, {"version": "v2"}, Mask(chunk=24)),
    "window_chunk_cap_sinks": Case(
        (8, 1), 64, 64, 4, {"dtype": jnp.bfloat16}, Mask(window=40, chunk=50), {"soft_cap": 2.0, "sinks": SINKS}
    ),
    "int8": Case((16, 1), 80, 128, 3, {"kv_dtype": jnp.int8, "scaled_pages": True, "v_head_dim": 32}),
    "e4m3": Case(
        (32, 1),
        256,
        16,
        8,
        {"kv_dtype": jnp.float8_e4m3fn, "dtype": jnp.bfloat16},
        options={"k_scale": 0.5, "v_scale": 2.0, "q_scale": 1.5, "scale": 0.05},
    ),
    "e5m2": Case(
        (64, 1), 96, 16, 8, {"kv_dtype": jnp.float8_e5m2, "scaled_pages": True, "version": "v2"}, Mask(window=20)
    ),
    "uneven_heads": Case((15, 5), 64, 8, 20, {"dtype": jnp.float16, "kv_dtype": jnp.bfloat16}),
}
"""Among them head ratios 1, 2, 3, 5, 7, 8, 16, 32 and 64, every head size, page size, layout and dtype."""


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
def lengths(draw: st.DrawFn, case: Case) -> tuple[list[int], list[int]]:
    """Query and context lengths of up to ROWS sequences with at most TOKENS query rows, edges of pages preferred."""
    room, q_lens, kv_lens = TOKENS, [], []
    longest = case.page * case.width
    for _ in range(draw(st.integers(1, ROWS))):
        q_len = draw(st.one_of(st.just(1), st.integers(0, room))) if room else 0
        room -= q_len
        near = case.page * draw(st.integers(0, case.width - 1)) + draw(st.sampled_from([-1, 0, 1]))
        kv_len = draw(st.one_of(st.integers(0, longest), st.just(near)))
        q_lens.append(q_len)
        kv_lens.append(max(q_len, kv_len))
    return q_lens, kv_lens


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=12)
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_any_ragged_batch_is_as_in_float64(name: str, data: st.DataObject, seed: int) -> None:
    """ATT-1 to ATT-4, ATT-6: poison in dead slots and padding rows, garbage in the table and past the end."""
    case = CASES[name]
    batch = case.batch(seed, *data.draw(lengths(case)))
    assert_close(attend(batch, **case.options), dense_attention(batch, **case.options))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("q_len", [1, 9])
def test_lengths_round_whole_pages(name: str, q_len: int) -> None:
    """ATT-1, ATT-6: one below, at and one above; the table has a page more."""
    case = CASES[name]
    kv_lens = [n * case.page + more for n, more in ((1, -1), (1, 0), (1, 1), (2, -1), (2, 0))]
    batch = case.batch(q_len, [min(q_len, n) for n in kv_lens], kv_lens)
    assert_close(attend(batch, **case.options), dense_attention(batch, **case.options))


@pytest.mark.parametrize("name", CASES)
def test_nothing_to_read_gives_zeros(name: str) -> None:
    """ATT-2: empty contexts, with sinks too; contexts shorter than the queries; no sequence at all (ATT-4)."""
    case = CASES[name]
    batch = case.batch(0, [1, 20, 1], [0, 0, 0])
    np.testing.assert_array_equal(np.asarray(attend(batch, **case.options)), 0)
    batch = case.batch(0, [1, 20, 1], [0, 5, 0])
    out = np.asarray(attend(batch, **case.options))
    assert_close(out, dense_attention(batch, **case.options))
    np.testing.assert_array_equal(out[:16], 0)
    np.testing.assert_array_equal(out[21:], 0)
    for count in (0, -1):
        none = replace(batch, num_seqs=np.array([count], np.int32))
        np.testing.assert_array_equal(np.asarray(attend(none, **case.options)), 0)


PEERS_KV = [18, 129, 597, 122, 64, 322, 463, 181, 1107, 123, 31, 18, 1229, 229, 87, 1328]
PEERS_Q = [5, 1, 120, 1, 1, 32, 251, 1, 1, 99, 1, 5, 3, 117, 1, 1]


def test_the_sequences_that_peers_use() -> None:
    """ATT-1, ATT-6: decoding and prefill in one batch; 32 query and 8 KV heads, page 16."""
    q_lens, kv_lens = PEERS_Q, [max(q_len, kv_len) for q_len, kv_len in zip(PEERS_Q, PEERS_KV, strict=True)]
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
