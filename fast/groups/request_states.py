"""MAN-14: live requests as a snapshot has them, written and read: their counts, and their pages in every group.

A request's counts say how long its lists are and where null pages stand (MAN-2, MAN-8, MAN-13); its own tokens say
what the pages hold that are cached (R2). So most of a snapshot's request is there twice, and refused where it differs.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvproof.spec.declarations import EngineRequest
from kvproof.spec.declarations.codec import BEYOND, Part
from kvproof.spec.declarations.snapshots import request_named, retention_of

from ..index.prefix_index import PrefixIndex
from ..pool.page_pool import PagePool
from ..reading.extra_keys import ExtraSegment
from ..reading.request_reading import read_tokens
from ..reading.tokens import TokenBytes
from .cache_group import CacheGroup
from .live_requests import LiveRequests

__all__ = ["SavedRequest", "point_states", "read_requests", "request_states", "restore_points", "restore_requests"]

_MOST_SLOTS = 1 << 20
"""The most slots that a snapshot without groups can name: a few bytes could ask for any number of them (SEC-3)."""


def request_states(live: LiveRequests, groups: Sequence[CacheGroup]) -> list[dict[str, Any]]:
    """What a snapshot has of the live requests, in the order of their admission. O(pages held)."""
    return [
        {
            "id": request_id,
            "slot": slot,
            "num_promised": live.num_promised[slot],
            "num_slots": live.num_slots[slot],
            "num_computed": live.num_computed[slot],
            "groups": [
                {
                    "pages": group.pages(slot).tolist(),
                    "num_hits": group.num_hits[slot],
                    "num_published": group.num_published[slot],
                    "states": [
                        list(state) for state in group.rule.states(live.num_computed[slot], live.num_promised[slot])
                    ],
                }
                for group in groups
            ],
        }
        for request_id, slot in live.slot_of.items()
    ]


def point_states(live: LiveRequests, groups: Sequence[CacheGroup]) -> dict[str, list[list[Any]]]:
    """What a snapshot has of the resume points of live requests (RET-1)."""
    slots = live.slot_of.items()
    return {
        "points": [[request_id, *live.points[slot]] for request_id, slot in slots if any(live.points[slot])],
        "passed": [
            [request_id, group.group_id, place, page]
            for request_id, slot in slots
            for group in groups
            for place, page in sorted(group.passed[slot].items())
        ],
    }


def restore_points(live: LiveRequests, groups: Sequence[CacheGroup], parts: Mapping[str, Part], num_pages: int) -> None:
    """Sets what `point_states` wrote.

    Args:
        live: the live requests.
        groups: the cache groups.
        parts: the snapshot's.
        num_pages: pages of the pool.

    Raises:
        ValueError: something is damaged (MAN-14).
    """
    members = retention_of(parts)
    for part in members["points"].items():
        id_part, prompt_end, junction = part.items(3)
        slot = live.slot_of.get(id_part.text(), -1)
        if slot < 0:
            raise id_part.damaged(f"is {id_part.value!r}, which is not live")
        live.points[slot] = prompt_end.integer(), junction.integer()
    for part in members["passed"].items():
        id_part, group_part, place, page = part.items(4)
        slot = live.slot_of.get(id_part.text(), -1)
        if slot < 0:
            raise id_part.damaged(f"is {id_part.value!r}, which is not live")
        group = groups[group_part.integer(below=len(groups))]
        group.passed[slot] = group.passed[slot] | {place.integer(): page.integer(1, num_pages)}


class SavedRow(NamedTuple):
    """A request's pages in one group, as a snapshot has them."""

    part: Part
    pages: NDArray[np.int64]
    num_hits: int
    num_published: int


class SavedRequest(NamedTuple):
    """A live request, as a snapshot has it."""

    request: EngineRequest
    request_id: str
    slot: int
    promised: int
    slots: int
    computed: int
    rows: list[SavedRow]


# -- Reading --------------------------------------------------------------------------------------


def read_requests(
    requests: Part,
    objects: Mapping[str, EngineRequest],
    groups: Sequence[CacheGroup],
    pool: PagePool,
    max_model_len: int,
) -> list[SavedRequest]:
    """Reads the live requests of a snapshot, in the order of their admission.

    Args:
        requests: the requests of the snapshot.
        objects: the engine's requests, by id.
        groups: the cache groups.
        pool: the pool.
        max_model_len: the most tokens of a request.

    Raises:
        ValueError: something is damaged (MAN-14).
    """
    saved = [_read_request(part, objects, groups, pool, max_model_len) for part in requests.items()]
    for name, values in (("ids", [own.request_id for own in saved]), ("slots", [own.slot for own in saved])):
        if len(set(values)) < len(values):
            raise requests.damaged(f"must have different {name}")
    return saved


