"""tpu-inference 0.32.0, unmodified and on the CPU: its block tables, its attention kernel v2, and the reference of v3.

The tables are under our names and otherwise as they are. The kernel v2, which reads a cache of rows, is interpreted as
a program of XLA's. v3, which writes a cache of packed rows and attends, can't be: what is looked at is
``ref_ragged_paged_attention``, which its own tests hold it to. Rows of no token are zeros here. Queries of v2 are
padded with zeros to the width of the cache's rows, and results are cut.
"""

import os
from collections.abc import Iterable
from functools import partial
from typing import Any
from unittest import mock

import numpy as np

from .peers import Peer
from .vllm import VLLM

__all__ = [
    "MultiGroupPageTable",
    "PageTable",
    "fused_ragged_paged_attention",
    "kvproof_lacks",
    "kvproof_made_for",
    "kvproof_takes_setup",
    "ragged_paged_attention",
]

kvproof_made_for = Peer("tpu_inference", ("0.32.0",), f"{VLLM.install} && pip install --no-deps tpu-inference==0.32.0")

kvproof_lacks = (
    *("groups", "events", "counters", "batch", "pins", "snapshots", "swaps", "shards", "keys", "views", "iterables"),
    *("queue", "caches"),
)
"""What it does not have, or shows in no way that can be compared."""

_OPTIONS = {
    "ragged_paged_attention": ("v2", {"scale", "window", "soft_cap", "k_scale", "v_scale"}),
    "fused_ragged_paged_attention": ("v3", {"scale", "window", "soft_cap", "q_scale", "k_scale", "v_scale"}),
}


def _module(name: str) -> Any:
    os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")  # it imports vLLM
    return kvproof_made_for.module(f"tpu_inference.{name}")


# -- Block tables -------------------------------------------------------------------------------------------


class PageTable:
    """Its ``BlockTable``.

    Args:
        max_num_reqs: see ``max_num_reqs``.
        max_num_pages_per_req: see ``max_num_blocks_per_req``.
        max_num_batched_tokens: see ``max_num_batched_tokens``.
        table: the table to look at; None makes one.
    """

    def __init__(
        self, max_num_reqs: Any, max_num_pages_per_req: Any, max_num_batched_tokens: Any, *, table: Any = None
    ) -> None:
        if table is None:
            made = _module("runner.block_table").BlockTable
            table = made(max_num_reqs, max_num_pages_per_req, max_num_batched_tokens, False)
        self.table = table

    def __getattr__(self, name: str) -> Any:
        if name not in {*_CALLS, "get_cpu_tensor", "get_device_tensor"}:
            raise AttributeError(f"{type(self).__name__} has no {name}")
        return getattr(self.table, name)

    def append_row(self, page_ids: Iterable[Any], row_idx: Any) -> None:
        """See ``append_row``, which takes a list."""
        self.table.append_row(list(page_ids), row_idx)

    def add_row(self, page_ids: Iterable[Any], row_idx: Any) -> None:
        """See ``add_row``, which takes a list."""
        self.table.add_row(list(page_ids), row_idx)

    @property
    def num_pages_per_row(self) -> Any:
        """See ``num_blocks_per_row``."""
        return self.table.num_blocks_per_row


class MultiGroupPageTable:
    """Its ``MultiGroupBlockTable``.

    Args:
        max_num_reqs: see ``max_num_reqs``.
        max_model_len: see ``max_model_len``.
        max_num_batched_tokens: see ``max_num_batched_tokens``.
        page_sizes: see ``block_sizes``.
    """

    def __init__(
        self, max_num_reqs: Any, max_model_len: Any, max_num_batched_tokens: Any, page_sizes: Iterable[Any]
    ) -> None:
        made = _module("runner.block_table").MultiGroupBlockTable
        self.table = made(max_num_reqs, max_model_len, max_num_batched_tokens, False, page_sizes)

    def __getattr__(self, name: str) -> Any:
        if name not in _CALLS:
            raise AttributeError(f"{type(self).__name__} has no {name}")
        return getattr(self.table, name)

    def append_row(self, page_ids: Any, row_idx: Any) -> None:
        """See ``append_row``, which takes a list for each group."""
        self.table.append_row([list(group) for group in page_ids], row_idx)

    def add_row(self, page_ids: Any, row_idx: Any) -> None:
        """See ``add_row``, which takes a list for each group."""
        self.table.add_row([list(group) for group in page_ids], row_idx)

    @property
    def page_tables(self) -> list[PageTable]:
        """See ``block_tables``."""
        return [PageTable(0, 0, 0, table=table) for table in self.table.block_tables]

    def __getitem__(self, group: Any) -> PageTable:
        return PageTable(0, 0, 0, table=self.table[group])


