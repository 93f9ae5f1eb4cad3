"""The specification's caches and attention with one fault each; see `broken`."""

from typing import Any

import numpy as np

import kvproof.spec
from kvproof.spec import RaggedPagesCacheView, ScaledPages

__all__ = ["BROKEN_DEVICE"]


class PoolsMixed(RaggedPagesCacheView):
    """The second pool's queries are answered like the first's."""

    def attend(self, *args: Any, **kwargs: Any) -> Any:
        out = np.array(super().attend(*args, **kwargs))
        if self.metadata.num_page_shards > 1:
            half = len(out) // 2
            out[half:] = out[:half]
        return out


def values_for_keys(pages: Any, keys: Any, values: Any, *rest: Any, **options: Any) -> Any:
    if values.shape == keys.shape:
        keys, values = values, keys
    return kvproof.spec.kv_cache_update(pages, keys, values, *rest, **options)


def padding_stays(pages: Any, keys: Any, values: Any, *rest: Any, **options: Any) -> Any:
    after = kvproof.spec.kv_cache_update(pages, keys, values, *rest, **options)
    if isinstance(pages, ScaledPages) or keys.shape[2] == pages.shape[-1] or pages.dtype != np.float32:
        return after
    after[..., keys.shape[2] :] = pages[..., keys.shape[2] :]
    return after


def padding_wraps(pages: Any, keys: Any, values: Any, slots: Any, **options: Any) -> Any:
    if options.get("num_slices") is None and slots.ndim == 1 and slots.dtype == np.int32 and "validate" not in options:
        stored = pages.values if isinstance(pages, ScaledPages) else pages
        slots = np.where(slots == -1, stored.shape[0] * stored.shape[1] - 1, slots).astype(np.int32)
    return kvproof.spec.kv_cache_update(pages, keys, values, slots, **options)


def one_scale_for_all(pages: Any, keys: Any, values: Any, *rest: Any, **options: Any) -> Any:
    after = kvproof.spec.kv_cache_update(pages, keys, values, *rest, **options)
    if isinstance(after, ScaledPages):
        changed = after.scales != pages.scales
        after.scales[changed] = np.max(after.scales[changed], initial=0.0)
    return after


def _marked(out: Any, rows: Any, by: float) -> Any:
    changed = np.array(out)
    changed[rows] += np.asarray(by, changed.dtype)
    return changed


def wider_window(*arguments: Any, **options: Any) -> Any:
    if isinstance(options.get("window"), int) and options["window"] > 1:
        options["window"] += 1
    return kvproof.spec.ragged_paged_attention(*arguments, **options)


def answers_padding(queries: Any, *rest: Any, **options: Any) -> Any:
    out = kvproof.spec.ragged_paged_attention(queries, *rest, **options)
    starts, count = rest[-2], rest[-1]
    return _marked(out, slice(int(starts[count[0]]), None), 1.0)


def coarse(*arguments: Any, **options: Any) -> Any:
    out = kvproof.spec.ragged_paged_attention(*arguments, **options)
    return (out * np.asarray(1 + 2.0**-13, out.dtype)) if out.dtype == np.float32 else out


def latents(*arguments: Any, **options: Any) -> Any:
    """Forgets the rotary part."""
    queries, rotary, *rest = arguments
    return kvproof.spec.mla_paged_attention(queries, np.zeros_like(rotary), *rest, **options)


BROKEN_DEVICE: list[tuple[str, str, dict[str, Any], str]] = [
    ("cache", "ValuesForKeys", {"kv_cache_update": values_for_keys}, "CACHE-2"),
    ("cache", "PaddingStays", {"kv_cache_update": padding_stays}, "CACHE-3"),
    ("cache", "PaddingWraps", {"kv_cache_update": padding_wraps}, "CACHE-3"),
    ("cache", "OneScaleForAll", {"kv_cache_update": one_scale_for_all}, "CACHE-4"),
    ("sharded", "PoolsMixed", {"RaggedPagesCacheView": PoolsMixed}, "CACHE-5"),
    ("attention", "AnswersPadding", {"ragged_paged_attention": answers_padding}, "ATT-4"),
    ("attention", "Coarse", {"ragged_paged_attention": coarse}, "ATT-6"),
    ("latents", "NoRotary", {"mla_paged_attention": latents}, "ATT-1"),
    ("serving", "ServesWiderWindow", {"ragged_paged_attention": wider_window}, "ATT-1"),
    ("serving", "ServesPaddingWraps", {"kv_cache_update": padding_wraps}, "CACHE-3"),
]
"""Machine, name, the public names that are replaced, and the clause that is broken."""
