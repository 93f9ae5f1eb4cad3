"""R1: validating pages of another process before they are written into a cache."""

from typing import Any

import jax
import numpy as np

from kvproof.kernels import ScaledPages

from ..reading.arguments import refusal

__all__ = ["fitted", "require_pages"]


def require_pages(pages: Any, given: Any) -> Any:
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
