"""Keys and values out of 32-bit words: what a v3 cache of 16-bit numbers looks like in VMEM, and the way out of it.

A row of 128 words holds two combined rows of one token: the even one in the lower halves, the odd one in the upper. The
matrix unit wants rows of *tokens* in 16 bits, two tokens to a word. So the words of even tokens and those of odd tokens
are loaded apart, and merged half by half: one operation for each register of lower halves, two or three for the upper,
no move across lanes or sublanes, and the tokens come out in their order.

TPU interpret mode knows no memory of words and no packing: each function here has a form for it (``emulated``), and
nothing else of the kernel differs between the two.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ..layout import LANES

__all__ = ["live_words", "load_words", "lower_halves", "upper_halves"]

Ref = Any
Words = tuple[jax.Array, jax.Array]
"""``u32[tokens / 2, 128]`` of the even tokens, and of the odd ones."""

_pack: Callable[..., jax.Array] = pltpu.pack_elementwise

_UPPER = 0xFFFF0000
_LOWER = 0x0000FFFF


def load_words(block: Ref, group: int, tokens: int, emulated: bool) -> Words:
    """The words of one group of a block's first tokens: two loads with a stride for each 8 rows.

    Args:
        block: `[block tokens, stride, 2, 128]` in VMEM, 16-bit numbers. An odd stride spreads the rows of one group
            over all banks of the memory.
        group: which row of words of each token.
        tokens: how many; even.
        emulated: whether this is interpreted.
    """
    if emulated:
        rows = block[:tokens, group]
        words = lax.bitcast_convert_type(jnp.swapaxes(rows, 1, 2), jnp.uint32)
        return words[0::2], words[1::2]
    stride = block.shape[1]
    view = block.bitcast(jnp.uint32).reshape(block.shape[0] * stride, LANES)
    even = view[pl.ds(group, tokens // 2, 2 * stride)]
    odd = view[pl.ds(group + stride, tokens // 2, 2 * stride)]
    return even, odd


def lower_halves(words: Words, dtype: Any, live: jax.Array | None, emulated: bool) -> jax.Array:
    """The even combined row of each token: `dtype[tokens, 128]`; see `upper_halves`."""
    even, odd = words
    if emulated:
        merged = (even & jnp.uint32(_LOWER)) | (odd << 16)
    else:
        halves = [pltpu.bitcast(part, jnp.int32) for part in (even, odd)]
        merged = pltpu.bitcast(_pack(halves, packed_dtype=jnp.int16), jnp.uint32)
    return _rows_of(merged if live is None else merged & live, dtype, emulated)


def upper_halves(words: Words, dtype: Any, live: jax.Array | None, select: bool, emulated: bool) -> jax.Array:
    """The odd combined row of each token: `dtype[tokens, 128]`.

    Args:
        words: the words.
        dtype: what the halves are.
        live: `u32[tokens / 2, 128]`, ones where a token is live: the others' numbers become 0. None: all are.
        select: whether to merge by a choice between 16-bit numbers, one operation less on devices that have it.
        emulated: whether this is interpreted.
    """
    even, odd = words
    if select:
        is_even = (lax.broadcasted_iota(jnp.int32, (2 * even.shape[0], LANES), 0) & 1).astype(jnp.int16) == 0
        merged = jnp.where(is_even, _rows_of(even >> 16, dtype, emulated), _rows_of(odd, dtype, emulated))
        if live is None:
            return merged
        merged = pltpu.bitcast(merged, jnp.uint32)
    else:
        merged = (even >> 16) | (odd & jnp.uint32(_UPPER))
    return _rows_of(merged if live is None else merged & live, dtype, emulated)


def live_words(first: jax.Array | None, end: jax.Array, tokens: int) -> jax.Array:
    """Ones where first <= token < end: `u32[tokens / 2, 128]`, token 2i in row i's lower half. No first: from 0 on."""
    even = 2 * lax.broadcasted_iota(jnp.int32, (tokens // 2, LANES), 0)
    nothing = jnp.uint32(0)

    def half(token: jax.Array, mask: int) -> jax.Array:
        inside = token < end if first is None else (token >= first) & (token < end)
        return jnp.where(inside, jnp.uint32(mask), nothing)

    return half(even, _LOWER) | half(even + 1, _UPPER)


def _rows_of(words: jax.Array, dtype: Any, emulated: bool) -> jax.Array:
    """Words of two tokens each as rows of one: `[n, 128]` to `dtype[2n, 128]`, the lower halves first."""
    if emulated:
        pairs = lax.bitcast_convert_type(words, dtype)
        return jnp.moveaxis(pairs, 2, 1).reshape(2 * words.shape[0], LANES)
    rows: jax.Array = pltpu.bitcast(words, dtype)
    return rows
