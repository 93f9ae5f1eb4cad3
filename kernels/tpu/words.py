"""Keys and values out of 32-bit words: what a cache looks like in VMEM, and the way out of it.

A row of 128 words holds as many combined rows of one token as numbers share a word: two of 16 bits, four of 8, the
first in the lowest bits. The matrix unit wants rows of *tokens*, as many of them in a word. So the words of every
second (fourth) token are loaded apart and merged, bytes first, then halves: at most three operations for each register
and stage, no move across lanes or sublanes, and the tokens come out in their order. Numbers of 8 bits stay such: the
matrix unit widens them where they come in.

A load with a stride takes one operation where its 8 rows lie in different ones of 32 banks of memory (so the compiler's
schedules say), else up to 8. The tiles of v2 allow of no such stride between every second token. There each half, or
quarter, of a block's tokens is loaded as a whole, so that the first token of all comes out beside the first of the next
half: a softmax takes tokens in any order, if keys and values share it. `token_of` says which stands where.

TPU interpret mode knows no memory of words and no packing: each function here has a form for it (``emulated``), and
nothing else of the kernel differs between the two.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ..layout import LANES

__all__ = ["Words", "combined_row", "live_words", "load_words", "masked_rows", "token_of"]

Ref = Any
Words = tuple[jax.Array, ...]
"""``u32[tokens / n, 128]`` for each of the n numbers in a word: in v3 of the tokens i, i + n, i + 2n and so on, in v2
of the i-th part of them."""

_pack: Callable[..., jax.Array] = pltpu.pack_elementwise
_bitcast: Callable[..., jax.Array] = pltpu.bitcast

_TILE_ROWS = 8
"""Rows of words of a register."""

_UPPER_HALF = 0xFFFF0000
_LOWER_HALF = 0x0000FFFF
_EVEN_BYTES = 0x00FF00FF
_ODD_BYTES = 0xFF00FF00


def load_words(block: Ref, group: int, packing: int, tokens: int, emulated: bool) -> Words:
    """The words of one group of a block's first tokens: a load with a stride for each 8 rows.

    Args:
        block: `[block tokens, stride, packing, 128]` in VMEM, numbers of 16 or 8 bits (v3), the stride odd. Or
            `[block tokens, rows, 128]` (v2), the rows an odd number of tiles.
        group: which row of words of each token.
        packing: numbers that share a word.
        tokens: how many; a multiple of packing.
        emulated: whether this is interpreted.
    """
    part, in_v3 = tokens // packing, len(block.shape) == 4
    if emulated:
        rows = block[:tokens, group] if in_v3 else block[:tokens, pl.ds(group * packing, packing)]
        words = lax.bitcast_convert_type(jnp.swapaxes(rows, 1, 2), jnp.uint32)
        return tuple(words[at::packing] if in_v3 else words[at * part : (at + 1) * part] for at in range(packing))
    if in_v3:
        stride = block.shape[1]
        view = block.bitcast(jnp.uint32).reshape(block.shape[0] * stride, LANES)
        return tuple(view[pl.ds(group + at * stride, part, packing * stride)] for at in range(packing))
    stride = block.shape[1] // packing
    view = block.reshape(block.shape[0] * block.shape[1], LANES).bitcast(jnp.uint32)
    return tuple(view[pl.ds(group + at * part * stride, part, stride)] for at in range(packing))


def token_of(place: jax.Array, tokens: int, packing: int, in_v3: bool) -> jax.Array:
    """Which token stands in each place of a `combined_row` of tokens: `i32[...]`, the shape of the places."""
    return place if in_v3 else (place & (packing - 1)) * (tokens // packing) + (place >> (packing.bit_length() - 1))


def combined_row(words: Words, row: int, dtype: Any, live: jax.Array | None, select: bool, emulated: bool) -> jax.Array:
    """One combined row of each token: `dtype[tokens, 128]`.

    Args:
        words: the words.
        row: which of the rows that share them.
        dtype: what the numbers are.
        live: `u32[tokens / packing, 128]`, ones where a token is live: the others' numbers become 0. None: all are.
        select: whether to merge upper halves by a choice between 16-bit numbers, one operation less on devices that
            have it.
        emulated: whether this is interpreted.
    """
    if len(words) == 4:
        # Merged two by two, a word's lower half holds a row of two tokens, its upper half the row after the next.
        row, odd = divmod(row, 2)
        words = tuple(_merged_bytes(words[at : at + 2], bool(odd), emulated) for at in (0, 2))
    if row == 0:
        merged = _merged_lower_halves(words, emulated)
    else:
        merged = _merged_upper_halves(words, select, emulated)
    return _rows_of(merged if live is None else merged & live, dtype, emulated)


def live_words(first: jax.Array | None, end: jax.Array, tokens: int, packing: int, in_v3: bool) -> jax.Array:
    """Ones where first <= token < end, for `combined_row`: `u32[tokens / packing, 128]`.

    Args:
        first: `i32[]`; None: from 0 on.
        end: `i32[]`.
        tokens: how many.
        packing: tokens that share a word.
        in_v3: whether they are in their order.
    """
    row = lax.broadcasted_iota(jnp.int32, (tokens // packing, LANES), 0)
    bits = 32 // packing
    if in_v3:
        words = _words_before(end, row, packing)
        return (words if first is None else words & ~_words_before(first, row, packing)).astype(jnp.uint32)
    words = jnp.zeros(row.shape, jnp.uint32)
    for at in range(packing):
        token = token_of(packing * row + at, tokens, packing, in_v3)
        inside = token < end if first is None else (token >= first) & (token < end)
        words = words | jnp.where(inside, jnp.uint32(((1 << bits) - 1) << (bits * at)), jnp.uint32(0))
    return words


def _words_before(end: jax.Array, row: jax.Array, packing: int) -> jax.Array:
    """Ones where a token stands before the end, for rows of words of tokens in their order: `i32`, the rows' shape.

    Whole words but for one: four operations for each register.
    """
    whole, rest = end >> (packing.bit_length() - 1), end & (packing - 1)
    part = (jnp.int32(1) << (rest * (32 // packing))) - 1
    return jnp.where(row < whole, jnp.int32(-1), jnp.where(row == whole, part, jnp.int32(0)))


def masked_rows(rows: jax.Array, live: jax.Array, emulated: bool) -> jax.Array:
    """Rows of tokens, those of dead ones zero: NaN, too. One operation for each register.

    Args:
        rows: `[tokens, 128]`, of 32, 16 or 8 bits.
        live: what `live_words` says of the tokens, in their order.
        emulated: whether this is interpreted.
    """
    if not emulated:
        return _bitcast(_bitcast(rows, jnp.uint32) & live, rows.dtype)
    bits = jnp.dtype(f"uint{8 * rows.dtype.itemsize}")
    kept = live if bits.itemsize == 4 else _rows_of(live, bits, emulated)
    return lax.bitcast_convert_type(lax.bitcast_convert_type(rows, bits) & kept, rows.dtype)


def _merged_bytes(words: Sequence[jax.Array], odd: bool, emulated: bool) -> jax.Array:
    """The even bytes of two tokens' words, or the odd ones, those of the first token in the even bytes."""
    first, second = words
    first, second = (first >> 8, second) if odd else (first, second << 8)
    if emulated:
        return _both(first & jnp.uint32(_EVEN_BYTES), second & jnp.uint32(_ODD_BYTES))
    return _chosen(first, second, jnp.int8)


