"""SWAP-2, MAN-13, MAN-17: what a copy of pages takes: page ids, numbers of slots, and pages of another process.

Ids are padded on their way to the device, so that few programs are compiled; pages are validated before they are
written into a cache (R1).
"""

from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from kvproof.kernels import ScaledPages
from kvproof.spec.declarations.reading import Ids

from ..reading.arguments import integer, listed, materialised, plain_array, refusal

__all__ = ["PageIds", "fitted", "padded_rows", "padded_size", "require_block"]

PageIds = Ids | Iterable[Ids] | jax.Array
"""Page ids, or numbers of slots: of the pages of one data shard, or of each."""

_LEAST = 16
_STEP = 4


def padded_rows(num_shards: int, **named: PageIds) -> tuple[jax.Array | NDArray[np.int32], ...]:
    """Numbers for each of some pages as a device takes them: those of the data shards concatenated. O(n).

    Args:
        num_shards: data shards.
        named: under the argument's name ids of pages, or numbers of slots, `[n]`, or `[num_shards, n]` where there are
            several shards. An array of JAX's, traced or not, is taken as it is.

    Returns:
        `i32[num_shards * m]` for each; m is n, or the next of 16, 64, 256, ... with -1 behind where all were on the
        host.

    Raises:
        TypeError: a number is no integer.
        ValueError: a number does not fit an int32, or the shapes do not fit each other or the shards (R1).
    """
    rows = {name: _rows(name, numbers, num_shards) for name, numbers in named.items()}
    first, *others = rows
    for name in others:
        if rows[name].shape != rows[first].shape:
            raise refusal(
                ValueError, "R1", f"{name}.shape={rows[name].shape} must be that of {first}, {rows[first].shape}"
            )
    if any(isinstance(numbers, jax.Array) for numbers in rows.values()):
        return tuple(numbers.reshape(-1) for numbers in rows.values())
    count = rows[first].shape[1]
    padding = ((0, 0), (0, padded_size(count) - count))
    return tuple(np.pad(numbers, padding, constant_values=-1).reshape(-1) for numbers in rows.values())


def padded_size(count: int) -> int:
    """The number of ids sent for ``count``: the next of 16, 64, 256, ..."""
    size = _LEAST
    while size < count:
        size *= _STEP
    return size


def _rows(name: str, ids: PageIds, num_shards: int) -> jax.Array | NDArray[np.int32]:
    """Ids as `i32[num_shards, n]`."""
    if isinstance(ids, jax.Array):
        if ids.dtype != np.int32:
            raise refusal(TypeError, "R1", f"{name}.dtype={ids.dtype} must be int32")
        if ids.shape[:-1] != (() if num_shards == 1 else (num_shards,)):
            raise refusal(ValueError, "R1", f"{name}.shape={ids.shape} must have {num_shards} rows")
        return ids.reshape(num_shards, -1)
    rows: list[Any] = [ids] if num_shards == 1 else listed(name, ids)
    read = [_int32(name, row) for row in rows]
    if len(read) != num_shards or len({len(row) for row in read}) > 1:
        raise refusal(ValueError, "R1", f"{name} must have {num_shards} rows of as many ids")
    return np.array(read, np.int32).reshape(num_shards, -1)


def _int32(name: str, ids: Any) -> NDArray[np.int64]:
    given = materialised(name, ids)
    numbers = plain_array(given)
    if numbers is None:
        read = [integer(name, value, minimum=None) for value in given]
        wide = [value for value in read if not -(2**31) <= value < 2**31]
        if wide:
            raise refusal(ValueError, "R1", f"{name}={wide[0]} does not fit an int32")
        return np.array(read, np.int64)
    wrong = numbers[(numbers < -(2**31)) | (numbers >= 2**31)]
    if wrong.size:
        raise refusal(ValueError, "R1", f"{name}={wrong[0]} does not fit an int32")
    return numbers


# -- Imported pages -------------------------------------------------------------------------------


def require_block(pages: Any, given: Any) -> Any:
    """Validates imported pages: of the kind of the layer's own, arrays or `ScaledPages` of them.

    Args:
        pages: the layer's pages.
        given: the imported pages.

    Raises:
        TypeError: the imported pages are of another kind, or not arrays.
    """
    parts = tuple(given) if isinstance(given, tuple) else (given,)
    if isinstance(pages, ScaledPages) != isinstance(given, tuple) or len(parts) != len(jax.tree.leaves(pages)):
        raise refusal(TypeError, "SWAP-2", f"block: a {type(given).__name__} for a layer of {type(pages).__name__}")
    for part in parts:
        if not isinstance(part, jax.Array | np.ndarray):
            raise refusal(TypeError, "R1", f"block must hold arrays, not {type(part).__name__}")
    return ScaledPages(*parts) if isinstance(pages, ScaledPages) else given


def fitted(num_shards: int, ids: Any, pages: Any, given: Any) -> Any:
    """Imported pages with the number of rows that are written for each data shard. O(pages) if rows are added.

    Args:
        num_shards: data shards.
        ids: the pages that are written, `i32[num_shards * count]`: ``count`` rows are wanted for each shard.
        pages: an array of the cache, `[P, page, ...]`.
        given: an array `[num_shards * k, page, ...]`; of more rows than ``count`` the first are taken, where there are
            fewer zeros are added, if no page is named for those.

    Raises:
        TypeError: it is of another dtype.
        ValueError: it is of another shape, or has fewer rows than pages are named.
    """
    count = len(ids) // num_shards
    if given.dtype != pages.dtype:
        raise refusal(TypeError, "SWAP-2", f"block.dtype={given.dtype} must be {pages.dtype}")
    if given.ndim != pages.ndim or given.shape[1:] != pages.shape[1:] or given.shape[0] % num_shards:
        raise refusal(
            ValueError, "SWAP-2", f"block.shape={given.shape} must be [{num_shards} * k, {pages.shape[1:]}] for some k"
        )
    if given.shape[0] == num_shards * count:
        return given
    has = given.shape[0] // num_shards
    if has < count and (isinstance(ids, jax.Array) or (ids.reshape(num_shards, -1)[:, has:] >= 0).any()):
        raise refusal(ValueError, "SWAP-2", f"block.shape={given.shape} has fewer pages than are named")
    rows = np.asarray(given).reshape(num_shards, -1, *given.shape[1:])
    more = np.zeros((num_shards, max(count - rows.shape[1], 0), *rows.shape[2:]), rows.dtype)
    return np.concatenate([rows[:, :count], more], axis=1).reshape(num_shards * count, *given.shape[1:])
