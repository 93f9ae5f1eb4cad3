"""JAX's own TPU kernel ``ragged_paged_attention``, unmodified and interpreted: no TPU is needed.

The kernel takes queries as wide as the cache's rows, and knows no block sizes where there is no TPU: queries are padded
with zeros, results are cut, blocks are named. Its options are the keywords here; for others it has none.

Of JAX's two interpreters the one that imitates a TPU, which would look for races, takes no reshaped references, and
this kernel has them. So it is the other one, which runs a kernel as plain XLA. That one asks for the shape of an index;
an index that is a plain number is given the empty one meanwhile. It also forgets between the steps of a grid what a
kernel wrote into its prefetched scalars, and this kernel keeps there which buffer is next: so all queries are one block
and the grid has one step. The kernel is as it was installed.
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from .peers import Peer

__all__ = ["JAX", "kvproof_lacks", "kvproof_made_for", "kvproof_takes_setup", "ragged_paged_attention"]

JAX = kvproof_made_for = Peer("jax", ("0.10.2",), "pip install jax==0.10.2")

kvproof_lacks = ("groups", "events", "counters", "batch", "pins", "snapshots", "shards", "tables", "caches")
"""It is a kernel, and nothing else."""

_OPTIONS = {"scale", "window", "soft_cap", "k_scale", "v_scale", "v_head_dim"}

_BLOCK = 4  # pages that it works on at once: so that small batches have several blocks


def kvproof_takes_setup(function: str, setup: Any) -> bool:
    """Whether the kernel takes what a setup describes: layout v2, float32 or bfloat16, its own options.

    Args:
        function: the name of the function.
        setup: what is drawn, a `machines.ragged.Setup`.
    """
    layout = setup.layout
    plain = layout.version == "v2" and not (layout.scaled or layout.as_bits)
    known = layout.dtype in ("float32", "bfloat16") and set(setup.keywords) <= _OPTIONS and not setup.sinks
    return function == "ragged_paged_attention" and plain and known


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
    k_scale: float | None = None,
    v_scale: float | None = None,
    v_head_dim: int | None = None,
) -> Any:
    """The kernel's attention by our names; see ``kvproof.spec.ragged_paged_attention``."""
    jax = JAX.module("jax")
    kernel = JAX.module("jax.experimental.pallas.ops.tpu.ragged_paged_attention.kernel")
    wide = np.zeros((*queries.shape[:2], kv_pages.shape[-1]), queries.dtype)
    wide[..., : queries.shape[2]] = queries
    with _interpreted(kernel.pl):
        out = kernel.ragged_paged_attention(
            *map(jax.numpy.asarray, (wide, kv_pages, kv_lens, page_table, cu_q_lens, num_seqs)),
            sm_scale=queries.shape[2] ** -0.5 if scale is None else scale,
            sliding_window=window,
            soft_cap=soft_cap,
            k_scale=k_scale,
            v_scale=v_scale,
            num_kv_pages_per_block=min(_BLOCK, page_table.shape[1]),
            num_queries_per_block=queries.shape[0],
        )
    return np.asarray(out)[..., : v_head_dim or queries.shape[2]]


@contextmanager
def _interpreted(pallas: Any) -> Iterator[None]:
    """Within it Pallas kernels that are traced are interpreted."""
    plain_number = JAX.module("jax._src.literals").TypedInt
    compiled = pallas.pallas_call
    bridged = not hasattr(plain_number, "shape")
    try:
        if bridged:
            plain_number.shape = ()
        pallas.pallas_call = functools.partial(compiled, interpret=True)
        yield
    finally:
        pallas.pallas_call = compiled
        if bridged:
            del plain_number.shape
