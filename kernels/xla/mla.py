"""MLA in plain JAX: attention over latents, which are keys and values at once."""

import jax
import jax.numpy as jnp

from ..options import MlaOptions
from ..ragged import ragged
from ..storage import from_bits
from .flash import Cache, attend_ragged

__all__ = ["attend"]


def attend(
    queries: jax.Array,  # [T, Hq, R]
    rotary_queries: jax.Array,  # [T, Hq, Dr]
    latent_pages: jax.Array,  # [P, page, width]
    kv_lens: jax.Array,  # i32[S]
    page_table: jax.Array,  # i32[S, pages_per_seq]
    cu_q_lens: jax.Array,  # i32[S + 1]
    num_seqs: jax.Array,  # i32[1]
    *,
    options: MlaOptions,
) -> jax.Array:
    """Attention of a ragged batch over a cache of latents (ATT-1 to ATT-6). O(keys read * Hq * (2R + Dr)).

    Args:
        queries: `[T, Hq, R]`, float32, bfloat16 or float16.
        rotary_queries: `[T, Hq, Dr]`, the same dtype.
        latent_pages: `[P, page, width]`, bits too.
        kv_lens: `i32[S]`, new tokens included.
        page_table: `i32[S, pages_per_seq]`. Keys on pages that don't exist are not read.
        cu_q_lens: `i32[S + 1]`.
        num_seqs: `i32[1]`.
        options: the rest.

    Returns:
        `[T, Hq, R]` in the queries' dtype.
    """
    tokens = queries.shape[0]
    num_pages, page_size = latent_pages.shape[:2]
    latent, rotary = (
        slice(0, options.latent_dim),
        slice(options.rotary_start, options.rotary_start + options.rotary_dim),
    )

    def read(page: jax.Array, offset: jax.Array, alive: jax.Array) -> tuple[jax.Array, jax.Array]:
        block = latent_pages.at[page, offset].get(mode="promise_in_bounds", wrap_negative_indices=False)
        block = from_bits(block, options.kv_dtype).astype(jnp.float32)
        block = jnp.where(alive[..., None], block, 0.0)[:, None]
        keys = jnp.concatenate([block[..., latent], block[..., rotary]], axis=-1)
        return keys, block[..., latent]

    batch = ragged(kv_lens, cu_q_lens, num_seqs, tokens, page_size * page_table.shape[1])
    cache = Cache(read, page_table, num_pages, page_size, options.latent_dim)
    grouped = jnp.concatenate([queries, rotary_queries], axis=-1)[:, None]
    return attend_ragged(grouped, batch, cache, None, options)[:, 0]
