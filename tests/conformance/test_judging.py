"""The one comparison: what two sides made of a call."""

from typing import Any

import pytest

from kvproof.conformance.calls.deviation import Outcome
from kvproof.conformance.calls.judging import difference
from kvproof.conformance.machines.pool_state import pool_fields

REFUSED = Outcome(error=ValueError("num_pages=-1 must be at least 0 [POOL-4]"))


@pytest.mark.parametrize(
    ("expected", "observed", "clause", "said"),
    [
        (Outcome(3), Outcome(3), "", ""),
        (Outcome(3), Outcome(4), "POOL-3", "4"),
        (Outcome(3), Outcome(error=KeyError("a")), "POOL-3", "raised KeyError: 'a'"),
        (REFUSED, Outcome(error=ValueError("of another wording")), "", ""),
        (REFUSED, Outcome(3), "POOL-4", "no refusal, but 3"),
        (REFUSED, Outcome(error=TypeError("of another kind")), "R1", "raised TypeError: of another kind"),
        (REFUSED, Outcome(error=ValueError(" ")), "R1", "raised ValueError, without a message"),
    ],
)
def test_what_differs_is_charged(expected: Outcome, observed: Outcome, clause: str, said: str) -> None:
    found = difference(expected, observed, "POOL-3")
    assert (found.clause, found.observed, found.error) == (clause, said, observed.error) if found else not clause


def test_at_level_safe_any_exception_is_a_refusal() -> None:
    assert difference(REFUSED, Outcome(error=KeyError()), "POOL-3", any_error=True) is None
    assert difference(REFUSED, Outcome(3), "POOL-3", any_error=True) is not None


def test_results_are_read_and_agree_as_asked() -> None:
    def size(value: Any) -> int:
        return len(value)

    assert difference(Outcome(2), Outcome([5, 6]), "POOL-3", size) is None
    unread = difference(Outcome(2), Outcome(7), "POOL-3", size)
    assert unread is not None
    assert unread.observed.startswith("a result that cannot be read: raised TypeError: ")
    blamed = difference(Outcome(2), Outcome([5]), "POOL-3", size, blame=lambda right, seen: f"{right} {seen}")
    assert blamed is not None
    assert blamed.clause == "2 1"
    assert difference(Outcome(2), Outcome(4), "POOL-3", agree=lambda right, seen: seen == 2 * right) is None


@pytest.mark.parametrize(
    ("observed", "clause"),
    [
        ([(0, [4, 7]), (0, [2])], "POOL-7"),
        ([(0, [7, 4])], ""),
        ([(0, [7]), (0, [2, 4])], ""),
        ([(1, [4, 7]), (0, [2])], ""),
    ],
)
def test_a_wrong_order_of_duplicates_is_charged_to_pool_7_after_any_call(observed: Any, clause: str) -> None:
    """Where other pages are cached, or under other keys, the call before is to blame."""
    cached = next(field for field in pool_fields(seeded=True, weak=False) if field.name == "cached map")
    assert cached.blame is not None
    assert cached.blame([(0, [2]), (0, [7, 4])], observed) == clause
