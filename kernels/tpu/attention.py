"""Ragged paged attention on a TPU: the entries of the kernels."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ..choices import taken
from ..masks import first_key
from ..options import AttentionOptions
from ..ragged import clean_table, misses_pages
from ..storage import ScaledPages, page_values
from ..xla import attention as xla
from . import decode
from .prefill import Interpret, prefill
from .prefill_schedule import leading_decode_rows

__all__ = ["attend", "attend_scaled"]


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
    reason = decode.unsupported(options, queries, kv_pages, page_table)
    decodes = taken("paged_decode", reason, warn=False)
    table = clean_table(page_table, kv_pages.shape[0])
    decoded = jnp.int32(0)
    if decodes:
        decoded = _decoded(kv_pages, kv_lens, table, cu_q_lens, num_seqs, options)
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
    token = jnp.arange(num_tokens, dtype=jnp.int32)[:, None, None]
    out = jnp.where(token < cu_q_lens[num_seqs[0]], out, jnp.zeros_like(out))
    if not decodes:
        return out
    return _with_decoded(out, decoded, queries, (kv_pages, kv_lens, table), sinks, options, interpret)


def attend_scaled(
    queries: jax.Array,  # [T, Hq, D]
    kv_pages: ScaledPages,
    kv_lens: jax.Array,  # i32[S]
    page_table: jax.Array,  # i32[S, pages_per_seq]
    cu_q_lens: jax.Array,  # i32[S + 1]
    num_seqs: jax.Array,  # i32[1]
    sinks: jax.Array | None,  # f32[Hq]
    *,
    options: AttentionOptions,
    interpret: Interpret = False,
) -> jax.Array:
    """What `attend` does, over ScaledPages: XLA attends to the sequences that the decode kernel doesn't take.

    Args:
        queries: as in `attend`.
        kv_pages: the pages and their scales.
        kv_lens: as in `attend`.
        page_table: as in `attend`.
        cu_q_lens: as in `attend`.
        num_seqs: as in `attend`.
        sinks: as in `attend`.
        options: the options; `decode.unsupported` must be None for them.
        interpret: what `pallas_call` takes.

    Returns:
        `[T, Hq, Dv]`, as `attend`.
    """
    num_tokens, num_heads, _ = queries.shape
    nothing = jnp.zeros((num_tokens, num_heads, options.layout.v_head_dim), queries.dtype)
    if 0 in (num_tokens, *page_table.shape):
        return nothing
    table = clean_table(page_table, kv_pages.values.shape[0])
    decoded = _decoded(kv_pages, kv_lens, table, cu_q_lens, num_seqs, options)
    others = jnp.where(jnp.arange(kv_lens.shape[0], dtype=jnp.int32) < decoded, 0, kv_lens)

    def by_xla() -> jax.Array:
        return xla.attend(queries, kv_pages, others, table, cu_q_lens, num_seqs, sinks, options=options)

    out = jax.lax.cond(decoded < num_seqs[0], by_xla, lambda: nothing)
    return _with_decoded(out, decoded, queries, (kv_pages, kv_lens, table), sinks, options, interpret)


def _decoded(
    kv_pages: Any,
    kv_lens: jax.Array,
    table: jax.Array,
    cu_q_lens: jax.Array,
    num_seqs: jax.Array,
    options: AttentionOptions,
) -> jax.Array:
    """How many of the leading sequences the decode kernel takes, `i32[]`."""
    page_size = page_values(kv_pages).shape[1]
    missing = misses_pages(table, first_key(kv_lens - 1, options), kv_lens, page_size)
    return leading_decode_rows(cu_q_lens, num_seqs, missing)


def _with_decoded(
    out: jax.Array,
    decoded: jax.Array,
    queries: jax.Array,
    cache: tuple[Any, jax.Array, jax.Array],
    sinks: jax.Array | None,
    options: AttentionOptions,
    interpret: Interpret,
) -> jax.Array:
    """The output of all queries, that of the leading ``decoded`` sequences from the decode kernel.

    The cache is the pages, the lengths and the clean table.
    """
    rows = min(queries.shape[0], cache[1].shape[0])
    run: Callable[..., jax.Array] = decode.decode
    single = run(queries[:rows], *cache, decoded[None], sinks, options=options, interpret=interpret)
    single = jnp.pad(single, ((0, queries.shape[0] - rows), (0, 0), (0, 0)))
    token = jnp.arange(queries.shape[0], dtype=jnp.int32)[:, None, None]
    return jnp.where(token < decoded, single, out)
