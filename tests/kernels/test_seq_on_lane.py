"""Pages whose slots are columns, `[P, 2H, Dp, page]`: they do what pages of layout v2 with the same numbers do.

What v2 does is held against references of its own elsewhere.
"""

from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

from kvproof.kernels import (
    ScaledPages,
    copy_pages,
    explain,
    export_pages,
    fused_ragged_paged_attention,
    kv_cache_update,
    layout_of,
    ragged_paged_attention,
)

PAGES, PAGE, HEADS, TOKENS = 7, 5, 3, 9
Array = NDArray[Any]

KINDS: dict[str, Any] = {
    "float32": (np.float32, (40, 24), False, {}),
    "bfloat16 as bits": (np.uint16, (24, 24), False, {"kv_dtype": "bf16"}),
    "int8": (np.int8, (40, 24), False, {"k_scale": 0.25, "v_scale": 0.5}),
    "int8, a scale for each slot": (np.int8, (16, 33), True, {}),
    "float8 as bits": (np.uint8, (64, 64), True, {"kv_dtype": "f8_e4m3"}),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def rows_of(dtype: Any, dims: tuple[int, int]) -> int:
    """Numbers of a column for one key or value: whole groups of eight 32-bit words."""
    words = 32 // np.dtype(dtype).itemsize
    return int(-(-max(dims) // words) * words)


def caches(kind: str, seed: int = 0) -> tuple[Any, Any]:
    """The same numbers in v2 and in columns: v2's rows have more padding, of zeros."""
    dtype, dims, scaled, _ = KINDS[kind]
    rng = np.random.default_rng(seed)
    rows = np.zeros((PAGES, PAGE, 2 * HEADS, 128), np.float32)
    for half, size in enumerate(dims):
        rows[..., half::2, :size] = rng.integers(-60, 60, (PAGES, PAGE, HEADS, size))
    stored: Any = rows.astype(dtype)
    if dtype in (np.uint16, np.uint8):
        stored = np.asarray(jnp.asarray(rows).astype(jnp.bfloat16 if dtype == np.uint16 else jnp.float8_e4m3fn)).view(
            dtype
        )
    columns = in_columns(stored)[:, :, : rows_of(dtype, dims)]
    if not scaled:
        return stored, columns
    scales: Any = rng.uniform(0.5, 2, (PAGES, PAGE, 2 * HEADS)).astype(np.float32)
    return ScaledPages(stored, scales), ScaledPages(columns, in_columns(scales))


def in_columns(slots: Any) -> Any:
    """Pages `[P, page, ...]` as `[P, ..., page]`."""
    return np.ascontiguousarray(np.moveaxis(np.asarray(slots), 1, -1))


def same(slots: Any, columns: Any) -> None:
    """Whether both layouts hold the same bits: v2's rows have nothing but zeros behind the columns'."""
    for one, other in zip(jax.tree.leaves(slots), jax.tree.leaves(columns), strict=True):
        moved = in_columns(one)
        if moved.ndim == 4:
            assert not moved[:, :, other.shape[2] :].any()
            moved = moved[:, :, : other.shape[2]]
        np.testing.assert_array_equal(moved, np.asarray(other))


def batch(q_lens: list[int], kv_lens: list[int]) -> Any:
    table = np.array([[3, 1, 99], [5, 2, 4], [6, -1, -1]], np.int32)
    starts = np.cumsum([0, *q_lens]).astype(np.int32)
    return [np.array(kv_lens, np.int32), table, starts, np.array([len(q_lens)], np.int32)]


def tokens(kind: str, seed: int = 1) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    keys, values = (rng.normal(size=(TOKENS, HEADS, size)).astype(np.float32) for size in KINDS[kind][1])
    return keys, values


@every_kind
def test_updates_by_slots_and_by_slices_write_the_same_numbers(kind: str) -> None:
    """CACHE-3, CACHE-4: what is written, and all else as it was."""
    slots, columns = caches(kind)
    options = KINDS[kind][3]
    mapping = np.array([3, 4, 5, -1, 34, 35, 20, 2**31 - 1, 0], np.int32)
    named: Any = {"num_slices": np.array([2], np.int32)}
    slices = np.array([[7, 30, 0], [1, 4, 0], [3, 5, 1]], np.int32)
    nothing: Any = {}
    rows, update = tokens(kind), cast(Any, kv_cache_update)
    for where, more in ((mapping, nothing), (slices, named)):
        after = update(slots, *rows, where, **options, **more)
        same(after, update(columns, *rows, where, **options, **more, version="seq_on_lane"))


def attended(kind: str) -> tuple[list[Any], dict[str, Any], Array]:
    """A batch of decoding and prefill together, masks, and queries."""
    dims = KINDS[kind][1]
    queries = np.random.default_rng(2).normal(size=(TOKENS, 2 * HEADS, dims[0])).astype(np.float32)
    masks: dict[str, Any] = {"window": 8, "soft_cap": 20.0, "num_kv_heads": HEADS, "v_head_dim": dims[1]}
    return batch([1, 6, 1], [9, 13, 4]), masks | KINDS[kind][3], queries


@pytest.mark.parametrize("kind", ["bfloat16 as bits", "int8, a scale for each slot", "float8 as bits"])
def test_attention_reads_the_same_numbers(kind: str) -> None:
    """ATT-1."""
    slots, columns = caches(kind)
    given, options, queries = attended(kind)
    attend: Any = partial(ragged_paged_attention, queries)
    wanted = attend(slots, *given, **options)
    assert np.abs(np.asarray(wanted)).max() > 0.1
    np.testing.assert_array_equal(attend(columns, *given, **options, version="seq_on_lane"), wanted)


def test_attention_writes_the_same_numbers_first() -> None:
    """ATT-5: an update and then attention, of which all kinds are compared alone."""
    kind = "bfloat16 as bits"
    slots, columns = caches(kind)
    given, options, queries = attended(kind)
    write: Any = partial(fused_ragged_paged_attention, queries, *tokens(kind))
    wanted, slots = write(slots, *given, **options)
    out, columns = write(columns, *given, **options, version="seq_on_lane")
    np.testing.assert_array_equal(out, wanted)
    same(slots, columns)


@every_kind
def test_pages_and_their_first_slots_are_copied_and_exported_alike(kind: str) -> None:
    """MAN-13, MAN-17, SWAP-2."""
    slots, columns = caches(kind)
    ids: Any = [np.array(some, np.int32) for some in ([1, 2, -1], [4, 0, 3])]
    ends: Any = np.array([2, 9, 1], np.int32)
    same(copy_pages(slots, ids[0], ids[1]), copy_pages(columns, ids[0], ids[1]))
    named: Any = {"version": "seq_on_lane"}
    same(copy_pages(slots, ids[0], ids[1], ends), copy_pages(columns, ids[0], ids[1], ends, **named))
    same(export_pages(slots, ids[0], ends), export_pages(columns, ids[0], ends, **named))


def test_a_donated_cache_is_written_in_place() -> None:
    """CACHE-3."""
    _, columns = caches("bfloat16 as bits")
    update: Any = jax.jit(partial(kv_cache_update, kv_dtype="bf16", version="seq_on_lane"), donate_argnums=0)
    pages = jnp.array(columns)
    place = pages.unsafe_buffer_pointer()
    assert (
        update(pages, *tokens("bfloat16 as bits"), np.arange(TOKENS, dtype=np.int32)).unsafe_buffer_pointer() == place
    )


@pytest.mark.parametrize(
    ("dtype", "dim", "stored"),
    [(jnp.bfloat16, 128, 128), (jnp.bfloat16, 72, 80), (jnp.int8, 80, 96), (jnp.float32, 9, 16)],
)
def test_the_shape_is_that_of_the_peers_kernels(dtype: Any, dim: int, stored: int) -> None:
    """tpu-inference's `stacked_rpa`: pages, twice the KV heads, head size in whole tiles of 8 words, 128 tokens."""
    shape: Any = jax.ShapeDtypeStruct
    pages = shape((9, 16, stored, 128), dtype)
    layout = layout_of(pages, dim, dim, version="seq_on_lane")
    assert (layout.num_kv_heads, layout.sizes(pages), layout.page_shape(128)) == (8, (9, 128), pages.shape[1:])


def test_explain_says_that_xla_serves_and_why() -> None:
    shape: Any = jax.ShapeDtypeStruct
    pages, row = shape((64, 16, 128, 128), jnp.bfloat16), shape((8, 8, 128), jnp.bfloat16)
    lengths = [shape(size, jnp.int32) for size in ((4,), (4, 6), (5,), (1,))]
    arguments = (shape((8, 32, 128), jnp.bfloat16), row, row, pages, *lengths)
    told = explain(fused_ragged_paged_attention, *arguments, platform="tpu", version="seq_on_lane")
    assert [said.kernel for said in told] == ["kv_update", "ragged_attention"]
    for said in told:
        assert said.reason == "layout seq_on_lane: a slot is a column of its page, and the kernels copy rows"


def test_a_layout_that_is_named_wrongly_is_refused() -> None:
    """R1: the pages have not as many dimensions."""
    slots, _ = caches("float32")
    keys = np.zeros((TOKENS, 4, 5), np.float32)
    with pytest.raises(ValueError, match=r"must have 5 dimensions in v3.*\[R1\]$"):
        kv_cache_update(slots, keys, keys, np.full(TOKENS, -1, np.int32), version="v3")


@pytest.mark.parametrize(("page_size", "window"), [(8, 150), (33, None), (128, 150)])
def test_contexts_of_several_blocks_are_read_to_their_ends(page_size: int, window: int | None) -> None:
    """ATT-1: blocks of keys begin and end amid pages, of which they read whole ones."""
    rng = np.random.default_rng(page_size)
    width = -(-300 // page_size)
    slots = rng.normal(size=(3 * width + 1, page_size, 4, 128)).astype(np.float32)
    columns = in_columns(slots)
    table = 1 + rng.permutation(3 * width).astype(np.int32).reshape(3, width)
    lengths: Any = [
        np.array([300, 257, 131], np.int32),
        table,
        np.array([0, 1, 5, 6], np.int32),
        np.array([3], np.int32),
    ]
    queries = rng.normal(size=(6, 4, 128)).astype(np.float32)
    wanted = ragged_paged_attention(queries, slots, *lengths, window=window)
    out = ragged_paged_attention(queries, columns, *lengths, window=window, version="seq_on_lane")
    np.testing.assert_array_equal(out, wanted)
