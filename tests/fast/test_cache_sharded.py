"""CACHE-5: a cache that is split over a mesh gives what it gives on one device."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from kvproof import fast, spec

from .cache_pairs import PAGE, numbers, outcome, tables

TOKENS, ROWS, WIDTH, PAGES, HEADS, G, DIM = 8, 3, 3, 9, 4, 2, 32
ROW_PAGES = [[3, 7, 1], [8], [2, 5, 4]]


class Split(NamedTuple):
    """A mesh, and the cache on it."""

    dp: int
    tp: int
    dtype: str
    version: str = "v3"
    kind: AxisType = AxisType.Auto

    def __str__(self) -> str:
        return f"dp{self.dp}-tp{self.tp}-{self.dtype}-{self.version}-{self.kind.name}"

    def mesh(self) -> jax.sharding.Mesh:
        return jax.make_mesh((self.dp, self.tp), ("dp", "tp"), axis_types=(self.kind, self.kind))

    def metadata(self, shards: bool) -> fast.RaggedPagesCacheMetaData:
        return fast.RaggedPagesCacheMetaData(
            2,
            WIDTH * PAGE,
            HEADS,
            DIM,
            DIM,
            page_size=PAGE,
            num_pages=PAGES,
            version=self.version,
            _kvdtype_str=self.dtype,
            num_head_shards=self.tp if shards else 1,
            num_page_shards=self.dp if shards else 1,
        )


SPLITS = [
    Split(1, 4, "int8"),  # a device has one head: half of its rows are padding
    Split(2, 2, "int8", "seq_on_lane"),
    Split(2, 2, "f32", kind=AxisType.Explicit),
]
"""Two pools of float32 on a mesh of two by two the machine `sharded` draws."""

NAMES = ("key_pages", "value_pages")


def drawn(rng: np.random.Generator, heads: int) -> Any:
    return rng.normal(size=(TOKENS, heads, DIM)).astype(np.float32)


@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_split_over_a_mesh_all_is_as_on_one_device(split: Split) -> None:
    """CACHE-5, POOL-12: each data shard as a cache of its own; updates bit for bit, attention to a rounding."""
    rng = np.random.default_rng(split.dp * 8 + split.tp)
    mesh = split.mesh()
    view = fast.RaggedPagesCacheView.init(mesh, split.metadata(True), 1, fast.AxisRules())
    alone = [fast.RaggedPagesCacheView.init(None, split.metadata(False), 1, fast.AxisRules()) for _ in range(split.dp)]
    both = [tables(ROWS, WIDTH, TOKENS, ROW_PAGES)[0] for _ in alone]
    builder = fast.MetadataBuilder(PAGE, ROWS, WIDTH, TOKENS, split.version, token_sizes=[TOKENS])
    shape = view.kv_pages.values.shape if split.dtype == "int8" else view.kv_pages.shape
    for turn in range(4):
        scheduled = [[int(rng.integers(0, 4)), 1, int(rng.integers(0, 4))] for _ in alone]
        computed = [[int(rng.integers(0, 8)), int(rng.integers(0, 3)), int(rng.integers(0, 8))] for _ in alone]
        steps = [builder.build(*given) for given in zip(both, computed, scheduled, strict=True)]
        if turn == 2:
            steps = [step.replace(slot_mapping=None) for step in steps]
        stacked = fast.RaggedPagesMetadata.stack(steps)
        keys, values = ([drawn(rng, HEADS) for _ in alone] for _ in range(2))
        queries = [drawn(rng, HEADS * G) for _ in alone]
        sinks = rng.normal(size=HEADS * G).astype(np.float32)
        rows = np.concatenate(keys), np.concatenate(values)
        alone = [one.concatenate_to_cache(*each) for one, *each in zip(alone, keys, values, steps, strict=True)]
        wanted = [one.attend(*each, sinks=sinks) for one, *each in zip(alone, queries, steps, strict=True)]
        if split.kind is AxisType.Explicit:  # once is enough: programs take seconds to compile
            out, view = view.update_and_attend(np.concatenate(queries), *rows, stacked, sinks=sinks)
        else:
            view = view.concatenate_to_cache(*rows, stacked)
            out = view.attend(np.concatenate(queries), stacked, sinks=sinks)
        np.testing.assert_allclose(np.asarray(out), np.concatenate(wanted), rtol=0, atol=2**-18 * 8)
        for name in NAMES:
            pages = np.concatenate([getattr(one, name) for one in alone])
            assert (numbers(getattr(view, name)) == numbers(pages)).all()
    pages = view.kv_pages.values if split.dtype == "int8" else view.kv_pages
    assert (
        pages.sharding.shard_shape(shape)
        == split.metadata(False).replace(num_kv_heads=HEADS // split.tp).get_shape_and_axes()[0]
    )


@pytest.mark.parametrize("split", SPLITS[:2], ids=str)
def test_documents_of_split_caches_are_the_specifications(split: Split) -> None:
    """SEC-3, CACHE-5: the parts stand behind each other; they are read onto a mesh that splits them so."""
    rng = np.random.default_rng(2)
    mesh = split.mesh()
    cache = fast.RaggedPagesCache.init_cache(mesh, split.metadata(True), fast.AxisRules())
    builder = fast.MetadataBuilder(PAGE, ROWS, WIDTH, TOKENS, split.version, token_sizes=[TOKENS])
    steps = [builder.build(tables(ROWS, WIDTH, TOKENS, ROW_PAGES)[0], [1, 0, 2], [3, 1, 2]) for _ in range(split.dp)]
    stacked = fast.RaggedPagesMetadata.stack(steps)
    rows = [np.concatenate([drawn(rng, HEADS) for _ in steps]) for _ in range(2)]
    cache.views[0] = cache.views[0].concatenate_to_cache(rows[0], rows[1], stacked)
    theirs = spec.RaggedPagesCache.from_json(cache.to_json())
    for name in NAMES:
        np.testing.assert_array_equal(
            np.asarray(getattr(cache.views[0], name), np.float32),
            np.asarray(getattr(theirs.views[0], name), np.float32),
        )
    again = fast.RaggedPagesCache.from_json(theirs.to_json(), mesh)
    assert again.to_dict() == cache.to_dict()
    leaves = zip(jax.tree.leaves(again), jax.tree.leaves(cache), strict=True)
    assert all(one.sharding.is_equivalent_to(other.sharding, one.ndim) for one, other in leaves)
    assert outcome(lambda: fast.RaggedPagesCache.from_dict(theirs.to_dict())) == (ValueError, "CACHE-5")


def test_pages_are_copied_in_each_shard_by_its_own_ids() -> None:
    """MAN-13, POOL-12: in every layer, in place; a source is read before anything is written."""
    split = Split(2, 1, "bf16", "v2")
    cache = fast.RaggedPagesCache.init_cache(split.mesh(), split.metadata(True), fast.AxisRules())
    shape = cache.views[0].kv_pages.shape
    filled = [np.arange(np.prod(shape), dtype=np.uint16).reshape(shape) + layer for layer in range(2)]
    cache = fast.RaggedPagesCache(
        [
            view.replace(kv_pages=jax.device_put(pages, view.kv_pages.sharding))
            for view, pages in zip(cache.views, filled, strict=True)
        ]
    )
    copy: Any = cache.copy_pages
    copied = copy([[1, 2, -1], [5, 0, 8]], np.array([[2, 3, 4], [6, -1, 7]]))
    for view, pages in zip(copied.views, filled, strict=True):
        wanted = pages.copy()
        wanted[[2, 3]] = pages[[1, 2]]
        wanted[[PAGES + 6, PAGES + 7]] = pages[[PAGES + 5, PAGES + 8]]
        np.testing.assert_array_equal(np.asarray(view.kv_pages), wanted)
    assert all(view.kv_pages.is_deleted() for view in cache.views)


def test_meshes_and_steps_that_do_not_fit_are_refused() -> None:
    """CACHE-5, R1."""
    split = Split(2, 2, "f32")
    metadata, mesh = split.metadata(True), split.mesh()
    init = fast.RaggedPagesCacheView.init
    assert outcome(lambda: init(None, metadata, 0, fast.AxisRules())) == (ValueError, "CACHE-5")
    assert outcome(lambda: init(mesh, metadata, 0, fast.AxisRules("tp", "none"))) == (ValueError, "CACHE-5")
    assert outcome(lambda: init(jax.make_mesh((4,), ("tp",)), metadata, 0, fast.AxisRules())) == (
        ValueError,
        "CACHE-5",
    )
    create = fast.RaggedPagesCacheMetaData.create
    made = create(mesh, fast.AxisRules(), "f32", 1, 4, 64, 32, page_size=4, budget_bytes=1 << 20)
    assert (made.num_head_shards, made.num_page_shards) == (2, 2)
    assert outcome(lambda: create(mesh, fast.AxisRules(), "f32", 1, 3, 64, 32, budget_bytes=1 << 20)) == (
        ValueError,
        "CACHE-5",
    )
    for odd in ("mesh", 3, jax.devices()):
        given: Any = (odd, fast.AxisRules(), "f32", 1, 4, 64, 32)
        assert outcome(partial(create, *given)) == (TypeError, "R1")
    given = (mesh, None, "f32", 1, 4, 64, 32)
    assert outcome(partial(create, *given)) == (TypeError, "R1")
    view = init(mesh, metadata, 0, fast.AxisRules())
    step = fast.RaggedPagesMetadata.create_empty(TOKENS, ROWS, WIDTH, PAGE)
    rows = jnp.zeros((TOKENS, HEADS, DIM))
    assert outcome(lambda: view.concatenate_to_cache(rows, rows, step)) == (ValueError, "CACHE-5")
    assert not view.kv_pages.is_deleted()
