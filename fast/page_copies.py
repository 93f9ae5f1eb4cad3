"""Lists of page ids on their way to the device, padded so that few programs are compiled."""

from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from .arguments import integer, listed, plain_array, refusal
from .table_rows import Ids

__all__ = ["padded_ids"]

_LEAST = 16
_STEP = 4


def padded_ids(name: str, ids: Ids | jax.Array, num_shards: int) -> jax.Array | NDArray[np.int32]:
    """Page ids as a device takes them: those of the data shards one behind the other. O(n).

    Args:
        name: what the argument is called.
        ids: `[n]`, or `[num_shards, n]` where there are several shards; a negative one names no page. An array of
            JAX's, traced or not, is taken as it is.
        num_shards: data shards.

    Returns:
        `i32[num_shards * m]`; m is n, or the next of 16, 64, 256, ... with -1 behind where the ids were on the host.

    Raises:
        TypeError: an id is no integer.
        ValueError: an id does not fit an int32, or the shape does not fit the shards (R1).
    """
    if isinstance(ids, jax.Array):
        if ids.dtype != np.int32:
            raise refusal(TypeError, "R1", f"{name}.dtype={ids.dtype} must be int32")
        if ids.ndim != (1 if num_shards == 1 else 2) or ids.shape[: ids.ndim - 1] not in ((), (num_shards,)):
            raise refusal(ValueError, "R1", f"{name}.shape={ids.shape} must have a row for each of {num_shards} shards")
        return ids.reshape(-1)
    rows: list[Any] = [ids] if num_shards == 1 else listed(name, ids)
    if len(rows) != num_shards:
        raise refusal(ValueError, "R1", f"{name} has {len(rows)} rows for {num_shards} shards")
    read = [_int32(name, row) for row in rows]
    lengths = {len(row) for row in read}
    if len(lengths) > 1:
        raise refusal(ValueError, "R1", f"{name} has rows of {sorted(lengths)} ids")
    size = _LEAST
    while size < len(read[0]):
        size *= _STEP
    padded = np.full((num_shards, size), -1, np.int32)
    for place, row in enumerate(read):
        padded[place, : len(row)] = row
    return padded.reshape(-1)


def _int32(name: str, ids: Ids) -> NDArray[np.int64]:
    given = listed(name, ids) if not isinstance(ids, np.ndarray | list) else ids
    numbers = plain_array(given)
    if numbers is None:
        numbers = np.array([integer(name, value, minimum=None) for value in given], object)
    wrong = [int(value) for value in numbers[(numbers < -(2**31)) | (numbers >= 2**31)]]
    if wrong:
        raise refusal(ValueError, "R1", f"{name}={wrong[0]} does not fit an int32")
    return numbers.astype(np.int64)
