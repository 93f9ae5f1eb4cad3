"""What `cycle_report` has to know of a kernel that was compiled, and the shapes that all are compiled for."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from ..kernels import aot

__all__ = ["NotCounted", "Turn", "lengths"]

# Llama-3-8B: the shapes of the figures that are published.
NUM_Q_HEADS, NUM_KV_HEADS, HEAD_DIM = 32, 8, 128
# With 20,000 pages no compiler thinks of keeping the cache in VMEM.
NUM_SEQS, CONTEXT, NUM_PAGES = 8, 4096, 20_000
PREFILL_TOKENS = 2048
# DeepSeek-V3.
MLA_HEADS, LATENT_DIM, ROTARY_DIM = 128, 512, 64
MLA_DIMS = (LATENT_DIM + ROTARY_DIM, LATENT_DIM)

DTYPE = jnp.bfloat16
I32 = jnp.int32


class NotCounted(Exception):
    """A kernel that can't be counted here, and is not expected to: the message is the reason."""


@dataclass(frozen=True)
class Turn:
    """One turn of a kernel's loop over blocks of keys.

    Attributes:
        kernel: the name that the schedule has in the dumps.
        keys: keys that it works on.
        queries: query tokens that it works on, of a full block.
        key_bytes: bytes of HBM for each key.
        pages: turns of the loop that starts the copies of a block's pages, where there is one.
        heads: turns of each loop over heads, in the order of the code: of what turns once there is no loop.
        sizes: keys that a turn works on where all its blocks are of one size, for each of several sizes, rising.
        blocks: blocks of a turn, each of one sequence; None: a turn is of one.
        rows: rows that are multiplied with each key: query heads, times the queries of a sequence where it decodes.
        dims: numbers of a key that they are multiplied with, and of a value.
    """

    kernel: str
    keys: int
    queries: int
    key_bytes: int
    pages: int
    heads: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    blocks: int | None = None
    rows: int = NUM_Q_HEADS
    dims: tuple[int, int] = (HEAD_DIM, HEAD_DIM)


def lengths(num_seqs: int, page: int) -> tuple[Any, Any, Any, Any]:
    """kv_lens, page_table, cu_q_lens, num_seqs."""
    shapes = ((num_seqs,), (num_seqs, CONTEXT // page), (num_seqs + 1,), (1,))
    kv_lens, table, starts, count = (aot.shape(shape, I32) for shape in shapes)
    return kv_lens, table, starts, count
