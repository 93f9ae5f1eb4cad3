"""Attention over a ragged batch in blocks: the loop that both kinds of cache share.

Work comes in tiles of n sequences with m query rows each. A tile walks over the keys that any of its rows reads,
`KEY_BLOCK` at a time, from the first such key of each sequence on; how often it goes round is known on the device
only. What windows, chunks and lengths make dead is therefore neither read nor computed, and no more than a block
of a tile's keys is ever held at once. Sums run online, as in flash attention: per row the largest score yet, the
sum of the weights below it, and the weighted values.

Sequences with one query row, the decoding ones, are taken `DECODE_TILE` at a time, sorted by length so that a
tile's sequences end together; the others alone, in tiles of `QUERY_BLOCK` rows.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ..masks import end_key, first_key
from ..options import AnyOptions
from ..ragged import Ragged

__all__ = ["Cache", "Read", "attend_ragged"]

KEY_BLOCK = 128
DECODE_TILE = 8
QUERY_BLOCK = 32

_NEVER = 2**31 - 1
_HIGHEST = jax.lax.Precision.HIGHEST

Read = Callable[[jax.Array, jax.Array, jax.Array], tuple[jax.Array, jax.Array]]
"""From page ids, offsets in them and which of these are alive, `[n, b]` each, to keys `f32[n, H, b, D]` and values
`f32[n, H, b, Dv]`. Ids and offsets are within bounds; values that are not alive must come out as zeros."""


class Cache(NamedTuple):
    """A cache as the loop sees it.

    Attributes:
        read: reads slots.
        page_table: `i32[S, pages_per_seq]`.
        num_pages: P.
        page_size: slots of a page.
        v_dim: Dv.
    """

    read: Read
    page_table: jax.Array
    num_pages: int
    page_size: int
    v_dim: int


class _Sums(NamedTuple):
    """Online softmax of a tile: all that is carried from block to block."""

    top: jax.Array  # f32[n, H, m, G]: the largest score yet
    total: jax.Array  # f32[n, H, m, G]: the sum of exp(score - top)
    mixed: jax.Array  # f32[n, H, m, G, Dv]: the sum of exp(score - top) * value


def attend_ragged(
    queries: jax.Array,  # [T, H, G, D]
    batch: Ragged,
    cache: Cache,
    sinks: jax.Array | None,  # f32[H, G]
    options: AnyOptions,
) -> jax.Array:
    """Attention of a ragged batch over a cache (ATT-1 to ATT-4). O(keys read * H * G * (D + Dv)).

    Args:
        queries: `[T, H, G, D]`, any float dtype; garbage past the last sequence.
        batch: the lengths.
        cache: where keys and values are.
        sinks: `f32[H, G]` or None.
        options: scale, cap and mask.

    Returns:
        `[T, H, G, Dv]` in the queries' dtype; rows of no sequence, and rows that read nothing, are zeros.
    """
    tokens = queries.shape[0]
    if tokens == 0:
        return jnp.zeros((*queries.shape[:3], cache.v_dim), queries.dtype)
    block = min(QUERY_BLOCK, tokens)
    # With a block of room at the end the slices below are never moved to fit in.
    queries = jnp.pad(queries, ((0, block), (0, 0), (0, 0), (0, 0)))
    out = jnp.zeros((*queries.shape[:3], cache.v_dim), queries.dtype)
    tile = partial(_tile, cache=cache, sinks=sinks, options=options)
    out = _decode(out, queries, batch, cache.page_table, tile, options)
    out = _prefill(out, queries, batch, cache.page_table, tile, block)
    return out[:tokens]


def _decode(
    out: jax.Array,  # [T + block, H, G, Dv]
    queries: jax.Array,  # [T + block, H, G, D]
    batch: Ragged,
    page_table: jax.Array,  # i32[S, pages_per_seq]
    tile: Callable[..., jax.Array],
    options: AnyOptions,
) -> jax.Array:
    """The sequences with one query row, a few at a time."""
    rows = batch.kv_lens.shape[0]
    width = min(DECODE_TILE, rows)
    alone = batch.q_lens == 1
    last = batch.kv_lens - 1
    reach = end_key(last, batch.kv_lens, options) - first_key(last, options)
    order = jnp.argsort(jnp.where(alone, reach, _NEVER)).astype(jnp.int32)
    order = jnp.pad(order, (0, width))
    count = jnp.sum(alone, dtype=jnp.int32)

    def step(i: jax.Array, out: jax.Array) -> jax.Array:
        place = i * width + jnp.arange(width, dtype=jnp.int32)
        members = jax.lax.dynamic_slice_in_dim(order, i * width, width)
        used = place < count
        at = batch.starts[members]
        positions = jnp.where(used, last[members], -1)
        done = tile(queries[at][:, None], positions[:, None], batch.kv_lens[members], page_table[members])
        at = jnp.where(used, at, out.shape[0])
        return out.at[at].set(done[:, 0].astype(out.dtype), mode="drop")

    done: jax.Array = jax.lax.fori_loop(0, -(-count // width), step, out)
    return done


def _prefill(
    out: jax.Array,  # [T + block, H, G, Dv]
    queries: jax.Array,  # [T + block, H, G, D]
    batch: Ragged,
    page_table: jax.Array,  # i32[S, pages_per_seq]
    tile: Callable[..., jax.Array],
    block: int,
) -> jax.Array:
    """The sequences with several query rows, one after the other, a block of rows at a time."""
    lane = jnp.arange(block, dtype=jnp.int32)

    def sequence(s: jax.Array, out: jax.Array) -> jax.Array:
        begin, q_len, kv_len = batch.starts[s], batch.q_lens[s], batch.kv_lens[s]
        table = page_table[s]

        def rows(b: jax.Array, out: jax.Array) -> jax.Array:
            used = b * block + lane < q_len
            at = begin + b * block
            positions = jnp.where(used, kv_len - q_len + b * block + lane, -1)
            mine = jax.lax.dynamic_slice_in_dim(queries, at, block)
            done = tile(mine[None], positions[None], kv_len[None], table[None])[0].astype(out.dtype)
            before = jax.lax.dynamic_slice_in_dim(out, at, block)
            done = jnp.where(used[:, None, None, None], done, before)
            return jax.lax.dynamic_update_slice_in_dim(out, done, at, 0)

        written: jax.Array = jax.lax.fori_loop(0, jnp.where(q_len == 1, 0, -(-q_len // block)), rows, out)
        return written

    done: jax.Array = jax.lax.fori_loop(0, batch.kv_lens.shape[0], sequence, out)
    return done


def _tile(
    queries: jax.Array,  # [n, m, H, G, D]
    positions: jax.Array,  # i32[n, m]
    kv_lens: jax.Array,  # i32[n]
    tables: jax.Array,  # i32[n, pages_per_seq]
    *,
    cache: Cache,
    sinks: jax.Array | None,  # f32[H, G]
    options: AnyOptions,
) -> jax.Array:
    """Attention of n sequences with m query rows each: `f32[n, m, H, G, Dv]`."""
    n, m, heads, group, _ = queries.shape
    queries = jnp.swapaxes(queries, 1, 2).astype(jnp.float32) * options.score_scale
    first = first_key(positions, options)
    end = end_key(positions, kv_lens[:, None], options)
    high = jnp.max(end, axis=1)
    low = jnp.min(jnp.where(first < end, first, high[:, None]), axis=1)
    block = min(KEY_BLOCK, cache.page_size * tables.shape[1])

    def step(i: jax.Array, sums: _Sums) -> _Sums:
        ahead = i * block + jnp.arange(block, dtype=jnp.int32)[None]
        alive = ahead < (high - low)[:, None]
        key = jnp.where(alive, low[:, None] + ahead, 0)
        page = jnp.take_along_axis(tables, jax.lax.div(key, cache.page_size), axis=1, mode="clip")
        alive &= (page >= 0) & (page < cache.num_pages)
        keys, values = cache.read(jnp.where(alive, page, 0), jax.lax.rem(key, cache.page_size), alive)
        readable = alive[:, None] & (key[:, None] >= first[..., None]) & (key[:, None] < end[..., None])
        scores = _scores(queries, keys, options.soft_cap)
        return _accumulate(sums, jnp.where(readable[:, None, :, None], scores, -jnp.inf), values)

    shape = (n, heads, m, group)
    top = jnp.full(shape, -jnp.inf) if sinks is None else jnp.broadcast_to(sinks[None, :, None], shape)
    sums = _Sums(top, jnp.exp(top - _finite(top)), jnp.zeros((*shape, cache.v_dim)))
    trips = jnp.max(-(-(high - low) // block))
    sums = jax.lax.fori_loop(0, trips, step, sums)
    total = jnp.where(sums.total == 0, 1.0, sums.total)
    return jnp.swapaxes(sums.mixed / total[..., None], 1, 2)


def _scores(
    queries: jax.Array,  # f32[n, H, m, G, D], scaled
    keys: jax.Array,  # f32[n, H, b, D]
    soft_cap: float | None,
) -> jax.Array:
    """Scaled, capped scores, `f32[n, H, m, G, b]`."""
    n, heads, m, group, dim = queries.shape
    rows = queries.reshape(n, heads, m * group, dim)
    scores = jnp.einsum("nhrd,nhbd->nhrb", rows, keys, precision=_HIGHEST)
    if soft_cap is not None:
        scores = soft_cap * jnp.tanh(scores / soft_cap)
    return scores.reshape(n, heads, m, group, -1)


def _accumulate(
    sums: _Sums,
    scores: jax.Array,  # f32[n, H, m, G, b], -inf where masked
    values: jax.Array,  # f32[n, H, b, Dv]
) -> _Sums:
    """One block more."""
    n, heads, m, group, block = scores.shape
    top = jnp.maximum(sums.top, jnp.max(scores, axis=-1))
    shift = _finite(top)
    fade = jnp.exp(sums.top - shift)
    weights = jnp.exp(scores - shift[..., None])
    rows = weights.reshape(n, heads, m * group, block)
    mixed = jnp.einsum("nhrb,nhbd->nhrd", rows, values, precision=_HIGHEST)
    return _Sums(
        top,
        sums.total * fade + jnp.sum(weights, axis=-1),
        sums.mixed * fade[..., None] + mixed.reshape(n, heads, m, group, -1),
    )


def _finite(top: jax.Array) -> jax.Array:
    """What to subtract before exp: the largest score, or 0 while a row has read nothing; exp(-inf) is 0 then."""
    return jnp.where(top == -jnp.inf, 0.0, top)
