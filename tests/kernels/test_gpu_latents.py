"""The GPU's attention over latents, interpreted: right, and without races, over dead slots that are all NaN."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("absl", reason="absl-py, which Mosaic GPU needs, is not installed")

from kvproof.kernels import explain, mla_paged_attention
from kvproof.kernels.gpu import interpreted, latents, schedule
from kvproof.kernels.gpu.support import unsupported_latents
from kvproof.kernels.options import MlaOptions

from .gpu_aot import on_gpu, shape
from .reference import Batch, Mask, assert_close, dense_attention, make_latent_batch, without_pages

HEADS, LATENT, ROTARY, PAGE = 12, 128, 32, 16

LENGTHS = ((1, 1, 0, 7, 1, 2), (200, 65, 0, 70, 1, 1))
"""Sequences that decode, over several tiles and in a part of one; with several queries, one of them before its keys."""

HOLES = ((0, 2, -1), (0, 9, 10**6), (3, 3, -1))


def batch_of() -> Batch:
    """Its blocks of several queries hold four of them, of 12 heads in 16 rows; some pages don't exist."""
    batch = make_latent_batch(
        np.random.default_rng(5),
        *LENGTHS,
        num_q_heads=HEADS,
        latent_dim=LATENT,
        rotary_dim=ROTARY,
        page_size=PAGE,
        dtype=jnp.bfloat16,
        max_tokens=15,
        max_seqs=8,
        mask=Mask(window=150),
    )
    return without_pages(batch, HOLES)


def run(batch: Batch) -> interpreted.Run:
    """What the kernels make of a batch, as its mask, a scale of 0.1 and a cap of 4 say."""
    dtype = jnp.dtype(batch.kv_pages.dtype)
    options = MlaOptions(LATENT, ROTARY, dtype, 0.1, window=batch.mask.window, soft_cap=4.0)
    queries = np.split(batch.queries, [LATENT], axis=2)
    arrays = [*map(jnp.asarray, queries), *map(jnp.asarray, batch.arrays[1:])]
    assert unsupported_latents(options, arrays[0], arrays[2], arrays[4]) is None
    return interpreted.run(partial(latents.attend, options=options, interpret=interpreted.interpret_params()), *arrays)


def check(batch: Batch, done: interpreted.Run) -> None:
    assert done.minds == ""
    assert_close(done.output, dense_attention(batch, scale=0.1, soft_cap=4.0))


def test_attention_over_latents(plant: Callable[[Any, str, Any], None]) -> None:
    """ATT-1 to 4, ATT-6. For a device of one multiprocessor contexts are not split, and stages come round."""
    plant(schedule, "MULTIPROCESSORS", 1)
    check(batch_of(), run(batch_of()))


def test_latents_that_are_not_cleaned_show(plant: Callable[[Any, str, Any], None]) -> None:
    """ATT-3; here a context is split."""
    plant(latents, "clean_latents", lambda *_: None)
    with pytest.raises(AssertionError, match="numbers are off"):
        check(batch_of(), run(batch_of()))


def test_who_serves_latents() -> None:
    options: dict[str, Any] = {"scale": 0.1, "platform": "cuda"}
    lengths = (shape((2,), jnp.int32), shape((2, 4), jnp.int32), shape((3,), jnp.int32), shape((1,), jnp.int32))

    def told(dtype: Any, kind: str = "NVIDIA H100 80GB HBM3") -> list[tuple[str, bool]]:
        arrays = (shape((3, 16, 512), dtype), shape((3, 16, 64), dtype), shape((9, 64, 640), dtype))
        with on_gpu(kind):
            return [(each.kernel, each.runs) for each in explain(mla_paged_attention, *arrays, *lengths, **options)]

    names = ["paged_latents_prefill", "paged_combine", "paged_latents"]
    assert told(jnp.bfloat16) == [(name, True) for name in names]
    assert told(jnp.float32) == told(jnp.bfloat16, "NVIDIA A100-SXM4-80GB") == [(name, False) for name in names]
