"""Batches for the GPU's kernels, interpreted: those that broke kernels before, small enough for an interpreter."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kvproof.kernels.gpu import attention, interpreted, schedule
from kvproof.kernels.gpu.support import unsupported
from kvproof.kernels.layout import layout_of
from kvproof.kernels.options import AttentionOptions
from kvproof.kernels.storage import ScaledPages

from .reference import FULL, Batch, Mask, assert_close, dense_attention, make_batch, without_pages

__all__ = ["CASES", "QUICK", "SCALED", "Case", "run_case"]

HALF = jnp.bfloat16

HOLED = ((5, 1, 1, 2), (70, 100, 66, 65), ((0, 2, -1), (1, 0, -(2**31)), (1, 5, 10**6)))
"""Queries and tokens of sequences, some of them with pages that don't exist."""

SCALED: dict[str, Any] = {"scaled_pages": True, "kv_dtype": jnp.float8_e4m3fn, "version": "v3"}


@dataclass(frozen=True)
class Case:
    """A batch and its options.

    Attributes:
        q_lens: queries of each sequence.
        kv_lens: tokens of each.
        heads: of queries, and of keys.
        mask: what they read.
        sinks: whether there are sinks.
        scale: of scores; None: the usual.
        soft_cap: of scores, or None.
        value_scale: of values.
        multiprocessors: of the device that contexts are split for; of 1, they are not, and stages come round.
        holes: pages that don't exist, as `without_pages` takes them.
        more: what else `make_batch` takes.
    """

    q_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]
    heads: tuple[int, int] = (4, 2)
    mask: Mask = FULL
    sinks: bool = False
    scale: float | None = None
    soft_cap: float | None = None
    value_scale: float = 1.0
    multiprocessors: int = schedule.MULTIPROCESSORS
    holes: tuple[tuple[int, int, int], ...] = ()
    more: dict[str, Any] = field(default_factory=dict)

    def batch(self) -> Batch:
        """Its arrays: whatever no query reads is NaN, whatever no sequence owns garbage."""
        given: dict[str, Any] = {"head_dim": 64, "page_size": 16, "dtype": HALF, "version": "v2"}
        given.update(self.more)
        heads: dict[str, Any] = {"num_q_heads": self.heads[0], "num_kv_heads": self.heads[1]}
        batch = make_batch(np.random.default_rng(3), self.q_lens, self.kv_lens, mask=self.mask, **heads, **given)
        return without_pages(batch, self.holes)


