"""The device programs of a page table: an empty table, and cells written into one in place.

A commit sends the cells that changed, never the table: for 256 cells of a 256 x 2048 table that takes about
40 us on CPU, of which 30 are the price of any call, where a copy of the table takes 400. How many cells there
are differs from step to step, the programs must not: cells travel in staging arrays of `STAGING_SIZES` cells,
the rest of an array naming rows that do not exist.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding
from numpy.typing import NDArray

__all__ = ["STAGING_SIZES", "empty_table", "staging_sizes", "write_cells"]

# Cells in a staging array. On CPU a call with 1,024 takes 38 us, with 16,384 it takes 200, so that up to four
# of the small ones are cheaper than a large one. With `empty_table` that makes 3 programs for each shape.
STAGING_SIZES = (1024, 16384)
_SMALL_ARRAYS = 4

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
    """The staging arrays in which so many cells travel: their sizes sum to at most ``max(1024, 4 * num_cells)``."""
    small, large = STAGING_SIZES
    sizes = []
    while num_cells > _SMALL_ARRAYS * small:
        sizes.append(large)
        num_cells -= large
    while num_cells > 0:
        sizes.append(small)
        num_cells -= small
    return sizes


def write_cells(
    table: jax.Array,  # i32[num_rows, width], donated
    rows: NDArray[np.int64],  # i64[n]
    columns: NDArray[np.int64],  # i64[n]
    values: NDArray[np.int32],  # i32[n]
    sharding: Sharding | None,
) -> jax.Array:
    """Writes cells into a table, in place (TAB-5). O(n); at most two programs per shape of table are compiled.

    Args:
        table: `i32[num_rows, width]`; it is donated: this handle can't be used afterwards. Where its memory is
            still seen through a numpy view, JAX copies it first, and the view keeps what it shows (TAB-4).
        rows: the cells' rows, `i64[n]`, each below ``num_rows``.
        columns: their columns, `i64[n]`, each below ``width``. No cell stands there twice.
        values: what to write, `i32[n]`.
        sharding: where the table lies and stays, as given to `empty_table`.

    Returns:
        `i32[num_rows, width]`, the table with the cells written.
    """
    num_rows = table.shape[0]
    begin = 0
    for size in staging_sizes(len(rows)):
        end = min(begin + size, len(rows))
        used = end - begin
        # Fresh each time: JAX may read a numpy argument as late as when the program runs.
        staging = np.zeros((3, size), np.int32)
        staging[0, :used] = rows[begin:end]
        staging[1, :used] = columns[begin:end]
        staging[2, :used] = values[begin:end]
        staging[0, used:] = np.arange(num_rows, num_rows + size - used, dtype=np.int32)  # no index stands twice
        table = _scatter(table, staging, sharding)
        begin = end
    return table


@partial(jax.jit, donate_argnums=0, static_argnums=2)
def _scatter(
    table: jax.Array,  # i32[num_rows, width]
    staging: NDArray[np.int32],  # i32[3, size]: row, column, value
    sharding: Sharding | None,
) -> jax.Array:
    written = table.at[staging[0], staging[1]].set(staging[2], mode="drop", unique_indices=True)
    return _placed(written, sharding)


def _placed(table: jax.Array, sharding: Sharding | None) -> jax.Array:
    return table if sharding is None else _constrain(table, sharding)
