"""MAN-14: live requests as a snapshot has them, written and read: their counts, and their pages in every group."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..declarations import EngineRequest
from ..declarations.codec import Part
from ..declarations.snapshots import request_named, retention_of
from ..pool.hashing import request_extra_keys
from ..pool.page_pool import PagePool
from .group_rules import GroupRules
from .live_requests import GroupPages, Live, LiveRequests, read_tokens

__all__ = ["point_states", "request_states", "restore_points", "restore_requests"]

_MOST_SLOTS = 2**20
"""The most slots that a snapshot without groups can name."""

_COUNTS = ("num_promised", "num_slots", "num_computed")


def request_states(live_requests: LiveRequests, held: Mapping[str, Sequence[GroupPages]]) -> list[dict[str, Any]]:
    """What a snapshot has of the live requests, in the order of their admission.

    Args:
        live_requests: the live requests.
        held: each live request's pages in every group, by its id.
    """
    return [
        {
            "id": request_id,
            "slot": live.slot,
            **{name: getattr(live, name) for name in _COUNTS},
            "groups": [
                {
                    "pages": [page.page_id for page in own.pages],
                    "num_hits": own.num_hits,
                    "num_published": own.num_published,
                    "states": [list(state) for state in sorted(own.states.items())],
                }
                for own in held[request_id]
            ],
        }
        for request_id, live in live_requests.by_id.items()
    ]


def restore_requests(
    live_requests: LiveRequests,
    held: dict[str, list[GroupPages]],
    pool: PagePool,
    rules: Sequence[GroupRules],
    requests: Part,
    objects: Mapping[str, EngineRequest],
) -> None:
    """Makes requests live where none is, with pages that no count shows yet.

    Args:
        live_requests: the live requests; filled.
        held: each live request's pages in every group, by its id; filled.
        pool: the pool, which has cached its pages already.
        rules: each group's rules.
        requests: the requests of the snapshot.
        objects: the engine's requests, by id.

    Raises:
        ValueError: something is damaged, or is not what the engine's request has (MAN-14).
    """
    # with a group each live request has a page that no other one ends with, and slots are the lowest free ones
    most_slots = pool.num_pages if rules else _MOST_SLOTS
    for part in requests.items():
        members = part.members(("id", "slot", *_COUNTS, "groups"))
        request_id, request = members["id"].text(), request_named(members["id"], objects)
        if request_id in held:
            raise part.damaged(f"is the second one of the id {request_id!r}")
        counts = [members[name].integer() for name in _COUNTS]
        live_requests.by_id[request_id] = Live(request, members["slot"].integer(below=most_slots), *counts)
        own = [_read_pages(group, pool) for group in members["groups"].items(len(rules))]
        _require_own_content(part, request, own, pool, rules)
        held[request_id] = own


def point_states(live_requests: LiveRequests, held: Mapping[str, Sequence[GroupPages]]) -> dict[str, Any]:
    """What a snapshot has of the resume points of live requests (RET-1); see `request_states`."""
    return {
        "points": [
            [request_id, live.prompt_end, live.junction]
            for request_id, live in live_requests.by_id.items()
            if live.prompt_end or live.junction
        ],
        "passed": [
            [request_id, group, place, page.page_id]
            for request_id in live_requests.by_id
            for group, own in enumerate(held[request_id])
            for place, page in sorted(own.passed.items())
        ],
    }


def restore_points(
    live_requests: LiveRequests, held: Mapping[str, Sequence[GroupPages]], pool: PagePool, parts: Mapping[str, Part]
) -> None:
    """Sets what `point_states` wrote; `check` verifies that it fits the rest.

    Args:
        live_requests: the live requests.
        held: each live request's pages in every group, by its id.
        pool: the pool.
        parts: the snapshot's.

    Raises:
        ValueError: something is damaged (MAN-14).
    """
    members = retention_of(parts)
    for part in members["points"].items():
        id_part, prompt_end, junction = part.items(3)
        live = live_requests.by_id.get(id_part.text())
        if live is None:
            raise id_part.damaged(f"is {id_part.value!r}, which is not live")
        live.prompt_end, live.junction = prompt_end.integer(), junction.integer()
    for part in members["passed"].items():
        id_part, group, place, page = part.items(4)
        own = held.get(id_part.text())
        if own is None:
            raise id_part.damaged(f"is {id_part.value!r}, which is not live")
        passed = own[group.integer(below=len(own))].passed
        passed[place.integer()] = pool.pages[page.integer(1, pool.num_pages)]


def _read_pages(part: Part, pool: PagePool) -> GroupPages:
    """Reads a request's pages in one group, null pages as 0."""
    members = part.members(("pages", "num_hits", "num_published", "states"))
    pages = [pool.pages[page.integer(below=pool.num_pages)] for page in members["pages"].items()]
    states = {}
    for state in members["states"].items():
        place, tokens = state.items(2)
        states[place.integer(below=len(pages))] = tokens.integer(minimum=1)
    return GroupPages(pages, members["num_hits"].integer(), members["num_published"].integer(), states)


def _require_own_content(
    part: Part, request: EngineRequest, held: Sequence[GroupPages], pool: PagePool, rules: Sequence[GroupRules]
) -> None:
    """Refuses another request than the snapshot's: a page that it published holds its tokens, if it is cached (R2)."""
    tokens, extra_keys = read_tokens(request), request_extra_keys(request)
    for rule, own in zip(rules, held, strict=True):
        known = min(own.num_published, len(tokens) // rule.page_size)
        chain = pool.keys.extend_chain([], tokens, extra_keys, rule.page_size, known)
        for place, page in enumerate(own.pages[: own.num_published]):
            content = pool.content_of(page)
            if content is not None and content not in [own_content for _, own_content in chain[place : place + 1]]:
                raise part.damaged(f"has page {page.page_id}, which holds other tokens")
            if page.page_hash is not None and page.page_hash.group_id != rule.group_id:
                raise part.damaged(f"has page {page.page_id}, which is another group's")
        if known < own.num_published:
            raise part.damaged(f"has {own.num_published} published pages in group {rule.group_id}: too few tokens")
