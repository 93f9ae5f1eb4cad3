"""The GPU's attention over latents, interpreted: right, and without races, over dead slots that are all NaN."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("absl", reason="absl-py, which Mosaic GPU needs, is not installed")

from kvproof.kernels.gpu import interpreted, latents, schedule
from kvproof.kernels.gpu.support import unsupported_latents
from kvproof.kernels.options import MlaOptions

from .reference import Batch, assert_close, dense_attention, make_latent_batch

HEADS, LATENT, ROTARY = 12, 128, 32

LENGTHS = ((1, 1, 0, 3, 1), (200, 65, 0, 70, 1))
"""Sequences that decode, of several tiles and of a part of one; one with several queries, which are XLA's."""


def options_of(batch: Batch) -> MlaOptions:
    return MlaOptions(LATENT, ROTARY, jnp.dtype(batch.kv_pages.dtype), 0.1, soft_cap=4.0)


def make() -> Batch:
    page = 16
    return make_latent_batch(
        np.random.default_rng(5),
        *LENGTHS,
        num_q_heads=HEADS,
        latent_dim=LATENT,
        rotary_dim=ROTARY,
        page_size=page,
        dtype=jnp.bfloat16,
        pages_per_seq=-(-220 // page),
        num_pages=-(-360 // page) + 6,
        max_tokens=9,
        max_seqs=7,
    )


@cache
def call_of(options: MlaOptions) -> Callable[..., jax.Array]:
    return partial(latents.attend, options=options, interpret=interpreted.interpret_params())


def run(batch: Batch) -> interpreted.Run:
    options = options_of(batch)
    queries = np.split(batch.queries, [LATENT], axis=2)
    arrays = [*map(jnp.asarray, queries), *map(jnp.asarray, batch.arrays[1:])]
    assert unsupported_latents(options, arrays[0], arrays[2], arrays[4]) is None
    return interpreted.run(call_of(options), *arrays)


def check(batch: Batch, done: interpreted.Run) -> None:
    assert done.minds == ""
    assert_close(done.output, dense_attention(batch, scale=0.1, soft_cap=4.0))


def test_decode_over_latents(plant: Callable[[Any, str, Any], None]) -> None:
    """ATT-1 to 4, ATT-6. Of one multiprocessor contexts are not split, and stages come round."""
    batch = make()
    check(batch, run(batch))
    plant(schedule, "MULTIPROCESSORS", 1)
    call_of.cache_clear()
    check(batch, run(batch))
