"""Slots and pages written by copies of a TPU, interpreted: what is named changes, all else stays (CACHE-3, MAN-13)."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvproof.kernels.tpu import copy, in_flight, update

from .interpreting import MODES, Interpreted, Outcome

NUM_PAGES, PAGE_SIZE = 13, 4
NUM_SLOTS = NUM_PAGES * PAGE_SIZE
NUM_ROWS = in_flight.IN_FLIGHT + 8  # more than are in flight at once
ROWS = {"v2": ((4, 128), np.dtype(np.float32)), "v3": ((3, 2, 128), jnp.dtype(jnp.bfloat16))}
"""The rows of a slot, and their dtype."""

NO_SLOT = [-1, -PAGE_SIZE, -(2**31), NUM_SLOTS, NUM_SLOTS + PAGE_SIZE - 1, 2**31 - 1]

Array = NDArray[Any]


@cache
def compiled(function: Callable[..., jax.Array]) -> Interpreted:
    return Interpreted(lambda params: partial(function, interpret=params))


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Signed normal numbers, some of them NaN: what is moved is not looked at."""
    drawn = rng.standard_normal(shape)
    drawn[rng.random(shape[:1]) < 0.2] = np.nan
    return drawn.astype(dtype)


def as_bits(array: Array) -> Array:
    return array.view(f"u{array.dtype.itemsize}")


def check(outcomes: dict[str, Outcome], expected: Array) -> None:
    for mode, outcome in outcomes.items():
        assert outcome.clean, (mode, outcome)
        np.testing.assert_array_equal(as_bits(outcome.output), as_bits(expected), err_msg=mode)


@pytest.mark.parametrize("version", ROWS)
@given(seed=st.integers(0, 2**32 - 1), share=st.sampled_from([0.0, 0.3, 1.0]))
@settings(max_examples=6)
def test_rows_go_to_their_slots(version: str, seed: int, share: float) -> None:
    """CACHE-3: slots named are written, slots that don't exist write nothing, the rest stays bit for bit."""
    rng, (row, dtype) = np.random.default_rng(seed), ROWS[version]
    pages, rows = numbers(rng, (NUM_PAGES, PAGE_SIZE, *row), dtype), numbers(rng, (NUM_ROWS, *row), dtype)
    slots = rng.choice(np.array(NO_SLOT), NUM_ROWS).astype(np.int32)
    named = np.flatnonzero(rng.random(NUM_ROWS) < share)
    slots[named] = rng.permutation(NUM_SLOTS)[: len(named)]
    expected = pages.reshape(NUM_SLOTS, *row).copy()
    expected[slots[named]] = rows[named]
    check(compiled(update.update)(pages, rows, slots), expected.reshape(pages.shape))


@pytest.mark.parametrize("row", [(10, 128), (128,)])
def test_slots_that_fill_no_tiles_are_written_by_xla(row: tuple[int, ...]) -> None:
    """CACHE-3: the same slots, written by other means."""
    rng = np.random.default_rng(0)
    pages, rows = (rng.standard_normal((*shape, *row)).astype(np.float32) for shape in ((3, 4), (9,)))
    slots = np.array([3, -1, 11, 12, -(2**31), 2**31 - 1, 0, 5, 6], np.int32)
    expected = pages.reshape(12, *row).copy()
    live = (slots >= 0) & (slots < 12)
    expected[slots[live]] = rows[live]
    written = jax.jit(update.scatter)(pages, rows, slots)
    np.testing.assert_array_equal(written, expected.reshape(pages.shape))


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
@settings(max_examples=6)
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
    check(compiled(update.update_slices)(pages, rows, slices, count), expected.reshape(pages.shape))


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=6)
def test_pages_go_to_their_destinations(seed: int) -> None:
    """MAN-13: pairs with an id that doesn't exist, on either side, do nothing."""
    rng = np.random.default_rng(seed)
    pages = numbers(rng, (NUM_PAGES, 2, 3, 128), np.dtype(np.float32))
    ids = rng.permutation(NUM_PAGES)
    num_pairs = NUM_PAGES // 2
    sources, destinations = ids[:num_pairs].astype(np.int32), ids[num_pairs : 2 * num_pairs].astype(np.int32)
    for side in (sources, destinations):
        lost = np.flatnonzero(rng.random(num_pairs) < 0.2)
        side[lost] = rng.choice([-1, -(2**31), NUM_PAGES, 2**31 - 1], len(lost))
    live = np.isin(sources, ids) & np.isin(destinations, ids)
    expected = pages.copy()
    expected[destinations[live]] = pages[sources[live]]
    check(compiled(copy.copy_pages)(pages, sources, destinations), expected)


