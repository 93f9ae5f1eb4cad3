"""CACHE-3, CACHE-4, R1: updates at their edges, numbers that saturate, and what is refused.

What an update writes, and that it writes nothing else, the machine `cache` holds both packages to.
"""

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from kvproof import spec
from kvproof.spec.clauses import clause_of_message
from kvproof.spec.layout.cache_dtypes import CODES, read_dtype, saturated

from .ragged_batches import Heads, empty_slot, i32

SATURATING = ("int8", "f8_e4m3", "f8_e5m2")
LARGEST = {"int8": 127.0, "f8_e4m3": 448.0, "f8_e5m2": 57344.0}


def _pages(heads: Heads, dtype: Any, shape: tuple[int, int] = (4, 3)) -> Any:
    """Pages of random bits, NaN among them."""
    rng = np.random.default_rng(5)
    slot = empty_slot(heads, dtype)
    return rng.integers(0, 256, (*shape, slot.nbytes), np.uint8).view(slot.dtype).reshape(*shape, *slot.shape)


def _tokens(heads: Heads, num: int, seed: int = 0, scale: float = 1.0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    sizes = heads.size, heads.v_size
    keys, values = (scale * rng.normal(size=(num, heads.num_kv, size)) for size in sizes)
    return keys.astype(np.float32), values.astype(np.float32)


# -- CACHE-2, CACHE-3 -----------------------------------------------------------------------------


def test_cache_3_the_last_slots_of_the_last_page_are_where_they_are() -> None:
    """A slice cut to fit moved such a write to the front of the page."""
    pages = np.zeros((2, 4, 2, 128), np.float32)
    ones = np.ones((2, 1, 8), np.float32)
    after = spec.kv_cache_update(pages, ones, ones, np.array([[6], [0], [2]], np.int32), num_slices=i32(1))
    assert after[..., 0, 0].tolist() == [[0, 0, 0, 0], [0, 0, 1, 1]]


def test_cache_3_bits_stay_bits() -> None:
    heads = Heads(2, 1, 8, 8, "v3")
    pages = _pages(heads, ml_dtypes.bfloat16)
    keys, values = _tokens(heads, 2)
    plain = spec.kv_cache_update(pages, keys, values, i32(1, 4))
    bits = spec.kv_cache_update(pages.view(np.uint16), keys, values, i32(1, 4), kv_dtype=ml_dtypes.bfloat16)
    assert bits.dtype == np.uint16
    assert np.array_equal(bits, plain.view(np.uint16))


# -- CACHE-4 --------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", SATURATING)
@pytest.mark.parametrize("scale", [None, 0.5])
def test_cache_4_numbers_saturate(code: str, scale: float | None) -> None:
    dtype = CODES[code]
    keys = np.array([[[1e30, -1e30, np.inf, -np.inf, 0.0]]], np.float32)
    factor = 1.0 if scale is None and code == "int8" else scale
    after = spec.kv_cache_update(np.zeros((2, 1, 2, 128), dtype), keys, keys, i32(1), k_scale=factor, v_scale=factor)
    top = LARGEST[code]
    assert after[1, 0, :, :6].astype(np.float64).tolist() == [[top, -top, top, -top, 0.0, 0.0]] * 2
    scaled = spec.ScaledPages(np.zeros((2, 1, 2, 128), dtype), np.zeros((2, 1, 2), np.float32))
    after = spec.kv_cache_update(scaled, keys, keys, i32(1))
    assert np.isfinite(after.scales).all()
    assert np.isfinite(after.values.astype(np.float64)).all()
    assert after.values[1, 0, 0, 2:4].astype(np.float64).tolist() == [top, -top]


def test_cache_4_halves_are_rounded_to_even() -> None:
    numbers = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 126.5, 127.5, np.nan])
    assert saturated(numbers, CODES["int8"]).tolist() == [0, 2, 2, 0, -2, 126, 127, 0]


@pytest.mark.parametrize(
    ("spelling", "code"),
    [
        ("bf16", "bf16"),
        ("bfloat16", "bf16"),
        (ml_dtypes.bfloat16, "bf16"),
        (np.dtype(np.float16), "f16"),
        ("float8_e4m3fn", "f8_e4m3"),
        ("f8_e5m2", "f8_e5m2"),
        (np.int8, "int8"),
        ("float32", "f32"),
    ],
)
def test_dtypes_have_many_names_and_one_code(spelling: Any, code: str) -> None:
    assert read_dtype("dtype", spelling) == CODES[code]


# -- R1 -------------------------------------------------------------------------------------------

_KEYS = np.zeros((2, 1, 8), np.float32)
_PAGES = np.zeros((4, 3, 2, 128), np.float32)


def _slices(*columns: tuple[int, int, int]) -> Any:
    return np.array(columns, np.int32).T


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"keys": _KEYS[:, :, :0]}, ValueError, "keys.shape=(2, 1, 0)"),
    ({"kv_pages": spec.ScaledPages(_PAGES, _PAGES)}, TypeError, "kv_pages.values.dtype=float32 has no scales"),
    (
        {"kv_pages": spec.ScaledPages(_PAGES.astype(np.int8), np.zeros((4, 3, 3), np.float32))},
        ValueError,
        "kv_pages.scales.shape=(4, 3, 3)",
    ),
    ({"slot_mapping": _slices((0, 0, 1)), "num_slices": i32(1, 1)}, ValueError, "num_slices.shape=(2,)"),
]


def _given(changes: dict[str, Any]) -> dict[str, Any]:
    return {"kv_pages": _PAGES, "keys": _KEYS, "values": _KEYS, "slot_mapping": i32(0, 1), **changes}


@pytest.mark.parametrize(("changes", "kind", "text"), WRONG)
def test_r1_a_wrong_argument_is_refused_by_name(changes: dict[str, Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=re.escape(text)) as caught:
        spec.kv_cache_update(**_given(changes))
    assert clause_of_message(str(caught.value)) in spec.CLAUSES


def test_r1_validate_looks_at_the_contents() -> None:
    wrong = {"slot_mapping": _slices((-1, 0, 1)), "num_slices": i32(1)}
    with pytest.raises(IndexError, match="a slot of at least 0"):
        spec.kv_cache_update(**_given(wrong), validate=True)
