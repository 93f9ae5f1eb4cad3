"""Page ids that name no page (ATT-3, R1): keys that stood there are not read, by any kernel for TPUs, nor by XLA.

Nothing on a TPU checks the id that a copy is started with: -1 reads in front of the cache, an id past its end reads
whatever lies there. The first page, which kernels copy in place of one that is not there, holds NaN.
"""

from typing import Any

import numpy as np
import pytest

from kvproof.kernels import mla_paged_attention
from kvproof.kernels.tpu import decode_plan, prefill_geometry
from kvproof.kernels.tpu.block_sizes import DecodeBlocks

from . import test_tpu_attention, test_tpu_mla
from .reference import Batch, assert_close, dense_attention, without_pages

Q_LENS, KV_LENS = (1, 1, 1, 9, 1, 4), (150, 129, 20, 150, 131, 64)
"""Sequences that decode, at the front and not, and two that don't; of up to three pages of 64."""

Holes = list[tuple[int, int, int]]
"""A sequence, a place of its row of the table, and what stands there."""


def poisoned(batch: Batch, drawn: Holes) -> Batch:
    assert np.isnan(batch.kv_pages[0].astype(np.float32)).all()
    return without_pages(batch, drawn)


EVERY_KIND: Holes = [(0, 1, -1), (1, 2, 10**6), (2, 0, 2**31 - 1), (3, 2, -1), (5, 0, -(2**31))]
"""In the middle, at the end and at the front of a sequence, and all of one; machine kernels draws others."""


@pytest.fixture(scope="module")
def kernels() -> Any:
    """Both kernels for keys and values, in small blocks."""
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(decode_plan, "decode_blocks", lambda *_: DecodeBlocks(128))
        patches.setattr(prefill_geometry, "block_sizes", lambda *_: prefill_geometry.Blocks(8, 2))
        made = test_tpu_attention.both_kernels()
        made(*test_tpu_attention.batch_of(Q_LENS, KV_LENS).arrays)
        return made


def test_kernels_for_keys_and_values(kernels: Any) -> None:
    """ATT-1 to ATT-3: whichever kernel would have taken the sequence; nothing is left of the third one."""
    batch = poisoned(test_tpu_attention.batch_of(Q_LENS, KV_LENS), EVERY_KIND)
    reference = dense_attention(batch)
    for mode, outcome in kernels(*batch.arrays).items():
        assert outcome.clean, (mode, outcome.races, outcome.left_over)
        assert_close(outcome.output, reference)


def test_the_kernel_for_latents() -> None:
    """ATT-1 to ATT-3: a row of which nothing is left stands beside rows of the same block that read something."""
    name, holes = "bfloat16", [*EVERY_KIND, (3, 0, -1), (3, 1, -1)]
    batch = poisoned(test_tpu_mla.batch_of(name, 0, list(Q_LENS), list(KV_LENS)), holes)
    test_tpu_mla.check(name, batch, test_tpu_mla.run(name, batch, test_tpu_mla.compiled(name)))


def test_latents_in_plain_jax() -> None:
    """ATT-1 to ATT-3: what the kernels must agree with."""
    name = "bfloat16"
    batch = poisoned(test_tpu_mla.batch_of(name, 0, list(Q_LENS), list(KV_LENS)), EVERY_KIND)
    case = test_tpu_mla.CASES[name]
    scale = test_tpu_mla.options_of(case).score_scale
    queries, rotary = batch.queries[:, :, : case["latent"]], batch.queries[:, :, case["latent"] :]
    out = mla_paged_attention(queries, rotary, *batch.arrays[1:], scale=scale)
    assert_close(out, dense_attention(batch, scale=scale))
