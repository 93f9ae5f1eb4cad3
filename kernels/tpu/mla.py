"""Attention over a latent cache (MLA): one KV head for all query heads, values a part of the keys.

A page is ``[page, W]``: for each token its latent, then its rotary key, both padded to 128 columns. A key is the whole
row, its value the latent part, so that a block of the cache is copied once and serves both products.

Work is a list of items: (sequence, block of its query tokens, block of its keys). A block of queries is all heads of
a few tokens, `ROWS` rows of one matrix. In its turn an item's scores are computed and kept; the item before has its
softmax and its values added, as the one needs the matrix unit while the other waits for the vector unit; and the copies
of the item `AHEAD` ahead are started. Turns go on over sequence boundaries, so that short contexts stream like long
ones. Sequences of one query token at the front are a call of their own with one token a block: decoding computes no
dead rows.

Pages that no query of the block reads are not copied; rows of the first and the last page that none reads are zeroed
where they lie, so that NaN in them, or in memory that was never written, meets no number. Where the table names a page
that doesn't exist the first page is copied, so that the bytes to wait for are the same, zeroed, and masked.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import lcm
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ..dispatch import kernel_output
from ..layout import round_up
from ..masks import first_key
from ..options import AnyOptions
from ..ragged import clean_table, misses_pages
from .mla_kernel import LANES, kernel
from .mla_work import BUFFERS, FIELDS, ITEMS, Blocks, Refs
from .scalar_memory import too_many_scalars

__all__ = ["attend", "unsupported"]

Interpret = bool | pltpu.InterpretParams

BLOCK = 2048
"""Keys of a block where sequences decode and pages and tables allow: 2.5 MiB of a cache with 640 bfloat16 numbers a
token. On v6e a block takes 2,627 bundles with pages of 16, 2,139 with pages of 64, and 150 more for the first and the
last of a sequence; a sequence of at most 256 tokens takes 738 and 715. Blocks of 1,024 keys took a seventh more."""

_shape: Callable[..., Any] = jax.ShapeDtypeStruct

ROWS = 512
"""Rows of a block of queries when a sequence has many: what one copy of a block of keys is used for."""

VMEM_BYTES = 48 * 2**20
"""What the compiler may use; v5p and 7x have 64 MiB."""

SPILLED_BYTES = 18 * 2**20
"""What of it is left to the compiler: products of float32 take several copies of their operands."""


def unsupported(queries: jax.Array, latent_pages: jax.Array, page_table: jax.Array) -> str | None:
    """Why the kernel can't do this call, or None when it can. O(1).

    Args:
        queries: `[T, Hq, R]`.
        latent_pages: `[P, page, W]`.
        page_table: `i32[S, pages_per_seq]`.
    """
    page = latent_pages.shape[1]
    tile = 32 // latent_pages.dtype.itemsize
    types = (queries.dtype, latent_pages.dtype)
    if any(dtype not in (jnp.float32, jnp.bfloat16, jnp.float8_e4m3fn, jnp.float8_e5m2) for dtype in types):
        return f"{queries.dtype=} {latent_pages.dtype=}: float32, bfloat16 and float8 only"
    if queries.dtype not in (jnp.float32, jnp.bfloat16):
        return f"{queries.dtype=}: float32 and bfloat16 only"
    if page % tile:
        return f"page_size={page} must be a multiple of {tile} for {latent_pages.dtype}: pages are whole tiles"
    if lcm(page, LANES) > BLOCK:
        return f"page_size={page}: a block would have {lcm(page, LANES)} keys"
    num_seqs, pages_per_seq = page_table.shape
    decoding, mixed = (cut(queries, latent_pages, page_table, BLOCK) for cut in (decode_blocks, mixed_blocks))
    lengths, table = _shape((num_seqs + 1,), jnp.int32), _shape((num_seqs * pages_per_seq + decoding.pages,), jnp.int32)
    needed = vmem_bytes(mixed, queries, latent_pages)  # decoding needs no more
    if needed > VMEM_BYTES - SPILLED_BYTES:
        return f"the blocks take {needed} bytes of VMEM, more than {VMEM_BYTES - SPILLED_BYTES}"
    return too_many_scalars(lengths, lengths, table)


def attend(
    queries: jax.Array,  # [T, Hq, R]
    rotary_queries: jax.Array,  # [T, Hq, Dr]
    latent_pages: jax.Array,  # [P, page, W]
    kv_lens: jax.Array,  # i32[S]
    page_table: jax.Array,  # i32[S, pages_per_seq]
    cu_q_lens: jax.Array,  # i32[S + 1]
    num_seqs: jax.Array,  # i32[1]
    *,
    options: AnyOptions,
    block: int = BLOCK,
    interpret: Interpret = False,
) -> jax.Array:
    """MLA attention of a ragged batch, decoding and prefill.

    Args:
        queries: `[T, Hq, R]`, absorbed: their products with latents are scores.
        rotary_queries: `[T, Hq, Dr]`, of the same dtype.
        latent_pages: `[P, page, align(R, 128) + align(Dr, 128)]`, the padding zero in slots that are read.
        kv_lens: `i32[S]`.
        page_table: `i32[S, pages_per_seq]`. Keys on pages that don't exist are not read.
        cu_q_lens: `i32[S + 1]`.
        num_seqs: `i32[1]`.
        options: mask, score scale and cap; the layout in it isn't looked at.
        block: keys of a block where sequences decode, about; others have half as many.
        interpret: what `pallas_call` takes.

    Returns:
        `[T, Hq, R]`, the dtype of the queries; zeros in rows of no sequence, and in rows with nothing to read.
    """
    num_tokens, num_heads, latent_dim = queries.shape
    decoding, mixed = (
        replace(cut(queries, latent_pages, page_table, block), emulated=bool(interpret))
        for cut in (decode_blocks, mixed_blocks)
    )
    latent, heads = mixed.latent, mixed.heads
    width = latent_pages.shape[2]
    if 0 in (num_tokens, page_table.size):
        return jnp.zeros_like(queries)
    query_rows = jnp.concatenate(
        [
            jnp.pad(queries, ((0, 0), (0, heads - num_heads), (0, latent - latent_dim))),
            jnp.pad(rotary_queries, ((0, 0), (0, heads - num_heads), (0, width - latent - rotary_queries.shape[2]))),
        ],
        axis=2,
    )
    seqs = jnp.clip(num_seqs[0], 0, kv_lens.shape[0])
    single = leading_single(cu_q_lens, seqs)
    table = clean_table(page_table, latent_pages.shape[0])
    q_lens = cu_q_lens[1:] - cu_q_lens[:-1]
    missing = misses_pages(table, first_key(kv_lens - q_lens, options), kv_lens, mixed.page)
    holes = jnp.any(missing & (jnp.arange(missing.shape[0], dtype=jnp.int32) < seqs)).astype(jnp.int32)
    entries = jnp.pad(table.reshape(-1), (0, decoding.pages))  # the last row's last block may be read beyond its end
    shared = (kv_lens, cu_q_lens, entries, query_rows, latent_pages)
    call = partial(_call, options=options, interpret=interpret)
    out = jnp.zeros((num_tokens, heads, latent), queries.dtype)
    out = call(jnp.stack([jnp.zeros_like(single), single, holes]), *shared, out, blocks=decoding)
    others = partial(call, jnp.stack([single, seqs, holes]), *shared, out, blocks=mixed)
    attended: jax.Array = jax.lax.cond(single < seqs, others, lambda: out)
    return attended[:, :num_heads, :latent_dim]


def decode_blocks(queries: jax.Array, latent_pages: jax.Array, page_table: jax.Array, block: int) -> Blocks:
    """How sequences of one query token are cut. O(1).

    Args:
        queries: `[T, Hq, R]`.
        latent_pages: `[P, page, W]`.
        page_table: `i32[S, pages_per_seq]`.
        block: keys of a block, about.
    """
    return fitting_blocks(1, queries, latent_pages, page_table, block)


def mixed_blocks(queries: jax.Array, latent_pages: jax.Array, page_table: jax.Array, block: int) -> Blocks:
    """How sequences of any number of query tokens are cut, into blocks of half as many keys; see `decode_blocks`."""
    return fitting_blocks(ROWS // padded_heads(queries), queries, latent_pages, page_table, block // 2)


def fitting_blocks(
    tokens: int, queries: jax.Array, latent_pages: jax.Array, page_table: jax.Array, block: int
) -> Blocks:
    """Blocks of some query tokens and about ``block`` keys, halved until they fit into VMEM or can't be smaller."""
    num_tokens, _, latent_dim = queries.shape
    page, pages_per_seq = latent_pages.shape[1], page_table.shape[1]
    tokens, latent = max(min(tokens, num_tokens), 1), round_up(latent_dim, LANES)
    tile = 32 if latent_pages.dtype.itemsize == 1 else 8
    while True:
        pages = pages_per_block(page, pages_per_seq, block)
        blocks = Blocks(tokens, pages, page, padded_heads(queries), latent, pages_per_seq, tile)
        if block <= LANES or vmem_bytes(blocks, queries, latent_pages) <= VMEM_BYTES - SPILLED_BYTES:
            return blocks
        block //= 2


