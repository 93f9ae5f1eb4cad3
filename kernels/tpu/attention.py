"""Ragged paged attention on a TPU: the one entry of the kernels."""

import jax
import jax.numpy as jnp

from ..choices import taken
from ..masks import first_key
from ..options import AttentionOptions
from ..ragged import clean_table, misses_pages
from . import decode
from .prefill import Interpret, prefill
from .prefill_schedule import leading_decode_rows

__all__ = ["attend"]


def attend(
    queries: jax.Array,  # [T, Hq, D]
    kv_pages: jax.Array,  # [P, page, ...]
    kv_lens: jax.Array,  # i32[S]
    page_table: jax.Array,  # i32[S, pages_per_seq]
    cu_q_lens: jax.Array,  # i32[S + 1]
    num_seqs: jax.Array,  # i32[1]
    sinks: jax.Array | None,  # f32[Hq]
    *,
    options: AttentionOptions,
    interpret: Interpret = False,
) -> jax.Array:
    """Attention of a ragged batch (ATT-1 to 4, ATT-6).

    Sequences with one query each at the front of the batch go to the kernel made for them, if it takes the shapes, up
    to the first that reads a page that does not exist: that kernel copies whatever it is told to. All others go to the
    general one. Which they are is found out on the device.

    Args:
        queries: `[T, Hq, D]`, float32, bfloat16 or float16.
        kv_pages: `[P, page, 2H, Dp]` or `[P, page, groups, packing, Dp]`, of the dtype of the numbers.
        kv_lens: `i32[S]`: tokens of each sequence, its queries included.
        page_table: `i32[S, pages_per_seq]`. Keys on pages that don't exist are not read.
        cu_q_lens: `i32[S + 1]`: where each sequence's queries begin.
        num_seqs: `i32[1]`: sequences that there are.
        sinks: `f32[Hq]` or None.
        options: the options; `support.unsupported` must be None for them.
        interpret: what `pallas_call` takes.

    Returns:
        `[T, Hq, Dv]`, of the queries' dtype; zeros in rows that belong to no sequence.
    """
    num_tokens, num_heads, _ = queries.shape
    if 0 in (num_tokens, *page_table.shape):
        return jnp.zeros((num_tokens, num_heads, options.layout.v_head_dim), queries.dtype)
    token = jnp.arange(num_tokens, dtype=jnp.int32)[:, None, None]
    reason = decode.unsupported(options, queries, kv_pages, page_table)
    decodes = taken("paged_decode", reason, warn=False)
    table = clean_table(page_table, kv_pages.shape[0])
    decoded = jnp.int32(0)
    if decodes:
        missing = misses_pages(table, first_key(kv_lens - 1, options), kv_lens, kv_pages.shape[1])
        decoded = leading_decode_rows(cu_q_lens, num_seqs, missing)
    out = prefill(
        queries,
        kv_pages,
        kv_lens,
        table,
        cu_q_lens,
        num_seqs,
        sinks,
        decoded,
        options=options,
        interpret=interpret,
    )
    out = jnp.where(token < cu_q_lens[num_seqs[0]], out, jnp.zeros_like(out))
    if not decodes:
        return out
    rows = min(num_tokens, kv_lens.shape[0])
    single = decode.decode(
        queries[:rows],
        kv_pages,
        kv_lens,
        table,
        decoded[None],
        sinks,
        options=options,
        interpret=interpret,
    )
    single = jnp.pad(single, ((0, num_tokens - rows), (0, 0), (0, 0)))
    return jnp.where(token < decoded, single, out)