def test_nothing_to_do_changes_nothing() -> None:
    pages = jnp.ones((2, 2, 2, 128))
    none = jnp.zeros(0, jnp.int32)
    assert update.update(pages, jnp.zeros((0, 2, 128)), none) is pages
    assert update.update_slices(pages, jnp.zeros((3, 2, 128)), none.reshape(3, 0), jnp.zeros(1, jnp.int32)) is pages
    assert copy.copy_pages(pages, none, none) is pages


def test_pages_whose_slots_share_tiles_are_left_to_others() -> None:
    assert update.unsupported(jnp.zeros((2, 2, 2, 128))) is None
    assert "tile" in str(update.unsupported(jnp.zeros((2, 2, 128))))
    assert "10 rows" in str(update.unsupported(jnp.zeros((2, 2, 10, 128))))
    assert "2 rows of int8" in str(update.unsupported(jnp.zeros((2, 2, 2, 128), jnp.int8)))
    assert update.unsupported(jnp.zeros((2, 2, 1, 4, 128), jnp.int8)) is None
    assert "float16" in str(update.unsupported(jnp.zeros((2, 2, 2, 128), jnp.float16)))
    assert copy.unsupported(jnp.zeros((2, 2, 128))) is None
    assert "float16" in str(copy.unsupported(jnp.zeros((2, 2, 128), jnp.float16)))
    assert "tile" in str(copy.unsupported(jnp.zeros((2, 128))))


def _seeded() -> dict[str, Outcome]:
    rng, (row, dtype) = np.random.default_rng(0), ROWS["v2"]
    pages, rows = numbers(rng, (NUM_PAGES, PAGE_SIZE, *row), dtype), numbers(rng, (NUM_ROWS, *row), dtype)
    slots = rng.permutation(NUM_SLOTS)[:NUM_ROWS].astype(np.int32)
    expected = pages.reshape(NUM_SLOTS, *row).copy()
    expected[slots] = rows
    outcomes = Interpreted(lambda params: partial(update.update, interpret=params))(pages, rows, slots)
    bits = as_bits(expected.reshape(pages.shape))
    return {mode: o._replace(output=bool((as_bits(o.output) == bits).all())) for mode, o in outcomes.items()}


def test_a_missing_wait_is_found(plant: Callable[[Any, str, Any], None]) -> None:
    """The interpreter is worth trusting: without waits, copies made early race, and copies made late come too late."""
    assert all(outcome.output and outcome.clean for outcome in _seeded().values())
    plant(in_flight, "wait", lambda *_: None)
    eager, on_wait = (_seeded()[mode] for mode in MODES)
    assert eager.output
    assert eager.races
    assert eager.left_over
    assert not on_wait.output


def test_a_slot_past_the_last_is_found(plant: Callable[[Any, str, Any], None]) -> None:
    """A write outside of the pages raises, so that a guard that is lost can't go unseen."""
    plant(update, "is_slot", lambda slot, _: slot >= 0)
    rows, pages = np.zeros((1, 4, 128), np.float32), np.zeros((NUM_PAGES, PAGE_SIZE, 4, 128), np.float32)
    run = Interpreted(lambda params: partial(update.update, interpret=params))
    with pytest.raises(jax.errors.JaxRuntimeError, match="Out-of-bounds"):
        run(pages, rows, np.array([NUM_SLOTS], np.int32))
