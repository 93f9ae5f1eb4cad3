"""Faults of attention and its kernels: wrong keys, wrong heads, dead slots that are read, arguments not refused."""

import inspect
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from .device_patching import Edit, edited, in_kernels, in_tpu_kernels, with_kernels, with_tpu_kernels, with_words
from .patching import backend_with
from .registry import FORESEEN, OWN, seeded

__all__: list[str] = []

_PAGES_AT_ONCE = 64

_LOW = "jnp.min(jnp.where(first < end, first, high[:, None]), axis=1)"
"""How the kernel finds the first key that any row of a tile reads."""

Attend = Callable[..., Any]


def _with_table(fast: ModuleType, change: Callable[[Any, int], Any]) -> SimpleNamespace:
    """A backend whose attention reads another page table: what ``change`` makes of it and of the number of pages."""

    def attend(queries: Any, kv_pages: Any, kv_lens: Any, page_table: Any, *rest: Any, **options: Any) -> Any:
        values = kv_pages.values if hasattr(kv_pages, "scales") else kv_pages
        if getattr(page_table, "ndim", 0) == 2 and getattr(values, "ndim", 0) > 3:
            page_table = change(page_table, values.shape[0])
        return fast.ragged_paged_attention(queries, kv_pages, kv_lens, page_table, *rest, **options)

    return backend_with(fast, ragged_paged_attention=attend)


# -- Which keys are read --------------------------------------------------------------------------------------


@seeded(44, "ATT-1", "limits", also=("ATT-3",), by=_with_table)
def pages_past_64_are_others(page_table: Any, _: int) -> Any:
    """A table row is read 64 entries at a time, and the last piece is moved to fit in: wrong pages (ejkernel v2)."""
    width = page_table.shape[1]
    if width <= _PAGES_AT_ONCE or width % _PAGES_AT_ONCE == 0:
        return page_table
    seen = np.array(page_table)
    for first in range(_PAGES_AT_ONCE, width, _PAGES_AT_ONCE):
        count = min(_PAGES_AT_ONCE, width - first)
        start = min(first, width - _PAGES_AT_ONCE)
        seen[:, first : first + count] = np.asarray(page_table)[:, start : start + count]
    return seen


@seeded(FORESEEN, "ATT-1", "attention", also=("ATT-3",))
def a_window_hides_the_chunk(fast: ModuleType) -> SimpleNamespace:
    """Of a window and a chunk only the narrower one counts: keys before the chunk are read where the window is."""

    def attend(*arguments: Any, window: Any = None, chunk: Any = None, **options: Any) -> Any:
        narrower = isinstance(window, int) and isinstance(chunk, int) and 0 < window < chunk
        return fast.ragged_paged_attention(*arguments, window=window, chunk=None if narrower else chunk, **options)

    return backend_with(fast, ragged_paged_attention=attend)


@seeded(44, "ATT-1", "limits", also=("ATT-2",), setups=("uneven",))
def blocks_before_the_window_are_nan(fast: ModuleType) -> SimpleNamespace:
    """A block of which a row reads nothing makes it NaN: with a window, past the first block (ejkernel v2)."""
    return with_kernels(
        fast, {"xla.flash:_finite": lambda _: lambda top: top, "xla.flash:_tile": edited("_tile", _LOW, "0 * high")}
    )


@seeded(44, "ATT-1", "attention", setups=("plain",))
def last_query_block_clamps(fast: ModuleType) -> SimpleNamespace:
    """A block of query rows that would stick out at the end is moved to fit in: other rows (ejkernel v2)."""
    return with_words(fast, "xla.attention:attend_ragged", "((0, block), (0, 0)", "((0, 0), (0, 0)")


@seeded(45, "ATT-1", "attention", also=("ATT-3",), setups=("window",), by=in_kernels("xla.flash:first_key"))
def window_of_the_last_query(first_key: Any, position: Any, options: Any) -> Any:
    """All queries of a block begin at the key at which the window of the last one does (ejkernel v3)."""
    import jax.numpy as jnp

    first = first_key(position, options)
    return jnp.broadcast_to(jnp.max(first, axis=-1, keepdims=True), first.shape) if first.ndim == 2 else first


@seeded(45, "ATT-1", "attention", also=("ATT-3",), setups=("window",))
def window_starts_at_block_0(fast: ModuleType) -> SimpleNamespace:
    """As many keys as the window needs are read, but from the first one on (tpu-inference 1954)."""
    return with_words(fast, "xla.flash:_tile", "low[:, None] + ahead", "ahead")


@seeded(FORESEEN, "ATT-1", "limits", setups=("long columns",))
def columns_one_page_short(fast: ModuleType) -> SimpleNamespace:
    """Where slots are columns, keys are read by whole pages, one too few of them where they begin within a page."""
    return with_words(fast, "xla.attention:_column_reader", "-(-block // page_size) + 1", "-(-block // page_size)")


