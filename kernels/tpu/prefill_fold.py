"""How the general kernel folds a block of keys into what a block of queries knows: flash attention, head by head.

Scores are kept in the units of `score_units`. A row's maximum stands in all of 128 lanes; its sum is kept lane by lane,
and added up once at the end. A block that all queries read as a whole is not masked; of the others the scores are
masked, and the numbers of slots that nobody reads, which may be NaN, are zeroed.
"""

from functools import partial, reduce

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from ..layout import LANES
from ..masks import end_key, first_key, skips_keys
from ..score_units import exponent_unit, scores_of
from .prefill_copies import PageCopies, start_pages, start_some
from .prefill_memory import Kernel
from .prefill_schedule import Field
from .prefill_words import load_words, numbers_in

__all__ = ["LOWEST", "fold_in"]

LOWEST = -1.0e38
"""What maxima begin with: no score is lower, and what is masked is lower by as much again."""

_MASKED = 2 * LOWEST

_UNROLLED_COPIES = 32
"""Copies started amid the work on a few heads; more are started in a loop before it, which takes 14 bundles for
each."""


def fold_in(kernel: Kernel, block: jax.Array, keys: jax.Array, buffer: jax.Array, copies: PageCopies) -> None:
    """Folds a key block that has arrived into a query block: into few of its rows if it has few queries.

    Args:
        kernel: the kernel.
        block: the query block.
        keys: which of its key blocks.
        buffer: where that lies.
        copies: those of a later key block, to be started on the way: the scalar unit has little else to do.
    """
    if kernel.refs.words is not None:
        regroup(kernel, buffer)
    masked = needs_mask(kernel, block, keys)
    for rows, right in row_choices(kernel, block):
        for mask, wanted in ((True, masked), (False, jnp.logical_not(masked))):
            fold = partial(fold_heads, kernel, block, keys, buffer, copies, rows, masked=mask)
            pl.when(jnp.logical_and(right, wanted))(fold)


def row_choices(kernel: Kernel, block: jax.Array) -> tuple[tuple[int, jax.Array], ...]:
    """The numbers of rows that there is code for, each with whether it is the one for a query block."""
    geometry = kernel.geometry
    if geometry.small_rows == geometry.rows:
        return ((geometry.rows, jnp.bool_(True)),)
    few = kernel.of(Field.COUNT, block) * geometry.group <= geometry.small_rows
    return (geometry.small_rows, few), (geometry.rows, jnp.logical_not(few))


def needs_mask(kernel: Kernel, block: jax.Array, keys: jax.Array) -> jax.Array:
    """Whether a key block holds anything that one of the queries doesn't read, `bool[]`."""
    geometry = kernel.geometry
    first = keys * geometry.block_keys
    partly = jnp.logical_or(
        first < kernel.of(Field.WHOLE_FIRST, block), first + geometry.columns > kernel.of(Field.WHOLE_END, block)
    )
    return jnp.logical_or(partly, kernel.refs.counts[2] + (geometry.columns - geometry.block_keys) > 0)


def regroup(kernel: Kernel, buffer: jax.Array) -> None:
    """Sorts a v2 block's words by word row: in its tiles only rows known at compile time can be found."""
    geometry, refs = kernel.geometry, kernel.refs
    assert refs.words is not None
    for tile in range(geometry.column_tiles):
        for row in range(geometry.word_rows):
            refs.words[tile, row] = load_words(refs.kv_buffer.at[buffer], tile, row, geometry, kernel.emulated)


