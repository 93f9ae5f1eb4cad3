"""Keys and values written into slots in plain JAX: all else stays, bit for bit (CACHE-2 to CACHE-4)."""

from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.kernels import ScaledPages, kv_cache_update, layout_of, storage_dtype, unpack_keys, unpack_values
from kvproof.kernels.storage import from_bits
from kvproof.kernels.xla.update import update

from .reference import Array, pack, scaled

PAGES, PAGE, TOKENS, SLICES, HEADS = 7, 5, 9, 6, 3

CACHES: dict[str, dict[str, Any]] = {
    "v2_float32": {"version": "v2", "dtype": jnp.float32},
    "v3_float32": {"dtype": jnp.float32, "k_dim": 96, "v_dim": 192},
    "v3_bfloat16": {"dtype": jnp.bfloat16},
    "v3_bfloat16_shared_rows": {"dtype": jnp.bfloat16, "k_dim": 64, "v_dim": 64},
    "v2_float16": {"version": "v2", "dtype": jnp.float16, "k_dim": 64, "v_dim": 64},
    "v3_e4m3_static": {"dtype": jnp.float8_e4m3fn, "k_scale": 0.25, "v_scale": 3.0},
    "v3_e5m2_unscaled": {"dtype": jnp.float8_e5m2},
    "v3_int8": {"dtype": jnp.int8, "scales": True},
    "v2_int8_static": {"version": "v2", "dtype": jnp.int8, "k_scale": 0.05, "v_scale": 0.04},
    "v3_e4m3_scaled_shared_rows": {"dtype": jnp.float8_e4m3fn, "scales": True, "k_dim": 64, "v_dim": 64},
    "v3_e5m2_as_floats": {"dtype": jnp.float8_e5m2, "bits": False},
    "v2_bfloat16_as_floats": {"version": "v2", "dtype": jnp.bfloat16, "bits": False},
    "v2_e5m2_scaled": {"version": "v2", "dtype": jnp.float8_e5m2, "scales": True},
}


ERRORS = {"int8": (0, 0.5), "float8_e4m3fn": (2.0**-4, 2.0**-10), "float8_e5m2": (2.0**-3, 2.0**-17)}
"""How far off a number may be, relative to itself and to its scale; others are exact."""


class Cache:
    """A cache full of random bits, the rows to write, and what they must become."""

    def __init__(self, seed: int, name: str) -> None:
        made = {
            "version": "v3",
            "k_dim": 80,
            "v_dim": 80,
            "scales": False,
            "bits": True,
            "k_scale": None,
            "v_scale": None,
            **CACHES[name],
        }
        self.rng = np.random.default_rng(seed)
        self.dtype = jnp.dtype(made["dtype"])
        self.options = {"k_scale": made["k_scale"], "v_scale": made["v_scale"], "kv_dtype": self.dtype}
        new_dtype: Any = np.float32 if self.dtype.itemsize == 1 else self.dtype
        self.keys, self.values = (
            self.rng.standard_normal((TOKENS, HEADS, dim)).astype(new_dtype) for dim in (made["k_dim"], made["v_dim"])
        )
        self.rows, self.row_scales = self._rows(made)
        stored = storage_dtype(self.dtype, "cpu" if made["bits"] else "tpu")
        shape = (PAGES, PAGE, *self.rows.shape[1:])
        values = self.rng.integers(0, 256, (*shape, stored.itemsize), np.uint8).view(stored)[..., 0]
        scales = self.rng.standard_normal((PAGES, PAGE, 2 * HEADS)).astype(np.float32)
        self.pages: Any = ScaledPages(cast(Any, values), cast(Any, scales)) if made["scales"] else values
        self.layout = layout_of(values, made["k_dim"], made["v_dim"], HEADS)

    def _rows(self, made: dict[str, Any]) -> tuple[Array, Array | None]:
        """What the slots must hold, in the reference's own arithmetic."""
        if made["scales"]:
            (keys, k_scales), (values, v_scales) = scaled(self.keys, self.dtype), scaled(self.values, self.dtype)
            return pack(keys, values, made["version"]), np.stack([k_scales, v_scales], -1).reshape(TOKENS, -1)
        parts = []
        for part, scale in ((self.keys, made["k_scale"]), (self.values, made["v_scale"])):
            number: Any = part if scale is None else part / np.float32(scale)
            number = np.clip(np.rint(number), -127, 127) if self.dtype == np.int8 else number
            parts.append(number.astype(self.dtype))
        return pack(parts[0], parts[1], made["version"]), None

    def expected(self, slots: Array) -> list[Array]:
        """The arrays of the pages after row t went to slot ``slots[t]``."""
        after = []
        for array, rows in zip(jax.tree.leaves(self.pages), (self.rows, self.row_scales), strict=False):
            assert rows is not None
            flat = array.reshape(PAGES * PAGE, *array.shape[2:]).copy()
            for row, slot in zip(rows.view(array.dtype), slots, strict=True):
                if 0 <= slot < PAGES * PAGE:
                    flat[slot] = row
            after.append(flat.reshape(array.shape))
        return after

    def check(self, after: Any, slots: Array) -> None:
        """CACHE-3: bit for bit, padding zeros included."""
        assert isinstance(after, ScaledPages) == isinstance(self.pages, ScaledPages)
        for got, want in zip(jax.tree.leaves(after), self.expected(slots), strict=True):
            np.testing.assert_array_equal(np.asarray(got).view(np.uint8), want.view(np.uint8))


