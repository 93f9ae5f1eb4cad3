"""The GPU's attention, interpreted: right, and without races, over dead keys that are all NaN (ATT-1 to 4, ATT-6)."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("absl", reason="absl-py, which Mosaic GPU needs, is not installed")

from kvproof.kernels.gpu import attention, interpreted, walk
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
