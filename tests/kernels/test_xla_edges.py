"""Cases of paged attention that broke others, each against float64 (ATT-1 to ATT-4, ATT-6)."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from kvproof.kernels import ragged_paged_attention

from .reference import Batch, Mask, assert_close, bits, dense_attention, make_batch, without_pages
from .test_xla_attention import attend

SMALL: dict[str, Any] = {"num_q_heads": 4, "num_kv_heads": 2, "head_dim": 64}


def small_batch(seed: int = 0, **changes: Any) -> Batch:
    """Two sequences that decode and two with more query rows, all of one shape, so that one program does for all."""
    shape = {"max_tokens": 40, "max_seqs": 5, "pages_per_seq": 12, "num_pages": 50, **SMALL, **changes}
    return make_batch(np.random.default_rng(seed), [1, 30, 1, 5], [170, 90, 1, 33], **shape)


@pytest.mark.parametrize("kv_len", [32767, 32768, 40000])
def test_positions_past_16_bits(kv_len: int) -> None:
    """ATT-1: decoding and prefill at the far end of long contexts."""
    batch = make_batch(
        np.random.default_rng(kv_len),
        [1, 3],
        [kv_len, kv_len],
        num_q_heads=2,
        num_kv_heads=1,
        head_dim=64,
        page_size=128,
        version="v3",
        pages_per_seq=320,
        num_pages=640,
    )
    assert_close(attend(batch), dense_attention(batch))


def test_page_ids_past_16_bits_and_offsets_past_31() -> None:
    """ATT-1, in a pool of 65,800 pages whose numbers have addresses above 2^31."""
    num_pages, page, heads = 65_800, 32, 8
    rng = np.random.default_rng(0)
    kv_dtype = jnp.dtype(jnp.float8_e4m3fn)
    small = make_batch(
        rng, [1, 2], [70, 33], num_q_heads=8, num_kv_heads=heads, head_dim=64, page_size=page, kv_dtype=kv_dtype
    )
    assert num_pages * page * heads * 128 > 2**31
    ids = np.array([3, 65_535, 65_536, 65_799, 65_700])
    pages = np.zeros((num_pages, *small.kv_pages.shape[1:]), np.uint8)  # zero memory that nobody touches costs nothing
    table = np.full_like(small.page_table, num_pages)
    used = 0
    for row, kv_len in ((0, 70), (1, 33)):
        for column in range(-(-kv_len // page)):
            table[row, column] = ids[used]
            pages[ids[used]] = bits(small.kv_pages)[small.page_table[row, column]]
            used += 1
    out = ragged_paged_attention(
        small.queries, pages, small.kv_lens, table, *small.arrays[4:], kv_dtype=kv_dtype, num_kv_heads=heads
    )
    assert_close(out, dense_attention(small))


def exact_batch(factor: float, offset: float) -> Batch:
    """A batch whose logits float32 holds exactly, so that what a kernel gets wrong isn't rounding.

    Args:
        factor: what queries are multiplied by, a power of two.
        offset: what is added to each logit, a power of two or 0.
    """
    plain = small_batch()
    keys = [np.round(8 * k) / 8 for k in plain.keys]
    queries = np.round(8 * plain.queries) * factor  # the scale, 64 ** -0.5, takes the 8 away
    queries[..., 4:] = 0
    queries[..., 0] = 8 * offset
    pages = plain.kv_pages.copy()
    flat = pages.reshape(-1, *pages.shape[2:])
    for i, where in enumerate(plain.slots):
        keys[i][..., 0] = 1
        for h in range(2):
            flat[where, h, 0, :64] = keys[i][:, h]
    return replace(plain, queries=queries.astype(np.float32), kv_pages=pages, keys=keys)


def test_huge_logits_under_a_cap_stay_finite() -> None:
    """ATT-1: the cap comes before the mask, and before exp."""
    batch = exact_batch(2.0**14, 0)
    assert_close(attend(batch, soft_cap=8.0), dense_attention(batch, soft_cap=8.0))
    infinite = small_batch(magnitude=1e37)
    assert np.isfinite(np.asarray(attend(infinite, soft_cap=8.0))[:37]).all()


@pytest.mark.parametrize("offset", [-(2.0**16), 2.0**16])
def test_very_negative_and_very_large_logits_are_only_a_shift(offset: float) -> None:
    """ATT-1."""
    batch = exact_batch(1.0, offset)
    assert_close(attend(batch), dense_attention(batch))


@pytest.mark.parametrize("mask", [Mask(window=3), Mask(window=150, causal=False), Mask(chunk=1)], ids=str)
def test_a_window_below_the_query_length_and_one_over_several_blocks(mask: Mask) -> None:
    """ATT-1, ATT-3: what is left of the window is released and poison."""
    batch = make_batch(
        np.random.default_rng(0),
        [40, 1, 100],
        [400, 390, 130],
        num_q_heads=2,
        num_kv_heads=1,
        head_dim=64,
        version="v2",
        max_tokens=150,
        pages_per_seq=30,
        num_pages=62,
        mask=mask,
    )
    assert_close(attend(batch), dense_attention(batch))


def test_a_window_or_chunk_as_long_as_the_context_masks_nothing() -> None:
    """ATT-1: however long; 2^40 does not fit into the arithmetic of positions."""
    batch = small_batch()
    plain = np.asarray(attend(batch))
    for size in (12 * 16, 2**31 - 1, 2**31, 2**40):
        for option in (partial(ragged_paged_attention, window=size), partial(ragged_paged_attention, chunk=size)):
            np.testing.assert_array_equal(np.asarray(option(*batch.arrays)), plain)


def test_keys_on_pages_that_do_not_exist_are_not_read() -> None:
    """R1: unvalidated, an id out of range is dropped, never clipped to another page."""
    for wrong in (-1, 50, 2**31 - 1, -(2**31)):
        batch = without_pages(small_batch(), [(0, 2, wrong), (1, 0, wrong), (2, 0, wrong)])
        assert_close(attend(batch), dense_attention(batch))


def test_any_lengths_at_all_crash_nothing_and_touch_no_other_row() -> None:
    """R1, ATT-3: nobody validated; rows of sequences that are in order stay right."""
    batch = small_batch()
    expected, largest = dense_attention(batch)
    rng = np.random.default_rng(1)
    extreme = np.array([-(2**31), -1, 0, 1, 50, 2**31 - 1], np.int32)
    for _ in range(20):
        lens, starts = batch.kv_lens.copy(), batch.cu_q_lens.copy()
        lens[1:] = rng.choice(extreme, 4)
        starts[2:] = rng.choice(extreme, 4)
        count = np.array([rng.choice([1, 2, 5, 2**31 - 1])], np.int32)
        out = np.asarray(ragged_paged_attention(batch.queries, batch.kv_pages, lens, batch.page_table, starts, count))
        if count > 1 and starts[2] < 1:
            continue  # the second sequence claims row 0 for itself, or nothing follows
        assert_close(out[:1], (expected[:1], largest[:1]))
