"""MAN-13: copies of pages, and states that lie in pages."""

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof import spec

from .ragged_batches import i32

PAGES = 5
ids = st.lists(st.integers(-2, PAGES + 1), max_size=5)


def _tree() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "layers": [rng.normal(size=(PAGES, 2, 3)), rng.integers(0, 99, PAGES)],
        "scaled": spec.ScaledPages(rng.normal(size=(PAGES, 1)), rng.normal(size=(PAGES, 4, 2))),
    }


def _leaves(tree: Any) -> list[Any]:
    if isinstance(tree, dict):
        return [leaf for key in tree for leaf in _leaves(tree[key])]
    return [leaf for part in tree for leaf in _leaves(part)] if isinstance(tree, list | tuple) else [tree]


@given(pairs=st.lists(st.tuples(st.integers(-2, PAGES + 1), st.integers(-2, PAGES + 1)), max_size=4))
def test_man_13_pages_are_copied_and_nothing_else_changes(pairs: list[tuple[int, int]]) -> None:
    """Sources are read before destinations are written; pairs with a page that does not exist do nothing."""
    pairs = list({destination: (source, destination) for source, destination in pairs}.values())
    tree = _tree()
    after = spec.copy_pages(tree, i32(*(pair[0] for pair in pairs)), i32(*(pair[1] for pair in pairs)))
    assert list(after) == list(tree)
    assert isinstance(after["scaled"], spec.ScaledPages)
    source_of = {destination: source for source, destination in pairs if source in range(PAGES)}
    for own, was, first in zip(_leaves(after), _leaves(tree), _leaves(_tree()), strict=True):
        assert own.dtype == was.dtype
        assert np.array_equal(own, np.stack([was[source_of.get(page, page)] for page in range(PAGES)]))
        assert np.array_equal(was, first)


@given(page_ids=ids)
def test_man_13_states_are_read_from_pages_and_zeros_from_none(page_ids: list[int]) -> None:
    tree = _tree()
    states = spec.read_states(tree, i32(*page_ids))
    for own, pages in zip(_leaves(states), _leaves(tree), strict=True):
        assert own.dtype == pages.dtype
        assert own.shape == (len(page_ids), *pages.shape[1:])
        for state, page in zip(own, page_ids, strict=True):
            assert np.array_equal(state, pages[page] if page in range(PAGES) else np.zeros(pages.shape[1:]))


@given(page_ids=st.lists(st.integers(-1, PAGES), unique=True, max_size=5))
def test_man_13_what_is_written_is_read_again(page_ids: list[int]) -> None:
    tree, new = _tree(), spec.read_states(_tree(), i32(*[2] * len(page_ids)))
    after = spec.write_states(tree, i32(*page_ids), new, validate=PAGES not in page_ids)
    for own, pages, states in zip(_leaves(after), _leaves(tree), _leaves(new), strict=True):
        wanted = pages.copy()
        for page, state in zip(page_ids, states, strict=True):
            if page in range(PAGES):
                wanted[page] = state
        assert np.array_equal(own, wanted)


_ARRAY = np.zeros((3, 2), np.float32)


@pytest.mark.parametrize(
    ("call", "arguments", "kind", "text"),
    [
        ("copy_pages", (_ARRAY, i32(0), i32(1, 2)), ValueError, "destinations.shape=(2,)"),
        ("copy_pages", (_ARRAY, np.array([0]), i32(1)), TypeError, "sources.dtype=int64"),
        ("copy_pages", (_ARRAY, i32(0), i32(1), i32(1, 2)), ValueError, "num_slots.shape=(2,)"),
        ("copy_pages", (_ARRAY, i32(0), i32(1), np.array([1])), TypeError, "num_slots.dtype=int64"),
        ("copy_pages", (_ARRAY[:, 0], i32(0), i32(1), i32(1)), ValueError, "must be [P, page, ...]"),
        ("copy_pages", ([_ARRAY, _ARRAY[:2]], i32(0), i32(1)), ValueError, "arrays of [3, 2] pages"),
        ("copy_pages", ([1.0], i32(0), i32(1)), TypeError, "pages must hold arrays, not float"),
        ("copy_pages", (np.array(1.0), i32(0), i32(1)), ValueError, "pages.shape=()"),
        ("read_states", (_ARRAY, [0]), TypeError, "page_ids must be an array"),
        ("write_states", (_ARRAY, i32(0), _ARRAY[:2]), ValueError, "states.shape=(2, 2)"),
        ("write_states", (_ARRAY, i32(0), _ARRAY[:1].astype(np.float64)), TypeError, "states.dtype=float64"),
        ("write_states", ([_ARRAY], i32(0), (_ARRAY[:1],)), ValueError, "a tuple must be like the list"),
        ("write_states", ({"a": _ARRAY}, i32(0), {"b": _ARRAY[:1]}), ValueError, "must be like the dict"),
    ],
)
def test_r1_a_wrong_argument_is_refused_by_name(call: str, arguments: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=re.escape(text)):
        getattr(spec, call)(*arguments)


@pytest.mark.parametrize(
    ("sources", "destinations", "kind", "text"),
    [
        ((0, 1), (2, 2), ValueError, "destinations=2 is named twice"),
        ((0, 1), (1, 2), ValueError, "sources=1 is a destination, too"),
        ((3,), (1,), IndexError, "sources=3 must be in [0, 3)"),
        ((1,), (3,), IndexError, "destinations=3 must be in [0, 3)"),
    ],
)
def test_r1_validate_looks_at_the_ids(sources: Any, destinations: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=re.escape(text)):
        spec.copy_pages(_ARRAY, i32(*sources), i32(*destinations), validate=True)
    spec.copy_pages(_ARRAY, i32(0, -1, -1), i32(2, 0, 2), validate=True)


def test_r1_validate_lets_no_page_be_written_twice() -> None:
    with pytest.raises(ValueError, match="page_ids=1 is named twice"):
        spec.write_states(_ARRAY, i32(1, -1, -1, 1), np.zeros((4, 2), np.float32), validate=True)


def test_man_13_where_there_are_no_pages_nothing_is_copied() -> None:
    assert spec.copy_pages([], i32(0), i32(1)) == []
    assert spec.copy_pages([], i32(0), i32(1), i32(1)) == []


def test_man_17_as_many_slots_are_copied_as_are_named() -> None:
    pages = np.arange(12).reshape(4, 3)
    copied = spec.copy_pages(pages, i32(3, 2, -1), i32(0, 1, 1), i32(2, -1, 3))
    assert copied.tolist() == [[9, 10, 2], *pages[1:].tolist()]
    assert spec.copy_pages(pages, i32(3), i32(0), i32(4)).tolist() == [[9, 10, 11], *pages[1:].tolist()]
