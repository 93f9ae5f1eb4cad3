"""MAN-14: a manager's whole state as JSON.

What a snapshot looks like stands in the declarations' `snapshots`, so that a manager of either package goes on from
the other's. Equal states give equal snapshots, whatever led to them: cached pages stand by the first page under their
key, contents in the order in which those pages need them.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from kvproof.spec.declarations.json_kinds import counters_to_json, event_to_json, extra_keys_to_json, group_to_json
from kvproof.spec.declarations.snapshots import HEADER, VERSION

from ..groups.swapped_requests import SwappedRequests
from ..index.runs import Run
from ..pool.hashing import token_tuple
from ..pool.page_pool import PagePool
from ..reading.arguments import refusal

if TYPE_CHECKING:
    from .prefix_manager import PrefixManager

__all__ = ["snapshot_of"]


def snapshot_of(manager: "PrefixManager") -> dict[str, Any]:
    """The snapshot of a manager; see `PrefixManager.snapshot`. O(pages and cached tokens)."""
    pool, coordinator = manager.page_pool, manager.coordinator
    _require_none_swapped(coordinator.swapped)
    _require_told(manager)
    contents, cached = _contents(pool)
    stored_at, freed_at = pool.sampled_times()
    return {
        "kvproof": HEADER,
        "version": VERSION,
        "num_pages": manager.num_pages,
        "max_model_len": manager.max_model_len,
        "enable_caching": manager.enable_caching,
        "use_eagle": manager.use_eagle,
        "unhashed_first": pool.unhashed_first,
        "enable_events": pool.enable_events,
        "counter_sampling": pool.counter_sampling,
        "max_pinned_pages": pool.max_pinned_pages,
        "max_pinned_pages_per_salt": pool.max_pinned_pages_per_salt,
        "num_host_pages": coordinator.swapped.host.num_pages,
        "none_hash": pool.none_hash.hex(),
        "groups": [group_to_json(group) for group in manager.kv_cache_groups],
        "now": pool.now,
        "free": pool.free_order().tolist(),
        "priorities": [list(given) for given in pool.priorities()],
        "contents": contents,
        "cached": cached,
        "requests": [_request(manager, *live) for live in manager._live.slot_of.items()],
        "known": list(manager._known),
        "given_back": [[request_id, tokens] for request_id, tokens in manager._given_back.items()],
        "pins": [
            {"id": pin_id, "num_tokens": num_tokens, "pages": [pages.tolist() for pages in hits]}
            for pin_id, (num_tokens, hits) in manager._pins.items()
        ],
        "next_pin_id": manager._next_pin,
        "next_swap_id": coordinator.swapped.next_id,
        "copies": [[request_id, *copy] for request_id, copy in coordinator.copies],
        "events": [event_to_json(event) for event in pool.waiting_events()],
        "counters": counters_to_json(manager.counters),
        "clock": pool.clock,
        "stored_at": stored_at,
        "freed_at": freed_at,
    }


def _require_none_swapped(swapped: SwappedRequests) -> None:
    """Refuses requests in host memory or on their way: that memory and those copies end with this process (SWAP-1)."""
    if swapped.by_id or swapped.flights:
        raise refusal(
            ValueError,
            "MAN-14",
            f"swapped out {list(swapped.by_id)}, under way {list(swapped.flights)}: no snapshot tells of host memory",
        )


def _require_told(manager: "PrefixManager") -> None:
    """Refuses what calls on the pool did beside the manager's: no snapshot tells of it."""
    pool = manager.page_pool
    held = np.zeros(pool.num_pages, np.int64)
    for group in manager.coordinator.groups:
        for slot in manager._live.slot_of.values():
            np.add.at(held, group.held(slot), 1)
    for _, hits in manager._pins.values():
        for pages in hits:
            np.add.at(held, pages, 1)
    held[0] = 0  # POOL-1
    for page in range(pool.num_pages):
        if pool.ref_count(page) != held[page]:
            raise refusal(
                ValueError,
                "MAN-14",
                f"page {page} is held {pool.ref_count(page)} times, by requests and pinned prefixes {held[page]} times",
            )
    trees = [group.tree for group in manager.coordinator.groups]
    for run, place, _ in pool.index.places():
        if run.tree not in trees:
            tree = f"group {run.tree.group_id} for pages of {run.tree.page_bytes // 4} tokens"
            raise refusal(ValueError, "MAN-14", f"page {run.pages[place]} is cached in {tree}")


# -- The cache ------------------------------------------------------------------------------------


def _contents(pool: PagePool) -> tuple[list[list[Any]], list[list[int]]]:
    """What cached pages hold, with all that comes before it, and which pages hold it; both as the format has them."""
    contents: list[list[Any]] = []
    place_of: dict[tuple[int, bytes, bytes], int] = {}  # groups of one page size have their contents in common
    told: dict[tuple[int, int], int] = {}
    cached: list[list[int]] = []
    for page in (page for pages in sorted(pool.alike()) for page in pages):
        found = pool.index.place(page)
        assert found is not None, f"page {page} is cached"
        run, place = found
        path: list[tuple[Run, int]] = []
        while run.parent is not None and (run.number, place) not in told:
            path.append((run, place))
            run, place = (run, place - 1) if place else (run.parent, run.start - 1 - run.parent.start)
        last = -1 if run.parent is None else told[run.number, place]
        for run, place in reversed(path):
            content = last, run.page_tokens(place), run.extra
            last = place_of.setdefault(content, len(contents))
            if last == len(contents):
                contents.append([content[0], list(token_tuple(content[1])), extra_keys_to_json(run.extra_keys)])
            told[run.number, place] = last
        cached.append([found[0].tree.group_id, page, last])
    return contents, cached


# -- Requests -------------------------------------------------------------------------------------


def _request(manager: "PrefixManager", request_id: str, slot: int) -> dict[str, Any]:
    live = manager._live
    promised, computed = live.num_promised[slot], live.num_computed[slot]
    return {
        "id": request_id,
        "slot": slot,
        "num_promised": promised,
        "num_slots": live.num_slots[slot],
        "num_computed": computed,
        "groups": [
            {
                "pages": group.pages(slot).tolist(),
                "num_hits": group.num_hits[slot],
                "num_published": group.num_published[slot],
                "states": [list(state) for state in group.rule.states(computed, promised)],
            }
            for group in manager.coordinator.groups
        ],
    }
