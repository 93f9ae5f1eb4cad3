"""Attention over latents on a GPU (MLA): 64 rows in a block, which are heads of one query, or of a few where heads are.

Latents are keys and values at once, and are copied once. Both consumers multiply all keys with the same queries, and
each mixes half of the latents' columns: the sums of all columns have no room in the registers of one, and scores that
one of them made for both would have to pass through shared memory, of which nothing is left. Of the products a third
is made twice so; blocks of one sequence's heads read the same tiles at about the same time, the second from the cache.

Sequences with one query each have their keys split over blocks, and leave parts; the others' queries are a block each,
and finish.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from ..dispatch import kernel_output
from ..options import MlaOptions
from ..ragged import clean_table, owners, ragged
from ..score_units import exponent_unit, scores_of
from .combine import Parts, combine
from .dead_keys import clean_latents, masked
from .geometry import CONSUMERS, ROWS, WIDEST_SWIZZLE, LatentGeometry, itemsize_of, swizzle_of
from .item import Inputs, Item, Scratch
from .launch import Interpret, launch, memory
from .products import Warpgroup, by_row, commit, settled
from .schedule import Blocks, Field, decode_items, most_extras, prefill_blocks
from .walk import LOWEST, THREAD, Sums, bounds, exact_tanh, fixed_zero, folded, in_roles

__all__ = ["attend"]


def attend(
    queries: jax.Array,  # [T, Hq, R]
    rotary_queries: jax.Array,  # [T, Hq, Dr]
    latent_pages: jax.Array,  # [P, page, width]
    kv_lens: jax.Array,  # i32[S]
    page_table: jax.Array,  # i32[S, pages_per_seq]
    cu_q_lens: jax.Array,  # i32[S + 1]
    num_seqs: jax.Array,  # i32[1]
    *,
    options: MlaOptions,
    interpret: Interpret = None,
) -> jax.Array:
    """Attention of a ragged batch of absorbed queries over latents (ATT-1 to 4, ATT-6).

    Sequences with one query each go to the kernel that splits keys, wherever they stand in the batch, all others to the
    one that splits queries. Which they are is found out on the device.

    Args:
        queries: `[T, Hq, R]`, bfloat16 or float16.
        rotary_queries: `[T, Hq, Dr]`, the same dtype.
        latent_pages: `[P, page, width]`, the same dtype.
        kv_lens: `i32[S]`: tokens of each sequence, its queries included.
        page_table: `i32[S, pages_per_seq]`.
        cu_q_lens: `i32[S + 1]`: where each sequence's queries begin.
        num_seqs: `i32[1]`: sequences that there are.
        options: the options; `support.unsupported_latents` must be None for them.
        interpret: None, or the parameters of JAX's interpreter for GPUs.

    Returns:
        `[T, Hq, R]`, of the queries' dtype; zeros in rows that belong to no sequence.
    """
    num_tokens, num_heads, _ = queries.shape
    if 0 in (num_tokens, *page_table.shape):
        return jnp.zeros_like(queries)
    num_pages, page_size = latent_pages.shape[:2]
    num_rows, pages_per_seq = page_table.shape
    geometry = LatentGeometry(num_heads, options.latent_dim, options.rotary_dim, queries.dtype, page_size)
    batch = ragged(kv_lens, cu_q_lens, num_seqs, num_tokens, page_size * pages_per_seq)
    table = clean_table(page_table, num_pages)
    extras = most_extras(num_rows, geometry.heads, -(-page_size * pages_per_seq // geometry.tiles.live))
    decoding = decode_items(
        batch,
        batch.starts[:-1],
        table,
        num_heads=geometry.heads,
        extras=extras,
        tiles=geometry.tiles,
        options=options,
    )
    shapes: dict[str, Any] = {"geometry": geometry, "options": options, "interpret": interpret}
    rows = (_by_block(queries, geometry), _by_block(rotary_queries, geometry))
    parts = decode_parts(*rows, latent_pages, table, decoding.items, **shapes)
    decoded = combine(parts, decoding.begins, decoding.counts, None, **shapes)

    _, owner, owned = owners(batch, num_tokens)
    alone = owned & (batch.q_lens == 1)[owner]
    out = jnp.where(alone[:, None, None], decoded[owner], jnp.zeros((), queries.dtype))
    if num_tokens < 2:
        return out
    blocks = prefill_blocks(
        batch,
        batch.starts[:-1],
        table,
        num_tokens=num_tokens,
        block_queries=geometry.block_queries,
        block_rows=ROWS,
        group=geometry.query_rows,
        tiles=geometry.tiles,
        options=options,
    )
    long = finished(*rows, latent_pages, table, blocks, **shapes)
    return jnp.where(blocks.used[:, None, None], long, out)


def decode_parts(
    queries: jax.Array,  # [rows, R]
    rotary_queries: jax.Array,  # [rows, Dr]
    latent_pages: jax.Array,  # [P, page, width]
    table: jax.Array,  # i32[S, pages_per_seq]
    items: jax.Array,  # i32[len(Field), N]
    *,
    geometry: LatentGeometry,
    options: MlaOptions,
    interpret: Interpret = None,
) -> Parts:
    """Attention of sequences with one query each, in parts (ATT-1, ATT-3, ATT-6).

    Reads the latents of the items once for each block of heads, of which all but the first find them in the device's
    cache, and writes O(N * Hq * R).

    Args:
        queries: `[rows, R]`, as `Inputs` has them.
        rotary_queries: `[rows, Dr]`, the same.
        latent_pages: `[P, page, width]`.
        table: `i32[S, pages_per_seq]`: -1 for what names no page.
        items: as `decode_items` makes them, from where the sequences' queries begin in the batch.
        geometry: the shapes.
        options: the options.
        interpret: None, or the parameters of the interpreter.
    """
    heads, count, half = geometry.heads, items.shape[1], geometry.half
    num_rows = count * geometry.part_rows + ROWS
    out_type = (
        kernel_output((num_rows, geometry.latent_dim), jnp.float32),
        kernel_output((num_rows,), jnp.float32),
        kernel_output((num_rows,), jnp.float32),
    )
    group = Warpgroup(interpret is not None, itemsize_of(geometry.dtype), swizzle=WIDEST_SWIZZLE)

    def body(*refs: Any, **scratch: Any) -> None:
        *given, mixed, tops, totals = refs
        index, head, wg = (jax.lax.axis_index(name) for name in ("item", "head", THREAD))
        item: Item[LatentGeometry] = Item(geometry, options, _inputs(*given), Scratch(**scratch), group, index, head)
        rows = pl.ds((index * heads + head) * ROWS, ROWS)

        def consume(own: Item[LatentGeometry]) -> None:
            sums = _consume(own, wg)
            mixed.at[rows, pl.ds(wg * half, half)][...] = sums.mixed

            @pl.when(wg == 0)
            def _() -> None:
                tops.at[rows][...] = sums.top
                totals.at[rows][...] = sums.total

        in_roles(item, wg, partial(_produce, copied=1), consume)

    grid = {"item": count, "head": heads}
    scratch = _scratch(geometry, 1, interpret is not None)
    inputs = (items, table, queries, rotary_queries, latent_pages)
    return Parts(*launch(body, scratch, out_type, grid, *inputs, name="paged_latents", interpret=interpret))


def finished(
    queries: jax.Array,  # [rows, R]
    rotary_queries: jax.Array,  # [rows, Dr]
    latent_pages: jax.Array,  # [P, page, width]
    table: jax.Array,  # i32[S, pages_per_seq]
    blocks: Blocks,
    *,
    geometry: LatentGeometry,
    options: MlaOptions,
    interpret: Interpret = None,
) -> jax.Array:
    """Attention of sequences with two queries or more (ATT-1 to 3, ATT-6).

    The blocks with most keys, the last ones of their sequences, are begun first.

    Args:
        queries: `[rows, R]`, as `Inputs` has them.
        rotary_queries: `[rows, Dr]`, the same.
        latent_pages: `[P, page, width]`.
        table: `i32[S, pages_per_seq]`: -1 for what names no page.
        blocks: as `prefill_blocks` makes them, from where the sequences' queries begin in the batch.
        geometry: the shapes.
        options: the options.
        interpret: None, or the parameters of the interpreter.

    Returns:
        `[T, Hq, R]` of the geometry's dtype; anything for tokens in no block.
    """
    heads, count, size = geometry.heads, blocks.items.shape[1], geometry.query_rows
    group = Warpgroup(interpret is not None, itemsize_of(geometry.dtype), swizzle=WIDEST_SWIZZLE)

    def body(*refs: Any, **scratch: Any) -> None:
        *given, first, end, out = refs
        block, head, wg = (jax.lax.axis_index(name) for name in ("block", "head", THREAD))
        inputs, own = _inputs(*given)._replace(first=first, end=end), Scratch(**scratch)
        item: Item[LatentGeometry] = Item(geometry, options, inputs, own, group, count - 1 - block, head)

        def consume(item: Item[LatentGeometry]) -> None:
            sums = _consume(item, wg)
            # The outputs take the queries' place, which the other consumer may still read.
            plgpu.barrier_arrive(own.cleaned)
            plgpu.barrier_wait(own.cleaned)
            through = own.queries.at[wg]
            share = 1.0 / jnp.where(sums.total == 0.0, 1.0, sums.total)
            through[...] = (sums.mixed * by_row(share, sums.mixed.shape)).astype(geometry.dtype)
            commit()
            for query in range(geometry.block_queries):

                @pl.when(query < item.field(Field.QUERIES))
                def _write(query: int = query) -> None:
                    rows = pl.ds(((item.field(Field.TOKEN) + query) * heads + head) * size, size)
                    columns = pl.ds(wg * geometry.half, geometry.half)
                    plgpu.copy_smem_to_gmem(through.at[pl.ds(query * size, size)], out.at[rows, columns])

            plgpu.wait_smem_to_gmem(0)

        in_roles(item, wg, partial(_produce, copied=geometry.block_queries), consume)

    inputs = (blocks.items, table, queries, rotary_queries, latent_pages, blocks.first, blocks.end)
    done: jax.Array = launch(
        body,
        _scratch(geometry, geometry.block_queries, interpret is not None),
        kernel_output(queries.shape, geometry.dtype),
        {"block": count, "head": heads},
        *inputs,
        name="paged_latents_prefill",
        interpret=interpret,
    )
    return done.reshape(-1, heads, size, geometry.latent_dim)[:, :, : geometry.group].reshape(
        -1, geometry.num_heads, geometry.latent_dim
    )


def _inputs(items: Any, table: Any, queries: Any, rotary_queries: Any, pages: Any) -> Inputs:
    return Inputs(items, table, queries, pages, rotary_queries=rotary_queries)


def _by_block(
    queries: jax.Array,  # [T, Hq, D]
    geometry: LatentGeometry,
) -> jax.Array:
    """Queries as they are copied, `[T * blocks * rows, D]`: as they are, where blocks of heads are whole eights.

    A slice of the caller's gets an array of its own, as in `update`.
    """
    num_tokens, _, dim = queries.shape
    blocks: jax.Array = settled(queries).reshape(num_tokens, geometry.heads, geometry.group, dim)
    more = geometry.query_rows - geometry.group
    if more:
        blocks = jnp.pad(blocks, ((0, 0), (0, 0), (0, more), (0, 0)))
    return blocks.reshape(-1, dim)


def _scratch(geometry: LatentGeometry, copied: int, emulated: bool) -> dict[str, Any]:
    """The memory of a block with a number of queries, by the names of `Scratch`."""
    tiles, stages, dtype = geometry.tiles, geometry.stages, jnp.dtype(geometry.dtype)

    def tile(*shape: int) -> Any:
        return memory(shape, dtype, swizzle_of(shape[-1], itemsize_of(dtype)), emulated)

    copies = CONSUMERS + 1  # of the halves, and of the rotary part
    return {
        "queries": tile(CONSUMERS, ROWS, geometry.half),
        "rotary_queries": tile(ROWS, geometry.rotary_dim),
        "values": tile(stages, CONSUMERS, tiles.keys, geometry.half),
        "keys": tile(stages, tiles.keys, geometry.rotary_dim),
        "queries_here": plgpu.Barrier(num_arrivals=copies * copied),
        "keys_here": plgpu.Barrier(num_arrivals=copies * tiles.pieces, num_barriers=stages),
        "keys_done": plgpu.Barrier(num_arrivals=CONSUMERS, num_barriers=stages),
        "cleaned": plgpu.Barrier(num_arrivals=CONSUMERS),
    }


def _produce(item: Item[LatentGeometry], copied: int) -> None:
    """Copies the item's queries, a number of them, and tiles."""
    geometry, options, scratch, inputs = item.geometry, item.options, item.scratch, item.inputs
    assert isinstance(options, MlaOptions)
    tiles, stages, half, size = geometry.tiles, geometry.stages, geometry.half, geometry.query_rows
    columns = [pl.ds(consumer * half, half) for consumer in range(CONSUMERS)]
    most = inputs.queries.shape[0] // (geometry.heads * size) - 1
    for query in range(copied):
        # Behind the last token of all it is copied again: for rows that nobody writes.
        token = jnp.minimum(item.field(Field.TOKEN) + query, most)
        rows, place = pl.ds((token * geometry.heads + item.head) * size, size), pl.ds(query * size, size)
        for consumer in range(CONSUMERS):
            plgpu.copy_gmem_to_smem(
                inputs.queries.at[rows, columns[consumer]], scratch.queries.at[consumer, place], scratch.queries_here
            )
        plgpu.copy_gmem_to_smem(inputs.rotary_queries.at[rows], scratch.rotary_queries.at[place], scratch.queries_here)
    first, end = item.field(Field.FIRST_TILE), item.field(Field.END_TILE)
    rotary = pl.ds(options.rotary_start, geometry.rotary_dim)

    def step(turn: jax.Array, carry: None) -> None:
        tile, slot = first + turn, jax.lax.rem(turn, jnp.int32(stages))
        # Read before the wait: the ids are on their way while the slot is still in use.
        pages = [jnp.maximum(item.page(tile, piece), 0) for piece in range(tiles.pieces)]

        @pl.when(turn >= stages)
        def _free() -> None:
            plgpu.barrier_wait(scratch.keys_done.at[slot])

        arrived = scratch.keys_here.at[slot]
        for piece, page in enumerate(pages):
            slots, there = pl.ds(item.offset(tile, piece), tiles.rows), pl.ds(piece * tiles.rows, tiles.rows)
            for consumer in range(CONSUMERS):
                latents = inputs.pages.at[page, slots, columns[consumer]]
                plgpu.copy_gmem_to_smem(latents, scratch.values.at[slot, consumer, there], arrived)
            plgpu.copy_gmem_to_smem(inputs.pages.at[page, slots, rotary], scratch.keys.at[slot, there], arrived)
        return carry

    jax.lax.fori_loop(0, end - first, step, None)


