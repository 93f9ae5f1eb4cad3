"""R1, R2: tokens as bytes, and lists of them that are not converted twice."""

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof import fast, spec
from kvproof.fast.tokens import ListedTokens, listed_bytes, token_view

from ..strategies import PlainRequest

ids = st.one_of(st.integers(0, 3), st.sampled_from([-(2**31), 2**31 - 1]))
faults = st.sampled_from([1.5, "1", None, 2**31, -(2**31) - 1, np.array([1, 2]), [1]])


def _outcome(read: Any, *arguments: Any) -> tuple[Any, str]:
    """The bytes, or the refusal."""
    try:
        return bytes(read("tokens", *arguments)), ""
    except (TypeError, ValueError) as refusal:
        return type(refusal), str(refusal)


@given(
    first=st.lists(ids, max_size=6),
    edits=st.lists(st.tuples(st.integers(0, 6), st.one_of(ids, ids, ids, faults), st.booleans()), max_size=8),
)
def test_r1_a_list_that_is_changed_in_place_is_read_again(first: list[Any], edits: list[tuple[int, Any, bool]]) -> None:
    """Entries are put in, or replaced, good ones and faults; now and then another list says the same."""
    listed, values = ListedTokens(), list(first)
    for place, value, is_put_in in [(0, 0, True), *edits]:
        before = list(values)
        if is_put_in or place >= len(values):
            values.insert(place, value)
        else:
            values[place] = value
        for given_list in (values, list(values), values):
            assert _outcome(listed.view, given_list) == _outcome(token_view, given_list)
        if isinstance(_outcome(token_view, values)[0], type):
            values = before


@pytest.mark.parametrize("spelling", [tuple, np.int64, np.int32, range], ids=str)
def test_r1_what_is_no_list_is_read_each_time(spelling: Any) -> None:
    values = range(5) if spelling is range else spelling([1, 2]) if spelling is tuple else np.array([1, 2], spelling)
    listed = ListedTokens()
    assert listed.view("tokens", [1, 2]) == listed.view("tokens", [1, 2]) == struct.pack("<2i", 1, 2)
    assert listed.view("tokens", values) == struct.pack(f"<{len(values)}i", *values)
    assert listed.view("tokens", [1, 2]) == struct.pack("<2i", 1, 2)


@given(values=st.lists(st.one_of(ids, ids, ids, faults, st.booleans()), max_size=6), start=st.integers(0, 6))
def test_r1_bytes_of_a_page_are_told_only_of_plain_tokens(values: list[Any], start: int) -> None:
    found = listed_bytes(values, start, len(values))
    part = values[start:]
    is_plain = part and all(type(value) is int and -(2**31) <= value < 2**31 for value in part)
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
