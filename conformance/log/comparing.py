"""Which clause a wrong answer, a wrong refusal or a wrong state breaks."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..calls.contrast import contrast, shown
from ..calls.deviation import clause_of_state
from ..calls.method import Method
from .calls import row_of
from .entries import Operation
from .player import Answer, Thing
from .values import FIELDS, digest

__all__ = ["Difference", "compare_answers", "compare_states", "recorded_answer"]


@dataclass(frozen=True)
class Difference:
    """What an implementation did otherwise than the specification.

    Attributes:
        clause: the label of the clause that it breaks.
        expected: what the specification says.
        observed: what was done.
    """

    clause: str
    expected: str
    observed: str


def recorded_answer(operation: Operation, expected: Answer) -> Answer:
    """What a log says that came of a call."""
    recorded = operation.result
    if operation.method == "allocate_slots" and recorded == [] and isinstance(expected.value, list):
        recorded = [[] for _ in expected.value]  # a run of calls names only those that gave pages
    return Answer(recorded, operation.error)


def compare_answers(thing: Thing, operation: Operation, expected: Answer, observed: Answer) -> Difference | None:
    """The difference between two answers to a call; None if there is none."""
    row = row_of(thing.name, operation.method)
    if expected.error is not None:
        if observed.error is None:
            return Difference(expected.clause, str(expected), f"no refusal, but {shown(observed.value)}")
        if observed.error != expected.error:
            return Difference("R1", str(expected), str(observed))
        return None
    if observed.error is not None:
        return Difference(row.clause, shown(expected.value), str(observed))
    if same_value(expected.value, observed.value):
        return None
    return Difference(row.clause, *contrast(expected.value, observed.value))


def compare_states(
    expected: Mapping[str, Any], observed: Mapping[str, Any], last: tuple[Method, Answer] | None
) -> Difference | None:
    """The first difference between two states of an object; None if there is none.

    Args:
        expected: the specification's.
        observed: what was shown; a long field by its CRC-32, a missing one is not compared.
        last: the one call since the last comparison, and the specification's answer; None where there were several.
    """
    for name, clause in FIELDS.items():
        if name not in observed or name not in expected or same_value(digest(expected[name]), digest(observed[name])):
            continue
        if last is not None:
            row, answer = last
            own = row.charges_by_field.get(name, clause)
            charged = own if answer.error is None else clause_of_state(answer.clause)
            clause = clause if name == "device rows" and answer.error is None else charged
        right, seen = _contrasted(expected[name], observed[name])
        return Difference(clause, f"{name} = {right}", f"{name} = {seen}")
    return None


def _contrasted(expected: Any, observed: Any) -> tuple[str, str]:
    """Two fields of a state that differ, as a report shows them; of a long one a log has its CRC-32 only."""
    mine = digest(expected)
    if mine is not expected and isinstance(observed, dict) and observed.keys() == {"crc32"}:
        return shown(expected), f"another value: its CRC-32 is {observed['crc32']} and must be {mine['crc32']}"
    return contrast(expected, observed)


def same_value(expected: Any, observed: Any) -> bool:
    """Whether two values are the same as JSON has them; the last digits of a real number don't count."""
    if isinstance(expected, float) and isinstance(observed, int | float):
        return abs(expected - observed) < 1e-8
    return json.dumps(expected, sort_keys=True) == json.dumps(observed, sort_keys=True)
