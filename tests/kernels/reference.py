"""What the tests of device code compare with: dense float64 attention, and batches in which what is dead is poison.

Independent of `spec` and of `kernels`: layouts and scales are written down here once more, in numpy.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

__all__ = [
    "FULL",
    "Batch",
    "Mask",
    "assert_close",
    "bits",
    "dense_attention",
    "make_batch",
    "make_latent_batch",
    "pack",
    "without_pages",
]


@dataclass(frozen=True)
class Mask:
    """What a query may read (ATT-1)."""

    causal: bool = True
    window: int | None = None
    chunk: int | None = None

    def readable(self, q_len: int, kv_len: int) -> NDArray[np.bool_]:
        """Which keys the queries of a sequence read: `bool[q_len, kv_len]`."""
        p = (kv_len - q_len + np.arange(q_len))[:, None]
        j = np.arange(kv_len)[None, :]
        read = np.broadcast_to(p >= 0, (q_len, kv_len)).copy()
        if self.causal:
            read &= j <= p
        if self.window is not None:
            read &= j > p - self.window
        if self.chunk is not None:
            read &= j >= p // self.chunk * self.chunk
        return read


FULL = Mask()


@dataclass(frozen=True)
class Batch:
    """A ragged batch as arrays for a kernel, with what the live slots hold, in float64.

    Attributes:
        queries: `[T, Hq, D]`; NaN in rows past the last sequence.
        kv_pages: `[P, page, ...]`, of the value dtype; all that no query reads is NaN (127 in int8).
        scales: `f32[P, page, 2H]` if the pages are scaled, NaN where no query reads; else None.
        kv_lens: `i32[S]`; garbage in rows past the last sequence.
        page_table: `i32[S, pages_per_seq]`; live and out-of-range ids in the padding.
        cu_q_lens: `i32[S + 1]`; garbage past the last sequence.
        num_seqs: `i32[1]`.
        keys: of each sequence, `f64[kv_len, H, D]`, as stored, scales applied.
        values: of each sequence, `f64[kv_len, H, Dv]`, as stored, scales applied.
        slots: of each sequence, `i64[kv_len]`: where its tokens stand.
        mask: what the poison was laid round.
        absent: by sequence, which of its keys are on pages that don't exist: `bool[kv_len]`.
    """

    queries: Array
    kv_pages: Array
    scales: Array | None
    kv_lens: Array
    page_table: Array
    cu_q_lens: Array
    num_seqs: Array
    keys: list[Array]
    values: list[Array]
    slots: list[Array]
    mask: Mask
    absent: dict[int, NDArray[np.bool_]] = field(default_factory=dict)

    @property
    def arrays(self) -> tuple[Array, Array, Array, Array, Array, Array]:
        """Queries, pages, lengths, table, query starts, number of sequences: a kernel's arguments in their order."""
        return self.queries, self.kv_pages, self.kv_lens, self.page_table, self.cu_q_lens, self.num_seqs


