"""Values side by side: what reports show of two lists of hundreds of numbers that differ in one."""

import re

from hypothesis import assume, given
from hypothesis import strategies as st

from kvproof.conformance.calls.contrast import beside, contrast, difference, shown
from kvproof.conformance.calls.deviation import Deviation
from kvproof.conformance.log.replaying import compare_states
from kvproof.conformance.log.values import digest
from kvproof.conformance.report.redacting import redacted
from kvproof.conformance.report.redaction import Redaction
from kvproof.conformance.report.verdicts import MachineReport, Report

NUMBERS = st.lists(st.integers(0, 10**6), min_size=200, max_size=400)


@given(NUMBERS, st.data())
def test_what_differs_in_a_long_list_is_shown_on_both_sides(numbers: list[int], data: st.DataObject) -> None:
    """R1, POOL-3 and every clause whose values are long: the two texts were the same once, cut at 400 characters."""
    place = data.draw(st.integers(0, len(numbers) - 1))
    other = data.draw(st.integers(-9, -1))  # which is none of the others
    right, seen = contrast(numbers, [*numbers[:place], other, *numbers[place + 1 :]])
    assert right != seen
    assert str(numbers[place]) in right
    assert str(other) in seen
    assert f"missing [{numbers[place]}], extra [{other}], the first difference at place {place}" in seen
    assert max(len(right), len(seen)) < 900


@given(NUMBERS, st.data())
def test_an_entry_that_is_missing_is_named(numbers: list[int], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(numbers) - 1))
    said = difference(numbers, numbers[:place] + numbers[place + 1 :])
    assert f"missing [{numbers[place]}]" in said
    assert f"{len(numbers) - 1} entries in place of {len(numbers)}" in said
    assert "extra" not in said


@given(NUMBERS, st.data())
def test_the_states_of_a_log_differ_where_they_are_shown(numbers: list[int], data: st.DataObject) -> None:
    """What `replay` and `shrink` print, and what the docstrings of their tests say."""
    first, second = data.draw(st.tuples(*[st.integers(0, len(numbers) - 1)] * 2))
    swapped = list(numbers)
    swapped[first], swapped[second] = numbers[second], numbers[first]
    assume(digest(numbers) == numbers and swapped != numbers)
    found = compare_states({"free pages": numbers}, {"free pages": swapped}, None)
    assert found is not None
    assert found.expected != found.observed.partition(";")[0]
    assert "the same entries in another order" in found.observed


def test_a_field_of_which_a_log_has_the_checksum_only() -> None:
    numbers = list(range(1000))
    found = compare_states({"free pages": numbers}, {"free pages": digest(numbers[1:])}, None)
    assert found is not None
    assert found.observed.startswith("free pages = another value: its CRC-32 is ")


def test_the_innermost_difference_is_told() -> None:
    right = {"a": [[1, 2], [3, 4, 5]], "b": []}
    assert difference(right, {"a": [[1, 2], [3, 5]], "b": []}) == (
        "in entry a.1: missing [4], 2 entries in place of 3, the first difference at place 1"
    )
    assert difference(right, {"a": [[1, 2], [3, 4, 5]], "c": []}) == "missing ['b'], extra ['c']"
    assert difference({1, 2}, {2, 3}) == "missing [1], extra [3]"
    assert difference([1, 2], None) == difference("ab", "ac") == ""
    assert contrast([1], [2]) == ("[1]", "[2]"), "at a glance"


@given(st.lists(NUMBERS, min_size=1, max_size=3))
def test_a_value_is_cut_between_entries(values: list[list[int]]) -> None:
    """Else half a number would stand there as another one."""
    known = {str(number) for value in values for number in value}
    for text in [shown(values[0]), *beside(*values)]:
        assert set(text.replace("...", "").strip("[] ,").split(", ")) <= known


@given(st.lists(st.integers(10**5, 10**6), min_size=200, max_size=300), st.data())
def test_lists_that_are_cut_are_redacted(tokens: list[int], data: st.DataObject) -> None:
    """SEC-2: a list whose bracket was cut off used to keep its tokens."""
    other = data.draw(st.integers(0, len(tokens) - 1))
    expected, observed = contrast(tokens, [*tokens[:other], 10**7, *tokens[other + 1 :]])
    keys = "hash_request_tokens(request)"
    found = Deviation("HASH-2", expected, observed, (f"{keys}  # {shown(tokens)}",), {}, {})
    machine = MachineReport("hash", frozenset({"HASH-2"}), deviations=[found])
    (machine,) = redacted(Report("a backend", 0, ("HASH-2",), [machine]), Redaction()).machines
    (told,) = machine.deviations
    kept = set(map(str, tokens)) & set(re.findall(r"\d+", f"{told.expected} {told.observed} {told.calls}"))
    assert len(kept) < 20, "the map is one to one and may hit another token"


def test_where_an_object_lies_is_not_shown() -> None:
    """R1: of pages that print as an object, a report of the same seed was another in each run."""
    made = [type("CachePages", (), {"__module__": "engine"})() for _ in range(2)]
    assert shown((made[0], 0)) == shown((made[1], 0)) == "(<engine.CachePages object>, 0)"
    assert shown("(0 at 0x7f)") == "'(0 at 0x7f)'", "a text stays as it is"
