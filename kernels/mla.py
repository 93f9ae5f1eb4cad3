"""Multi-head latent attention over paged latents: the public functions.

A slot holds a token's latent (R numbers, from which all heads' keys and values come) and the rotary part of its key
(Dr numbers, shared by all heads): `[latent | zeros to 128 | rotary | zeros to 128]`. Queries come absorbed, as long
as latents are; so do outputs.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from . import arguments
from .arguments import Array
from .cache_update import write_rows
from .choices import taken
from .dispatch import Like, by_platform
from .dynamic_checks import check_batch, check_slices, check_slots
from .options import MlaOptions
from .ragged import Lengths
from .storage import ScaledPages, from_bits, saturated, to_bits, value_dtype
from .xla import mla as xla

__all__ = ["mla_cache_update", "mla_paged_attention"]

_PAGES = "[P, page, width], not empty"


def mla_cache_update(
    latent_pages: Array,  # [P, page, width]
    latents: Array,  # [T, R]
    rotary: Array,  # [T, Dr]
    slot_mapping: Array,  # i32[T] or i32[3, n]
    *,
    num_slices: Array | None = None,  # i32[1]
    kv_dtype: Any = None,
    validate: bool = False,
) -> jax.Array:
    """Writes latents and rotary parts into the slots named; all else stays, bit for bit (CACHE-2, CACHE-3).

    In place where ``latent_pages`` is donated, as `kv_cache_update`. O(T * (R + Dr)).

    Args:
        latent_pages: `[P, page, width]`, width = R and Dr each rounded up to 128; not int8.
        latents: `[T, R]`, float32, bfloat16 or float16.
        rotary: `[T, Dr]`, of the latents' dtype.
        slot_mapping: `i32[T]` slots, or slices `i32[3, n]`, as in `kv_cache_update`.
        num_slices: `i32[1]`: how many slices count.
        kv_dtype: the dtype of the cache's numbers: needed where the pages are unsigned bits.
        validate: whether the arrays are looked at too; they must be concrete then.

    Returns:
        The pages, of the dtype given.

    Raises:
        TypeError: on wrong types and dtypes [R1].
        ValueError: on shapes that don't fit; with ``validate`` as `kv_cache_update` [R1].
        IndexError: with ``validate``, on slots and tokens that don't exist [R1].
    """
    arguments.pair(("latents", "rotary"), latents, rotary, 2, ("[T, R]", "[T, Dr]"))
    options = _cache_options(latent_pages, latents.shape[1], rotary.shape[1], kv_dtype)
    arguments.slots(slot_mapping, num_slices, latents.shape[0])
    num_pages, page_size = latent_pages.shape[:2]
    validate = arguments.flag("validate", validate)
    if validate and num_slices is None:
        check_slots(slot_mapping, num_pages * page_size)
    elif validate:
        check_slices(slot_mapping, num_slices, latents.shape[0], num_pages, page_size)
    written: jax.Array = _update(latent_pages, latents, rotary, slot_mapping, num_slices, options)
    return written


def mla_paged_attention(
    queries: Array,  # [T, Hq, R]
    rotary_queries: Array,  # [T, Hq, Dr]
    latent_pages: Array,  # [P, page, width]
    kv_lens: Array,  # i32[S]
    page_table: Array,  # i32[S, pages_per_seq]
    cu_q_lens: Array,  # i32[S + 1]
    num_seqs: Array,  # i32[1]
    *,
    scale: float,
    causal: bool = True,
    window: int | None = None,
    soft_cap: float | None = None,
    kv_dtype: Any = None,
    validate: bool = False,
) -> jax.Array:
    """Attention of a ragged batch of absorbed queries over latents (ATT-1 to ATT-6).

    Logits are (q . latent + q_rotary . rotary) * scale, then capped, then masked; outputs are the weighted sums of
    latents. All else is as in `ragged_paged_attention`. O(keys read * Hq * (2R + Dr)).

    Args:
        queries: `[T, Hq, R]`, float32, bfloat16 or float16; rows past the last sequence may hold anything (ATT-4).
        rotary_queries: `[T, Hq, Dr]`, of the queries' dtype.
        latent_pages: `[P, page, width]`, width = R and Dr each rounded up to 128; not int8.
        kv_lens: `i32[S]`: the tokens of each sequence, this step's new ones included.
        page_table: `i32[S, pages_per_seq]`.
        cu_q_lens: `i32[S + 1]`.
        num_seqs: `i32[1]`.
        scale: of the logits; the size of the heads that it usually comes from isn't known here.
        causal: whether a query at p reads keys j <= p only.
        window: it reads keys j > p - window only, causal or not; at least 1.
        soft_cap: c > 0: logits s become c * tanh(s / c).
        kv_dtype: the dtype of the cache's numbers: needed where the pages are unsigned bits.
        validate: whether the arrays are looked at too; they must be concrete then.

    Returns:
        `[T, Hq, R]` in the queries' dtype; zeros in rows past the last sequence.

    Raises:
        TypeError: on wrong types and dtypes [R1].
        ValueError: on shapes that don't fit and options out of range; with ``validate`` on lengths that don't
            agree [R1].
        IndexError: with ``validate``, on live entries of the page table that name no page [R1].
    """
    arguments.pair(("queries", "rotary_queries"), queries, rotary_queries, 3, ("[T, Hq, R]", "[T, Hq, Dr]"))
    cache = _cache_options(latent_pages, queries.shape[2], rotary_queries.shape[2], kv_dtype)
    num_pages, page_size = latent_pages.shape[:2]
    lengths = Lengths(kv_lens, page_table, cu_q_lens, num_seqs)
    arguments.batch(*lengths, page_size)
    options = replace(
        cache,
        score_scale=arguments.number("scale", scale),
        causal=arguments.flag("causal", causal),
        window=arguments.option_within("window", window, page_size * page_table.shape[1]),
        soft_cap=None if soft_cap is None else arguments.number("soft_cap", soft_cap, positive=True),
    )
    if arguments.flag("validate", validate):
        check_batch(*lengths, queries.shape[0], num_pages, page_size)
    out: jax.Array = _attend(queries, rotary_queries, latent_pages, lengths, options)
    return out


def _cache_options(latent_pages: Any, latent_dim: int, rotary_dim: int, kv_dtype: Any) -> MlaOptions:
    """What a cache of latents is, checked. O(1)."""
    if isinstance(latent_pages, ScaledPages):
        raise TypeError("latent_pages must be an array: ScaledPages are for keys and values [R1]")
    arguments.pool("latent_pages", latent_pages, (3,), _PAGES)
    dtype = value_dtype(latent_pages, kv_dtype, "latent_pages")
    if dtype == jnp.dtype(jnp.int8):
        raise TypeError("latent_pages must hold floats, not int8, which needs scales [R1]")
    options = MlaOptions(latent_dim, rotary_dim, dtype, score_scale=1.0)
    arguments.same("latent_pages.shape[2]", latent_pages.shape[2], "the width of a slot", options.width)
    return options


@partial(jax.jit, static_argnames="options")
def _update(
    latent_pages: jax.Array,  # [P, page, width]
    latents: jax.Array,  # [T, R]
    rotary: jax.Array,  # [T, Dr]
    slot_mapping: jax.Array,  # i32[T] or i32[3, n]
    num_slices: jax.Array | None,  # i32[1]
    options: MlaOptions,
) -> jax.Array:
    arrays = (latent_pages, latents, rotary, slot_mapping, num_slices)
    written: jax.Array = by_platform("mla_cache_update", _update_on, *arrays, results=Like(0), options=options)
    return written


def _update_on(
    latent_pages: jax.Array,
    latents: jax.Array,
    rotary: jax.Array,
    slot_mapping: jax.Array,
    num_slices: jax.Array | None,
    *,
    options: MlaOptions,
    platform: str | None,
) -> jax.Array:
    widths = (options.rotary_start, options.width - options.rotary_start)
    parts = [
        jnp.pad(saturated(part, options.kv_dtype), ((0, 0), (0, width - part.shape[1])))
        for part, width in zip((latents, rotary), widths, strict=True)
    ]
    rows = to_bits(jnp.concatenate(parts, axis=1), latent_pages.dtype)
    written: jax.Array = write_rows(latent_pages, rows, slot_mapping, num_slices, platform=platform)
    return written


@partial(jax.jit, static_argnames="options")
def _attend(
    queries: jax.Array,  # [T, Hq, R]
    rotary_queries: jax.Array,  # [T, Hq, Dr]
    latent_pages: jax.Array,  # [P, page, width]
    lengths: Lengths,
    options: MlaOptions,
) -> jax.Array:
    arrays = (queries, rotary_queries, latent_pages, lengths)
    out: jax.Array = by_platform("mla_paged_attention", _attend_on, *arrays, results=Like(0), options=options)
    return out


def _attend_on(
    queries: jax.Array,
    rotary_queries: jax.Array,
    latent_pages: jax.Array,
    lengths: Lengths,
    *,
    options: MlaOptions,
    platform: str | None,
) -> jax.Array:
    """Attention by the platform's own kernels where it has some that take the call; without tokens there is no work."""
    if not queries.shape[0]:
        return jnp.zeros_like(queries)
    batch = lengths._replace(num_seqs=lengths.num_seqs[:1])
    if platform == "tpu":
        # Imported where it is needed: most processes never compile for a TPU.
        from .tpu import mla as tpu

        numbers = from_bits(latent_pages, options.kv_dtype)
        reason = tpu.unsupported(queries, numbers, lengths.page_table)
        taken("mla_decode", reason, warn=False)
        if taken("mla_attention", reason):
            return tpu.attend(queries, rotary_queries, numbers, *batch, options=options)
    if platform == "cuda":
        from .gpu import hopper, support

        numbers = from_bits(latent_pages, options.kv_dtype)
        reason = hopper.unavailable() or support.unsupported_latents(options, queries, numbers, lengths.page_table)
        of_prompts = reason or ("one token: no sequence has several" if queries.shape[0] == 1 else None)
        taken("paged_latents_prefill", of_prompts, warn=False)
        taken("paged_combine", reason, warn=False)
        if taken("paged_latents", reason, warn=hopper.in_sight()):
            # Needs Mosaic GPU, which machines without a GPU may lack.
            from .gpu import latents as gpu

            return gpu.attend(queries, rotary_queries, numbers, *batch, options=options)
    return xla.attend(queries, rotary_queries, latent_pages, *batch, options=options)
