"""Faults of attention: wrong keys, wrong heads, dead slots that are read, empty rows, arguments not refused."""

import inspect
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from .device_patching import edited, with_function, with_kernels
from .registry import FORESEEN, seeded

__all__: list[str] = []

_PAGES_AT_ONCE = 64

_LOW = "jnp.min(jnp.where(first < end, first, high[:, None]), axis=1)"
"""How the kernel finds the first key that any row of a tile reads."""

Attend = Callable[..., Any]


def _with_table(fast: ModuleType, change: Callable[[Any, int], Any]) -> SimpleNamespace:
    """A backend whose attention reads another page table: what ``change`` makes of it and of the number of pages."""

    def build(attend: Attend) -> Attend:
        def attend_badly(queries: Any, kv_pages: Any, kv_lens: Any, page_table: Any, *rest: Any, **options: Any) -> Any:
            values = kv_pages.values if hasattr(kv_pages, "scales") else kv_pages
            if getattr(page_table, "ndim", 0) == 2 and getattr(values, "ndim", 0) > 3:
                page_table = change(page_table, values.shape[0])
            return attend(queries, kv_pages, kv_lens, page_table, *rest, **options)

        return attend_badly

    return with_function(fast, "ragged_paged_attention", build)


# -- Which keys are read --------------------------------------------------------------------------------------


@seeded(44, "ATT-1", "limits", also=("ATT-3",))
def pages_past_64_are_others(fast: ModuleType) -> SimpleNamespace:
    """A table row is read 64 entries at a time, and the last piece is moved to fit in: wrong pages (ejkernel v2)."""

    def moved(page_table: Any, _: int) -> Any:
        width = page_table.shape[1]
        if width <= _PAGES_AT_ONCE or width % _PAGES_AT_ONCE == 0:
            return page_table
        seen = np.array(page_table)
        for first in range(_PAGES_AT_ONCE, width, _PAGES_AT_ONCE):
            count = min(_PAGES_AT_ONCE, width - first)
            start = min(first, width - _PAGES_AT_ONCE)
            seen[:, first : first + count] = np.asarray(page_table)[:, start : start + count]
        return seen

    return _with_table(fast, moved)


@seeded(44, "ATT-1", "limits", also=("ATT-2",), setups=("uneven",))
def blocks_before_the_window_are_nan(fast: ModuleType) -> SimpleNamespace:
    """A block of which a row reads nothing makes it NaN: with a window, past the first block (ejkernel v2)."""
    return with_kernels(
        fast, {"xla.flash:_finite": lambda _: lambda top: top, "xla.flash:_tile": edited("_tile", _LOW, "0 * high")}
    )


@seeded(44, "ATT-1", "attention", setups=("plain",))
def last_query_block_clamps(fast: ModuleType) -> SimpleNamespace:
    """A block of query rows that would stick out at the end is moved to fit in: other rows (ejkernel v2)."""
    return with_kernels(
        fast, {"xla.attention:attend_ragged": edited("attend_ragged", "((0, block), (0, 0)", "((0, 0), (0, 0)")}
    )


@seeded(45, "ATT-1", "attention", also=("ATT-3",), setups=("window",))
def window_of_the_last_query(fast: ModuleType) -> SimpleNamespace:
    """All queries of a block begin at the key at which the window of the last one does (ejkernel v3)."""

    def edit(flash: ModuleType) -> Any:
        import jax.numpy as jnp

        first_key = flash.first_key

        def first_of_last(position: Any, options: Any) -> Any:
            first = first_key(position, options)
            return jnp.broadcast_to(jnp.max(first, axis=-1, keepdims=True), first.shape) if first.ndim == 2 else first

        return first_of_last

    return with_kernels(fast, {"xla.flash:first_key": edit})


@seeded(45, "ATT-1", "attention", also=("ATT-3",), setups=("window",))
def window_starts_at_block_0(fast: ModuleType) -> SimpleNamespace:
    """As many keys as the window needs are read, but from the first one on (tpu-inference 1954)."""
    return with_kernels(fast, {"xla.flash:_tile": edited("_tile", "low[:, None] + ahead", "ahead")})


