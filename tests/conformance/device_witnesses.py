"""Witnesses of the faults of caches and attention; see `catalogue_witnesses`."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import kvproof.spec
from kvproof.conformance.machines.ragged import Batch

from .catalogue_witnesses import tried

__all__ = ["DEVICE_WITNESSES"]


def rounded(out: Any) -> object:
    """A result as text: to two digits, which no rounding of the backends touches, with NaN."""
    return [f"{number:.2f}".replace("-0.00", "0.00") for number in np.asarray(out).astype(np.float64).ravel()]


def given(names: Any, pages: Any) -> Any:
    return names.ScaledPages(*pages) if isinstance(pages, tuple) else pages


def attended(batch: Batch, names: Any) -> object:
    """What attention gives for a batch."""
    queries, pages, *rest = batch.arguments()
    return rounded(names.ragged_paged_attention(queries, given(names, pages), *rest, **batch.keywords()))


def fused(batch: Batch, names: Any) -> object:
    """What attention gives that writes the batch first, and which slots were written."""
    queries, _, *rest = batch.arguments()
    pages = batch.kv_pages(before=True)
    out, pages = names.fused_ragged_paged_attention(queries, *batch.new_tokens(), pages, *rest, **batch.keywords())
    written = ~np.isnan(np.asarray(pages).reshape(batch.kind.layout.num_slots, -1)).all(axis=1)
    return rounded(out), np.flatnonzero(written).tolist()


def refused(names: Any, **changed: Any) -> object:
    """How attention ends that is given one thing wrong, and looks at its arrays."""
    words = ("queries", "kv_pages", "kv_lens", "page_table", "cu_q_lens", "num_seqs")
    good = dict(zip(words, ONE.arguments(), strict=True))
    arguments = [changed.get(name, value) for name, value in good.items()]
    return tried(lambda: np.asarray(names.ragged_paged_attention(*arguments, validate=True)).shape)


def one(setup: str, q_len: int, kv_len: int, pages: tuple[int, ...], **more: Any) -> Batch:
    return Batch(setup, (q_len,), (kv_len,), (pages,), (0,), **more)


ONE = one("plain", 1, 3, (1,))


def sized(names: Any, dtype: str, heads: int, size: int) -> object:
    made = names.RaggedPagesCacheMetaData.create(
        None, names.AxisRules(), dtype, 2, heads, 100, kv_head_dim_size=size, page_size=16, budget_bytes=2**24
    )
    return made.num_pages


def read_back(names: Any, dtype: str, size: int) -> object:
    """What a view shows of its keys and values when three tokens have been written."""
    metadata = names.RaggedPagesCacheMetaData(
        num_hidden_layers=1,
        max_model_length=8,
        num_kv_heads=2,
        k_headdim=size,
        v_headdim=size,
        page_size=4,
        num_pages=3,
        _kvdtype_str=dtype,
    )
    view = names.RaggedPagesCacheView.init(None, metadata, 0, names.AxisRules())
    table = names.PageTable(1, 2, 3)
    table.add_row([2], 0)
    step = names.MetadataBuilder(4, 1, 2, 3, token_sizes=[3]).build(table, [0], [3])
    tokens = np.arange(3 * 2 * size, dtype=np.float32).reshape(3, 2, size) % 7 - 3
    view = view.concatenate_to_cache(tokens, -tokens, step)
    return [(part.shape, rounded(part)) for part in map(np.asarray, (view.key_pages, view.value_pages))]


def last_slots(names: Any) -> object:
    """Which slots a slice of two tokens at offset 2 of the last page lands in."""
    pages = np.full((3, 4, 4, 1, 128), np.nan, np.float32)
    tokens = np.ones((2, 2, 16), np.float32)
    slices = np.array([[10], [0], [2]], np.int32)
    pages = names.kv_cache_update(pages, tokens, tokens, slices, num_slices=np.array([1], np.int32))
    return np.flatnonzero(~np.isnan(np.asarray(pages).reshape(12, -1)).all(axis=1)).tolist()


def minded(act: Callable[[Any], Any], names: Any) -> bool:
    """Whether the interpreter minds what a backend's kernels do, if there are any."""
    return hasattr(names, "tpu_kernels") and bool(act(names.tpu_kernels).minds)


def attends(kernels: Any) -> Any:
    batch = Batch("interpreted", (2, 1, 3), (5, 2, 9), ((1, 2), (3,), (4, 5, 6)), (0, 0, 0))
    return kernels.attend(*batch.arguments(), num_kv_heads=4, window=9)


def other_page(names: Any) -> object:
    """Whether interpreted kernels, if there are any, read of two pages the one that exists, and nothing else."""
    batch = one("interpreted, half", 1, 16, (3, 4))
    right, wrong = batch.arguments(), batch.arguments()
    right[2][0], right[3][0, 0], wrong[3][0, 0] = 8, 4, -1
    if not hasattr(names, "tpu_kernels"):
        return tried(lambda: True)
    expected = np.asarray(kvproof.spec.ragged_paged_attention(*right)).astype(np.float32)
    return tried(
        lambda: np.allclose(
            names.tpu_kernels.attend(*wrong, num_kv_heads=2).output.astype(np.float32), expected, atol=0.05
        )
    )