def pack(keys: Array, values: Array, version: str) -> Array:
    """Keys `[T, H, D]` and values `[T, H, Dv]` of one dtype as slots: `[T, C, Dp]` or `[T, groups, packing, Dp]`."""
    tokens, heads, k_dim = keys.shape
    v_dim = values.shape[2]
    packing = 4 // keys.dtype.itemsize if version == "v3" else 1
    width = -(-max(k_dim, v_dim) // 128) * 128
    shared = version == "v3" and k_dim == v_dim == 64
    rows = -(-(heads if shared else 2 * heads) // packing) * packing
    slots = np.zeros((tokens, rows, width), keys.dtype)
    for h in range(heads):
        if shared:
            slots[:, h, :64] = keys[:, h]
            slots[:, h, 64:] = values[:, h]
        else:
            slots[:, 2 * h, :k_dim] = keys[:, h]
            slots[:, 2 * h + 1, :v_dim] = values[:, h]
    return slots if version == "v2" else slots.reshape(tokens, rows // packing, packing, width)


def bits(array: Array) -> Array:
    """The same numbers as unsigned bits, as CPU caches hold bfloat16 and float8; others stay."""
    narrow = array.dtype.itemsize == 1 or array.dtype == jnp.dtype(jnp.bfloat16)
    if not narrow or array.dtype == np.int8:
        return array
    return array.view(np.uint8 if array.dtype.itemsize == 1 else np.uint16)


def scaled(rows: Array, dtype: Any) -> tuple[Array, Array]:
    """Rows `[..., n]` as int8 or float8 with one float32 scale each (CACHE-4)."""
    dtype = jnp.dtype(dtype)
    bound = np.float32({"int8": 127, "float8_e4m3fn": 448, "float8_e5m2": 57344}[dtype.name])
    rows = rows.astype(np.float32)
    amax = np.abs(rows).max(-1)
    scales = np.where(amax == 0, np.float32(1), amax / bound)
    ratio = np.clip(rows / scales[..., None], -bound, bound)
    return (np.rint(ratio) if dtype == np.int8 else ratio).astype(dtype), scales


def _place(
    rng: np.random.Generator,
    q_lens: Sequence[int],
    kv_lens: Sequence[int],
    page_size: int,
    pages_per_seq: int | None,
    num_pages: int | None,
    max_seqs: int | None,
    mask: Mask,
) -> tuple[int, Array, list[Array], list[Array]]:
    """Hands out shuffled pages.

    Returns:
        How many there are, the table with garbage in its padding, each sequence's slots, which of them are read.
    """
    counts = [-(-n // page_size) for n in kv_lens]
    width = pages_per_seq if pages_per_seq is not None else max([*counts, 1]) + 1
    pool = num_pages if num_pages is not None else sum(counts) + 3
    rows = max_seqs if max_seqs is not None else len(kv_lens)
    ids = 1 + rng.permutation(pool - 1)
    garbage = np.concatenate([ids[:8], [pool, pool + 1000, 2**31 - 1, -1, -(2**31)]])
    table = rng.choice(garbage, (rows, width)).astype(np.int32)
    slots: list[Array] = []
    read: list[Array] = []
    begin = 0
    for i, (q_len, kv_len, count) in enumerate(zip(q_lens, kv_lens, counts, strict=True)):
        owned = ids[begin : begin + count].copy()
        begin += count
        token = np.arange(kv_len)
        slots.append(owned[token // page_size] * page_size + token % page_size)
        read.append(np.asarray(mask.readable(q_len, kv_len).any(0)))
        # Pages wholly left of what any query reads were released: the table names the null page, all poison.
        first = int(np.argmax(read[-1])) if read[-1].any() else 0
        owned[: first // page_size] = 0
        table[i, :count] = owned
    assert begin <= pool - 1, f"{pool} pages are too few for {begin}"
    return pool, table, slots, read


def _lengths(
    rng: np.random.Generator, q_lens: Sequence[int], kv_lens: Sequence[int], max_seqs: int | None
) -> tuple[Array, Array, Array]:
    rows = max_seqs if max_seqs is not None else len(kv_lens)
    lens = rng.integers(-5, 10**6, rows).astype(np.int32)
    lens[: len(kv_lens)] = kv_lens
    starts = rng.integers(-5, 10**6, rows + 1).astype(np.int32)
    starts[: len(q_lens) + 1] = np.cumsum([0, *q_lens])
    return lens, starts, np.array([len(q_lens)], np.int32)


def make_batch(
    rng: np.random.Generator,
    q_lens: Sequence[int],
    kv_lens: Sequence[int],
    *,
    num_q_heads: int,
    num_kv_heads: int,
    head_dim: int,
    v_head_dim: int | None = None,
    page_size: int = 16,
    version: str = "v3",
    dtype: Any = np.float32,
    kv_dtype: Any = None,
    scaled_pages: bool = False,
    pages_per_seq: int | None = None,
    num_pages: int | None = None,
    max_tokens: int | None = None,
    max_seqs: int | None = None,
    mask: Mask = FULL,
    magnitude: float = 1.0,
) -> Batch:
    """A batch of signed normal numbers, with poison in all that no query may read.

    Args:
        rng: where the numbers come from.
        q_lens: query tokens of each sequence.
        kv_lens: tokens of each sequence, new ones included.
        num_q_heads: Hq.
        num_kv_heads: H.
        head_dim: D.
        v_head_dim: Dv; None: D.
        page_size: slots of a page.
        version: the cache's layout, "v2" or "v3".
        dtype: of the queries.
        kv_dtype: of the cache; None: that of the queries.
        scaled_pages: whether each slot and head has a scale.
        pages_per_seq: width of the table; None: one more than the longest sequence needs.
        num_pages: P; None: three more than needed, the null page among them.
        max_tokens: T; None: no padding.
        max_seqs: S; None: no padding.
        mask: what the queries read: everything else, released pages to the left included, is poison.
        magnitude: what queries are multiplied by, for large logits.

    Returns:
        The batch.
    """
    dtype, v_dim = jnp.dtype(dtype), head_dim if v_head_dim is None else v_head_dim
    kv_dtype = dtype if kv_dtype is None else jnp.dtype(kv_dtype)
    pool, table, slots, read = _place(rng, q_lens, kv_lens, page_size, pages_per_seq, num_pages, max_seqs, mask)
    poison: Any = 127 if kv_dtype == np.int8 else np.nan
    one = pack(np.zeros((1, num_kv_heads, head_dim), kv_dtype), np.zeros((1, num_kv_heads, v_dim), kv_dtype), version)
    flat = np.full((pool * page_size, *one.shape[1:]), poison, kv_dtype)
    scales = np.full((pool * page_size, 2 * num_kv_heads), np.nan, np.float32) if scaled_pages else None
    keys, values = [], []
    for kv_len, where, seen in zip(kv_lens, slots, read, strict=True):
        parts = []
        for part, dim in enumerate((head_dim, v_dim)):
            numbers = rng.standard_normal((kv_len, num_kv_heads, dim))
            if scales is None:
                stored = (numbers * 30 if kv_dtype == np.int8 else numbers).astype(kv_dtype)
                parts.append((stored, stored.astype(np.float64)))
            else:
                stored, scale = scaled(numbers, kv_dtype)
                scales[where[seen], part::2] = scale[seen]
                parts.append((stored, stored.astype(np.float64) * scale[..., None].astype(np.float64)))
        flat[where[seen]] = pack(parts[0][0], parts[1][0], version)[seen]
        keys.append(parts[0][1])
        values.append(parts[1][1])
    total = sum(q_lens)
    queries = np.full((total if max_tokens is None else max_tokens, num_q_heads, head_dim), np.nan, dtype)
    queries[:total] = (magnitude * rng.standard_normal((total, num_q_heads, head_dim))).astype(dtype)
    lens, starts, num_seqs = _lengths(rng, q_lens, kv_lens, max_seqs)
    return Batch(
        queries,
        flat.reshape(pool, page_size, *one.shape[1:]),
        None if scales is None else scales.reshape(pool, page_size, -1),
        lens,
        table,
        starts,
        num_seqs,
        keys,
        values,
        slots,
        mask,
    )


def make_latent_batch(
    rng: np.random.Generator,
    q_lens: Sequence[int],
    kv_lens: Sequence[int],
    *,
    num_q_heads: int,
    latent_dim: int,
    rotary_dim: int,
    page_size: int = 16,
    dtype: Any = np.float32,
    pages_per_seq: int | None = None,
    num_pages: int | None = None,
    max_tokens: int | None = None,
    max_seqs: int | None = None,
    mask: Mask = FULL,
) -> Batch:
    """A batch over an MLA cache: pages `[P, page, align(R, 128) + align(Dr, 128)]`, queries `[T, Hq, R + Dr]`.

    The first R columns of the queries are those for the latents, the rest the rotary ones; keys are both, values
    the latents, for one KV head. Else as `make_batch`.
    """
    dtype = jnp.dtype(dtype)
    pool, table, slots, read = _place(rng, q_lens, kv_lens, page_size, pages_per_seq, num_pages, max_seqs, mask)
    at = -(-latent_dim // 128) * 128
    flat = np.full((pool * page_size, at - (-rotary_dim // 128) * 128), np.nan, dtype)
    keys, values = [], []
    for kv_len, where, seen in zip(kv_lens, slots, read, strict=True):
        stored = rng.standard_normal((kv_len, latent_dim + rotary_dim)).astype(dtype)
        rows = np.zeros((kv_len, flat.shape[1]), dtype)
        rows[:, :latent_dim] = stored[:, :latent_dim]
        rows[:, at : at + rotary_dim] = stored[:, latent_dim:]
        flat[where[seen]] = rows[seen]
        keys.append(stored.astype(np.float64)[:, None])
        values.append(keys[-1][:, :, :latent_dim])
    total = sum(q_lens)
    width = latent_dim + rotary_dim
    queries = np.full((total if max_tokens is None else max_tokens, num_q_heads, width), np.nan, dtype)
    queries[:total] = rng.standard_normal((total, num_q_heads, width)).astype(dtype)
    lens, starts, num_seqs = _lengths(rng, q_lens, kv_lens, max_seqs)
    pages = flat.reshape(pool, page_size, -1)
    return Batch(queries, pages, None, lens, table, starts, num_seqs, keys, values, slots, mask)


def without_pages(batch: Batch, holes: Sequence[tuple[int, int, int]]) -> Batch:
    """A batch whose table names no page in some places: nobody reads the keys that stood there.

    Args:
        batch: the batch.
        holes: sequence, place in its row of the table, and what the table holds there: no id of a page.
    """
    table, absent = batch.page_table.copy(), dict(batch.absent)
    for i, place, wrong in holes:
        table[i, place] = wrong
        pages = np.arange(batch.kv_lens[i]) // batch.kv_pages.shape[1]
        absent[i] = absent.get(i, np.zeros(len(pages), bool)) | (pages == place)
    return replace(batch, page_table=table, absent=absent)


def dense_attention(
    batch: Batch,
    *,
    scale: float | None = None,
    soft_cap: float | None = None,
    sinks: Array | None = None,
    q_scale: float = 1.0,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> tuple[Array, Array]:
    """Attention over what the batch holds, densely, in float64, with the batch's mask.

    Returns:
        The outputs, `f64[T, Hq, Dv]`, zeros in rows past the last sequence, and for each row the largest magnitude
        among the values that it may read, `f64[T, 1, 1]`: ATT-6 measures by it.
    """
    tokens, q_heads, dim = batch.queries.shape
    kv_heads, v_dim = batch.values[0].shape[1:]
    factor = (dim**-0.5 if scale is None else scale) * q_scale * k_scale
    out = np.zeros((tokens, q_heads, v_dim))
    largest = np.zeros((tokens, 1, 1))
    begin = 0
    for i in range(int(batch.num_seqs[0])):
        end, kv_len = int(batch.cu_q_lens[i + 1]), int(batch.kv_lens[i])
        q_len, begin, rows = end - begin, end, slice(begin, end)
        if q_len == 0 or kv_len == 0:
            continue
        queries = batch.queries[rows].astype(np.float64).reshape(q_len, kv_heads, -1, dim)
        scores = np.einsum("qhgd,khd->hgqk", queries, batch.keys[i], optimize=True) * factor
        if soft_cap is not None:
            scores = soft_cap * np.tanh(scores / soft_cap)
        readable = batch.mask.readable(q_len, kv_len)
        if i in batch.absent:
            readable &= ~batch.absent[i]
        scores = np.where(readable, scores, -np.inf)
        top = scores.max(-1, keepdims=True)
        if sinks is not None:
            sink = sinks.astype(np.float64).reshape(kv_heads, -1, 1, 1)
            top = np.maximum(top, sink)
        top = np.where(np.isfinite(top), top, 0)
        weights = np.exp(scores - top)
        total = weights.sum(-1, keepdims=True)
        if sinks is not None:
            total = total + np.exp(sink - top)
        weights = weights / np.where(total == 0, 1, total)
        values = batch.values[i] * v_scale
        out[rows] = np.einsum("hgqk,khd->qhgd", weights, values, optimize=True).reshape(q_len, q_heads, v_dim)
        magnitudes = np.abs(values).max((1, 2))
        largest[rows, 0, 0] = np.where(readable, magnitudes, 0).max(-1)
    return out, largest


def assert_close(output: Any, reference: tuple[Array, Array]) -> None:
    """ATT-6: float32 within 2^-17 max|v|, bfloat16 and float16 within 2^-8 (|ref| + max|v|); ATT-2: zeros are zeros.

    Args:
        output: what a kernel gave, `[T, Hq, Dv]`.
        reference: what `dense_attention` gave.
    """
    expected, largest = reference
    output = np.asarray(output)
    assert output.shape == expected.shape
    assert output.dtype in (np.float32, np.float16, jnp.dtype(jnp.bfloat16))
    bound = 2.0**-17 * largest if output.dtype == np.float32 else 2.0**-8 * (np.abs(expected) + largest)
    error = np.abs(output.astype(np.float64) - expected)
    wrong = ~(error <= bound)
    where = tuple(int(n) for n in np.argwhere(wrong)[0]) if wrong.any() else ()
    assert not wrong.any(), (
        f"{wrong.sum()} of {wrong.size} numbers are off; the first at {where}: {output[where]} for {expected[where]}, "
        f"rows {sorted(set(np.argwhere(wrong)[:, 0].tolist()))[:10]}"
    )
