"""What kernels on CPU are measured against: paged attention that gathers everything, as one would write it first."""

import jax
import jax.numpy as jnp

__all__ = ["gather_attention"]


@jax.jit
def gather_attention(
    queries: jax.Array,  # f32[S, Hq, D]
    kv_pages: jax.Array,  # f32[P, page, groups, packing, D]
    kv_lens: jax.Array,  # i32[S]
    page_table: jax.Array,  # i32[S, pages_per_seq]
) -> jax.Array:
    """Decodes one token of each sequence: gathers all pages of the table, then a dense masked softmax, batched.

    Args:
        queries: `f32[S, Hq, D]`.
        kv_pages: `f32[P, page, groups, packing, D]`, without padding.
        kv_lens: `i32[S]`.
        page_table: `i32[S, pages_per_seq]`, ids in bounds everywhere.

    Returns:
        `f32[S, Hq, D]`.
    """
    rows, q_heads, dim = queries.shape
    slots = kv_pages[page_table].reshape(rows, page_table.shape[1] * kv_pages.shape[1], -1, 2, dim)
    keys, values = slots[:, :, :, 0], slots[:, :, :, 1]
    grouped = queries.reshape(rows, keys.shape[2], -1, dim)
    scores = jnp.einsum("shgd,skhd->shgk", grouped, keys, precision="highest") * dim**-0.5
    live = jnp.arange(slots.shape[1])[None] < kv_lens[:, None]
    weights = jax.nn.softmax(jnp.where(live[:, None, None], scores, -jnp.inf), axis=-1)
    return jnp.einsum("shgk,skhd->shgd", weights, values, precision="highest").reshape(rows, q_heads, dim)
