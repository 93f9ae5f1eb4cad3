"""R1, R2: tokens as bytes."""

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof import fast, spec
from kvproof.fast.reading.tokens import listed_bytes, token_view

from ..strategies import PlainRequest

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


@pytest.mark.parametrize("replaced", [True, 1.0])
@pytest.mark.parametrize("package", [spec, fast], ids=["spec", "fast"])
def test_r1_a_list_that_was_read_before_is_read_again(package: Any, replaced: Any) -> None:
    """Numbers that are equal are no ints for that."""
    group = spec.CacheGroupSpec(spec.FullAttentionSpec(2, 1, 8, "float32"))
    manager, request = package.CacheManager(20, [group], 16), PlainRequest("a", [1, 2, 3])
    manager.get_computed_pages(request)
    request.all_token_ids[0] = replaced
    with pytest.raises(TypeError, match=r"all_token_ids\[0\].*\[R1\]"):
        manager.get_computed_pages(request)


@given(values=st.lists(st.one_of(ids, ids, ids, faults, st.booleans()), max_size=6), start=st.integers(0, 6))
def test_r1_bytes_of_a_page_are_told_only_of_plain_tokens(values: list[Any], start: int) -> None:
    found = listed_bytes(values, start, len(values))
    part = values[start:]
    is_plain = all(type(value) is int and -(2**31) <= value < 2**31 for value in part)
    assert found == (struct.pack(f"<{len(part)}i", *part) if is_plain else None)


@pytest.mark.parametrize("package", [spec, fast], ids=["spec", "fast"])
def test_r2_a_prompt_that_changes_between_its_look_up_and_its_admission(package: Any) -> None:
    """What was found is refused (MAN-2), and what is admitted without it is published as it is now."""
    group = spec.CacheGroupSpec(spec.FullAttentionSpec(2, 1, 8, "float32"))
    manager = package.CacheManager(20, [group], 16)
    manager.allocate_slots(PlainRequest("first", [1, 2, 3, 4, 5]), 5)
    request = PlainRequest("second", [1, 2, 3, 4, 9])
    pages, hit = manager.get_computed_pages(request)
    assert hit == 4
    request.all_token_ids[1] = 7
    with pytest.raises(ValueError, match="MAN-2"):
        manager.allocate_slots(request, 1, hit, pages)
    manager.allocate_slots(request, 5)
    assert manager.get_computed_pages(PlainRequest("third", [1, 7, 3, 4, 0]))[1] == 4
    assert manager.get_computed_pages(PlainRequest("fourth", [1, 2, 3, 4, 0]))[1] == 4
    manager.check()