@pytest.mark.parametrize("name", CACHES)
@settings(max_examples=15)
@given(seed=st.integers(0, 2**32), written=st.integers(0, TOKENS))
def test_named_slots_change_and_nothing_else(name: str, seed: int, written: int) -> None:
    """CACHE-3: padding of any negative number, and slots that don't exist, write nothing."""
    cache = Cache(seed, name)
    slots = cache.rng.choice([-1, -(2**31), PAGES * PAGE, 2**31 - 1], TOKENS).astype(np.int32)
    slots[cache.rng.permutation(TOKENS)[:written]] = cache.rng.permutation(PAGES * PAGE)[:written]
    cache.check(kv_cache_update(cache.pages, cache.keys, cache.values, slots, **cache.options), slots)


@pytest.mark.parametrize("name", ["v2_float32", "v3_bfloat16", "v3_int8"])
@settings(max_examples=25)
@given(seed=st.integers(0, 2**32), data=st.data())
def test_slices_write_what_slots_would(name: str, seed: int, data: st.DataObject) -> None:
    """CACHE-3: runs inside a page; columns past their number hold garbage; a row may go to several places."""
    cache = Cache(seed, name)
    row_of_slot = np.full(PAGES * PAGE, -1)
    count = data.draw(st.integers(0, SLICES))
    slices = cache.rng.choice([-7, 0, 3, 2**31 - 1], (3, SLICES)).astype(np.int32)
    for i, page in enumerate(cache.rng.permutation(PAGES)[:count]):
        offset = data.draw(st.integers(0, PAGE - 1))
        length = data.draw(st.integers(1, PAGE - offset))
        row = data.draw(st.integers(0, TOKENS - length))
        start = page * PAGE + offset
        slices[:, i] = (start, row, length)
        row_of_slot[start : start + length] = np.arange(row, row + length)
    written = row_of_slot >= 0
    after = kv_cache_update(
        cache.pages, cache.keys, cache.values, slices, num_slices=np.array([count], np.int32), **cache.options
    )
    flat = [array.reshape(PAGES * PAGE, *array.shape[2:]) for array in jax.tree.leaves(cache.pages)]
    rows = [part for part in (cache.rows, cache.row_scales) if part is not None]
    for got, before, new in zip(jax.tree.leaves(after), flat, rows, strict=True):
        want = before.copy()
        want[written] = new.view(before.dtype)[row_of_slot[written]]
        np.testing.assert_array_equal(np.asarray(got).view(np.uint8).reshape(-1), want.view(np.uint8).reshape(-1))


@pytest.mark.parametrize("name", CACHES)
def test_what_was_written_is_read_back(name: str) -> None:
    """CACHE-2, CACHE-4: exactly where nothing was rounded, else within half a step."""
    cache = Cache(0, name)
    slots = cache.rng.permutation(PAGES * PAGE)[:TOKENS].astype(np.int32)
    after = kv_cache_update(cache.pages, cache.keys, cache.values, slots, **cache.options)
    values = (after.values if isinstance(after, ScaledPages) else after).reshape(PAGES * PAGE, *cache.rows.shape[1:])
    numbers = from_bits(values[slots], cache.dtype)
    relative, absolute = ERRORS.get(cache.dtype.name, (0, 0))
    for part, (unpack, exact) in enumerate(((unpack_keys, cache.keys), (unpack_values, cache.values))):
        scale: Any = (cache.options["k_scale"], cache.options["v_scale"])[part] or 1.0
        if isinstance(after, ScaledPages):
            scales = np.asarray(after.scales).reshape(PAGES * PAGE, -1)[slots, part::2, None]
            scale = scales.astype(np.float64)
        read = np.asarray(unpack(numbers, cache.layout)).astype(np.float64) * scale
        error = np.abs(read - exact.astype(np.float64))
        assert (error <= (relative * np.abs(exact.astype(np.float64)) + absolute * scale) * (1 + 1e-6)).all()


def test_static_scales_saturate() -> None:
    """CACHE-4: what is too large for the scale becomes the largest number."""
    pages = jnp.zeros((2, 4, 1, 4, 128), jnp.uint8)
    rows = jnp.array([1e30, -1e30, jnp.inf, -jnp.inf], jnp.float32)[:, None, None] * jnp.ones((1, 2, 128))
    slots = jnp.arange(4, dtype=jnp.int32)
    for dtype, bound in ((jnp.float8_e4m3fn, 448.0), (jnp.float8_e5m2, 57344.0)):
        after = kv_cache_update(pages, rows, rows, slots, kv_dtype=dtype, k_scale=0.5, v_scale=0.5)
        read = np.asarray(from_bits(after, dtype)).astype(np.float64)[0, :, 0]
        np.testing.assert_array_equal(read, bound * np.array([1, -1, 1, -1.0])[:, None, None] * np.ones((1, 4, 128)))