_CALLS = frozenset({"move_row", "swap_row", "commit", "clear"})
"""What the tables of one group and of several have by our names and in our shapes."""


# -- Attention ----------------------------------------------------------------------------------------------


def kvproof_takes_setup(function: str, setup: Any) -> bool:
    """Whether a function takes what a setup describes: its layout, float32 or bfloat16, its own options.

    Args:
        function: the name of the function.
        setup: what is drawn, a `machines.ragged.Setup`.
    """
    version, options = _OPTIONS.get(function, ("", set()))
    layout = setup.layout
    plain = layout.dtype in ("float32", "bfloat16") and not (layout.scaled or layout.as_bits or layout.shares_rows)
    return layout.version == version and plain and set(setup.keywords) <= options and not setup.sinks


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
) -> Any:
    """The kernel v2 by our names, blocks of two pages; see ``kvproof.spec.ragged_paged_attention``.

    All queries are in one block: what the kernel hands from one block of queries to the next, in an argument that it
    changes (``seq_buf_idx_ref``), the interpreter forgets.
    """
    jnp, pallas = kvproof_made_for.module("jax.numpy"), kvproof_made_for.module("jax.experimental.pallas")
    attend = _module("kernels.ragged_paged_attention.v2.kernel").ragged_paged_attention
    wide = np.zeros((*queries.shape[:2], kv_pages.shape[-1]), queries.dtype)
    wide[..., : queries.shape[2]] = queries
    with mock.patch.object(pallas, "pallas_call", partial(pallas.pallas_call, interpret=True)):
        out = attend(
            *map(jnp.asarray, (wide, kv_pages, kv_lens, page_table, cu_q_lens, num_seqs)),
            sm_scale=queries.shape[2] ** -0.5 if scale is None else scale,
            sliding_window=window,
            soft_cap=soft_cap,
            k_scale=k_scale,
            v_scale=v_scale,
            num_kv_pages_per_block=min(2, page_table.shape[1]),
            num_queries_per_block=max(len(queries), 1),
        )
    return _padded(out[: cu_q_lens[num_seqs[0]]], queries)


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
    q_scale: float | None = None,
    k_scale: float | None = None,
    v_scale: float | None = None,
) -> Any:
    """The reference of v3 by our names; see ``kvproof.spec.fused_ragged_paged_attention``."""
    jnp = kvproof_made_for.module("jax.numpy")
    out, pages = _module("kernels.ragged_paged_attention.v3.kernel").ref_ragged_paged_attention(
        *map(jnp.asarray, (queries, keys, values, kv_pages, kv_lens, page_table.reshape(-1), cu_q_lens)),
        jnp.asarray(np.array([0, 0, num_seqs[0]], np.int32)),  # decodes, prefills, and where the mixed ones end
        sm_scale=queries.shape[2] ** -0.5 if scale is None else scale,
        sliding_window=window,
        soft_cap=soft_cap,
        q_scale=q_scale,
        k_scale=k_scale,
        v_scale=v_scale,
    )
    return _padded(out, queries), np.asarray(pages)


def _padded(rows: Any, queries: Any) -> Any:
    """Results in the shape of the queries."""
    out = np.zeros(queries.shape, np.asarray(rows).dtype)
    out[: len(rows)] = np.asarray(rows)[..., : queries.shape[2]]
    return out
