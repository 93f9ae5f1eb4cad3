"""The arithmetic of the GPU's kernels, without them: tiles, items, rows, memory, and which calls are left to XLA."""

import heapq
import re
from collections.abc import Callable
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.kernels.gpu import attention, geometry
from kvproof.kernels.gpu.geometry import ROWS, Geometry, LatentGeometry
from kvproof.kernels.gpu.schedule import Field, decode_items, most_blocks, most_extras, parts_of, prefill_blocks
from kvproof.kernels.gpu.support import unsupported, unsupported_latents
from kvproof.kernels.gpu.tiles import Tiles, cut, scale_rows
from kvproof.kernels.layout import CacheLayout
from kvproof.kernels.options import AttentionOptions, MlaOptions
from kvproof.kernels.ragged import clean_table, ragged
from kvproof.kernels.storage import ScaledPages

from .reference import Mask

HALF = jnp.dtype(jnp.bfloat16)
F16 = jnp.dtype(jnp.float16)
F32 = jnp.dtype(jnp.float32)
E4M3 = jnp.dtype(jnp.float8_e4m3fn)
E5M2 = jnp.dtype(jnp.float8_e5m2)
I8 = jnp.dtype(jnp.int8)
NUM_PAGES = 50
SEQUENCES = 4
"""Rows of the arrays: shapes stay, so that few programs are compiled."""

shape: Callable[..., Any] = jax.ShapeDtypeStruct
decoding: Callable[..., Any] = jax.jit(decode_items, static_argnames=("num_heads", "extras", "tiles", "options"))
cutting: Callable[..., Any] = jax.jit(parts_of, static_argnums=(1, 2))
lens_of: Callable[..., Any] = jax.jit(ragged, static_argnums=(3, 4))
table_of: Callable[..., Any] = jax.jit(clean_table, static_argnums=1)
aligned_of: Callable[..., Any] = jax.jit(attention.aligned_starts, static_argnums=1)
rows_of: Callable[..., Any] = jax.jit(attention.query_rows, static_argnums=(2, 3))
prefilling: Callable[..., Any] = jax.jit(
    prefill_blocks, static_argnames=("num_tokens", "block_queries", "block_rows", "group", "tiles", "options")
)
masks = st.sampled_from([Mask(), Mask(window=7), Mask(False, 5, 12), Mask(chunk=16)])
seeds = st.integers(0, 99)
lengths = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 60)), min_size=1, max_size=SEQUENCES)


