"""Ragged attention on a TPU (ATT-1 to 4): which kernel takes which sequence, and which calls are left to XLA."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.experimental.pallas import tpu as pltpu

from kvproof.kernels.layout import CacheLayout, layout_of
from kvproof.kernels.options import AttentionOptions
from kvproof.kernels.storage import ScaledPages
from kvproof.kernels.tpu import attention, decode_plan, prefill_geometry
from kvproof.kernels.tpu import decode as decode_module
from kvproof.kernels.tpu.block_sizes import DecodeBlocks
from kvproof.kernels.tpu.prefill_schedule import leading_decode_rows
from kvproof.kernels.tpu.support import unsupported

from .interpreting import Interpreted
from .reference import assert_close, dense_attention, make_batch

HALF = jnp.dtype(jnp.bfloat16)
F32 = jnp.dtype(jnp.float32)
E4M3 = jnp.dtype(jnp.float8_e4m3fn)

shape: Callable[..., Any] = jax.ShapeDtypeStruct
run_to_the_end: Callable[..., Any] = jax.block_until_ready
wait_for_notes: Callable[[], None] = jax.effects_barrier
count_decode_rows: Callable[..., Any] = jax.jit(leading_decode_rows)


def batch_of(q_lens: tuple[int, ...], kv_lens: tuple[int, ...], **options: Any) -> Any:
    """A batch of fixed shapes."""
    return make_batch(
        np.random.default_rng(sum(kv_lens)),
        q_lens,
        kv_lens,
        num_q_heads=4,
        num_kv_heads=2,
        head_dim=128,
        page_size=64,
        dtype=HALF,
        pages_per_seq=4,
        num_pages=20,
        max_tokens=24,
        max_seqs=6,
        **options,
    )


def both_kernels() -> Interpreted:
    """Both kernels behind their one entry."""
    options = AttentionOptions(CacheLayout("v3", 2, 128, 128, 2), HALF, 128**-0.5)
    call: Callable[..., jax.Array] = partial(attention.attend, options=options)

    def make(interpret: pltpu.InterpretParams) -> Callable[..., Any]:
        def run(*arrays: Any) -> jax.Array:
            return call(*arrays, None, interpret=interpret)

        return run

    return Interpreted(make)


@pytest.fixture(scope="module")
def kernels() -> Interpreted:
    """Both kernels, in small blocks."""
    return both_kernels()


@pytest.mark.parametrize(
    ("q_lens", "kv_lens"),
    [
        ((1, 1, 9, 1, 0, 4), (20, 0, 150, 31, 10, 4)),
        ((1, 1, 1), (33, 1, 180)),
        ((0, 1, 5), (16, 40, 5)),
        ((1, 0), (0, 0)),
        ((2, 1, 8, 0, 3, 1), (20, 31, 150, 10, 4, 64)),
        ((3, 5, 8, 1), (33, 5, 180, 70)),
    ],
    ids=[
        "both kernels",
        "decoding only",
        "the general kernel only",
        "nothing to read",
        "drafts and others",
        "drafts only",
    ],
)
def test_each_sequence_is_attended_to_once(
    kernels: Interpreted, monkeypatch: pytest.MonkeyPatch, q_lens: tuple[int, ...], kv_lens: tuple[int, ...]
) -> None:
    """ATT-1, 2, 4: rows of either kernel are right, rows of no sequence are zeros, whatever they held."""
    monkeypatch.setattr(decode_plan, "decode_blocks", lambda *_: DecodeBlocks(128))
    monkeypatch.setattr(prefill_geometry, "block_sizes", lambda *_: prefill_geometry.Blocks(8, 2))
    batch = batch_of(q_lens, kv_lens)
    reference = dense_attention(batch)
    for mode, outcome in kernels(*batch.arrays).items():
        assert outcome.clean, (mode, outcome.races, outcome.left_over)
        assert_close(outcome.output, reference)


@pytest.mark.parametrize(
    ("q_lens", "launched"),
    [
        ((1, 1, 1), {"one query"}),
        ((1, 3, 8), {"drafts"}),
        ((1, 9, 1), {"one query", "general"}),
        ((9, 1), {"one query", "general"}),
        ((), {"one query"}),
    ],
)
def test_a_kernel_is_launched_in_steps_with_work_for_it_only(
    monkeypatch: pytest.MonkeyPatch, q_lens: tuple[int, ...], launched: set[str]
) -> None:
    """Of a program compiled once for all steps; the kernels are replaced by what notes that it runs."""
    ran: list[str] = []

    def decode(queries: Any, *_: Any, **__: Any) -> Any:
        jax.debug.callback(lambda: ran.append("one query" if queries.shape[1] == 1 else "drafts"))
        return jnp.zeros_like(queries)

    def prefill(_: Any, queries: Any, *__: Any, **___: Any) -> Any:
        jax.debug.callback(lambda: ran.append("general"))
        return jnp.zeros_like(queries)

    monkeypatch.setattr(decode_module, "decode", decode)
    monkeypatch.setattr(attention, "prefill_by", prefill)
    options = AttentionOptions(CacheLayout("v3", 2, 128, 128, 2), HALF, 128**-0.5)
    call: Any = jax.jit(partial(attention.attend, sinks=None, options=options))
    run_to_the_end(call(*batch_of(q_lens, tuple(length + 20 for length in q_lens)).arrays))
    wait_for_notes()
    assert set(ran) == launched


def test_xla_attends_to_what_does_not_decode_over_scaled_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """ATT-1, 4, CACHE-4: of ScaledPages, sequences with one query by the kernel, the others by XLA."""
    monkeypatch.setattr(decode_plan, "decode_blocks", lambda *_: DecodeBlocks(128))
    int8 = jnp.dtype(jnp.int8)
    options = AttentionOptions(CacheLayout("v3", 2, 128, 128, 4), int8, 128**-0.5)

    def make(interpret: pltpu.InterpretParams) -> Callable[..., Any]:
        def run(queries: Any, pages: Any, *lengths: Any) -> jax.Array:
            call: Callable[..., jax.Array] = attention.attend_scaled
            return call(queries, pages, *lengths, None, options=options, interpret=interpret)

        return run

    kernel = Interpreted(make)
    for q_lens, kv_lens in (((1, 1, 9, 1, 0, 4), (20, 0, 150, 31, 10, 4)), ((1, 1, 1), (33, 1, 180)), ((5,), (40,))):
        batch = batch_of(q_lens, kv_lens, kv_dtype=int8, scaled_pages=True)
        queries, pages, *lengths = batch.arrays
        for mode, outcome in kernel(queries, ScaledPages(pages, batch.scales), *lengths).items():
            assert outcome.clean, (mode, outcome.races, outcome.left_over)
            assert_close(outcome.output, dense_attention(batch))


@given(q_lens=st.lists(st.integers(0, 3), max_size=6), most=st.integers(1, 2))
def test_sequences_that_decode(q_lens: list[int], most: int) -> None:
    """ATT-4: the leading sequences with few queries, up to one that is barred; none past the last sequence."""
    starts = np.cumsum([0, *q_lens, *[1] * (6 - len(q_lens))], dtype=np.int32)
    barred = np.arange(6) == 4
    decoded = count_decode_rows(starts, np.array([len(q_lens)], np.int32), barred, most)
    others = (i for i, q_len in enumerate(q_lens) if not 1 <= q_len <= most or barred[i])
    assert int(decoded) == next(others, len(q_lens))


@pytest.mark.parametrize(("num_tokens", "table"), [(0, (3, 4)), (5, (0, 4)), (5, (3, 0))])
def test_shapes_without_anything_in_them(num_tokens: int, table: tuple[int, int]) -> None:
    """ATT-2: no tokens, no sequences, no pages: zeros, and no kernel."""
    options = AttentionOptions(CacheLayout("v3", 2, 128, 96, 2), HALF, 1.0)
    out = attention.attend(
        jnp.full((num_tokens, 4, 128), jnp.nan, HALF),
        jnp.full((5, 16, 2, 2, 128), jnp.nan, HALF),
        jnp.ones(table[:1], jnp.int32),
        jnp.ones(table, jnp.int32),
        jnp.arange(table[0] + 1, dtype=jnp.int32),
        jnp.asarray(table[:1], jnp.int32),
        None,
        options=options,
    )
    assert out.dtype == HALF
    np.testing.assert_array_equal(np.asarray(out), np.zeros((num_tokens, 4, 96)))


def reason(
    version: str = "v3",
    heads: int = 8,
    group: int = 4,
    dim: int = 128,
    page: int = 16,
    dtype: Any = HALF,
    table: tuple[int, int] = (64, 256),
    scaled: bool = False,
) -> str | None:
    """Why a call of these shapes is left to XLA."""
    packing = 4 // jnp.dtype(dtype).itemsize if version == "v3" else 1
    layout = CacheLayout(version, heads, dim, dim, packing)
    pages: Any = shape((100, page, *layout.row_shape), dtype)
    assert layout_of(pages, dim, dim, heads) == layout
    if scaled:
        pages = ScaledPages(pages, shape((100, page, 2 * heads), F32))
    options = AttentionOptions(layout, dtype, 1.0)
    queries = shape((2048, group * heads, dim), F32 if dtype == F32 else HALF)
    return unsupported(options, queries, pages, shape(table, jnp.int32))


@pytest.mark.parametrize("version", ["v2", "v3"])
@pytest.mark.parametrize("dtype", [HALF, F32, E4M3])
def test_the_main_shapes_are_taken(version: str, dtype: Any) -> None:
    """Head sizes from 64 to 256, pages of 16 to 256 tokens, head ratios from 1 to 64."""
    assert [reason(version, dim=dim, dtype=dtype) for dim in (64, 80, 128, 192, 256)] == [None] * 5
    assert [reason(version, page=page, dtype=dtype) for page in (16, 32, 33, 64, 128, 256)] == [None] * 6
    assert [reason(version, group=group, dtype=dtype) for group in (1, 2, 3, 5, 7, 8, 16, 32, 64)] == [None] * 9
    assert [reason(version, heads=heads, dtype=dtype) for heads in (4, 8, 12, 16, 32)] == [None] * 5


def test_what_is_not_taken_has_a_reason() -> None:
    """Each row of the table in `support`, and what stands right beside it."""
    assert "ScaledPages" in str(reason(dtype=E4M3, scaled=True))
    taken = {
        HALF: (True, True, False, True, False, False, False, True),
        F32: (True, True, False, True, False, False, False, True),
        E4M3: (False, True, False, True, False, False, False, True),
    }
    for dtype, expected in taken.items():
        reasons = [reason("v2", heads=heads, dtype=dtype) for heads in range(1, 9)]
        assert tuple(why is None for why in reasons) == expected
        assert all("fill no tiles" in why for why in reasons if why is not None)
        assert [reason("v3", heads=heads, dtype=dtype) for heads in range(1, 9)] == [None] * 8
    assert "float16" in str(reason(dtype=jnp.dtype(jnp.float16)))
    assert "scalar memory" in str(reason(table=(256, 1024)))
    assert reason(table=(256, 512)) is None
    assert "VMEM" in str(reason(heads=64, dim=256, page=256, dtype=F32))
