"""The TPU's decode kernel (ATT-1 to 4, ATT-6), interpreted in both modes: right numbers, no race, nothing dead read."""

from collections.abc import Callable, Sequence
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
from kvproof.kernels.storage import ScaledPages
from kvproof.kernels.tpu import decode_kernel, decode_plan, words
from kvproof.kernels.tpu.block_sizes import DecodeBlocks, decode_blocks
from kvproof.kernels.tpu.decode import decode, unsupported

from . import aot
from .interpreting import Interpreted
from .reference import FULL, Batch, Mask, assert_close, dense_attention, make_batch

HALF = jnp.dtype(jnp.bfloat16)
SMALL = DecodeBlocks(128)
TWO_SIZES = DecodeBlocks(256, short=(128,))

Arrays = tuple[Any, ...]

shape: Callable[..., Any] = jax.ShapeDtypeStruct


def batch_of(
    lens: Sequence[int],
    q_heads: int,
    kv_heads: int,
    dim: int,
    page: int,
    mask: Mask = FULL,
    kv_dtype: Any = HALF,
    scaled: bool = False,
    version: str = "v3",
    q_lens: Sequence[int] | None = None,
) -> Batch:
    """One query token a sequence or as many as named, in pages of fixed number: lengths share a compiled kernel."""
    return make_batch(
        np.random.default_rng(sum(lens)),
        [1] * len(lens) if q_lens is None else q_lens,
        lens,
        num_q_heads=q_heads,
        num_kv_heads=kv_heads,
        head_dim=dim,
        page_size=page,
        dtype=HALF,
        kv_dtype=kv_dtype,
        scaled_pages=scaled,
        version=version,
        pages_per_seq=-(-600 // page),
        num_pages=-(-1500 // page) + 8,
        mask=mask,
    )


class Kernel:
    """The decode kernel for fixed shapes and options, interpreted; what it gives is compared with the reference."""

    def __init__(
        self,
        q_heads: int,
        kv_heads: int,
        dim: int,
        page: int,
        *,
        blocks: DecodeBlocks = SMALL,
        mask: Mask = FULL,
        soft_cap: float | None = None,
        sinks: bool = False,
        value_scale: float = 1.0,
        kv_dtype: Any = HALF,
        scaled: bool = False,
        version: str = "v3",
        queries: int = 1,
    ) -> None:
        kv_dtype = jnp.dtype(kv_dtype)
        self.queries = queries
        self.shape = (q_heads, kv_heads, dim, page, mask, kv_dtype, scaled, version)
        self.scales: dict[str, Any] = {"scale": 0.7 * dim**-0.5, "v_scale": value_scale, "soft_cap": soft_cap}
        self.sinks = np.linspace(-3, 4, q_heads, dtype=np.float32) if sinks else None
        options = AttentionOptions(
            layout=CacheLayout(version, kv_heads, dim, dim, 4 // kv_dtype.itemsize if version == "v3" else 1),
            kv_dtype=kv_dtype,
            score_scale=self.scales["scale"],
            causal=mask.causal,
            window=mask.window,
            chunk=mask.chunk,
            soft_cap=soft_cap,
            value_scale=value_scale,
        )

        def make(interpret: pltpu.InterpretParams) -> Callable[..., Any]:
            def run(queries: Any, pages: Any, lens: Any, table: Any, num_rows: Any, q_lens: Any) -> Any:
                sinks = None if self.sinks is None else jnp.asarray(self.sinks)
                batch = (queries, pages, lens, table, num_rows, sinks, q_lens if self.queries > 1 else None)
                return decode(*batch, options=options, interpret=interpret, blocks=blocks)

            return run

        self.run = Interpreted(make)

    def arguments(
        self, lens: Sequence[int], num_rows: int | None = None, q_lens: Sequence[int] | None = None
    ) -> tuple[Batch, Arrays]:
        """A batch, and the kernel's arguments; rows that aren't decoded hold garbage, and so do missing queries."""
        batch = batch_of(lens, *self.shape, q_lens)
        rows = len(lens) if num_rows is None else num_rows
        queries = np.full((len(lens), self.queries, *batch.queries.shape[1:]), np.nan, HALF)
        kv_lens, counts = batch.kv_lens.copy(), np.diff(batch.cu_q_lens)
        for row, (begin, count) in enumerate(zip(batch.cu_q_lens, counts, strict=False)):
            queries[row, :count] = batch.queries[begin : begin + count]
        queries[rows:] = np.nan
        kv_lens[rows:], counts[rows:] = 10**9, 10**9
        table = batch.page_table.copy()
        table[rows:] = -7
        pages: Any = batch.kv_pages
        if batch.scales is not None:
            pages = ScaledPages(pages, jnp.asarray(batch.scales))
        return batch, (queries, pages, kv_lens, table, np.array([rows], np.int32), counts)

    def check(self, lens: Sequence[int], num_rows: int | None = None, q_lens: Sequence[int] | None = None) -> None:
        """Both modes are clean and within ATT-6; rows that aren't decoded are zero."""
        batch, arguments = self.arguments(lens, num_rows, q_lens)
        expected, largest = dense_attention(batch, sinks=self.sinks, **self.scales)
        rows = len(lens) if num_rows is None else num_rows
        expected[batch.cu_q_lens[rows] :] = 0
        for mode, outcome in self.run(*arguments).items():
            assert outcome.clean, (mode, outcome.races, outcome.left_over)
            counts = np.diff(batch.cu_q_lens)
            found = np.concatenate([row[:count] for row, count in zip(outcome.output, counts, strict=True)])
            assert_close(found, (expected, largest))
            assert not outcome.output[rows:].any()


@pytest.fixture(scope="module")
def plain() -> Kernel:
    """Blocks of two sizes: rounds of short blocks, of long ones, of both."""
    return Kernel(8, 2, 128, 32, blocks=TWO_SIZES)


EDGES = (0, 1, 31, 32, 33, 127, 128, 129, 255, 256, 257, 512, 513)


@settings(max_examples=5, deadline=None)
@given(
    lens=st.lists(st.sampled_from(EDGES), min_size=5, max_size=5).filter(lambda lens: sum(lens) < 1300), data=st.data()
)
def test_sequences_of_any_length_against_the_reference(plain: Kernel, lens: list[int], data: st.DataObject) -> None:
    """ATT-1, 2, 3, 6: any lengths, any leading rows; dead slots, unowned pages and the table's rest are poison."""
    plain.check(lens, data.draw(st.integers(0, 5)))


def test_every_option_at_once_over_several_grid_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """ATT-1: window, soft cap, sinks, scales; an odd number of KV heads; more sequences than a grid step takes."""
    monkeypatch.setattr(decode_plan, "_STEP_ROWS", 4)
    mask = Mask(window=150)
    kernel = Kernel(9, 3, 96, 64, mask=mask, soft_cap=3.0, sinks=True, value_scale=0.5)
    kernel.check((0, 1, 150, 151, 600, 389, 64), 6)


def test_heads_of_64_share_rows_within_chunks() -> None:
    """ATT-1, CACHE-2: key and value of a head in one row, two heads in a word; queries read their chunk only."""
    Kernel(4, 2, 64, 32, mask=Mask(chunk=100)).check((0, 99, 100, 101, 333))


E4M3, E5M2, INT8 = jnp.float8_e4m3fn, jnp.float8_e5m2, jnp.int8

CACHES: dict[str, tuple[tuple[int, int, int], dict[str, Any]]] = {
    # Four rows in a word, of two heads or of four; an odd head, padding.
    "e4m3": ((6, 3, 128), {"kv_dtype": E4M3, "mask": Mask(window=150), "value_scale": 0.5}),
    "e5m2": ((4, 4, 64), {"kv_dtype": E5M2, "value_scale": 0.5}),
    "int8": ((2, 1, 96), {"kv_dtype": INT8, "mask": Mask(chunk=100), "value_scale": 0.5}),
    # Tokens whose words are merged stand far apart; masks follow them.
    "v2, two tiles a slot": ((8, 8, 128), {"version": "v2", "mask": Mask(window=150)}),
    "v2, part of a tile": ((3, 1, 64), {"version": "v2"}),
    "v2, e4m3": ((8, 4, 96), {"version": "v2", "kv_dtype": E4M3}),
    # A head's rows come in two parts, and fill the matrix unit alone.
    "heads of 192, scales": ((6, 3, 192), {"mask": Mask(window=150), "kv_dtype": INT8, "scaled": True}),
    "heads of 256, v2": ((4, 4, 256), {"version": "v2", "sinks": True}),
    # A scale for each slot and head (CACHE-4): those of dead slots are NaN.
    "int8, scales": ((6, 3, 96), {"kv_dtype": INT8, "mask": Mask(window=150), "scaled": True, "sinks": True}),
    "e4m3, scales": ((8, 2, 96), {"kv_dtype": E4M3, "scaled": True}),
}
"""Query heads, KV heads and head size, and what else a cache is."""


@pytest.mark.parametrize("name", CACHES)
def test_every_kind_of_cache(name: str) -> None:
    """ATT-1, ATT-3, CACHE-2, CACHE-4: dead slots are poison."""
    heads, options = CACHES[name]
    Kernel(*heads, 32, blocks=TWO_SIZES, **options).check((0, 1, 129, 151, 333, 64))


@pytest.mark.parametrize(
    ("heads", "dim", "queries", "mask", "options"),
    [
        ((8, 2), 128, 8, Mask(window=150), {"sinks": True, "soft_cap": 3.0}),
        ((4, 2), 256, 2, FULL, {}),
        ((6, 3), 128, 3, Mask(causal=False, window=140, chunk=3), {"kv_dtype": jnp.int8, "scaled": True}),
    ],
    ids=["window", "heads of 256", "chunks shorter than a draft"],
)
def test_drafts(heads: tuple[int, int], dim: int, queries: int, mask: Mask, options: dict[str, Any]) -> None:
    """ATT-1, 3: several query tokens a sequence, each with its own mask; as many as there may be, or fewer."""
    kernel = Kernel(*heads, dim, 32, mask=mask, queries=queries, blocks=TWO_SIZES, **options)
    kernel.check((queries, 32, 129, 151, 333, 0), 5, [queries, 1, 2, queries, queries - 1, 0])


def test_a_page_of_one_token() -> None:
    """More copies than are written out are a loop."""
    Kernel(2, 1, 128, 1).check((5, 0, 130))


def test_a_missing_wait_shows(plant: Callable[[Any, str, Any], None]) -> None:
    """The proof proves: without the wait there is a race if copies are made at once, and NaN if they are made late."""
    plant(decode_kernel, "wait_block", lambda *_: None)
    kernel = Kernel(2, 2, 128, 128)
    _, arguments = kernel.arguments((140, 20))
    outcomes = kernel.run(*arguments)
    assert outcomes["eager"].races
    assert np.isnan(outcomes["on_wait"].output.astype(np.float32)).any()


def test_a_missing_mask_of_values_shows(plant: Callable[[Any, str, Any], None]) -> None:
    """The poison is poison: values of dead tokens that aren't zeroed are NaN in the output."""

    def all_live(_first: Any, _end: Any, tokens: int, packing: int, _in_v3: bool) -> jax.Array:
        return jnp.full((tokens // packing, 128), 2**32 - 1, jnp.uint32)

    plant(decode_kernel, "live_words", all_live)
    kernel = Kernel(2, 2, 128, 128)
    _, arguments = kernel.arguments((140, 20))
    assert np.isnan(kernel.run(*arguments)["eager"].output.astype(np.float32)).any()


@pytest.mark.parametrize(("dtype", "select"), [(HALF, False), (HALF, True), (jnp.dtype(jnp.int8), False)])
def test_words_come_apart_alike_in_both_forms(dtype: Any, select: bool) -> None:
    """The hardware's form (but for its packing, which has no interpretation) gives what the interpreted form gives."""
    packing, tokens = 4 // dtype.itemsize, 64
    codes = np.random.default_rng(0).permutation(tokens * packing * 128).astype(f"u{dtype.itemsize}")
    rows = jnp.asarray(codes.reshape(tokens, packing, 128).view(dtype))
    as_words = jax.lax.bitcast_convert_type(jnp.swapaxes(rows, 1, 2), jnp.uint32)
    upper = range(packing // 2, packing)

    def kernel(block: Any, numbers: Any, *outputs: Any) -> None:
        loaded = tuple(block[first::packing] for first in range(packing))
        live = words.live_words(jnp.int32(3), jnp.int32(50), tokens, packing, in_v3=True)
        interpreted = words.load_words(numbers, 0, packing, tokens, True)
        at = iter(outputs)
        for row in upper:
            next(at)[...] = words.combined_row(loaded, row, dtype, None, select, emulated=False)
            next(at)[...] = words.combined_row(loaded, row, dtype, live, select, emulated=False)
        for row in range(packing):
            next(at)[...] = words.combined_row(interpreted, row, dtype, None, select, emulated=True)

    out_shape = (shape((tokens, 128), dtype),) * (2 * len(upper) + packing)
    found = pl.pallas_call(kernel, out_shape=out_shape, interpret=pltpu.InterpretParams())(as_words, rows[:, None])
    at = iter(np.asarray(array).view(codes.dtype) for array in found)
    expected = codes.reshape(tokens, packing, 128)
    live = (np.arange(tokens) >= 3) & (np.arange(tokens) < 50)
    for row in upper:
        np.testing.assert_array_equal(next(at), expected[:, row])
        np.testing.assert_array_equal(next(at), np.where(live[:, None], expected[:, row], 0))
    for row in range(packing):
        np.testing.assert_array_equal(next(at), expected[:, row])


def test_what_is_not_supported_is_said() -> None:
    """Each shape that another kernel has to do has its reason."""

    def reason(
        page: int = 16,
        heads: int = 2,
        dim: int = 128,
        width: int = 8,
        version: str = "v3",
        dtype: Any = HALF,
        q_dtype: Any = HALF,
        scaled: bool = False,
    ) -> str | None:
        layout = CacheLayout(version, heads, dim, dim, 4 // jnp.dtype(dtype).itemsize if version == "v3" else 1)
        pages: Any = shape((4, page, *layout.row_shape), dtype)
        assert layout_of(pages, dim, dim, heads) == layout
        if scaled:
            pages = ScaledPages(pages, jnp.zeros((4, page, 2 * heads)))
        options = AttentionOptions(layout=layout, kv_dtype=jnp.dtype(dtype), score_scale=1.0)
        return unsupported(options, shape((3, 2 * heads, dim), q_dtype), pages, shape((3, width), jnp.int32))

    assert [reason(page=page, heads=heads) for page in (1, 16, 128) for heads in (1, 2, 7)] == [None] * 9
    assert [reason(dim=dim) for dim in (64, 80, 128, 192, 256)] == [None] * 5
    assert [reason(dim=64, heads=heads) for heads in (1, 3)] == [None] * 2
    assert [reason(dtype=dtype) for dtype in (jnp.float8_e4m3fn, jnp.float8_e5m2, jnp.int8)] == [None] * 3
    assert [reason(version="v2", heads=heads) for heads in (1, 2, 4, 8, 12)] == [None] * 5
    assert "6 rows in a v2 slot" in str(reason(version="v2", heads=3))
    assert reason(dtype=jnp.int8, scaled=True) is None
    assert "ScaledPages of v2" in str(reason(dtype=jnp.int8, scaled=True, version="v2", heads=4))
    assert "page size of 33" in str(reason(page=33))
    assert "a cache of float32" in str(reason(dtype=jnp.float32))
    assert "queries of float32" in str(reason(q_dtype=jnp.float32))
    assert "a storage head size of 384" in str(reason(dim=300))
    assert reason(dim=192, version="v2", heads=4) is None
    assert "4 rows of 256 in a v2 slot fill part of a tile" in str(reason(dim=192, version="v2"))
    assert "pages a sequence" in str(reason(width=10**6))


@given(
    kind=st.sampled_from(["", "v5e", "7x"]),
    groups=st.integers(1, 64),
    page_size=st.integers(0, 9).map(lambda power: 2**power),
)
def test_block_sizes_hold_whole_pages(kind: str, groups: int, page_size: int) -> None:
    """Blocks are powers of two of at least 128 tokens, whole pages, small enough for three of them in VMEM."""
    blocks = decode_blocks(kind, "bfloat16", groups, page_size)
    assert blocks.tokens >= 128
    assert blocks.tokens & (blocks.tokens - 1) == 0
    assert blocks.tokens % page_size == 0
    assert blocks.tokens * groups * 512 <= max(2**22, max(page_size, 128) * groups * 512)
    assert list(blocks.short) == sorted(set(blocks.short))
    assert all(size < blocks.tokens for size in blocks.short)


def test_a_batch_of_1024_sequences_compiles() -> None:
    """Neither the queries nor the table of a batch need fit into the device's memories at once."""
    aot.require()
    layout = CacheLayout("v3", 8, 128, 128, 2)
    options = AttentionOptions(layout=layout, kv_dtype=HALF, score_scale=0.1)

    def run(queries: Any, pages: Any, lens: Any, table: Any, num_rows: Any) -> jax.Array:
        return decode(queries[:, None], pages, lens, table, num_rows, None, options=options, blocks=SMALL)

    compiled = aot.compile_for(
        "v5e",
        run,
        shape((1024, 32, 128), HALF),
        shape((4096, 16, *layout.row_shape), HALF),
        shape((1024,), jnp.int32),
        shape((1024, 512), jnp.int32),
        shape((1,), jnp.int32),
    )
    assert aot.kernels_in(compiled) == 1
