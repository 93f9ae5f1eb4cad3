"""MAN-13, SWAP-2: reading and writing the pages of state groups, and copies of pages of any kind.

The cache of a `MambaSpec` layer is a tuple of arrays `[P, *shape]`, one for each array of its state: a page holds the
state after some number of tokens. All functions take such a tuple, or any pytree (tuples, named tuples, lists, dicts)
of arrays `[P, ...]`, such as the pages of all layers of a group. They treat every array in the same way.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..declarations.cache_metadata import read_version
from ..reading.arguments import INT32, array_of, flag, index, refusal

__all__ = ["copy_pages", "export_pages", "read_states", "write_states"]


def copy_pages(
    pages: Any,
    sources: Any,
    destinations: Any,
    num_slots: Any = None,
    *,
    version: str | None = None,
    validate: bool = False,
) -> Any:
    """Copies pages onto others, as a manager's `PageCopy` and `PartCopy` orders ask before a step (MAN-13, MAN-17).

    Every source is read before any destination is written. A pair with an id that no page has is skipped. O(cache),
    as the cache is copied.

    Args:
        pages: a pytree of arrays `[P, ...]`, `ScaledPages` too; with ``num_slots`` `[P, page, ...]`, in
            ``seq_on_lane`` `[P, ..., page]`.
        sources: `i32[n]`.
        destinations: `i32[n]`.
        num_slots: number of leading slots of each page that are copied, `i32[n]`; the others stay as they are. A page
            has no more to copy than it has, and of none or less nothing is copied. None: whole pages.
        version: name of the layout, which ``seq_on_lane`` needs with ``num_slots``; None: any other layout.
        validate: whether the values of the ids are checked, too.

    Returns:
        The pages after the call, in a pytree like ``pages``, which is not changed.

    Raises:
        TypeError: an argument of a wrong type or dtype.
        ValueError: a wrong shape; with ``validate`` a destination named twice, or one that is a source, too.
        IndexError: with ``validate``: an id past the pages.
    """
    axis = _slot_axis(version)
    num_pages = _num_pages(pages)
    froms = array_of("sources", sources, ("n",), (INT32,)).tolist()
    tos = array_of("destinations", destinations, (len(froms),), (INT32,)).tolist()
    ends: list[int | None] = [None] * len(froms)
    if num_slots is not None:
        ends = [max(end, 0) for end in array_of("num_slots", num_slots, (len(froms),), (INT32,)).tolist()]
    orders = [order for order in zip(froms, tos, ends, strict=True) if min(order[:2]) >= 0]
    if flag("validate", validate):
        _require_once("destinations", [destination for _, destination, _ in orders], num_pages)
        taken = {destination for _, destination, _ in orders}
        for source, _, _ in orders:
            if index("sources", source, num_pages) in taken:
                raise refusal(ValueError, "R1", f"sources={source} is a destination, too")
    orders = [order for order in orders if max(order[:2]) < num_pages]

    def copied(array: NDArray[Any]) -> NDArray[Any]:
        if num_slots is not None:
            _require_slots(array)
        after = array.copy()
        for source, destination, end in orders:
            if end is None:
                after[destination] = array[source]
            else:
                np.moveaxis(after, axis, 1)[destination, :end] = np.moveaxis(array, axis, 1)[source, :end]
        return after

    return _mapped(copied, "pages", pages)


def export_pages(pages: Any, page_ids: Any, num_slots: Any, *, version: str | None = None) -> Any:
    """Copies of pages to take off the device, dead slots zeroed; `write_states` puts them back (SWAP-2). O(pages).

    Args:
        pages: a pytree of arrays `[P, page, ...]`, in ``seq_on_lane`` `[P, ..., page]`, `ScaledPages` too.
        page_ids: `i32[n]`; for -1, or any other id that no page has, the result is zeros.
        num_slots: number of leading slots of each page that are live, `i32[n]`; the others are zeros in the result.
        version: name of the layout, which ``seq_on_lane`` needs; None: any other layout.

    Returns:
        A pytree like ``pages`` of arrays `[n, ...]`.

    Raises:
        TypeError: an argument of a wrong type or dtype.
        ValueError: a wrong shape.
    """
    axis = _slot_axis(version)
    num_pages = _num_pages(pages)
    ids = array_of("page_ids", page_ids, ("n",), (INT32,)).tolist()
    slots = array_of("num_slots", num_slots, (len(ids),), (INT32,)).tolist()

    def exported(array: NDArray[Any]) -> NDArray[Any]:
        _require_slots(array)
        block = np.zeros((len(ids), *array.shape[1:]), array.dtype)
        for place, (page, live) in enumerate(zip(ids, slots, strict=True)):
            if 0 <= page < num_pages and live > 0:
                np.moveaxis(block, axis, 1)[place, :live] = np.moveaxis(array, axis, 1)[page, :live]
        return block

    return _mapped(exported, "pages", pages)


def read_states(pages: Any, page_ids: Any) -> Any:
    """The states in some pages (MAN-13). O(states).

    Args:
        pages: a pytree of arrays `[P, ...]`.
        page_ids: the page of each sequence, `i32[S]`; for -1, or any other id that no page has, the result is zeros.

    Returns:
        A pytree like ``pages`` of arrays `[S, ...]`.

    Raises:
        TypeError: an argument of a wrong type or dtype.
        ValueError: a wrong shape.
    """
    num_pages = _num_pages(pages)
    ids = array_of("page_ids", page_ids, ("S",), (INT32,)).tolist()

    def read(array: NDArray[Any]) -> NDArray[Any]:
        states = np.zeros((len(ids), *array.shape[1:]), array.dtype)
        for place, page in enumerate(ids):
            if 0 <= page < num_pages:
                states[place] = array[page]
        return states

    return _mapped(read, "pages", pages)


def write_states(pages: Any, page_ids: Any, states: Any, *, validate: bool = False) -> Any:
    """Writes states into pages (MAN-13). O(cache), as the cache is copied.

    Args:
        pages: a pytree of arrays `[P, ...]`.
        page_ids: the page of each sequence, `i32[S]`, disjoint; for -1, or any other id that no page has, nothing is
            written.
        states: a pytree like ``pages`` of arrays `[S, ...]` of the same dtypes.
        validate: whether the values of the ids are checked, too.

    Returns:
        The pages after the call, in a pytree like ``pages``, which is not changed.

    Raises:
        TypeError: an argument of a wrong type or dtype.
        ValueError: a wrong shape; with ``validate`` a page named twice.
        IndexError: with ``validate``: an id past the pages.
    """
    num_pages = _num_pages(pages)
    ids = array_of("page_ids", page_ids, ("S",), (INT32,)).tolist()
    if flag("validate", validate):
        _require_once("page_ids", [page for page in ids if page >= 0], num_pages)

    def written(array: NDArray[Any], new: Any) -> NDArray[Any]:
        new = array_of("states", new, (len(ids), *array.shape[1:]), (array.dtype,))
        after = array.copy()
        for place, page in enumerate(ids):
            if 0 <= page < num_pages:
                after[page] = new[place]
        return after

    return _mapped(written, "pages", pages, states)


def _slot_axis(version: str | None) -> int:
    """The axis of slots in the pages of a layout (R1)."""
    return -1 if version is not None and read_version(version) == "seq_on_lane" else 1


def _require_slots(array: NDArray[Any]) -> None:
    """Refuses pages that have no slots (R1)."""
    if array.ndim < 2:
        raise refusal(ValueError, "R1", f"pages.shape={array.shape} must be [P, page, ...]")


def _require_once(name: str, ids: list[int], num_pages: int) -> None:
    """Refuses ids that no page has, and ids that occur twice (R1)."""
    for place, page in enumerate(ids):
        if index(name, page, num_pages) in ids[:place]:
            raise refusal(ValueError, "R1", f"{name}={page} is named twice")


def _num_pages(pages: Any) -> int:
    """P, which all arrays of the pytree must share; 0 if there is no array (R1)."""
    counts: list[int] = []

    def count(array: NDArray[Any]) -> NDArray[Any]:
        if not array.ndim:
            raise refusal(ValueError, "R1", "pages.shape=() must be [P, ...]")
        counts.append(array.shape[0])
        return array

    _mapped(count, "pages", pages)
    if len(set(counts)) > 1:
        raise refusal(ValueError, "R1", f"pages: arrays of {counts} pages must be of as many each")
    return counts[0] if counts else 0


def _mapped(function: Callable[..., NDArray[Any]], name: str, tree: Any, *others: Any) -> Any:
    """Applies a function to each array of a pytree, and to the arrays at its place in other pytrees (R1)."""
    if isinstance(tree, dict):
        for other in others:
            _require_like(name, tree, other, isinstance(other, dict) and other.keys() == tree.keys())
        return {key: _mapped(function, name, tree[key], *(other[key] for other in others)) for key in tree}
    if isinstance(tree, list | tuple):
        for other in others:
            _require_like(name, tree, other, type(other) is type(tree) and len(other) == len(tree))
        parts = [_mapped(function, name, *part) for part in zip(tree, *others, strict=True)]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    if not (hasattr(tree, "shape") and hasattr(tree, "dtype")):
        raise refusal(TypeError, "R1", f"{name} must hold arrays, not {type(tree).__name__}")
    return function(np.asarray(tree), *others)


def _require_like(name: str, tree: Any, other: Any, alike: bool) -> None:
    """Refuses a pytree that is not built like another (R1)."""
    if not alike:
        raise refusal(
            ValueError, "R1", f"states: a {type(other).__name__} must be like the {type(tree).__name__} of {name}"
        )
