"""R1, R2: tokens as bytes."""

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof.fast.reading.tokens import listed_bytes, token_view

ids = st.one_of(st.integers(0, 3), st.sampled_from([-(2**31), 2**31 - 1]))
faults = st.sampled_from([1.5, "1", None, 2**31, -(2**31) - 1, np.array([1, 2]), [1]])


@given(
    values=st.lists(st.one_of(ids, ids, ids, ids.map(np.int64), faults, st.booleans()), max_size=6),
    start=st.integers(0, 6),
)
@pytest.mark.parametrize("spelling", [list, tuple])
def test_r1_tokens_are_read_or_the_first_that_is_none_is_named(spelling: Any, values: list[Any], start: int) -> None:
    wrong = [place for place, value in enumerate(values) if place >= start and not _is_int(value)]
    large = [
        place for place, value in enumerate(values) if place >= start and not wrong and not -(2**31) <= value < 2**31
    ]
    if wrong or large:
        with pytest.raises(TypeError if wrong else ValueError, match=r"^tokens\[\d+\].*\[R1\]$"):
            token_view("tokens", spelling(values), start)
    else:
        part = values[start:]
        assert token_view("tokens", spelling(values), start) == struct.pack(f"<{len(part)}i", *part)


def _is_int(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


@given(values=st.lists(st.one_of(ids, ids, ids, faults, st.booleans()), max_size=6), start=st.integers(0, 6))
def test_r1_bytes_of_a_page_are_told_only_of_plain_tokens(values: list[Any], start: int) -> None:
    found = listed_bytes(values, start, len(values))
    part = values[start:]
    is_plain = all(type(value) is int and -(2**31) <= value < 2**31 for value in part)
    assert found == (struct.pack(f"<{len(part)}i", *part) if is_plain else None)
