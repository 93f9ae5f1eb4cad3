"""Which keys a query reads: the one arithmetic of causality, window and chunk that all implementations share.

A query at position p of a sequence of ``kv_len`` tokens reads the keys j with first <= j < end, where these
functions give first and end: a range, whatever the options. All numbers are int32 and stay so: positions lie
below 2^31, windows and chunks below the longest context (`arguments` drops longer ones, which mask nothing).
"""

import jax
import jax.numpy as jnp

from .options import AnyOptions

__all__ = ["end_key", "first_key", "skips_keys"]


def first_key(
    position: jax.Array,  # i32[...]
    options: AnyOptions,
) -> jax.Array:
    """The first key that a query reads (ATT-1): never negative. O(1) each.

    With a window it is position - window + 1, causal or not; with chunks the first key of the position's own
    chunk; with both the later of the two.

    Args:
        position: where the queries stand, i32, a scalar or an array; below 0 for rows that read nothing.
        options: the mask.

    Returns:
        i32, of the same shape. It doesn't fall where positions rise.
    """
    position = jnp.maximum(position, 0)
    first = jnp.zeros_like(position)
    if options.window is not None:
        first = jnp.maximum(first, position - (options.window - 1))
    if options.chunk is not None:
        first = jnp.maximum(first, position // options.chunk * options.chunk)
    return first


def skips_keys(options: AnyOptions) -> bool:
    """Whether queries may read from a later key than their sequence's first: elsewhere `first_key` is 0. O(1)."""
    return options.window is not None or options.chunk is not None


def end_key(
    position: jax.Array,  # i32[...]
    kv_len: jax.Array,  # i32[...]
    options: AnyOptions,
) -> jax.Array:
    """The end, exclusive, of the keys that a query reads (ATT-1). O(1) each.

    Args:
        position: where the queries stand, i32, a scalar or an array.
        kv_len: the tokens of their sequence, i32, a scalar or of the same shape.
        options: the mask.

    Returns:
        i32: position + 1 if causal, else kv_len; at most kv_len, and 0 where the position is negative (ATT-2).
        It doesn't fall where positions rise.
    """
    end = jnp.minimum(position + 1, kv_len) if options.causal else kv_len
    return jnp.where(position < 0, 0, end)
