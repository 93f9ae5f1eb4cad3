"""Level safe where the specification follows: it takes the pages that an engine took, and the rest must agree.

So pages have the same ids on both sides, and every result and every state can be compared. What an engine may do
otherwise is which free pages it takes, and how much of what is cached it still has: a look-up may find less. That what
it finds is right shows when it is handed over, as the specification refuses pages that do not hold the prefix (MAN-2).

Logs are replayed so, and the soak lives so. Results are compared as `logged.result` has them.
"""

from collections.abc import Mapping
from typing import Any

from .deviation import Outcome, attempt
from .judging import Difference, difference
from .logged import same_value
from .method import Method

__all__ = ["compared", "decided", "follows", "strays", "taken"]

_TAKING = frozenset({"get_new_pages", "allocate_slots", "allocate_slots_batch"})
"""Methods that return pages that they took."""

_FOUND = frozenset({"hit", "pin", "plan"})
"""How results are logged that say what was found of a prefix."""


def follows(row: Method) -> bool:
    """Whether the result of a call says which pages the engine took, or what it found of a prefix."""
    return row.name in _TAKING or row.result.log in _FOUND


def taken(method: str, result: Any) -> list[int]:
    """The pages that a call took, in the order in which the specification takes them.

    Args:
        method: the call's method.
        result: what it returned; anything where it is an engine's that returns something else.
    """
    found: list[int] = attempt(lambda: _taken(method, result)).value or []
    return [page for page in found if type(page) is int and page]


def _taken(method: str, result: Any) -> list[Any]:
    match method:
        case "get_new_pages":
            return list(result)
        case "allocate_slots":
            return [page for group in result for page in group]
        case "allocate_slots_batch":
            return _by_request(result[1])
        case "swap_in" | "receive_pages":
            return [copy[1] for copy in result[3]]
    return []


def _by_request(groups: list[Any]) -> list[Any]:
    """The pages of a batched step in the order of its requests, and for each in that of the groups."""
    of: dict[int, list[Any]] = {}
    for places, counts, pages in groups:
        start = 0
        for place, count in zip(places, counts if isinstance(counts, list) else [counts] * len(places), strict=True):
            of.setdefault(place, []).extend(pages[start : start + count])
            start += count
    return [page for place in sorted(of) for page in of[place]]


def compared(row: Method, expected: Outcome, observed: Outcome, pool: Any) -> Difference | None:
    """The difference between two answers that no order of eviction explains; None if there is none.

    Args:
        row: the method.
        expected: the specification's answer.
        observed: the engine's.
        pool: the specification's pool, in which pages have the engine's ids.
    """
    found = difference(expected, observed, row.clause, agree=same_value, any_error=True)
    if found is None or expected.error is not None or observed.error is not None:
        return found
    if row.name in _TAKING:
        return found._replace(expected=f"pages that nobody holds, as {found.expected}")
    may_differ = attempt(lambda: _may_differ(row, expected.value, observed.value, pool))
    return None if may_differ.value is True else found


def _may_differ(row: Method, right: Any, seen: Any, pool: Any) -> bool:
    if row.by_eviction:
        return True
    if row.result.log == "hit":
        return 0 <= seen[1] <= right[1] and len(seen[0]) == len(right[0]) and _alike(seen[0], right[0], pool)
    if row.name == "get_cached_page":
        return seen is None or (len(seen) == len(right) and _alike([seen], [right], pool))
    if row.name == "get_host_page_ids":
        return list(map(len, right)) == list(map(len, seen))
    return row.result.log == "plan" and _without_places(right) == _without_places(seen)


def _alike(seen: Any, right: Any, pool: Any) -> bool:
    """Whether pages in the same places are cached for the same content; null pages are compared with none."""
    pairs = [pair for groups in zip(seen, right, strict=True) for pair in zip(*groups, strict=False) if all(pair)]
    return all(pool.key_of_page(one) == pool.key_of_page(other) for one, other in pairs)


def _without_places(plan: Any) -> Any:
    """A plan of copies without its number, and without the pages of host memory."""
    return plan and [plan[1], plan[2], [[*copy[:2], *copy[3:]] for copy in plan[3]]]


def strays(row: Method, found: Difference) -> bool:
    """Whether an engine found another prefix in a call that holds it at once: nothing is decided behind that."""
    return found.error is None and (row.result.log == "pin" or row.name in ("swap_in", "receive_pages"))


def decided(right: Mapping[str, Any], seen: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What of two states no order of eviction changes: which pages are free, that no other pages have a hash.

    Args:
        right: the specification's state, by field.
        seen: the engine's; long fields by their CRC-32.
    """
    kept = dict(right), dict(seen)
    for state in kept:
        state.pop("cached map", None)
        if isinstance(free := state.pop("free pages", None), list):
            state["free pages"] = sorted(free, key=repr)  # a log may hold anything
    cached, shown = (state.pop("hashed pages", None) for state in kept)
    if isinstance(cached, list) and isinstance(shown, list):
        kept[0]["hashed pages"], kept[1]["hashed pages"] = [page for page in shown if page in cached], shown
    return kept
