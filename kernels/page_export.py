"""Pages on their way off the device: gathered, with what nobody may read in them zeroed (SWAP-2)."""

from typing import Any

import jax

from . import arguments
from .arguments import Array
from .page_copy import num_pages_of, require_slots
from .xla import copy as xla

__all__ = ["export_pages"]


def export_pages(
    pages: Any,
    page_ids: Array,  # i32[n]
    num_slots: Array,  # i32[n]
) -> Any:
    """Some pages of a cache, their dead slots zeroed; `write_states` is the way back. O(n pages).

    Args:
        pages: arrays `[P, page, ...]` of any dtype, in any pytree: a layer's pages, ScaledPages, or all layers'.
        page_ids: `i32[n]`; -1, or any id that is no page, gives zeros.
        num_slots: `i32[n]`: how many of each page's first slots hold something; the others are zero in what is
            returned, whatever they hold.

    Returns:
        Arrays `[n, page, ...]`, in the structure of ``pages``, bit for bit as they were but for dead slots.

    Raises:
        TypeError: on wrong types and dtypes [R1].
        ValueError: on shapes that don't fit [R1].
    """
    num_pages_of(pages)
    require_slots(pages)
    arguments.integers("page_ids", page_ids, (None,), "[n]")
    arguments.integers("num_slots", num_slots, page_ids.shape, f"{tuple(page_ids.shape)}, as page_ids")
    return _export(pages, page_ids, num_slots)


@jax.jit
def _export(pages: Any, page_ids: jax.Array, num_slots: jax.Array) -> Any:
    return jax.tree.map(lambda array: xla.export(array, page_ids, num_slots), pages)
