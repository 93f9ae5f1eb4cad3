"""Attention compiled for an H200, by the real compilers, on a machine without one: no thread spills registers."""

from functools import partial
from typing import Any

import jax.numpy as jnp
import pytest

from kvproof.kernels.gpu import attention, latents
from kvproof.kernels.gpu.support import unsupported, unsupported_latents
from kvproof.kernels.layout import CacheLayout
from kvproof.kernels.options import AttentionOptions, MlaOptions
from kvproof.kernels.storage import ScaledPages

from . import gpu_aot
from .gpu_aot import shape

gpu_aot.require()

HALF, E4M3, I8, I32 = jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float8_e4m3fn), jnp.dtype(jnp.int8), jnp.int32


@pytest.mark.parametrize(
    ("dims", "stored", "page_size", "num_pages", "scaled"),
    [
        # 2^31 bytes lie within the pool: coordinates of copies are 32 bits wide, addresses are not.
        ((128, 128), HALF, 16, 2**20, False),
        ((64, 64), E4M3, 64, 2**16, False),
        ((64, 64), E4M3, 1, 2**22, False),  # whole rows are copied, for keys and for values
        ((256, 256), I8, 16, 2**18, True),  # scales of 2^24 bytes
        ((128, 80), HALF, 64, 2**16, False),  # rows of values divide by other swizzles than those of keys
    ],
)
def test_attention_compiles_without_spills(
    dims: tuple[int, int], stored: jnp.dtype, page_size: int, num_pages: int, scaled: bool
) -> None:
    layout, dim = CacheLayout("v3", 8, *dims, 4 // stored.itemsize), dims[0]
    options = AttentionOptions(layout, stored, dim**-0.5)
    pages: Any = shape((num_pages, page_size, *layout.row_shape), stored)
    if scaled:
        scales: Any = shape((num_pages, page_size, 2 * 8), jnp.float32)
        pages = ScaledPages(pages, scales)
    queries: Any = shape((256, 32, dim), HALF)
    table: Any = shape((8, 64), I32)
    assert unsupported(options, queries, pages, table) is None
    arrays = (queries, pages, shape((8,), I32), table, shape((9,), I32), shape((1,), I32))
    call = partial(attention.attend, sinks=None, options=options)
    done = gpu_aot.compile_for_gpu(lambda *arrays: call(*arrays), *arrays)
    assert gpu_aot.kernels_in(done.compiled) == 3
    assert all(kernel.spilled == 0 for kernel in done.kernels), done.kernels
    assert done.unfenced == ()
    assert done.temp_bytes < 2**26  # the pages are read where they lie


@pytest.mark.parametrize(("heads", "page_size"), [(128, 64), (16, 16)])
def test_attention_over_latents_compiles_without_spills(heads: int, page_size: int) -> None:
    options = MlaOptions(512, 64, HALF, 0.07)
    pages: Any = shape((2**14, page_size, options.width), HALF)
    table: Any = shape((8, 64), I32)
    queries: list[Any] = [shape((256, heads, dim), HALF) for dim in (512, 64)]
    arrays = (*queries, pages, shape((8,), I32), table, shape((9,), I32), shape((1,), I32))
    assert unsupported_latents(options, queries[0], pages, table) is None
    call = partial(latents.attend, options=options)
    done = gpu_aot.compile_for_gpu(lambda *arrays: call(*arrays), *arrays)
    assert gpu_aot.kernels_in(done.compiled) == 3
    assert all(kernel.spilled == 0 for kernel in done.kernels), done.kernels
    assert done.unfenced == ()


def test_a_missing_fence_is_found() -> None:
    write, fence, product = "\tst.shared.v2.b32 \t[%r1], {%r2, %r3};", "\tfence.proxy.async;", "wgmma.mma_async %r;"
    assert gpu_aot.unfenced("\n".join([product, write, fence, product])) == ()
    assert gpu_aot.unfenced("\n".join([write, fence, write, "\tbar.sync 1;", product])) == (product,)
