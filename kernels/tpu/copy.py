"""Pages copied onto other pages by copies from HBM to HBM, in place."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ..dispatch import kernel_output
from .in_flight import COPIED, copy_all
from .scalar_memory import too_many_scalars

__all__ = ["copy_pages", "unsupported"]

Ref = Any
Interpret = bool | pltpu.InterpretParams


def unsupported(pages: jax.Array, sources: jax.Array) -> str | None:
    """Why these pages can't be copied whole by the copy engines, or None when they can.

    Args:
        pages: `[P, ...]`.
        sources: `i32[n]`; there are as many destinations.
    """
    if pages.dtype.name not in COPIED:
        return f"{pages.dtype=}: no kernel takes it"
    if pages.ndim < 3:
        return f"{pages.ndim=}: several pages share a tile of the last two axes"
    return too_many_scalars(sources, sources)


def copy_pages(
    pages: jax.Array,  # [P, ...], donated to be updated in place
    sources: jax.Array,  # i32[n]
    destinations: jax.Array,  # i32[n]
    *,
    interpret: Interpret = False,
) -> jax.Array:
    """Copies pages onto pages (MAN-13). O(n) copies of a page.

    Args:
        pages: `[P, ...]`, of at least three axes.
        sources: `i32[n]`: ids of the pages to copy.
        destinations: `i32[n]`: ids of the pages to write, none twice, none a source as well. A pair with an id that
            doesn't exist (negative, or from P on) does nothing.
        interpret: what `pallas_call` takes.

    Returns:
        `[P, ...]`: the pages; all but the destinations as they were, bit for bit.
    """
    if sources.shape[0] == 0:
        return pages
    call: Callable[..., jax.Array] = pl.pallas_call(
        _kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(1,),
            in_specs=[pl.BlockSpec(memory_space=pltpu.HBM)],
            out_specs=pl.BlockSpec(memory_space=pltpu.HBM),
            scratch_shapes=[pltpu.SemaphoreType.DMA(())],
        ),
        out_shape=kernel_output(pages.shape, pages.dtype),
        input_output_aliases={2: 0},
        name="copy_pages",
        interpret=interpret,
    )
    return call(sources, destinations, pages)


def _kernel(sources: Ref, destinations: Ref, _: Ref, pages: Ref, semaphore: Ref) -> None:
    def live(i: jax.Array) -> jax.Array:
        return jnp.logical_and(is_page(sources[i], pages), is_page(destinations[i], pages))

    def copy(i: jax.Array) -> Any:
        return page_copy(pages, semaphore, sources[i], destinations[i])

    copy_all(sources.shape[0], live, copy)


def is_page(page_id: jax.Array, pages: Ref) -> jax.Array:
    """Whether a page exists."""
    return jnp.logical_and(page_id >= 0, page_id < pages.shape[0])


def page_copy(pages: Ref, semaphore: Ref, source: jax.Array, destination: jax.Array) -> Any:
    """The copy of a page."""
    return pltpu.make_async_copy(pages.at[source], pages.at[destination], semaphore)