def test_a_slot_that_the_padding_repeats_is_still_written() -> None:
    """CACHE-3: padding, dropped, can't overwrite slot 0 or the last one."""
    pages = jnp.zeros((2, 4, 2, 128), jnp.float32)
    rows = jnp.arange(1, 6, dtype=jnp.float32)[:, None, None] * jnp.ones((1, 1, 128))
    slots = jnp.array([0, 7, -1, -8, 8], jnp.int32)
    after = np.asarray(kv_cache_update(pages, rows, rows, slots))
    assert after[0, 0].min() == after[0, 0].max() == 1
    assert after[1, 3].min() == after[1, 3].max() == 2
    assert np.count_nonzero(after) == 2 * 2 * 128


def test_the_last_page_is_written_at_its_own_offset() -> None:
    """CACHE-3: no slice that is moved to fit in (a slice at the last page's offset 2 once landed at 0)."""
    pages = jnp.zeros((3, 4, 2, 128), jnp.float32)
    rows = jnp.ones((4, 1, 128), jnp.float32)
    slices = jnp.array([[10], [2], [2]], jnp.int32)
    after = np.asarray(kv_cache_update(pages, rows, rows, slices, num_slices=jnp.array([1], jnp.int32)))
    written = np.flatnonzero(after.reshape(12, -1).any(1))
    np.testing.assert_array_equal(written, [10, 11])


@pytest.mark.parametrize("column", [(6, 0, 3), (0, 3, 2), (0, 0, 5), (-1, 0, 1), (12, 0, 1), (0, -1, 1), (4, 0, -2)])
def test_a_slice_that_leaves_its_page_or_the_rows_writes_nothing(column: tuple[int, int, int]) -> None:
    """R1: unvalidated, it is dropped as a whole; the slice beside it is written."""
    pages = jnp.zeros((3, 4, 2, 128), jnp.float32)
    rows = jnp.ones((4, 1, 128), jnp.float32)
    slices = jnp.array([(9, 1, 2), column], jnp.int32).T
    after = kv_cache_update(pages, rows, rows, slices, num_slices=jnp.array([2], jnp.int32))
    np.testing.assert_array_equal(np.flatnonzero(np.asarray(after).reshape(12, -1).any(1)), [9, 10])


def test_nothing_to_write() -> None:
    pages = jnp.ones((2, 4, 2, 128), jnp.float32)
    rows = jnp.zeros((0, 1, 128), jnp.float32)
    np.testing.assert_array_equal(kv_cache_update(pages, rows, rows, jnp.zeros(0, jnp.int32)), pages)
    none = partial(kv_cache_update, pages, rows, rows, num_slices=jnp.array([0], jnp.int32))
    np.testing.assert_array_equal(none(jnp.zeros((3, 0), jnp.int32)), pages)
    np.testing.assert_array_equal(none(jnp.zeros((3, 2), jnp.int32)), pages)


@pytest.mark.parametrize("slot_axis", [1, -1])
@settings(max_examples=10)
@given(seed=st.integers(0, 2**32))
def test_whole_pages_put_back_hold_what_a_scatter_writes(slot_axis: int, seed: int) -> None:
    """CACHE-3: XLA for TPUs writes so what it would copy the cache for; slots and slices, with garbage among them."""
    rng = np.random.default_rng(seed)
    pages, rows = (
        rng.integers(-128, 128, (number, *shape), np.int8)
        for number, shape in ((PAGES, (PAGE, 3, 4) if slot_axis == 1 else (3, 4, PAGE)), (TOKENS, (3, 4)))
    )
    slots = rng.choice([-1, -(2**31), PAGES * PAGE, 2**31 - 1], TOKENS).astype(np.int32)
    written = rng.integers(0, TOKENS + 1)
    slots[rng.permutation(TOKENS)[:written]] = rng.permutation(PAGES * PAGE)[:written]
    slices = rng.choice([-7, 0, 3, 2**31 - 1], (3, SLICES)).astype(np.int32)
    count = rng.integers(0, SLICES + 1)
    for i, page in enumerate(rng.permutation(PAGES)[:count]):
        offset, row = rng.integers(0, PAGE), rng.integers(0, TOKENS)
        slices[:, i] = (page * PAGE + offset, row, rng.integers(0, PAGE + 2))
    for mapping in ((slots,), (slices, np.array([count], np.int32))):
        arrays = [jnp.asarray(array) for array in (pages, rows, *mapping)]
        after, expected = (
            np.asarray(jax.jit(partial(update, slot_axis=slot_axis, by_page=by_page))(*arrays))
            for by_page in (True, False)
        )
        np.testing.assert_array_equal(after, expected)
        assert written == 0 or len(mapping) == 2 or (after != pages).any()
