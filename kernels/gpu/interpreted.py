"""The GPU's kernels on any computer: attention and updates in GPU interpret mode, with what the interpreter reports.

Blocks run one after another, the warpgroups of a block beside each other, a copy is made as soon as it is started.
What isn't ordered by a barrier shows as a race; shared memory that nobody wrote holds NaN. For tests: a call takes a
thousand times as long as on a device, and compiling it some seconds. JAX 0.10 keeps the interpreter's names to itself,
which are the same since.
"""

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from functools import cache, partial
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from ..interpreted_calls import TO_COMPILE, Run, options_of_call, order_forgotten
from ..layout import layout_of, pack_rows
from ..options import AttentionOptions
from . import attention as attention_kernels
from . import update as update_kernels
from .compiled_once import compiled_once
from .support import unsupported

__all__ = ["Run", "attend", "interpret_params", "reports", "run", "update"]

_INTERPRETER = "jax._src.pallas.mosaic_gpu.interpret"

_ready: Callable[[Any], Any] = jax.block_until_ready


def attend(
    queries: Any,  # [T, Hq, D]
    kv_pages: Any,  # [P, page, ...]
    kv_lens: Any,  # i32[S]
    page_table: Any,  # i32[S, pages_per_seq]
    cu_q_lens: Any,  # i32[S + 1]
    num_seqs: Any,  # i32[1]
    *,
    num_kv_heads: int,
    causal: bool = True,
    window: int | None = None,
    chunk: int | None = None,
    soft_cap: float | None = None,
) -> Run:
    """Attention of a ragged batch by the GPU's kernels (ATT-1 to ATT-4, ATT-6).

    Args:
        queries: `[T, Hq, D]`: bfloat16 or float16.
        kv_pages: `[P, page, 2H, Dp]` or `[P, page, groups, packing, Dp]`, of the dtype of the numbers.
        kv_lens: `i32[S]`.
        page_table: `i32[S, pages_per_seq]`.
        cu_q_lens: `i32[S + 1]`.
        num_seqs: `i32[1]`.
        num_kv_heads: H.
        causal: as in `ragged_paged_attention`.
        window: as there.
        chunk: as there.
        soft_cap: as there.

    Raises:
        ValueError: the kernels do not take such a call; on a GPU it is left to XLA.
    """
    masks = {"causal": causal, "window": window, "chunk": chunk, "soft_cap": soft_cap}
    options = options_of_call(unsupported, queries, kv_pages, page_table, num_kv_heads, **masks)
    return run(_attention(options), queries, kv_pages, kv_lens, page_table, cu_q_lens, num_seqs)


@cache
def _attention(options: AttentionOptions) -> Callable[..., jax.Array]:
    """One function for equal options, so that what is compiled for them is found again."""
    return partial(_attend, options=options)


def _attend(
    queries: jax.Array,  # [T, Hq, D]
    kv_pages: jax.Array,  # [P, page, ...]
    kv_lens: jax.Array,  # i32[S]
    page_table: jax.Array,  # i32[S, pages_per_seq]
    cu_q_lens: jax.Array,  # i32[S + 1]
    num_seqs: jax.Array,  # i32[1]
    *,
    options: AttentionOptions,
) -> jax.Array:
    batch = (kv_lens, page_table, cu_q_lens, num_seqs)
    return attention_kernels.attend(queries, kv_pages, *batch, None, options=options, interpret=interpret_params())


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
    compiled = jax.jit(function, compiler_options=TO_COMPILE)
    with reports() as said, compiled_once(TO_COMPILE), _device_memory():
        output: NDArray[Any] = jax.tree.map(np.asarray, _ready(compiled(*arrays)))
    return Run(output, said.getvalue().strip())


@contextmanager
def _device_memory() -> Iterator[None]:
    """Within, references of which no memory is said are the device's: for JAX 0.10 too, as they are since."""
    callbacks: Any = import_module(f"{_INTERPRETER}.gpu_callbacks")
    before = callbacks.is_gmem_memory_space
    callbacks.is_gmem_memory_space = lambda space: space is None or before(space)
    try:
        yield
    finally:
        callbacks.is_gmem_memory_space = before


@contextmanager
def reports() -> Iterator[io.StringIO]:
    """Catches what the interpreter prints of the kernels that run meanwhile, and clears its memory afterwards."""
    said = io.StringIO()
    try:
        with redirect_stdout(said), order_forgotten():
            yield said
    finally:
        # a kernel that raised leaves the imitated memory behind
        import_module(f"{_INTERPRETER}.interpret_pallas_call").reset_gpu_interpret_mode_state()
