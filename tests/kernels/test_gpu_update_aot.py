"""Updates compiled for an H200, by the real compilers, on a machine without one."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from kvproof.kernels import (
    ScaledPages,
    copy_pages,
    fused_ragged_paged_attention,
    kv_cache_update,
    mla_cache_update,
    write_states,
)
from kvproof.kernels.xla import update as xla

from . import gpu_aot
from .gpu_aot import shape
from .test_gpu_dispatch import LENGTHS, ids, slices

gpu_aot.require()

H, D, T = 2, 128, 24
NUM_PAGES, PAGE = 2**16, 16
"""Pages enough that no program's own needs could be mistaken for a copy of them."""

part: Callable[..., PartitionSpec] = PartitionSpec

_DISTINCT = "unique_indices=true"

CACHES = [
    (jnp.bfloat16, "v2"),
    (jnp.bfloat16, "v3"),
    (jnp.float16, "v2"),
    (jnp.float32, "v3"),
    (jnp.float8_e4m3fn, "v3"),
    (jnp.float8_e5m2, "v2"),
    (jnp.int8, "v3"),
]


def pages_of(dtype: Any, version: str) -> Any:
    packing = 4 // jnp.dtype(dtype).itemsize
    row = (2 * H, D) if version == "v2" else (2 * H // packing, packing, D)
    return shape((NUM_PAGES, PAGE, *row), dtype)


def check(compilation: gpu_aot.Compilation, pages: Any, kernels: int) -> None:
    """The pages that are given back are those that were given, and no thread runs out of registers."""
    size = int(np.prod(pages.shape)) * pages.dtype.itemsize
    assert gpu_aot.kernels_in(compilation.compiled) == kernels
    assert compilation.alias_bytes >= size
    assert compilation.temp_bytes < size / 4
    assert not any(kernel.spilled or kernel.stack for kernel in compilation.kernels)


@pytest.mark.parametrize(("dtype", "version"), CACHES, ids=[f"{jnp.dtype(dtype).name}-{v}" for dtype, v in CACHES])
def test_an_update_is_one_kernel_in_place(dtype: Any, version: str) -> None:
    """CACHE-3."""
    pages, small = pages_of(dtype, version), jnp.dtype(dtype).itemsize == 1
    rows = shape((T, H, D), jnp.bfloat16 if small else dtype)
    update = partial(kv_cache_update, k_scale=0.5, v_scale=0.5) if small else kv_cache_update
    check(gpu_aot.compile_for_gpu(update, pages, rows, rows, ids(T), donate=(0,)), pages, 1)


def test_other_updates_are_in_place() -> None:
    """CACHE-3: by slices, of latents, and of pages with scales, which XLA writes beside the kernel."""
    pages, rows = pages_of(jnp.bfloat16, "v3"), shape((T, H, D), jnp.bfloat16)
    check(gpu_aot.compile_for_gpu(slices, pages, rows, rows, ids(3, 8), ids(1), donate=(0,)), pages, 1)
    latents = (shape((T, 512), jnp.bfloat16), shape((T, 64), jnp.bfloat16))
    pages = shape((NUM_PAGES, PAGE, 640), jnp.bfloat16)
    check(gpu_aot.compile_for_gpu(mla_cache_update, pages, *latents, ids(T), donate=(0,)), pages, 1)
    values = pages_of(jnp.int8, "v3")
    scales: Any = shape((NUM_PAGES, PAGE, 2 * H), jnp.float32)
    scaled = ScaledPages(values, scales)
    check(gpu_aot.compile_for_gpu(kv_cache_update, scaled, rows, rows, ids(T), donate=(0,)), values, 1)


def test_slots_that_are_a_slice_are_an_array_of_their_own() -> None:
    """CACHE-3: XLA of JAX 0.11 hands a slice over as it lies; the launch is refused at no multiple of 256 bytes."""
    pages, rows = pages_of(jnp.bfloat16, "v3"), shape((64, H, D), jnp.bfloat16)

    def update(pages: jax.Array, keys: jax.Array, values: jax.Array, step: jax.Array) -> jax.Array:
        written: jax.Array = kv_cache_update(pages, keys, values, step[1:])
        return written

    done = gpu_aot.compile_for_gpu(update, pages, rows, rows, ids(65), donate=(0,))
    check(done, pages, 1)
    assert "dynamic-slice-fusion" not in str(done.compiled.as_text())


def test_each_of_several_gpus_updates_its_own_heads_in_place() -> None:
    """CACHE-3, CACHE-5: inside shard_map the mesh says what is traced for."""
    mesh = jax.sharding.Mesh(np.array(gpu_aot.devices(2)), ("heads",))
    by_heads = (part(None, None, "heads"), part(None, "heads"), part(None, "heads"), part())
    pages, rows = pages_of(jnp.bfloat16, "v2"), shape((T, H, D), jnp.bfloat16)
    placed = [
        shape(array.shape, array.dtype, sharding=NamedSharding(mesh, spec))
        for array, spec in zip((pages, rows, rows, ids(T)), by_heads, strict=True)
    ]
    update = jax.shard_map(kv_cache_update, mesh=mesh, in_specs=by_heads, out_specs=by_heads[0], check_vma=False)
    compiled = jax.jit(update, donate_argnums=0).lower(*placed).compile()
    memory = compiled.memory_analysis()
    assert memory is not None
    assert gpu_aot.kernels_in(compiled) == 1
    assert memory.alias_size_in_bytes == int(np.prod(pages.shape)) * 2 // 2
    assert memory.temp_size_in_bytes < memory.alias_size_in_bytes / 4


def test_addresses_have_64_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CACHE-3: slots 2^31 bytes and more behind the first are reached: slot times bytes is multiplied wide."""
    monkeypatch.setenv("MOSAIC_GPU_DUMP_TO", str(tmp_path))
    pages, rows = pages_of(jnp.float32, "v2"), shape((T + 1, H, D), jnp.float32)
    size = 2 * H * D * 4
    assert NUM_PAGES * PAGE * size > 2**31 * 0.9
    for mapping in ((ids(T + 1),), (ids(3, 7), ids(1))):
        gpu_aot.compile_for_gpu(kv_cache_update if len(mapping) == 1 else slices, pages, rows, rows, *mapping)
    programs = [file.read_text() for file in sorted(tmp_path.glob("*.ptx"))]
    assert len(programs) == 2
    for program in programs:
        assert re.search(rf"mul\.wide\.[su]32\s+%rd\d+, %r\d+, {size};", program)
        assert not re.search(rf"(mul\.lo|mad\.lo)\.[su]32.*, {size}[,;]", program)


def test_xla_is_told_that_slots_are_distinct() -> None:
    """Where no kernel takes the rows, no number is written by a loop of atomic exchanges."""
    pages, rows = shape((NUM_PAGES, PAGE, 20), jnp.bfloat16), shape((T, 20), jnp.bfloat16)
    for distinct in (False, True):
        done = gpu_aot.compile_for_gpu(partial(xla.update, distinct=distinct), pages, rows, ids(T), donate=(0,))
        check(done, pages, 0)
        assert (_DISTINCT in str(done.compiled.as_text())) is distinct


def test_pages_and_states_are_written_as_distinct_ones() -> None:
    """MAN-13: no page is written twice in one call, and XLA for GPUs is told so."""
    pages = shape((2**14, 4, 128), jnp.bfloat16)
    done = gpu_aot.compile_for_gpu(copy_pages, pages, ids(4), ids(4), donate=(0,))
    check(done, pages, 0)
    assert _DISTINCT in str(done.compiled.as_text())
    done = gpu_aot.compile_for_gpu(write_states, pages, ids(4), shape((4, 4, 128), jnp.bfloat16), donate=(0,))
    check(done, pages, 0)
    assert _DISTINCT in str(done.compiled.as_text())


def test_a_fused_update_is_in_place() -> None:
    """CACHE-3, ATT-5: what attends reads what the update's kernel gave, and nothing else of the pages.

    Of one token, which takes one kernel that reads pages and one that combines; of float16, for which TPUs have none.
    """
    pages, rows, queries = pages_of(jnp.float16, "v2"), shape((1, H, D), jnp.float16), shape((1, 4, D), jnp.float16)
    done = gpu_aot.compile_for_gpu(fused_ragged_paged_attention, queries, rows, rows, pages, *LENGTHS, donate=(3,))
    check(done, pages, 3)
    operations = {found[1]: found[2] for found in _OPERATION.finditer(str(done.compiled.as_text()))}
    update, attention, _ = (name for name, written in operations.items() if written.startswith("custom-call("))
    read = re.findall(r"%[\w.-]+", operations[attention].split(")", 1)[0])
    sources = {name for name in read if _source(name, operations) == update}
    assert len(sources) == 1, "attention reads the pages that the update gave, once"
    assert not any(_source(name, operations).startswith("%kv_pages") for name in read)


_OPERATION = re.compile(r"^\s*(%[\w.-]+) = (?:\([^=]*\)|\S+) ([\w-]+\(.*)$", re.MULTILINE)
"""A line of a compiled program: what it names, and what that is."""


def _source(name: str, operations: dict[str, str]) -> str:
    """What a result is another view of."""
    while operations.get(name, "").startswith("bitcast("):
        name = operations[name][len("bitcast(") :].split(")", 1)[0]
    return name
