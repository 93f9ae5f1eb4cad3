"""What is compiled for a cache: in place, few programs, and pytrees all the way."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kvproof import fast
from kvproof.fast.cache import cache_programs

from .cache_pairs import PAGE, outcome, tables

TOKENS, ROWS, WIDTH, HEADS, DIM = 16, 4, 8, 2, 32

DTYPES = ["f32", "bf16", "f16", "f8_e4m3", "f8_e5m2", "int8"]


def metadata(dtype: str = "bf16", num_pages: int = 64, **more: Any) -> fast.RaggedPagesCacheMetaData:
    return fast.RaggedPagesCacheMetaData(
        2, WIDTH * PAGE, HEADS, DIM, DIM, page_size=PAGE, num_pages=num_pages, _kvdtype_str=dtype, **more
    )


def cache_of(dtype: str, mesh: Any = None, **more: Any) -> fast.RaggedPagesCache:
    return fast.RaggedPagesCache.init_cache(mesh, metadata(dtype, **more), fast.AxisRules())


def rows() -> Any:
    return jnp.ones((TOKENS, HEADS, DIM))


def one_step(**more: Any) -> fast.RaggedPagesMetadata:
    table, _ = tables(ROWS, WIDTH, TOKENS, [[3, 1], [2]])
    return fast.MetadataBuilder(PAGE, ROWS, WIDTH, TOKENS, token_sizes=[TOKENS], **more).build(table, [2, 0], [3, 1])


def updated(cache: fast.RaggedPagesCache, keys: Any, step: fast.RaggedPagesMetadata) -> fast.RaggedPagesCache:
    return cache.replace(views=[view.concatenate_to_cache(keys, keys, step) for view in cache.views])


# -- In place -------------------------------------------------------------------------------------


@pytest.mark.parametrize("slices", [False, True], ids=["slots", "slices"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_donated_cache_is_written_in_place(dtype: str, slices: bool) -> None:
    """CACHE-3: the compiler takes the memory over, and needs little besides, whatever the dtype."""
    cache = cache_of(dtype, num_pages=2048)
    compiled = jax.jit(updated, donate_argnums=0).lower(cache, rows(), one_step(slices=slices)).compile()
    analysis: Any = compiled.memory_analysis()
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(cache))
    assert analysis.alias_size_in_bytes >= size
    assert analysis.temp_size_in_bytes < size / 16


def test_a_donated_cache_is_split_and_written_in_place() -> None:
    """CACHE-3, CACHE-5: on each device."""
    mesh = jax.make_mesh((2, 2), ("dp", "tp"))
    cache = cache_of("bf16", mesh, num_pages=512, num_head_shards=2, num_page_shards=2)
    step = fast.RaggedPagesMetadata.stack([one_step(), one_step()])
    keys = jnp.ones((2 * TOKENS, HEADS, DIM))
    compiled = jax.jit(updated, donate_argnums=0).lower(cache, keys, step).compile()
    analysis: Any = compiled.memory_analysis()
    share = sum(leaf.nbytes for leaf in jax.tree.leaves(cache)) // 4
    assert analysis.alias_size_in_bytes >= share
    assert analysis.temp_size_in_bytes < share / 4


@pytest.mark.parametrize("dtype", ["bf16", "int8"])
def test_calls_outside_of_traced_code_write_in_place(dtype: str) -> None:
    """CACHE-3: the old view's memory is the new one's; the old view is good no more."""
    view = cache_of(dtype).views[0]
    before = [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(view)]
    after = view.concatenate_to_cache(rows(), rows(), one_step())
    assert [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(after)] == before
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(view))
    for call in (
        lambda: view.concatenate_to_cache(rows(), rows(), one_step()),
        lambda: view.key_pages,
        lambda: view.to_json(),
        lambda: fast.RaggedPagesCache([view]).copy_pages([1], [2]),
    ):
        assert outcome(call) == (ValueError, "CACHE-3")
    copied = fast.RaggedPagesCache([after]).copy_pages([3], [5])
    assert [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(copied)] == before
    pages = np.asarray(copied.views[0].key_pages)
    assert (pages[5] == pages[3]).all()


# -- Few programs ---------------------------------------------------------------------------------


def test_a_thousand_mixed_steps_compile_at_most_eight_programs() -> None:
    """Rows come and go, prefill and decode, pages are copied: programs depend on sizes, and those are few."""
    rng = np.random.default_rng(0)
    table = fast.PageTable(ROWS, WIDTH, 64)
    builder = fast.MetadataBuilder(PAGE, ROWS, WIDTH, 64)
    arrays = {size: np.ones((size, HEADS, DIM), np.float32) for size in builder.token_sizes}
    cache = cache_of("bf16")
    computed = np.zeros(ROWS, np.int64)
    compiled: list[str] = []

    def count(event: str, duration_secs: float, **more: str | int) -> None:  # noqa: ARG001 - as listeners are called
        if event.endswith("backend_compile_duration"):
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(count)
    table.append_rows_batch(1 + np.arange(ROWS * WIDTH).reshape(ROWS, WIDTH), np.arange(ROWS))
    for turn in range(1000):
        computed[rng.random(ROWS) < 0.1] = 0
        n = int(rng.integers(1, ROWS + 1))
        prefill = rng.random(n) < 0.3
        scheduled = np.where(prefill, rng.integers(0, 17, n), 1)
        computed[:n] = np.where(computed[:n] + scheduled > WIDTH * PAGE, 0, computed[:n])
        if turn % 10 == 0:
            table.swap_row(0, int(rng.integers(0, ROWS)))
        step = builder.build(table, computed[:n], scheduled)
        assert step.slot_mapping is not None
        size = step.slot_mapping.shape[0]
        out, cache.views[0] = cache.views[0].update_and_attend(arrays[size], arrays[size], arrays[size], step)
        if turn % 50 == 0:
            pages = rng.permutation(40)[: 2 * int(rng.integers(1, 9))]
            cache = cache.copy_pages(pages[::2], pages[1::2])
        if turn % 100 == 0:
            cache.views[1] = cache.views[1].concatenate_to_cache(arrays[size], arrays[size], step)
        computed[:n] += scheduled
    assert np.isfinite(out).all()
    jax.monitoring.unregister_event_duration_listener(count)
    assert 0 < len(compiled) <= 8, len(compiled)


def test_a_program_serves_all_layers_and_every_step_of_a_size() -> None:
    """Views that differ in their layer only share programs; other options make another."""
    view = cache_of("f8_e5m2").views[0]
    update: Any = cache_programs.update
    before = update._cache_size()
    for layer in range(2):
        view = view.replace(layer_index=layer).concatenate_to_cache(rows(), rows(), one_step(), k_scale=0.5)
    assert update._cache_size() == before + 1
    view.concatenate_to_cache(rows(), rows(), one_step(), k_scale=0.25)
    assert update._cache_size() == before + 2


# -- Pytrees --------------------------------------------------------------------------------------


def test_caches_are_pytrees() -> None:
    """Leaves are the pages; all else is static: it survives jit, tree_map, eval_shape and a scan's carry."""
    cache = cache_of("int8")
    leaves, structure = jax.tree.flatten(cache)
    assert [leaf.dtype for leaf in leaves] == [np.int8, np.float32] * 2
    assert jax.tree.unflatten(structure, leaves).views[1].layer_index == 1
    outline = jax.eval_shape(lambda: cache_of("int8"))
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), outline).views[0].kv_pages == (
        (leaves[0].shape, leaves[0].dtype),
        (leaves[1].shape, leaves[1].dtype),
    )
    assert outline.metadata == cache.metadata
    assert [view.layer_index for view in outline.views] == [0, 1]

    @jax.jit
    def many(cache: fast.RaggedPagesCache, keys: Any, step: fast.RaggedPagesMetadata) -> Any:
        def one(cache: fast.RaggedPagesCache, keys: Any) -> tuple[fast.RaggedPagesCache, Any]:
            after = updated(cache, keys, step)
            return after, after.views[1].key_pages.sum()

        return jax.lax.scan(one, cache, keys)

    after, sums = many(cache, jnp.stack([rows(), 2 * rows()]), one_step())
    assert isinstance(after, fast.RaggedPagesCache)
    assert sums.tolist() == [4 * HEADS * DIM, 8 * HEADS * DIM]
    assert not cache.views[0].kv_pages.values.is_deleted()
    assert after.metadata == cache.metadata


def test_layers_stacked_for_a_scan_are_views() -> None:
    """A model that scans over its layers stacks the pages of views: a view of the stack serves inside."""
    cache = cache_of("bf16")
    step = one_step()
    static = [view.replace(layer_index=0) for view in cache.views]
    stacked = jax.tree.map(lambda *pages: jnp.stack(pages), *static)

    def layer(carry: Any, view: fast.RaggedPagesCacheView) -> tuple[Any, fast.RaggedPagesCacheView]:
        return carry, view.concatenate_to_cache(carry, carry, step)

    _, after = jax.jit(lambda keys, stacked: jax.lax.scan(layer, keys, stacked))(rows(), stacked)
    wanted = np.asarray(static[0].concatenate_to_cache(rows(), rows(), step).kv_pages)
    assert (np.asarray(after.kv_pages) == wanted).all()


def test_init_empty_gives_nothing() -> None:
    """The seed's: a paged cache is allocated at once."""
    empty: Callable[..., None] = fast.RaggedPagesCache.init_empty
    assert empty(1, some=2) is None  # type: ignore[func-returns-value]
