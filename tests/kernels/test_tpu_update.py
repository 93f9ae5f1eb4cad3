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

from kvproof.kernels.tpu import copy, in_flight, update
from kvproof.kernels.tpu.interpreted import reports

from .interpreting import MODES, Interpreted, Outcome
from .update_cases import Array, Updates, as_bits, numbers

NUM_PAGES, PAGE_SIZE = 13, 4
NUM_SLOTS = NUM_PAGES * PAGE_SIZE
NUM_ROWS = in_flight.IN_FLIGHT + 8  # more than are in flight at once
UPDATES = Updates(NUM_PAGES, PAGE_SIZE, NUM_ROWS)
ROWS = {"v2": ((4, 128), np.dtype(np.float32)), "v3": ((3, 2, 128), jnp.dtype(jnp.bfloat16))}
"""The rows of a slot, and their dtype."""


@cache
def compiled(function: Callable[..., jax.Array]) -> Interpreted:
    return Interpreted(lambda params: partial(function, interpret=params))


def check(outcomes: dict[str, Outcome], expected: Array) -> None:
    for mode, outcome in outcomes.items():
        assert outcome.clean, (mode, outcome)
        np.testing.assert_array_equal(as_bits(outcome.output), as_bits(expected), err_msg=mode)


@pytest.mark.parametrize("version", ROWS)
@given(seed=st.integers(0, 2**32 - 1), share=st.sampled_from([0.0, 0.3, 1.0]))
@settings(max_examples=6)
def test_rows_go_to_their_slots(version: str, seed: int, share: float) -> None:
    """CACHE-3: slots named are written, slots that don't exist write nothing, the rest stays bit for bit."""
    drawn, expected = UPDATES.by_slots(np.random.default_rng(seed), *ROWS[version], share)
    check(compiled(update.update)(*drawn), expected)


found_runs: Callable[..., Any] = jax.jit(partial(update.runs_of_slots, shape=(3, 4, 2, 128)))


@given(slots=st.lists(st.one_of(st.integers(-2, 14), st.sampled_from([-(2**31), 2**31 - 1])), min_size=9, max_size=9))
def test_runs_of_slots_are_as_long_as_they_can_be(slots: list[int]) -> None:
    """CACHE-3: a run ends where a page does, where slots don't follow each other, and where one doesn't exist."""
    lengths, count = found_runs(np.array(slots, np.int32))
    ends, found = list(range(1, len(slots))), [len(slots)]
    for at in reversed(ends):
        before, slot = slots[at - 1], slots[at]
        if 0 <= slot < 12:
            joined = slot == before + 1 and slot % 4 != 0
        else:
            joined = not 0 <= before < 12
        found.insert(0, found[0] if joined else at)
    assert lengths.tolist() == [end - at for at, end in enumerate(found)]
    assert int(count[0]) == len(set(found))


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


@given(seed=st.integers(0, 2**32 - 1), num_slices=st.integers(0, NUM_PAGES))
@settings(max_examples=6)
def test_slices_go_to_their_slots(seed: int, num_slices: int) -> None:
    """CACHE-3: columns past ``num_slices`` are not looked at, slices that don't fit are dropped whole."""
    drawn, expected = UPDATES.by_slices(np.random.default_rng(seed), *ROWS["v3"], num_slices)
    check(compiled(update.update_slices)(*drawn), expected)


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
    few, many = jnp.zeros(9, jnp.int32), jnp.zeros(10**6, jnp.int32)

    def of_update(*shape: int, dtype: Any = jnp.float32, slots: Any = few) -> str:
        return str(update.unsupported(jnp.zeros(shape, dtype), slots))

    assert of_update(2, 2, 2, 128) == "None"
    assert "tile" in of_update(2, 2, 128)
    assert "10 rows" in of_update(2, 2, 10, 128)
    assert "2 rows of int8" in of_update(2, 2, 2, 128, dtype=jnp.int8)
    assert of_update(2, 2, 1, 4, 128, dtype=jnp.int8) == "None"
    assert "float16" in of_update(2, 2, 2, 128, dtype=jnp.float16)
    assert "scalars" in of_update(2, 2, 2, 128, slots=many)
    assert "scalars" in of_update(2, 2, 2, 128, slots=jnp.zeros((3, 65536), jnp.int32))
    assert of_update(2, 2, 2, 128, slots=jnp.zeros((3, 60000), jnp.int32)) == "None"
    assert copy.unsupported(jnp.zeros((2, 2, 128)), few) is None
    assert "float16" in str(copy.unsupported(jnp.zeros((2, 2, 128), jnp.float16), few))
    assert "tile" in str(copy.unsupported(jnp.zeros((2, 128)), few))
    assert "scalars" in str(copy.unsupported(jnp.zeros((2, 2, 128)), many))


def _seeded() -> dict[str, Outcome]:
    rng, (row, dtype) = np.random.default_rng(0), ROWS["v2"]
    pages, rows = UPDATES.arrays(rng, row, dtype)
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


def test_there_is_no_third_mode() -> None:
    """R1: the interpreter would take any word."""
    mode: Any = "lazy"
    with pytest.raises(ValueError, match=r"mode='lazy' must be one of .* \[R1\]"), reports(mode):
        pass


def test_a_slot_past_the_last_is_found(plant: Callable[[Any, str, Any], None]) -> None:
    """A write outside of the pages raises, so that a guard that is lost can't go unseen."""
    plant(update, "is_slot", lambda slot, _: slot >= 0)
    rows, pages = np.zeros((1, 4, 128), np.float32), np.zeros((NUM_PAGES, PAGE_SIZE, 4, 128), np.float32)
    run = Interpreted(lambda params: partial(update.update, interpret=params))
    with pytest.raises(jax.errors.JaxRuntimeError, match="Out-of-bounds"):
        run(pages, rows, np.array([NUM_SLOTS], np.int32))


def test_a_kernel_that_raised_late_is_not_waited_for(plant: Callable[[Any, str, Any], None]) -> None:
    """A kernel that raises after its call returned, for its pages were not there yet, leaves the next one alone."""
    plant(update, "is_slot", lambda slot, _: slot >= 0)
    run = Interpreted(lambda params: partial(update.update, interpret=params), MODES[:1])
    rows, pages = np.zeros((1, 4, 128), np.float32), np.zeros((NUM_PAGES, PAGE_SIZE, 4, 128), np.float32)
    run(pages, rows, np.array([0], np.int32))  # compiled, so that the next call doesn't outlast what it waits for
    slow = jax.jit(lambda numbers: 0 * (numbers @ numbers @ numbers @ numbers).sum())(np.ones((2000, 2000), np.float32))
    with pytest.raises(jax.errors.JaxRuntimeError, match="Out-of-bounds"):
        run(pages + slow, rows, np.array([NUM_SLOTS], np.int32))
    assert run(pages, rows, np.array([NUM_SLOTS - 1], np.int32))[MODES[0]].clean