def _merged_lower_halves(words: Sequence[jax.Array], emulated: bool) -> jax.Array:
    """The lower halves of two words in one, the first's in the lower."""
    first, second = words
    if emulated:
        return _both(first & jnp.uint32(_LOWER_HALF), second << 16)
    halves = [_bitcast(part, jnp.int32) for part in words]
    return _bitcast(_pack(halves, packed_dtype=jnp.int16), jnp.uint32)


def _merged_upper_halves(words: Sequence[jax.Array], select: bool, emulated: bool) -> jax.Array:
    """The upper halves of two words in one, the first's in the lower."""
    first, second = words
    if emulated or not select:
        return _both(first >> 16, second & jnp.uint32(_UPPER_HALF))
    return _chosen(first >> 16, second, jnp.int16)


def _both(these: jax.Array, those: jax.Array) -> jax.Array:
    """Words with the bits of two arrays."""
    words: jax.Array = these | those
    return words


def _chosen(even: jax.Array, odd: jax.Array, narrow: Any) -> jax.Array:
    """Words whose even narrow numbers are those of one array of words, the odd ones those of another."""
    evens, odds = _bitcast(even, narrow), _bitcast(odd, narrow)
    # Which are even is asked once for a register, not for each: all have the same answer.
    rows = _TILE_ROWS * 4 // jnp.dtype(narrow).itemsize
    is_odd = (lax.broadcasted_iota(jnp.int32, (rows, LANES), 0) & 1).astype(narrow)
    of_all = jnp.concatenate([is_odd] * (evens.shape[0] // rows))
    return _bitcast(jnp.where(of_all == 0, evens, odds), jnp.uint32)


def _rows_of(words: jax.Array, dtype: Any, emulated: bool) -> jax.Array:
    """Words of several tokens each as rows of one: `[n, 128]` to `dtype[packing * n, 128]`, the lowest bits first."""
    if emulated:
        parts = lax.bitcast_convert_type(words, dtype)
        return jnp.moveaxis(parts, 2, 1).reshape(parts.shape[2] * words.shape[0], LANES)
    return _bitcast(words, dtype)
