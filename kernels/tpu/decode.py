"""Decode on a TPU: attention of sequences with one query token each.

`decode_kernel` says how it works; here its arguments are arranged. `unsupported` says which shapes it takes; the
general kernel (`prefill`) does the others.

Numbers of 8 bits are widened by the matrix unit, exactly. float8_e4m3fn is native on 7x only: before, its two codes of
NaN read as 480 and -480.

The scales of ScaledPages are copied page by page as well. XLA lays an array of them out with the pages side by side,
so it copies the whole array, padded to 128 numbers a slot, before each call: O(P), 0.1 ms for 20,000 pages of 16 slots
and 8 heads at the bandwidth of a v6e.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ..dispatch import kernel_output
from ..layout import LANES, CacheLayout
from ..masks import first_key
from ..options import AttentionOptions
from ..score_units import sinks_as_scores
from .block_sizes import DecodeBlocks
from .decode_kernel import decode_kernel
from .decode_plan import DecodePlan, plan, unsupported

__all__ = ["decode", "unsupported"]

Interpret = bool | pltpu.InterpretParams


def decode(
    queries: jax.Array,  # bf16[B, Hq, D]
    kv_pages: Any,  # [P, page, *row], or ScaledPages of it
    kv_lens: jax.Array,  # i32[S]
    page_table: jax.Array,  # i32[S, pages_per_seq]
    num_rows: jax.Array,  # i32[1]
    sinks: jax.Array | None,  # f32[Hq]
    *,
    options: AttentionOptions,
    interpret: Interpret = False,
    blocks: DecodeBlocks | None = None,
) -> jax.Array:
    """Attention of the leading sequences of a batch, which have one query token each (ATT-1 to 3, ATT-6).

    Reads O(sum of kv_len) of HBM, from a window's first page on: a copy and a few scalar operations for each page.

    Args:
        queries: `bf16[B, Hq, D]`: row i is the query of sequence i.
        kv_pages: `[P, page, *row]`, bfloat16, float8 or int8, or ScaledPages of that.
        kv_lens: `i32[S]`.
        page_table: `i32[S, pages_per_seq]`; of a sequence's row only the pages that it reads, which must exist.
        num_rows: `i32[1]`: how many of the leading rows are decoded, at most B and S. The other rows of all arguments
            may hold anything.
        sinks: `f32[Hq]` or None.
        options: the options; `unsupported` must be None for them.
        interpret: what `pallas_call` takes.
        blocks: block sizes; None: those of `block_sizes`.

    Returns:
        `bf16[B, Hq, Dv]`; zeros in the rows from num_rows on, and where kv_len is 0 (ATT-2).
    """
    work = plan(queries, kv_pages, page_table, options, sinks is not None, bool(interpret), blocks)
    scalars, table = _schedule(kv_lens, page_table, num_rows, queries.shape[0], work, options)
    vectors = [_paired(queries, work)]
    specs = [pl.BlockSpec((work.rows, *vectors[0].shape[1:]), lambda step, *_: (step, 0, 0, 0))]
    if sinks is not None:
        vectors.append(_paired_sinks(sinks, work))
        specs.append(pl.BlockSpec(memory_space=pltpu.VMEM))
    cache = list(kv_pages) if work.scaled else [kv_pages]
    scratch = [pltpu.VMEM((work.tokens, *work.slot_shape), cache[0].dtype)] * work.blocks.buffers
    if work.scaled:
        scratch += [pltpu.VMEM((work.tokens, cache[1].shape[2]), jnp.float32)] * work.blocks.buffers
    state = (work.pairs, work.query_rows, LANES)
    call: Callable[..., jax.Array] = pl.pallas_call(
        partial(decode_kernel, work),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(scalars),
            grid=(work.steps,),
            in_specs=[
                pl.BlockSpec((1, 1, work.table_words), lambda step, *_: (step, 0, 0), memory_space=pltpu.SMEM),
                *specs,
                *[pl.BlockSpec(memory_space=pltpu.HBM)] * len(cache),
            ],
            out_specs=pl.BlockSpec((work.rows, *state), lambda step, *_: (step, 0, 0, 0)),
            scratch_shapes=[
                *scratch,
                pltpu.VMEM(state, jnp.float32),
                pltpu.VMEM(state, jnp.float32),
                pltpu.VMEM((*state[:2], 2 * LANES), jnp.float32),
                pltpu.SemaphoreType.DMA((work.blocks.buffers,)),
            ],
        ),
        out_shape=kernel_output((work.steps * work.rows, *state), queries.dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("arbitrary",), disable_bounds_checks=True, vmem_limit_bytes=work.vmem_bytes
        ),
        name="paged_decode",
        interpret=interpret,
    )
    return _unpaired(call(*scalars, table, *vectors, *cache), queries, work)


def _schedule(
    kv_lens: jax.Array,
    page_table: jax.Array,
    num_rows: jax.Array,
    num_queries: int,
    work: DecodePlan,
    options: AttentionOptions,
) -> tuple[list[jax.Array], jax.Array]:
    """The kernel's scalars: its rounds, what each sequence reads; and the page table, cut into grid steps."""
    taken = min(num_queries, kv_lens.shape[0])
    decoded = jnp.arange(taken, dtype=jnp.int32) < num_rows[0]
    lens = jnp.where(decoded, jnp.clip(kv_lens[:taken], 0, work.pages_per_seq * work.page_size), 0)
    first = first_key(lens - 1, options)
    first_page = first // work.page_size
    skipped = first - first_page * work.page_size
    live = lens - first_page * work.page_size
    items = _by_step(jnp.where(decoded, jnp.maximum(-(-live // work.tokens), 1), 0), work)
    rounds = -(-jnp.sum(items, axis=1, dtype=jnp.int32) // work.blocks.buffers)
    table = _by_step(page_table[:taken], work).reshape(work.steps, 1, -1)
    table = jnp.pad(table, ((0, 0), (0, 0), (0, work.table_words - table.shape[2])))
    of_sequences = [live, first_page, skipped] if work.windowed else [live]
    return [rounds, *(_by_step(numbers, work).reshape(-1) for numbers in of_sequences)], table


def _by_step(rows: jax.Array, work: DecodePlan) -> jax.Array:
    """Rows cut into grid steps, each with a spare row, zero: `[n, ...]` as `[steps, rows, ...]`."""
    used, rest = work.rows - 1, [(0, 0)] * (rows.ndim - 1)
    padded = jnp.pad(rows, [(0, work.steps * used - rows.shape[0]), *rest])
    return jnp.pad(padded.reshape(work.steps, used, *rows.shape[1:]), [(0, 0), (0, 1), *rest])


def _heads(rows: jax.Array, work: DecodePlan) -> jax.Array:
    """Query heads by pair: `[..., Hq, n]` as `[..., pairs, 2, G, n]`, a missing head zero."""
    heads = rows.reshape(*rows.shape[:-2], work.layout.num_kv_heads, work.group, rows.shape[-1])
    missing = 2 * work.pairs - work.layout.num_kv_heads
    heads = jnp.pad(heads, [(0, 0)] * (heads.ndim - 3) + [(0, missing), (0, 0), (0, 0)])
    return heads.reshape(*rows.shape[:-2], work.pairs, 2, work.group, rows.shape[-1])


def _paired(queries: jax.Array, work: DecodePlan) -> jax.Array:
    """The queries as block-diagonal matrices: `[B, Hq, D]` as `[steps * rows, pairs, 2G, 256]`."""
    wide = jnp.pad(queries, ((0, 0), (0, 0), (0, LANES - queries.shape[2])))
    heads = _heads(_by_step(wide, work).reshape(work.steps * work.rows, *wide.shape[1:]), work)
    nothing = jnp.zeros_like(heads[..., 0, :, :])
    left = jnp.concatenate([heads[..., 0, :, :], nothing], axis=-1)
    right = jnp.concatenate([nothing, heads[..., 1, :, :]], axis=-1)
    return jnp.concatenate([left, right], axis=-2)


def _paired_sinks(sinks: jax.Array, work: DecodePlan) -> jax.Array:
    """The sinks as scores, in all lanes: `f32[Hq]` as `f32[pairs, 2G, 128]`."""
    heads = _heads(sinks_as_scores(sinks, work)[:, None], work)
    return jnp.broadcast_to(heads.reshape(work.pairs, work.query_rows, 1), (work.pairs, work.query_rows, LANES))


def _unpaired(output: jax.Array, queries: jax.Array, work: DecodePlan) -> jax.Array:
    """The kernel's output as `[B, Hq, Dv]`."""
    num_queries, num_heads, _ = queries.shape
    used = output.reshape(work.steps, work.rows, -1)[:, :-1]
    heads = used.reshape(work.steps * (work.rows - 1), 2 * work.pairs * work.group, LANES)
    first = value_column(work.layout)
    return heads[:num_queries, :num_heads, first : first + work.layout.v_head_dim]


def value_column(layout: CacheLayout) -> int:
    """Where in a row of 128 a head's value begins: behind the key, where they share a row."""
    return layout.head_dim if layout.shares_rows else 0
