"""Our kernels whose schedules `cycle_report` counts, compiled here, and those of others (`cycle_peers`).

Each is compiled in a process of its own:

    python -m tests.bench.cycle_kernels decode v6e 16

prints, as the last line, what the report has to know of a turn of the kernel's loop over blocks of keys (a `Turn`), or
the reason why the kernel can't be counted here.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from kvproof.kernels.layout import CacheLayout
from kvproof.kernels.options import AttentionOptions
from kvproof.kernels.storage import ScaledPages
from kvproof.kernels.tpu import decode, decode_plan, mla, prefill, prefill_geometry

from ..kernels import aot
from .cycle_peers import PEERS
from .cycle_turn import (
    DTYPE,
    HEAD_DIM,
    I32,
    LATENT_DIM,
    MLA_DIMS,
    MLA_HEADS,
    NUM_KV_HEADS,
    NUM_PAGES,
    NUM_Q_HEADS,
    NUM_SEQS,
    PREFILL_TOKENS,
    ROTARY_DIM,
    NotCounted,
    Turn,
    lengths,
)

__all__ = ["KERNELS", "OURS"]

GROUP = NUM_Q_HEADS // NUM_KV_HEADS
KEY_BYTES = 2 * NUM_KV_HEADS * HEAD_DIM * 2


def _options(
    kv_dtype: Any = DTYPE, version: str = "v3", heads: int = NUM_KV_HEADS, head_dim: int = HEAD_DIM, **masks: Any
) -> AttentionOptions:
    packing = 4 // jnp.dtype(kv_dtype).itemsize if version == "v3" else 1
    layout = CacheLayout(version, heads, head_dim, head_dim, packing)
    return AttentionOptions(layout, jnp.dtype(kv_dtype), head_dim**-0.5, **masks)


def _pages(page: int, options: AttentionOptions) -> Any:
    return aot.shape((NUM_PAGES, page, *options.layout.row_shape), options.kv_dtype)


def compile_decode(
    device: str, page: int, kv_dtype: Any = DTYPE, scaled: bool = False, num_queries: int = 1, **options_: Any
) -> Turn:
    """Our decode kernel; with several queries a sequence, its form for drafts."""
    options = _options(kv_dtype, **options_)
    layout = options.layout
    pages = _pages(page, options)
    if scaled:
        scales: Any = aot.shape((NUM_PAGES, page, 2 * NUM_KV_HEADS), jnp.float32)
        pages = ScaledPages(pages, scales)
    kv_lens, table, _, count = lengths(NUM_SEQS, page)
    queries: Any = aot.shape((NUM_SEQS, num_queries, GROUP * layout.num_kv_heads, layout.head_dim), DTYPE)
    q_lens = [aot.shape((NUM_SEQS,), I32)] if num_queries > 1 else []
    plans = []

    def call(q: jax.Array, kv_pages: Any, lens: Any, table: Any, count: Any, *of_queries: Any) -> jax.Array:
        plans.append(decode_plan.plan(queries, pages, table, options, False, False))
        run: Callable[..., jax.Array] = decode.decode
        return run(q, kv_pages, lens, table, count, None, *of_queries, options=options)

    aot.compile_for(device, call, queries, pages, kv_lens, table, count, *q_lens)
    plan = plans[0]
    sizes = tuple(plan.blocks.buffers * tokens for tokens in (*plan.blocks.short, plan.tokens))
    numbers = layout.combined_rows * layout.storage_head_dim
    key_bytes = numbers * plan.kv_dtype.itemsize + (4 * layout.combined_rows if scaled else 0)
    name = "paged_decode" if num_queries == 1 else "paged_decode_drafts"
    rows, dims = queries.shape[1] * queries.shape[2], (layout.head_dim, layout.head_dim)
    return Turn(name, sizes[-1], 1, key_bytes, plan.pages_per_block, (), sizes, plan.blocks.buffers, rows, dims)


def compile_prefill(device: str, page: int) -> Turn:
    """Our general kernel, over the v3 cache."""
    options = _options()
    pages = _pages(page, options)
    kv_lens, table, starts, count = lengths(NUM_SEQS, page)
    queries: Any = aot.shape((PREFILL_TOKENS, NUM_Q_HEADS, HEAD_DIM), DTYPE)
    geometry = prefill_geometry.plan(queries, pages, table, options)
    turns_of_heads = [
        geometry.steps // geometry.unrolled_steps(rows) for rows in sorted({geometry.small_rows, geometry.rows})
    ]

    def call(*args: jax.Array) -> jax.Array:
        batch, skipped = args[:-1], args[-1]
        run: Callable[..., jax.Array] = prefill.prefill
        return run(*batch, None, skipped, options=options)

    aot.compile_for(device, call, queries, pages, kv_lens, table, starts, count, aot.shape((), I32))
    return Turn(
        "ragged_attention",
        geometry.block_keys,
        geometry.blocks.queries,
        KEY_BYTES,
        geometry.blocks.pages,
        tuple(turns for turns in turns_of_heads for _masked in (True, False) if turns > 1),
    )


def compile_mla(device: str, page: int) -> Turn:
    """Our MLA kernel, decoding."""
    width = -(-LATENT_DIM // 128) * 128 + -(-ROTARY_DIM // 128) * 128
    options = AttentionOptions(CacheLayout("v2", 1, width, LATENT_DIM, 1), jnp.dtype(DTYPE), 0.1)
    shapes: list[Any] = [
        aot.shape((NUM_SEQS, MLA_HEADS, LATENT_DIM), DTYPE),
        aot.shape((NUM_SEQS, MLA_HEADS, ROTARY_DIM), DTYPE),
        aot.shape((NUM_PAGES, page, width), DTYPE),
    ]
    aot.compile_for(device, partial(mla.attend, options=options), *shapes, *lengths(NUM_SEQS, page))
    blocks = mla.decode_blocks(shapes[0], shapes[2], lengths(NUM_SEQS, page)[1], mla.BLOCK)
    return Turn("mla_decode", blocks.keys, 1, 2 * width, blocks.pages, (), blocks.sizes, 1, MLA_HEADS, MLA_DIMS)


OURS: dict[str, Callable[[str, int], Turn]] = {
    "decode": compile_decode,
    "decode-e4m3": partial(compile_decode, kv_dtype=jnp.float8_e4m3fn),
    "decode-e5m2": partial(compile_decode, kv_dtype=jnp.float8_e5m2),
    "decode-int8": partial(compile_decode, kv_dtype=jnp.int8),
    "decode-scaled-e4m3": partial(compile_decode, kv_dtype=jnp.float8_e4m3fn, scaled=True),
    "decode-scaled-int8": partial(compile_decode, kv_dtype=jnp.int8, scaled=True),
    "decode-v2": partial(compile_decode, version="v2"),
    "decode-v2-e4m3": partial(compile_decode, version="v2", kv_dtype=jnp.float8_e4m3fn),
    "decode-window-cap": partial(compile_decode, window=1024, soft_cap=30.0),
    "decode-64": partial(compile_decode, head_dim=64),
    "decode-256": partial(compile_decode, head_dim=256),
    "decode-32-heads": partial(compile_decode, heads=32),
    "decode-drafts": partial(compile_decode, num_queries=8),
    "prefill": compile_prefill,
    "mla-decode": compile_mla,
}
"""What compiles each of our kernels, for a device and a page size."""

KERNELS = OURS | PEERS
"""The same of all kernels."""


if __name__ == "__main__":
    name, device, page = sys.argv[1:]
    try:
        print(json.dumps(asdict(KERNELS[name](device, int(page)))))
    except NotCounted as reason:
        print(json.dumps({"not_counted": str(reason)}))
