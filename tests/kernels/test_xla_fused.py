"""Fused update and attention: the whole batch is written before any of it is read (ATT-5, TAB-7)."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.kernels import ScaledPages, fused_ragged_paged_attention, kv_cache_update, ragged_paged_attention

from .reference import Batch, Mask, assert_close, bits, dense_attention, make_batch

TOKENS, ROWS, PAGE, WIDTH = 24, 4, 8, 8

CACHES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "bfloat16": ({"dtype": jnp.bfloat16, "v_head_dim": 32, "version": "v2"}, {"window": 11}),
    "e4m3": ({"kv_dtype": jnp.float8_e4m3fn}, {"k_scale": 0.5, "v_scale": 0.25}),
    "int8": ({"kv_dtype": jnp.int8, "scaled_pages": True}, {"chunk": 9}),
}


def drawn_batch(rng: np.random.Generator, q_lens: list[int], before: list[int], **shape: Any) -> Batch:
    return make_batch(
        rng,
        q_lens,
        [q + n for q, n in zip(q_lens, before, strict=True)],
        num_q_heads=4,
        num_kv_heads=2,
        head_dim=64,
        page_size=PAGE,
        pages_per_seq=WIDTH,
        num_pages=ROWS * WIDTH + 2,
        max_tokens=TOKENS,
        max_seqs=ROWS,
        **shape,
    )


def pages_of(batch: Batch) -> Any:
    pages: Any = bits(batch.kv_pages)
    scales: Any = batch.scales
    return pages if scales is None else ScaledPages(pages, scales)


@pytest.mark.parametrize("name", CACHES)
@settings(max_examples=10)
@given(seed=st.integers(0, 2**32), data=st.data())
def test_fused_is_update_then_attend(name: str, seed: int, data: st.DataObject) -> None:
    """ATT-5, TAB-7: the same pages bit for bit, and the same outputs; rows past the end hold NaN and write nothing."""
    shape, options = CACHES[name]
    rng = np.random.default_rng(seed)
    count = data.draw(st.integers(1, ROWS))
    q_lens = data.draw(st.lists(st.integers(0, TOKENS // ROWS), min_size=count, max_size=count))
    before = data.draw(st.lists(st.integers(0, (WIDTH - 3) * PAGE), min_size=count, max_size=count))
    batch = drawn_batch(rng, q_lens, before, **shape)
    total = sum(q_lens)
    keys: Any = np.full((TOKENS, 2, 64), np.nan, batch.queries.dtype)
    values: Any = np.full((TOKENS, 2, batch.values[0].shape[2]), np.nan, batch.queries.dtype)
    for rows in (keys, values):
        rows[:total] = rng.standard_normal((total, *rows.shape[1:])).astype(rows.dtype)
    slots = np.full(TOKENS, -1, np.int32)
    begin = 0
    for i, q_len in enumerate(q_lens):
        slots[begin : begin + q_len] = batch.slots[i][len(batch.slots[i]) - q_len :]
        begin += q_len
    pages, dtype = pages_of(batch), batch.kv_pages.dtype
    scales = {name: value for name, value in options.items() if name in ("k_scale", "v_scale")}
    out, after = fused_ragged_paged_attention(
        batch.queries, keys, values, pages, *batch.arrays[2:], kv_dtype=dtype, **options
    )
    expected = kv_cache_update(pages, keys, values, slots, kv_dtype=dtype, **scales)
    for got, want in zip(jax.tree.leaves(after), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(np.asarray(got).view(np.uint8), np.asarray(want).view(np.uint8))
    alone = ragged_paged_attention(
        batch.queries,
        expected,
        *batch.arrays[2:],
        kv_dtype=dtype,
        num_kv_heads=2,
        v_head_dim=values.shape[2],
        **options,
    )
    np.testing.assert_array_equal(np.asarray(out), np.asarray(alone))


@pytest.mark.parametrize("distribution", ["reader_first", "writer_first"])
def test_a_sequence_reads_what_another_writes_in_the_same_step(distribution: str) -> None:
    """ATT-5: two sequences share a page; one of them writes it in this step, whichever comes first in the batch."""
    batch = drawn_batch(np.random.default_rng(0), [1, 8], [16, 8])
    table = batch.page_table.copy()
    table[0, 1] = table[1, 1]  # the second page of the reader is the one that the writer fills now
    keys, values = (np.full((TOKENS, 2, 64), np.nan, np.float32) for _ in range(2))
    new = np.random.default_rng(1).standard_normal((2, 9, 2, 64)).astype(np.float32)
    keys[:9], values[:9] = new
    for part, rows in ((batch.keys, keys), (batch.values, values)):
        part[0][16] = rows[0]
        part[0][8:16] = rows[1:9]
        part[1][8:16] = rows[1:9]
    expected, largest = dense_attention(batch)
    queries, q_lens, lens = batch.queries, batch.cu_q_lens.copy(), batch.kv_lens.copy()
    order = np.arange(TOKENS)
    if distribution == "writer_first":
        order[:9] = [*range(1, 9), 0]
        table[:2], lens[:2], q_lens[:3] = table[1::-1], lens[1::-1].copy(), [0, 8, 9]
    out, _ = fused_ragged_paged_attention(
        queries[order], keys[order], values[order], batch.kv_pages, lens, table, q_lens, batch.num_seqs
    )
    assert_close(out, (expected[order], largest[order]))


def test_a_page_owned_by_a_sequence_and_named_in_the_padding_is_written() -> None:
    """CACHE-3: page 0 too, though padding entries name it."""
    pages = jnp.zeros((3, 4, 2, 128), jnp.float32)
    rows = jnp.ones((2, 1, 128), jnp.float32)
    table = jnp.array([[0, 0, 0], [2, 0, 0], [0, 0, 0]], jnp.int32)
    lens, starts = jnp.array([1, 1, 0], jnp.int32), jnp.array([0, 1, 2, 2], jnp.int32)
    _, after = fused_ragged_paged_attention(rows, rows, rows, pages, lens, table, starts, jnp.array([2], jnp.int32))
    np.testing.assert_array_equal(np.flatnonzero(np.asarray(after).reshape(12, -1).any(1)), [0, 8])


def test_positions_without_a_page_write_nothing() -> None:
    """R1: unvalidated, a table that names no page, and more new tokens than the sequence has, drop the rows."""
    batch = drawn_batch(np.random.default_rng(0), [3, 5], [6, 0], mask=Mask())
    table, lens = batch.page_table.copy(), batch.kv_lens.copy()
    table[0, 1] = 10**6
    lens[1] = 2
    rows = np.ones((TOKENS, 2, 64), np.float32)
    _, after = fused_ragged_paged_attention(batch.queries, rows, rows, batch.kv_pages, lens, table, *batch.arrays[4:])
    changed = (np.asarray(after).view(np.uint32) != batch.kv_pages.view(np.uint32)).reshape(-1, 2 * 128).any(1)
    expected = [*batch.slots[0][6:8], *batch.slots[1][:2]]
    np.testing.assert_array_equal(np.flatnonzero(changed), sorted(expected))
