"""MAN-14: live requests from a snapshot: their counts, and which pages each holds in every group.

A request's counts tell how long its lists are and where null pages stand (MAN-2, MAN-8, MAN-13); its own tokens tell
what the pages hold that are cached (R2). So whatever is said of it is said twice and refused where it differs.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvproof.spec.declarations import EngineRequest
from kvproof.spec.declarations.codec import BEYOND, Part

from ..groups.cache_group import CacheGroup
from ..index.prefix_index import PrefixIndex
from ..reading.arguments import attribute
from ..reading.request_reading import read_tokens
from ..reading.tokens import TokenBytes

if TYPE_CHECKING:
    from .cache_manager import CacheManager

__all__ = ["restore_requests"]

_MOST_SLOTS = 1 << 20
"""The most slots that a manager without groups can have had: a few bytes could ask for any number of them (SEC-3)."""


class _Row(NamedTuple):
    """What is said of a request's pages in one group."""

    part: Part
    pages: NDArray[np.int64]
    num_hits: int
    num_published: int


class _Live(NamedTuple):
    """What is said of a live request."""

    part: Part
    request: EngineRequest
    request_id: str
    slot: int
    promised: int
    slots: int
    computed: int
    rows: list[_Row]


def restore_requests(manager: "CacheManager", part: Part, objects: Mapping[str, EngineRequest]) -> NDArray[np.int64]:
    """Makes requests live, in a manager that has none and whose index is filled.

    Args:
        manager: the manager.
        part: the requests of the snapshot, in the order of their admission.
        objects: the engine's requests by their ids.

    Returns:
        How often they hold each page, `i64[num_pages]`.

    Raises:
        ValueError: something is damaged or does not fit the engine's request (MAN-14).
    """
    live, groups, pool = manager.coordinator.live, manager.coordinator.groups, manager.page_pool
    given = [_read(item, objects, groups, manager) for item in part.items()]
    for name, values in (("ids", [own.request_id for own in given]), ("slots", [own.slot for own in given])):
        if len(set(values)) < len(values):
            raise part.damaged(f"must have different {name}")
    segments = [manager.coordinator.segments_of(attribute(own.request, "extra_keys")) for own in given]
    live.restore([(own.request, own.request_id, own.slot, layout) for own, layout in zip(given, segments, strict=True)])
    counts = np.zeros(pool.num_pages, np.int64)
    for own in given:
        slot, tokens = own.slot, read_tokens(own.request)
        live.num_promised[slot], live.num_slots[slot], live.num_computed[slot] = own.promised, own.slots, own.computed
        live.num_withdrawals[slot] = pool.num_withdrawals  # cached pages are seen to be in their places
        for group, row in zip(groups, own.rows, strict=True):
            _require_own_content(pool.index, group, slot, row, tokens)
            np.add.at(counts, row.pages, 1)
            group.admit(slot, group.segments[slot], row.pages)
            group.num_hits[slot], group.num_published[slot] = row.num_hits, row.num_published
            group.num_given_back[slot] = _first_place(group, own.computed)
    counts[0] = 0  # POOL-1
    return counts


# -- Reading --------------------------------------------------------------------------------------


def _read(
    part: Part, objects: Mapping[str, EngineRequest], groups: Sequence[CacheGroup], manager: "CacheManager"
) -> _Live:
    members = part.members(("id", "slot", "num_promised", "num_slots", "num_computed", "groups"))
    request_id = members["id"].text()
    request = objects.get(request_id)
    if request is None:
        raise members["id"].damaged(f"is {request_id!r}, a request that was not given")
    most = manager.max_model_len
    slots = members["num_slots"].integer(1, most + 1)
    promised = members["num_promised"].integer(1, slots + 1)
    computed = members["num_computed"].integer(0, (promised if manager.coordinator.has_states else slots) + 1)
    rows = [
        _read_row(row, group, (promised, slots, computed), manager)
        for group, row in zip(groups, members["groups"].items(len(groups)), strict=True)
    ]
    hits = [(row.num_hits, group.rule) for group, row in zip(groups, rows, strict=True)]
    tokens = max((number * rule.page_size for number, rule in hits), default=0)
    if tokens > computed or any(number != (tokens // rule.page_size if rule.publishes else 0) for number, rule in hits):
        # a look-up hits whole pages of every group; what came back from host memory may end inside a page (SWAP-1)
        raise part.damaged("must have hit the full pages of one number of tokens in every group, all computed")
    # each live request ends with a page that no other one ends with, and takes the lowest free slot
    slot = members["slot"].integer(below=manager.num_pages if groups else _MOST_SLOTS)
    return _Live(part, request, request_id, slot, promised, slots, computed, rows)


def _read_row(part: Part, group: CacheGroup, counts: tuple[int, int, int], manager: "CacheManager") -> _Row:
    promised, slots, computed = counts
    members = part.members(("pages", "num_hits", "num_published", "states"))
    pages = members["pages"].integers(below=manager.num_pages)
    if len(pages) != group.rule.end(promised, slots):
        raise members["pages"].damaged(f"must be {group.rule.end(promised, slots)}")
    states = group.rule.states(computed, promised)
    if members["states"].table(BEYOND, BEYOND).tolist() != [list(state) for state in states]:
        raise members["states"].damaged("must be those that the request's counts tell")
    held = np.arange(len(pages)) >= (len(pages) if states else _first_place(group, computed))
    held[[place for place, _ in states]] = True
    if ((pages != 0) != held).any():
        raise members["pages"].damaged("must have null pages where the request's counts tell so, and nowhere else")
    publishes = manager.enable_caching and group.rule.publishes
    published = members["num_published"].integer(below=(promised // group.rule.page_size if publishes else 0) + 1)
    return _Row(part, pages, members["num_hits"].integer(below=published + 1), published)


def _first_place(group: CacheGroup, computed: int) -> int:
    """How many leading places of a list have been given back."""
    return group.rule.first_place(computed) if group.rule.gives_back else 0


def _require_own_content(index: PrefixIndex, group: CacheGroup, slot: int, row: _Row, tokens: TokenBytes) -> None:
    """Refuses published pages that are cached with something else than the request's tokens at their places."""
    end = row.num_published
    if end * 4 * group.rule.page_size > len(tokens):
        raise row.part.damaged(f"tells of {end} published pages, the request has {len(tokens) // 4} tokens")
    own = index.holds(group.tree, tokens, group.segments[slot], row.pages[:end])
    wrong = index.cached(row.pages[:end]) & ~own
    if wrong.any():
        raise row.part.damaged(f"has page {row.pages[wrong.argmax()]}, which is cached with other tokens")
