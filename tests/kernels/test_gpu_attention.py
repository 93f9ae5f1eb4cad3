"""The GPU's attention, interpreted: right, and without races, over dead keys that are all NaN (ATT-1 to 4, ATT-6)."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("absl", reason="absl-py, which Mosaic GPU needs, is not installed")

from kvproof.kernels.gpu import combine, dead_keys, interpreted, walk
from kvproof.kernels.gpu.geometry import CONSUMERS, ROWS, Geometry
from kvproof.kernels.gpu.sinks import sink_rows
from kvproof.kernels.gpu.walk import LOWEST
from kvproof.kernels.layout import CacheLayout
from kvproof.kernels.options import AttentionOptions

from .gpu_cases import CASES, QUICK, SCALED, Case, run_case


@pytest.mark.parametrize("name", QUICK)
def test_attention(name: str) -> None:
    assert run_case(CASES[name]).minds == ""


@pytest.mark.parametrize("sunk", [True, False])
@pytest.mark.parametrize(("heads", "group", "dim"), [(2, 3, 64), (12, 1, 80)])
def test_parts_are_put_together_by_their_own_sequences(heads: int, group: int, dim: int, sunk: bool) -> None:
    """ATT-3, ATT-6: sinks join, NaN stays in its sequence; parts that aren't there are not read."""
    layout, counts = CacheLayout("v3", heads, dim, dim, 2), np.array([3, 0, 6, 1], np.int32)
    more = np.maximum(counts - 1, 0)
    begins = (len(counts) + np.cumsum(more) - more).astype(np.int32)
    geometry = Geometry(layout, group, jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.bfloat16), 16, splits_keys=True)
    options = AttentionOptions(layout, jnp.dtype(jnp.bfloat16), score_scale=0.5, value_scale=2.0)
    rng = np.random.default_rng(0)
    shape = (len(counts) + int(more.sum()) + 1, CONSUMERS, heads, geometry.copied_rows)
    own = [[s, *range(begins[s], begins[s] + more[s])][: counts[s]] for s in range(len(counts))]
    mixed = rng.normal(size=(*shape, dim)).astype(np.float32)
    tops = rng.normal(scale=9, size=shape).astype(np.float32)
    totals = rng.uniform(1, 9, size=shape).astype(np.float32)
    tops[own[2][1]], totals[own[2][1]], mixed[own[2][1]] = LOWEST, 0, 0  # a part that read nothing
    absent = sorted({*range(len(mixed))}.difference(*own))
    mixed[absent] = tops[absent] = totals[absent] = np.nan  # memory that was never written
    mixed[own[3]] = np.nan  # what sequence 3 reads
    sinks = rng.normal(size=heads * group).astype(np.float32)
    sinks[0] = -np.inf

    flat = (numbers.reshape(-1, *numbers.shape[4:]) for numbers in (mixed, tops, totals))
    padded = [np.pad(each, ((0, ROWS), *[(0, 0)] * (each.ndim - 1)), constant_values=np.nan) for each in flat]
    call = partial(combine.combine, geometry=geometry, options=options, interpret=interpreted.interpret_params())

    def put_together(*arrays: jax.Array) -> jax.Array:
        *parts, first, count, scores = arrays
        return call(combine.Parts(*parts), first, count, sink_rows(scores, geometry, options) if sunk else None)

    done = interpreted.run(put_together, *map(jnp.asarray, [*padded, begins, counts, sinks]))
    out = done.output.astype(np.float64)
    assert done.minds == ""
    for row in (0, 2):
        tops_, totals_, mixed_ = (each[own[row], :, :, :group].astype(np.float64) for each in (tops, totals, mixed))
        weights = np.exp(tops_ * 0.5)
        total = np.einsum("nchg,nchg->hg", weights, totals_) + sunk * np.exp(sinks.reshape(heads, group))
        expected = 2 * np.einsum("nchg,nchgd->hgd", weights, mixed_) / total[..., None]
        np.testing.assert_allclose(out[row], expected.reshape(heads * group, dim), rtol=2**-8, atol=1e-5)
    assert np.isnan(out[3]).all()


def test_values_that_are_not_cleaned_show(plant: Callable[[Any, str, Any], None]) -> None:
    plant(walk, "clean", lambda *_: None)
    with pytest.raises(AssertionError, match="numbers are off"):
        run_case(Case((1,), (33,), (2, 1)))


def test_scales_that_are_not_zeroed_show(plant: Callable[[Any, str, Any], None]) -> None:
    """ATT-3: a weight of zero, times a scale that is NaN."""
    plant(dead_keys, "_has_dead", lambda *_: jnp.bool_(False))
    with pytest.raises(AssertionError, match="numbers are off"):
        run_case(Case((1,), (33,), (2, 1), more=SCALED))


def test_a_missing_wait_shows(plant: Callable[[Any, str, Any], None]) -> None:
    class Hasty:
        """Waits for queries only."""

        def __getattr__(self, name: str) -> Any:
            return (lambda *_: None) if name == "barrier_wait" else getattr(plgpu, name)

    plgpu = vars(walk)["plgpu"]
    plant(walk, "plgpu", Hasty())
    try:
        minds = run_case(Case((1,), (33,), (2, 1))).minds
    except AssertionError:
        return
    except jax.errors.JaxRuntimeError as error:  # JAX 0.12 ends a kernel that races
        minds = str(error)
    assert "RACE" in minds.upper()
