"""Two backends side by side: one call to both, the same outcome, and no change where it was refused (R1)."""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kvproof.spec.clauses import CLAUSES, clause_of_message

__all__ = ["both", "pool_state"]

_REFUSAL = re.compile(r"\[([A-Z]+-?\d+)\]$")


def _outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (TypeError, ValueError, IndexError) as error:
        message = str(error)
        assert _REFUSAL.search(message), f"R1: the message names no clause: {message}"
        assert clause_of_message(message) in CLAUSES
        return type(error), clause_of_message(message)


def both(sides: Sequence[Any], call: Callable[[Any], Any], state: Callable[[Any], Any]) -> tuple[bool, Any]:
    """Calls something on each side.

    Args:
        sides: what the call is made on.
        call: the call; what it returns must be the same for all sides, so it holds ids and no pages.
        state: what can be seen of a side; a refused call leaves it as it was, and all sides show the same after.

    Returns:
        Whether the call was served, and what it returned, or the class and clause of the refusal.
    """
    before = state(sides[0])
    outcomes = [_outcome(partial(call, side)) for side in sides]
    assert outcomes[1:] == outcomes[:-1], outcomes
    refused = isinstance(outcomes[0], tuple) and len(outcomes[0]) == 2 and isinstance(outcomes[0][0], type)
    after = [state(side) for side in sides]
    assert after[1:] == after[:-1]
    if refused:
        assert after[0] == before, "R1: a refused call changed something"
    return not refused, outcomes[0]


def pool_state(pool: Any, keys: bool) -> dict[str, Any]:
    """What a pool shows; without ``keys`` only what needs no digest."""
    state: dict[str, Any] = {
        "free": [page.page_id for page in pool.free_page_queue.get_all_free_pages()],
        "number": (pool.get_num_free_pages(), pool.free_page_queue.num_free_pages),
        "counts": [page.ref_cnt for page in pool.pages],
        "usage": pool.get_usage(),
    }
    if keys:
        state["map"] = {key: [page.page_id for page in pages] for key, pages in pool.cached_page_hash_to_page.items()}
        state["hashes"] = [page.page_hash for page in pool.pages]
    return state
