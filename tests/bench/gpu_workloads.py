"""What is timed on a GPU: batches for attention, with the bytes and the arithmetic that they take at least."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kvproof.kernels import ScaledPages, mla_paged_attention, ragged_paged_attention
from kvproof.kernels.layout import CacheLayout

__all__ = [
    "GOALS",
    "Inputs",
    "Workload",
    "attend",
    "decode_grid",
    "inputs_for",
    "latents_grid",
    "mixed",
    "prefill_grid",
    "quantized_grid",
]

MIXED_Q = (5, 1, 120, 1, 1, 32, 251, 1, 1, 99, 1, 5, 3, 117, 1, 1)
MIXED_KV = (18, 129, 597, 122, 64, 322, 463, 181, 1107, 123, 31, 18, 1229, 229, 87, 1328)

_DEVIATION = 40
"""What int8 numbers deviate by: three times that is within their range; a scale makes them as wide as others."""

_RANDOM_BYTES = 64 * 2**20
"""Of random pages that are drawn; a pool holds them again and again, in any order."""


@dataclass(frozen=True)
class Workload:
    """A batch.

    Attributes:
        name: how the table calls it.
        q_lens: query tokens of each sequence.
        kv_lens: tokens of each sequence, new ones included.
        heads: query and KV heads.
        page: slots of a page.
        dim: the head size; over latents (MLA) the size of a latent.
        rotary: the size of the rotary part of a key over latents, which all heads share; 0: no latents.
        kv_dtype: the dtype of the pages.
        scaled: whether the pages hold a scale for each slot and head.
    """

    name: str
    q_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]
    heads: tuple[int, int] = (32, 8)
    page: int = 16
    dim: int = 128
    rotary: int = 0
    kv_dtype: Any = jnp.bfloat16
    scaled: bool = False

    @property
    def itemsize(self) -> int:
        """Bytes of a number of the pages."""
        return int(jnp.dtype(self.kv_dtype).itemsize)

    @property
    def is_integer(self) -> bool:
        """Whether the pages hold integers, which a scale makes numbers of."""
        return bool(jnp.issubdtype(self.kv_dtype, jnp.integer))

    @property
    def slot(self) -> int:
        """Numbers of a slot that are read: those of keys and values, or of a latent and its rotary part."""
        return self.dim + self.rotary if self.rotary else 2 * self.heads[1] * self.dim

    @property
    def row(self) -> tuple[int, ...]:
        """The shape of a slot as it is stored."""
        if not self.rotary:
            return CacheLayout("v3", self.heads[1], self.dim, self.dim, 4 // self.itemsize).row_shape
        return (sum(-(-part // 128) * 128 for part in (self.dim, self.rotary)),)

    @property
    def pages_per_seq(self) -> int:
        """The width of the page table: what the longest sequence needs."""
        return max(-(-kv_len // self.page) for kv_len in self.kv_lens)

    @property
    def num_pages(self) -> int:
        """Pages that the batch reads."""
        return sum(-(-kv_len // self.page) for kv_len in self.kv_lens)

    @property
    def page_bytes(self) -> int:
        """Bytes of a page, without scales."""
        return self.page * int(np.prod(self.row)) * self.itemsize

    @property
    def read_bytes(self) -> int:
        """Keys and values that must be read once, with their scales (float32), and queries and outputs (bfloat16)."""
        numbers = sum(self.q_lens) * self.heads[0] * (2 * self.dim + self.rotary)
        slot_bytes = self.slot * self.itemsize + (8 * self.heads[1] if self.scaled else 0)
        return sum(self.kv_lens) * slot_bytes + 2 * numbers

    @property
    def operations(self) -> int:
        """Multiplications and additions of both products, over the keys that causal queries read."""
        pairs = sum(
            q_len * (kv_len - q_len) + q_len * (q_len + 1) // 2
            for q_len, kv_len in zip(self.q_lens, self.kv_lens, strict=True)
        )
        return 2 * pairs * self.heads[0] * (2 * self.dim + self.rotary)


@dataclass(frozen=True)
class Inputs:
    """A workload's arrays on a device; turn i of a timing takes queries and table i, so that no cache helps.

    Attributes:
        queries: `bf16[turns, T, Hq, D]`; over latents with the rotary parts behind.
        pages: `kv_dtype[P, page, *row]`, or ScaledPages of it.
        kv_lens: `i32[S]`.
        tables: `i32[turns, S, pages_per_seq]`.
        starts: `i32[S + 1]`.
        num_seqs: `i32[1]`.
    """

    queries: jax.Array
    pages: jax.Array | ScaledPages
    kv_lens: jax.Array
    tables: jax.Array
    starts: jax.Array
    num_seqs: jax.Array

    @property
    def arrays(self) -> tuple[Any, ...]:
        """All of them, in the order in which `attend` takes them."""
        return self.queries, self.pages, self.kv_lens, self.tables, self.starts, self.num_seqs


def decode_grid() -> Iterator[Workload]:
    """One query each, of batches, contexts, pages and heads of all sizes."""
    grid = product(((32, 8), (64, 8), (8, 8), (16, 1)), (1, 8, 32, 128), (1024, 4096, 16384, 65536), (16, 64, 128))
    for heads, batch, context, page in grid:
        name = f"decode B={batch} L={context} page {page} {heads[0]}/{heads[1]}"
        yield Workload(name, (1,) * batch, (context,) * batch, heads, page)


def prefill_grid() -> Iterator[Workload]:
    """One prompt, from its first token."""
    for tokens in (512, 1024, 2048, 4096, 8192, 16384):
        yield Workload(f"prefill {tokens} page 64 32/8", (tokens,), (tokens,), page=64)


def latents_grid() -> Iterator[Workload]:
    """One query each over latents of 512 numbers, with all the heads of a model and with a device's share of them."""
    for heads, (batch, context), page in product((128, 16), ((64, 4096), (8, 16384), (1, 65536)), (64, 16)):
        name = f"latents B={batch} L={context} page {page} {heads} heads"
        yield Workload(name, (1,) * batch, (context,) * batch, (heads, 1), page, 512, 64)
    yield Workload("latents prefill 4096 page 64 128 heads", (4096,), (4096,), (128, 1), 64, 512, 64)


