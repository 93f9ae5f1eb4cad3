"""The TPU's kernels on any computer: attention and updates in TPU interpret mode, with what the interpreter reports.

Copies are made as soon as they are started (``"eager"``), where a missing wait shows as a race, or as late as they
may be (``"on_wait"``), where it shows as NaN. Memory that nobody wrote holds NaN. For `kvproof check`, which finds this
module as ``tpu_kernels``: a call takes a thousand times as long as on a device, and compiling it some seconds. What is
compiled serves both modes.
"""

import dataclasses
import io
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from functools import partial
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import tpu as pltpu

from ..interpreted_calls import TO_COMPILE, Run, options_of_call, order_forgotten
from ..layout import layout_of, pack_rows
from ..options import AttentionOptions
from . import attention as attention_kernels
from . import update as update_kernels
from .support import unsupported

__all__ = ["MODES", "Mode", "Run", "attend", "interpret_params", "reports", "update"]

Mode = Literal["eager", "on_wait"]

MODES: tuple[Mode, ...] = get_args(Mode)
"""When copies are made: as soon as they are started, or when somebody waits for them."""

_SMALLEST = 128
"""The fewest keys of a block where a kernel decodes."""

_LOG = "jax._src.pallas.mosaic.interpret"

_reset: Callable[[], None] = pltpu.reset_tpu_interpret_mode_state
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
    decode_block: int | None = None,
    prefill_block: tuple[int, int] | None = None,
    mode: Mode = "eager",
) -> Run:
    """Attention of a ragged batch by the TPU's kernels (ATT-1 to ATT-4, ATT-6).

    Args:
        queries: `[T, Hq, D]`: float32 or bfloat16.
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
        decode_block: as there. None: 128 keys, or a page where that is more: the smaller, the sooner it is compiled.
        prefill_block: as there.
        mode: one of `MODES`.

    Raises:
        ValueError: the kernels do not take such a call; on a TPU it is left to XLA.
    """
    masks: dict[str, Any] = {"causal": causal, "window": window, "chunk": chunk, "soft_cap": soft_cap}
    smallest = max(kv_pages.shape[1], _SMALLEST)
    blocks: dict[str, Any] = {"decode_block": decode_block or smallest, "prefill_block": prefill_block}
    options = options_of_call(unsupported, queries, kv_pages, page_table, num_kv_heads, **masks, **blocks)
    kernel = partial(_attend, options=options)
    return _run(kernel, mode, queries, kv_pages, kv_lens, page_table, cu_q_lens, num_seqs)


def update(
    kv_pages: Any,  # [P, page, ...]
    keys: Any,  # [T, H, D]
    values: Any,  # [T, H, Dv]
    slot_mapping: Any,  # i32[T]
    *,
    mode: Mode = "eager",
) -> Run:
    """Writes keys and values into their slots by the TPU's kernel (CACHE-3).

    Args:
        kv_pages: `[P, page, 2H, Dp]` or `[P, page, groups, packing, Dp]`, of the dtype of the numbers.
        keys: `[T, H, D]`.
        values: `[T, H, Dv]`.
        slot_mapping: `i32[T]`.
        mode: one of `MODES`.
    """
    layout = layout_of(kv_pages, keys.shape[2], values.shape[2], keys.shape[1])
    rows = pack_rows(jnp.asarray(keys), jnp.asarray(values), layout, kv_pages.dtype)
    return _run(_update, mode, kv_pages, rows, slot_mapping)


@partial(jax.jit, static_argnames="options", compiler_options=TO_COMPILE)
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


@partial(jax.jit, compiler_options=TO_COMPILE)
def _update(kv_pages: jax.Array, rows: jax.Array, slots: jax.Array) -> jax.Array:
    return update_kernels.update(kv_pages, rows, slots, interpret=interpret_params())


class _OfEitherMode(pltpu.InterpretParams):
    """Parameters whose mode is that of `reports` while a kernel runs: one compiled program serves both modes.

    JAX reads the mode when a kernel begins to run; all else of the parameters goes into the program.
    """

    @property
    def dma_execution_mode(self) -> Mode:
        """One of `MODES`."""
        return _mode

    @dma_execution_mode.setter
    def dma_execution_mode(self, mode: Mode) -> None:
        """The constructor's argument is not kept."""

    # The fields change with the mode, so that they tell nothing of which program it is.
    __eq__ = object.__eq__
    __hash__ = object.__hash__


_mode = MODES[0]
"""The mode of the kernels that run now: a global, as the interpreter calls back from threads of its own."""


def interpret_params(**more: Any) -> pltpu.InterpretParams:
    """What `pallas_call` takes as ``interpret``: races are looked for and reported, memory begins as NaN.

    When copies are made says `reports`, within which the kernel runs.

    Args:
        more: further fields of the parameters.
    """
    if any(field.name == "on_race" for field in dataclasses.fields(pltpu.InterpretParams)):
        more["on_race"] = "warn"  # JAX 0.12 would raise at the first; before there was no choice
    return _OfEitherMode(detect_races=True, uninitialized_memory="nan", **more)


def _run(function: Callable[..., jax.Array], mode: Mode, *arrays: Any) -> Run:
    with reports(mode) as said:
        output = np.asarray(_ready(function(*arrays)))
    return Run(output, said.getvalue().strip())


@contextmanager
def reports(mode: Mode) -> Iterator[io.StringIO]:
    """Catches what the interpreter reports of the kernels that run meanwhile, and clears its memory afterwards.

    That is all it says of races, and of semaphores that are not at zero at a kernel's end: JAX 0.10 and 0.11 print it,
    0.12 logs races.

    Args:
        mode: when they make their copies, one of `MODES`; kernels must end before this does.

    Raises:
        ValueError: there is no such mode.
    """
    global _mode
    if mode not in MODES:
        raise ValueError(f"mode={mode!r} must be one of {MODES} [R1]")
    said, _mode = io.StringIO(), mode
    log, handler = logging.getLogger(_LOG), logging.StreamHandler(said)
    log.addHandler(handler)
    try:
        with redirect_stdout(said), order_forgotten():
            yield said
    finally:
        log.removeHandler(handler)
        _reset()  # a kernel that raised leaves the imitated memory behind
