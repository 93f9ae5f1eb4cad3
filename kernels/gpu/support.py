"""Which attention calls the GPU kernels take. The others are left to XLA, with a reason that can be read.

All page sizes are taken, with all heads up to 192, and those of float8 and int8 caches up to 256. Where every slot and
head has a scale (ScaledPages), pages of 16, 32, 48 and of multiples of 64 slots are, and others where KV heads are even
or more: a copy (`tiles.cut`) brings 128 bytes of scales, or a multiple.

| not taken | why |
|---|---|
| layout seq_on_lane | a slot is a column of its page: the kernels copy and multiply rows |
| ScaledPages: slots of a copy times KV heads no multiple of 16; odd KV heads above 63 | scales are copied, too |
| ScaledPages, float16 queries: heads above 208 | keys become float16 and values bfloat16: no room for both |
| float32 queries | the tensor cores have 10 bits for them, and 16 times as slow ones for all (ATT-6) |
| caches in another 16-bit dtype than the queries, float32, integers but int8 | a conversion would lose bits |
| head sizes that are no multiple of 16, or above 256 | rows of shared memory, and one product, hold no others |
| groups of more than 64 query heads | one tile of rows has no room for them |
| 16-bit heads above 192, unless pages are whole eights of slots (fours will do for 208) | two stages have no room |
| more than 65,535 sequences and further parts of them, or query blocks | the grid ends there |
| MLA: caches in another dtype than the queries | latents are multiplied as they are copied |
| MLA: latents that are no multiple of 128, or above 512 | two consumers mix half of the columns each |
| MLA: rotary parts that are no multiple of 16 | as for head sizes |
| MLA: pages that are not copied in whole eights of slots | nothing is converted, which would put them in place |

GPUs before and after Hopper are XLA's, too. cuDNN's paged attention, as JAX 0.10.2 offers it
(`jax._src.cudnn.fused_attention_stablehlo.paged_attention`), can't serve them: it wants exactly as many pages as the
table has entries, keys and values in an array each (a copy of the whole cache in every layer, as ours lie side by
side), and queries padded to one length; it has no soft cap; and it raises where no cuDNN runs, so that nothing can be
compiled ahead of time.

Blackwell (compute capability 10) has no `wgmma`: compiled for it, these kernels end at "'nvvm.wgmma.fence.aligned' op
is not supported on sm_100a". Its `tcgen05` keeps sums in a memory of the tensor cores, of 128 lanes: a softmax reads
its scores from there and gives its weights back, so that `products` and the registers' layouts in `walk` would be
replaced around the same schedule and copies. That was not begun: there was no such card to test it on.
"""

from typing import Any

import jax
import jax.numpy as jnp

from ..layout import COLUMNS
from ..options import AttentionOptions, MlaOptions
from ..storage import ScaledPages, page_values
from .geometry import ROWS, Geometry, LatentGeometry, swizzle_of
from .schedule import most_blocks, most_extras

__all__ = ["unsupported", "unsupported_latents"]

_GRID = 65_535
"""The most blocks along the slower axes of a grid."""

_MULTIPLIED = (jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float16))

_BYTES = (jnp.dtype(jnp.float8_e4m3fn), jnp.dtype(jnp.float8_e5m2), jnp.dtype(jnp.int8))
"""What is converted without loss on its way to the tensor cores."""

_WIDEST = 256


