"""What a wrong attention result is charged to: found out by calling again with one thing less in the way."""

from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from ..calls.deviation import attempt
from .arrays import SLIGHT, Array, Near, worst
from .ragged import Batch

__all__ = ["blame"]

Call = Callable[[list[Any], dict[str, Any]], Any]


def blame(
    batch: Batch, call: Call, near: Near, seen: Array, place: tuple[int, ...], harmless: Collection[str] = ()
) -> str | None:
    """The clause by which a result is wrong.

    Args:
        batch: the batch.
        call: calls the backend's attention with arguments and keywords.
        near: what is right.
        seen: what the backend gave.
        place: the place of the largest error.
        harmless: what was not poisoned in the call.

    Returns:
        The label; None if the same call gives what is right now.
    """
    if place[0] >= batch.tokens:
        return "ATT-4"
    if batch.rows_that_read_nothing()[place[0]]:
        return "ATT-2"
    for clean, clause in (((), None), (("slots",), "ATT-3"), (("padding",), "ATT-4"), (("slots", "padding"), "ATT-3")):
        if _right(batch, near, call, batch.arguments({*clean, *harmless})):
            return clause if set(clean).difference(harmless) else None
    error = abs(float(seen[place]) - float(near.right[place]))
    if np.isnan(error):
        return "ATT-1"
    if error <= SLIGHT * float(near.tolerance[place]) or _scales_are_missing(batch, call):
        return "ATT-6"
    return "ATT-1"


def _right(batch: Batch, near: Near, call: Call, arguments: list[Any]) -> bool:
    again = attempt(lambda: np.asarray(call(arguments, batch.keywords())))
    if again.error is not None or again.value.shape != near.right.shape:
        return False
    return worst(near, again.value) is None


def _scales_are_missing(batch: Batch, call: Call) -> bool:
    """Whether the backend gives the same whatever the scales are."""
    named = batch.keywords()

    def result(more: dict[str, Any]) -> Array | None:
        found: Array | None = attempt(lambda: np.asarray(call(batch.arguments(), named | more))).value
        return found

    for scale in {"q_scale", "k_scale", "v_scale"} & named.keys():
        one, other = result({}), result({scale: 4 * named[scale]})
        if one is not None and other is not None and np.array_equal(one, other, equal_nan=True):
            return True
    return False
