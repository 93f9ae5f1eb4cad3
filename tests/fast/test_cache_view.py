"""A layer's pages on the device, in lockstep with the specification's (CACHE-2 to CACHE-4, ATT-1 to ATT-6)."""

from dataclasses import dataclass
from itertools import chain
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

from kvproof import fast, spec
from kvproof.spec.declarations.cache_dtypes import read_dtype

from .cache_pairs import PAGE, Steps, numbers, tables

TOKENS, ROWS, WIDTH, PAGES, Q_HEADS = 12, 3, 4, 11, 2
ROW_PAGES = [[3, 7, 1], [9], [10, 2, 5, 4]]


@dataclass(frozen=True)
class World:
    """A cache's layout and dtype, and how its steps say where tokens go."""

    dtype: str
    version: str
    heads: int
    head_dim: int
    v_head_dim: int
    where: str = "slots"
    scaled: bool = False

    @property
    def fields(self) -> dict[str, Any]:
        return {
            "num_hidden_layers": 2,
            "max_model_length": WIDTH * PAGE,
            "num_kv_heads": self.heads,
            "k_headdim": self.head_dim,
            "v_headdim": self.v_head_dim,
            "page_size": PAGE,
            "num_pages": PAGES,
            "version": self.version,
            "_kvdtype_str": self.dtype,
            "slot_scales": self.scaled,
        }

    def __str__(self) -> str:
        scaled = "-scaled" if self.scaled else ""
        return f"{self.version}-{self.dtype}{scaled}-{self.heads}x{self.head_dim}+{self.v_head_dim}-{self.where}"


WORLDS = [
    World("f32", "v3", 2, 64, 64, "slots"),
    World("f32", "v2", 3, 32, 48, "slices"),
    World("bf16", "v3", 3, 64, 64, "slices"),
    World("bf16", "v3", 1, 80, 80, "table"),
    World("bf16", "v2", 2, 64, 64, "slots"),
    World("f16", "v3", 1, 32, 128, "slots"),
    World("f8_e4m3", "v3", 3, 64, 64, "table"),
    World("f8_e4m3", "v2", 1, 32, 32, "slots"),
    World("f8_e5m2", "v3", 1, 32, 32, "slices"),
    World("int8", "v3", 3, 32, 64, "slots", scaled=True),
    World("int8", "v3", 1, 64, 64, "slices", scaled=True),
    World("int8", "v2", 2, 32, 32, "table", scaled=True),
    World("f8_e4m3", "v3", 2, 64, 64, "slots", scaled=True),
    World("f8_e5m2", "v2", 1, 48, 32, "slots", scaled=True),
    World("bf16", "seq_on_lane", 3, 40, 24, "slots"),
    World("f32", "seq_on_lane", 2, 64, 64, "slices"),
    World("int8", "seq_on_lane", 2, 24, 40, "table", scaled=True),
]
BF16 = WORLDS[3]
every_world = pytest.mark.parametrize("world", WORLDS, ids=str)


def views(world: World, rng: np.random.Generator) -> tuple[Any, Any]:
    """The same pages of both packages, with any numbers in them: NaN and infinities too."""
    theirs = spec.RaggedPagesCacheView.init(None, spec.RaggedPagesCacheMetaData(**world.fields), 1, spec.AxisRules())
    values = theirs.kv_pages.values if world.scaled else theirs.kv_pages
    noise: Any = rng.integers(-127, 128, values.shape).astype(np.float32)
    if values.dtype != np.int8:
        noise = np.where(rng.random(values.shape) < 0.2, rng.choice([np.nan, np.inf, -0.0], values.shape), noise)
    noise = noise.astype(values.dtype)
    pages: Any = noise
    if world.scaled:
        pages = spec.ScaledPages(noise, rng.normal(size=theirs.kv_pages.scales.shape).astype(np.float32))
    theirs = theirs.replace(kv_pages=pages)
    return fast.RaggedPagesCacheView.from_dict(theirs.to_dict()), theirs


