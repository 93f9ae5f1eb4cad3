"""Slots written by a GPU's copies, interpreted: what is named changes, all else stays (CACHE-3)."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

pytest.importorskip("absl", reason="absl-py, which Mosaic GPU needs, is not installed")

from kvproof.kernels.gpu import interpreted, update

NUM_PAGES, PAGE_SIZE = 7, 5
NUM_SLOTS = NUM_PAGES * PAGE_SIZE
NUM_ROWS = 11  # blocks of four: the last one reaches back
ROWS = {"v2": ((4, 128), jnp.dtype(jnp.float8_e4m3fn)), "v3": ((1, 2, 128), jnp.dtype(jnp.bfloat16))}
"""The rows of a slot, and their dtype."""

NO_SLOT = [-1, -PAGE_SIZE, -(2**31), NUM_SLOTS, NUM_SLOTS + PAGE_SIZE - 1, 2**31 - 1]

Array = NDArray[Any]


@pytest.fixture(autouse=True, scope="module")
def _few_blocks() -> Iterator[None]:
    """So that few rows fill blocks of four, and slices come in pieces of two."""
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(update, "_FEWEST_BLOCKS", 2)
        patches.setattr(update, "_BLOCK_ROWS", 4)
        yield


def by_slots(pages: jax.Array, rows: jax.Array, slots: jax.Array) -> jax.Array:
    return update.update(pages, rows, slots, interpret=interpreted.interpret_params())


def by_slices(pages: jax.Array, rows: jax.Array, slices: jax.Array, count: jax.Array) -> jax.Array:
    return update.update_slices(pages, rows, slices, count, interpret=interpreted.interpret_params())


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Signed normal numbers, some of them NaN: what is moved is not looked at."""
    drawn = rng.standard_normal(shape)
    drawn[rng.random(shape[:1]) < 0.2] = np.nan
    return drawn.astype(dtype)


def as_bits(array: Array) -> Array:
    return array.view(f"u{array.dtype.itemsize}")


def check(run: interpreted.Run, expected: Array) -> None:
    assert run.minds == ""
    np.testing.assert_array_equal(as_bits(run.output), as_bits(expected))


@pytest.mark.parametrize("version", ROWS)
@given(seed=st.integers(0, 2**32 - 1), share=st.sampled_from([0.0, 0.3, 1.0]))
@settings(max_examples=4)
def test_rows_go_to_their_slots(version: str, seed: int, share: float) -> None:
    """CACHE-3: slots named are written, slots that don't exist write nothing, the rest stays bit for bit."""
    rng, (row, dtype) = np.random.default_rng(seed), ROWS[version]
    pages, rows = numbers(rng, (NUM_PAGES, PAGE_SIZE, *row), dtype), numbers(rng, (NUM_ROWS, *row), dtype)
    slots = rng.choice(np.array(NO_SLOT), NUM_ROWS).astype(np.int32)
    named = np.flatnonzero(rng.random(NUM_ROWS) < share)
    slots[named] = rng.permutation(NUM_SLOTS)[: len(named)]
    expected = pages.reshape(NUM_SLOTS, *row).copy()
    expected[slots[named]] = rows[named]
    check(interpreted.run(by_slots, pages, rows, slots), expected.reshape(pages.shape))


def draw_slices(rng: np.random.Generator, num_slices: int) -> Array:
    """Disjoint slices, each within a page, whole pages and single slots among them; `i32[3, num_slices]`."""
    slices = []
    for page in rng.permutation(NUM_PAGES)[:num_slices]:
        begin, end = sorted(rng.integers(0, PAGE_SIZE + 1, 2)) if rng.random() < 0.7 else (0, PAGE_SIZE)
        length = max(int(end - begin), 1)
        slot = int(page) * PAGE_SIZE + min(int(begin), PAGE_SIZE - length)
        slices.append((slot, int(rng.integers(0, NUM_ROWS - length + 1)), length))
    return np.array(slices, np.int32).reshape(-1, 3).T


BAD_SLICES = [
    (-1, 0, 1),
    (NUM_SLOTS, 0, 1),
    (PAGE_SIZE - 1, 0, 2),  # runs over its page's end
    (NUM_SLOTS - 1, 0, 2),  # and the pool's
    (0, NUM_ROWS - 1, 2),  # runs over the rows' end
    (0, -1, 1),
    (0, 0, 0),
    (0, 0, -1),
    (0, 0, PAGE_SIZE + 1),
    (2**31 - 1, 2**31 - 1, 2**31 - 1),
    (-(2**31), -(2**31), -(2**31)),
]


