"""CACHE-2: the layouts' shapes, and the small formulas around them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof import spec
from kvproof.spec.layout.cache_dtypes import CODES
from kvproof.spec.layout.cache_layout import CacheLayout

from .ragged_batches import Heads, placed


@given(value=st.integers(-(10**6), 10**6), multiple=st.integers(1, 1000))
def test_align_to_multiple_is_the_least_one(value: int, multiple: int) -> None:
    aligned = spec.align_to_multiple(value, multiple)
    assert aligned % multiple == 0
    assert value <= aligned < value + multiple


@given(n=st.integers(1, 2**70))
def test_previous_power_of_2_is_the_largest_one(n: int) -> None:
    power = spec.previous_power_of_2(n)
    assert power & (power - 1) == 0
    assert power <= n < 2 * power


def test_zero_has_no_power_of_2_before_it() -> None:
    assert spec.previous_power_of_2(0) == 0


def test_dtypes_pack_into_32_bits() -> None:
    assert {code: spec.get_dtype_packing(dtype) for code, dtype in CODES.items()} == {
        "f32": 1,
        "bf16": 2,
        "f16": 2,
        "f8_e4m3": 4,
        "f8_e5m2": 4,
        "int8": 4,
    }


@pytest.mark.parametrize(
    ("page_bytes", "slices"), [(1, 64), (2**18, 64), (2**18 + 1, 32), (2**24, 1), (2**24 + 1, 1), (2**40, 1)]
)
def test_update_slices_of_a_round_fit_16_mib(page_bytes: int, slices: int) -> None:
    assert spec.get_num_slices_per_kv_cache_update_page(page_bytes) == slices


@pytest.mark.parametrize(
    ("heads", "size", "dtype", "elements"),
    [
        (8, 128, "bf16", 16 * 128),
        (8, 96, "bf16", 16 * 128),
        (8, 32, "bf16", 16 * 128),
        (8, 64, "bf16", 8 * 128),
        (3, 64, "bf16", 4 * 128),
        (1, 128, "f8_e4m3", 4 * 128),
        (1, 64, "f8_e4m3", 4 * 128),
        (1, 192, "f32", 2 * 256),
    ],
)
def test_cache_1_page_bytes_count_padding(heads: int, size: int, dtype: str, elements: int) -> None:
    """A size worked out from the heads alone takes up to 4 times the budget."""
    assert spec.get_page_size_bytes(16, heads, size, dtype) == 16 * elements * CODES[dtype].itemsize


@given(
    version=st.sampled_from(["v2", "v3", "seq_on_lane"]),
    num_kv=st.integers(1, 6),
    sizes=st.sampled_from([(64, 64), (64, 8), (8, 64), (1, 1), (130, 128), (128, 256)]),
    code=st.sampled_from(sorted(CODES)),
)
def test_cache_2_what_is_packed_is_unpacked(version: str, num_kv: int, sizes: tuple[int, int], code: str) -> None:
    """And what is packed is, row by row, what the layout is documented to be."""
    dtype = CODES[code]
    layout = CacheLayout(version, num_kv, *sizes, 4 // dtype.itemsize)
    rng = np.random.default_rng(0)
    slots = [[rng.integers(-9, 9, (num_kv, size)).astype(dtype) for size in sizes] for _ in range(2)]
    packed = np.stack([layout.pack(key, value) for key, value in slots])
    for place, (key, value) in enumerate(slots):
        wanted = placed(Heads(num_kv, 1, *sizes, version), key, value)
        assert packed[place].shape == layout.slot_shape == wanted.shape
        assert packed[place].tobytes() == wanted.tobytes()
        assert layout.slot_elements == wanted.size
    keys, values = layout.unpack(packed)
    assert keys.tobytes() == np.stack([key for key, _ in slots]).tobytes()
    assert values.tobytes() == np.stack([value for _, value in slots]).tobytes()
