"""The device programs of a page table: an empty table, and cells written into one in place.

A commit sends the cells that changed, never the table. How many cells there are differs from step to step, the
programs must not: cells travel in staging arrays of `STAGING_SIZES` cells, the rest of an array naming rows that do
not exist. With 256 cells a call takes 13 us on CPU, of which 6 are the price of any call and 3 that of one with a
numpy array; a copy of a 256 x 2048 table would take 400.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding
from numpy.typing import NDArray

__all__ = ["STAGING_SIZES", "empty_table", "staging_sizes", "write_cells"]

# Cells in a staging array. The small one is for decode steps, in which some rows have one page more, the others for
# steps in which requests come or go. On CPU a call with 1,024 takes 2 us more than one with 256, 4,096 take 6 us more,
# 16,384 take 25. With `empty_table` that makes 4 programs for each shape.
STAGING_SIZES = (256, 4096, 16384)

# Staging arrays before their cells are entered: only rows that do not exist, and no index twice.
_NO_CELLS = {size: np.zeros((3, size), np.int32) for size in STAGING_SIZES}
for _size, _staging in _NO_CELLS.items():
    _staging[0] = np.arange(2**31 - _size, 2**31)
    _staging.flags.writeable = False

_constrain: Callable[[jax.Array, Sharding], jax.Array] = jax.lax.with_sharding_constraint


@partial(jax.jit, static_argnums=(0, 1, 2))
def empty_table(num_rows: int, width: int, sharding: Sharding | None) -> jax.Array:
    """A table of zeros on the device. O(num_rows * width), on the device.

    Args:
        num_rows: rows.
        width: entries of a row.
        sharding: where the table lies; None: on JAX's default device. A mesh axis that splits the table must
            be of the type ``Auto``; over others it may be replicated.

    Returns:
        `i32[num_rows, width]`, a buffer of its own.
    """
    return _placed(jnp.zeros((num_rows, width), jnp.int32), sharding)


def staging_sizes(num_cells: int) -> list[int]:
    """The staging arrays in which a number of cells travel: their sizes sum to at most ``max(256, 16 * num_cells)``."""
    sizes = []
    while num_cells > 0:
        for size in STAGING_SIZES:
            if size >= num_cells:
                break
        sizes.append(size)
        num_cells -= size
    return sizes


def write_cells(
    table: jax.Array,  # i32[num_rows, width], donated
    cells: NDArray[np.int32],  # i32[3, n]: row, column, value
    sharding: Sharding | None,
) -> jax.Array:
    """Writes cells into a table, in place (TAB-5). O(n); at most three programs per shape of table are compiled.

    Args:
        table: `i32[num_rows, width]`; it is donated: this handle can't be used afterwards. Where its memory is
            still seen through a numpy view, JAX copies it first, and the view keeps what it shows (TAB-4).
        cells: `i32[3, n]`: the cells' rows, each in [0, num_rows), their columns, each in [0, width), and what to
            write. No cell stands there twice. The array is read before the call returns.
        sharding: where the table lies and stays, as given to `empty_table`.

    Returns:
        `i32[num_rows, width]`, the table with the cells written.
    """
    begin = 0
    for size in staging_sizes(cells.shape[1]):
        some = cells[:, begin : begin + size]
        # Fresh each time: JAX may read a numpy argument as late as when the program runs.
        staging = _NO_CELLS[size].copy()
        staging[:, : some.shape[1]] = some
        table = _scatter(table, staging, sharding)
        begin += size
    return table


@partial(jax.jit, donate_argnums=0, static_argnums=2)
def _scatter(
    table: jax.Array,  # i32[num_rows, width]
    staging: NDArray[np.int32],  # i32[3, size]: row, column, value
    sharding: Sharding | None,
) -> jax.Array:
    # No index is negative. Wrapping those that are would be the program's only arithmetic: without any, XLA's CPU
    # client runs it in the calling thread where its inputs are ready, which saves a commit four fifths of its time.
    written = table.at[staging[0], staging[1]].set(
        staging[2], mode="drop", unique_indices=True, wrap_negative_indices=False
    )
    return _placed(written, sharding)


def _placed(table: jax.Array, sharding: Sharding | None) -> jax.Array:
    return table if sharding is None else _constrain(table, sharding)
