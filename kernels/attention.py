"""Attention over paged keys and values: the public functions.

One shape legend for all: T query tokens (rows of the ragged batch, padded), S sequences (rows of the page table,
padded), Hq query heads, H KV heads, D the size of keys, Dv that of values. Query t of a sequence stands at position
kv_len - q_len + t.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from . import arguments
from .arguments import Array
from .cache_update import PAGES, check_new_rows, check_scales, encode, write_rows
from .choices import taken
from .dispatch import Like, by_platform, likes
from .dynamic_checks import check_batch, check_slots, written_slots
from .layout import layout_of, read_version, slot_axis
from .options import AttentionOptions, UpdateOptions
from .ragged import Lengths, ragged, slots_of_tokens
from .storage import ScaledPages, from_bits, page_values, value_dtype
from .xla import attention as xla

__all__ = ["fused_ragged_paged_attention", "ragged_paged_attention"]


def ragged_paged_attention(
    queries: Array,  # [T, Hq, D]
    kv_pages: Any,
    kv_lens: Array,  # i32[S]
    page_table: Array,  # i32[S, pages_per_seq]
    cu_q_lens: Array,  # i32[S + 1]
    num_seqs: Array,  # i32[1]
    *,
    scale: float | None = None,
    causal: bool = True,
    window: int | None = None,
    chunk: int | None = None,
    soft_cap: float | None = None,
    sinks: Array | None = None,  # f32[Hq]
    q_scale: float | None = None,
    k_scale: float | None = None,
    v_scale: float | None = None,
    num_kv_heads: int | None = None,
    v_head_dim: int | None = None,
    kv_dtype: Any = None,
    version: str | None = None,
    decode_block: int | None = None,
    prefill_block: tuple[int, int] | None = None,
    validate: bool = False,
) -> jax.Array:
    """Attention of a ragged batch of queries over the pages of a cache (ATT-1 to ATT-6).

    Logits are (q * q_scale) . (k * k_scale) * scale, then capped, then masked; sinks join the softmax's denominator;
    outputs are the weighted sums of v * v_scale. Rows with nothing to read give zeros, sinks or not (ATT-2). No
    number outside of what the queries of a sequence may read changes their results, NaN included (ATT-3); NaN in a
    slot that one of them reads may show in those of the others. Which rows decode and which prefill is found out on
    the device. O(keys read * Hq * (D + Dv)).

    Args:
        queries: `[T, Hq, D]`, float32, bfloat16 or float16; rows past the last sequence may hold anything (ATT-4).
        kv_pages: `[P, page, 2H, Dp]` (v2), `[P, page, groups, packing, Dp]` (v3), `[P, 2H, Dp, page]` (seq_on_lane),
            or ScaledPages of these.
        kv_lens: `i32[S]`: the tokens of each sequence, this step's new ones included.
        page_table: `i32[S, pages_per_seq]`; entries past a sequence's last page may hold anything.
        cu_q_lens: `i32[S + 1]`: the row at which each sequence's queries begin, and the end.
        num_seqs: `i32[1]`: how many sequences there are, or `i32[S]`, of which the first counts; rows past them may
            hold anything.
        scale: of the logits; None: D ** -0.5.
        causal: whether a query at p reads keys j <= p only.
        window: it reads keys j > p - window only, causal or not; at least 1.
        chunk: it reads keys j >= p // chunk * chunk only; at least 1. With a window both hold.
        soft_cap: c > 0: logits s become c * tanh(s / c).
        sinks: `f32[Hq]`: one more logit for each head, neither scaled nor capped.
        q_scale: of the queries; None: 1.
        k_scale: of the stored keys; None: 1. Not with ScaledPages.
        v_scale: of the stored values; None: 1. Not with ScaledPages.
        num_kv_heads: H; None: as many as the rows hold, which is wrong where rows were added as padding; with
            ScaledPages as many as the scales are for.
        v_head_dim: Dv; None: D.
        kv_dtype: the dtype of the cache's numbers: needed where the pages are unsigned bits.
        version: the layout's name, which seq_on_lane needs; None: v2 or v3, by the number of dimensions.
        decode_block: keys of a block where a TPU's kernel decodes: a power of two from 128 on, whole pages. None: as
            measured (`kvproof.kernels.tune`), or by a rule. Other platforms have no use for it.
        prefill_block: query tokens and keys of a block of a TPU's kernel for all else, alike: a multiple of 16 rows of
            a KV head's query heads, and whole pages.
        validate: whether the arrays are looked at too; they must be concrete then.

    Returns:
        `[T, Hq, Dv]` in the queries' dtype; zeros in rows past the last sequence.

    Raises:
        TypeError: on wrong types and dtypes [R1].
        ValueError: on shapes that don't fit and options out of range; with ``validate`` on lengths that don't
            agree, such as a kv_len below its q_len [R1].
        IndexError: with ``validate``, on live entries of the page table that name no page; else those keys are not
            read [R1].
    """
    v_dim = None if v_head_dim is None else arguments.positive_integer("v_head_dim", v_head_dim)
    heads = None if num_kv_heads is None else arguments.positive_integer("num_kv_heads", num_kv_heads)
    given = _Given(scale, causal, window, chunk, soft_cap, sinks, q_scale, decode_block, prefill_block)
    arguments.floats("queries", queries, 3, "[T, Hq, D]")
    named = read_version(version)
    axis = slot_axis(named)
    arguments.pool("kv_pages", kv_pages, (4, 5), PAGES, axis)
    dtype = value_dtype(kv_pages, kv_dtype)
    if heads is None and isinstance(kv_pages, ScaledPages):
        heads = max(kv_pages.scales.shape[1 if axis == -1 else 2] // 2, 1)
    layout = layout_of(page_values(kv_pages), queries.shape[2], v_dim or queries.shape[2], heads, named)
    stored = UpdateOptions(layout, dtype, *check_scales(kv_pages, dtype, layout, k_scale, v_scale))
    lengths = Lengths(kv_lens, page_table, cu_q_lens, num_seqs)
    num_pages, page_size = stored.layout.sizes(page_values(kv_pages))
    options = _options(queries, lengths, given, stored, page_size)
    if arguments.flag("validate", validate):
        check_batch(*lengths, queries.shape[0], num_pages, page_size)
    out: jax.Array = _attend(queries, kv_pages, lengths, sinks, options)
    return out


def fused_ragged_paged_attention(
    queries: Array,  # [T, Hq, D]
    keys: Array,  # [T, H, D]
    values: Array,  # [T, H, Dv]
    kv_pages: Any,
    kv_lens: Array,  # i32[S]
    page_table: Array,  # i32[S, pages_per_seq]
    cu_q_lens: Array,  # i32[S + 1]
    num_seqs: Array,  # i32[1]
    *,
    scale: float | None = None,
    causal: bool = True,
    window: int | None = None,
    chunk: int | None = None,
    soft_cap: float | None = None,
    sinks: Array | None = None,  # f32[Hq]
    q_scale: float | None = None,
    k_scale: float | None = None,
    v_scale: float | None = None,
    num_kv_heads: int | None = None,
    v_head_dim: int | None = None,
    kv_dtype: Any = None,
    version: str | None = None,
    decode_block: int | None = None,
    prefill_block: tuple[int, int] | None = None,
    validate: bool = False,
) -> tuple[jax.Array, Any]:
    """Writes all of a batch's new keys and values, then attends (ATT-5): one sequence may read what another wrote.

    Token t of a sequence goes to position kv_len - q_len + t, through the page table; rows of no sequence, and
    positions for which the table names no page, write nothing. In place where ``kv_pages`` is donated, as
    `kv_cache_update`. O(T * H * (D + Dv) + keys read * Hq * (D + Dv)).

    Args:
        queries: `[T, Hq, D]`, as `ragged_paged_attention` takes them, like what follows.
        keys: `[T, H, D]`, float32, bfloat16 or float16.
        values: `[T, H, Dv]`, of the keys' dtype.
        kv_pages: as `ragged_paged_attention` takes them.
        kv_lens: `i32[S]`, the new tokens included.
        page_table: `i32[S, pages_per_seq]`.
        cu_q_lens: `i32[S + 1]`.
        num_seqs: `i32[1]`.
        scale: of the logits; None: D ** -0.5.
        causal: as in `ragged_paged_attention`, like the next ones.
        window: the same.
        chunk: the same.
        soft_cap: the same.
        sinks: the same.
        q_scale: the same.
        k_scale: what keys are divided by when they are stored, and multiplied by when they are read.
        v_scale: the same for values.
        num_kv_heads: H; None: that of ``keys``.
        v_head_dim: Dv; None: that of ``values``.
        kv_dtype: the dtype of the cache's numbers: needed where the pages are unsigned bits.
        version: the layout's name, which seq_on_lane needs; None: v2 or v3, by the number of dimensions.
        decode_block: as in `ragged_paged_attention`.
        prefill_block: the same.
        validate: whether the arrays are looked at too; they must be concrete then.

    Returns:
        `[T, Hq, Dv]` in the queries' dtype, and the pages, of the kind and dtype given.

    Raises:
        TypeError: as both functions do [R1].
        ValueError: as both functions do; also where keys and queries differ in number or size [R1].
        IndexError: as both functions do [R1].
    """
    arguments.floats("queries", queries, 3, "[T, Hq, D]")
    stored = check_new_rows(kv_pages, keys, values, kv_dtype, k_scale, v_scale, version)
    arguments.same("keys.shape[0]", keys.shape[0], "queries.shape[0]", queries.shape[0])
    arguments.same("keys.shape[2]", keys.shape[2], "queries.shape[2]", queries.shape[2])
    if num_kv_heads is not None:
        heads = arguments.positive_integer("num_kv_heads", num_kv_heads)
        arguments.same("num_kv_heads", heads, "keys.shape[1]", keys.shape[1])
    if v_head_dim is not None:
        v_dim = arguments.positive_integer("v_head_dim", v_head_dim)
        arguments.same("v_head_dim", v_dim, "values.shape[2]", values.shape[2])
    given = _Given(scale, causal, window, chunk, soft_cap, sinks, q_scale, decode_block, prefill_block)
    lengths = Lengths(kv_lens, page_table, cu_q_lens, num_seqs)
    num_pages, page_size = stored.layout.sizes(page_values(kv_pages))
    options = _options(queries, lengths, given, stored, page_size)
    if arguments.flag("validate", validate):
        check_batch(*lengths, queries.shape[0], num_pages, page_size)
        slots = written_slots(*lengths, page_size)
        check_slots(slots, num_pages * page_size, "the slots written through page_table")
    done: tuple[jax.Array, Any] = _update_and_attend(kv_pages, (keys, values), queries, lengths, sinks, options, stored)
    return done


class _Given(NamedTuple):
    """The options that do not depend on the cache, as they were passed."""

    scale: Any
    causal: Any
    window: Any
    chunk: Any
    soft_cap: Any
    sinks: Any
    q_scale: Any
    decode_block: Any
    prefill_block: Any


def _options(
    queries: Array,  # [T, Hq, D]
    lengths: Lengths,
    given: _Given,
    stored: UpdateOptions,
    page_size: int,
) -> AttentionOptions:
    """Checks the arguments that both functions take, once the cache is known. O(1)."""
    _, q_heads, dim = queries.shape
    layout, k_scale, v_scale = stored.layout, stored.k_scale, stored.v_scale
    arguments.batch(*lengths, page_size)
    if q_heads % layout.num_kv_heads:
        raise ValueError(f"queries have {q_heads} heads, which is no multiple of {layout.num_kv_heads} KV heads [R1]")
    if given.sinks is not None:
        arguments.array("sinks", given.sinks, 1, "[Hq]")
        arguments.same("sinks.shape", tuple(given.sinks.shape), "queries.shape[1:2]", (q_heads,))
        if given.sinks.dtype != jnp.float32:
            raise TypeError(f"sinks must be float32, not {given.sinks.dtype} [R1]")
    factor = dim**-0.5 if given.scale is None else arguments.number("scale", given.scale)
    factor *= 1.0 if given.q_scale is None else arguments.number("q_scale", given.q_scale, positive=True)
    longest = page_size * lengths.page_table.shape[1]
    return AttentionOptions(
        layout=layout,
        kv_dtype=stored.kv_dtype,
        score_scale=factor * (1.0 if k_scale is None else k_scale),
        causal=arguments.flag("causal", given.causal),
        window=arguments.option_within("window", given.window, longest),
        chunk=arguments.option_within("chunk", given.chunk, longest),
        soft_cap=None if given.soft_cap is None else arguments.number("soft_cap", given.soft_cap, positive=True),
        value_scale=1.0 if v_scale is None else v_scale,
        decode_block=arguments.decode_block(given.decode_block, page_size),
        prefill_block=arguments.prefill_block(given.prefill_block, page_size, q_heads // layout.num_kv_heads),
    )


@partial(jax.jit, static_argnames=("options", "stored"))
def _update_and_attend(
    kv_pages: Any,
    new: tuple[jax.Array, jax.Array],  # keys [T, H, D], values [T, H, Dv]
    queries: jax.Array,  # [T, Hq, D]
    lengths: Lengths,
    sinks: jax.Array | None,  # f32[Hq]
    options: AttentionOptions,
    stored: UpdateOptions,
) -> tuple[jax.Array, Any]:
    name, arrays = "fused_ragged_paged_attention", (kv_pages, new, queries, lengths, sinks)
    # As the queries are, which come after the pages, the keys and the values.
    out = Like(len(jax.tree.leaves((kv_pages, new))), options.layout.v_head_dim)
    results = (out, likes(kv_pages))
    done: tuple[jax.Array, Any] = by_platform(
        name, _update_and_attend_on, *arrays, results=results, options=options, stored=stored
    )
    return done


def _update_and_attend_on(
    kv_pages: Any,
    new: tuple[jax.Array, jax.Array],
    queries: jax.Array,
    lengths: Lengths,
    sinks: jax.Array | None,
    *,
    options: AttentionOptions,
    stored: UpdateOptions,
    platform: str | None,
) -> tuple[jax.Array, Any]:
    """All rows are written before any is read: the pages that attention gets are those that the update gave (ATT-5)."""
    tokens, (kv_lens, page_table, cu_q_lens, num_seqs) = queries.shape[0], lengths
    num_pages, page_size = stored.layout.sizes(page_values(kv_pages))
    batch = ragged(kv_lens, cu_q_lens, num_seqs, tokens, page_size * page_table.shape[1])
    slots = slots_of_tokens(batch, page_table, tokens, num_pages, page_size)
    rows = encode(kv_pages, *new, stored)
    written = write_rows(kv_pages, rows, slots, version=stored.layout.version, platform=platform)
    return _attend_on(queries, written, lengths, sinks, options=options, platform=platform), written


@partial(jax.jit, static_argnames="options")
def _attend(
    queries: jax.Array,  # [T, Hq, D]
    kv_pages: Any,
    lengths: Lengths,
    sinks: jax.Array | None,  # f32[Hq]
    options: AttentionOptions,
) -> jax.Array:
    name, arrays = "ragged_paged_attention", (queries, kv_pages, lengths, sinks)
    results = Like(0, options.layout.v_head_dim)
    out: jax.Array = by_platform(name, _attend_on, *arrays, results=results, options=options)
    return out


def _attend_on(
    queries: jax.Array,
    kv_pages: Any,
    lengths: Lengths,
    sinks: jax.Array | None,
    *,
    options: AttentionOptions,
    platform: str | None,
) -> jax.Array:
    """Attention by the platform's own kernels where it has some that take the call; without tokens there is no work."""
    num_tokens, num_heads, _ = queries.shape
    if not num_tokens:
        return jnp.zeros((0, num_heads, options.layout.v_head_dim), queries.dtype)
    numbers = jax.tree.map(partial(from_bits, dtype=options.kv_dtype), kv_pages)
    page_table = lengths.page_table
    batch = (*lengths._replace(num_seqs=lengths.num_seqs[:1]), sinks)
    if platform == "tpu":
        # Imported where they are needed: most processes never compile for a TPU or a GPU.
        from .tpu import attention as tpu
        from .tpu.decode_plan import sizes_of
        from .tpu.decode_plan import unsupported as cannot_decode
        from .tpu.prefill_geometry import plan
        from .tpu.support import require_blocks
        from .tpu.support import unsupported as unsupported_on_tpu

        require_blocks(options, queries, numbers, page_table)
        reason = unsupported_on_tpu(options, queries, numbers, page_table)
        if taken("ragged_attention", reason, blocks=lambda: plan(queries, numbers, page_table, options).blocks):
            return tpu.attend(queries, numbers, *batch, options=options)
        if isinstance(numbers, ScaledPages):
            reason = cannot_decode(options, queries, numbers, page_table)
            sizes = partial(sizes_of, options, numbers.values.shape[1])
            if taken("paged_decode", reason, warn=False, blocks=sizes):
                return tpu.attend_scaled(queries, numbers, *batch, options=options)
    if platform == "cuda":
        from .gpu import attention as gpu
        from .gpu import hopper
        from .gpu.support import unsupported as unsupported_on_gpu

        reason = hopper.unavailable() or unsupported_on_gpu(options, queries, numbers, page_table)
        of_prompts = reason or ("one token: no sequence has several" if num_tokens == 1 else None)
        taken("paged_prefill", of_prompts, warn=False)
        taken("paged_combine", reason, warn=False)
        if taken("paged_decode", reason, warn=hopper.in_sight()):
            return gpu.attend(queries, numbers, *batch, options=options)
    return xla.attend(queries, kv_pages, *batch, options=options)
