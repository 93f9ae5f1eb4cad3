"""Page ids that name no page (ATT-3, R1): keys that stood there are not read, by any kernel for TPUs, nor by XLA.

Nothing on a TPU checks the id that a copy is started with: -1 reads in front of the cache, an id past its end reads
whatever lies there. The first page, which kernels copy in place of one that is not there, holds NaN.
"""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.kernels import mla_paged_attention
from kvproof.kernels.tpu import decode_plan, prefill_geometry
from kvproof.kernels.tpu.block_sizes import DecodeBlocks

from . import test_tpu_attention, test_tpu_mla
from .reference import Batch, assert_close, dense_attention, without_pages

WRONG = (-1, -(2**31), 2**31 - 1, 10**6)
Q_LENS, KV_LENS = (1, 1, 1, 9, 1, 4), (150, 129, 20, 150, 131, 64)
"""Sequences that decode, at the front and not, and two that don't; of up to three pages of 64."""

Holes = list[tuple[int, int, int]]


def holes() -> st.SearchStrategy[Holes]:
    """Places of the table, of pages that are read, and what stands there."""
    place = st.sampled_from([(i, page) for i, kv_len in enumerate(KV_LENS) for page in range(-(-kv_len // 64))])
    return st.lists(st.tuples(place, st.sampled_from(WRONG)).map(lambda drawn: (*drawn[0], drawn[1])), max_size=6)


def poisoned(batch: Batch, drawn: Holes) -> Batch:
    assert np.isnan(batch.kv_pages[0].astype(np.float32)).all()
    return without_pages(batch, drawn)


EVERY_KIND: Holes = [(0, 1, -1), (2, 0, 2**31 - 1), (3, 2, -1), (5, 0, -(2**31))]
"""In the middle, at the end and at the front of a sequence, and all of one."""


@pytest.fixture(scope="module")
def kernels() -> Any:
    """Both kernels for keys and values, in small blocks."""
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(decode_plan, "decode_blocks", lambda *_: DecodeBlocks(128))
        patches.setattr(prefill_geometry, "block_sizes", lambda *_: prefill_geometry.Blocks(8, 2))
        made = test_tpu_attention.both_kernels()
        made(*test_tpu_attention.batch_of(Q_LENS, KV_LENS).arrays)
        return made


def check_attention(kernels: Any, drawn: Holes) -> None:
    batch = poisoned(test_tpu_attention.batch_of(Q_LENS, KV_LENS), drawn)
    reference = dense_attention(batch)
    for mode, outcome in kernels(*batch.arrays).items():
        assert outcome.clean, (mode, outcome.races, outcome.left_over)
        assert_close(outcome.output, reference)


@given(drawn=holes())
@settings(max_examples=3)
def test_kernels_for_keys_and_values(kernels: Any, drawn: Holes) -> None:
    """ATT-1, ATT-3: wherever the holes are, and whichever kernel would have taken the sequence."""
    check_attention(kernels, drawn)


def test_kernels_for_keys_and_values_on_every_kind_of_hole(kernels: Any) -> None:
    """ATT-2 as well: nothing is left of the third sequence."""
    check_attention(kernels, EVERY_KIND)


def check_latents(drawn: Holes) -> None:
    name = "bfloat16"
    batch = poisoned(test_tpu_mla.batch_of(name, 0, list(Q_LENS), list(KV_LENS)), drawn)
    test_tpu_mla.check(name, batch, test_tpu_mla.run(name, batch, test_tpu_mla.compiled(name)))


@given(drawn=holes())
@settings(max_examples=3)
def test_the_kernel_for_latents(drawn: Holes) -> None:
    """ATT-1, ATT-3."""
    check_latents(drawn)


def test_the_kernel_for_latents_on_every_kind_of_hole() -> None:
    """ATT-2 as well: a row of which nothing is left beside rows of the same block that read something."""
    check_latents([*EVERY_KIND, (3, 0, -1), (3, 1, -1)])


def test_latents_in_plain_jax() -> None:
    """ATT-1 to ATT-3: what the kernels must agree with."""
    name = "bfloat16"
    batch = poisoned(test_tpu_mla.batch_of(name, 0, list(Q_LENS), list(KV_LENS)), EVERY_KIND)
    case = test_tpu_mla.CASES[name]
    scale = test_tpu_mla.options_of(case).score_scale
    queries, rotary = batch.queries[:, :, : case["latent"]], batch.queries[:, :, case["latent"] :]
    out = mla_paged_attention(queries, rotary, *batch.arrays[1:], scale=scale)
    assert_close(out, dense_attention(batch, scale=scale))
