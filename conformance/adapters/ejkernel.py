"""ejkernel's XLA kernels, unmodified: ragged page attention v2, which reads a cache, and v3, which writes it as well.

Each takes its own layout: v2 that of rows, v3 that of rows packed into words. Queries are padded with zeros to the
width of v2's rows and its results are cut; v3's table is given flat, and its batch as one of no particular
distribution. Numbers are computed in float32, which v2 has to be asked for. Its latent attention writes a cache of a
layout of its own and is not offered.
"""

from typing import Any

import numpy as np

from .peers import Peer

__all__ = [
    "EJKERNEL",
    "fused_ragged_paged_attention",
    "kvproof_lacks",
    "kvproof_made_for",
    "kvproof_takes_setup",
    "ragged_paged_attention",
]

EJKERNEL = kvproof_made_for = Peer("ejkernel", ("0.0.78",), "pip install ejkernel==0.0.78")

kvproof_lacks = ("groups", "events", "counters", "batch", "pins", "snapshots", "shards", "tables", "caches")
"""It has kernels, and nothing else."""

_LAYOUTS = {"ragged_paged_attention": "v2", "fused_ragged_paged_attention": "v3"}
_OPTIONS = {
    "ragged_paged_attention": {"scale", "window", "soft_cap"},
    "fused_ragged_paged_attention": {"scale", "window", "soft_cap", "q_scale", "k_scale", "v_scale"},
}


def kvproof_takes_setup(function: str, setup: Any) -> bool:
    """Whether a kernel takes what a setup describes: its layout, float32 or bfloat16, its own options.

    Args:
        function: the name of the function.
        setup: what is drawn, a `machines.ragged.Setup`.
    """
    layout = setup.layout
    plain = layout.dtype in ("float32", "bfloat16") and not (layout.scaled or layout.as_bits or layout.shares_rows)
    return (
        layout.version == _LAYOUTS.get(function)
        and plain
        and layout.dims[0] == layout.dims[1]
        and set(setup.keywords) <= _OPTIONS[function]
    )


def ragged_paged_attention(
    queries: Any,  # [T, Hq, D]
    kv_pages: Any,  # [P, page, 2H, Dp]
    kv_lens: Any,  # i32[S]
    page_table: Any,  # i32[S, pages_per_seq]
    cu_q_lens: Any,  # i32[S + 1]
    num_seqs: Any,  # i32[1]
    *,
    scale: float | None = None,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: Any = None,
) -> Any:
    """Its v2 by our names; see ``kvproof.spec.ragged_paged_attention``."""
    jnp = EJKERNEL.module("jax.numpy")
    attend = EJKERNEL.module("ejkernel.kernels._xla.ragged_page_attention_v2").ragged_page_attention_v2
    wide = np.zeros((*queries.shape[:2], kv_pages.shape[-1]), queries.dtype)
    wide[..., : queries.shape[2]] = queries
    out = attend(
        *map(jnp.asarray, (wide, kv_pages, kv_lens, page_table, cu_q_lens, num_seqs)),
        softmax_scale=queries.shape[2] ** -0.5 if scale is None else scale,
        sliding_window=window,
        logits_soft_cap=soft_cap,
        softmax_aux=None if sinks is None else jnp.asarray(sinks),
        compute_dtype=jnp.float32,
    )
    return np.asarray(out)[..., : queries.shape[2]]


def fused_ragged_paged_attention(
    queries: Any,  # [T, Hq, D]
    keys: Any,  # [T, H, D]
    values: Any,  # [T, H, D]
    kv_pages: Any,  # [P, page, groups, packing, Dp]
    kv_lens: Any,  # i32[S]
    page_table: Any,  # i32[S, pages_per_seq]
    cu_q_lens: Any,  # i32[S + 1]
    num_seqs: Any,  # i32[1]
    *,
    scale: float | None = None,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: Any = None,
    q_scale: float | None = None,
    k_scale: float | None = None,
    v_scale: float | None = None,
) -> Any:
    """Its v3 by our names; see ``kvproof.spec.fused_ragged_paged_attention``."""
    jnp = EJKERNEL.module("jax.numpy")
    attend = EJKERNEL.module("ejkernel.kernels._xla.ragged_page_attention_v3").ragged_page_attention_v3
    out, pages = attend(
        *map(jnp.asarray, (queries, keys, values, kv_pages, kv_lens, page_table.reshape(-1), cu_q_lens)),
        jnp.asarray(np.array([0, 0, num_seqs[0]], np.int32)),  # decodes, prefills, and where the mixed ones end
        None if sinks is None else jnp.asarray(sinks),
        softmax_scale=queries.shape[2] ** -0.5 if scale is None else scale,
        sliding_window=window,
        logits_soft_cap=soft_cap,
        q_scale=q_scale,
        k_scale=k_scale,
        v_scale=v_scale,
    )
    return np.asarray(out), np.asarray(pages)
