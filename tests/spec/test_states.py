"""MAN-13, R1: what the specification's copies of pages and of states refuse.

What is copied, read and written, and that nothing else changes, the machine `cache` holds both packages to.
"""

import re
from typing import Any

import numpy as np
import pytest

from kvproof import spec

from .ragged_batches import i32

_ARRAY = np.zeros((3, 2), np.float32)


@pytest.mark.parametrize(
    ("call", "arguments", "kind", "text"),
    [
        ("copy_pages", (_ARRAY, i32(0), i32(1), np.array([1])), TypeError, "num_slots.dtype=int64"),
        ("copy_pages", (_ARRAY[:, 0], i32(0), i32(1), i32(1)), ValueError, "must be [P, page, ...]"),
        ("copy_pages", ([_ARRAY, _ARRAY[:2]], i32(0), i32(1)), ValueError, "arrays of [3, 2] pages"),
        ("copy_pages", ([1.0], i32(0), i32(1)), TypeError, "pages must hold arrays, not float"),
        ("copy_pages", (np.array(1.0), i32(0), i32(1)), ValueError, "pages.shape=()"),
        ("write_states", (_ARRAY, i32(0), _ARRAY[:2]), ValueError, "states.shape=(2, 2)"),
        ("write_states", (_ARRAY, i32(0), _ARRAY[:1].astype(np.float64)), TypeError, "states.dtype=float64"),
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