def unsupported(
    options: AttentionOptions,
    queries: jax.Array,  # [T, Hq, D]
    kv_pages: Any,
    page_table: jax.Array,  # i32[S, pages_per_seq]
) -> str | None:
    """Why a call can't be made by `attend` of `gpu.attention`, or None when it can. O(1).

    Args:
        options: the options.
        queries: `[T, Hq, D]`: anything with a shape and a dtype, as all arrays here.
        kv_pages: `[P, page, ...]`, of the dtype of the numbers, or ScaledPages.
        page_table: `i32[S, pages_per_seq]`.
    """
    if options.layout.slots_last:
        return COLUMNS
    layout, dtype, stored = options.layout, jnp.dtype(queries.dtype), jnp.dtype(options.kv_dtype)
    if dtype not in _MULTIPLIED:
        return f"queries of {dtype}: the tensor cores would round them"
    if stored != dtype and stored not in _BYTES:
        return f"a cache of {stored} for queries of {dtype}"
    for dim in (layout.head_dim, layout.v_head_dim):
        if dim > _WIDEST or not swizzle_of(dim, dtype.itemsize):
            return f"heads of {dim} numbers: multiples of 16 up to {_WIDEST} are taken"
    group = queries.shape[1] // layout.num_kv_heads
    if group > ROWS:
        return f"{group} query heads for each KV head: more than {ROWS}"
    scaled, page_size = isinstance(kv_pages, ScaledPages), page_values(kv_pages).shape[1]
    for splits_keys in (True, False):
        shapes = Geometry(layout, group, dtype, stored, page_size, splits_keys, scaled)
        if scaled and shapes.scale_rows is None:
            return f"the scales of {shapes.tiles.rows} slots and {layout.num_kv_heads} heads are no whole 128 bytes"
        if shapes.stages < 2:
            return f"a tile of keys and values takes {shapes.stage_bytes} bytes: two and the rest have no room"
    num_rows, queries_each = page_table.shape[0], Geometry(layout, group, dtype, stored, 1, False).block_queries
    parts = num_rows + most_extras(num_rows, layout.num_kv_heads, page_size * page_table.shape[1])
    if max(parts, most_blocks(queries.shape[0], num_rows, queries_each)) > _GRID:
        return f"{queries.shape[0]} tokens of {num_rows} sequences: more blocks than a grid has"
    return None


def unsupported_latents(
    options: MlaOptions,
    queries: jax.Array,  # [T, Hq, R]
    latent_pages: jax.Array,  # [P, page, width]
    page_table: jax.Array,  # i32[S, pages_per_seq]
) -> str | None:
    """Why a call can't be made by `attend` of `gpu.latents`, or None when it can. O(1).

    Args:
        options: the options.
        queries: `[T, Hq, R]`: anything with a shape and a dtype, as all arrays here.
        latent_pages: `[P, page, width]`, of the dtype of the numbers.
        page_table: `i32[S, pages_per_seq]`.
    """
    dtype, stored = jnp.dtype(queries.dtype), jnp.dtype(options.kv_dtype)
    if dtype not in _MULTIPLIED:
        return f"queries of {dtype}: the tensor cores would round them"
    if stored != dtype:
        return f"a cache of {stored} for queries of {dtype}"
    if options.latent_dim % 128 or options.latent_dim > 2 * _WIDEST:
        return f"latents of {options.latent_dim} numbers: multiples of 128 up to {2 * _WIDEST} are taken"
    if not swizzle_of(options.rotary_dim, dtype.itemsize):
        return f"rotary parts of {options.rotary_dim} numbers: multiples of 16 are taken"
    num_rows, pages_per_seq = page_table.shape
    page_size = latent_pages.shape[1]
    shapes = LatentGeometry(queries.shape[1], options.latent_dim, options.rotary_dim, dtype, page_size)
    if shapes.tiles.rows % 8:
        return f"pages of {page_size} slots: copies of {shapes.tiles.rows}, which are no whole eights"
    if shapes.stages < 2:
        return f"a tile of latents takes {shapes.stage_bytes} bytes: two and the rest have no room"
    num_tokens, parts = queries.shape[0], num_rows + most_extras(num_rows, shapes.heads, page_size * pages_per_seq)
    if max(parts, most_blocks(num_tokens, num_rows, shapes.block_queries)) > _GRID:
        return f"{num_tokens} tokens of {num_rows} sequences: more blocks than a grid has"
    return None
