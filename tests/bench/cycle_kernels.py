"""The kernels whose schedules `cycle_report` counts: compiled here, in a process of its own for each.

    python -m tests.bench.cycle_kernels decode v6e 16

prints, as the last line, what the report has to know of a turn of the kernel's loop over blocks of keys.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ragged_paged_attention, tuned_block_sizes

from kvproof.kernels.layout import CacheLayout
from kvproof.kernels.options import AttentionOptions
from kvproof.kernels.storage import ScaledPages
from kvproof.kernels.tpu import decode, decode_plan, mla, prefill, prefill_geometry

from ..kernels import aot

__all__ = ["KERNELS", "Turn"]

# Llama-3-8B: the shapes of the figures that are published.
NUM_Q_HEADS, NUM_KV_HEADS, HEAD_DIM = 32, 8, 128
GROUP = NUM_Q_HEADS // NUM_KV_HEADS
# So many pages that no compiler thinks of keeping the cache in VMEM.
NUM_SEQS, CONTEXT, NUM_PAGES = 8, 4096, 20_000
PREFILL_TOKENS = 2048
# DeepSeek-V3.
MLA_HEADS, LATENT_DIM, ROTARY_DIM = 128, 512, 64

DTYPE = jnp.bfloat16
I32 = jnp.int32


@dataclass(frozen=True)
class Turn:
    """One turn of a kernel's loop over blocks of keys.

    Attributes:
        kernel: the name that the schedule has in the dumps.
        keys: keys that it works on.
        queries: query tokens that it works on, of a full block.
        key_bytes: bytes of HBM for each key.
        pages: turns of the loop that starts the copies of a block's pages, where there is one.
        heads: turns of each loop over heads, in the order of the code: of what turns once there is no loop.
        sizes: keys that a turn works on where all its blocks are of one size, for each of several sizes, rising.
        blocks: blocks of a turn, each of one sequence; None: a turn is of one.
    """

    kernel: str
    keys: int
    queries: int
    key_bytes: int
    pages: int
    heads: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    blocks: int | None = None


def _lengths(num_seqs: int, page: int) -> tuple[Any, Any, Any, Any]:
    """kv_lens, page_table, cu_q_lens, num_seqs."""
    shapes = ((num_seqs,), (num_seqs, CONTEXT // page), (num_seqs + 1,), (1,))
    kv_lens, table, starts, count = (aot.shape(shape, I32) for shape in shapes)
    return kv_lens, table, starts, count


def _options(
    kv_dtype: Any = DTYPE, version: str = "v3", heads: int = NUM_KV_HEADS, head_dim: int = HEAD_DIM, **masks: Any
) -> AttentionOptions:
    packing = 4 // jnp.dtype(kv_dtype).itemsize if version == "v3" else 1
    layout = CacheLayout(version, heads, head_dim, head_dim, packing)
    return AttentionOptions(layout, jnp.dtype(kv_dtype), head_dim**-0.5, **masks)


def _pages(page: int, options: AttentionOptions) -> Any:
    return aot.shape((NUM_PAGES, page, *options.layout.row_shape), options.kv_dtype)


KEY_BYTES = 2 * NUM_KV_HEADS * HEAD_DIM * 2


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
    kv_lens, table, _, count = _lengths(NUM_SEQS, page)
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
    return Turn(name, sizes[-1], 1, key_bytes, plan.pages_per_block, (), sizes, plan.blocks.buffers)


def compile_prefill(device: str, page: int) -> Turn:
    """Our general kernel, over the v3 cache."""
    options = _options()
    pages = _pages(page, options)
    kv_lens, table, starts, count = _lengths(NUM_SEQS, page)
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
    aot.compile_for(device, partial(mla.attend, options=options), *shapes, *_lengths(NUM_SEQS, page))
    blocks = mla.fitting_blocks(shapes[0], shapes[2], _lengths(NUM_SEQS, page)[1], mla.BLOCK)
    return Turn("mla_decode", blocks.keys, 1, 2 * width, blocks.pages, (), blocks.sizes, 1)


def compile_jax(device: str, page: int, num_tokens: int) -> Turn:
    """The kernel that jax ships, over its (v2) cache, with the block sizes that it was tuned to.

    It looks its block sizes up by the device that runs: here by the one that is compiled for.
    """
    kind = aot.device(device).device_kind
    version = {"v5e": 5, "v5p": 5, "v6e": 6, "7x": 7}[device]
    queries = aot.shape((num_tokens, NUM_Q_HEADS, HEAD_DIM), DTYPE)
    pages = aot.shape((NUM_PAGES, page, 2 * NUM_KV_HEADS, HEAD_DIM), DTYPE)
    with (
        patch.object(tuned_block_sizes, "get_tpu_version", lambda: version),
        patch.object(tuned_block_sizes, "get_device_name", lambda: " ".join(kind.split()[:2])),
    ):
        block_pages, block_queries = tuned_block_sizes.get_tuned_block_sizes(
            DTYPE, DTYPE, NUM_Q_HEADS, NUM_KV_HEADS, HEAD_DIM, page, num_tokens, CONTEXT // page
        )
        # As much VMEM as its block sizes were tuned with.
        call = partial(ragged_paged_attention, sm_scale=HEAD_DIM**-0.5, vmem_limit_bytes=60 * 2**20)
        aot.compile_for(device, call, queries, pages, *_lengths(NUM_SEQS, page))
    return Turn("ragged_paged_attention_kernel", block_pages * page, block_queries, KEY_BYTES, block_pages)


def compile_rpa_v3(device: str, page: int) -> Turn:
    """The kernel of tpu-inference, decoding, over its cache, which is laid out as our v3, with its default blocks.

    Only its own modules are imported, as the package imports vLLM: ``pip install --no-deps tpu-inference`` will do. A
    block is one of a sequence, however short that is; what is short in a loop of its own is done without trips.

    Raises:
        RuntimeError: it is not installed.
    """
    found = find_spec("tpu_inference")
    if found is None or found.submodule_search_locations is None:
        raise RuntimeError("tpu-inference is not installed")
    package = ModuleType("tpu_inference")
    package.__path__ = list(found.submodule_search_locations)
    with patch.dict(sys.modules, {"tpu_inference": package}):
        rpa: Any = import_module("tpu_inference.kernels.ragged_paged_attention.v3.kernel")
    queries, new = (
        aot.shape((NUM_SEQS, NUM_Q_HEADS, HEAD_DIM), DTYPE),
        aot.shape((NUM_SEQS, NUM_KV_HEADS, HEAD_DIM), DTYPE),
    )
    pages = _pages(page, _options())
    counts = ((NUM_SEQS,), (NUM_SEQS * CONTEXT // page,), (NUM_SEQS + 1,), (3,))
    version = {"v5e": 5, "v5p": 5, "v6e": 6, "7x": 7}[device]
    shapes = (DTYPE, DTYPE, NUM_Q_HEADS, NUM_KV_HEADS, HEAD_DIM, page, NUM_SEQS, NUM_SEQS, CONTEXT // page)
    with patch.object(rpa, "get_tpu_version", lambda: version):
        blocks = rpa.get_default_block_sizes(*shapes, case=rpa.RpaCase.DECODE)
        call = partial(rpa.ragged_paged_attention, sm_scale=HEAD_DIM**-0.5)
        aot.compile_for(device, call, queries, new, new, pages, *(aot.shape(shape, I32) for shape in counts))
    keys = blocks["bkv_sz"]
    name = f"RPAd-p_{page}-bq_{blocks['bq_sz']}_{blocks['bq_csz']}-bkv_{keys}_{blocks['bkv_csz']}"
    return Turn(name, keys, 1, KEY_BYTES, 1, (keys // blocks["bkv_csz"],), blocks=1)


KERNELS: dict[str, Callable[[str, int], Turn]] = {
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
    "decode-jax": partial(compile_jax, num_tokens=NUM_SEQS),
    "decode-rpa-v3": compile_rpa_v3,
    "prefill": compile_prefill,
    "prefill-jax": partial(compile_jax, num_tokens=PREFILL_TOKENS),
    "mla-decode": compile_mla,
}
"""What compiles each kernel, for a device and a page size."""


if __name__ == "__main__":
    name, device, page = sys.argv[1:]
    print(json.dumps(asdict(KERNELS[name](device, int(page)))))
