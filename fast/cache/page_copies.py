"""Lists of page ids on their way to the device, padded so that few programs are compiled."""

from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from ..reading.arguments import integer, listed, materialised, plain_array, refusal
from ..table.table_rows import Ids

__all__ = ["PageIds", "padded_pairs", "padded_size"]

PageIds = Ids | Iterable[Ids] | jax.Array
"""Page ids: of one data shard, or of each."""

_LEAST = 16
_STEP = 4


def padded_pairs(
    sources: PageIds, destinations: PageIds, num_shards: int
) -> tuple[jax.Array | NDArray[np.int32], jax.Array | NDArray[np.int32]]:
    """Pairs of page ids as a device takes them: those of the data shards one behind the other. O(n).

    Args:
        sources: `[n]`, or `[num_shards, n]` where there are several shards; a negative one names no page. An array of
            JAX's, traced or not, is taken as it is.
        destinations: the same.
        num_shards: data shards.

    Returns:
        `i32[num_shards * m]` each; m is n, or the next of 16, 64, 256, ... with -1 behind where the ids were on the
        host.

    Raises:
        TypeError: an id is no integer.
        ValueError: an id does not fit an int32, or the shapes do not fit each other or the shards (R1).
    """
    froms, tos = _rows("sources", sources, num_shards), _rows("destinations", destinations, num_shards)
    if froms.shape != tos.shape:
        raise refusal(ValueError, "R1", f"destinations.shape={tos.shape} must be that of sources, {froms.shape}")
    if isinstance(froms, jax.Array) or isinstance(tos, jax.Array):
        return froms.reshape(-1), tos.reshape(-1)
    padding = ((0, 0), (0, padded_size(froms.shape[1]) - froms.shape[1]))
    padded = [np.pad(ids, padding, constant_values=-1).reshape(-1) for ids in (froms, tos)]
    return padded[0], padded[1]


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