def steps(world: World, rng: np.random.Generator) -> Steps:
    """A step of three sequences, the lengths drawn."""
    table, _ = tables(ROWS, WIDTH, TOKENS, ROW_PAGES)
    slices = world.where == "slices"
    builder = fast.MetadataBuilder(PAGE, ROWS, WIDTH, TOKENS, world.version, slices=slices)
    scheduled = [int(rng.integers(0, 5)), 1, int(rng.integers(0, 6))]
    computed = [int(rng.integers(0, len(row) * PAGE - new + 1)) for row, new in zip(ROW_PAGES, scheduled, strict=True)]
    step = builder.build(table, computed, scheduled)
    return Steps.of(step.replace(slot_mapping=None) if world.where == "table" else step)


def tokens(world: World, rng: np.random.Generator, step: Steps, dtype: Any = np.float32) -> tuple[Any, Any]:
    """Keys and values of a step, signed, of several magnitudes; those of no sequence are NaN."""
    magnitude = rng.choice([0.0, 1e-3, 1.0, 50.0], (TOKENS, world.heads, 1))
    keys = rng.normal(size=(TOKENS, world.heads, world.head_dim)) * magnitude
    values = rng.normal(size=(TOKENS, world.heads, world.v_head_dim)) * magnitude
    end = int(step.fast.query_start_loc[-1])
    keys[end:] = values[end:] = np.nan
    return keys.astype(dtype), values.astype(dtype)