def _read_request(
    part: Part,
    objects: Mapping[str, EngineRequest],
    groups: Sequence[CacheGroup],
    pool: PagePool,
    max_model_len: int,
) -> SavedRequest:
    members = part.members(("id", "slot", "num_promised", "num_slots", "num_computed", "groups"))
    request_id, request = members["id"].text(), request_named(members["id"], objects)
    slots = members["num_slots"].integer(1, max_model_len + 1)
    promised = members["num_promised"].integer(1, slots + 1)
    most = promised if any(group.rule.has_states for group in groups) else slots
    computed = members["num_computed"].integer(0, most + 1)
    rows = [
        _read_row(row, group, pool, (promised, slots, computed))
        for group, row in zip(groups, members["groups"].items(len(groups)), strict=True)
    ]
    hits = [(row.num_hits, group.rule) for group, row in zip(groups, rows, strict=True)]
    tokens = max((number * rule.page_size for number, rule in hits), default=0)
    if tokens > computed or any(number != (tokens // rule.page_size if rule.publishes else 0) for number, rule in hits):
        # a look-up hits whole pages of every group; what came back from host memory may end inside a page (SWAP-1)
        raise part.damaged("must have hit the full pages of one number of tokens in every group, all computed")
    # each live request ends with a page that no other one ends with, and takes the lowest free slot
    slot = members["slot"].integer(below=pool.num_pages if groups else _MOST_SLOTS)
    return SavedRequest(request, request_id, slot, promised, slots, computed, rows)


def _read_row(part: Part, group: CacheGroup, pool: PagePool, counts: tuple[int, int, int]) -> SavedRow:
    promised, slots, computed = counts
    members = part.members(("pages", "num_hits", "num_published", "states"))
    pages = members["pages"].integers(below=pool.num_pages)
    if len(pages) != group.rule.end(promised, slots):
        raise members["pages"].damaged(f"must be {group.rule.end(promised, slots)}")
    states = group.rule.states(computed, promised)
    if members["states"].table(BEYOND, BEYOND).tolist() != [list(state) for state in states]:
        raise members["states"].damaged("must be those that follow from the request's counts")
    held = np.arange(len(pages)) >= (len(pages) if states else _first_place(group, computed))
    held[[place for place, _ in states]] = True
    if ((pages != 0) != held).any():
        raise members["pages"].damaged("must have null pages where the request's counts say so, and nowhere else")
    publishes = pool.enable_caching and group.rule.publishes
    published = members["num_published"].integer(below=(promised // group.rule.page_size if publishes else 0) + 1)
    return SavedRow(part, pages, members["num_hits"].integer(below=published + 1), published)


def _first_place(group: CacheGroup, computed: int) -> int:
    """The number of leading places of a list whose pages have been freed."""
    return group.rule.first_place(computed) if group.rule.gives_back else 0


# -- Restoring ------------------------------------------------------------------------------------


def restore_requests(
    live: LiveRequests,
    groups: Sequence[CacheGroup],
    pool: PagePool,
    saved: Sequence[SavedRequest],
    segments: Sequence[Sequence[Sequence[ExtraSegment]]],
) -> None:
    """Makes requests live where none is, with pages that no count shows yet. O(pages held).

    Args:
        live: the live requests; filled.
        groups: the cache groups, whose rows are filled.
        pool: the pool, which has cached its pages already.
        saved: the requests, as `read_requests` has read them.
        segments: for each of them its extra keys over its pages, for each group.

    Raises:
        ValueError: a request does not have the tokens that its pages are cached with (MAN-14).
    """
    live.restore([(own.request, own.request_id, own.slot, layout) for own, layout in zip(saved, segments, strict=True)])
    for own in saved:
        slot, tokens = own.slot, read_tokens(own.request)
        live.num_promised[slot], live.num_slots[slot], live.num_computed[slot] = own.promised, own.slots, own.computed
        live.num_withdrawals[slot] = pool.num_withdrawals  # cached pages are seen to be in their places
        for group, row in zip(groups, own.rows, strict=True):
            _require_own_content(pool.index, group, slot, row, tokens)
            group.admit(slot, group.segments[slot], row.pages)
            group.num_hits[slot], group.num_published[slot] = row.num_hits, row.num_published
            group.num_given_back[slot] = _first_place(group, own.computed)


def _require_own_content(index: PrefixIndex, group: CacheGroup, slot: int, row: SavedRow, tokens: TokenBytes) -> None:
    """Refuses published pages that are cached with something else than the request's tokens at their places."""
    end = row.num_published
    if end * 4 * group.rule.page_size > len(tokens):
        raise row.part.damaged(f"has {end} published pages, the request has {len(tokens) // 4} tokens")
    own = index.holds(group.tree, tokens, group.segments[slot], row.pages[:end])
    wrong = index.cached(row.pages[:end]) & ~own
    if wrong.any():
        raise row.part.damaged(f"has page {row.pages[wrong.argmax()]}, which is cached with other tokens")
