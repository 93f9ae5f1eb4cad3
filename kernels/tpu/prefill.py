"""Attention over paged keys and values on a TPU, for any ragged batch: the call round the general kernel."""

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ..dispatch import kernel_output
from ..layout import LANES
from ..options import AttentionOptions
from ..score_units import sinks_as_scores
from .prefill_fold import LOWEST
from .prefill_geometry import NUM_BUFFERS, VMEM_BYTES, Blocks, Geometry, plan
from .prefill_kernel import attend_blocks
from .prefill_memory import Kernel, Refs
from .prefill_schedule import Schedule, make_schedule

__all__ = ["prefill", "prefill_by", "schedule_of"]

Interpret = bool | pltpu.InterpretParams


def prefill(
    queries: jax.Array,  # [T, Hq, D]
    kv_pages: jax.Array,  # [P, page, ...]
    kv_lens: jax.Array,  # i32[S]
    page_table: jax.Array,  # i32[S, pages_per_seq]
    cu_q_lens: jax.Array,  # i32[S + 1]
    num_seqs: jax.Array,  # i32[1]
    sinks: jax.Array | None,  # f32[Hq]
    skipped: jax.Array,  # i32[]
    *,
    options: AttentionOptions,
    interpret: Interpret = False,
    blocks: Blocks | None = None,
) -> jax.Array:
    """Attention of the sequences from ``skipped`` on (ATT-1 to 4, ATT-6).

    The time is that of the keys read: of each block of queries those from the first that one of its queries sees to
    the last.

    Args:
        queries: `[T, Hq, D]`: float32, bfloat16 or float16.
        kv_pages: `[P, page, 2H, Dp]` or `[P, page, groups, packing, Dp]`, of the numbers' dtype, not float16.
        kv_lens: `i32[S]`: tokens of each sequence, its queries included.
        page_table: `i32[S, pages_per_seq]`, as `clean_table` makes it.
        cu_q_lens: `i32[S + 1]`: where each sequence's queries begin.
        num_seqs: `i32[1]`: sequences that there are.
        sinks: `f32[Hq]` or None.
        skipped: `i32[]`: leading sequences to leave out.
        options: the options.
        interpret: what `pallas_call` takes.
        blocks: block sizes; None: those of `block_sizes`.

    Returns:
        `[T, Hq, Dv]`, of the queries' dtype; tokens of no sequence, and of those left out, hold anything.
    """
    batch = (kv_lens, page_table, cu_q_lens, num_seqs)
    schedule = schedule_of(queries, kv_pages, *batch, skipped, options=options, blocks=blocks)
    return prefill_by(
        schedule, queries, kv_pages, page_table, sinks, options=options, interpret=interpret, blocks=blocks
    )


def schedule_of(
    queries: jax.Array,  # [T, Hq, D]
    kv_pages: jax.Array,  # [P, page, ...]
    kv_lens: jax.Array,  # i32[S]
    page_table: jax.Array,  # i32[S, pages_per_seq]
    cu_q_lens: jax.Array,  # i32[S + 1]
    num_seqs: jax.Array,  # i32[1]
    skipped: jax.Array,  # i32[]
    *,
    options: AttentionOptions,
    blocks: Blocks | None = None,
) -> Schedule:
    """The schedule of a `prefill` with these arguments; it depends on shapes and lengths alone."""
    geometry = plan(queries, kv_pages, page_table, options, blocks)
    return make_schedule(
        kv_lens,
        page_table,
        cu_q_lens,
        num_seqs,
        skipped,
        num_tokens=queries.shape[0],
        page_size=geometry.page_size,
        block_queries=geometry.blocks.queries,
        block_keys=geometry.block_keys,
        options=options,
    )


def prefill_by(
    schedule: Schedule,
    queries: jax.Array,  # [T, Hq, D]
    kv_pages: jax.Array,  # [P, page, ...]
    page_table: jax.Array,  # i32[S, pages_per_seq]
    sinks: jax.Array | None,  # f32[Hq]
    *,
    options: AttentionOptions,
    interpret: Interpret = False,
    blocks: Blocks | None = None,
) -> jax.Array:
    """What `prefill` does, by a schedule that `schedule_of` made of the same arguments."""
    num_tokens = queries.shape[0]
    geometry = plan(queries, kv_pages, page_table, options, blocks)
    inputs = [blocked_queries(queries, geometry), kv_pages]
    if sinks is not None:
        inputs.append(blocked_sinks(sinks, geometry, options))
    call: Callable[..., jax.Array] = pl.pallas_call(
        partial(_kernel, geometry=geometry, options=options, sunk=sinks is not None, emulated=bool(interpret)),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(schedule),
            grid=(1,),
            in_specs=[
                pl.BlockSpec(memory_space=pltpu.HBM),
                pl.BlockSpec(memory_space=pltpu.HBM),
                *[pl.BlockSpec(memory_space=pltpu.VMEM)] * (len(inputs) - 2),
            ],
            out_specs=pl.BlockSpec(memory_space=pltpu.HBM),
            scratch_shapes=scratch_of(geometry, kv_pages.dtype),
        ),
        out_shape=kernel_output(token_shape(geometry, num_tokens, geometry.value_tiles), geometry.query_dtype),
        compiler_params=pltpu.CompilerParams(disable_bounds_checks=True, vmem_limit_bytes=VMEM_BYTES),
        name="ragged_attention",
        interpret=interpret,
    )
    blocked = call(*schedule, *inputs)
    return unblocked_outputs(blocked, geometry).astype(queries.dtype)