def _consume(item: Item[LatentGeometry], wg: jax.Array) -> Sums:
    """Multiplies all tiles, and mixes a consumer's half of the columns."""
    geometry, scratch, group = item.geometry, item.scratch, item.group
    stages, first, end = geometry.stages, item.field(Field.FIRST_TILE), item.field(Field.END_TILE)
    low, high = bounds(item, pl.ds(0, ROWS))
    unit = exponent_unit(item.options)
    plgpu.barrier_wait(scratch.queries_here)

    def step(turn: jax.Array, sums: Sums) -> Sums:
        tile, slot = first + turn, jax.lax.rem(turn, jnp.int32(stages))
        plgpu.barrier_wait(scratch.keys_here.at[slot])
        clean_latents(item, slot, tile, wg)
        # As if the queries' place changed: addresses of all their columns, kept over all tiles, would be spilled.
        halves = [
            (scratch.queries.at[half + fixed_zero(tile)], scratch.values.at[slot, half]) for half in range(CONSUMERS)
        ]
        scores = group.scores(*halves, (scratch.rotary_queries, scratch.keys.at[slot]))
        scores = masked(item, scores_of(scores, item.options, exact_tanh), tile, low, high)
        (mixed, top, total), shares = folded(sums, scores, unit, geometry.dtype)
        mixed = group.mix(mixed, shares, scratch.values.at[slot, wg])

        @pl.when(turn + stages < end - first)
        def _release() -> None:
            plgpu.barrier_arrive(scratch.keys_done.at[slot])

        return Sums(mixed, top, total)

    begin = Sums(group.full((ROWS, geometry.half), 0.0), group.full((ROWS,), LOWEST), group.full((ROWS,), 0.0))
    return Sums(*jax.lax.fori_loop(0, end - first, lambda turn, sums: step(turn, Sums(*sums)), begin))
