"""Pages copied, or their first slots, states read and written: nothing else changes (MAN-13, MAN-17)."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.kernels import ScaledPages, copy_pages, read_states, write_states

PAGES, COPIES = 9, 6
NOT_A_PAGE = [-1, -7, -(2**31), PAGES, 2**31 - 1]


def tree(rng: np.random.Generator, count: int = PAGES) -> dict[str, Any]:
    """Pages of several layers and kinds, some of random bits."""
    scaled: Any = (
        rng.integers(-127, 127, (count, 4, 2, 8)).astype(np.int8),
        rng.standard_normal((count, 4, 2)).astype(np.float32),
    )
    narrow = rng.integers(0, 256, (count, 6), np.uint8).view(jnp.dtype(jnp.float8_e5m2))
    return {
        "narrow": narrow,
        "layers": [rng.integers(0, 2**16, (count, 4, 2, 2, 8), np.uint16) for _ in range(2)],
        "scaled": ScaledPages(*scaled),
        "state": (rng.standard_normal((count, 3, 5)).astype(np.float32), rng.standard_normal(count).astype(np.float16)),
    }


def ids(rng: np.random.Generator, count: int, live: int, used: np.ndarray[Any, Any]) -> Any:
    """``live`` of the page ids in ``used``, at random places among ids that are none."""
    made = rng.choice(NOT_A_PAGE, count).astype(np.int32)
    made[rng.permutation(count)[:live]] = used[:live]
    return made


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32), live=st.integers(0, COPIES))
def test_named_pages_are_copied_and_nothing_else(seed: int, live: int) -> None:
    """MAN-13: every array of the tree alike; ids that are no page, on either side, do nothing."""
    rng = np.random.default_rng(seed)
    pages = tree(rng)
    order = rng.permutation(PAGES)
    destinations = ids(rng, COPIES, min(live, 4), order)
    sources = rng.choice([*order[4:], *NOT_A_PAGE], COPIES).astype(np.int32)
    after = copy_pages(pages, sources, destinations)
    for got, before in zip(jax.tree.leaves(after), jax.tree.leaves(pages), strict=True):
        want = before.copy()
        for source, destination in zip(sources, destinations, strict=True):
            if 0 <= source < PAGES and 0 <= destination < PAGES:
                want[destination] = before[source]
        assert got.dtype == before.dtype
        np.testing.assert_array_equal(np.asarray(got).view(np.uint8), want.view(np.uint8))
    assert isinstance(after["scaled"], ScaledPages)


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32), live=st.integers(0, COPIES))
def test_named_slots_are_copied_and_nothing_else(seed: int, live: int) -> None:
    """MAN-17: as many of a page's first slots as are named, all of them where more are, and none of less than one."""
    rng = np.random.default_rng(seed)
    pages = tree(rng)
    pages["state"] = pages["state"][:1]  # the other has no slots
    order = rng.permutation(PAGES)
    destinations = ids(rng, COPIES, min(live, 4), order)
    sources = rng.choice([*order[4:], *NOT_A_PAGE], COPIES).astype(np.int32)
    slots = rng.integers(-2, 8, COPIES).astype(np.int32)
    after = copy_pages(pages, sources, destinations, slots)
    for got, before in zip(jax.tree.leaves(after), jax.tree.leaves(pages), strict=True):
        want = before.copy()
        for source, destination, end in zip(sources, destinations, slots.clip(0), strict=True):
            if 0 <= source < PAGES and 0 <= destination < PAGES:
                want[destination, :end] = before[source, :end]
        assert got.dtype == before.dtype
        np.testing.assert_array_equal(np.asarray(got).view(np.uint8), want.view(np.uint8))


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32), live=st.integers(0, COPIES))
def test_states_are_read_and_written_by_page(seed: int, live: int) -> None:
    """MAN-13: an id that is no page reads zeros, as for a sequence that begins, and writes nothing."""
    rng = np.random.default_rng(seed)
    pages, states = tree(rng), tree(rng, COPIES)
    page_ids = ids(rng, COPIES, live, rng.permutation(PAGES))
    for got, before in zip(jax.tree.leaves(read_states(pages, page_ids)), jax.tree.leaves(pages), strict=True):
        want = np.stack([before[i] if 0 <= i < PAGES else np.zeros_like(before[0]) for i in page_ids])
        np.testing.assert_array_equal(np.asarray(got).view(np.uint8), want.view(np.uint8))
    after = write_states(pages, page_ids, states)
    parts = (jax.tree.leaves(after), jax.tree.leaves(pages), jax.tree.leaves(states))
    for got, before, new in zip(*parts, strict=True):
        want = before.copy()
        for i, page_id in enumerate(page_ids):
            if 0 <= page_id < PAGES:
                want[page_id] = new[i]
        np.testing.assert_array_equal(np.asarray(got).view(np.uint8), want.view(np.uint8))


def test_nothing_to_copy() -> None:
    none = jnp.zeros(0, jnp.int32)
    pages = jnp.arange(6.0).reshape(3, 2)
    np.testing.assert_array_equal(copy_pages(pages, none, none), pages)
    assert copy_pages([], none, none) == []
    assert read_states(pages, none).shape == (0, 2)