def fold_heads(
    kernel: Kernel, block: jax.Array, keys: jax.Array, buffer: jax.Array, copies: PageCopies, rows: int, *, masked: bool
) -> None:
    """Folds a key block into the first ``rows`` rows of all heads.

    A few heads are unrolled, and the products of each are asked for before the weights of the one before it: the matrix
    unit then works on the one while the vector units work on the other. Copies are started beside the last of them: for
    all that the compiler knows they write where keys are loaded from, so that no load may pass them.
    """
    geometry = kernel.geometry
    unrolled = geometry.unrolled_steps(rows)
    turns = geometry.steps // unrolled
    share = -(-geometry.blocks.pages // turns)
    spread = share * geometry.column_tiles <= _UNROLLED_COPIES
    if not spread:
        start_pages(copies)
    if masked:
        write_masks(kernel, block, keys, rows)

    def turn(i: jax.Array, _: None) -> None:
        pending = None
        for further in range(unrolled):
            for at in range(geometry.heads_per_step):
                step = i * unrolled + further
                head = step * geometry.heads_per_step + at
                k, v = keys_and_values(kernel, step, at, buffer, masked)
                x = scores(kernel, head, rows, k)
                if masked:
                    x = jnp.minimum(x, kernel.refs.most[:rows])
                if pending is not None:
                    accumulate(kernel, *pending)
                pending = head, x, v
        assert pending is not None
        if spread:
            start_some(copies, i * share, share)
        accumulate(kernel, *pending)

    lax.fori_loop(0, turns, turn, None)


def write_masks(kernel: Kernel, block: jax.Array, keys: jax.Array, rows: int) -> None:
    """Writes the masks of a key block, once for all heads: what no query reads, and what each of the rows doesn't."""
    refs = kernel.refs
    refs.live[...] = jnp.where(live_slots(kernel, block, keys), jnp.int32(-1), jnp.int32(0))
    refs.most[:rows] = jnp.where(readable(kernel, block, keys, rows), jnp.inf, _MASKED)
    pl.when(refs.counts[2] != 0)(partial(mask_absent, kernel, block, keys, rows))


def live_slots(kernel: Kernel, block: jax.Array, keys: jax.Array) -> jax.Array:
    """Which slots of a key block any query of a block reads, `bool[columns, 128]`: the others may hold anything."""
    geometry = kernel.geometry
    slot = lax.broadcasted_iota(jnp.int32, kernel.refs.live.shape, 0)
    first, end = (kernel.of(field, block) - keys * geometry.block_keys for field in (Field.FIRST_KEY, Field.END_KEY))
    return (slot >= first) & (slot < jnp.minimum(end, geometry.block_keys))


def mask_absent(kernel: Kernel, block: jax.Array, keys: jax.Array, rows: int) -> None:
    """Masks, for all queries, the slots of a key block whose entry of the table names no page."""
    geometry, refs = kernel.geometry, kernel.refs
    first = keys * geometry.blocks.pages
    entry = kernel.of(Field.SEQUENCE, block) * geometry.pages_per_seq + first

    def page(i: jax.Array, _: None) -> None:
        def here(slot: jax.Array) -> jax.Array:
            return (slot >= i * geometry.page_size) & (slot < (i + 1) * geometry.page_size)

        @pl.when(refs.table[entry + i] < 0)
        def mask() -> None:
            row = lax.broadcasted_iota(jnp.int32, refs.live.shape, 0)
            column = lax.broadcasted_iota(jnp.int32, (rows, geometry.columns), 1)
            refs.live[...] = jnp.where(here(row), 0, refs.live[...])
            refs.most[:rows] = jnp.where(here(column), _MASKED, refs.most[:rows])

    lax.fori_loop(0, jnp.minimum(geometry.blocks.pages, geometry.pages_per_seq - first), page, None)


def readable(kernel: Kernel, block: jax.Array, keys: jax.Array, rows: int) -> jax.Array:
    """Which keys of a key block each row reads: `bool[rows, columns]`."""
    geometry = kernel.geometry
    position = kernel.of(Field.POSITION, block) + token_of_row(rows, geometry.group)
    end = end_key(position, kernel.of(Field.KV_LEN, block), kernel.options) - keys * geometry.block_keys
    end = jnp.minimum(end, geometry.block_keys)
    column = lax.broadcasted_iota(jnp.int32, (rows, geometry.columns), 1)
    if not skips_keys(kernel.options):
        return column < end
    first = first_key(position, kernel.options) - keys * geometry.block_keys
    return (column >= first) & (column < end)


def token_of_row(rows: int, group: int) -> jax.Array:
    """The token of each row, `i32[rows, 1]`: row // group, by a multiplication that is exact for so few rows."""
    factor = -(-(2**20) // group)
    assert rows * max(group, factor) < 2**31
    assert rows * group <= 2**20
    return lax.broadcasted_iota(jnp.int32, (rows, 1), 0) * factor >> 20


def keys_and_values(
    kernel: Kernel, step: jax.Array, at: int, buffer: jax.Array, masked: bool
) -> tuple[jax.Array, jax.Array]:
    """The keys and values of one head, `[columns, n]` each.

    Args:
        kernel: the kernel.
        step: whose word rows the head lies in.
        at: which head of the step.
        buffer: the key block's buffer.
        masked: whether the numbers of slots that no query reads are zeros.
    """
    geometry = kernel.geometry
    row = geometry.layout.rows_per_head * at

    def numbers(row: int, tiles: int) -> jax.Array:
        word, lane = divmod(row, geometry.packing)
        parts = []
        for tile in range(tiles):
            words = words_of(kernel, buffer, tile, step * geometry.words_per_step + word)
            words = words & kernel.refs.live[...] if masked else words
            parts.append(numbers_in(words, lane, geometry.kv_dtype, geometry.compute_dtype))
        return jnp.concatenate(parts, axis=1)

    return numbers(row, geometry.key_tiles), numbers(row + geometry.layout.rows_per_head - 1, geometry.value_tiles)


def words_of(kernel: Kernel, buffer: jax.Array, tile: int, row: jax.Array) -> jax.Array:
    """A word row of a key block: `i32[columns, 128]`."""
    refs = kernel.refs
    if refs.words is not None:
        words: jax.Array = refs.words[tile, row]
        return words
    return load_words(refs.kv_buffer.at[buffer], tile, row, kernel.geometry, kernel.emulated)


def scores(kernel: Kernel, head: jax.Array, rows: int, keys: jax.Array) -> jax.Array:
    """The scores of a head's first rows, unmasked: `f32[rows, columns]`."""
    x = lax.dot_general(
        kernel.refs.rows[head, :rows],
        keys,
        (((1,), (1,)), ((), ())),
        precision=_precision(keys),
        preferred_element_type=jnp.float32,
    )
    return scores_of(x, kernel.options)


def accumulate(kernel: Kernel, head: jax.Array, x: jax.Array, values: jax.Array) -> None:
    """Folds scores `f32[rows, columns]`, and the values they weigh, into a head's maxima, sums and accumulators.

    Where the values leave columns of the matrix unit empty, a column of ones among them sums the weights.
    """
    refs, rows, unit = kernel.refs, x.shape[0], exponent_unit(kernel.options)
    parts = [x[:, at : at + LANES] for at in range(0, x.shape[1], LANES)]
    before = refs.maxima[head, :rows]
    maxima = jnp.maximum(before, jnp.max(reduce(jnp.maximum, parts), axis=1, keepdims=True))
    shrink = jnp.exp2((before - maxima) * unit)
    weights = [jnp.exp2((part - maxima) * unit) for part in parts]
    width = values.shape[1]
    if kernel.geometry.sums_by_products:
        lane = lax.broadcasted_iota(jnp.int32, (values.shape[0], LANES), 1)
        values = jnp.concatenate([values, jnp.where(lane == 0, 1.0, 0.0).astype(values.dtype)], axis=1)
    weighed = jnp.dot(
        jnp.concatenate([part.astype(values.dtype) for part in weights], axis=1),
        values,
        precision=_precision(values),
        preferred_element_type=jnp.float32,
    )
    added = weighed[:, width:] if kernel.geometry.sums_by_products else reduce(jnp.add, weights)
    refs.maxima[head, :rows] = maxima
    refs.sums[head, :rows] = refs.sums[head, :rows] * shrink + added
    wide = jnp.concatenate([shrink] * (width // LANES), axis=1)
    refs.accumulators[head, :rows] = refs.accumulators[head, :rows] * wide + weighed[:, :width]


def _precision(numbers: jax.Array) -> lax.Precision:
    """How exactly numbers are multiplied: float32 as float32 (ATT-6), bfloat16 as it is."""
    return lax.Precision.HIGHEST if numbers.dtype == jnp.dtype(jnp.float32) else lax.Precision.DEFAULT
