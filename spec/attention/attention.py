"""ATT: what a query computes from the keys and values that it may read, in float64.

For query head i of the row at position p, with KV head h = i // (Hq / H), and the keys j that the mask lets it read::

    s_j = cap(scale * (q_scale * q_i) . (k_scale * k_jh))          cap(s) = c * tanh(s / c), if there is a soft cap
    out = sum_j exp(s_j) * (v_scale * v_jh) / (sum_j exp(s_j) + exp(sink_i))         exp(sink_i) if there are sinks

and zeros where it may read no key. No other part of the cache is read (ATT-3).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from ..declarations import AttentionOptions, takes_options
from ..layout.cache_dtypes import CODES, FLOATS, read_scale
from ..layout.cache_update import Write, read_keys_values, require_writes
from ..layout.open_pages import OpenPages
from ..reading.arguments import array_of, flag, integer, real, refusal
from .attention_batch import RaggedBatch, read_batch

__all__ = ["AttentionRule", "attended", "fused_ragged_paged_attention", "ragged_paged_attention", "read_rule"]

ReadSlots = Callable[[NDArray[Any], NDArray[Any]], tuple[NDArray[np.float64], NDArray[np.float64]]]
"""Reads slots: from pages and offsets, `int[n]` each, to keys `f64[n, H, D]` and values `f64[n, H, Dv]`."""


@dataclass(frozen=True)
class AttentionRule:
    """Which keys a query reads, and how its logits are computed.

    Attributes are `AttentionOptions` that were read; ``scale`` is the product of the options ``scale`` and ``q_scale``.
    """

    scale: float
    causal: bool = True
    window: int | None = None
    chunk: int | None = None
    soft_cap: float | None = None
    sinks: NDArray[np.float64] | None = None

    def reads(self, position: int, key: int) -> bool:
        """Whether the query at a position reads a key (ATT-1); at a negative position it reads none (ATT-2)."""
        return (
            position >= 0
            and (not self.causal or key <= position)
            and (self.window is None or key > position - self.window)
            and (self.chunk is None or key >= position // self.chunk * self.chunk)
        )


def attended(
    queries: NDArray[np.float64], batch: RaggedBatch, read_slots: ReadSlots, v_head_dim: int, rule: AttentionRule
) -> NDArray[np.float64]:
    """The attention of every query row of a batch (ATT-1 to ATT-4). O(rows * keys * Hq * D).

    Args:
        queries: `f64[T, Hq, D]`.
        batch: the batch that the rows belong to.
        read_slots: the function that reads slots of the cache.
        v_head_dim: Dv.
        rule: the mask, and how logits are computed.

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
    """The attention of one row: query `f64[Hq, D]`, keys `f64[n, H, D]`, values `f64[n, H, Dv]`, n at least 1."""
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


def read_rule(head_dim: int, num_q_heads: int, options: AttentionOptions) -> AttentionRule:
    """Reads the options of an attention call that say which keys are read, and how logits are computed (R1).

    Args:
        head_dim: D, from which the default scale ``D ** -0.5`` is computed.
        num_q_heads: Hq.
        options: the options, of which those that are missing have no effect.
    """
    scale, window, chunk, sinks = (options.get(name) for name in ("scale", "window", "chunk", "sinks"))
    q_factor = read_scale("q_scale", options.get("q_scale"))
    return AttentionRule(
        scale=(head_dim**-0.5 if scale is None else real("scale", scale)) * (1.0 if q_factor is None else q_factor),
        causal=flag("causal", options["causal"]),
        window=None if window is None else integer("window", window, minimum=1),
        chunk=None if chunk is None else integer("chunk", chunk, minimum=1),
        soft_cap=read_scale("soft_cap", options.get("soft_cap")),
        sinks=None if sinks is None else array_of("sinks", sinks, (num_q_heads,), (CODES["f32"],)).astype(np.float64),
    )


@takes_options
def ragged_paged_attention(
    queries: Any,
    kv_pages: Any,
    kv_lens: Any,
    page_table: Any,
    cu_q_lens: Any,
    num_seqs: Any,
    **options: Unpack[AttentionOptions],
) -> NDArray[Any]:
    """Attention of a ragged batch over a paged cache (ATT-1 to ATT-4, ATT-6). O(rows * keys * Hq * D).

    Args:
        queries: `[T, Hq, D]`: f32, bf16 or f16. Rows past ``cu_q_lens[num_seqs]`` are not read (ATT-4).
        kv_pages: `[P, page, 2H, Dp]` (v2), `[P, page, groups, packing, Dp]` (v3), `[P, 2H, Dp, page]` (seq_on_lane),
            or `ScaledPages` of them.
        kv_lens: tokens of each sequence in the cache, this step's included, `i32[S]`.
        page_table: the pages of each sequence, `i32[S, pages_per_seq]`; entries past its tokens are not read.
        cu_q_lens: bounds of the sequences' rows, `i32[S + 1]`: sequence s has ``[cu_q_lens[s], cu_q_lens[s + 1])``.
        num_seqs: number of sequences, `i32[1]`, or `i32[S]`, of which the first entry is read.
        options: see `AttentionOptions`.

    Returns:
        `[T, Hq, Dv]`, in the dtype of ``queries``; zeros in rows that belong to no sequence or read nothing.

    Raises:
        TypeError: an argument of a wrong type or dtype.
        ValueError: a wrong shape or option; with ``validate`` a wrong length or start.
        IndexError: a page that is read does not exist; with ``validate`` any page of a sequence's tokens.
    """
    lengths = kv_lens, page_table, cu_q_lens, num_seqs
    return _attended_pages(*_read_call(queries, kv_pages, lengths, options))