def _kernel(*refs: Any, geometry: Geometry, options: AttentionOptions, sunk: bool, emulated: bool) -> None:
    given = iter(refs)
    named = {}
    for field in fields(Refs):
        absent = (field.name == "sinks" and not sunk) or (field.name == "words" and geometry.layout.version == "v3")
        named[field.name] = None if absent else next(given)
    attend_blocks(Kernel(Refs(**named), geometry, options, emulated))


def scratch_of(geometry: Geometry, stored: Any) -> list[Any]:
    """The kernel's own memory, in the order of `Refs`."""
    heads, rows, columns = geometry.heads, geometry.rows, geometry.columns
    words = pltpu.VMEM((geometry.column_tiles, geometry.word_rows, columns, LANES), jnp.int32)
    return [
        *([words] if geometry.layout.version == "v2" else []),
        pltpu.VMEM((2, *token_shape(geometry, geometry.blocks.queries, geometry.key_tiles)), geometry.query_dtype),
        pltpu.VMEM((2, *token_shape(geometry, geometry.blocks.queries, geometry.value_tiles)), geometry.query_dtype),
        pltpu.VMEM((NUM_BUFFERS, geometry.column_tiles, columns, *geometry.row_buffer), stored),
        pltpu.VMEM((heads, rows, geometry.key_tiles * LANES), geometry.compute_dtype),
        pltpu.VMEM((heads, rows, LANES), jnp.float32),
        pltpu.VMEM((heads, rows, LANES), jnp.float32),
        pltpu.VMEM((heads, rows, geometry.value_tiles * LANES), jnp.float32),
        pltpu.VMEM((rows, columns), jnp.float32),
        pltpu.VMEM((columns, LANES), jnp.int32),
        pltpu.SemaphoreType.DMA((2,)),
        pltpu.SemaphoreType.DMA((2,)),
        pltpu.SemaphoreType.DMA((NUM_BUFFERS,)),
    ]


def token_shape(geometry: Geometry, tokens: int, tiles: int) -> tuple[int, ...]:
    """The shape of queries or outputs: tokens on an axis that no tile covers, so that a copy may begin at any."""
    packing = geometry.query_packing
    return geometry.heads, tokens, geometry.group // packing, packing, tiles * LANES


def blocked_queries(
    queries: jax.Array,  # [T, Hq, D]
    geometry: Geometry,
) -> jax.Array:
    """Queries as the kernel copies them: `query_dtype` of `token_shape`, padded with zeros."""
    heads, width = geometry.layout.num_kv_heads, geometry.key_tiles * LANES
    rows = queries.astype(geometry.query_dtype).reshape(queries.shape[0], heads, geometry.group, queries.shape[2])
    rows = jnp.pad(rows, ((0, 0), (0, geometry.heads - heads), (0, 0), (0, width - queries.shape[2])))
    return rows.swapaxes(0, 1).reshape(token_shape(geometry, queries.shape[0], geometry.key_tiles))


def blocked_sinks(
    sinks: jax.Array,  # f32[Hq]
    geometry: Geometry,
    options: AttentionOptions,
) -> jax.Array:
    """Sinks as maxima to begin with, as scores: `f32[heads, rows, 128]`."""
    scores = jnp.maximum(sinks_as_scores(sinks, options), LOWEST)
    scores = scores.reshape(geometry.layout.num_kv_heads, geometry.group)
    scores = jnp.pad(scores, ((0, geometry.heads - scores.shape[0]), (0, 0)))
    rows = jnp.tile(scores, (1, geometry.blocks.queries))
    return jnp.broadcast_to(rows[:, :, None], (*rows.shape, LANES))


def unblocked_outputs(
    outputs: jax.Array,  # [heads, T, group / packing, packing, n]
    geometry: Geometry,
) -> jax.Array:
    """Outputs as the caller knows them: `[T, Hq, Dv]`."""
    layout = geometry.layout
    width = outputs.shape[-1]
    begin = layout.head_dim if layout.shares_rows else 0
    rows = outputs[: layout.num_kv_heads].reshape(layout.num_kv_heads, -1, geometry.group, width)
    rows = rows[..., begin : begin + layout.v_head_dim].swapaxes(0, 1)
    return rows.reshape(rows.shape[0], -1, layout.v_head_dim)