@given(page_size=st.integers(1, 512), keys=st.sampled_from([64, 128]))
def test_every_key_has_one_place_in_one_tile(page_size: int, keys: int) -> None:
    tiles = cut(page_size, keys)
    assert 1 <= tiles.rows <= page_size
    assert tiles.live == tiles.rows * tiles.pieces <= tiles.keys == keys
    found = []
    for tile in range(-(-2 * page_size * tiles.pieces // tiles.live) + 1):
        for piece in range(tiles.pieces):
            # As the kernel has it: pages of a tile, or parts of a page.
            copy = tile * tiles.pieces + piece
            page, offset = copy // tiles.per_page, copy % tiles.per_page * tiles.rows
            assert offset + tiles.rows <= page_size
            found += [page * page_size + offset + row for row in range(tiles.rows)]
    assert found == list(range(len(found)))
    assert 2 * tiles.live > keys


@pytest.mark.parametrize(
    ("page_size", "rows", "pieces"),
    [
        (1, 1, 64),
        (8, 8, 8),
        (16, 16, 4),
        (33, 33, 1),
        (40, 40, 1),
        (64, 64, 1),
        (65, 13, 4),
        (67, 1, 64),
        (72, 24, 2),
        (80, 40, 1),
        (96, 48, 1),
        (128, 64, 1),
    ],
)
def test_tiles_of_usual_pages(page_size: int, rows: int, pieces: int) -> None:
    assert cut(page_size) == Tiles(64, page_size, rows, pieces)


def options_of(mask: Mask) -> AttentionOptions:
    return AttentionOptions(CacheLayout("v3", 1, 64, 64, 2), HALF, 1.0, mask.causal, mask.window, mask.chunk)


def batch_of(lens: list[tuple[int, int]], table: np.ndarray[Any, Any], page_size: int) -> Any:
    """The cleaned lengths and table of a batch, its arrays padded with garbage."""
    q_lens = [q for q, _ in lens]
    kv_lens = np.full(SEQUENCES, 77, np.int32)
    kv_lens[: len(lens)] = [kv for _, kv in lens]
    starts = np.full(SEQUENCES + 1, 9999, np.int32)
    starts[: len(lens) + 1] = np.cumsum([0, *q_lens])
    num_tokens = 9 * SEQUENCES
    arrays = (jnp.asarray(kv_lens), jnp.asarray(starts), jnp.asarray([len(lens)], jnp.int32))
    return lens_of(*arrays, num_tokens, page_size * table.shape[1]), table_of(jnp.asarray(table), NUM_PAGES)


def readable(mask: Mask, q_len: int, kv_len: int) -> np.ndarray[Any, Any]:
    return np.asarray(mask.readable(q_len, kv_len)) if kv_len else np.zeros((q_len, 0), bool)


def check_range(item: dict[Field, int], read: np.ndarray[Any, Any], table: np.ndarray[Any, Any], tiles: Tiles) -> None:
    """An item's ranges against the keys that its queries read, `bool[queries, keys]`."""
    keys = np.flatnonzero(read.any(0))
    if not len(keys):
        assert item[Field.END_TILE] <= item[Field.FIRST_TILE]
        assert not item[Field.HOLES]
        return
    assert (item[Field.LOW], item[Field.HIGH]) == (keys[0], keys[-1] + 1)
    rows = read[read.any(1)]
    whole = range(item[Field.WHOLE_LOW], item[Field.WHOLE_HIGH])
    assert all(rows[:, key].all() for key in whole)
    pages = range(item[Field.FIRST_PAGE], item[Field.LAST_PAGE] + 1)
    assert {*pages} == {key // tiles.page_size for key in range(keys[0], keys[-1] + 1)}
    ids = table[item[Field.SEQUENCE], list(pages)]
    assert item[Field.HOLES] == bool(((ids < 0) | (ids >= NUM_PAGES)).any())


@settings(max_examples=15)
@given(lens=lengths, mask=masks, page_size=st.sampled_from([3, 33]), seed=seeds)
def test_parts_of_decoding_sequences_cover_what_they_read_once(
    lens: list[tuple[int, int]], mask: Mask, page_size: int, seed: int
) -> None:
    extras, width, tiles = 5, -(-60 // page_size) + 1, Tiles(64, page_size, page_size, max(1, 9 // page_size))
    rng = np.random.default_rng(seed)
    table = rng.integers(0, NUM_PAGES, (SEQUENCES, width)).astype(np.int32)
    table[rng.random(table.shape) < 0.1] = rng.choice([-1, NUM_PAGES, 2**31 - 1, -(2**31)])
    batch, cleaned = batch_of(lens, table, page_size)
    starts = batch.starts[:-1] * 3
    starting = np.asarray(starts)
    listed, begins, counts = map(
        np.asarray,
        decoding(batch, starts, cleaned, num_heads=8, extras=extras, tiles=tiles, options=options_of(mask)),
    )
    assert listed.shape == (len(Field), extras + SEQUENCES)
    more = np.maximum(counts - 1, 0)
    owners = np.repeat(np.arange(SEQUENCES), more)
    padded = np.pad(owners, (0, extras - len(owners)), constant_values=-1)
    assert (listed[Field.SEQUENCE, SEQUENCES:] == padded).all()
    assert (begins == SEQUENCES + np.cumsum(more) - more).all()
    for s in range(SEQUENCES):
        q_len, kv_len = lens[s] if s < len(lens) else (0, 0)
        if q_len != 1:
            assert s not in listed[Field.SEQUENCE]
            assert counts[s] == 0
            continue
        read = readable(mask, 1, kv_len)
        places = [s, *range(begins[s], begins[s] + counts[s] - 1)]
        parts = [{field: int(listed[field, place]) for field in Field} for place in places]
        covered = [t for part in parts for t in range(part[Field.FIRST_TILE], part[Field.END_TILE])]
        if read.any():
            low, high = parts[0][Field.LOW], parts[0][Field.HIGH]
            assert covered == list(range(low // tiles.live, -(-high // tiles.live)))
            for part in parts:
                check_range(part | {Field.END_TILE: part[Field.FIRST_TILE] + 1}, read, table, tiles)
        else:
            assert covered == []
        assert all(part[Field.SEQUENCE] == s for part in parts)
        assert all(part[Field.TOKEN] == starting[s] for part in parts)


@settings(max_examples=15)
@given(lens=lengths, mask=masks, seed=seeds)
def test_blocks_of_queries_cover_long_sequences_once(lens: list[tuple[int, int]], mask: Mask, seed: int) -> None:
    page_size, queries, group = 5, 4, 3
    tiles, rows = cut(page_size), queries * group + 2
    table = np.random.default_rng(seed).integers(-5, NUM_PAGES, (SEQUENCES, 13)).astype(np.int32)
    batch, cleaned = batch_of(lens, table, page_size)
    starts = aligned_of(batch.starts[:-1], 8)
    blocks = prefilling(
        batch,
        starts,
        cleaned,
        num_tokens=9 * SEQUENCES,
        block_queries=queries,
        block_rows=rows,
        group=group,
        tiles=tiles,
        options=options_of(mask),
    )
    items, used = np.asarray(blocks.items), np.asarray(blocks.used)
    assert items.shape[1] == most_blocks(9 * SEQUENCES, SEQUENCES, queries)
    block, place = np.asarray(blocks.block), np.asarray(blocks.offset)
    lower, upper, starting = np.asarray(blocks.first), np.asarray(blocks.end), np.asarray(starts)
    token, seen = 0, set()
    for s, (q_len, kv_len) in enumerate(lens):
        read = readable(mask, q_len, kv_len)
        for query in range(q_len):
            assert used[token] == (q_len > 1)
            if q_len > 1:
                at, offset = int(block[token]), int(place[token])
                assert (at, offset) not in seen
                seen.add((at, offset))
                assert items[Field.SEQUENCE, at] == s
                assert items[Field.TOKEN, at] + offset == starting[s] + query
                mine = slice(offset * group, (offset + 1) * group)
                first, end = lower[at, mine], upper[at, mine]
                keys = np.arange(kv_len)
                for f, e in zip(first, end, strict=True):
                    assert (((keys >= f) & (keys < e)) == read[query]).all()
                if offset == 0:
                    item = {field: int(items[field, at]) for field in Field}
                    check_range(item, read[query : query + queries], table, tiles)
            token += 1
    assert not used[token:].any()
    real = items[Field.SEQUENCE] >= 0
    assert real.sum() == len({at for at, _ in seen})
    unused = np.asarray(blocks.first) >= np.asarray(blocks.end)
    assert unused[:, queries * group :].all()


LONGEST = 300
"""Rows of tiles that sequences are cut by: one shape, as elsewhere."""


def cut_into(num_tiles: list[int], heads: int) -> list[int]:
    """The parts of sequences, the longest of which may have 1,024 tiles, in a batch with room for 300."""
    padded = jnp.asarray(np.pad(np.array(num_tiles, np.int32), (0, LONGEST - len(num_tiles))))
    parts = np.asarray(cutting(padded, heads, most_extras(LONGEST, heads, 1024)))
    assert not parts[len(num_tiles) :].any()
    return [int(count) for count in parts[: len(num_tiles)]]


def rounds_of(num_tiles: list[int], parts: list[int], heads: int) -> float:
    """The time that a batch takes, in tiles, if a multiprocessor that is done takes the next block."""
    busy = [0] * 132
    for tiles, count in zip(num_tiles, parts, strict=True):
        for _ in range(count * heads):
            heapq.heapreplace(busy, busy[0] + -(-tiles // count) + 4)
    return max(busy)


@settings(max_examples=30)
@given(
    num_tiles=st.lists(st.one_of(st.integers(0, 20), st.integers(0, 1024)), min_size=1, max_size=LONGEST),
    heads=st.sampled_from([1, 8, 32]),
)
def test_parts_follow_lengths(num_tiles: list[int], heads: int) -> None:
    """They fit, none is empty, and no batch takes longer than whole sequences or than twice an even share would."""
    parts = cut_into(num_tiles, heads)
    assert all((count > 0) == (tiles > 0) and count <= tiles for tiles, count in zip(num_tiles, parts, strict=True))
    assert sum(max(count - 1, 0) for count in parts) <= most_extras(LONGEST, heads, 1024)
    took = rounds_of(num_tiles, parts, heads)
    whole = rounds_of(num_tiles, [min(tiles, 1) for tiles in num_tiles], heads)
    assert took <= 1.5 * whole
    assert (
        took
        <= 2 * sum(heads * (tiles + 4) for tiles in num_tiles) / 132 + max(num_tiles) / most_extras(1, heads, 1024) + 40
    )


def test_parts_of_usual_batches() -> None:
    """How many multiprocessors work depends on what there is to read, not on the room of the batch."""
    assert cut_into([1024], 8) == [16]  # one request, 300 rows: 128 blocks on 132 multiprocessors
    assert cut_into([64] * 32, 8) == [1] * 32  # 256 blocks: two rounds
    assert cut_into([64] * 20, 8)[0] > 1  # 160 would leave most idle in the second
    assert cut_into([1] * 128, 8) == [1] * 128
    assert cut_into([1024, *[8] * 15], 8)[1:] == [1] * 15  # one long among short ones is cut alone
    assert cut_into([1024, *[8] * 15], 8)[0] >= 16
    assert most_extras(4, 8, 1) == 0  # a tile is not cut


@given(q_lens=st.lists(st.integers(0, 20), min_size=5, max_size=5), alignment=st.sampled_from([1, 2, 4, 8]))
def test_aligned_sequences_do_not_overlap(q_lens: list[int], alignment: int) -> None:
    starts = np.cumsum([0, *q_lens])[:-1].astype(np.int32)
    aligned = np.asarray(aligned_of(jnp.asarray(starts), alignment))
    assert (aligned % alignment == 0).all()
    assert (aligned[1:] >= aligned[:-1] + q_lens[:-1]).all()
    assert aligned[0] == 0


@pytest.mark.parametrize("group", [1, 3, 4, 8])
def test_query_rows_stand_where_they_are_looked_for(group: int) -> None:
    several = Geometry(CacheLayout("v2", 2, 64, 64, 1), group, HALF, HALF, 16, splits_keys=False)
    queries = jnp.arange(6 * 2 * group * 64, dtype=jnp.float32).astype(HALF).reshape(6, 2 * group, 64)
    places = np.array([0, 1, 2, several.alignment * 3, several.alignment * 3 + 1, -1], np.int32)
    rows = np.asarray(rows_of(queries, jnp.asarray(places), several, 3))
    assert rows.shape[1] % 8 == 0
    assert rows.shape[1] >= (places.max() + 1) * group + several.block_rows
    given, rest = np.asarray(queries).reshape(6, 2, group, 64), np.ones(rows.shape[1], bool)
    for token, place in enumerate(places[:-1]):
        mine = slice(place * group, (place + 1) * group)
        np.testing.assert_array_equal(rows[:, mine], given[token])
        rest[mine] = False
    assert (rows[:, rest] == 0).all()


GEOMETRIES = [
    Geometry(CacheLayout(version, 2, dim, dim, packing), group, HALF, stored, page_size, splits)
    for version, packing, stored in (("v2", 1, HALF), ("v3", 4, E4M3))
    for dim in (64, 80, 96, 128, 192, 256)
    for group in (1, 3, 8, 16)
    for page_size in (1, 3, 8, 16, 64, 67, 72, 256)
    for splits in (False, True)
    if not (stored == HALF and dim == 256 and page_size % 8)
]


def test_rings_fit_into_shared_memory() -> None:
    for each in GEOMETRIES:
        assert each.stages >= 2
        assert each.fixed_bytes + each.stages * each.stage_bytes <= geometry.SMEM_BYTES
        assert not each.splits_keys or each.stages % geometry.CONSUMERS == 0
        assert each.block_queries * each.group <= each.block_rows
        assert each.block_queries % each.alignment == 0 or each.splits_keys
        assert each.layout.v_head_dim % each.partial_columns == 0
        assert each.layout.head_dim % each.chunk == 0
        assert each.swizzle == geometry.swizzle_of(each.layout.head_dim, 2)
        assert not each.raw_swizzle or each.staged or each.raw_swizzle == each.swizzle
        assert each.tiles.keys % 64 == 0


def test_copies_are_whole_multiples_of_what_the_copy_engine_aligns_to() -> None:
    for each in GEOMETRIES:
        size, layout = geometry.itemsize_of(each.kv_dtype), each.layout
        keys, values = each.copied_dims
        assert all(each.tiles.rows * dim * size % 128 == 0 for dim in (keys, values))
        assert keys >= layout.head_dim
        assert values >= each.value_offset + layout.v_head_dim
        # What is no more than its head's numbers is copied as it is multiplied, or at least of the head alone.
        whole = (keys, values) != (layout.head_dim, layout.v_head_dim)
        assert not whole or (each.staged and each.raw_swizzle == 0)
        assert each.value_offset == (layout.head_dim if whole and layout.shares_rows else 0)


def calls(
    heads: tuple[int, int] = (8, 2), dim: int = 128, page_size: int = 16, stored: Any = HALF, dtype: Any = HALF
) -> str | None:
    """Why a call is left to XLA."""
    layout = CacheLayout("v2", heads[1], dim, dim, 1)
    options = AttentionOptions(layout, stored, 1.0)
    pages = shape((9, page_size, *layout.row_shape), stored)
    return unsupported(options, shape((4, heads[0], dim), dtype), pages, shape((3, 5), jnp.int32))


def test_what_the_kernels_take() -> None:
    for page_size in (1, 2, 3, 4, 8, 16, 32, 33, 64, 67, 72, 96, 128, 251, 256):
        for dim, stored in ((64, E4M3), (80, HALF), (80, E4M3), (128, HALF), (192, HALF), (256, E4M3)):
            assert calls(page_size=page_size, dim=dim, stored=stored) is None
    for dim in (64, 80, 96, 128, 192, 256):
        for stored, dtype in ((HALF, HALF), (F16, F16), (E4M3, HALF), (E5M2, F16), (I8, HALF), (I8, F16)):
            assert calls(dim=dim, stored=stored, dtype=dtype) is None
    for heads in ((8, 8), (3, 1), (16, 1), (64, 1), (35, 5)):
        assert calls(heads=heads) is None


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"dtype": F32, "stored": F32}, "queries of float32"),
        ({"stored": F16}, "a cache of float16 for queries of bfloat16"),
        ({"stored": jnp.dtype(jnp.int16)}, "a cache of int16"),
        ({"dim": 72}, "heads of 72 numbers"),
        ({"dim": 512}, "heads of 512 numbers"),
        ({"heads": (65, 1)}, "65 query heads"),
        ({"page_size": 4, "dim": 256}, "a tile of keys and values takes 65536 bytes"),
    ],
)
def test_what_is_left_to_xla(changed: dict[str, Any], reason: str) -> None:
    assert re.match(reason, calls(**changed) or "")


def latents(heads: int = 128, dims: tuple[int, int] = (512, 64), page_size: int = 64, **more: Any) -> str | None:
    """Why a call over latents is left to XLA."""
    dtype, stored = more.get("dtype", HALF), more.get("stored", HALF)
    options = MlaOptions(*dims, stored, 1.0)
    pages = shape((9, page_size, options.width), stored)
    return unsupported_latents(options, shape((4, heads, dims[0]), dtype), pages, shape((3, 5), jnp.int32))


def test_what_the_kernels_take_over_latents() -> None:
    for heads in (1, 16, 24, 64, 67, 100, 128):
        shapes = LatentGeometry(heads, 512, 64, HALF, 64)
        assert (shapes.heads * shapes.group, shapes.group <= ROWS, shapes.query_rows % 8) == (heads, True, 0)
        for page_size in (8, 16, 24, 64, 72, 256):
            assert latents(heads, page_size=page_size) is None
    for dims in ((128, 16), (256, 32), (512, 64), (384, 128)):
        assert latents(dims=dims, dtype=F16, stored=F16) is None


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"dtype": F32, "stored": F32}, "queries of float32"),
        ({"stored": E4M3}, "a cache of float8_e4m3fn for queries of bfloat16"),
        ({"dims": (576, 64)}, "latents of 576 numbers"),
        ({"dims": (640, 64)}, "latents of 640 numbers"),
        ({"dims": (512, 24)}, "rotary parts of 24 numbers"),
        ({"dims": (512, 256)}, "a tile of latents takes 98304 bytes"),
        ({"page_size": 1}, "pages of 1 slots"),
        ({"page_size": 67}, "pages of 67 slots"),
    ],
)
def test_what_is_left_to_xla_over_latents(changed: dict[str, Any], reason: str) -> None:
    assert re.match(reason, latents(**changed) or "")


