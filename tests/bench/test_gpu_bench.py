"""What times attention on a GPU, as far as it needs none: bytes, inputs, turns, shares, refusals."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kvproof.kernels import ScaledPages
from kvproof.kernels.storage import page_values

from . import gpu_report, gpu_timing, gpu_workloads
from .gpu_peers import PEERS, uneven
from .gpu_report import Device
from .gpu_timing import copy_rate, matrix_rate, seconds_a_turn
from .gpu_workloads import (
    GOALS,
    Workload,
    attend,
    decode_grid,
    inputs_for,
    latents_grid,
    mixed,
    prefill_grid,
    quantized_grid,
)

TINY = Workload("tiny", (1, 3), (9, 4), heads=(2, 1), page=4, dim=128)


def cpu() -> Any:
    return jax.devices("cpu")[0]


def test_bytes_and_operations() -> None:
    """13 keys and values of one head; 4 query rows; a query reads 9 keys, three read 2, 3 and 4."""
    assert TINY.read_bytes == 13 * 2 * 128 * 2 + 2 * 4 * 2 * 128 * 2
    assert TINY.operations == 4 * (9 + 2 + 3 + 4) * 2 * 128
    usual = next(each for each in decode_grid() if each.name == "decode B=32 L=4096 page 64 32/8")
    assert usual.read_bytes == pytest.approx(537e6, rel=0.01)


def test_every_goal_is_of_a_batch() -> None:
    every = [*decode_grid(), *latents_grid(), *prefill_grid(), *quantized_grid(), mixed()]
    assert len(every) == 192 + 13 + 6 + 10 + 1
    assert {each.name for each in every} >= set(GOALS)
    assert all(kv >= q for each in every for q, kv in zip(each.q_lens, each.kv_lens, strict=True))
    assert uneven(mixed()) is not None
    assert uneven(every[0]) is None


def test_inputs_are_larger_than_the_cache_and_turn() -> None:
    inputs = inputs_for(TINY, cpu(), cache_bytes=2**18)
    assert page_values(inputs.pages).nbytes >= 3 * 2**18
    tables = np.asarray(inputs.tables)
    live = np.array([[True, True, True], [True, False, False]])
    assert (tables[:, ~live] == -1).all()
    assert all(len(set(table[live].tolist())) == 4 for table in tables)
    assert tables[:, live].max() < len(page_values(inputs.pages))
    assert len({table[live].tobytes() for table in tables}) == len(tables)


def test_pages_of_8_bits_hold_as_many_numbers_in_half_the_bytes() -> None:
    """With a scale for each slot and head as with one for all, a query reads nearly the numbers that were drawn."""
    usual, one, each = (
        replace(TINY, heads=(4, 2), kv_dtype=dtype, scaled=scaled)
        for dtype, scaled in ((jnp.bfloat16, False), (jnp.int8, False), (jnp.int8, True))
    )
    assert usual.read_bytes - one.read_bytes == 13 * 4 * 128
    assert each.read_bytes - one.read_bytes == 13 * 4 * 4
    pages = inputs_for(each, cpu(), 2**14).pages
    assert isinstance(pages, ScaledPages)
    assert pages.scales.shape == (*pages.values.shape[:2], 4)
    by_one, by_each = (attend(1, workload)(*inputs_for(workload, cpu(), 2**14).arrays) for workload in (one, each))
    np.testing.assert_array_equal(by_one, by_each)
    assert 0.1 < float(jnp.abs(by_one).max()) < 4


def test_each_turn_has_queries_and_pages_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(queries: jax.Array, _: Any, __: jax.Array, table: jax.Array, *___: jax.Array, **____: Any) -> jax.Array:
        return queries + table.sum().astype(queries.dtype)

    monkeypatch.setattr(gpu_workloads, "ragged_paged_attention", told)
    inputs = inputs_for(TINY, cpu(), cache_bytes=2**14)
    for turns, last in ((1, 0), (3, 2), (6, 1)):
        expected = told(inputs.queries[last], inputs.pages, inputs.kv_lens, inputs.tables[last])
        np.testing.assert_array_equal(attend(turns, TINY)(*inputs.arrays), expected)


def test_a_batch_is_measured(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A row has its shares, and a peer's reason where it can't be timed."""

    def peer(*_: Any) -> float:
        raise ImportError("not here")

    monkeypatch.setattr(gpu_report, "seconds_a_turn", lambda *_: 1e-6)
    name = "decode B=1 L=65536 page 16 32/8"
    alike = Workload(name, (1,), (4,), heads=(2, 1), page=4)
    row = gpu_report.measure(alike, Device(cpu(), 4e9, 1e10, 2**14), {"peer": peer})
    assert row["copies"] == pytest.approx(alike.read_bytes / 4e3)
    assert row["products"] == pytest.approx(alike.operations / 1e4)
    assert (row["goal"], row["reached"]) == (0.7, alike.read_bytes / 4e3 >= 0.7)
    assert row["peers"] == {"peer": "ImportError: not here"}
    assert capsys.readouterr().out.startswith(f"{name} | 1.0 | ")


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> float:
    """Makes each program take a millisecond more than the one before it; returns what a turn takes by that.

    The first program has 4 turns; 0.02 seconds at its pace are 80 turns more.
    """
    taken = []

    def median_seconds(function: Any, arrays: Any, _: int) -> float:
        taken.append(jax.jit(function)(*arrays))
        return 1e-3 * len(taken)

    monkeypatch.setattr(gpu_timing, "_median_seconds", median_seconds)
    return 1e-3 / 80


def test_turns_are_timed_by_their_difference(seconds: float) -> None:
    """No clock is asked: on a busy machine many turns may take no longer than few."""
    made = []

    def make(turns: int) -> Any:
        made.append(turns)
        return jnp.sin

    assert seconds_a_turn(make, [jnp.ones(10)]) == pytest.approx(seconds)
    assert made == [4, 84]


def test_a_program_is_timed() -> None:
    assert gpu_timing._median_seconds(jnp.sin, [jnp.ones(10)], 3) > 0


@pytest.mark.parametrize(("rate", "size", "work"), [(copy_rate, 2**20, 2**21), (matrix_rate, 64, 4 * 64**3)])
def test_rates_are_measured(rate: Any, size: int, work: int, seconds: float) -> None:
    assert rate(cpu(), size) == pytest.approx(work / seconds)


def test_without_a_gpu_nothing_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_report.main([]) == 2
    assert "nothing is measured: JAX sees no CUDA device" in capsys.readouterr().err
    assert set(PEERS) == {"cuDNN", "torch SDPA", "torch flex"}
