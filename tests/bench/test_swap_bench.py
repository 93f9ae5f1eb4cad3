"""SWAP-1: a preempted request swapped out and back, against computing it anew, at several lengths.

Four layers of hidden size 256 in float32, on the CPU: what one token costs there is little, so that swapping has a
hard time. Nothing stays cached between preemption and resumption, which is the worst case of both.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kvproof import fast

LAYERS, HIDDEN, HEADS, PAGE, CHUNK, LONGEST = 4, 256, 4, 16, 256, 4096
PAGES = LONGEST // PAGE + 1
SIZES = (4, 16, 64, CHUNK)
LENGTHS = (4, 16, 64, 256, 1024, 4096)


def weights() -> list[dict[str, jax.Array]]:
    draw = np.random.default_rng(0).standard_normal
    shapes = {
        "qkv": (HIDDEN, 3 * HIDDEN),
        "out": (HIDDEN, HIDDEN),
        "up": (HIDDEN, 8 * HIDDEN),
        "down": (4 * HIDDEN, HIDDEN),
    }
    return [{name: jnp.asarray(draw(shape) / 16, jnp.float32) for name, shape in shapes.items()} for _ in range(LAYERS)]


def normed(x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)


@partial(jax.jit, donate_argnums=0)
def forward(
    cache: fast.RaggedPagesCache, layers: list[dict[str, jax.Array]], x: jax.Array, step: fast.RaggedPagesMetadata
) -> tuple[fast.RaggedPagesCache, jax.Array]:
    """A decoder-only transformer's step: attention with SwiGLU behind it."""
    views = []
    for layer, view in zip(layers, cache.views, strict=True):
        queries, keys, values = (
            part.reshape(-1, HEADS, HIDDEN // HEADS) for part in jnp.split(normed(x) @ layer["qkv"], 3, axis=1)
        )
        attended, written = view.update_and_attend(queries, keys, values, step)
        views.append(written)
        x = x + attended.reshape(-1, HIDDEN) @ layer["out"]
        gate, up = jnp.split(normed(x) @ layer["up"], 2, axis=1)
        x = x + (jax.nn.silu(gate) * up) @ layer["down"]
    return cache.replace(views=views), x


class Preempted:
    """One request on a manager, a table and a cache that have room for it alone, its prompt computed."""

    def __init__(self, length: int) -> None:
        spec = fast.FullAttentionSpec(PAGE, HEADS, HIDDEN // HEADS, "float32")
        self.manager = fast.CacheManager(PAGES, [fast.CacheGroupSpec(spec)], LONGEST, num_host_pages=PAGES)
        metadata = fast.RaggedPagesCacheMetaData(
            LAYERS,
            LONGEST,
            HEADS,
            HIDDEN // HEADS,
            HIDDEN // HEADS,
            page_size=PAGE,
            num_pages=PAGES,
            _kvdtype_str="f32",
        )
        self.cache = fast.RaggedPagesCache.init_cache(None, metadata, fast.AxisRules())
        self.builder = fast.MetadataBuilder(PAGE, 1, LONGEST // PAGE, CHUNK, token_sizes=list(SIZES))
        self.table = fast.PageTable(1, LONGEST // PAGE, CHUNK)
        self.layers = weights()
        self.inputs = np.random.default_rng(1).standard_normal((LONGEST, HIDDEN)).astype(np.float32)
        self.request = fast.Request("a", np.arange(length, dtype=np.int32))
        self.host: list[Any] = []
        self.compute()

    def compute(self) -> None:
        """Admits the request and computes its prompt, chunk by chunk."""
        length = self.request.num_tokens
        self.request.num_computed_tokens = 0
        assert self.manager.allocate_slots(self.request, length) is not None
        self.table.add_row(self.manager.get_page_ids("a")[0], 0)
        for start in range(0, length, CHUNK):
            count = min(CHUNK, length - start)
            rows = np.zeros((min(size for size in SIZES if size >= count), HIDDEN), np.float32)
            rows[:count] = self.inputs[start : start + count]
            self.cache, _ = forward(self.cache, self.layers, rows, self.builder.build(self.table, [start], [count]))
        self.cache.views[-1].kv_pages.block_until_ready()
        self.request.num_computed_tokens = length

    def recompute(self) -> None:
        """Frees the request, forgets it, and computes it anew."""
        self.manager.free(self.request)
        self.manager.evict_pages(range(PAGES))
        self.compute()

    def swap(self) -> None:
        """Swaps the request out, forgets it, and swaps it in."""
        plan = self.manager.swap_out(self.request)
        assert plan is not None
        block = self.cache.export_pages(
            [copy.device_page for copy in plan.copies], [copy.num_slots for copy in plan.copies]
        )
        self.host = [np.asarray(own) for own in block]
        self.manager.swap_done(plan.swap_id)
        self.manager.evict_pages(range(PAGES))
        back = self.manager.swap_in(self.request)
        assert back is not None
        assert len(back.copies) == len(plan.copies)
        self.cache = self.cache.import_pages([copy.device_page for copy in back.copies], self.host)
        self.cache.views[-1].kv_pages.block_until_ready()
        self.manager.swap_done(back.swap_id)
        self.table.add_row(self.manager.get_page_ids("a")[0], 0)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("way", ["swap", "recompute"])
def test_preempted_and_resumed(benchmark: Any, way: str, length: int) -> None:
    """SWAP-1: both leave the same keys and values behind."""
    preempted = Preempted(length)
    pages = preempted.manager.get_page_ids("a")[0]
    before = np.asarray(preempted.cache.views[-1].key_pages)[pages].reshape(-1, HIDDEN)[:length]
    benchmark.pedantic(getattr(preempted, way), rounds=10, warmup_rounds=2)
    pages = preempted.manager.get_page_ids("a")[0]
    after = np.asarray(preempted.cache.views[-1].key_pages)[pages].reshape(-1, HIDDEN)[:length]
    assert (before == after).all()
