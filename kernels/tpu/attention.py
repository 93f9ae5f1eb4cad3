"""Ragged paged attention on a TPU: the entries of the kernels."""

from collections.abc import Callable
from functools import partial
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
from .decode_plan import sizes_of
from .prefill import Interpret, prefill_by, schedule_of
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
    to the first that reads a page that does not exist: that kernel copies whatever it is told to. Where one of those
    in front has several queries, up to 8, its form for drafts takes all of them. All others go to the general kernel.
    Which they are is found out on the device; a program for no more tokens than rows of the table has no such form.

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
    table = clean_table(page_table, kv_pages.shape[0])

    def others(decoded: jax.Array) -> Callable[[], jax.Array]:
        batch = (kv_lens, table, cu_q_lens, num_seqs)
        schedule = schedule_of(queries, kv_pages, *batch, decoded, options=options)

        def attended() -> jax.Array:
            out = prefill_by(schedule, queries, kv_pages, table, sinks, options=options, interpret=interpret)
            token = jnp.arange(num_tokens, dtype=jnp.int32)[:, None, None]
            return jnp.where(token < cu_q_lens[num_seqs[0]], out, jnp.zeros_like(out))

        return attended

    reason = decode.unsupported(options, queries, kv_pages, page_table)
    sizes = partial(sizes_of, options, kv_pages.shape[1])
    if not taken("paged_decode", reason, warn=False, blocks=sizes):
        return others(jnp.int32(0))()
    cache = (kv_pages, kv_lens, table)
    return _decoded_first(queries, cache, cu_q_lens, num_seqs, sinks, others, options, interpret)


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
    if 0 in (num_tokens, *page_table.shape):
        return jnp.zeros((num_tokens, num_heads, options.layout.v_head_dim), queries.dtype)
    table = clean_table(page_table, kv_pages.values.shape[0])

    def others(decoded: jax.Array) -> Callable[[], jax.Array]:
        lens = jnp.where(jnp.arange(kv_lens.shape[0], dtype=jnp.int32) < decoded, 0, kv_lens)
        return partial(xla.attend, queries, kv_pages, lens, table, cu_q_lens, num_seqs, sinks, options=options)

    cache = (kv_pages, kv_lens, table)
    return _decoded_first(queries, cache, cu_q_lens, num_seqs, sinks, others, options, interpret)


def _decoded_first(
    queries: jax.Array,
    cache: tuple[Any, jax.Array, jax.Array],
    cu_q_lens: jax.Array,
    num_seqs: jax.Array,
    sinks: jax.Array | None,
    others: Callable[[jax.Array], Callable[[], jax.Array]],
    options: AttentionOptions,
    interpret: Interpret,
) -> jax.Array:
    """The output of all queries: of the leading sequences that decode by their kernel, of the others by another.

    Args:
        queries: `[T, Hq, D]`.
        cache: the pages, `kv_lens` and the clean table.
        cu_q_lens: `i32[S + 1]`.
        num_seqs: `i32[1]`.
        sinks: `f32[Hq]` or None.
        others: takes how many sequences are decoded and returns what attends to those after them. That runs only in
            steps with such sequences; what is computed before is common to the layers of a step.
        options: the options.
        interpret: what `pallas_call` takes.
    """
    kv_pages, kv_lens, table = cache
    num_tokens, rows = queries.shape[0], min(queries.shape[0], kv_lens.shape[0])
    missing = misses_pages(table, first_key(kv_lens - 1, options), kv_lens, page_values(kv_pages).shape[1])
    decoded = leading_decode_rows(cu_q_lens, num_seqs, missing)
    run: Callable[..., jax.Array] = partial(decode.decode, options=options, interpret=interpret)

    def of_single() -> jax.Array:
        out = run(queries[:rows, None], *cache, decoded[None], sinks)[:, 0]
        return jnp.pad(out, ((0, num_tokens - rows), (0, 0), (0, 0)))

    most = decode.most_queries(queries.shape[1], options.layout)
    sizes = partial(sizes_of, options, page_values(kv_pages).shape[1], most)
    reason = decode.unsupported_drafts(options, queries, table)
    if taken("paged_decode_drafts", reason, warn=False, blocks=sizes):
        drafted = _with_drafts(cache, cu_q_lens, num_seqs, most, options)
        of_drafts = partial(_attended_drafts, queries, cache, cu_q_lens, drafted, sinks, most, run)
        leading = jax.lax.cond(drafted > decoded, of_drafts, of_single)
        decoded = jnp.maximum(decoded, drafted)
        end = cu_q_lens[decoded]
    else:
        leading, end = of_single(), decoded
    attended = others(decoded)

    def mixed() -> jax.Array:
        token = jnp.arange(num_tokens, dtype=jnp.int32)[:, None, None]
        return jnp.where(token < end, leading, attended())

    out: jax.Array = jax.lax.cond(decoded < num_seqs[0], mixed, lambda: leading)
    return out


def _with_drafts(
    cache: tuple[Any, jax.Array, jax.Array],
    cu_q_lens: jax.Array,
    num_seqs: jax.Array,
    most_queries: int,
    options: AttentionOptions,
) -> jax.Array:
    """How many sequences, from the first on, have at most ``most_queries`` queries and all of their pages: `i32[]`."""
    kv_pages, kv_lens, table = cache
    q_lens = cu_q_lens[1:] - cu_q_lens[:-1]
    first = first_key(kv_lens - q_lens, options)
    barred = misses_pages(table, first, kv_lens, page_values(kv_pages).shape[1]) | (kv_lens < q_lens)
    return leading_decode_rows(cu_q_lens, num_seqs, barred, most_queries)


def _attended_drafts(
    queries: jax.Array,
    cache: tuple[Any, jax.Array, jax.Array],
    cu_q_lens: jax.Array,
    drafted: jax.Array,
    sinks: jax.Array | None,
    most_queries: int,
    run: Callable[..., jax.Array],
) -> jax.Array:
    """The output of the queries of the leading sequences, `[T, Hq, Dv]`; zeros in other rows.

    Each sequence's queries are gathered as if it had ``most_queries``; what comes of those that it hasn't is left.
    """
    num_tokens, rows = queries.shape[0], min(queries.shape[0], cache[1].shape[0])
    token = jnp.arange(num_tokens, dtype=jnp.int32)
    of_row = cu_q_lens[:rows, None] + jnp.arange(most_queries, dtype=jnp.int32)[None, :]
    gathered = queries[jnp.clip(of_row, 0, num_tokens - 1)]
    out = run(gathered, *cache, drafted[None], sinks, cu_q_lens[1:] - cu_q_lens[:-1])
    ends = jnp.where(jnp.arange(cu_q_lens.shape[0] - 1, dtype=jnp.int32) < drafted, cu_q_lens[1:], num_tokens)
    ended = ends[None, :] <= token[:, None]
    row = jnp.minimum(jnp.sum(ended, axis=1, dtype=jnp.int32), rows - 1)
    place = row * most_queries + jnp.clip(token - cu_q_lens[row], 0, most_queries - 1)
    found = out.reshape(rows * most_queries, *out.shape[2:])[place]
    return jnp.where((token < cu_q_lens[drafted])[:, None, None], found, jnp.zeros_like(found))