# -- What is dead ---------------------------------------------------------------------------------------------


@seeded(46, "ATT-3", "attention", setups=("plain",))
def dead_values_times_zero(fast: ModuleType) -> SimpleNamespace:
    """Keys behind a sequence's end get the weight 0, and 0 times NaN is NaN (vLLM 936, flashinfer 941)."""
    return with_words(fast, "xla.attention:_reader", "jnp.where(alive[:, None, :, None], values, 0.0)", "values")


@seeded(46, "ATT-3", "attention", also=("ATT-1",), setups=("both sides",), by=in_kernels("xla.flash:end_key"))
def last_page_is_read_to_its_end(end_key: Any, position: Any, kv_len: Any, options: Any) -> Any:
    """Where all keys are read, those in the rest of the last page are as well (vLLM 30887)."""
    import jax.numpy as jnp

    end = end_key(position, kv_len, options)
    return end if options.causal else jnp.where(end > 0, -(-end // 4) * 4, 0)


@seeded(46, "ATT-3", "limits", also=("ATT-1",), setups=("uneven",))
def keys_left_of_the_window_count(fast: ModuleType) -> SimpleNamespace:
    """A window is a matter of weights only: what is left of it is read, and multiplied by 0 (flashinfer 941)."""
    return with_words(fast, "xla.flash:_tile", _LOW, "0 * high")


# -- Numbers that are too small -----------------------------------------------------------------------------


@seeded(47, "ATT-1", "limits", also=("ATT-3",), setups=("tall",), by=in_kernels("xla.flash:first_key"))
def positions_of_16_bits(first_key: Any, position: Any, options: Any) -> Any:
    """Positions are kept in 16 bits: past 32767 they are negative (tpu-inference 2755, sglang-jax 1541)."""
    import jax.numpy as jnp

    return first_key(position.astype(jnp.int16).astype(jnp.int32), options)


@seeded(47, "ATT-1", "limits", also=("ATT-3",), by=_with_table)
def page_ids_of_16_bits(page_table: Any, count: int) -> Any:
    """Page ids are cut at 65536 (ATOM 702)."""
    table = np.asarray(page_table)
    return np.where((table >= 0) & (table < count), table & 0xFFFF, table)  # other ids are refused as they were


@seeded(47, "CACHE-3", "cache", also=("R1",))
def slots_past_32_bits(fast: ModuleType) -> SimpleNamespace:
    """A page's id times its size is taken in 32 bits, whatever comes of it (vLLM 47671, flashinfer 3136)."""
    return with_kernels(fast, {"arguments:_MAX_SLOTS": lambda _: 2**62})


# -- Rows and scores ------------------------------------------------------------------------------------------


@seeded(48, "ATT-2", "attention", setups=("plain",))
def empty_rows_are_nan(fast: ModuleType) -> SimpleNamespace:
    """A row with nothing to read is divided by the sum of no weights (flashinfer 363, cubecl 1070)."""
    return with_words(fast, "xla.flash:_tile", "jnp.where(sums.total == 0, 1.0, sums.total)", "sums.total")


@seeded(48, "ATT-1", "attention", also=("ATT-6",), setups=("plain",))
def very_negative_scores_vanish(fast: ModuleType) -> SimpleNamespace:
    """The largest score begins at a finite number, below which all weights are 0 (flashinfer 4450)."""
    return with_words(fast, "xla.flash:_tile", "jnp.full(shape, -jnp.inf)", "jnp.full(shape, -200.0)")


@seeded(48, "ATT-1", "attention", setups=("window",))
def soft_cap_overflows(fast: ModuleType) -> SimpleNamespace:
    """The cap's tanh is made of exponentials, which overflow where scores are large: NaN (vLLM 56578)."""
    exponential = "jnp.exp(2 * scores / soft_cap)"
    tanh = f"(({exponential} - 1) / ({exponential} + 1))"
    return with_words(fast, "xla.flash:_scores", "jnp.tanh(scores / soft_cap)", tanh)


@seeded(48, "ATT-2", "attention", setups=("plain",), by="ragged_paged_attention")
def masked_rows_are_means(
    fast: ModuleType, queries: Any, kv_pages: Any, kv_lens: Any, page_table: Any, *rest: Any, **options: Any
) -> Any:
    """Masked scores are a large negative number: where all are, all weigh alike, and out comes a mean (cubecl 1070)."""
    out = fast.ragged_paged_attention(queries, kv_pages, kv_lens, page_table, *rest, **options)
    if hasattr(kv_pages, "scales") or kv_pages.dtype != np.float32:
        return out
    pages = np.asarray(kv_pages)
    values = pages.reshape(*pages.shape[:2], -1, pages.shape[-1])[:, :, 1::2, : out.shape[2]]
    means, starts, count = np.array(out), np.asarray(rest[0]), int(np.asarray(rest[1])[0])
    for row, length in zip(range(count), np.asarray(kv_lens), strict=False):
        held = np.asarray(page_table)[row, : -(-length // pages.shape[1])]
        first, end = starts[row], max(starts[row + 1] - length, starts[row])
        if length:  # query tokens before the sequence's first
            mean = values[held].reshape(-1, *values.shape[2:])[:length].mean(0)
            means[first:end] = np.repeat(mean, out.shape[1] // len(mean), 0)
    return means


# -- Heads ----------------------------------------------------------------------------------------------------


@seeded(49, "ATT-1", "limits", by="ragged_paged_attention")
def heads_past_16_are_left_out(fast: ModuleType, queries: Any, *rest: Any, **options: Any) -> Any:
    """At most 16 query heads of a KV head are computed, the others stay as they were (vLLM 23424)."""
    out = fast.ragged_paged_attention(queries, *rest, **options)
    return np.where(np.arange(out.shape[1])[:, None] < 16, out, np.zeros_like(out))


@seeded(49, "ATT-1", "attention", setups=("window",), by="ragged_paged_attention")
def head_ratio_is_rounded_up(fast: ModuleType, queries: Any, kv_pages: Any, *rest: Any, **options: Any) -> Any:
    """A ratio of heads that is no power of two is rounded up to one: heads read another KV head's keys (vLLM 18100)."""
    out = fast.ragged_paged_attention(queries, kv_pages, *rest, **options)
    if hasattr(kv_pages, "scales") or kv_pages.ndim != 4:
        return out
    ratio = queries.shape[1] // (kv_pages.shape[2] // 2)
    rounded = 1 << (ratio - 1).bit_length()
    seen = np.array(out)
    for head in range(queries.shape[1]):
        if head // rounded != head // ratio:
            place, moved = head // rounded * ratio, np.array(queries)
            moved[:, place] = moved[:, head]
            seen[:, head] = np.asarray(fast.ragged_paged_attention(moved, kv_pages, *rest, **options))[:, place]
    return seen


@seeded(49, "ATT-1", "limits", setups=("uneven",), by="ragged_paged_attention")
def scale_of_the_padded_head(fast: ModuleType, queries: Any, *rest: Any, **options: Any) -> Any:
    """A head of 80 is scaled as one of 128, the size that it is padded to (vLLM 18100)."""
    if options.get("scale") is None and getattr(queries, "ndim", 0) == 3 and queries.shape[2] % 128:
        options["scale"] = (-(-queries.shape[2] // 128) * 128) ** -0.5
    return fast.ragged_paged_attention(queries, *rest, **options)


# -- Refusals ---------------------------------------------------------------------------------------------------


@seeded(50, "R1", "attention")
def page_ids_are_clipped(fast: ModuleType) -> SimpleNamespace:
    """A page id that is out of range is taken for the nearest that is in range, silently (tpu-inference 2366)."""
    return _with_table(
        fast,
        lambda table, count: np.clip(table, 0, count - 1).astype(np.int32) if table.dtype == np.int32 else table,
    )


@seeded(50, "R1", "attention", by="ragged_paged_attention")
def lengths_of_64_bits(fast: ModuleType, queries: Any, kv_pages: Any, kv_lens: Any, *rest: Any, **options: Any) -> Any:
    """Lengths of 64 bits are accepted, and the result is zeros (flashinfer 1654)."""
    if getattr(kv_lens, "dtype", None) == np.int64:
        return np.zeros_like(queries)
    return fast.ragged_paged_attention(queries, kv_pages, kv_lens, *rest, **options)


# -- Scales ---------------------------------------------------------------------------------------------------


def _without_v_scale(options: dict[str, Any]) -> dict[str, Any]:
    """Options by which values are read as they are stored; one that is refused stays."""
    scale = options.get("v_scale")
    return options | {"v_scale": 1.0} if isinstance(scale, float) and scale > 0 else options


@seeded(51, "ATT-6", "limits", by="ragged_paged_attention")
def scale_missing_when_read(fast: ModuleType, *arguments: Any, **options: Any) -> Any:
    """Values are divided by their scale when they are stored, and not multiplied by it when read (sglang 24198)."""
    return fast.ragged_paged_attention(*arguments, **_without_v_scale(options))


@seeded(FORESEEN, "ATT-6", "attention", also=("ATT-1",), by="ragged_paged_attention")
def scale_missing_in_columns(fast: ModuleType, *arguments: Any, **options: Any) -> Any:
    """Values are not multiplied by their scale in the layout whose slots are columns."""
    in_columns = options.get("version") == "seq_on_lane"
    return fast.ragged_paged_attention(*arguments, **(_without_v_scale(options) if in_columns else options))


def _without_chunks(fast: ModuleType, change: Callable[[dict[str, Any]], dict[str, Any]]) -> SimpleNamespace:
    """A backend whose attention knows no chunks, and changes its options."""

    def attend(*arguments: Any, **options: Any) -> Any:
        return fast.ragged_paged_attention(*arguments, **change(options))

    signature = inspect.signature(fast.ragged_paged_attention)
    known = [parameter for parameter in signature.parameters.values() if parameter.name != "chunk"]
    attend.__signature__ = signature.replace(parameters=known)  # type: ignore[attr-defined]
    return backend_with(fast, ragged_paged_attention=attend)


@seeded(FORESEEN, "ATT-1", "attention", also=("ATT-6",), by=_without_chunks)
def query_scale_applied_twice(options: dict[str, Any]) -> dict[str, Any]:
    """Queries are multiplied by their scale, and so are the scores; nothing else is wrong, and chunks are unknown."""
    scale = options.get("q_scale")
    return options | {"q_scale": scale * scale} if isinstance(scale, float) and scale > 0 else options


@seeded(FORESEEN, "ATT-6", "attention", also=("ATT-1",), by=_without_chunks)
def query_scale_ignored(options: dict[str, Any]) -> dict[str, Any]:
    """The scale of queries is checked and then left out, by a backend that knows no chunks."""
    scale = options.get("q_scale")
    return options | {"q_scale": None} if isinstance(scale, float) and scale > 0 else options


@seeded(24, "ATT-5", "attention", also=("ATT-1", "ATT-3"), setups=("plain",), by="fused_ragged_paged_attention")
def written_request_by_request(
    fast: ModuleType, queries: Any, keys: Any, values: Any, pages: Any, *batch: Any, **options: Any
) -> Any:
    """A request's tokens are written and its queries answered before the next one's are written (EasyDeL)."""
    kv_lens, table, starts, num_seqs = map(np.asarray, batch)
    out, written = fast.fused_ragged_paged_attention(queries, keys, values, pages, *batch, **options)
    shown, count = np.array(out), int(num_seqs[0])
    for place in range(count - 1):
        end = np.minimum(starts, starts[place + 1])
        upto = np.array([place + 1], np.int32)
        early, _ = fast.fused_ragged_paged_attention(queries, keys, values, pages, kv_lens, table, end, upto, **options)
        shown[starts[place] : starts[place + 1]] = np.asarray(early)[starts[place] : starts[place + 1]]
    return shown, written


# -- Kernels for TPUs: copies that nobody waits for, buffers filled while they are read, lost bits ---------------------


@seeded(
    52,
    "ATT-6",
    "kernels",
    also=("ATT-1",),
    setups=("interpreted",),
    by=in_tpu_kernels("tpu.prefill_kernel:wait_for_pages"),
)
def pages_not_waited_for(*_: Any) -> None:
    """Pages are read while they are being copied: the wait for the copies is missing."""


@seeded(
    52,
    "ATT-6",
    "kernels",
    also=("ATT-1",),
    setups=("interpreted",),
    by=in_tpu_kernels("tpu.prefill_kernel:wait_for_output"),
)
def output_overwritten_too_early(*_: Any) -> None:
    """A buffer of results is filled again while its last contents are being copied away."""


@seeded(
    50,
    "ATT-3",
    "kernels",
    also=("ATT-1", "ATT-2", "ATT-6"),
    setups=("interpreted, half",),
    by=in_tpu_kernels("tpu.attention:misses_pages"),
)
def pages_that_are_missing_are_copied(misses_pages: Any, *arguments: Any) -> Any:
    """A decode kernel copies from every page id in the table, from -1 too: memory in front of the cache (ours)."""
    return misses_pages(*arguments) & False


@seeded(OWN, "ATT-6", "kernels", setups=("interpreted",))
def scores_rounded_far_from_zero(fast: ModuleType) -> SimpleNamespace:
    """Scale and log2(e) are multiplied into the scores before the largest is taken off them: ours, once."""
    fold = "tpu.prefill_fold"

    def multiplied(module: ModuleType) -> Any:
        scores_of, unit = module.scores_of, module.exponent_unit
        return lambda products, scoring: scores_of(products, scoring) * unit(scoring)

    edits: dict[str, Edit] = {f"{fold}:scores_of": multiplied, f"{fold}:exponent_unit": lambda _: lambda _: 1.0}
    return with_tpu_kernels(fast, edits)


@seeded(52, "CACHE-3", "kernels", setups=("interpreted",), by=in_tpu_kernels("tpu.in_flight:wait"))
def rows_not_waited_for(*_: Any) -> None:
    """A kernel that copies tokens into their slots ends before its copies do."""
