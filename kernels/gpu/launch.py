"""How a kernel is launched: shared memory, barriers and threads, the same for decode and prefill."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax.experimental.pallas import mosaic_gpu as plgpu

from .geometry import CONSUMERS, ROWS, Geometry, swizzle_of
from .walk import THREAD

__all__ = ["Interpret", "launch", "scratch_of"]

Interpret = Any
"""None, or the parameters of JAX's interpreter for GPUs."""

_kernel: Callable[..., Any] = plgpu.kernel


def scratch_of(geometry: Geometry, emulated: bool) -> dict[str, Any]:
    """The kernel's own memory, by the names of `Scratch`; what a geometry has no use for is left out.

    Args:
        geometry: the shapes.
        emulated: whether the kernel is interpreted: without tiles and swizzles then.
    """
    layout, tiles, stages = geometry.layout, geometry.tiles, geometry.stages
    blocks = geometry.block_rows // ROWS
    stored, dtype = jnp.dtype(geometry.kv_dtype), jnp.dtype(geometry.dtype)

    def memory(shape: tuple[int, ...], kind: Any, swizzle: int) -> Any:
        if emulated or not swizzle:
            return plgpu.SMEM(shape, kind)
        tiling = plgpu.TilingTransform((8, swizzle // kind.itemsize))
        return plgpu.SMEM(shape, kind, transforms=(tiling, plgpu.SwizzleTransform(swizzle)))

    dims = dict(zip(("keys", "values"), geometry.copied_dims, strict=True))
    scratch = {name: memory((stages, tiles.keys, dim), stored, geometry.raw_swizzle) for name, dim in dims.items()}
    swizzle = geometry.swizzle
    scratch["queries"] = memory((blocks, ROWS, layout.head_dim), dtype, swizzle)
    if geometry.staged:
        scratch["key_tile"] = memory((CONSUMERS, tiles.keys, layout.head_dim), dtype, swizzle)
    if geometry.staged and geometry.differ:
        scratch["value_tile"] = memory((CONSUMERS, tiles.keys, layout.v_head_dim), dtype, swizzle)
    if geometry.splits_keys:
        part = (CONSUMERS, ROWS, geometry.partial_columns)
        scratch["output"] = memory(part, jnp.dtype(jnp.float32), swizzle_of(part[-1], 4))
        scratch["tops"] = plgpu.SMEM((CONSUMERS, ROWS), jnp.float32)
        scratch["totals"] = plgpu.SMEM((CONSUMERS, ROWS), jnp.float32)
    else:
        if geometry.differ:
            scratch["output"] = memory((CONSUMERS, ROWS, layout.v_head_dim), dtype, swizzle)
        scratch["cleaned"] = plgpu.Barrier(num_arrivals=CONSUMERS)
    scratch["queries_here"] = plgpu.Barrier(num_barriers=blocks)
    arrived = plgpu.Barrier(num_arrivals=tiles.pieces, num_barriers=stages)
    read = plgpu.Barrier(num_arrivals=1 if geometry.splits_keys else CONSUMERS, num_barriers=stages)
    return scratch | {"keys_here": arrived, "values_here": arrived, "keys_done": read, "values_done": read}


def launch(
    body: Callable[..., None],
    geometry: Geometry,
    out_type: Any,
    grid: dict[str, int],
    *inputs: Any,
    name: str,
    interpret: Interpret,
) -> Any:
    """Runs a kernel.

    Args:
        body: called with the references to inputs and outputs, and by name those to `scratch_of`.
        geometry: the shapes.
        out_type: shapes and dtypes of the outputs.
        grid: the axes along which blocks differ, the last the one that varies fastest.
        inputs: arrays.
        name: what profilers call it.
        interpret: None, or the parameters of the interpreter.
    """
    call = _kernel(
        body,
        out_type=out_type,
        scratch_types=scratch_of(geometry, interpret is not None),
        grid=tuple(grid.values()),
        grid_names=tuple(grid),
        num_threads=CONSUMERS + 1,
        thread_name=THREAD,
        # JAX 0.11 would choose the other semantics.
        compiler_params=plgpu.CompilerParams(approx_math=True, lowering_semantics=plgpu.LoweringSemantics.Lane),
        kernel_name=name,
        **({} if interpret is None else {"interpret": interpret}),
    )
    return call(*inputs)
