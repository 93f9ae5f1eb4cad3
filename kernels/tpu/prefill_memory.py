"""What the general kernel's steps work on: its memory, and what it was compiled for."""

from dataclasses import dataclass
from typing import Any

import jax

from ..options import AttentionOptions
from .prefill_geometry import Geometry
from .prefill_schedule import Field

__all__ = ["Kernel", "Ref", "Refs"]

Ref = Any


@dataclass(frozen=True)
class Refs:
    """Everything in memory that the kernel touches.

    Attributes:
        blocks: `i32[len(Field), N]` in SMEM: the schedule.
        counts: `i32[3]` in SMEM: `Schedule.counts`.
        table: `i32[S * pages_per_seq]` in SMEM: the clean page table: -1 for what names no page.
        queries: `[heads, T, group / packing, packing, key_tiles * 128]` in HBM.
        kv_pages: `[P, page, ...]` in HBM.
        sinks: `f32[heads, rows, 128]` in VMEM, as scores (`score_units`); None: no sinks.
        outputs: `[heads, T, group / packing, packing, value_tiles * 128]` in HBM.
        words: `i32[column_tiles, word_rows, columns, 128]`: a key block's words, row after row; None: in v3.
        query_buffer: two query blocks, as they come.
        output_buffer: two output blocks.
        kv_buffer: `NUM_BUFFERS` key blocks, each `[column_tiles, columns, *row_buffer]`.
        rows: `[heads, rows, key_tiles * 128]`: the queries as they are multiplied.
        maxima: `f32[heads, rows, 128]`.
        sums: `f32[heads, rows, 128]`.
        accumulators: `f32[heads, rows, value_tiles * 128]`.
        most: `f32[rows, columns]`: the most that each score of a masked key block may be: infinity where it counts.
        live: `i32[columns, 128]`: all bits set for a slot that any query of a masked key block reads, else none.
        query_arrived: a semaphore for each query buffer.
        output_left: a semaphore for each output buffer.
        kv_arrived: a semaphore for each key buffer.
    """

    blocks: Ref
    counts: Ref
    table: Ref
    queries: Ref
    kv_pages: Ref
    sinks: Ref | None
    outputs: Ref
    words: Ref | None
    query_buffer: Ref
    output_buffer: Ref
    kv_buffer: Ref
    rows: Ref
    maxima: Ref
    sums: Ref
    accumulators: Ref
    most: Ref
    live: Ref
    query_arrived: Ref
    output_left: Ref
    kv_arrived: Ref


@dataclass(frozen=True)
class Kernel:
    """A call's kernel: its memory and what it was compiled for.

    Attributes:
        refs: the memory.
        geometry: the shapes.
        options: the options of the call.
        emulated: whether it is interpreted.
    """

    refs: Refs
    geometry: Geometry
    options: AttentionOptions
    emulated: bool

    def of(self, field: Field, block: int | jax.Array) -> jax.Array:
        """What the schedule says of a query block."""
        value: jax.Array = self.refs.blocks[field, block]
        return value
