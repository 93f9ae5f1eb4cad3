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

pytest.importorskip("absl", reason="absl-py, which Mosaic GPU needs, is not installed")

from kvproof.kernels.gpu import interpreted, update

from .update_cases import Array, Updates, as_bits, numbers

NUM_PAGES, PAGE_SIZE = 7, 5
NUM_SLOTS = NUM_PAGES * PAGE_SIZE
NUM_ROWS = 11  # blocks of four: the last one reaches back
UPDATES = Updates(NUM_PAGES, PAGE_SIZE, NUM_ROWS)
ROWS = {"v2": ((4, 128), jnp.dtype(jnp.float8_e4m3fn)), "v3": ((1, 2, 128), jnp.dtype(jnp.bfloat16))}
"""The rows of a slot, and their dtype."""


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


def check(run: interpreted.Run, expected: Array) -> None:
    assert run.minds == ""
    np.testing.assert_array_equal(as_bits(run.output), as_bits(expected))


@pytest.mark.parametrize("version", ROWS)
@given(seed=st.integers(0, 2**32 - 1), share=st.sampled_from([0.0, 0.3, 1.0]))
@settings(max_examples=4)
def test_rows_go_to_their_slots(version: str, seed: int, share: float) -> None:
    """CACHE-3: slots named are written, slots that don't exist write nothing, the rest stays bit for bit."""
    drawn, expected = UPDATES.by_slots(np.random.default_rng(seed), *ROWS[version], share)
    check(interpreted.run(by_slots, *drawn), expected)


@given(seed=st.integers(0, 2**32 - 1), num_slices=st.integers(0, NUM_PAGES))
@settings(max_examples=4)
def test_slices_go_to_their_slots(seed: int, num_slices: int) -> None:
    """CACHE-3: columns past ``num_slices`` are not looked at, slices that don't fit are dropped whole."""
    drawn, expected = UPDATES.by_slices(np.random.default_rng(seed), *ROWS["v3"], num_slices)
    check(interpreted.run(by_slices, *drawn), expected)


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
    pages, rows = UPDATES.arrays(rng, row, dtype)
    slots = np.arange(NUM_SLOTS - NUM_ROWS + 1, NUM_SLOTS + 1, dtype=np.int32)  # the last one is none
    expected = pages.reshape(NUM_SLOTS, *row).copy()
    expected[slots[:-1]] = rows[:-1]
    return interpreted.run(partial(by_slots), pages, rows, slots), expected.reshape(pages.shape)


def test_a_missing_wait_is_found(plant: Callable[[Any, str, Any], None]) -> None:
    """The interpreter is worth trusting: rows that are moved on before they are there race."""
    check(*_seeded())
    plant(update, "wait", lambda _: None)
    try:
        minds = _seeded()[0].minds
    except jax.errors.JaxRuntimeError as error:  # JAX 0.12 ends a kernel that races
        minds = str(error)
    assert "RACE DETECTED" in minds


def test_a_guard_that_is_lost_is_found(plant: Callable[[Any, str, Any], None]) -> None:
    """A write outside of the pages raises, so that a guard that is lost can't go unseen."""
    plant(update, "is_slot", lambda slot, _: slot >= 0)
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"(?i)out.of.bounds"):
        _seeded()
