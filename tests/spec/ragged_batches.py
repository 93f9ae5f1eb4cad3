"""Ragged batches over poisoned caches, and attention over them by the reference of the tests of device code.

What no query may read is NaN, the output rows of nobody included; what no page table entry may be looked at is an id
out of range or one that belongs to somebody else.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from ..kernels.reference import Batch, Mask, dense_attention

__all__ = [
    "FLOAT_CODES",
    "FLOAT_TYPES",
    "Heads",
    "RaggedBatch",
    "dense",
    "empty_slot",
    "i32",
    "placed",
    "ragged_batches",
]

FLOAT_CODES: dict[str, Any] = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16}
FLOAT_TYPES = list(FLOAT_CODES.values())


def i32(*values: int) -> NDArray[np.int32]:
    return np.array(values, np.int32)


@dataclass(frozen=True)
class Heads:
    """Sizes of one layer's heads."""

    num_kv: int
    group: int
    size: int
    v_size: int
    version: str

    @property
    def num_q(self) -> int:
        return self.num_kv * self.group


def _ceil(number: int, step: int) -> int:
    return (number + step - 1) // step * step


def placed(heads: Heads, key: NDArray[Any], value: NDArray[Any], padding: float = 0.0) -> NDArray[Any]:
    """One token's slot, row by row as the layouts' documentation has it.

    Args:
        heads: the sizes.
        key: `[H, D]`.
        value: `[H, Dv]`.
        padding: what stands in padding.
    """
    packing = 4 // key.dtype.itemsize
    width = _ceil(max(heads.size, heads.v_size), 8 * packing if heads.version == "seq_on_lane" else 128)
    rows: list[NDArray[Any]] = []
    for head in range(heads.num_kv):
        if heads.version == "v3" and heads.size == heads.v_size == 64:
            rows.append(np.concatenate([key[head], value[head]]))
        else:
            for vector in (key[head], value[head]):
                row = np.full(width, padding, key.dtype)
                row[: len(vector)] = vector
                rows.append(row)
    if heads.version != "v3":
        return np.stack(rows)
    while len(rows) % packing:
        rows.append(np.full(width, padding, key.dtype))
    return np.stack(rows).reshape(len(rows) // packing, packing, width)


def empty_slot(heads: Heads, dtype: Any) -> NDArray[Any]:
    """A slot of zeros."""
    return placed(heads, np.zeros((heads.num_kv, heads.size), dtype), np.zeros((heads.num_kv, heads.v_size), dtype))


@dataclass
class RaggedBatch:
    """A batch, its cache, and the keys and values that its sequences have in it."""

    heads: Heads
    page_size: int
    queries: NDArray[Any]
    kv_pages: NDArray[Any]
    kv_lens: NDArray[np.int32]
    page_table: NDArray[np.int32]
    cu_q_lens: NDArray[np.int32]
    num_seqs: NDArray[np.int32]
    keys: list[NDArray[Any]]
    values: list[NDArray[Any]]

    @property
    def lengths(self) -> dict[str, Any]:
        return {
            "kv_lens": self.kv_lens,
            "page_table": self.page_table,
            "cu_q_lens": self.cu_q_lens,
            "num_seqs": self.num_seqs,
        }

    @property
    def arguments(self) -> dict[str, Any]:
        return {"queries": self.queries, "kv_pages": self.kv_pages, **self.lengths}

    @property
    def options(self) -> dict[str, Any]:
        """What tells the sizes that the pages' shape does not."""
        return {"num_kv_heads": self.heads.num_kv, "v_head_dim": self.heads.v_size}

    def slot(self, sequence: int, position: int) -> int:
        page = int(self.page_table[sequence, position // self.page_size])
        return page * self.page_size + position % self.page_size

    def rows(self) -> list[tuple[int, int, int]]:
        """(row, sequence, position) of every row that belongs to a sequence."""
        found = []
        for sequence in range(int(self.num_seqs[0])):
            first, end = int(self.cu_q_lens[sequence]), int(self.cu_q_lens[sequence + 1])
            for row in range(first, end):
                found.append((row, sequence, int(self.kv_lens[sequence]) - (end - first) + row - first))
        return found


@st.composite
def ragged_batches(draw: st.DrawFn, dtypes: Sequence[Any] = tuple(FLOAT_TYPES)) -> RaggedBatch:
    """Any heads, lengths and pages, small; poison wherever nothing may be read."""
    size = draw(st.sampled_from([1, 8, 64, 80]))
    heads = Heads(
        num_kv=draw(st.integers(1, 3)),
        group=draw(st.integers(1, 3)),
        size=size,
        v_size=draw(st.sampled_from([size, size, 5])),
        version=draw(st.sampled_from(["v2", "v3"])),
    )
    page_size = draw(st.integers(1, 5))
    lens = draw(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), max_size=3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    cache_type, query_type = np.dtype(draw(st.sampled_from(dtypes))), draw(st.sampled_from(FLOAT_TYPES))
    rows = len(lens) + draw(st.integers(0, 2))
    q_lens, kv_lens = [new for new, _ in lens], [new + old for new, old in lens]
    counts = [-(-kv_len // page_size) for kv_len in kv_lens]
    num_pages = 1 + sum(counts) + draw(st.integers(0, 1))
    width = max([1, *counts]) + draw(st.integers(0, 1))
    tokens = sum(q_lens) + draw(st.integers(0, 2))

    free = [int(page) for page in rng.permutation(np.arange(1, num_pages))]
    garbage = [-1, num_pages, 10**6, -(2**31), 2**31 - 1, 0, *free]
    table = rng.choice(garbage, (rows, width)).astype(np.int32)
    queries = np.full((tokens, heads.num_q, heads.size), np.nan, query_type)
    queries[: sum(q_lens)] = rng.normal(size=(sum(q_lens), heads.num_q, heads.size))
    empty = placed(
        heads, np.zeros((heads.num_kv, size), cache_type), np.zeros((heads.num_kv, heads.v_size), cache_type)
    )
    batch = RaggedBatch(
        heads,
        page_size,
        queries,
        np.full((num_pages, page_size, *empty.shape), np.nan, cache_type),
        np.array([*kv_lens, *rng.choice([-5, 0, 10**6], rows - len(lens))], np.int32),
        table,
        np.array([0, *np.cumsum(q_lens), *rng.choice([-7, 0, 10**6], rows - len(lens))], np.int32).reshape(rows + 1),
        i32(len(lens)),
        [rng.normal(size=(kv_len, heads.num_kv, size)).astype(cache_type) for kv_len in kv_lens],
        [rng.normal(size=(kv_len, heads.num_kv, heads.v_size)).astype(cache_type) for kv_len in kv_lens],
    )
    for sequence, count in enumerate(counts):
        table[sequence, :count] = [free.pop() for _ in range(count)]
        for position in range(kv_lens[sequence]):
            where = divmod(batch.slot(sequence, position), page_size)
            batch.kv_pages[where] = placed(heads, batch.keys[sequence][position], batch.values[sequence][position])
    return batch


def dense(
    batch: RaggedBatch, *, causal: bool = True, window: int | None = None, chunk: int | None = None, **options: Any
) -> NDArray[np.float64]:
    """What attention gives, in float64, as the tests of device code have it."""
    if not batch.keys:
        return np.zeros((len(batch.queries), batch.heads.num_q, batch.heads.v_size))
    keys, values = ([part.astype(np.float64) for part in parts] for parts in (batch.keys, batch.values))
    mask = Mask(causal, window, chunk)
    arrays = batch.kv_lens, batch.page_table, batch.cu_q_lens, batch.num_seqs
    whole = Batch(batch.queries, batch.kv_pages, None, *arrays, keys, values, [], mask)
    return dense_attention(whole, **{name: value for name, value in options.items() if value is not None})[0]
