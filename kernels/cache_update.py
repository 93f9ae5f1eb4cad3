"""Writing new keys and values into a cache: the public function, and what fused attention needs of it.

Rows are made ready first, packed, scaled and rounded, in plain JAX: O(T). Moving them into their slots is what a
platform may have a kernel for.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from . import arguments
from .arguments import Array
from .choices import taken
from .dispatch import by_platform, likes
from .dynamic_checks import check_slices, check_slots
from .layout import COLUMNS, CacheLayout, layout_of, pack_rows, read_version, slot_axis
from .options import UpdateOptions
from .storage import ScaledPages, divided, page_values, quantise, saturated, to_bits, value_dtype
from .xla import update as xla

__all__ = ["PAGES", "check_new_rows", "encode", "kv_cache_update", "write_rows"]

PAGES = "[P, page, 2H, Dp] (v2), [P, page, groups, packing, Dp] (v3) or [P, 2H, Dp, page] (seq_on_lane), not empty"
"""The shapes of pages, for messages."""


def kv_cache_update(
    kv_pages: Any,
    keys: Array,  # [T, H, D]
    values: Array,  # [T, H, Dv]
    slot_mapping: Array,  # i32[T] or i32[3, n]
    *,
    num_slices: Array | None = None,  # i32[1]
    kv_dtype: Any = None,
    k_scale: float | None = None,
    v_scale: float | None = None,
    version: str | None = None,
    validate: bool = False,
) -> Any:
    """Writes keys and values into the slots named; all else stays, bit for bit (CACHE-2, CACHE-3, CACHE-4).

    In place where ``kv_pages`` is donated to the jitted function that calls this, but for bfloat16 and float8 on
    CPU, which must be stored as bits for that (`storage_dtype`). O(T * H * (D + Dv)). On TPU, XLA rewrites all pages
    of 8-bit numbers whose slots don't fill tiles, such as v2's with 5 heads: O(P), and `explain` names the reason.
    Layout v3 avoids it, as do 2 heads or a multiple of 4 in v2.

    Args:
        kv_pages: `[P, page, 2H, Dp]` (v2), `[P, page, groups, packing, Dp]` (v3), `[P, 2H, Dp, page]` (seq_on_lane),
            or ScaledPages of these.
        keys: `[T, H, D]`, float32, bfloat16 or float16.
        values: `[T, H, Dv]`, of the keys' dtype.
        slot_mapping: `i32[T]`: page * page size + offset for each token. Or, with ``num_slices``, slices
            `i32[3, n]`: first slot, first token, length; a slice stays inside a page and no two overlap there.
            Slots below 0 and slots that don't exist write nothing, nor does a slice that leaves its page or the
            tokens.
        num_slices: `i32[1]`: how many columns of ``slot_mapping`` count.
        kv_dtype: the dtype of the cache's numbers: needed where the pages are unsigned bits.
        k_scale: what keys are divided by before they are stored; not with ScaledPages, whose slots have their own.
        v_scale: the same for values.
        version: the layout's name, which seq_on_lane needs; None: v2 or v3, by the number of dimensions.
        validate: whether the arrays are looked at too; they must be concrete then.

    Returns:
        The pages, of the kind and dtype given.

    Raises:
        TypeError: on wrong types and dtypes [R1].
        ValueError: on shapes that don't fit, int8 without scales, and with ``validate`` on slots named twice and
            slices that leave a page [R1].
        IndexError: with ``validate``, on slots and tokens that don't exist [R1].
    """
    validate = arguments.flag("validate", validate)
    options = check_new_rows(kv_pages, keys, values, kv_dtype, k_scale, v_scale, version)
    num_pages, page_size = options.layout.sizes(page_values(kv_pages))
    arguments.slots(slot_mapping, num_slices, keys.shape[0])
    if validate and num_slices is None:
        check_slots(slot_mapping, num_pages * page_size)
    elif validate:
        check_slices(slot_mapping, num_slices, keys.shape[0], num_pages, page_size)
    return _update(kv_pages, keys, values, slot_mapping, num_slices, options)


def check_new_rows(
    kv_pages: Any,
    keys: Any,  # [T, H, D]
    values: Any,  # [T, H, Dv]
    kv_dtype: Any,
    k_scale: Any,
    v_scale: Any,
    version: Any,
) -> UpdateOptions:
    """Checks what is to be written where, apart from the slots, and says how it is stored. O(1)."""
    version = read_version(version)
    arguments.pool("kv_pages", kv_pages, (4, 5), PAGES, slot_axis(version))
    arguments.pair(("keys", "values"), keys, values, 3, ("[T, H, D]", "[T, H, Dv]"))
    dtype = value_dtype(kv_pages, kv_dtype)
    layout = layout_of(page_values(kv_pages), keys.shape[2], values.shape[2], keys.shape[1], version)
    return UpdateOptions(layout, dtype, *check_scales(kv_pages, dtype, layout, k_scale, v_scale))


def check_scales(
    kv_pages: Any, dtype: Any, layout: CacheLayout, k_scale: Any, v_scale: Any
) -> tuple[float | None, float | None]:
    """Each cache has the scales that it needs: its own, or static ones, or none. O(1).

    Returns:
        The static scales, as floats.
    """
    scales = [
        None if scale is None else arguments.number(name, scale, positive=True)
        for name, scale in (("k_scale", k_scale), ("v_scale", v_scale))
    ]
    if isinstance(kv_pages, ScaledPages):
        axis = layout.head_axis
        arguments.same(f"kv_pages.scales.shape[{axis}]", kv_pages.scales.shape[axis], "2H", 2 * layout.num_kv_heads)
        if scales != [None, None]:
            raise ValueError(f"{k_scale=} and {v_scale=} must be None: ScaledPages have scales of their own [R1]")
    elif dtype == jnp.dtype(jnp.int8) and None in scales:
        raise ValueError(f"{k_scale=} and {v_scale=} must be given for int8 pages that are no ScaledPages [R1]")
    return scales[0], scales[1]


@partial(jax.jit, static_argnames="options")
def _update(
    kv_pages: Any,
    keys: jax.Array,  # [T, H, D]
    values: jax.Array,  # [T, H, Dv]
    slot_mapping: jax.Array,  # i32[T] or i32[3, n]
    num_slices: jax.Array | None,  # i32[1]
    options: UpdateOptions,
) -> Any:
    arrays = (kv_pages, keys, values, slot_mapping, num_slices)
    return by_platform("kv_cache_update", _update_on, *arrays, results=likes(kv_pages), options=options)


def _update_on(
    kv_pages: Any,
    keys: jax.Array,
    values: jax.Array,
    slot_mapping: jax.Array,
    num_slices: jax.Array | None,
    *,
    options: UpdateOptions,
    platform: str | None,
) -> Any:
    rows = encode(kv_pages, keys, values, options)
    return write_rows(kv_pages, rows, slot_mapping, num_slices, options.layout.version, platform=platform)


def encode(
    kv_pages: Any,
    keys: jax.Array,  # [T, H, D]
    values: jax.Array,  # [T, H, Dv]
    options: UpdateOptions,
) -> Any:
    """Keys and values as rows for a cache's slots. O(T * C * Dp).

    Args:
        kv_pages: the cache, for its kind and dtype.
        keys: `[T, H, D]`.
        values: `[T, H, Dv]`.
        options: how they are stored.

    Returns:
        `[T, *row]` in the dtype in which the pages are stored, or ScaledPages of that and `f32[T, 2H]`.
    """
    stored, layout, dtype = page_values(kv_pages).dtype, options.layout, options.kv_dtype
    if not isinstance(kv_pages, ScaledPages):
        keys, values = _divided(keys, options.k_scale), _divided(values, options.v_scale)
        keys, values = saturated(keys, dtype), saturated(values, dtype)
        return to_bits(pack_rows(keys, values, layout, dtype), stored)
    keys, k_scales = quantise(keys, dtype)
    values, v_scales = quantise(values, dtype)
    scales = jnp.stack([k_scales, v_scales], axis=-1).reshape(keys.shape[0], 2 * layout.num_kv_heads)
    return ScaledPages(to_bits(pack_rows(keys, values, layout, dtype), stored), scales)


def _divided(rows: jax.Array, scale: float | None) -> jax.Array:
    return rows if scale is None else divided(rows.astype(jnp.float32), jnp.float32(scale))


def write_rows(
    kv_pages: Any,
    rows: Any,
    slot_mapping: jax.Array,  # i32[T] or i32[3, n]
    num_slices: jax.Array | None = None,  # i32[1]
    version: str | None = None,
    *,
    platform: str | None,
) -> Any:
    """Moves rows into slots, array by array, by the platform's own kernel where it has one (CACHE-3). O(T).

    Args:
        kv_pages: `[P, page, *row]`, in seq_on_lane `[P, *row, page]`, or ScaledPages.
        rows: `[T, *row]` of the same dtype, or ScaledPages of such rows.
        slot_mapping: slots or slices.
        num_slices: `i32[1]` with slices.
        version: the layout's name; None: any but seq_on_lane.
        platform: what this is traced for (`dispatch.by_platform`).

    Returns:
        The pages.
    """
    mapping = (slot_mapping,) if num_slices is None else (slot_mapping, num_slices)
    if not isinstance(kv_pages, ScaledPages):
        return _write(kv_pages, rows, mapping, version, platform)
    values = _write(kv_pages.values, rows.values, mapping, version, platform)
    # A slot's scales are a few numbers that few kernels take: XLA writes them beside the kernel, which is no fall.
    return ScaledPages(values, _write(kv_pages.scales, rows.scales, mapping, version, platform, warn=False))


def _write(
    pages: jax.Array,  # [P, page, *row]
    rows: jax.Array,  # [T, *row]
    mapping: tuple[jax.Array, ...],  # i32[T]; or i32[3, n] and i32[1]
    version: str | None,
    platform: str | None,
    warn: bool = True,
) -> jax.Array:
    if 0 in (rows.shape[0], mapping[0].shape[-1]):
        return pages
    axis = slot_axis(version)
    barred = COLUMNS if axis == -1 else None
    if platform == "tpu":
        # Imported where it is needed: most processes never compile for a TPU.
        from .tpu import update as tpu

        reason = barred or tpu.unsupported(pages, mapping[0])
        # Of 8 bits XLA writes token after token; else its scatter is no worse than what it stands in for.
        if taken("kv_update", reason, warn=warn and pages.dtype.itemsize == 1):
            return (tpu.update if len(mapping) == 1 else tpu.update_slices)(pages, rows, *mapping)
        if axis == -1 or pages.dtype.itemsize == 1:
            return xla.update(pages, rows, *mapping, slot_axis=axis, by_page=True)
        return tpu.scatter(pages, rows, *mapping) if len(mapping) == 1 else xla.update(pages, rows, *mapping)
    if platform == "cuda":
        from .gpu import hopper

        reason = barred or hopper.unavailable()
        if reason is None:
            # It needs more than what is installed with JAX for CPUs.
            from .gpu import update as gpu

            reason = gpu.unsupported(pages)
        if taken("kv_update", reason, warn=warn and hopper.in_sight()):
            return (gpu.update if len(mapping) == 1 else gpu.update_slices)(pages, rows, *mapping)
        return xla.update(pages, rows, *mapping, distinct=True, slot_axis=axis)
    return xla.update(pages, rows, *mapping, slot_axis=axis)
