"""The public functions on a real Hopper, against float64 (ATT-1 to ATT-6, CACHE-3).

    export KVPROOF_GPU=1 XLA_PYTHON_CLIENT_PREALLOCATE=false OMP_NUM_THREADS=1
    python -m pytest -n 12 tests/kernels/test_gpu_device.py

In processes of their own: all other tests see CPUs only. Most of the time is the compilers' and the references', some
four seconds for each test; with as many threads as numpy and OpenBLAS like to start it is ten times that.
"""

import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kvproof.kernels import kv_cache_update, ragged_paged_attention
from kvproof.kernels.gpu import hopper

from .gpu_checks import CASES, SEQUENCES, check_attention, check_far_slots, check_fused, check_latents, check_update
from .reference import FULL, Mask

if not os.environ.get("KVPROOF_GPU"):
    pytest.skip("KVPROOF_GPU=1 is not set, which asks for tests on a Hopper GPU", allow_module_level=True)
_set: Callable[[str, Any], None] = jax.config.update
_set("jax_platforms", "cpu,cuda")


@pytest.fixture(scope="module")
def gpu() -> Any:
    """A Hopper on which the kernels serve."""
    device = next((device for device in jax.local_devices(backend="cuda")), None)
    if device is None or hopper.unavailable() is not None:
        pytest.skip(f"the kernels don't serve on {device}")
    return device


@pytest.mark.parametrize("sequences", SEQUENCES)
@pytest.mark.parametrize("name", CASES)
def test_attention(name: str, sequences: str, gpu: Any) -> None:
    """ATT-1 to ATT-4, ATT-6."""
    for seed in range(3 if sequences != "long" else 1):
        check_attention(CASES[name], seed, *SEQUENCES[sequences], gpu)


@pytest.mark.parametrize("sequences", ["basic", "decode", "mixed"])
@pytest.mark.parametrize("name", CASES)
def test_fused(name: str, sequences: str, gpu: Any) -> None:
    """ATT-5."""
    check_fused(CASES[name], 0, *SEQUENCES[sequences], gpu)


@pytest.mark.parametrize("sequences", ["decode", "mixed", "edges"])
@pytest.mark.parametrize(
    ("heads", "page", "dtype", "mask"),
    [
        (128, 64, jnp.bfloat16, FULL),
        (16, 16, jnp.bfloat16, FULL),
        (100, 8, jnp.float16, FULL),
        (64, 256, jnp.bfloat16, Mask(window=100)),
        (24, 24, jnp.bfloat16, FULL),
    ],
)
def test_latents(heads: int, page: int, dtype: Any, mask: Mask, sequences: str, gpu: Any) -> None:
    """ATT-1 to ATT-4, ATT-6."""
    check_latents(heads, page, dtype, mask, *SEQUENCES[sequences], gpu)


@pytest.mark.parametrize("num_tokens", [1, 32, 700, 5000])
@pytest.mark.parametrize("name", ["usual", "v2", "float16", "one_kv_head", "head_64", "page_1"])
def test_updates(name: str, num_tokens: int, gpu: Any) -> None:
    """CACHE-3."""
    check_update(CASES[name], 0, num_tokens, 6000 // CASES[name].page, gpu)


def test_slots_that_are_a_slice(gpu: Any) -> None:
    """CACHE-3: of an array that holds a step's numbers one behind the other, at no multiple of 256 bytes."""
    rng = np.random.default_rng(0)
    drawn = (rng.standard_normal(size, np.float32) for size in ((9, 16, 4, 128), (32, 2, 128), (32, 2, 128)))
    pages, keys, values = (jax.device_put(each.astype(jnp.bfloat16), gpu) for each in drawn)
    step = rng.permutation(144)[:33].astype(np.int32)
    sliced = jax.jit(lambda step: kv_cache_update(pages, keys, values, step[1:]))(jax.device_put(step, gpu))
    whole = kv_cache_update(pages, keys, values, jax.device_put(step[1:], gpu))
    np.testing.assert_array_equal(np.asarray(sliced).view(np.uint16), np.asarray(whole).view(np.uint16))


@pytest.mark.parametrize("gib", [2, 4, 9])
def test_slots_far_behind(gib: int, gpu: Any) -> None:
    """CACHE-3: addresses above 2^31 and 2^32 bytes, and page ids above 65,535."""
    check_far_slots(gpu, gib * 2**30)


def test_attention_is_the_same_again(gpu: Any) -> None:
    """Nothing hangs on which block comes first: twice the same bits."""
    case, sequences = CASES["usual"], SEQUENCES["mixed"]
    batch = case.batch(0, *sequences)
    arrays = [jax.device_put(array, gpu) for array in batch.arrays]
    first, again = (ragged_paged_attention(*arrays, num_kv_heads=case.heads[1]) for _ in range(2))
    assert (first.view("uint16") == again.view("uint16")).all()
