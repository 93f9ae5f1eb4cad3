"""The public functions compiled for TPUs, by the real compiler, on a machine without one.

That a program compiles proves that its kernels lower for the generation and that their blocks fit into its VMEM. What
is updated in place is read off the compiler's own account of memory.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from kvproof.kernels import copy_pages, export_pages, kv_cache_update, ragged_paged_attention, write_states

from . import aot
from .aot_grid import Program, attention, check, other_programs, pairwise

aot.require()

PROGRAMS = [*map(attention, pairwise()), *other_programs()]
MOST_PROGRAMS = 40


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: f"{program.name}-{program.generation}")
def test_compiles_for_tpus(program: Program) -> None:
    """CACHE-3: what is donated is updated in place; every call that a kernel takes is made by it."""
    check(program)


MOVES: dict[str, Callable[..., Any]] = {
    "part of a page": lambda pages, ids, more: copy_pages(pages, ids, ids, ids, **more),
    "pages to the host": lambda pages, ids, more: export_pages(pages, ids, ids, **more),
    "pages from the host": lambda pages, ids, _: write_states(
        pages, ids, jnp.zeros((8, *pages.shape[1:]), pages.dtype)
    ),
    "tokens by slots": lambda pages, ids, more: kv_cache_update(pages, *_tokens(8, pages), ids, **more),
    "tokens by slices": lambda pages, ids, more: kv_cache_update(
        pages, *_tokens(8, pages), jnp.stack([ids] * 3), num_slices=ids[:1], **more
    ),
    "a batch": lambda pages, ids, more: ragged_paged_attention(
        jnp.zeros((8, 16, 128), jnp.bfloat16),
        pages,
        ids,
        jnp.outer(ids, ids),
        jnp.zeros((9,), jnp.int32),
        ids[:1],
        **more,
    ),
}
"""Calls that XLA serves, over pages of 8 KV heads, or of 5 where they have 8 bits."""

READS = ("pages to the host", "a batch")

SERVED: dict[str, tuple[tuple[int, ...], Any, dict[str, Any]]] = {
    "seq_on_lane": ((2000, 16, 128, 128), jnp.bfloat16, {"version": "seq_on_lane"}),
    "v3": ((2000, 128, 8, 2, 128), jnp.bfloat16, {}),
    "v2": ((2000, 128, 10, 128), jnp.int8, {"version": "v2", "k_scale": 0.5, "v_scale": 0.5}),
}
"""By the version of the layout: the shape and the dtype of the pages, and options of the calls."""


def _tokens(count: int, pages: Any) -> tuple[jax.Array, jax.Array]:
    heads = 5 if pages.dtype == jnp.int8 else 8
    return jnp.zeros((count, heads, 128), jnp.bfloat16), jnp.ones((count, heads, 128), jnp.bfloat16)


@pytest.mark.filterwarnings("ignore::kvproof.kernels.KernelsUnavailable")
@pytest.mark.parametrize(
    ("version", "move"),
    [
        *(("seq_on_lane", move) for move in MOVES),
        *(("v3", move) for move in list(MOVES)[:3]),
        *(("v2", move) for move in ("tokens by slots", "tokens by slices")),
    ],
)
def test_what_xla_serves_copies_no_cache(move: str, version: str) -> None:
    """MAN-17, SWAP-2, CACHE-3: XLA copies a bfloat16 cache to bitcast it, and one of columns to take a slot out.

    Of v2 it turns a cache of 8 bits whose slots fill no tiles, to scatter rows into it.
    """
    shape, dtype, more = SERVED[version]
    pages: Any = aot.shape(shape, dtype)
    donated = () if move in READS else (0,)

    def call(*given: Any) -> Any:
        return MOVES[move](*given, more)

    compiled = aot.compile_for("v6e", call, pages, aot.shape((8,), jnp.int32), donate=donated)
    analysis: Any = compiled.memory_analysis()
    assert analysis.temp_size_in_bytes < 2**24 < 2 * pages.size


def test_few_programs_cover_all_pairs_of_options() -> None:
    assert len(PROGRAMS) <= MOST_PROGRAMS


def test_too_large_blocks_are_found() -> None:
    """What compiles fits: the compiler refuses more VMEM than there is, on the generations with the most too."""
    shape = aot.shape((8, 128), jnp.float32)

    def double(array: jax.Array) -> jax.Array:
        def kernel(source: Any, target: Any, block: Any) -> None:
            block[0] = source[...]
            target[...] = block[0] * 2.0

        blocks = [pltpu.VMEM((160 * 2**20 // 4096, 8, 128), jnp.float32)]
        call: Callable[..., jax.Array] = pl.pallas_call(kernel, out_shape=shape, scratch_shapes=blocks)
        return call(array)

    with pytest.raises(jax.errors.JaxRuntimeError, match=r"(?i)vmem"):
        aot.compile_for("v6e", double, shape)
