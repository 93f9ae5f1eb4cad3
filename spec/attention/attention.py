"""ATTENTION: what a query computes from the keys and values that it may read, in float64.

For query head i of the row at position p, KV head h = i // (Hq / H), and the keys j that the mask lets through::

    s_j = cap(scale * (q_scale * q_i) . (k_scale * k_jh))          cap(s) = c * tanh(s / c), if there is a soft cap
    out = sum_j exp(s_j) * (v_scale * v_jh) / (sum_j exp(s_j) + exp(sink_i))         exp(sink_i) if there are sinks

and zeros where no key is let through. Nothing else of the cache is looked at (ATT-3).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..layout.cache_dtypes import CODES, FLOATS, read_scale
from ..layout.cache_update import Write, read_keys_values, require_writes
from ..layout.open_pages import OpenPages
from ..reading.arguments import flag, integer, real, refusal
from ..reading.array_arguments import array_of
from .attention_batch import Batch, read_batch

__all__ = ["AttentionRule", "attended", "fused_ragged_paged_attention", "ragged_paged_attention", "read_rule"]

ReadSlots = Callable[[NDArray[Any], NDArray[Any]], tuple[NDArray[np.float64], NDArray[np.float64]]]
"""From pages and offsets, `int[n]` each, to keys `f64[n, H, D]` and values `f64[n, H, Dv]`."""


@dataclass(frozen=True)
class AttentionRule:
    """Which keys a query reads, and how logits are made.

    Attributes:
        scale: what query times key is multiplied by.
        causal: whether it reads keys up to its own position only.
        window: positions that it reads, its own included; None: all.
        chunk: positions of a chunk, beyond whose start it doesn't read; None: there are no chunks.
        soft_cap: the bound that tanh puts on logits; None: none.
        sinks: one more logit for each query head, `f64[Hq]`; None: none.
    """

    scale: float
    causal: bool = True
    window: int | None = None
    chunk: int | None = None
    soft_cap: float | None = None
    sinks: NDArray[np.float64] | None = None

    def reads(self, position: int, key: int) -> bool:
        """Whether the query at a position reads a key (ATT-1); one at a negative position reads none (ATT-2)."""
        return (
            position >= 0
            and (not self.causal or key <= position)
            and (self.window is None or key > position - self.window)
            and (self.chunk is None or key >= position // self.chunk * self.chunk)
        )


def attended(
    queries: NDArray[np.float64], batch: Batch, read_slots: ReadSlots, v_head_dim: int, rule: AttentionRule
) -> NDArray[np.float64]:
    """What every row of a batch attends to (ATT-1 to ATT-4). O(rows * keys * Hq * D).

    Args:
        queries: `f64[T, Hq, D]`.
        batch: whose rows they are.
        read_slots: how slots are read.
        v_head_dim: Dv.
        rule: the mask and the rest.

    Returns:
        `f64[T, Hq, Dv]`, zeros where there is nothing to read.
    """
    out = np.zeros((*queries.shape[:2], v_head_dim))
    for token, sequence, position in batch.rows():
        keys_read = [key for key in range(batch.kv_lens[sequence]) if rule.reads(position, key)]
        if keys_read:
            keys, values = read_slots(*batch.slots_of(sequence, keys_read))
            out[token] = _attended_row(queries[token], keys, values, rule)
    return out


def _attended_row(
    query: NDArray[np.float64], keys: NDArray[np.float64], values: NDArray[np.float64], rule: AttentionRule
) -> NDArray[np.float64]:
    """One row: query `f64[Hq, D]`, keys `f64[n, H, D]`, values `f64[n, H, Dv]`; n is at least 1."""
    num_heads = len(query)
    group = num_heads // keys.shape[1]
    out = np.zeros((num_heads, values.shape[2]))
    for head in range(num_heads):
        logits = rule.scale * (keys[:, head // group] @ query[head])
        if rule.soft_cap is not None:
            logits = rule.soft_cap * np.tanh(logits / rule.soft_cap)
        highest = np.max(logits) if rule.sinks is None else max(np.max(logits), rule.sinks[head])
        weights = np.exp(logits - highest)
        total = np.sum(weights) + (0.0 if rule.sinks is None else np.exp(rule.sinks[head] - highest))
        out[head] = weights @ values[:, head // group] / total
    return out


def read_rule(
    head_dim: int,
    num_q_heads: int,
    *,
    scale: object,
    causal: object,
    window: object,
    chunk: object,
    soft_cap: object,
    sinks: Any,
    q_scale: object,
) -> AttentionRule:
    """Reads the options of an attention call (R1).

    Args:
        head_dim: D, for the scale where none is given: ``D ** -0.5``.
        num_q_heads: Hq.
        scale: a real number or None.
        causal: a bool.
        window: an int of at least 1, or None.
        chunk: an int of at least 1, or None.
        soft_cap: a number above 0, or None.
        sinks: `f32[Hq]` or None.
        q_scale: a number above 0, or None.
    """
    q_factor = read_scale("q_scale", q_scale)
    return AttentionRule(
        scale=(head_dim**-0.5 if scale is None else real("scale", scale)) * (1.0 if q_factor is None else q_factor),
        causal=flag("causal", causal),
        window=None if window is None else integer("window", window, minimum=1),
        chunk=None if chunk is None else integer("chunk", chunk, minimum=1),
        soft_cap=read_scale("soft_cap", soft_cap),
        sinks=None if sinks is None else array_of("sinks", sinks, (num_q_heads,), (CODES["f32"],)).astype(np.float64),
    )


def ragged_paged_attention(
    queries: Any,
    kv_pages: Any,
    kv_lens: Any,
    page_table: Any,
    cu_q_lens: Any,
    num_seqs: Any,
    *,
    scale: float | None = None,
    causal: bool = True,
    window: int | None = None,
    chunk: int | None = None,
    soft_cap: float | None = None,
    sinks: Any = None,
    q_scale: float | None = None,
    k_scale: float | None = None,
    v_scale: float | None = None,
    num_kv_heads: int | None = None,
    v_head_dim: int | None = None,
    kv_dtype: Any = None,
    validate: bool = False,
) -> NDArray[Any]:
    """Attention of a ragged batch over a paged cache (ATT-1 to ATT-4, ATT-6). O(rows * keys * Hq * D).

    Args:
        queries: `[T, Hq, D]`: f32, bf16 or f16. Rows past ``cu_q_lens[num_seqs]`` may hold anything (ATT-4).
        kv_pages: `[P, page, 2H, Dp]` (v2), `[P, page, groups, packing, Dp]` (v3), or `ScaledPages` of them.
        kv_lens: tokens of each sequence in the cache, this step's included, `i32[S]`.
        page_table: the pages of each sequence, `i32[S, pages_per_seq]`; entries past its tokens may be anything.
        cu_q_lens: where each sequence's rows begin, and where the last one's end, `i32[S + 1]`.
        num_seqs: how many sequences there are, `i32[1]`, or `i32[S]`, of which the first counts.
        scale: what query times key is multiplied by; None: ``D ** -0.5``.
        causal: whether a query reads keys up to its own position only.
        window: how many positions, its own included, it reads at most; None: all.
        chunk: the length of chunks to whose own one it is restricted; None: there are none.
        soft_cap: c, where logits s become c * tanh(s / c); None: they don't.
        sinks: one more logit for each query head, neither scaled nor capped, that joins the denominator only,
            `f32[Hq]`.
        q_scale: what queries are multiplied by; None: 1.
        k_scale: what stored keys are multiplied by; None: 1.
        v_scale: what stored values are multiplied by; None: 1.
        num_kv_heads: H; None: as many as the rows of ``kv_pages`` have room for, too many where they are padded.
        v_head_dim: Dv; None: D.
        kv_dtype: what the numbers of ``kv_pages`` are where it holds bits (`u16`, `u8`); else None or its dtype.
        validate: whether lengths, starts and page ids are checked, too.

    Returns:
        `[T, Hq, Dv]`, in the dtype of ``queries``; zeros in rows that belong to no sequence or read nothing.

    Raises:
        TypeError: an argument of a wrong type or dtype.
        ValueError: a wrong shape or option; with ``validate`` a wrong length or start.
        IndexError: a page that is read does not exist; with ``validate`` any page of a sequence's tokens.
    """
    queries, pages = _read_queries(queries, kv_pages, num_kv_heads, v_head_dim, kv_dtype, k_scale, v_scale)
    rule = read_rule(
        queries.shape[2],
        queries.shape[1],
        scale=scale,
        causal=causal,
        window=window,
        chunk=chunk,
        soft_cap=soft_cap,
        sinks=sinks,
        q_scale=q_scale,
    )
    batch = read_batch(
        kv_lens,
        page_table,
        cu_q_lens,
        num_seqs,
        len(queries),
        pages.num_pages,
        pages.page_size,
        flag("validate", validate),
    )
    out = attended(queries.astype(np.float64), batch, pages.read, pages.layout.v_head_dim, rule)
    return out.astype(queries.dtype)


def fused_ragged_paged_attention(
    queries: Any,
    keys: Any,
    values: Any,
    kv_pages: Any,
    kv_lens: Any,
    page_table: Any,
    cu_q_lens: Any,
    num_seqs: Any,
    *,
    scale: float | None = None,
    causal: bool = True,
    window: int | None = None,
    chunk: int | None = None,
    soft_cap: float | None = None,
    sinks: Any = None,
    q_scale: float | None = None,
    k_scale: float | None = None,
    v_scale: float | None = None,
    num_kv_heads: int | None = None,
    v_head_dim: int | None = None,
    kv_dtype: Any = None,
    validate: bool = False,
) -> tuple[NDArray[Any], Any]:
    """Writes the batch's keys and values, all of them, and then attends (ATT-5). O(cache + attention).

    Args:
        queries: `[T, Hq, D]`; see `ragged_paged_attention` for this and the other arguments.
        keys: `[T, H, D]`: token t of sequence s goes to position ``kv_len - q_len + t`` by the table; a token whose
            position is negative or has no page is not written.
        values: `[T, H, Dv]`.
        kv_pages: the cache before.
        kv_lens: `i32[S]`.
        page_table: `i32[S, pages_per_seq]`.
        cu_q_lens: `i32[S + 1]`.
        num_seqs: `i32[1]`.
        scale: as there, and so are the other options.
        causal: as there.
        window: as there.
        chunk: as there.
        soft_cap: as there.
        sinks: as there.
        q_scale: as there.
        k_scale: keys are divided by it when they are written, too.
        v_scale: values are divided by it when they are written, too.
        num_kv_heads: H, None or that of ``keys``.
        v_head_dim: Dv, None or that of ``values``.
        kv_dtype: as there.
        validate: as there; besides, that no two tokens go to one slot.

    Returns:
        What `ragged_paged_attention` gives over the cache after the update, and that cache.

    Raises:
        TypeError: an argument of a wrong type or dtype.
        ValueError: a wrong shape or option; with ``validate`` a wrong length or start, or a slot of two tokens.
        IndexError: a page that is read does not exist; with ``validate`` any page of a sequence's tokens.
    """
    keys, values = read_keys_values(keys, values)
    for name, size, own in (("num_kv_heads", num_kv_heads, keys.shape[1]), ("v_head_dim", v_head_dim, values.shape[2])):
        if size is not None and integer(name, size, minimum=1) != own:
            raise refusal(ValueError, "R1", f"{name}={size} contradicts the keys and values, which have {own}")
    queries, pages = _read_queries(queries, kv_pages, keys.shape[1], values.shape[2], kv_dtype, k_scale, v_scale)
    array_of("keys", keys, (len(queries), keys.shape[1], queries.shape[2]), FLOATS)
    rule = read_rule(
        queries.shape[2],
        queries.shape[1],
        scale=scale,
        causal=causal,
        window=window,
        chunk=chunk,
        soft_cap=soft_cap,
        sinks=sinks,
        q_scale=q_scale,
    )
    validate = flag("validate", validate)
    batch = read_batch(
        kv_lens, page_table, cu_q_lens, num_seqs, len(queries), pages.num_pages, pages.page_size, validate
    )
    writes = [Write(row.token, batch.slot_of(row.sequence, row.position)) for row in batch.rows()]
    if validate:
        require_writes(
            writes, pages.num_pages, pages.page_size, lambda place: f"page_table: token {writes[place].token}"
        )
    pages.copy_to_write()
    for token, slot in writes:
        pages.write(slot, keys[token], values[token])
    out = attended(queries.astype(np.float64), batch, pages.read, pages.layout.v_head_dim, rule)
    return out.astype(queries.dtype), pages.pages


def _read_queries(
    queries: Any,
    kv_pages: Any,
    num_kv_heads: object,
    v_head_dim: object,
    kv_dtype: object,
    k_scale: object,
    v_scale: object,
) -> tuple[NDArray[Any], OpenPages]:
    queries = array_of("queries", queries, ("T", "Hq", "D"), FLOATS)
    num_q_heads, head_dim = queries.shape[1:]
    if not num_q_heads or not head_dim:
        raise refusal(ValueError, "R1", f"queries.shape={queries.shape} must have heads of at least one element")
    heads = None if num_kv_heads is None else integer("num_kv_heads", num_kv_heads, minimum=1)
    value_size = head_dim if v_head_dim is None else integer("v_head_dim", v_head_dim, minimum=1)
    pages = OpenPages(kv_pages, head_dim, value_size, heads, kv_dtype, k_scale, v_scale)
    if num_q_heads % pages.layout.num_kv_heads:
        raise refusal(
            ValueError,
            "R1",
            f"queries.shape={queries.shape}: {num_q_heads} heads must be a multiple of the "
            f"{pages.layout.num_kv_heads} KV heads",
        )
    return queries, pages
