"""ATT-1 for multi-head latent attention: all heads read one latent vector a token, and one rotary key.

A slot of the latent cache is one row: the latent, then the rotary key, each padded with zeros to a multiple of 128
elements (CACHE-2). The queries are *absorbed*: the model has multiplied them by the matrix that expands latents into
keys, and multiplies the result by the matrix that expands latents into values.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..layout.cache_dtypes import CODES, FLOATS, saturated, stored_dtype
from ..layout.cache_layout import align_to_multiple, require_slots
from ..layout.cache_update import read_writes
from ..reading.arguments import array_of, flag, refusal
from .attention import attended, read_rule
from .attention_batch import read_batch

__all__ = ["mla_cache_update", "mla_paged_attention"]

_LANES = 128


def mla_cache_update(
    latent_pages: Any,
    latents: Any,
    rotary: Any,
    slot_mapping: Any,
    *,
    num_slices: Any = None,
    kv_dtype: Any = None,
    validate: bool = False,
) -> NDArray[Any]:
    """Writes latents and rotary keys into slots of the latent cache (CACHE-3). O(cache), as it is copied.

    Args:
        latent_pages: `[P, page, align(R, 128) + align(Dr, 128)]`: f32, bf16, f16, or fp8, which saturates.
        latents: `[T, R]`: f32, bf16 or f16.
        rotary: `[T, Dr]`: f32, bf16 or f16.
        slot_mapping: the slot of each token, `i32[T]`, or slices, `i32[3, n]`; see `kv_cache_update`.
        num_slices: number of columns that are used, `i32[1]`; None if ``slot_mapping`` has no slices.
        kv_dtype: element type of ``latent_pages`` where it holds bits; else None or its dtype.
        validate: whether the values of slots and slices are checked, too.

    Returns:
        The cache after the update, of the dtype of ``latent_pages``, which is not changed.

    Raises:
        TypeError: an argument is no array, or of a wrong dtype.
        ValueError: a wrong shape; with ``validate`` a slice that is none, or a slot named twice.
        IndexError: with ``validate``: a slot past the cache, or tokens past ``latents``.
    """
    latents = array_of("latents", latents, ("T", "R"), FLOATS)
    rotary = array_of("rotary", rotary, (len(latents), "Dr"), FLOATS)
    array, pages = _read_pages(latent_pages, latents.shape[1], rotary.shape[1], kv_dtype)
    num_pages, page_size = pages.shape[:2]
    writes = read_writes(slot_mapping, num_slices, len(latents), num_pages, page_size, flag("validate", validate))
    pages = pages.copy()
    behind = align_to_multiple(latents.shape[1], _LANES)
    for token, slot in writes:
        if slot < num_pages * page_size:
            row = pages[divmod(slot, page_size)]
            row[:] = 0
            row[: latents.shape[1]] = saturated(latents[token].astype(np.float64), pages.dtype)
            row[behind : behind + rotary.shape[1]] = saturated(rotary[token].astype(np.float64), pages.dtype)
    return pages.view(array.dtype)


def mla_paged_attention(
    queries: Any,
    rotary_queries: Any,
    latent_pages: Any,
    kv_lens: Any,
    page_table: Any,
    cu_q_lens: Any,
    num_seqs: Any,
    *,
    scale: float,
    causal: bool = True,
    window: int | None = None,
    soft_cap: float | None = None,
    kv_dtype: Any = None,
    validate: bool = False,
) -> NDArray[Any]:
    """Latent attention of a ragged batch (ATT-1 to ATT-4, ATT-6). O(rows * keys * Hq * (R + Dr)).

    The logits are ``(query . latent + rotary query . rotary key) * scale``; the values are the latents. It is
    attention with one KV head, whose keys are latent and rotary key, and whose values are the latent.

    Args:
        queries: absorbed queries, `[T, Hq, R]`: f32, bf16 or f16.
        rotary_queries: `[T, Hq, Dr]`, of the dtype of ``queries``.
        latent_pages: `[P, page, align(R, 128) + align(Dr, 128)]`.
        kv_lens: `i32[S]`; see `ragged_paged_attention`.
        page_table: `i32[S, pages_per_seq]`.
        cu_q_lens: `i32[S + 1]`.
        num_seqs: `i32[1]`.
        scale: factor of the logits; it has no default, since the size of the model's expanded heads is not known here.
        causal: see `ragged_paged_attention`.
        window: see `ragged_paged_attention`.
        soft_cap: see `ragged_paged_attention`.
        kv_dtype: see `ragged_paged_attention`.
        validate: see `ragged_paged_attention`.

    Returns:
        `[T, Hq, R]`, in the dtype of ``queries``; zeros in rows that belong to no sequence or read nothing.

    Raises:
        TypeError: an argument of a wrong type or dtype.
        ValueError: a wrong shape or option; with ``validate`` a wrong length or start.
        IndexError: a page that is read does not exist; with ``validate`` any page of a sequence's tokens.
    """
    queries = array_of("queries", queries, ("T", "Hq", "R"), FLOATS)
    tokens, num_heads, rank = queries.shape
    rotary_queries = array_of("rotary_queries", rotary_queries, (tokens, num_heads, "Dr"), (queries.dtype,))
    rotary_size = rotary_queries.shape[2]
    _, pages = _read_pages(latent_pages, rank, rotary_size, kv_dtype)
    if scale is None:
        raise refusal(TypeError, "R1", "scale=None must be a real number")
    rule = read_rule(rank, num_heads, {"scale": scale, "causal": causal, "window": window, "soft_cap": soft_cap})
    num_pages, page_size = pages.shape[:2]
    batch = read_batch(
        kv_lens, page_table, cu_q_lens, num_seqs, tokens, num_pages, page_size, flag("validate", validate)
    )
    behind = align_to_multiple(rank, _LANES)

    def read_slots(page_ids: NDArray[Any], offsets: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        rows = pages[page_ids, offsets].astype(np.float64)
        latents, rotary = rows[:, :rank], rows[:, behind : behind + rotary_size]
        return np.concatenate([latents, rotary], axis=1)[:, np.newaxis], latents[:, np.newaxis]

    both = np.concatenate([queries.astype(np.float64), rotary_queries.astype(np.float64)], axis=2)
    return attended(both, batch, read_slots, rank, rule).astype(queries.dtype)


def _read_pages(latent_pages: Any, rank: int, rotary_size: int, kv_dtype: object) -> tuple[NDArray[Any], NDArray[Any]]:
    """Reads a latent cache; returns the array itself, and a view of it with its element type (R1)."""
    if not rank or not rotary_size:
        raise refusal(
            ValueError, "R1", f"latents of {rank} and rotary keys of {rotary_size} elements must not be empty"
        )
    width = align_to_multiple(rank, _LANES) + align_to_multiple(rotary_size, _LANES)
    array = array_of("latent_pages", latent_pages, ("P", "page", width), ())
    dtype = stored_dtype("latent_pages", array, kv_dtype)
    if dtype == CODES["int8"]:
        raise refusal(TypeError, "CACHE-4", "latent_pages.dtype=int8 would need scales, which latents have none of")
    require_slots(array.shape, array.shape[0] * array.shape[1])
    return array, array.view(dtype)
