"""What fits into the scalar unit's memory: lengths, page tables and slots, which kernels are given as scalars."""

import jax

from ..layout import LANES, round_up

__all__ = ["too_many_scalars"]

_BYTES = 960 * 2**10
"""Of 1 MiB; the compiler wants the rest."""

_ROWS = 4
"""Arrays of two dimensions are padded to a multiple of this number of rows."""


def too_many_scalars(*scalars: jax.Array) -> str | None:
    """Why arrays can't all be scalars of a kernel, or None when they can. O(arrays).

    Args:
        scalars: `i32[n]` or `i32[m, n]`, or anything with such a shape.
    """
    taken = 0
    for array in scalars:
        *rows, columns = array.shape
        taken += 4 * round_up(rows[0], _ROWS) * round_up(columns, LANES) if rows else 4 * round_up(columns, LANES)
    return None if taken <= _BYTES else f"scalars of {taken} bytes don't fit into the {_BYTES} there are for them"
