"""Pages on their way off the device: gathered, with what nobody may read in them zeroed (SWAP-2)."""

from functools import partial
from typing import Any

import jax

from . import arguments
from .arguments import Array
from .layout import read_version, slot_axis
from .page_copy import num_pages_of, require_slots
from .xla import copy as xla

__all__ = ["export_pages"]


def export_pages(
    pages: Any,
    page_ids: Array,  # i32[n]
    num_slots: Array,  # i32[n]
    *,
    version: str | None = None,
) -> Any:
    """Some pages of a cache, their dead slots zeroed; `write_states` is the way back. O(n pages).

    Args:
        pages: arrays `[P, page, ...]`, in seq_on_lane `[P, ..., page]`, of any dtype, in any pytree: a layer's pages,
            ScaledPages, or all layers'.
        page_ids: `i32[n]`; -1, or any id that is no page, gives zeros.
        num_slots: `i32[n]`: how many of each page's first slots hold something; the others are zero in what is
            returned, whatever they hold.
        version: the layout's name, which seq_on_lane needs; None: any other's.

    Returns:
        Arrays `[n, ...]`, in the structure of ``pages``, bit for bit as they were but for dead slots.

    Raises:
        TypeError: on wrong types and dtypes [R1].
        ValueError: on shapes that don't fit [R1].
    """
    num_pages_of(pages)
    require_slots(pages)
    axis = slot_axis(read_version(version))
    arguments.integers("page_ids", page_ids, (None,), "[n]")
    arguments.integers("num_slots", num_slots, page_ids.shape, f"{tuple(page_ids.shape)}, as page_ids")
    return _export(pages, page_ids, num_slots, axis)


@partial(jax.jit, static_argnames="axis")
def _export(pages: Any, page_ids: jax.Array, num_slots: jax.Array, axis: int) -> Any:
    export = partial(xla.export, slot_axis=axis)
    on_tpu = partial(export, as_bits=False)

    def of_array(array: jax.Array) -> Any:
        return jax.lax.platform_dependent(array, page_ids, num_slots, tpu=on_tpu, default=export)

    return jax.tree.map(of_array, pages)
