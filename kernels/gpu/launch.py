"""How a kernel is launched: shared memory, barriers and threads, the same for all kernels of attention."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax.experimental.pallas import mosaic_gpu as plgpu

from .geometry import CONSUMERS, ROWS, TURNED_GAP, Geometry, swizzle_of
from .walk import THREAD

__all__ = ["Interpret", "launch", "memory", "scratch_of"]

Interpret = Any
"""None, or the parameters of JAX's interpreter for GPUs."""

_kernel: Callable[..., Any] = plgpu.kernel


def memory(shape: tuple[int, ...], dtype: Any, swizzle: int, emulated: bool) -> Any:
    """Shared memory for tiles `[..., rows, columns]`, with the swizzle's bytes in a row of a tile; 0: rows as they are.

    Args:
        shape: of the array.
        dtype: of its numbers.
        swizzle: bytes.
        emulated: whether the kernel is interpreted: without tiles and swizzles then.
    """
    if emulated or not swizzle:
        return plgpu.SMEM(shape, dtype)
    tiling = plgpu.TilingTransform((8, swizzle // jnp.dtype(dtype).itemsize))
    return plgpu.SMEM(shape, dtype, transforms=(tiling, plgpu.SwizzleTransform(swizzle)))


def scratch_of(geometry: Geometry, emulated: bool) -> dict[str, Any]:
    """The memory of a kernel that reads pages, by the names of `Scratch`, without what its geometry has no use for.

    Args:
        geometry: the shapes.
        emulated: whether the kernel is interpreted.
    """
    layout, tiles, stages = geometry.layout, geometry.tiles, geometry.stages
    blocks = geometry.block_rows // ROWS
    stored, dtype = jnp.dtype(geometry.kv_dtype), jnp.dtype(geometry.dtype)

    def tile(shape: tuple[int, ...], kind: Any, swizzle: int) -> Any:
        return memory(shape, kind, swizzle, emulated)

    dims = dict(zip(("keys", "values"), geometry.copied_dims, strict=True))
    scratch = {name: tile((stages, tiles.keys, dim), stored, geometry.raw_swizzle) for name, dim in dims.items()}
    swizzle = geometry.swizzle
    scratch["queries"] = tile((blocks, ROWS, layout.head_dim), dtype, swizzle)
    if geometry.staged:
        scratch["key_tile"] = tile((CONSUMERS, tiles.keys, layout.head_dim), dtype, swizzle)
    if geometry.staged and not geometry.values_replace_keys:
        scratch["value_tile"] = tile((CONSUMERS, tiles.keys, layout.v_head_dim), geometry.value_dtype, swizzle)
    if geometry.splits_keys:
        part = (CONSUMERS, ROWS, geometry.partial_columns)
        scratch["output"] = tile(part, jnp.dtype(jnp.float32), swizzle_of(part[-1], 4))
        scratch["tops"] = plgpu.SMEM((CONSUMERS, ROWS), jnp.float32)
        scratch["totals"] = plgpu.SMEM((CONSUMERS, ROWS), jnp.float32)
    else:
        if geometry.differ:
            scratch["output"] = tile((CONSUMERS, ROWS, layout.v_head_dim), dtype, swizzle)
        scratch["cleaned"] = scratch["order"] = plgpu.Barrier(num_arrivals=CONSUMERS)
    scratch["queries_here"] = plgpu.Barrier(num_barriers=blocks)
    arrived = {"keys_here": tiles.pieces, "values_here": tiles.pieces}
    if (of := geometry.scale_rows) is not None:
        shape = (stages, tiles.keys // of.slots, of.slots * of.columns)
        scratch["scales"] = plgpu.SMEM(shape, jnp.float32)
        scratch["tile_scales"] = plgpu.SMEM((CONSUMERS, 2, tiles.keys + TURNED_GAP), jnp.float32)
        arrived["keys_here"] *= 2
    here = {name: plgpu.Barrier(num_arrivals=count, num_barriers=stages) for name, count in arrived.items()}
    read = plgpu.Barrier(num_arrivals=1 if geometry.splits_keys else CONSUMERS, num_barriers=stages)
    return scratch | here | {"keys_done": read, "values_done": read}


def launch(
    body: Callable[..., None],
    scratch: dict[str, Any],
    out_type: Any,
    grid: dict[str, int],
    *inputs: Any,
    name: str,
    interpret: Interpret,
    warpgroups: int = CONSUMERS + 1,
) -> Any:
    """Runs a kernel.

    Args:
        body: called with the references to inputs and outputs, and by name those to the scratch.
        scratch: the shared memory and barriers of a block, by name.
        out_type: shapes and dtypes of the outputs.
        grid: the axes along which blocks differ, the last the one that varies fastest.
        inputs: arrays.
        name: what profilers call it.
        interpret: None, or the parameters of the interpreter.
        warpgroups: of a block.
    """
    call = _kernel(
        body,
        out_type=out_type,
        scratch_types=scratch,
        grid=tuple(grid.values()),
        grid_names=tuple(grid),
        num_threads=warpgroups,
        thread_name=THREAD,
        # JAX 0.11 would choose the other semantics.
        compiler_params=plgpu.CompilerParams(approx_math=True, lowering_semantics=plgpu.LoweringSemantics.Lane),
        kernel_name=name,
        **({} if interpret is None else {"interpret": interpret}),
    )
    return call(*inputs)
