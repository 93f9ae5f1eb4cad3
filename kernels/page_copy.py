"""Copying pages onto pages, or their first slots: what the manager's copy orders ask for (MAN-13, MAN-17)."""

from functools import partial
from typing import Any

import jax
import numpy as np

from . import arguments
from .arguments import Array
from .choices import taken
from .dispatch import by_platform, likes
from .dynamic_checks import check_copies
from .layout import read_version, slot_axis
from .xla import copy as xla

__all__ = ["copy_pages", "num_pages_of", "require_slots"]


def copy_pages(
    pages: Any,
    sources: Array,  # i32[n]
    destinations: Array,  # i32[n]
    num_slots: Array | None = None,  # i32[n]
    *,
    version: str | None = None,
    validate: bool = False,
) -> Any:
    """Copies pages, in every array alike; in place where they are donated (MAN-13, MAN-17). O(n pages).

    Args:
        pages: arrays `[P, ...]` of any dtype, in any pytree: a layer's pages, ScaledPages, states, or all of them;
            with ``num_slots`` `[P, page, ...]`, in seq_on_lane `[P, ..., page]`.
        sources: `i32[n]`: the pages to copy.
        destinations: `i32[n]`: the pages to write. A pair with a negative id, or one that is no page, does nothing.
            No page is written twice, and none that is read, else it is undefined what it holds.
        num_slots: `i32[n]`: how many of each page's first slots are copied, the others stay as they are; None: all.
        version: the layout's name, which seq_on_lane needs with ``num_slots``; None: any other's.
        validate: whether the ids are looked at too; they must be concrete then.

    Returns:
        The pages, in the structure given.

    Raises:
        TypeError: on wrong types and dtypes [R1].
        ValueError: on shapes that don't fit; with ``validate`` on a destination named twice, or read as well [R1].
        IndexError: with ``validate``, on pages that don't exist [R1].
    """
    num_pages, axis = num_pages_of(pages), slot_axis(read_version(version))
    arguments.integers("sources", sources, (None,), "[n]")
    arguments.integers("destinations", destinations, sources.shape, f"{tuple(sources.shape)}, as sources")
    if num_slots is not None:
        require_slots(pages)
        arguments.integers("num_slots", num_slots, sources.shape, f"{tuple(sources.shape)}, as sources")
    if arguments.flag("validate", validate):
        check_copies(sources, destinations, num_pages)
    return _copy(pages, sources, destinations, num_slots, axis)


def num_pages_of(pages: Any) -> int:
    """The number of pages of arrays that belong together; 0 of no arrays. O(arrays).

    Raises:
        TypeError: if a leaf is no array [R1].
        ValueError: if arrays have no pages, or not the same number of them [R1].
    """
    counts: set[int] = set()
    for leaf in jax.tree.leaves(pages):
        if not isinstance(leaf, (jax.Array, np.ndarray)):
            raise TypeError(f"pages must hold arrays, not {type(leaf).__name__} [R1]")
        if leaf.ndim < 1 or leaf.shape[0] < 1:
            raise ValueError(f"pages must hold arrays [P, ...], not of the shape {tuple(leaf.shape)} [R1]")
        counts.add(leaf.shape[0])
    if len(counts) > 1:
        raise ValueError(f"pages must hold arrays of the same number of pages, not {sorted(counts)} [R1]")
    return max(counts, default=0)


def require_slots(pages: Any) -> None:
    """Refuses arrays that have no slots. O(arrays).

    Raises:
        ValueError: if one is not `[P, page, ...]` [R1].
    """
    for leaf in jax.tree.leaves(pages):
        if leaf.ndim < 2:
            raise ValueError(f"pages must hold arrays [P, page, ...], not of the shape {tuple(leaf.shape)} [R1]")


@partial(jax.jit, static_argnames="axis")
def _copy(
    pages: Any,
    sources: jax.Array,  # i32[n]
    destinations: jax.Array,  # i32[n]
    num_slots: jax.Array | None,  # i32[n]
    axis: int,
) -> Any:
    arrays = (pages, sources, destinations, num_slots)
    return by_platform("copy_pages", _copy_on, *arrays, results=likes(pages), axis=axis)


def _copy_on(
    pages: Any,
    sources: jax.Array,
    destinations: jax.Array,
    num_slots: jax.Array | None,
    *,
    axis: int,
    platform: str | None,
) -> Any:
    return jax.tree.map(lambda array: _copy_array(array, sources, destinations, num_slots, axis, platform), pages)


def _copy_array(
    pages: jax.Array,  # [P, ...]
    sources: jax.Array,  # i32[n]
    destinations: jax.Array,  # i32[n]
    num_slots: jax.Array | None,  # i32[n]
    axis: int,
    platform: str | None,
) -> jax.Array:
    """By the platform's own kernel where it has one that takes the call: whole pages."""
    if not sources.shape[0]:
        return pages
    if platform == "tpu":
        # Imported where it is needed: most processes never compile for a TPU.
        from .tpu import copy as tpu

        reason = None if num_slots is None else "num_slots: the kernel copies whole pages"
        if taken("copy_pages", reason or tpu.unsupported(pages, sources), warn=False):
            return tpu.copy_pages(pages, sources, destinations)
    how: dict[str, Any] = {"distinct": platform == "cuda", "as_bits": platform != "tpu"}
    return xla.copy(pages, sources, destinations, num_slots, slot_axis=axis, **how)