CASES: dict[str, Case] = {
    "small": Case((5, 1), (70, 200), (2, 1)),
    "mixed": Case((5, 1, 70), (70, 33, 200)),
    "window, sinks, shared rows, groups of three": Case(
        (5, 1, 70), (70, 33, 200), (6, 2), Mask(window=40), sinks=True, more={"version": "v3"}
    ),
    "pages of one slot": Case((1, 1, 1), (63, 65, 0), more={"page_size": 1}),
    "pages of eight, many parts": Case(
        (1, 1, 1, 1), (127, 128, 129, 1), (8, 1), more={"page_size": 8, "pages_per_seq": 160}
    ),
    "pages of 32, chunks, groups of five": Case(
        (1, 1, 1), (31, 33, 300), (5, 1), Mask(chunk=50), more={"page_size": 32}
    ),
    "pages of 33, groups of seven": Case((1, 1, 40), (32, 34, 100), (7, 1), more={"page_size": 33}),
    "pages of 40, float16, a negative scale": Case(
        (1, 9), (56, 90), scale=-0.2, value_scale=2.0, more={"page_size": 40, "head_dim": 96, "dtype": np.float16}
    ),
    "pages of 64, a soft cap on large scores": Case(
        (1, 1, 40), (64, 65, 130), (2, 2), soft_cap=20.0, more={"page_size": 64, "magnitude": 50.0}
    ),
    "pages of 128, not causal, window": Case(
        (1, 70), (256, 257), (8, 1), Mask(causal=False, window=30), more={"page_size": 128}
    ),
    "pages of 256, heads of 80, groups of 16": Case(
        (1, 3), (256, 511), (16, 1), more={"page_size": 256, "head_dim": 80}
    ),
    "float8 e4m3, sinks": Case(
        (1, 20), (56, 90), sinks=True, more={"head_dim": 128, "kv_dtype": jnp.float8_e4m3fn, "version": "v3"}
    ),
    "float8 e5m2, pages of four, window": Case(
        (1, 20),
        (56, 190),
        mask=Mask(window=17),
        more={"page_size": 4, "head_dim": 128, "kv_dtype": jnp.float8_e5m2, "version": "v3"},
    ),
    "int8, pages of eight": Case(
        (1, 20), (56, 90), scale=0.003, value_scale=0.05, more={"page_size": 8, "kv_dtype": jnp.int8, "version": "v3"}
    ),
    "more queries than keys, and no keys": Case((20, 1), (5, 0)),
    "long and short, many parts": Case((1, 30, 1), (3000, 50, 700), (4, 1), more={"page_size": 64}),
    "padding": Case((1, 30), (200, 50), mask=Mask(window=9, chunk=16), more={"max_tokens": 50, "max_seqs": 5}),
    "values smaller than keys": Case((1, 30), (200, 50), more={"head_dim": 192, "v_head_dim": 128}),
    "two blocks, groups of three, sinks": Case((130, 1), (130, 5), (3, 1), sinks=True, more={"head_dim": 128}),
    "pages of 67, copied slot by slot": Case((1, 20), (200, 90), (4, 1), more={"page_size": 67}),
    "pages of 72, in three parts": Case((1, 30), (200, 150), (4, 1), Mask(window=60), more={"page_size": 72}),
    "pages of one, heads of 80, whole rows copied": Case((1, 20), (70, 65), more={"page_size": 1, "head_dim": 80}),
    "pages of three, float8, whole shared rows copied": Case(
        (1, 20), (100, 50), more={"page_size": 3, "kv_dtype": jnp.float8_e4m3fn, "version": "v3"}
    ),
    "stages come round, in one part": Case((1, 20), (1700, 1500), (2, 1), multiprocessors=1, more={"page_size": 64}),
    "stages come round, float8, heads of 256": Case(
        (1, 20),
        (900, 700),
        (2, 1),
        multiprocessors=1,
        more={"page_size": 64, "head_dim": 256, "kv_dtype": jnp.float8_e4m3fn, "version": "v3"},
    ),
    "pages that don't exist": Case(HOLED[0], HOLED[1], (2, 1), holes=HOLED[2]),
    "scaled, pages that don't exist": Case(HOLED[0], HOLED[1], (2, 1), holes=HOLED[2], more=SCALED),
    "scaled int8, window, sinks": Case(
        (1, 20), (156, 190), (6, 2), Mask(window=100), sinks=True, more=SCALED | {"kv_dtype": jnp.int8}
    ),
    "scaled e4m3, one head, v2, a soft cap on large scores": Case(
        (1, 9, 1), (70, 90, 1), (4, 1), soft_cap=20.0, more=SCALED | {"version": "v2", "magnitude": 50.0}
    ),
    "scaled int8, float16, pages of eight, chunks": Case(
        (1, 9, 30),
        (156, 190, 30),
        (4, 4),
        Mask(chunk=50),
        more=SCALED | {"page_size": 8, "kv_dtype": jnp.int8, "dtype": np.float16, "version": "v2"},
    ),
    "scaled e5m2, three heads, values smaller than keys, stages come round": Case(
        (1, 20),
        (900, 700),
        (3, 3),
        multiprocessors=1,
        more=SCALED | {"page_size": 64, "kv_dtype": jnp.float8_e5m2, "head_dim": 192, "v_head_dim": 128},
    ),
    "scaled int8, pages of one, many heads, shared rows": Case(
        (1, 5), (70, 65), (16, 16), more=SCALED | {"page_size": 1, "kv_dtype": jnp.int8}
    ),
    "scaled int8, pages of 72, heads of 256, not causal, padding": Case(
        (1, 30),
        (200, 150),
        (4, 2),
        Mask(causal=False),
        more=SCALED | {"page_size": 72, "kv_dtype": jnp.int8, "head_dim": 256, "max_tokens": 50, "max_seqs": 5},
    ),
    "scaled int8, long and short, many parts": Case(
        (1, 30, 1), (3000, 50, 700), (4, 2), more=SCALED | {"page_size": 32, "kv_dtype": jnp.int8, "head_dim": 128}
    ),
    "heads of 256, not causal": Case((1, 30), (200, 250), mask=Mask(causal=False), more={"head_dim": 256}),
}

QUICK = ("pages that don't exist", "scaled, pages that don't exist")
"""Those that are run in CI: both kernels. Compiling them for the interpreter takes some seconds each time."""


def _options(case: Case, batch: Batch) -> AttentionOptions:
    """The options of a case."""
    dim, v_dim = batch.keys[0].shape[2], batch.values[0].shape[2]
    return AttentionOptions(
        layout=layout_of(batch.kv_pages, dim, v_dim, case.heads[1]),
        kv_dtype=jnp.dtype(batch.kv_pages.dtype),
        score_scale=dim**-0.5 if case.scale is None else case.scale,
        causal=case.mask.causal,
        window=case.mask.window,
        chunk=case.mask.chunk,
        soft_cap=case.soft_cap,
        value_scale=case.value_scale,
    )


def run_case(case: Case) -> interpreted.Run:
    """Runs a case, and compares with dense attention (ATT-1 to 4, ATT-6).

    Returns:
        What came out, which is right.

    Raises:
        AssertionError: something is off, or the kernels don't take the case.
    """
    batch = case.batch()
    options = _options(case, batch)
    arrays: list[Any] = [jnp.asarray(array) for array in batch.arrays]
    if batch.scales is not None:
        arrays[1] = ScaledPages(arrays[1], jnp.asarray(batch.scales))
    reason = unsupported(options, arrays[0], arrays[1], arrays[3])
    assert reason is None, reason
    sinks = np.random.default_rng(5).standard_normal(case.heads[0]).astype(np.float32) if case.sinks else None
    call: Callable[..., jax.Array] = partial(
        attention.attend,
        sinks=None if sinks is None else jnp.asarray(sinks),
        options=options,
        interpret=interpreted.interpret_params(),
    )
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(schedule, "MULTIPROCESSORS", case.multiprocessors)
        done = interpreted.run(call, *arrays)
    reference = dense_attention(batch, scale=case.scale, soft_cap=case.soft_cap, sinks=sinks, v_scale=case.value_scale)
    assert_close(done.output, reference)
    return done