@given(seed=st.integers(0, 2**32 - 1), num_slices=st.integers(0, NUM_PAGES))
@settings(max_examples=4)
def test_slices_go_to_their_slots(seed: int, num_slices: int) -> None:
    """CACHE-3: columns past ``num_slices`` are not looked at, slices that don't fit are dropped whole."""
    rng, (row, dtype) = np.random.default_rng(seed), ROWS["v3"]
    pages, rows = numbers(rng, (NUM_PAGES, PAGE_SIZE, *row), dtype), numbers(rng, (NUM_ROWS, *row), dtype)
    good = draw_slices(rng, num_slices)
    expected = pages.reshape(NUM_SLOTS, *row).copy()
    for slot, begin, length in good.T:
        expected[slot : slot + length] = rows[begin : begin + length]
    bad = np.array(BAD_SLICES, np.int32).T
    counted = np.concatenate([good, bad], axis=1)
    counted = counted[:, rng.permutation(counted.shape[1])]
    ignored = draw_slices(rng, NUM_PAGES)
    slices = np.concatenate([counted, ignored], axis=1)[:, : NUM_PAGES + bad.shape[1]]
    count = np.array([counted.shape[1]], np.int32)
    check(interpreted.run(by_slices, pages, rows, slices, count), expected.reshape(pages.shape))


def test_keys_and_values_are_packed_and_written() -> None:
    """CACHE-2, CACHE-3: the entry for tests that go through a backend."""
    rng = np.random.default_rng(0)
    pages = numbers(rng, (NUM_PAGES, PAGE_SIZE, 2, 128), np.dtype(np.float32))
    keys, values = numbers(rng, (2, 3, 1, 128), np.dtype(np.float32))
    expected = pages.reshape(NUM_SLOTS, 2, 128).copy()
    expected[[4, 0]] = np.concatenate([keys, values], axis=1)[[0, 2]]
    run = interpreted.update(pages, keys, values, np.array([4, -1, 0], np.int32))
    check(run, expected.reshape(pages.shape))


def test_attention_that_no_kernel_takes_is_refused() -> None:
    arrays = [np.zeros(shape, np.float32) for shape in ((1, 2, 128), (2, 16, 4, 128))]
    lengths = [np.zeros(shape, np.int32) for shape in (1, (1, 2), 2, 1)]
    with pytest.raises(ValueError, match="do not take this call: queries of float32"):
        interpreted.attend(*arrays, *lengths, num_kv_heads=2)


def test_nothing_to_do_changes_nothing() -> None:
    pages = jnp.ones((2, 2, 2, 128))
    none = jnp.zeros(0, jnp.int32)
    assert update.update(pages, jnp.zeros((0, 2, 128)), none) is pages
    assert update.update_slices(pages, jnp.zeros((3, 2, 128)), none.reshape(3, 0), jnp.zeros(1, jnp.int32)) is pages


def test_slots_that_are_no_whole_copies_are_left_to_xla() -> None:
    array: Callable[..., Any] = jax.ShapeDtypeStruct
    assert update.unsupported(array((2, 2, 2, 128), jnp.float16)) is None
    assert update.unsupported(array((2, 2, 640), jnp.uint8)) is None
    assert "16 numbers" in str(update.unsupported(array((2, 2, 16), jnp.float32)))
    assert "too large" in str(update.unsupported(array((2, 2, 1024, 128), jnp.uint8)))
    assert "too large" in str(update.unsupported(array((2, 2, 512, 128), jnp.float32)))
    assert "8 bytes" in str(update.unsupported(array((2, 2, 2, 128), jnp.complex64)))


def _seeded() -> tuple[interpreted.Run, Array]:
    rng, (row, dtype) = np.random.default_rng(0), ROWS["v3"]
    pages, rows = numbers(rng, (NUM_PAGES, PAGE_SIZE, *row), dtype), numbers(rng, (NUM_ROWS, *row), dtype)
    slots = np.arange(NUM_SLOTS - NUM_ROWS + 1, NUM_SLOTS + 1, dtype=np.int32)  # the last one is none
    expected = pages.reshape(NUM_SLOTS, *row).copy()
    expected[slots[:-1]] = rows[:-1]
    return interpreted.run(partial(by_slots), pages, rows, slots), expected.reshape(pages.shape)


def test_a_missing_wait_is_found(plant: Callable[[Any, str, Any], None]) -> None:
    """The interpreter is worth trusting: rows that are moved on before they are there race."""
    check(*_seeded())
    plant(update, "wait", lambda _: None)
    run, _ = _seeded()
    assert "RACE DETECTED" in run.minds


def test_a_guard_that_is_lost_is_found(plant: Callable[[Any, str, Any], None]) -> None:
    """A write outside of the pages raises, so that a guard that is lost can't go unseen."""
    plant(update, "is_slot", lambda slot, _: slot >= 0)
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"(?i)out.of.bounds"):
        _seeded()