@given(page_size=st.integers(1, 300), heads=st.integers(1, 64))
def test_scales_are_copied_in_whole_lines(page_size: int, heads: int) -> None:
    """What the copy engine asks of rows and of copies, and that a head's two scales are among those copied."""
    rows = cut(page_size).rows
    of = scale_rows(rows, heads)
    assert (of is None) == (rows * heads % 16 != 0)
    if of is None:
        return
    assert page_size % of.slots == rows % of.slots == 0
    assert of.slots * 2 * heads * 4 % 16 == 0
    assert of.slots * of.columns * 4 % 16 == 0
    assert of.slots * of.columns <= 256
    assert rows * of.columns * 4 % 128 == 0
    assert 2 * heads % of.columns == 0
    assert of.columns % 2 == 0
    assert heads % 2 or of.columns == 4 or rows * of.columns // 2 * 4 % 128 != 0


def scaled_calls(heads: int, page_size: int, dim: int = 128, dtype: Any = HALF) -> str | None:
    """Why a call over ScaledPages is left to XLA."""
    layout = CacheLayout("v2", heads, dim, dim, 1)
    pages = ScaledPages(shape((9, page_size, 2 * heads, 128), I8), shape((9, page_size, 2 * heads), F32))
    queries = shape((4, heads, dim), dtype)
    return unsupported(AttentionOptions(layout, I8, 1.0), queries, pages, shape((3, 5), jnp.int32))