@takes_options
def fused_ragged_paged_attention(
    queries: Any,
    keys: Any,
    values: Any,
    kv_pages: Any,
    kv_lens: Any,
    page_table: Any,
    cu_q_lens: Any,
    num_seqs: Any,
    **options: Unpack[AttentionOptions],
) -> tuple[NDArray[Any], Any]:
    """Writes all keys and values of the batch, then attends (ATT-5). O(cache + attention).

    Args:
        queries: `[T, Hq, D]`; see `ragged_paged_attention`.
        keys: `[T, H, D]`: token t of sequence s is written to position ``kv_len - q_len + t``, into the slot that the
            page table has for it; a token whose position is negative or has no page is not written.
        values: `[T, H, Dv]`.
        kv_pages: the cache before the update.
        kv_lens: `i32[S]`.
        page_table: `i32[S, pages_per_seq]`.
        cu_q_lens: `i32[S + 1]`.
        num_seqs: `i32[1]`.
        options: see `AttentionOptions`.

    Returns:
        The result of `ragged_paged_attention` over the cache after the update, and that cache.

    Raises:
        TypeError: an argument of a wrong type or dtype.
        ValueError: a wrong shape or option; with ``validate`` a wrong length or start, or a slot of two tokens.
        IndexError: a page that is read does not exist; with ``validate`` any page of a sequence's tokens.
    """
    keys, values = read_keys_values(keys, values)
    num_kv_heads, v_head_dim = keys.shape[1], values.shape[2]
    for name, size, own in (
        ("num_kv_heads", options["num_kv_heads"], num_kv_heads),
        ("v_head_dim", options["v_head_dim"], v_head_dim),
    ):
        if size is not None and integer(name, size, minimum=1) != own:
            raise refusal(ValueError, "R1", f"{name}={size} contradicts the keys and values, which have {own}")
    options["num_kv_heads"], options["v_head_dim"] = num_kv_heads, v_head_dim
    lengths = kv_lens, page_table, cu_q_lens, num_seqs
    queries, pages, batch, rule = _read_call(queries, kv_pages, lengths, options)
    array_of("keys", keys, (len(queries), keys.shape[1], queries.shape[2]), FLOATS)
    writes = [Write(row.token, batch.slot_of(row.sequence, row.position)) for row in batch.rows()]
    if options["validate"]:
        require_writes(
            writes, pages.num_pages, pages.page_size, lambda place: f"page_table: token {writes[place].token}"
        )
    pages.copy_to_write()
    for token, slot in writes:
        pages.write(slot, keys[token], values[token])
    return _attended_pages(queries, pages, batch, rule), pages.pages


def _attended_pages(queries: NDArray[Any], pages: OpenPages, batch: RaggedBatch, rule: AttentionRule) -> NDArray[Any]:
    """The attention of a call that was read, in the dtype of its queries."""
    return attended(queries.astype(np.float64), batch, pages.read, pages.layout.v_head_dim, rule).astype(queries.dtype)


def _read_call(
    queries: Any, kv_pages: Any, lengths: tuple[Any, Any, Any, Any], options: AttentionOptions
) -> tuple[NDArray[Any], OpenPages, RaggedBatch, AttentionRule]:
    """Reads the arguments that both functions share, and opens the pages that the queries attend to (R1)."""
    queries = array_of("queries", queries, ("T", "Hq", "D"), FLOATS)
    num_q_heads, head_dim = queries.shape[1:]
    if not num_q_heads or not head_dim:
        raise refusal(ValueError, "R1", f"queries.shape={queries.shape} must have heads of at least one element")
    heads, value_size = options["num_kv_heads"], options["v_head_dim"]
    pages = OpenPages(
        kv_pages,
        head_dim,
        head_dim if value_size is None else integer("v_head_dim", value_size, minimum=1),
        None if heads is None else integer("num_kv_heads", heads, minimum=1),
        options["kv_dtype"],
        options["k_scale"],
        options["v_scale"],
        options["version"],
    )
    if num_q_heads % pages.layout.num_kv_heads:
        raise refusal(
            ValueError,
            "R1",
            f"queries.shape={queries.shape}: {num_q_heads} heads must be a multiple of the "
            f"{pages.layout.num_kv_heads} KV heads",
        )
    _require_blocks(options, pages.page_size, num_q_heads // pages.layout.num_kv_heads)
    rule = read_rule(head_dim, num_q_heads, options)
    validate = flag("validate", options["validate"])
    batch = read_batch(*lengths, len(queries), pages.num_pages, pages.page_size, validate)
    return queries, pages, batch, rule


def _require_blocks(options: AttentionOptions, page_size: int, group: int) -> None:
    """Refuses sizes of blocks that no kernel can have (R1); nothing that is computed here depends on them.

    Args:
        options: the options.
        page_size: slots of a page.
        group: query heads of a KV head.
    """
    alone, pair = options["decode_block"], options["prefill_block"]
    if alone is not None:
        keys = integer("decode_block", alone, minimum=1)
        if keys < 128 or keys.bit_count() > 1 or keys % page_size:
            raise refusal(
                ValueError, "R1", f"decode_block={keys} must be a power of two from 128 on, in pages of {page_size}"
            )
    if pair is not None:
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise refusal(TypeError, "R1", f"prefill_block={pair!r} must be a tuple of two ints")
        queries, keys = (integer("prefill_block", number, minimum=1) for number in pair)
        if queries * group % 16 or keys % page_size:
            raise refusal(
                ValueError,
                "R1",
                f"prefill_block={pair} must be query tokens of a multiple of 16 rows, {group} each, and keys in pages "
                f"of {page_size}",
            )
