"""Which attention calls the TPU kernels take. The others are left to XLA, with a reason that can be read.

| not taken | why |
|---|---|
| layout seq_on_lane | a slot is a column of its page: the kernels copy and multiply rows |
| ScaledPages, but for decoding | every slot and head has a scale of its own, in an array of its own |
| float16 caches | Mosaic takes no float16, and XLA gives its bits as integers only by copying the cache |
| v2 whose rows don't fill tiles: 2H no multiple of 8, nor a power of two of whole words | no part of a tile is copied |
| page tables above 768 KiB | the scalar unit reads the table from its own memory, of 1 MiB |
| slots too large for three blocks of one page in VMEM | nothing could be in flight |
"""

from typing import Any

import jax
import jax.numpy as jnp

from ..layout import COLUMNS
from ..options import AttentionOptions
from ..storage import ScaledPages
from . import decode_plan
from .prefill_geometry import VMEM_BYTES, plan
from .prefill_schedule import most_blocks, schedule_bytes

__all__ = ["require_blocks", "unsupported"]

_SMEM_BYTES = 768 * 2**10
"""What a page table and a schedule may take of the scalar unit's memory."""

_SPILLED_BYTES = 8 * 2**20
"""VMEM that is left to the compiler."""


def unsupported(
    options: AttentionOptions,
    queries: jax.Array,  # [T, Hq, D]
    kv_pages: Any,
    page_table: jax.Array,  # i32[S, pages_per_seq]
) -> str | None:
    """Why a call can't be made by `attend` of `tpu.attention`, or None when it can. O(1).

    Args:
        options: the options.
        queries: `[T, Hq, D]`: anything with a shape and a dtype, as all arrays here.
        kv_pages: `[P, page, ...]`, of the dtype of the numbers, or ScaledPages.
        page_table: `i32[S, pages_per_seq]`.
    """
    if options.layout.slots_last:
        return COLUMNS
    if isinstance(kv_pages, ScaledPages):
        return "ScaledPages: a kernel applies the scale of each slot and head only where it decodes, over v3"
    if jnp.dtype(options.kv_dtype) == jnp.dtype(jnp.float16):
        return "a cache of float16: Mosaic takes none, and its bits can't be had without a copy"
    geometry = plan(queries, kv_pages, page_table, options)
    if not geometry.fills_tiles:
        return f"{options.layout.combined_rows} rows of {geometry.kv_dtype} in a v2 slot fill no tiles"
    num_seqs, pages_per_seq = page_table.shape
    scalars = 4 * num_seqs * pages_per_seq + schedule_bytes(
        most_blocks(queries.shape[0], num_seqs, geometry.blocks.queries)
    )
    if scalars > _SMEM_BYTES:
        return f"page table and schedule take {scalars} bytes of scalar memory, more than {_SMEM_BYTES}"
    if geometry.vmem_bytes > VMEM_BYTES - _SPILLED_BYTES:
        return f"the blocks take {geometry.vmem_bytes} bytes of VMEM, more than {VMEM_BYTES - _SPILLED_BYTES}"
    return None


def require_blocks(
    options: AttentionOptions,
    queries: jax.Array,  # [T, Hq, D]
    kv_pages: Any,
    page_table: jax.Array,  # i32[S, pages_per_seq]
) -> None:
    """Refuses blocks that a call asks for and that no TPU has room for, before anything is compiled. O(1).

    Arguments are those of `unsupported`.

    Raises:
        ValueError: if buffers of such blocks take more VMEM than kernels may [R1].
    """
    if options.decode_block is not None and decode_plan.unsupported(options, queries, kv_pages, page_table) is None:
        needed = decode_plan.plan(queries[:, None], kv_pages, page_table, options, False, False).vmem_bytes
        _require_room("decode_block", options.decode_block, needed)
    if options.prefill_block is not None and not isinstance(kv_pages, ScaledPages) and not options.layout.slots_last:
        _require_room("prefill_block", options.prefill_block, plan(queries, kv_pages, page_table, options).vmem_bytes)


def _require_room(name: str, value: object, needed: int) -> None:
    most = VMEM_BYTES - _SPILLED_BYTES
    if needed > most:
        raise ValueError(f"{name}={value}: its buffers take {needed} bytes of VMEM, more than {most} [R1]")