def quantized_grid() -> Iterator[Workload]:
    """Decode and a prompt over caches of 8 bits, with one scale for the cache and with one for each slot and head."""
    dtypes = {"int8": jnp.int8, "float8_e4m3fn": jnp.float8_e4m3fn}
    for (word, dtype), scaled, page in product(dtypes.items(), (False, True), (16, 64)):
        name = f"decode B=32 L=4096 page {page} 32/8 {word}{' scaled' if scaled else ''}"
        yield Workload(name, (1,) * 32, (4096,) * 32, page=page, kv_dtype=dtype, scaled=scaled)
    for scaled in (False, True):
        name = f"prefill 4096 page 64 32/8 int8{' scaled' if scaled else ''}"
        yield Workload(name, (4096,), (4096,), page=64, kv_dtype=jnp.int8, scaled=scaled)


def mixed() -> Workload:
    """Decoding and prefilling sequences in one batch: lengths that others time, eight times as long."""
    return Workload(
        "mixed page 16 32/8", tuple(q if q == 1 else 8 * q for q in MIXED_Q), tuple(8 * n for n in MIXED_KV)
    )


GOALS = {
    "decode B=32 L=4096 page 64 32/8": 0.80,
    "decode B=32 L=4096 page 16 32/8": 0.70,
    "decode B=1 L=65536 page 16 32/8": 0.70,
    "prefill 16384 page 64 32/8": 0.50,
}
"""What is to be reached: decoding, as a share of the measured copy bandwidth; prefill, of the measured matrix rate."""


def inputs_for(workload: Workload, device: Any, cache_bytes: int, turns: int = 4, seed: int = 0) -> Inputs:
    """Random inputs, with so many pages that what one turn reads is not in the cache when it is read again.

    Args:
        workload: the batch.
        device: where the arrays go.
        cache_bytes: of the device's last cache.
        turns: how many queries and tables there are.
        seed: of all that is drawn.
    """
    rng = np.random.default_rng(seed)
    num_pages = max(workload.num_pages, -(-3 * cache_bytes // workload.page_bytes))
    drawn = min(num_pages, -(-_RANDOM_BYTES // workload.page_bytes))
    tables = np.stack([_table(workload, rng.permutation(num_pages)) for _ in range(turns)])
    starts = np.cumsum([0, *workload.q_lens]).astype(np.int32)
    width = _DEVIATION if workload.is_integer else 1
    few, queries = (
        (factor * rng.standard_normal(shape, np.float32)).astype(dtype)
        for factor, dtype, shape in (
            (width, workload.kv_dtype, (drawn, workload.page, *workload.row)),
            (1, jnp.bfloat16, (turns, int(starts[-1]), workload.heads[0], workload.dim + workload.rotary)),
        )
    )
    order = rng.integers(0, drawn, num_pages, dtype=np.int32)
    lengths = (np.array(workload.kv_lens, np.int32), tables, starts, np.array([len(workload.q_lens)], np.int32))
    there = [jax.device_put(array, device) for array in (few, order, queries, *lengths)]
    pages = jnp.take(there[0], there[1], axis=0)
    if workload.scaled:
        scales = jnp.full((num_pages, workload.page, 2 * workload.heads[1]), 1 / width, jnp.float32, device=device)
        return Inputs(there[2], ScaledPages(pages, scales), *there[3:])
    return Inputs(there[2], pages, *there[3:])


def _table(workload: Workload, order: Any) -> Any:
    """A page table whose sequences take pages of a pool in some order: `i32[S, pages_per_seq]`, -1 behind the last."""
    table = np.full((len(workload.kv_lens), workload.pages_per_seq), -1, np.int32)
    begin = 0
    for row, kv_len in zip(table, workload.kv_lens, strict=True):
        count = -(-kv_len // workload.page)
        row[:count] = order[begin : begin + count]
        begin += count
    return table


def attend(turns: int, workload: Workload) -> Callable[..., jax.Array]:
    """A function of `Inputs.arrays` that attends so many times, with other queries and pages each time.

    The number of turns is known when it is compiled, so that nobody on the host waits for one to begin the next.

    Args:
        turns: how many times.
        workload: the batch.
    """
    dim = workload.dim
    scale = 1 / _DEVIATION if workload.is_integer and not workload.scaled else None

    def once(queries: jax.Array, pages: Any, *lengths: jax.Array) -> jax.Array:
        if not workload.rotary:
            return ragged_paged_attention(queries, pages, *lengths, k_scale=scale, v_scale=scale)
        return mla_paged_attention(queries[..., :dim], queries[..., dim:], pages, *lengths, scale=dim**-0.5)

    def run(queries: jax.Array, pages: Any, kv_lens: jax.Array, tables: jax.Array, *rest: jax.Array) -> jax.Array:
        def turn(i: jax.Array, _: jax.Array) -> jax.Array:
            which = jax.lax.rem(i, jnp.int32(tables.shape[0]))
            return once(queries[which], pages, kv_lens, tables[which], *rest)

        begin = jnp.zeros_like(queries[0, ..., :dim])
        out: jax.Array = jax.lax.fori_loop(jnp.int32(0), jnp.int32(turns), turn, begin)
        return out

    return run