# -- What is dead ---------------------------------------------------------------------------------------------


@seeded(46, "ATT-3", "attention", setups=("plain",))
def dead_values_times_zero(fast: ModuleType) -> SimpleNamespace:
    """Keys behind a sequence's end get the weight 0, and 0 times NaN is NaN (vLLM 936, flashinfer 941)."""
    return with_kernels(
        fast, {"xla.attention:_reader": edited("_reader", "jnp.where(alive[:, None, :, None], values, 0.0)", "values")}
    )


@seeded(46, "ATT-3", "attention", also=("ATT-1",), setups=("both sides",))
def last_page_is_read_to_its_end(fast: ModuleType) -> SimpleNamespace:
    """Where all keys are read, those in the rest of the last page are as well (vLLM 30887)."""

    def edit(flash: ModuleType) -> Any:
        import jax.numpy as jnp

        end_key = flash.end_key

        def end_of_page(position: Any, kv_len: Any, options: Any) -> Any:
            end = end_key(position, kv_len, options)
            return end if options.causal else jnp.where(end > 0, -(-end // 4) * 4, 0)

        return end_of_page

    return with_kernels(fast, {"xla.flash:end_key": edit})


@seeded(46, "ATT-3", "limits", also=("ATT-1",), setups=("uneven",))
def keys_left_of_the_window_count(fast: ModuleType) -> SimpleNamespace:
    """A window is a matter of weights only: what is left of it is read, and multiplied by 0 (flashinfer 941)."""
    return with_kernels(fast, {"xla.flash:_tile": edited("_tile", _LOW, "0 * high")})


# -- Numbers that are too small -----------------------------------------------------------------------------


@seeded(47, "ATT-1", "limits", also=("ATT-3",), setups=("tall",))
def positions_of_16_bits(fast: ModuleType) -> SimpleNamespace:
    """Positions are kept in 16 bits: past 32767 they are negative (tpu-inference 2755, sglang-jax 1541)."""

    def edit(flash: ModuleType) -> Any:
        import jax.numpy as jnp

        first_key = flash.first_key

        def first_of_short(position: Any, options: Any) -> Any:
            return first_key(position.astype(jnp.int16).astype(jnp.int32), options)

        return first_of_short

    return with_kernels(fast, {"xla.flash:first_key": edit})


@seeded(47, "ATT-1", "limits", also=("ATT-3",))
def page_ids_of_16_bits(fast: ModuleType) -> SimpleNamespace:
    """Page ids are cut at 65536 (ATOM 702)."""

    def cut(page_table: Any, count: int) -> Any:
        table = np.asarray(page_table)
        return np.where((table >= 0) & (table < count), table & 0xFFFF, table)  # other ids are refused as they were

    return _with_table(fast, cut)


@seeded(47, "CACHE-3", "cache", also=("R1",))
def slots_past_32_bits(fast: ModuleType) -> SimpleNamespace:
    """A page's id times its size is taken in 32 bits, whatever comes of it (vLLM 47671, flashinfer 3136)."""
    return with_kernels(fast, {"arguments:_MAX_SLOTS": lambda _: 2**62})


# -- Rows and scores ------------------------------------------------------------------------------------------


@seeded(48, "ATT-2", "attention", setups=("plain",))
def empty_rows_are_nan(fast: ModuleType) -> SimpleNamespace:
    """A row with nothing to read is divided by the sum of no weights (flashinfer 363, cubecl 1070)."""
    return with_kernels(
        fast, {"xla.flash:_tile": edited("_tile", "jnp.where(sums.total == 0, 1.0, sums.total)", "sums.total")}
    )


@seeded(48, "ATT-1", "attention", also=("ATT-6",), setups=("plain",))
def very_negative_scores_vanish(fast: ModuleType) -> SimpleNamespace:
    """The largest score begins at a finite number, below which all weights are 0 (flashinfer 4450)."""
    return with_kernels(
        fast, {"xla.flash:_tile": edited("_tile", "jnp.full(shape, -jnp.inf)", "jnp.full(shape, -200.0)")}
    )


@seeded(48, "ATT-1", "attention", setups=("window",))
def soft_cap_overflows(fast: ModuleType) -> SimpleNamespace:
    """The cap's tanh is made of exponentials, which overflow where scores are large: NaN (vLLM 56578)."""
    return with_kernels(
        fast,
        {
            "xla.flash:_scores": edited(
                "_scores",
                "jnp.tanh(scores / soft_cap)",
                "((jnp.exp(2 * scores / soft_cap) - 1) / (jnp.exp(2 * scores / soft_cap) + 1))",
            )
        },
    )


@seeded(48, "ATT-2", "attention", setups=("plain",))
def masked_rows_are_means(fast: ModuleType) -> SimpleNamespace:
    """Masked scores are a large negative number: where all are, all weigh alike, and out comes a mean (cubecl 1070)."""

    def build(attend: Attend) -> Attend:
        def attend_all(queries: Any, kv_pages: Any, kv_lens: Any, page_table: Any, *rest: Any, **options: Any) -> Any:
            out = attend(queries, kv_pages, kv_lens, page_table, *rest, **options)
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

        return attend_all

    return with_function(fast, "ragged_paged_attention", build)


# -- Heads ----------------------------------------------------------------------------------------------------


@seeded(49, "ATT-1", "limits")
def heads_past_16_are_left_out(fast: ModuleType) -> SimpleNamespace:
    """At most 16 query heads of a KV head are computed, the others stay as they were (vLLM 23424)."""

    def build(attend: Attend) -> Attend:
        def attend_few(queries: Any, *rest: Any, **options: Any) -> Any:
            out = attend(queries, *rest, **options)
            return np.where(np.arange(out.shape[1])[:, None] < 16, out, np.zeros_like(out))

        return attend_few

    return with_function(fast, "ragged_paged_attention", build)


@seeded(49, "ATT-1", "attention", setups=("window",))
def head_ratio_is_rounded_up(fast: ModuleType) -> SimpleNamespace:
    """A ratio of heads that is no power of two is rounded up to one: heads read another KV head's keys (vLLM 18100)."""

    def build(attend: Attend) -> Attend:
        def attend_rounded(queries: Any, kv_pages: Any, *rest: Any, **options: Any) -> Any:
            out = attend(queries, kv_pages, *rest, **options)
            if hasattr(kv_pages, "scales") or kv_pages.ndim != 4:
                return out
            ratio = queries.shape[1] // (kv_pages.shape[2] // 2)
            rounded = 1 << (ratio - 1).bit_length()
            seen = np.array(out)
            for head in range(queries.shape[1]):
                if head // rounded != head // ratio:
                    place, moved = head // rounded * ratio, np.array(queries)
                    moved[:, place] = moved[:, head]
                    seen[:, head] = np.asarray(attend(moved, kv_pages, *rest, **options))[:, place]
            return seen

        return attend_rounded

    return with_function(fast, "ragged_paged_attention", build)


@seeded(49, "ATT-1", "limits", setups=("uneven",))
def scale_of_the_padded_head(fast: ModuleType) -> SimpleNamespace:
    """A head of 80 is scaled as one of 128, the size that it is padded to (vLLM 18100)."""

    def build(attend: Attend) -> Attend:
        def attend_padded(queries: Any, *rest: Any, **options: Any) -> Any:
            if options.get("scale") is None and getattr(queries, "ndim", 0) == 3 and queries.shape[2] % 128:
                options["scale"] = (-(-queries.shape[2] // 128) * 128) ** -0.5
            return attend(queries, *rest, **options)

        return attend_padded

    return with_function(fast, "ragged_paged_attention", build)


# -- Refusals ---------------------------------------------------------------------------------------------------


@seeded(50, "R1", "attention")
def page_ids_are_clipped(fast: ModuleType) -> SimpleNamespace:
    """A page id that is out of range is taken for the nearest that is in range, silently (tpu-inference 2366)."""
    return _with_table(
        fast,
        lambda table, count: np.clip(table, 0, count - 1).astype(np.int32) if table.dtype == np.int32 else table,
    )


@seeded(50, "R1", "attention")
def lengths_of_64_bits(fast: ModuleType) -> SimpleNamespace:
    """Lengths of 64 bits are accepted, and the result is zeros (flashinfer 1654)."""

    def build(attend: Attend) -> Attend:
        def attend_long(queries: Any, kv_pages: Any, kv_lens: Any, *rest: Any, **options: Any) -> Any:
            if getattr(kv_lens, "dtype", None) == np.int64:
                return np.zeros_like(queries)
            return attend(queries, kv_pages, kv_lens, *rest, **options)

        return attend_long

    return with_function(fast, "ragged_paged_attention", build)


# -- Scales ---------------------------------------------------------------------------------------------------


@seeded(51, "ATT-6", "limits")
def scale_missing_when_read(fast: ModuleType) -> SimpleNamespace:
    """Values are divided by their scale when they are stored, and not multiplied by it when read (sglang 24198)."""

    def build(attend: Attend) -> Attend:
        def attend_unscaled(*arguments: Any, **options: Any) -> Any:
            scale = options.get("v_scale")
            is_valid = isinstance(scale, float) and scale > 0  # others are refused as they were
            return attend(*arguments, **(options | {"v_scale": 1.0} if is_valid else options))

        return attend_unscaled

    return with_function(fast, "ragged_paged_attention", build)


def _without_chunks(fast: ModuleType, change: Callable[[dict[str, Any]], dict[str, Any]]) -> SimpleNamespace:
    """A backend whose attention knows no chunks, and changes its options."""

    def build(attend: Attend) -> Attend:
        signature = inspect.signature(attend)
        known = [parameter for parameter in signature.parameters.values() if parameter.name != "chunk"]

        def attend_without(*arguments: Any, **options: Any) -> Any:
            return attend(*arguments, **change(options))

        attend_without.__signature__ = signature.replace(parameters=known)  # type: ignore[attr-defined]
        return attend_without

    return with_function(fast, "ragged_paged_attention", build)


@seeded(FORESEEN, "ATT-1", "attention", also=("ATT-6",))
def query_scale_applied_twice(fast: ModuleType) -> SimpleNamespace:
    """Queries are multiplied by their scale, and so are the scores; nothing else is wrong, and chunks are unknown."""

    def change(options: dict[str, Any]) -> dict[str, Any]:
        scale = options.get("q_scale")
        return options | {"q_scale": scale * scale} if isinstance(scale, float) and scale > 0 else options

    return _without_chunks(fast, change)


@seeded(FORESEEN, "ATT-6", "attention", also=("ATT-1",))
def query_scale_ignored(fast: ModuleType) -> SimpleNamespace:
    """The scale of queries is checked and then left out, by a backend that knows no chunks."""

    def change(options: dict[str, Any]) -> dict[str, Any]:
        scale = options.get("q_scale")
        return options | {"q_scale": None} if isinstance(scale, float) and scale > 0 else options

    return _without_chunks(fast, change)


@seeded(24, "ATT-5", "attention", also=("ATT-1", "ATT-3"), setups=("plain",))
def written_request_by_request(fast: ModuleType) -> SimpleNamespace:
    """A request's tokens are written and its queries answered before the next one's are written (EasyDeL)."""

    def build(fused: Attend) -> Attend:
        def one_by_one(queries: Any, keys: Any, values: Any, pages: Any, *batch: Any, **options: Any) -> Any:
            kv_lens, table, starts, num_seqs = map(np.asarray, batch)
            out, written = fused(queries, keys, values, pages, *batch, **options)
            shown, count = np.array(out), int(num_seqs[0])
            for place in range(count - 1):
                end = np.minimum(starts, starts[place + 1])
                upto = np.array([place + 1], np.int32)
                early, _ = fused(queries, keys, values, pages, kv_lens, table, end, upto, **options)
                shown[starts[place] : starts[place + 1]] = np.asarray(early)[starts[place] : starts[place + 1]]
            return shown, written

        return one_by_one

    return with_function(fast, "fused_ragged_paged_attention", build)
