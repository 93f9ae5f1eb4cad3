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

from . import aot
from .aot_grid import Program, attention, check, other_programs, pairwise

aot.require()

PROGRAMS = [*map(attention, pairwise()), *other_programs()]
MOST_PROGRAMS = 40


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: f"{program.name}-{program.generation}")
def test_compiles_for_tpus(program: Program) -> None:
    """CACHE-3: what is donated is updated in place; every call that a kernel takes is made by it."""
    check(program)


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
