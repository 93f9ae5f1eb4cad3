"""The checks for a real GPU hold on CPU, at small sizes, and find what is wrong."""

from dataclasses import replace
from typing import Any

import jax
import pytest

from kvproof.kernels import ragged_paged_attention

from . import gpu_checks
from .gpu_checks import CASES, SEQUENCES, SMALL, Case, check_attention, check_far_slots, check_fused, check_update

TINY = Case(heads=(2, 1), dim=128, page=8, dtype="float16", version="v2")
"""float16, for which nothing is traced for TPUs."""


def cpu() -> Any:
    return jax.devices("cpu")[0]


def test_checks_hold_on_cpu() -> None:
    """ATT-1 to ATT-6, CACHE-3."""
    check_attention(TINY, 0, *SMALL, cpu())
    check_fused(TINY, 0, *SMALL, cpu())
    check_update(TINY, 0, 9, 3, cpu())
    check_far_slots(cpu(), 2**18)


def test_checks_of_scaled_pages_hold_on_cpu() -> None:
    """ATT-1 to ATT-6, over pages whose scales are NaN where they are dead."""
    case = replace(TINY, kv_dtype="int8", scaled=True)
    check_attention(case, 0, *SMALL, cpu())
    check_fused(case, 0, *SMALL, cpu())


def test_a_wrong_answer_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*args: Any, **options: Any) -> jax.Array:
        return ragged_paged_attention(*args, **options) * 1.05

    monkeypatch.setattr(gpu_checks, "ragged_paged_attention", wrong)
    with pytest.raises(AssertionError, match="numbers are off"):
        check_attention(TINY, 0, *SMALL, cpu())


def test_every_case_makes_a_batch() -> None:
    for case in CASES.values():
        batch = case.batch(0, *SMALL)
        assert batch.queries.shape[1:] == (case.heads[0], case.dim)
    assert all(kv >= q or kv == 0 for lens in SEQUENCES.values() for q, kv in zip(*lens, strict=True))
