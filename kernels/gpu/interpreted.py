"""The GPU's kernels on any computer: attention and updates in GPU interpret mode, with whatever the interpreter minds.

Blocks run one after another, the warpgroups of a block beside each other, a copy is made as soon as it is started.
What isn't ordered by a barrier shows as a race; shared memory that nobody wrote holds NaN. For tests, and for
`kvproof check`: a call takes a thousand times as long as on a device, and compiling it some seconds. JAX 0.10 keeps
the interpreter's names to itself, which are the same since.
"""

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from ..layout import layout_of, pack_rows
from . import update as update_kernels

__all__ = ["Run", "interpret_params", "reports", "run", "update"]

_INTERPRETER = "jax._src.pallas.mosaic_gpu.interpret"

_TO_COMPILE: dict[str, Any] = {"xla_backend_optimization_level": 0}
"""What is run once is not worth being optimised."""

_ready: Callable[[Any], Any] = jax.block_until_ready


class Run(NamedTuple):
    """What one run of a kernel left.

    Attributes:
        output: what it gave, its arrays as numpy arrays.
        minds: what the interpreter reported: races.
    """

    output: Any
    minds: str


def update(
    kv_pages: Any,  # [P, page, ...]
    keys: Any,  # [T, H, D]
    values: Any,  # [T, H, Dv]
    slot_mapping: Any,  # i32[T]
) -> Run:
    """Writes keys and values into their slots by the GPU's kernel (CACHE-3).

    Args:
        kv_pages: `[P, page, 2H, Dp]` or `[P, page, groups, packing, Dp]`, of the dtype of the numbers.
        keys: `[T, H, D]`.
        values: `[T, H, Dv]`.
        slot_mapping: `i32[T]`.
    """
    layout = layout_of(kv_pages, keys.shape[2], values.shape[2], keys.shape[1])
    rows = pack_rows(jnp.asarray(keys), jnp.asarray(values), layout, kv_pages.dtype)
    return run(_update, kv_pages, rows, slot_mapping)


def _update(kv_pages: jax.Array, rows: jax.Array, slots: jax.Array) -> jax.Array:
    return update_kernels.update(kv_pages, rows, slots, interpret=interpret_params())


def interpret_params(**more: Any) -> Any:
    """What kernels take as ``interpret``: races are looked for and reported, memory begins as NaN.

    Args:
        more: further fields of the parameters.
    """
    params = import_module(f"{_INTERPRETER}.params").InterpretGPUParams
    return params(detect_races=True, uninitialized_memory="nan", **more)


def run(function: Callable[..., Any], *arrays: Any) -> Run:
    """Runs a function whose kernels are interpreted.

    Args:
        function: of arrays; what it passes to kernels as ``interpret`` is `interpret_params`.
        arrays: its arguments.

    Raises:
        jax.errors.JaxRuntimeError: a kernel read or wrote outside of an array.
    """
    compiled = jax.jit(function, compiler_options=_TO_COMPILE)
    with reports() as said:
        output: NDArray[Any] = jax.tree.map(np.asarray, _ready(compiled(*arrays)))
    return Run(output, said.getvalue().strip())


@contextmanager
def reports() -> Iterator[io.StringIO]:
    """Catches what the interpreter prints of the kernels that run meanwhile, and clears its memory afterwards."""
    said = io.StringIO()
    try:
        with redirect_stdout(said):
            yield said
    finally:
        # a kernel that raised leaves the imitated memory behind
        import_module(f"{_INTERPRETER}.interpret_pallas_call").reset_gpu_interpret_mode_state()
