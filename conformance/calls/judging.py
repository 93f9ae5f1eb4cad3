"""How one call that was made on two sides is judged: the one comparison of refusals and of results.

Machines, walks through small worlds, `kvproof try` and replays of logs make their calls in their own ways; what came of
a call is compared here.
"""

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

from .contrast import contrast, shown
from .deviation import Outcome, attempt

__all__ = ["Difference", "difference", "equal"]


class Difference(NamedTuple):
    """What a backend did otherwise than the specification.

    Attributes:
        clause: the label of the clause that it breaks.
        expected: what the specification says.
        observed: what the backend did.
        error: what the backend raised, if that is what is wrong.
    """

    clause: str
    expected: str
    observed: str
    error: BaseException | None = None


def equal(expected: object, observed: object, agree: Callable[[Any, Any], bool] = operator.eq) -> bool:
    """Whether two values agree; a comparison that raises is a disagreement."""
    outcome = attempt(lambda: bool(agree(expected, observed)))
    return outcome.error is None and outcome.value is True


def difference(
    expected: Outcome,
    observed: Outcome,
    clause: str,
    read: Callable[[Any], object] | None = None,
    blame: Callable[[Any, Any], str] | None = None,
    agree: Callable[[Any, Any], bool] = operator.eq,
    any_error: bool = False,
) -> Difference | None:
    """How what the backend made of a call differs from what the specification made of it; None if it does not.

    Args:
        expected: what the specification returned, as it is compared, or how it refused.
        observed: what the backend returned or raised.
        clause: the label that a wrong result is charged to.
        read: makes of the backend's result what is compared; None: it is compared as it is.
        blame: the label for a difference between two results, where it depends on them.
        agree: whether two results agree.
        any_error: whether any exception is a refusal; else it must be of the same kind, and have a message (R1).
    """
    if expected.error is not None:
        return _of_refusal(expected, observed, any_error)
    if observed.error is not None or read is None:
        seen = observed
    else:
        seen = attempt(lambda: read(observed.value))
    if seen.error is None and equal(expected.value, seen.value, agree):
        return None
    if seen.error is None:
        label = clause if blame is None else blame(expected.value, seen.value)
        return Difference(label, *contrast(expected.value, seen.value))
    said = str(seen) if seen is observed else f"a result that cannot be read: {shown(seen)}"
    return Difference(clause, shown(expected.value), said, seen.error)


def _of_refusal(expected: Outcome, observed: Outcome, any_error: bool) -> Difference | None:
    if observed.error is None:
        return Difference(expected.clause, str(expected), f"no refusal, but {shown(observed.value)}")
    if any_error:
        return None
    if observed.kind != expected.kind:
        return Difference("R1", str(expected), str(observed), observed.error)
    if not str(observed.error).strip():
        return Difference("R1", str(expected), f"{observed}, without a message", observed.error)
    return None