def written_slots(step: Steps) -> NDArray[np.int64]:
    """The slots that a step names, by the specification's table."""
    rows = np.diff(np.asarray(step.fast.query_start_loc))
    lens, table = np.asarray(step.fast.context_lens), np.asarray(step.spec.pages_tables)
    positions = [(row, pos) for row in range(ROWS) for pos in range(lens[row] - rows[row], lens[row])]
    return np.array([table[row, pos // PAGE] * PAGE + pos % PAGE for row, pos in positions], np.int64)


def rows_of(view: Any) -> NDArray[np.uint8]:
    """What a view stores, slot by slot, in bytes."""
    rows = np.asarray(view.flattened_kv_pages())
    return numbers(rows.reshape(PAGES * PAGE, -1))


def scales_of(view: Any) -> NDArray[np.float32]:
    scales = np.asarray(view.kv_pages.scales)
    return (np.moveaxis(scales, -1, 1) if view.metadata.version == "seq_on_lane" else scales).reshape(PAGES * PAGE, -1)


# -- Updates --------------------------------------------------------------------------------------


@every_world
def test_updates_are_the_specifications(world: World) -> None:
    """CACHE-2, CACHE-3, CACHE-4: bit for bit; of scaled pages the scales up to their last bit."""
    rng = np.random.default_rng(len(str(world)))
    ours, theirs = views(world, rng)
    for turn in range(3):
        step = steps(world, rng)
        keys, values = tokens(world, rng, step)
        before = rows_of(theirs)
        shape = (3, TOKENS // 3) if turn == 2 else (TOKENS,)
        given = keys.reshape(*shape, *keys.shape[1:]), values.reshape(*shape, *values.shape[1:])
        ours = ours.concatenate_to_cache(jnp.asarray(given[0]), jnp.asarray(given[1]), step.fast)
        theirs = theirs.concatenate_to_cache(*given, step.spec)
        slots = written_slots(step)
        others = np.setdiff1d(np.arange(PAGES * PAGE), slots)
        assert (rows_of(ours)[others] == before[others]).all()
        if not world.scaled:
            assert (rows_of(ours) == rows_of(theirs)).all()
            continue
        assert (scales_of(ours)[others] == scales_of(theirs)[others]).all()
        np.testing.assert_array_max_ulp(scales_of(ours)[slots], scales_of(theirs)[slots], maxulp=1)
        if not (scales_of(ours)[slots] == scales_of(theirs)[slots]).all():
            for name in ("key_pages", "value_pages"):  # a scale's last bit may move what stands halfway
                mine, wanted = (
                    np.asarray(getattr(view, name)).reshape(PAGES * PAGE, -1)[slots] for view in (ours, theirs)
                )
                np.testing.assert_allclose(mine, wanted, rtol=2**-2, atol=scales_of(theirs)[slots].max())
        else:
            assert (rows_of(ours) == rows_of(theirs)).all()


@every_world
def test_keys_and_values_are_read_back_as_the_specification_reads_them(world: World) -> None:
    """CACHE-2: true heads and sizes, NaN and all; scales applied."""
    ours, theirs = views(world, np.random.default_rng(7))
    for name in ("key_pages", "value_pages"):
        mine, wanted = getattr(ours, name), getattr(theirs, name)
        assert mine.shape == wanted.shape
        assert mine.dtype == wanted.dtype
        np.testing.assert_array_equal(np.asarray(mine).astype(np.float32), wanted.astype(np.float32))
    assert (rows_of(ours) == rows_of(theirs)).all()
    assert ours.flattened_kv_pages().dtype == read_dtype("dtype", world.dtype)


# -- Attention ------------------------------------------------------------------------------------

ATTENDED: list[tuple[World, dict[str, Any]]] = [
    (WORLDS[0], {"window": 3, "soft_cap": 5.0, "causal": False}),
    (WORLDS[3], {}),
    (WORLDS[6], {"chunk": 4, "scale": 0.3, "q_scale": 0.5, "k_scale": 0.25, "v_scale": 2.0}),
    (WORLDS[9], {"window": 5}),
]


@pytest.mark.parametrize(("world", "options"), ATTENDED, ids=[str(world) for world, _ in ATTENDED])
def test_attention_is_the_specifications(world: World, options: dict[str, Any]) -> None:
    """ATT-1 to ATT-6: what is dead holds NaN or garbage; fused or not; with sinks."""
    rng = np.random.default_rng(3)
    queries = rng.normal(size=(TOKENS, Q_HEADS * world.heads, world.head_dim)).astype(np.float32)
    sinks = rng.normal(size=Q_HEADS * world.heads).astype(np.float32)
    scales = {name: options[name] for name in ("k_scale", "v_scale") if name in options}
    for turn in range(4):
        step = steps(world, rng)
        ours, theirs = live_views(world, rng, step)
        keys, values = tokens(world, rng, step)
        queries[int(step.fast.query_start_loc[-1]) :] = np.nan
        rows = jnp.asarray(keys), jnp.asarray(values)
        if turn % 2 and world is BF16:  # once is enough: programs take seconds to compile
            out, ours = ours.update_and_attend(jnp.asarray(queries), *rows, step.fast, sinks=sinks, **options)
        else:
            ours = ours.concatenate_to_cache(*rows, step.fast, **scales)
            out = ours.attend(jnp.asarray(queries), step.fast, sinks=sinks, **options)
        wanted, theirs = theirs.update_and_attend(queries, keys, values, step.spec, sinks=sinks, **options)
        assert out.dtype == np.float32
        read = np.abs(np.asarray(theirs.value_pages, np.float32)).reshape(PAGES * PAGE, -1)[live_slots(step)]
        largest = read.max(initial=0.0) * options.get("v_scale", 1.0)
        np.testing.assert_allclose(np.asarray(out), wanted, rtol=0, atol=2**-17 * largest)


def live_slots(step: Steps, less: int = 0) -> NDArray[np.int64]:
    """The slots that a step's sequences own, or all but those of the step's tokens where ``less`` is 1."""
    lens = np.asarray(step.fast.context_lens) - less * np.diff(np.asarray(step.fast.query_start_loc))
    places = [(row, pos) for row, pages in enumerate(ROW_PAGES) for pos in range(int(lens[row]))]
    return np.array([ROW_PAGES[row][pos // PAGE] * PAGE + pos % PAGE for row, pos in places], np.int64)


def live_views(world: World, rng: np.random.Generator, step: Steps) -> tuple[Any, Any]:
    """The same pages of both packages: numbers where tokens were written before the step, NaN and garbage elsewhere."""
    ours, theirs = views(world, rng)
    capacity = len(list(chain(*ROW_PAGES))) * PAGE
    slots = np.full(capacity, -1, np.int32)
    written = live_slots(step, less=1)
    slots[: len(written)] = written
    before = Steps.of(
        fast.RaggedPagesMetadata.create_empty(capacity, ROWS, WIDTH, PAGE, world.version).replace(
            slot_mapping=jnp.asarray(slots)
        )
    )
    keys = rng.normal(size=(capacity, world.heads, world.head_dim)).astype(np.float32)
    values = rng.normal(size=(capacity, world.heads, world.v_head_dim)).astype(np.float32)
    theirs = theirs.concatenate_to_cache(keys, values, before.spec)
    return ours.concatenate_to_cache(jnp.asarray(keys), jnp.asarray(values), before.fast), theirs


# -- Looking at the arrays ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lens", "table", "error"),
    [
        ([5, 1, 3], [[3, 99, 0, 0], [9, 0, 0, 0], [10, 0, 0, 0]], IndexError),
        ([5, 0, 3], [[3, 7, 0, 0], [9, 0, 0, 0], [10, 0, 0, 0]], ValueError),
        ([5, 1, 3], [[3, 7, 0, 0], [9, 0, 0, 0], [7, 0, 0, 0]], None),
        ([5, 1, 5], [[3, 7, 0, 0], [9, 0, 0, 0], [10, 7, 0, 0]], ValueError),
    ],
    ids=["no such page", "fewer tokens than queries", "a shared page", "a slot written twice"],
)
def test_validation_looks_at_the_arrays(lens: list[int], table: list[list[int]], error: Any) -> None:
    """R1: before anything is written; a page that is read by two is no fault."""
    rng = np.random.default_rng(5)
    ours, _ = views(BF16, rng)
    step = steps(BF16, rng).fast.replace(
        pages_tables=np.array(table, np.int32),
        context_lens=np.array(lens, np.int32),
        query_start_loc=np.array([0, 1, 2, 3], np.int32),
    )
    queries, rows = np.zeros((TOKENS, 2, 80), np.float32), np.zeros((TOKENS, 1, 80), np.float32)
    before = rows_of(ours).copy()
    if error is None:
        sinks = np.zeros(2, np.float32)  # as in the test of attention: the programs are there
        ours.attend(queries, step, sinks=sinks, validate=True)
        ours.update_and_attend(queries, rows, rows, step, sinks=sinks, validate=True)
        return
    with pytest.raises(error, match=r"\[R1\]$"):
        ours.update_and_attend(queries, rows, rows, step, validate=True)
    assert (rows_of(ours) == before).all()


def test_views_are_made_as_the_specification_makes_them() -> None:
    """CACHE-1, CACHE-4: of zeros, with scales where the metadata says so."""
    for world in WORLDS:
        ours = fast.RaggedPagesCacheView.init(None, fast.RaggedPagesCacheMetaData(**world.fields), 1, fast.AxisRules())
        theirs = spec.RaggedPagesCacheView.init(
            None, spec.RaggedPagesCacheMetaData(**world.fields), 1, spec.AxisRules()
        )
        assert ours.to_dict() == theirs.to_dict()


# -- JSON -----------------------------------------------------------------------------------------


@every_world
def test_documents_go_both_ways(world: World) -> None:
    """SEC-3: pages are written as numbers, however a device holds them."""
    ours, theirs = views(world, np.random.default_rng(1))
    assert ours.to_dict() == theirs.to_dict()
    assert fast.RaggedPagesCacheView.from_json(ours.to_json()).to_dict() == theirs.to_dict()
    cache = fast.RaggedPagesCache([ours.replace(layer_index=0), ours])
    other = spec.RaggedPagesCache.from_json(cache.to_json())
    assert other.to_dict() == fast.RaggedPagesCache.from_json(other.to_json()).to_dict() == cache.to_dict()
