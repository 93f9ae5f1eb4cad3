"""R1: how a view reads arrays, steps and options, before any program is traced.

JAX silently converts float64 to float32 and int64 to int32 when a program is called, and splits arrays over a mesh
before the kernels see them: both are checked here.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kvproof.kernels import ScaledPages, storage_dtype
from kvproof.kernels.dynamic_checks import check_batch, check_slots, written_slots

from ..reading.arguments import instance, refusal
from .cache_metadata import RaggedPagesCacheMetaData
from .cache_programs import AnyArray, Options
from .ragged_metadata import RaggedPagesMetadata

__all__ = [
    "read_queries",
    "read_rows",
    "read_sinks",
    "require_kept",
    "require_pages",
    "require_step",
    "static_options",
    "validate_step",
]

_FLOATS = (jnp.float32, jnp.bfloat16, jnp.float16)


def require_pages(pages: Any, metadata: RaggedPagesCacheMetaData, clause: str) -> None:
    """Refuses pages that are not as the metadata says, in the cache's dtype or bits of it. O(1).

    Args:
        pages: an array or `ScaledPages`.
        metadata: the cache's.
        clause: the label of the clause that they break.
    """
    shape, _ = metadata.get_shape_and_axes()
    scaled = isinstance(pages, ScaledPages)
    if scaled != metadata.slot_scales:
        raise refusal(
            ValueError, clause, f"kv_pages: metadata.slot_scales={metadata.slot_scales}, ScaledPages: {scaled}"
        )
    values = pages.values if scaled else pages
    found = getattr(values, "dtype", type(values).__name__), tuple(getattr(values, "shape", ()))
    if found[1] != shape or found[0] not in (metadata.kvdtype, storage_dtype(metadata.kvdtype, "cpu")):
        raise refusal(
            ValueError, clause, f"kv_pages must be {metadata.kvdtype}{list(shape)}, not {found[0]}{list(found[1])}"
        )
    slots, heads = metadata.page_size, 2 * metadata.num_kv_heads
    wanted = (shape[0], heads, slots) if metadata.shard_layout.slots_last else (shape[0], slots, heads)
    if scaled and (tuple(pages.scales.shape) != wanted or pages.scales.dtype != jnp.float32):
        raise refusal(ValueError, clause, f"kv_pages.scales must be float32{list(wanted)}")


def require_kept(pages: Any) -> Any:
    """Refuses pages that were donated to an earlier call that wrote (CACHE-3). O(arrays)."""
    for array in jax.tree.leaves(pages):
        if isinstance(array, jax.Array) and not isinstance(array, jax.core.Tracer) and array.is_deleted():
            raise refusal(
                ValueError, "CACHE-3", "pages: a call that wrote was given them; what it returned is to be used"
            )
    return pages


def require_step(step: object, metadata: RaggedPagesCacheMetaData) -> None:
    """Refuses metadata that is not of a step for this cache (R1, CACHE-5). O(1)."""
    step = instance("cache_metadata", step, RaggedPagesMetadata)
    if step.page_size != metadata.page_size:
        raise refusal(ValueError, "R1", f"cache_metadata.page_size={step.page_size} must be {metadata.page_size}")
    for name, array in vars(step).items():
        if hasattr(array, "dtype") and array.dtype != jnp.int32:
            raise refusal(TypeError, "R1", f"cache_metadata.{name}.dtype={array.dtype} must be int32")
    shape, shards = tuple(step.num_seqs.shape), metadata.num_page_shards
    if shape not in ((shards,), tuple(step.context_lens.shape)):
        raise refusal(
            ValueError,
            "CACHE-5",
            f"cache_metadata.num_seqs.shape={shape} must be ({shards},): one step for each data shard, stacked",
        )


def _floats(name: str, array: Any) -> Any:
    if not isinstance(array, jax.Array | np.ndarray):
        raise refusal(TypeError, "R1", f"{name}={type(array).__name__} must be an array")
    if array.dtype not in _FLOATS:
        raise refusal(TypeError, "R1", f"{name}.dtype={array.dtype} must be float32, bfloat16 or float16")
    return array


def read_rows(name: str, array: Any, metadata: RaggedPagesCacheMetaData, head_dim: int) -> Any:
    """Reads keys or values of a step, `[T, H, head_dim]` or `[batch, seq, H, head_dim]`, as `[T, H, head_dim]` (R1)."""
    shape, heads = _floats(name, array).shape, metadata.num_kv_heads
    if len(shape) not in (3, 4) or tuple(shape[-2:]) != (heads, head_dim):
        raise refusal(ValueError, "R1", f"{name}.shape={tuple(shape)} must be [..., {heads}, {head_dim}]")
    rows = array if len(shape) == 3 else array.reshape(-1, heads, head_dim)
    _require_parts(name, rows, metadata)
    return rows


def read_queries(queries: Any, metadata: RaggedPagesCacheMetaData) -> Any:
    """Reads the queries of a step, `[T, Hq, D]`, of a number of heads that is a multiple of H (R1)."""
    shape, heads = _floats("queries", queries).shape, metadata.num_kv_heads
    if len(shape) != 3 or not shape[1] or shape[1] % heads:
        raise refusal(ValueError, "R1", f"queries.shape={tuple(shape)} must be [T, n * {heads}, D]")
    _require_parts("queries", queries, metadata)
    return queries


def _require_parts(name: str, rows: Any, metadata: RaggedPagesCacheMetaData) -> None:
    if rows.shape[0] % metadata.num_page_shards:
        raise refusal(
            ValueError, "CACHE-5", f"{name}: {rows.shape[0]} tokens are not of {metadata.num_page_shards} shards"
        )


def read_sinks(sinks: Any, queries: Any) -> Any:
    """Reads the sinks of the query heads, `f32[Hq]`, or None (R1)."""
    if sinks is not None and _floats("sinks", sinks).shape != (queries.shape[1],):
        raise refusal(ValueError, "R1", f"sinks.shape={tuple(sinks.shape)} must be ({queries.shape[1]},)")
    return sinks


def static_options(options: Mapping[str, Any]) -> Options:
    """Reads static options, in one order, as programs are compiled for them (R1). O(options)."""
    for name, value in options.items():
        try:
            hash(value)
        except TypeError:
            kind = type(value).__name__
            raise refusal(TypeError, "R1", f"{name}={kind} must be static: a number, a flag or None") from None
    return tuple((name, type(value), value) for name, value in sorted(options.items()))


def validate_step(
    call: Callable[[], Any],
    step: RaggedPagesMetadata,
    metadata: RaggedPagesCacheMetaData,
    queries: AnyArray,
    *,
    writes: bool,
) -> None:
    """Checks the arrays of a step, data shard by data shard (R1). O(their size), on the host.

    Args:
        call: the program that is to run: it is traced first, so that shapes and dtypes are known to be right.
        step: the step.
        metadata: the cache's.
        queries: `[T, Hq, D]`.
        writes: True if the program writes the tokens as well.

    Raises:
        TypeError: an argument that the program refuses.
        ValueError: the same; lengths that don't agree, a slot written twice, or arrays that are traced.
        IndexError: the table names a page that does not exist.
    """
    jax.eval_shape(call)
    shards, page_size = metadata.num_page_shards, metadata.page_size
    for number in range(shards):
        own = step.shard(number, shards)
        batch = own.context_lens, own.pages_tables, own.query_start_loc, own.num_seqs
        check_batch(*batch, queries.shape[0] // shards, metadata.num_pages, page_size)
        if writes:
            slots = written_slots(*batch, page_size)
            check_slots(slots, metadata.num_pages * page_size, "the slots written through pages_tables")
