"""Spellings: the source of each makes the same argument again, and both packages read every one alike (R1)."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvproof.fast
import kvproof.spec
from kvproof.conformance.calls import spelling as spellings
from kvproof.conformance.calls.spelling import NUMBERS, OBJECTS, TOKENS, Spelling, request_as, request_source
from kvproof.conformance.emitting.literals import Literals
from kvproof.spec.declarations import LoraAdapter, Request

NAMES = {name: getattr(spellings, name) for name in spellings.__all__} | {"np": np, "Request": Request}

numbers = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=4)


def alike(one: Any, other: Any) -> bool:
    """Whether two arguments are the same to whoever reads them, whatever lies between the entries of an array."""
    if isinstance(one, np.ndarray):
        same = one.dtype == other.dtype and one.tolist() == other.tolist()
        return bool(same and (one.size < 2 or one.strides == other.strides))
    entries = list(one), list(other)
    return (
        type(one) is type(other)
        and entries[0] == entries[1]
        and list(map(type, entries[0])) == list(map(type, entries[1]))
    )


@given(spelling=st.sampled_from(NUMBERS), values=numbers)
def test_the_source_of_numbers_makes_them_again(spelling: Spelling, values: list[int]) -> None:
    made = eval(spelling.source(values), dict(NAMES))
    assert alike(made, spelling.of(values))
    if not isinstance(made, Iterator):
        literals = Literals()
        text = literals.of(spelling.of(values))
        names: dict[str, Any] = {}
        exec("\n".join(literals.imports.values()), names)
        assert alike(eval(text, names), spelling.of(values))


@given(spelling=st.sampled_from(OBJECTS), values=st.lists(st.sampled_from("abc"), max_size=3))
def test_the_source_of_things_makes_them_again(spelling: Spelling, values: list[str]) -> None:
    assert alike(eval(spelling.source(values), dict(NAMES)), spelling.of(values))


@given(rows=st.integers(0, 3), columns=st.integers(0, 3), spelling=st.sampled_from(NUMBERS))
def test_lists_of_one_length_are_an_array_of_rows(rows: int, columns: int, spelling: Spelling) -> None:
    lists = [[row * columns + column for column in range(columns)] for row in range(rows)]
    made = eval(spelling.source(lists), dict(NAMES))
    assert alike(made, spelling.of(lists)) if not isinstance(made, np.ndarray) else made.tolist() == lists
    assert [list(row) for row in spelling.of(lists)] == lists


@given(spelling=st.sampled_from(TOKENS), tokens=numbers.filter(bool), more=numbers)
def test_a_request_is_read_alike_however_its_tokens_are_spelled(
    spelling: Spelling, tokens: list[int], more: list[int]
) -> None:
    request = request_as(spelling, "a", tokens, (LoraAdapter("b"),), 1)
    shown = eval(request_source(spelling, "a", tokens, (LoraAdapter("b"),), 1), {**NAMES, "LoraAdapter": LoraAdapter})
    assert alike(shown.all_token_ids, request.all_token_ids)
    assert (shown.extra_keys, shown.sampling_params) == (request.extra_keys, request.sampling_params)
    for token in more:
        request.append(token)
    plain = Request("a", [*tokens, *more], (LoraAdapter("b"),))
    assert len(request.all_token_ids) == request.num_tokens == plain.num_tokens
    keys = [
        [tuple(key) for key in names.hash_request_tokens(names.sha256, 1, each, none_hash=b"")]
        for names in (kvproof.spec, kvproof.fast)
        for each in (plain, request)
    ]
    assert keys[0] == keys[1] == keys[2] == keys[3]


@pytest.mark.parametrize("spelling", NUMBERS)
def test_a_column_lies_between_other_numbers(spelling: Spelling) -> None:
    made = spelling.of([1, 2, 3])
    if spelling in (Spelling.COLUMN32, Spelling.COLUMN64):
        assert made.base.ravel().tolist() == [1, -2, 2, -3, 3, -4]
    assert list(made) == [1, 2, 3]


def test_an_array_that_runs_backwards_lies_in_memory_the_other_way_round() -> None:
    made = Spelling.REVERSED32.of([1, 2, 3])
    assert made.strides == (-4,)
    assert made.base.tolist() == [3, 2, 1]


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([], "uint8"),
        ([255], "uint8"),
        ([-1, 5], "int8"),
        ([256], "uint16"),
        ([-1, 2**31 - 1], "int32"),
        ([2**31], "uint32"),
        ([-1, 2**31], "int64"),
    ],
)
def test_a_narrow_array_is_of_the_narrowest_type_that_holds_all_numbers(values: list[int], dtype: str) -> None:
    assert Spelling.NARROW.of(values).dtype == dtype


def test_an_unsigned_array_holds_no_negative_number() -> None:
    assert Spelling.UINT64.of([1]).dtype == np.uint64
    assert Spelling.UINT64.of([-1]).dtype == np.int64


def test_numpy_integers_are_ints() -> None:
    assert {type(number) for number in Spelling.SCALARS.of([1, 2])} == {np.int64}
