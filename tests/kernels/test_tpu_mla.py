"""MLA attention for TPUs, interpreted, against dense float64 attention (ATT-1..4, ATT-6)."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.kernels.layout import CacheLayout
from kvproof.kernels.options import AttentionOptions, MlaOptions
from kvproof.kernels.tpu import mla, mla_kernel, mla_work
from kvproof.kernels.tpu.mla_kernel import clear_dead_keys

from . import aot
from .interpreting import MODES, Interpreted, Mode, Outcome
from .reference import Batch, Mask, assert_close, dense_attention, make_latent_batch

MAX_TOKENS, MAX_SEQS, NUM_PAGES_PER_SEQ = 40, 6, 5
NUM_PAGES = MAX_SEQS * NUM_PAGES_PER_SEQ + 3
BLOCK = 128

CASES: dict[str, dict[str, Any]] = {
    # A context of several blocks; heads and latents that fill their tiles.
    "bfloat16": {"heads": 16, "latent": 128, "rotary": 64, "page": 64, "dtype": jnp.bfloat16},
    # Heads, latents and rotary keys that are padded; a window over two blocks and a cap.
    "window": {"heads": 3, "latent": 100, "rotary": 20, "page": 64, "mask": Mask(window=150), "soft_cap": 3.0},
    # Blocks of 384 keys, which are worked on as 256 where no more are live.
    "sizes": {"heads": 16, "latent": 128, "rotary": 64, "page": 64, "dtype": jnp.bfloat16, "block": 1024},
}


def options_of(case: dict[str, Any]) -> AttentionOptions:
    mask = case.get("mask", Mask())
    return AttentionOptions(
        layout=CacheLayout("v2", 1, case["latent"] + case["rotary"], case["latent"], 1),
        kv_dtype=jnp.dtype(case.get("dtype", jnp.float32)),
        score_scale=float((case["latent"] + case["rotary"]) ** -0.5),
        causal=mask.causal,
        window=mask.window,
        chunk=mask.chunk,
        soft_cap=case.get("soft_cap"),
    )


def make(name: str, modes: Sequence[Mode] = MODES) -> Interpreted:
    options = options_of(CASES[name])
    block = CASES[name].get("block", BLOCK)
    return Interpreted(lambda params: partial(mla.attend, options=options, block=block, interpret=params), modes)


compiled = cache(make)


def batch_of(name: str, seed: int, q_lens: list[int], kv_lens: list[int]) -> Batch:
    case = CASES[name]
    batch = make_latent_batch(
        np.random.default_rng(seed),
        q_lens,
        kv_lens,
        num_q_heads=case["heads"],
        latent_dim=case["latent"],
        rotary_dim=case["rotary"],
        page_size=case["page"],
        dtype=case.get("dtype", np.float32),
        mask=case.get("mask", Mask()),
        pages_per_seq=NUM_PAGES_PER_SEQ,
        max_tokens=MAX_TOKENS,
        max_seqs=MAX_SEQS,
    )
    # One shape for all: as many pages as can be needed, the others poison.
    spare = NUM_PAGES - len(batch.kv_pages)
    pages = np.pad(batch.kv_pages, ((0, spare), (0, 0), (0, 0)), constant_values=np.nan)
    return replace(batch, kv_pages=pages)


def run(name: str, batch: Batch, interpreted: Interpreted) -> dict[str, Outcome]:
    latent = CASES[name]["latent"]
    return interpreted(batch.queries[:, :, :latent], batch.queries[:, :, latent:], *batch.arrays[1:])


def check(name: str, batch: Batch, outcomes: dict[str, Outcome]) -> None:
    reference = dense_attention(batch, scale=options_of(CASES[name]).score_scale, soft_cap=CASES[name].get("soft_cap"))
    for mode, outcome in outcomes.items():
        assert outcome.clean, (mode, outcome.races, outcome.left_over)
        assert_close(outcome.output, reference)


def lengths(page: int) -> st.SearchStrategy[tuple[list[int], list[int]]]:
    """Sequences that decode, that start, that go on, and empty ones, in any order; ends at and beside page bounds."""
    most = NUM_PAGES_PER_SEQ * page
    edge = st.builds(lambda n, off: min(max(n * page + off, 0), most), st.integers(0, 5), st.integers(-1, 1))
    kv_len = st.one_of(st.integers(0, most), edge)
    q_len = st.one_of(st.just(1), st.integers(0, 12))

    def cut(pairs: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
        q_lens, kv_lens, left = [], [], MAX_TOKENS
        for q_len, kv_len in pairs:
            q_lens.append(min(q_len, left, kv_len) if kv_len else min(q_len, left, 1))
            kv_lens.append(kv_len)
            left -= q_lens[-1]
        return q_lens, kv_lens

    return st.lists(st.tuples(q_len, kv_len), min_size=1, max_size=MAX_SEQS).map(cut)


@pytest.mark.parametrize("name", ["bfloat16", "window"])
@given(lens=lengths(64), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=2)
def test_agrees_with_dense_attention(name: str, lens: tuple[list[int], list[int]], seed: int) -> None:
    """ATT-1..4, ATT-6: decoding rows, prefill, sequences without keys; poison in all that is dead."""
    batch = batch_of(name, seed, *lens)
    check(name, batch, run(name, batch, compiled(name)))


EXAMPLE = ([1, 1, 1, 20, 0, 1], [320, 63, 0, 300, 5, 129])


def example() -> Batch:
    return batch_of("bfloat16", 0, *EXAMPLE)


@pytest.mark.parametrize("name", ["bfloat16", "sizes"])
def test_agrees_on_an_example_of_every_kind(name: str) -> None:
    """ATT-1..4: several blocks, an empty row between decoding ones, prefill, no tokens, decoding after prefill."""
    check(name, example(), run(name, example(), compiled(name)))


def nan_in(outcome: Outcome) -> bool:
    return bool(np.isnan(outcome.output[: sum(EXAMPLE[0])].astype(np.float32)).any())


def test_a_missing_wait_is_found(plant: Callable[[Any, str, Any], None]) -> None:
    """Without waits for pages copies made early race, and copies made late leave NaN to be read."""
    plant(mla_kernel, "wait_pages", lambda *_: None)
    outcomes = run("bfloat16", example(), make("bfloat16"))
    assert outcomes["eager"].races
    assert nan_in(outcomes["on_wait"])


def test_scores_that_a_shorter_block_left_are_found(plant: Callable[[Any, str, Any], None]) -> None:
    """ATT-3: a block of 256 keys that is added beside one of 384 has no scores for the rest: they are made dead."""
    batch = batch_of("sizes", 0, [1, 1, 1, 1, 1], [10, 250, 200, 320, 30])
    check("sizes", batch, run("sizes", batch, compiled("sizes")))
    plant(mla_kernel, "clear_dead_keys", lambda item, size, *rest: clear_dead_keys(item, min(size, 256), *rest))
    outcome = run("sizes", batch, make("sizes", ("eager",)))["eager"]
    assert np.isnan(outcome.output[:5].astype(np.float32)).any()


def test_dead_rows_that_are_read_are_found(plant: Callable[[Any, str, Any], None]) -> None:
    """ATT-3: the tail of a last page is NaN, and shows where nobody clears it."""
    plant(mla_kernel, "clear_dead_keys", lambda *_: None)
    assert nan_in(run("bfloat16", example(), make("bfloat16", ("eager",)))["eager"])


@pytest.mark.parametrize(
    ("mask", "first", "end"),
    [
        (Mask(), 0, 400_000),
        (Mask(window=100), 399_898, 400_000),
        (Mask(causal=False, window=100), 399_898, 500_000),
        (Mask(window=1), 399_997, 400_000),
    ],
)
def test_a_block_of_queries_reads_the_blocks_of_its_mask(mask: Mask, first: int, end: int) -> None:
    """ATT-1: queries at 399,997 to 399,999 of 500,000 tokens; what they cost follows from the mask."""
    blocks = mla_work.Blocks(tokens=3, pages=2, page=64, heads=16, latent=128, pages_per_seq=8192)
    options = AttentionOptions(
        CacheLayout("v2", 1, 192, 128, 1), jnp.dtype(jnp.bfloat16), 1.0, causal=mask.causal, window=mask.window
    )
    scalars = [np.array(x, np.int32) for x in ([0, 1], [500_000], [0, 100_006])]
    refs = mla_work.Refs(*scalars, *[None] * (len(mla_work.Refs._fields) - len(scalars)))
    job = mla_work.job_of(jnp.int32(0), jnp.int32(0), jnp.int32(1), refs, blocks, options)
    assert (int(job.first), int(job.end)) == (first, end)
    assert (int(job.first_block), int(job.end_block)) == (first // 128, -(-end // 128))


def test_what_the_kernel_leaves_to_others() -> None:
    def reason(page: int, dtype: Any, cache: Any) -> str:
        table = jnp.zeros((2, 4), jnp.int32)
        return str(mla.unsupported(jnp.zeros((1, 2, 128), dtype), jnp.zeros((2, page, 256), cache), table))

    assert reason(16, jnp.bfloat16, jnp.bfloat16) == "None"
    assert reason(32, jnp.bfloat16, jnp.float8_e4m3fn) == "None"
    assert "must be a multiple of 16" in reason(8, jnp.bfloat16, jnp.bfloat16)
    assert "float16" in reason(16, jnp.float16, jnp.float16)
    assert "keys" in reason(16 * 131, jnp.bfloat16, jnp.bfloat16)


@pytest.mark.parametrize(
    ("heads", "latent", "table", "dtype", "reason"),
    [
        (16, 512, (256, 900), jnp.bfloat16, None),
        (16, 512, (256, 2048), jnp.bfloat16, "scalars"),
        (128, 1536, (8, 64), jnp.float32, None),
        (128, 2048, (8, 64), jnp.float32, "VMEM"),
    ],
)
def test_what_is_too_large_is_left_to_xla_before_a_compiler_refuses_it(
    heads: int, latent: int, table: tuple[int, int], dtype: Any, reason: str | None
) -> None:
    """What is taken compiles; beside it stands what would not."""
    i32: Any = partial(aot.shape, dtype=jnp.int32)
    queries: Any = aot.shape((64, heads, latent), dtype)
    pages: Any = aot.shape((1000, 64, latent + 128), dtype)
    why = mla.unsupported(queries, pages, i32(table))
    assert (why is None) if reason is None else (reason in str(why))
    if why is not None:
        return
    aot.require()
    options = MlaOptions(latent, 64, jnp.dtype(dtype), 0.1)
    rest = (aot.shape((64, heads, 64), dtype), pages, i32(table[:1]), i32(table), i32((table[0] + 1,)), i32((1,)))
    assert aot.kernels_in(aot.compile_for("v5e", partial(mla.attend, options=options), queries, *rest)) == 2
