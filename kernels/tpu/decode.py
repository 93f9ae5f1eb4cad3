"""Decode on a TPU: attention of sequences with one query token each, or with up to 8, as where drafts are verified.

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
from .decode_plan import DecodePlan, most_queries, plan, unsupported, unsupported_drafts

__all__ = ["decode", "most_queries", "unsupported", "unsupported_drafts"]

Interpret = bool | pltpu.InterpretParams


def decode(
    queries: jax.Array,  # bf16[B, Q, Hq, D]
    kv_pages: Any,  # [P, page, *row], or ScaledPages of it
    kv_lens: jax.Array,  # i32[S]
    page_table: jax.Array,  # i32[S, pages_per_seq]
    num_rows: jax.Array,  # i32[1]
    sinks: jax.Array | None,  # f32[Hq]
    q_lens: jax.Array | None = None,  # i32[S]
    *,
    options: AttentionOptions,
    interpret: Interpret = False,
    blocks: DecodeBlocks | None = None,
) -> jax.Array:
    """Attention of the leading sequences of a batch, which have at most Q query tokens each (ATT-1 to 3, ATT-6).

    Reads O(sum of kv_len) of HBM, from a window's first page on: a copy and a few scalar operations for each page.

    Args:
        queries: `bf16[B, Q, Hq, D]`: row i has the queries of sequence i, from its first on.
        kv_pages: `[P, page, *row]`, bfloat16, float8 or int8, or ScaledPages of that.
        kv_lens: `i32[S]`.
        page_table: `i32[S, pages_per_seq]`; of a sequence's row only the pages that it reads, which must exist.
        num_rows: `i32[1]`: how many of the leading rows are decoded, at most B and S. The other rows of all arguments
            may hold anything.
        sinks: `f32[Hq]` or None.
        q_lens: `i32[S]`: the queries of each sequence, from 1 to Q and at most its tokens; None where Q is 1.
        options: the options; `unsupported` must be None for them.
        interpret: what `pallas_call` takes.
        blocks: block sizes; None: those of `block_sizes`.

    Returns:
        `bf16[B, Q, Hq, Dv]`; zeros in the rows from num_rows on, and where kv_len is 0 (ATT-2); behind a sequence's
        last query anything.
    """
    work = plan(queries, kv_pages, page_table, options, sinks is not None, bool(interpret), blocks)
    scalars, table = _schedule(kv_lens, page_table, num_rows, q_lens, queries.shape[0], work, options)
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
    outputs = (*state[:2], work.output_columns)
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
            out_specs=pl.BlockSpec((work.rows, *outputs), lambda step, *_: (step, 0, 0, 0)),
            scratch_shapes=[
                *scratch,
                pltpu.VMEM(state, jnp.float32),
                pltpu.VMEM(state, jnp.float32),
                pltpu.VMEM((*state[:2], 2 * LANES), jnp.float32),
                pltpu.VMEM((*state[:2], work.tokens), jnp.float32),
                *[pltpu.VMEM((cache[1].shape[2], work.tokens), jnp.float32) for _ in range(int(work.scaled))],
                pltpu.SMEM((3, 1 + work.blocks.buffers + work.blocks.ahead), jnp.int32),
                pltpu.SemaphoreType.DMA((work.blocks.buffers,)),
            ],
        ),
        out_shape=kernel_output((work.steps * work.rows, *outputs), queries.dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("arbitrary",), disable_bounds_checks=True, vmem_limit_bytes=work.vmem_bytes
        ),
        name="paged_decode" if work.queries == 1 else "paged_decode_drafts",
        interpret=interpret,
    )
    return _unpaired(call(*scalars, table, *vectors, *cache), queries, work)


def _schedule(
    kv_lens: jax.Array,
    page_table: jax.Array,
    num_rows: jax.Array,
    q_lens: jax.Array | None,
    most_rows: int,
    work: DecodePlan,
    options: AttentionOptions,
) -> tuple[list[jax.Array], jax.Array]:
    """The kernel's scalars: its rounds, what each sequence reads; and the page table, cut into grid steps."""
    taken = min(most_rows, kv_lens.shape[0])
    decoded = jnp.arange(taken, dtype=jnp.int32) < num_rows[0]
    lens = jnp.where(decoded, jnp.clip(kv_lens[:taken], 0, work.pages_per_seq * work.page_size), 0)
    counts = jnp.int32(1) if q_lens is None else jnp.where(decoded, q_lens[:taken], 1)
    first_page = first_key(lens - counts, options) // work.page_size
    live = lens - first_page * work.page_size
    items = _filled(jnp.where(decoded, jnp.maximum(-(-live // work.tokens), 1), 0), work)
    blocks = jnp.sum(items.reshape(work.steps, work.rows), axis=1, dtype=jnp.int32)
    # The values of the last block are added where one more would be scored.
    rounds = jnp.where(blocks == 0, 0, blocks // work.blocks.buffers + 1)
    table = _filled(page_table[:taken], work).reshape(work.steps, 1, -1)
    table = jnp.pad(table, ((0, 0), (0, 0), (0, work.table_words - table.shape[2])))
    of_sequences = [live]
    if q_lens is not None:
        of_sequences.append(counts)
    if work.windowed:
        of_sequences.append(first_page)
    if work.chunk is not None:
        of_sequences.append(jnp.maximum(lens - counts, 0) % work.chunk)
    of_steps = [_filled(numbers, work).reshape(work.steps, work.rows) for numbers in of_sequences]
    return [rounds, *(jnp.pad(numbers, ((0, 0), (0, 1))).reshape(-1) for numbers in of_steps)], table


def _filled(rows: jax.Array, work: DecodePlan) -> jax.Array:
    """Rows for all grid steps, those that are missing zero: `[n, ...]` as `[steps * rows, ...]`."""
    missing = work.steps * work.rows - rows.shape[0]
    return jnp.pad(rows, [(0, missing), *[(0, 0)] * (rows.ndim - 1)])


def _paired(queries: jax.Array, work: DecodePlan) -> jax.Array:
    """The queries as block-diagonal matrices: `[B, Q, Hq, D]` as `[steps * rows, pairs, query rows, 256]`.

    Head by head, so that XLA makes one operation of it: each head's numbers stand in its own half of 256, if it has no
    more than that.
    """
    num_heads, dim = queries.shape[2:]
    heads = work.pairs * work.token_rows
    wide = jnp.pad(_filled(queries, work), ((0, 0), (0, 0), (0, heads - num_heads), (0, work.output_columns - dim)))
    if work.output_columns == LANES:
        is_right = (jnp.arange(heads, dtype=jnp.int32) // work.group % 2 == 1)[None, None, :, None]
        nothing = jnp.zeros_like(wide)
        wide = jnp.concatenate([jnp.where(is_right, nothing, wide), jnp.where(is_right, wide, nothing)], axis=-1)
    pairs = wide.reshape(-1, work.queries, work.pairs, work.token_rows, 2 * LANES)
    return pairs.swapaxes(1, 2).reshape(-1, work.pairs, work.query_rows, 2 * LANES)


def _paired_sinks(sinks: jax.Array, work: DecodePlan) -> jax.Array:
    """The sinks as scores, in all lanes: `f32[Hq]` as `f32[pairs, query rows, 128]`."""
    scores = jnp.pad(sinks_as_scores(sinks, work), (0, work.pairs * work.token_rows - sinks.shape[0]))
    rows = jnp.tile(scores.reshape(work.pairs, -1), (1, work.queries))[:, :, None]
    return jnp.broadcast_to(rows, (*rows.shape[:2], LANES))


def _unpaired(output: jax.Array, queries: jax.Array, work: DecodePlan) -> jax.Array:
    """The kernel's output as `[B, Q, Hq, Dv]`."""
    num_rows, num_queries, num_heads, _ = queries.shape
    pairs = output.reshape(-1, work.pairs, num_queries, work.token_rows, work.output_columns).swapaxes(1, 2)
    heads = pairs.reshape(-1, num_queries, work.pairs * work.token_rows, work.output_columns)
    first = value_column(work.layout)
    return heads[:num_rows, :, :num_heads, first : first + work.layout.v_head_dim]


def value_column(layout: CacheLayout) -> int:
    """Where in a row a head's value begins: behind the key, where they share a row."""
    return layout.head_dim if layout.shares_rows else 0