def test_which_scaled_pages_the_kernels_take() -> None:
    assert scaled_calls(63, 256) is None
    for heads, page_size in ((1, 16), (3, 32), (2, 8), (4, 4), (16, 1), (8, 72), (32, 128), (5, 256)):
        assert scaled_calls(heads, page_size) is None
        assert scaled_calls(heads, page_size, dim=256) is None
    for heads, page_size in ((1, 8), (65, 16), (15, 1), (3, 72)):
        assert re.match("the scales of .* heads are no whole 128 bytes", scaled_calls(heads, page_size) or "")
    assert scaled_calls(8, 16, 208, F16) is None
    assert re.match("a tile of keys and values takes", scaled_calls(8, 16, 224, F16) or "")


def test_memory_of_scaled_pages_fits() -> None:
    for heads, page_size, dim, splits in product((1, 2, 5, 8, 32), (8, 16, 64, 72), (64, 128, 192), (False, True)):
        for dtype in (HALF, F16):
            each = Geometry(CacheLayout("v3", heads, dim, dim, 4), 2, dtype, I8, page_size, splits, scaled=True)
            assert each.stages >= 2
            assert each.fixed_bytes + each.stages * each.stage_bytes <= geometry.SMEM_BYTES
            assert each.values_replace_keys == (dtype == HALF)
