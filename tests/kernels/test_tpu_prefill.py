"""The TPU's general kernel (ATT-1 to 4, ATT-6), interpreted in both modes: right numbers, no race, no poison."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from kvproof.kernels.layout import CacheLayout, layout_of
from kvproof.kernels.options import AttentionOptions
from kvproof.kernels.ragged import clean_table
from kvproof.kernels.tpu import prefill_copies, prefill_fold, prefill_kernel
from kvproof.kernels.tpu.prefill import prefill
from kvproof.kernels.tpu.prefill_fold import token_of_row
from kvproof.kernels.tpu.prefill_geometry import VMEM_BYTES, Blocks, block_sizes
from kvproof.kernels.tpu.prefill_schedule import Field, Schedule, make_schedule, most_blocks
from kvproof.kernels.tpu.prefill_words import numbers_in

from .interpreting import Interpreted, Outcome
from .reference import FULL, Batch, Mask, assert_close, dense_attention, make_batch

HALF = jnp.dtype(jnp.bfloat16)
F32 = jnp.dtype(jnp.float32)
F16 = jnp.dtype(jnp.float16)
E4M3 = jnp.dtype(jnp.float8_e4m3fn)
E5M2 = jnp.dtype(jnp.float8_e5m2)
INT8 = jnp.dtype(jnp.int8)

shape: Callable[..., Any] = jax.ShapeDtypeStruct

Q_LENS = (5, 1, 0, 7, 20, 3)
KV_LENS = (20, 0, 13, 4, 300, 129)
"""Sequences with nothing to read, nothing to ask, more queries than tokens, several blocks of queries and of keys."""


BLOCKS = Blocks(16, 2)


@dataclass(frozen=True)
class Case:
    """The shapes and options of a call; what isn't said is as in a large model, but small."""

    q_heads: int = 4
    kv_heads: int = 2
    dim: int = 128
    v_dim: int | None = None
    page: int = 64
    version: str = "v3"
    dtype: Any = HALF
    kv_dtype: Any = HALF
    blocks: Blocks = BLOCKS
    mask: Mask = FULL
    sinks: bool = False
    scales: dict[str, float] = field(default_factory=dict, hash=False)
    magnitude: float = 1.0

    def batch(self, q_lens: tuple[int, ...] = Q_LENS, kv_lens: tuple[int, ...] = KV_LENS) -> Batch:
        """A batch of shapes that depend on the case only."""
        pages = -(-300 // self.page) + 1
        return make_batch(
            np.random.default_rng(sum(kv_lens)),
            q_lens,
            kv_lens,
            num_q_heads=self.q_heads,
            num_kv_heads=self.kv_heads,
            head_dim=self.dim,
            v_head_dim=self.v_dim,
            page_size=self.page,
            version=self.version,
            dtype=self.dtype,
            kv_dtype=self.kv_dtype,
            pages_per_seq=pages,
            num_pages=2 * pages + 8,
            max_tokens=40,
            max_seqs=7,
            mask=self.mask,
            magnitude=self.magnitude,
        )

    @property
    def sink_logits(self) -> Any:
        """One a head, some above all logits, some below."""
        return np.linspace(-3, 9, self.q_heads, dtype=np.float32) if self.sinks else None

    def kernel(self) -> Interpreted:
        """The kernel for the case, to be run on its batches, and on how many leading sequences to leave out."""
        batch = self.batch()
        scales = dict(self.scales)
        options = AttentionOptions(
            layout=layout_of(batch.kv_pages, self.dim, self.v_dim or self.dim, self.kv_heads),
            kv_dtype=self.kv_dtype,
            score_scale=self.dim**-0.5 * scales.get("k_scale", 1.0) * scales.get("q_scale", 1.0),
            causal=self.mask.causal,
            window=self.mask.window,
            chunk=self.mask.chunk,
            soft_cap=scales.get("soft_cap"),
            value_scale=scales.get("v_scale", 1.0),
        )

        call: Callable[..., Any] = partial(prefill, options=options, blocks=self.blocks)

        def make(interpret: pltpu.InterpretParams) -> Callable[..., Any]:
            def run(*arrays: Any) -> Any:
                sinks = None if self.sink_logits is None else jnp.asarray(self.sink_logits)
                queries, pages, lens, table, *rest = arrays[:-1]
                table = clean_table(table, len(pages))
                return call(queries, pages, lens, table, *rest, sinks, arrays[-1], interpret=interpret)

            return run

        return Interpreted(make)

    def reference(self, batch: Batch) -> tuple[Any, Any]:
        """What the batch's own tokens must come out as, in float64, and the largest values."""
        expected, largest = dense_attention(batch, sinks=self.sink_logits, **self.scales)
        total = int(batch.cu_q_lens[int(batch.num_seqs[0])])
        return expected[:total], largest[:total]

    def check(self, outcomes: dict[str, Outcome], batch: Batch) -> None:
        """Both modes are clean and within ATT-6."""
        expected, largest = self.reference(batch)
        for mode, outcome in outcomes.items():
            assert outcome.clean, (mode, outcome.races, outcome.left_over)
            assert_close(outcome.output[: len(expected)], (expected, largest))


CASES = {
    "pages of 16": Case(page=16, blocks=Blocks(16, 8)),
    "shared rows, one query head, a window in pages that fill no register, capped": Case(
        q_heads=3,
        kv_heads=3,
        dim=64,
        page=33,
        blocks=Blocks(16, 3),
        mask=Mask(window=9),
        scales={"soft_cap": 3.0},
        magnitude=1e3,
    ),
    "v2, float32, long keys and short values, windows and chunks both ways, capped, sinks": Case(
        q_heads=3,
        kv_heads=1,
        dim=200,
        v_dim=72,
        version="v2",
        dtype=F32,
        kv_dtype=F32,
        mask=Mask(causal=False, window=30, chunk=100),
        sinks=True,
        scales={"soft_cap": 5.0, "q_scale": 0.7, "v_scale": -1.5},
    ),
    "v2, float8, many query heads, a window in chunks, sinks": Case(
        q_heads=16,
        version="v2",
        kv_dtype=E4M3,
        mask=Mask(window=140, chunk=200),
        sinks=True,
        scales={"k_scale": 0.5, "v_scale": 2.0},
    ),
    "float16 over int8, wide heads that share words with padding, chunks": Case(
        q_heads=6,
        kv_heads=3,
        dim=256,
        dtype=F16,
        kv_dtype=INT8,
        page=128,
        blocks=Blocks(8, 1),
        mask=Mask(chunk=8),
        scales={"k_scale": 0.02, "v_scale": 0.03},
    ),
}
"""Each option, layout and dtype with most of the others."""


@cache
def compiled(name: str) -> Interpreted:
    """The kernel of one of `CASES`."""
    return CASES[name].kernel()


@pytest.mark.parametrize("name", CASES)
def test_ragged_batches_against_the_reference(name: str) -> None:
    """ATT-1 to 4, ATT-6: dead slots, unowned pages, the table's rest and rows of no sequence are poison."""
    case = CASES[name]
    batch = case.batch()
    case.check(compiled(name)(*batch.arrays, np.int32(0)), batch)


@settings(max_examples=3)
@given(data=st.data())
def test_any_lengths(data: st.DataObject) -> None:
    """ATT-1 to 4: lengths at the edges of pages and blocks, and sequences past the number of them."""
    lens = data.draw(
        st.lists(st.sampled_from((0, 1, 15, 16, 17, 127, 128, 129, 256, 257, 300)), min_size=1, max_size=3).filter(
            lambda lens: sum(lens) <= 600
        )
    )
    q_lens = [data.draw(st.sampled_from((0, 1, 2, 12))) for _ in lens]
    batch = CASES["pages of 16"].batch(tuple(q_lens), tuple(lens))
    batch.num_seqs[0] = data.draw(st.integers(0, len(lens)))
    CASES["pages of 16"].check(compiled("pages of 16")(*batch.arrays, np.int32(0)), batch)


def test_positions_and_page_ids_of_more_than_16_bits() -> None:
    """ATT-1: positions round 32,768 and 40,000, pages of one token of which there are 106,000."""
    case = Case(q_heads=1, kv_heads=1, page=1, blocks=Blocks(16, 128), mask=Mask(window=20))
    batch = make_batch(
        np.random.default_rng(0),
        (3, 2, 2),
        (40_000, 32_768, 32_769),
        num_q_heads=1,
        num_kv_heads=1,
        head_dim=128,
        page_size=1,
        dtype=HALF,
        num_pages=106_000,
        mask=case.mask,
    )
    case.check(case.kernel()(*batch.arrays, np.int32(0)), batch)


def test_keys_of_entries_that_name_no_page_are_not_read() -> None:
    """R1: an id out of range among the live ones is neither clipped nor copied; the sequence's other keys count."""
    case = CASES["pages of 16"]
    batch = case.batch((2,), (300,))
    batch.page_table[0, [3, 8, 10]] = (-5, 2**30, batch.kv_pages.shape[0])
    outcomes = compiled("pages of 16")(*batch.arrays, np.int32(0))
    absent = np.isin(np.arange(300) // 16, (3, 8, 10))
    queries = batch.queries[:2].astype(np.float64).reshape(2, 2, 2, 128)
    logits = np.einsum("qhgd,khd->hgqk", queries, batch.keys[0]) * 128**-0.5
    logits[..., absent] = -np.inf
    logits[:, :, 0, 299] = -np.inf
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    expected = np.einsum("hgqk,khd->qhgd", weights, batch.values[0]).reshape(2, 4, 128)
    for outcome in outcomes.values():
        assert outcome.clean
        assert_close(outcome.output[:2], (expected, np.full((2, 1, 1), np.abs(batch.values[0]).max())))


SMALL = Case(q_heads=2, kv_heads=1)


@pytest.mark.parametrize("module", [prefill_copies, prefill_kernel], ids=["of pages", "of queries"])
def test_a_missing_wait_shows(plant: Callable[[Any, str, Any], None], module: Any) -> None:
    """The proof proves: without a wait there is a race if copies are made at once, and NaN if they are made late."""
    plant(module, "wait_for", lambda _copy: None)
    batch = SMALL.batch()
    outcomes = SMALL.kernel()(*batch.arrays, np.int32(0))
    assert outcomes["eager"].races
    assert np.isnan(outcomes["on_wait"].output[:5].astype(np.float32)).any()


def test_a_missing_mask_of_values_shows(plant: Callable[[Any, str, Any], None]) -> None:
    """The poison is poison: values of dead slots that aren't zeroed are NaN in the output."""
    plant(prefill_fold, "live_slots", lambda kernel, *_: jnp.ones(kernel.refs.live.shape, bool))
    batch = SMALL.batch()
    outcome = SMALL.kernel()(*batch.arrays, np.int32(0))["eager"]
    assert np.isnan(outcome.output[:5].astype(np.float32)).any()


PAGE, PAGES_PER_SEQ, BLOCK_QUERIES, BLOCK_KEYS, TOKENS, ROWS = 8, 12, 4, 32, 40, 5

MASKS = (
    Mask(),
    Mask(causal=False),
    Mask(window=7),
    Mask(chunk=20),
    Mask(causal=False, window=3, chunk=32),
)


@cache
def scheduler(mask: Mask) -> Callable[..., Schedule]:
    """`make_schedule`, compiled for one mask."""
    options = AttentionOptions(
        CacheLayout("v3", 1, 128, 128, 2), HALF, 1.0, causal=mask.causal, window=mask.window, chunk=mask.chunk
    )
    return jax.jit(
        partial(
            make_schedule,
            num_tokens=TOKENS,
            page_size=PAGE,
            block_queries=BLOCK_QUERIES,
            block_keys=BLOCK_KEYS,
            options=options,
        )
    )


@given(
    mask=st.sampled_from(MASKS),
    q_lens=st.lists(st.integers(0, 12), max_size=ROWS).filter(lambda lens: sum(lens) <= TOKENS),
    data=st.data(),
)
def test_a_schedule_covers_each_query_once_and_reads_what_it_must(
    mask: Mask, q_lens: list[int], data: st.DataObject
) -> None:
    """ATT-1: blocks of queries, the keys that any and that all of them read, blocks of keys, what comes next."""
    kv_lens = [data.draw(st.integers(0, PAGE * PAGES_PER_SEQ)) for _ in q_lens]
    skipped = data.draw(st.integers(0, len(q_lens)))
    lens = np.full(ROWS, 10**9, np.int32)
    lens[: len(kv_lens)] = kv_lens
    starts = np.full(ROWS + 1, -(10**9), np.int32)
    starts[: len(q_lens) + 1] = np.cumsum([0, *q_lens])
    table = np.ones((ROWS, PAGES_PER_SEQ), np.int32)
    schedule = scheduler(mask)(lens, table, starts, np.array([len(q_lens)], np.int32), np.int32(skipped))
    blocks, counts = np.asarray(schedule.blocks), np.asarray(schedule.counts)

    expected = [
        (s, begin, min(BLOCK_QUERIES, q_len - begin))
        for s, q_len in enumerate(q_lens)
        if s >= skipped
        for begin in range(0, q_len, BLOCK_QUERIES)
    ]
    assert counts[0] == len(expected) <= most_blocks(TOKENS, ROWS, BLOCK_QUERIES) == blocks.shape[1]
    assert counts[2] == 0
    reading = []
    for i, (s, begin, count) in enumerate(expected):
        got = {name: int(blocks[name, i]) for name in Field}
        q_len, kv_len = q_lens[s], kv_lens[s]
        assert (got[Field.SEQUENCE], got[Field.TOKEN], got[Field.COUNT]) == (s, starts[s] + begin, count)
        assert (got[Field.POSITION], got[Field.KV_LEN]) == (kv_len - q_len + begin, kv_len)
        seen = mask.readable(q_len, kv_len)[begin : begin + count]
        some, every = np.flatnonzero(seen.any(0)), np.flatnonzero(seen.all(0))
        if len(some) == 0:
            assert got[Field.FIRST_BLOCK] >= got[Field.END_BLOCK]
            continue
        reading.append(i)
        assert (got[Field.FIRST_KEY], got[Field.END_KEY]) == (some[0], some[-1] + 1)
        assert (got[Field.FIRST_BLOCK], got[Field.END_BLOCK]) == (some[0] // BLOCK_KEYS, some[-1] // BLOCK_KEYS + 1)
        whole = range(got[Field.WHOLE_FIRST], got[Field.WHOLE_END])
        assert list(whole) == every.tolist()
    for i in range(len(expected)):
        assert blocks[Field.NEXT, i] == min((k for k in reading if k > i), default=len(expected))
    assert counts[1] == min(reading, default=len(expected))


def test_a_page_that_does_not_exist_is_told_only_where_it_is_read() -> None:
    """R1: the flag that makes the kernel look for such entries, and the table that it looks into."""
    table = np.full((ROWS, PAGES_PER_SEQ), -1, np.int32)
    table[1, 2:4] = (99, 0)
    lens, starts = np.full(ROWS, 30, np.int32), np.array([0, 5, 8, 9, 9, 9], np.int32)
    told = scheduler(Mask(window=7))(lens, table, starts, np.array([2], np.int32), np.int32(1))
    assert np.asarray(told.counts).tolist() == [1, 0, 0]
    assert np.asarray(told.table).reshape(table.shape)[1, 1:5].tolist() == [-1, 99, 0, -1]
    table[1, 3] = -1
    told = scheduler(Mask(window=7))(lens, table, starts, np.array([2], np.int32), np.int32(1))
    assert np.asarray(told.counts).tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("kv_dtype", "compute_dtype"),
    [(kv_dtype, F32) for kv_dtype in (F32, HALF, E4M3, E5M2, INT8)]
    + [(kv_dtype, HALF) for kv_dtype in (HALF, E4M3, E5M2, INT8)],
)
def test_every_number_of_a_dtype_comes_out_of_its_words(kv_dtype: Any, compute_dtype: Any) -> None:
    """CACHE-2: all finite bit patterns, in all lanes, in the dtype that they are multiplied in."""
    rng = np.random.default_rng(0)
    bits = 8 * kv_dtype.itemsize
    patterns = np.arange(2**bits) if bits <= 16 else rng.integers(0, 2**32, 2**16)
    numbers = patterns.astype(f"u{kv_dtype.itemsize}").view(kv_dtype)
    # The vector unit has no float32 below the normal ones: neither has this test.
    smallest = np.finfo(np.float32).tiny
    with np.errstate(invalid="ignore"):
        exact = np.abs(numbers.astype(np.float64))
    numbers = numbers[np.isfinite(exact) & ((exact == 0) | (exact >= smallest))]
    lanes = 32 // bits
    padded = np.concatenate([numbers, np.zeros(-len(numbers) % (128 * lanes), kv_dtype)])
    words = padded.view(np.int32).reshape(-1, 128)
    for lane in range(lanes):
        got = numbers_in(jnp.asarray(words), lane, kv_dtype, compute_dtype)
        assert got.dtype == compute_dtype
        np.testing.assert_array_equal(np.asarray(got), padded[lane::lanes].astype(compute_dtype).reshape(-1, 128))


def test_words_of_two_rows_are_those_rows() -> None:
    """The hardware's way from words to rows of bfloat16, and back, is that which arrays of rows stand for."""
    rows = jnp.asarray(np.random.default_rng(0).standard_normal((32, 128)), HALF)
    words = jax.lax.bitcast_convert_type(rows.reshape(16, 2, 128).swapaxes(1, 2), jnp.int32)

    def kernel(words: Any, rows: Any, back: Any) -> None:
        rows[...] = pltpu.bitcast(words[...], HALF)
        back[...] = pltpu.bitcast(rows[...], jnp.int32)

    out_shape = shape((32, 128), HALF), shape((16, 128), jnp.int32)
    got, back = pl.pallas_call(kernel, out_shape=out_shape, interpret=pltpu.InterpretParams())(words)
    np.testing.assert_array_equal(np.asarray(got), np.asarray(rows))
    np.testing.assert_array_equal(np.asarray(back), np.asarray(words))


@pytest.mark.parametrize("group", [1, 3, 5, 7, 48, 63, 127, 128])
def test_the_token_of_a_row(group: int) -> None:
    """A division by multiplication is exact."""
    np.testing.assert_array_equal(np.asarray(token_of_row(group * 64, group))[:, 0], np.arange(group * 64) // group)


@given(
    tokens=st.integers(1, 10_000),
    group=st.integers(1, 128),
    page=st.integers(1, 256),
    pages=st.integers(1, 1000),
    heads=st.integers(1, 16),
    width=st.sampled_from((64, 128, 256)),
    dtype=st.sampled_from((F32, HALF, E4M3)),
)
def test_block_sizes_fit(tokens: int, group: int, page: int, pages: int, heads: int, width: int, dtype: Any) -> None:
    """Blocks hold whole registers of rows and at least a page; three key blocks leave most of VMEM to others."""
    layout = CacheLayout("v3", heads, width, width, 4 // dtype.itemsize)
    blocks = block_sizes(tokens, group, page, pages, layout, dtype.itemsize)
    assert blocks.queries * group % 16 == 0
    assert 1 <= blocks.pages <= pages
    slot = layout.combined_rows * layout.storage_head_dim * dtype.itemsize
    assert blocks.pages == 1 or 3 * blocks.pages * page * slot <= VMEM_BYTES / 4