def padded_heads(queries: jax.Array) -> int:
    """Query heads, padded to whole tiles."""
    return round_up(queries.shape[1], 32 // queries.dtype.itemsize)


def vmem_bytes(blocks: Blocks, queries: jax.Array, latent_pages: jax.Array) -> int:
    """What a call needs: its buffers, its sums, and a block of scores, kept and as products, powers, weights. O(1)."""
    width = latent_pages.shape[2]
    keys = BUFFERS * blocks.keys * width * latent_pages.dtype.itemsize
    row = (BUFFERS * width + 2 * blocks.latent) * queries.dtype.itemsize + 4 * (3 * LANES + 2 * blocks.latent)
    return keys + blocks.rows * (row + 4 * 4 * blocks.keys)


def pages_per_block(page: int, pages_per_seq: int, block: int) -> int:
    """Pages of a block of about ``block`` keys: a multiple of 128 keys, no more than the table needs."""
    smallest = lcm(page, LANES) // page
    return min(max(block // (smallest * page), 1) * smallest, round_up(pages_per_seq, smallest))


def leading_single(cu_q_lens: jax.Array, num_seqs: jax.Array) -> jax.Array:
    """How many sequences at the front have one query token, `i32[]`."""
    lens = cu_q_lens[1:] - cu_q_lens[:-1]
    single = jnp.logical_and(lens == 1, jnp.arange(lens.shape[0], dtype=jnp.int32) < num_seqs)
    return jnp.sum(jnp.cumprod(single.astype(jnp.int32)), dtype=jnp.int32)


def _call(
    span: jax.Array,
    kv_lens: jax.Array,
    cu_q_lens: jax.Array,
    page_table: jax.Array,
    queries: jax.Array,
    pages: jax.Array,
    out: jax.Array,
    *,
    blocks: Blocks,
    options: AnyOptions,
    interpret: Interpret,
) -> jax.Array:
    num_pages, page, width = pages.shape
    tiles = pages.reshape(num_pages, page // blocks.tile, blocks.tile, width)
    by_head = (blocks.tokens, blocks.heads)
    hbm = pl.BlockSpec(memory_space=pltpu.HBM)
    call: Callable[..., jax.Array] = pl.pallas_call(
        lambda *refs: kernel(Refs(*refs), blocks, options),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=4,
            grid=(1,),
            in_specs=[hbm] * 3,
            out_specs=hbm,
            scratch_shapes=[
                pltpu.VMEM((BUFFERS, blocks.keys // blocks.tile, blocks.tile, width), pages.dtype),
                pltpu.VMEM((BUFFERS, *by_head, width), queries.dtype),
                pltpu.VMEM((2, *by_head, blocks.latent), out.dtype),
                pltpu.VMEM((blocks.rows, LANES), jnp.float32),
                pltpu.VMEM((blocks.rows, LANES), jnp.float32),
                pltpu.VMEM((blocks.rows, blocks.latent), jnp.float32),
                pltpu.VMEM((blocks.rows, blocks.keys), jnp.float32),
                pltpu.VMEM((blocks.rows, LANES), jnp.float32),
                pltpu.VMEM((1, blocks.keys), jnp.int32),
                pltpu.SMEM((ITEMS * FIELDS,), jnp.int32),
                pltpu.SMEM((2,), jnp.int32),
                pltpu.SemaphoreType.DMA((BUFFERS,)),
                pltpu.SemaphoreType.DMA((BUFFERS,)),
                pltpu.SemaphoreType.DMA((2,)),
            ],
        ),
        out_shape=kernel_output(out.shape, out.dtype),
        input_output_aliases={6: 0},
        compiler_params=pltpu.CompilerParams(disable_bounds_checks=True, vmem_limit_bytes=VMEM_BYTES),
        name="mla_decode" if blocks.tokens == 1 else "mla_attention",
        interpret=interpret,
    )
    return call(span, kv_lens, cu_q_lens, page_table, queries, tiles, out)
