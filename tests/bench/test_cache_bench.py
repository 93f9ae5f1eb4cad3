"""A step's arrays for 256 rows, and 64 new tokens written into a cache of 256 MiB."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kvproof import fast

ROWS, WIDTH, PAGE, HEADS, DIM, TOKENS = 256, 64, 16, 8, 128, 64
PAGES = 4096


@pytest.mark.parametrize("step", ["decode", "mixed"])
@pytest.mark.parametrize("slices", [False, True], ids=["slots", "slices"])
def test_build_the_metadata_of_a_step(benchmark: Any, slices: bool, step: str) -> None:
    """TAB-7: 256 rows; one token each, or 8 of them with 512 tokens; nothing to commit."""
    table = fast.PageTable(ROWS, WIDTH, 8192)
    table.append_rows_batch(1 + np.arange(ROWS * WIDTH).reshape(ROWS, WIDTH) % (PAGES - 1), np.arange(ROWS))
    builder = fast.MetadataBuilder(PAGE, ROWS, WIDTH, 8192, slices=slices)
    computed = np.full(ROWS, 300, np.int32)
    scheduled = np.ones(ROWS, np.int32)
    if step == "mixed":
        scheduled[-8:] = 512
    built = benchmark.pedantic(lambda: builder.build(table, computed, scheduled), rounds=300, warmup_rounds=20)
    assert built.num_seqs.tolist() == [ROWS]


def cache() -> tuple[fast.RaggedPagesCache, fast.RaggedPagesMetadata, Any]:
    """A cache of one layer of 256 MiB, a step of 64 tokens, and their keys."""
    metadata = fast.RaggedPagesCacheMetaData(1, 16_384, HEADS, DIM, DIM, page_size=PAGE, num_pages=PAGES)
    made = fast.RaggedPagesCache.init_cache(None, metadata, fast.AxisRules())
    assert made.views[0].kv_pages.nbytes == 256 << 20
    step = fast.RaggedPagesMetadata.create_empty(TOKENS, TOKENS, WIDTH, PAGE)
    slots = np.random.default_rng(0).permutation(PAGES * PAGE)[:TOKENS].astype(np.int32)
    return made, step.replace(slot_mapping=jnp.asarray(slots)), jnp.ones((TOKENS, HEADS, DIM), jnp.bfloat16)


def test_write_64_tokens_into_256_mib(benchmark: Any) -> None:
    """CACHE-3: by a view's own call, which donates its pages; to reach: 1 ms."""
    made, step, keys = cache()
    held = [made.views[0]]

    def write() -> None:
        held[0] = held[0].concatenate_to_cache(keys, keys, step)
        held[0].kv_pages.block_until_ready()

    benchmark.pedantic(write, rounds=300, warmup_rounds=20)
    assert float(held[0].key_pages.sum()) == TOKENS * HEADS * DIM


def test_write_64_tokens_into_256_mib_within_a_program(benchmark: Any) -> None:
    """CACHE-3: by a jitted function to which the cache is donated; to reach: 1 ms."""
    made, step, keys = cache()
    held = [made]

    def model(cache: fast.RaggedPagesCache, keys: Any, step: fast.RaggedPagesMetadata) -> fast.RaggedPagesCache:
        return cache.replace(views=[view.concatenate_to_cache(keys, keys, step) for view in cache.views])

    program = jax.jit(model, donate_argnums=0)

    def write() -> None:
        held[0] = program(held[0], keys, step)
        held[0].views[0].kv_pages.block_until_ready()

    benchmark.pedantic(write, rounds=300, warmup_rounds=20)
    assert float(held[0].views[0].key_pages.sum()) == TOKENS * HEADS * DIM
