"""The GPU's attention, interpreted: right, and without races, over dead keys that are all NaN (ATT-1 to 4, ATT-6)."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("absl", reason="absl-py, which Mosaic GPU needs, is not installed")

from kvproof.kernels.gpu import attention, decode, interpreted, walk
from kvproof.kernels.gpu.geometry import CONSUMERS, ROWS, Geometry
from kvproof.kernels.layout import CacheLayout
from kvproof.kernels.options import AttentionOptions
from kvproof.kernels.xla import attention as xla

from .gpu_cases import CASES, QUICK, Case, options_of, run_case


@pytest.mark.parametrize("name", QUICK)
def test_attention(name: str) -> None:
    assert run_case(CASES[name]).minds == ""


def test_pages_that_do_not_exist_are_not_read() -> None:
    case = Case((1, 20), (100, 200), (2, 1))
    batch = case.batch()
    table = batch.page_table.copy()
    for row, page in ((0, 2), (1, 0), (1, 5), (1, 12)):
        table[row, page] = batch.kv_pages.shape[0] if page % 2 else -1
    arrays = [jnp.asarray(array) for array in batch.arrays]
    arrays[3] = jnp.asarray(table)
    options = options_of(case, batch)

    call = partial(attention.attend, sinks=None, options=options, interpret=interpreted.interpret_params())
    done = interpreted.run(call, *arrays)
    expected = np.asarray(partial(xla.attend, sinks=None, options=options)(*arrays), np.float32)
    assert done.minds == ""
    np.testing.assert_allclose(done.output.astype(np.float32), expected, atol=2**-7)


def test_parts_are_put_together_by_their_own_sequences() -> None:
    """ATT-3, ATT-6: sinks join, NaN stays in its sequence; memory of parts that aren't there counts as zeros."""
    layout, count, owner = CacheLayout("v3", 2, 64, 64, 2), 4, np.array([0, 0, 2, 3, 4], np.int32)
    decoded = np.array([True, False, True, True])
    geometry = Geometry(layout, 3, jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.bfloat16), 16, splits_keys=True)
    options = AttentionOptions(layout, jnp.dtype(jnp.bfloat16), score_scale=0.5, value_scale=2.0)
    rng, items = np.random.default_rng(0), len(owner) + count
    shape = (items, layout.num_kv_heads, CONSUMERS)
    of = np.concatenate([owner, np.where(decoded, np.arange(count), count)])
    mixed = rng.normal(size=(*shape, geometry.copied_rows, 64)).astype(np.float32)
    tops = rng.normal(scale=9, size=(*shape, ROWS)).astype(np.float32)
    totals = rng.uniform(1, 9, size=(*shape, ROWS)).astype(np.float32)
    mixed[of == count] = tops[of == count] = totals[of == count] = np.nan  # memory that was never written
    mixed[3] = np.nan  # what sequence 3 reads
    sinks = rng.normal(size=6).astype(np.float32)

    flat = decode.Parts(*(jnp.asarray(each.reshape(-1, *each.shape[3:])) for each in (mixed, tops, totals)))
    call = partial(decode.combine, geometry=geometry, options=options)
    out = np.asarray(jax.jit(call)(flat, jnp.asarray(decoded), jnp.asarray(owner), jnp.asarray(sinks)))
    for row in range(count):
        mine = of == row
        scores = tops[mine, :, :, :3].astype(np.float64) * 0.5
        weights = np.exp(scores)
        sums = np.einsum("nhcg,nhcgd->hgd", weights, mixed[mine, :, :, :3].astype(np.float64))
        total = np.einsum("nhcg,nhcg->hg", weights, totals[mine, :, :, :3]) + np.exp(sinks.reshape(2, 3))
        np.testing.assert_allclose(out[row], (2 * sums / total[..., None]).reshape(6, 64), rtol=2e-5, atol=1e-5)
    assert np.isnan(out[3]).all()


def test_values_that_are_not_cleaned_show(plant: Callable[[Any, str, Any], None]) -> None:
    plant(walk, "clean", lambda *_: None)
    with pytest.raises(AssertionError, match="numbers are off"):
        run_case(Case((1,), (33,), (2, 1)))


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