def far_from_zero(names: Any) -> bool:
    """Whether interpreted kernels, if there are any, attend to scores of some -1,000 as exactly as to others."""
    batch = Batch("interpreted", (2, 1), (7, 2), ((1, 2), (3,)), (0, 0), content="cold")
    right = np.asarray(kvproof.spec.ragged_paged_attention(*batch.arguments(), **batch.keywords()))
    if not hasattr(names, "tpu_kernels"):
        return True
    seen = names.tpu_kernels.attend(*batch.arguments(), num_kv_heads=4, window=9).output
    return bool((np.abs(seen - right) <= batch.tolerance(right, batch.kv_pages())).all())


def updates(kernels: Any) -> Any:
    tokens = np.ones((6, 4, 16), np.float32)
    pages = np.zeros((12, 4, 8, 128), np.float32)
    return kernels.update(pages, tokens, tokens, np.array([1, 5, 9, -1, -1, -1], np.int32))


def too_large(names: Any) -> object:
    """How an update of a cache ends that has a slot more than 32 bits number: of its shape, as nobody has so much."""
    tokens, slots = np.zeros((1, 2, 16), np.float32), np.zeros(1, np.int32)
    pages = np.broadcast_to(np.zeros((), np.float32), (2**27, 16, 4, 1, 128))
    if names is kvproof.spec:
        return tried(lambda: names.kv_cache_update(pages, tokens, tokens, slots))
    struct: Any = jax.ShapeDtypeStruct
    shapes = [struct(array.shape, array.dtype) for array in (pages, tokens, tokens, slots)]
    return tried(lambda: jax.eval_shape(names.kv_cache_update, *shapes).shape)


_LONG = tuple(range(1, 71))

DEVICE_WITNESSES: dict[str, Callable[[Any], object]] = {
    "columns_counted_without_padding": lambda names: sized(names, "bfloat16", 2, 96),
    "rows_counted_without_padding": lambda names: sized(names, "float8_e4m3fn", 1, 128),
    "slice_moved_to_fit_in": last_slots,
    "padding_puts_page_0_back": functools.partial(fused, one("plain", 1, 1, (0,), padding=(0,))),
    "narrow_heads_read_as_wide": lambda names: read_back(names, "f32", 64),
    "padded_columns_read_back": lambda names: read_back(names, "f32", 16),
    "read_back_without_scales": lambda names: read_back(names, "int8", 16),
    "pages_past_64_are_others": functools.partial(attended, one("uneven", 2, 140, _LONG)),
    "blocks_before_the_window_are_nan": functools.partial(attended, one("uneven", 2, 140, _LONG)),
    "last_query_block_clamps": functools.partial(
        attended, Batch("plain", (2, 3), (2, 3), ((1,), (2,)), (0, 0), beyond=7)
    ),
    "window_of_the_last_query": functools.partial(attended, one("window", 5, 5, (1, 2))),
    "window_starts_at_block_0": functools.partial(attended, one("window", 2, 12, (1, 2, 3, 4))),
    "dead_values_times_zero": functools.partial(attended, ONE),
    "last_page_is_read_to_its_end": functools.partial(attended, one("both sides", 1, 3, (1,))),
    "keys_left_of_the_window_count": functools.partial(attended, one("uneven", 2, 140, _LONG)),
    "positions_of_16_bits": functools.partial(attended, one("tall", 2, 40000, (*[1] * 311, 2, 3))),
    "slots_past_32_bits": too_large,
    "page_ids_of_16_bits": functools.partial(attended, one("wide", 1, 3, (65540, 65541, 65542))),
    "empty_rows_are_nan": functools.partial(attended, one("plain", 3, 1, (1,))),
    "masked_rows_are_means": functools.partial(attended, one("plain", 3, 1, (1,))),
    "very_negative_scores_vanish": functools.partial(attended, one("plain", 2, 5, (1, 2), content="cold")),
    "soft_cap_overflows": functools.partial(attended, one("window", 3, 6, (1, 2), content="hot")),
    "heads_past_16_are_left_out": functools.partial(attended, one("uneven", 1, 3, (1, 2))),
    "head_ratio_is_rounded_up": functools.partial(attended, one("window", 1, 3, (1, 2))),
    "scale_of_the_padded_head": functools.partial(attended, one("uneven", 1, 3, (1, 2))),
    "page_ids_are_clipped": lambda names: refused(names, page_table=np.full((4, 6), -1, np.int32)),
    "lengths_of_64_bits": lambda names: refused(names, kv_lens=np.array([3, 0, 0, 0], np.int64)),
    "query_scale_applied_twice": functools.partial(attended, one("plain with q_scale", 1, 3, (1,))),
    "query_scale_ignored": functools.partial(attended, one("plain with q_scale", 1, 3, (1,))),
    "scale_missing_when_read": functools.partial(attended, one("wide", 1, 3, (65540, 65541, 65542))),
    "written_request_by_request": functools.partial(fused, Batch("plain", (1, 4), (5, 4), ((2, 3), (2,)), (0, 0))),
    "pages_not_waited_for": functools.partial(minded, attends),
    "output_overwritten_too_early": functools.partial(minded, attends),
    "scores_rounded_far_from_zero": far_from_zero,
    "pages_that_are_missing_are_copied": other_page,
    "rows_not_waited_for": functools.partial(minded, updates),
}
"""For each fault a few calls that show it."""
