"""MAN-14: a manager's whole state as JSON.

What a snapshot looks like stands in the declarations' `snapshots`, so that a manager of either package goes on from
the other's. Equal states give equal snapshots, whatever led to them: cached pages stand by the first page under their
key, contents in the order in which those pages need them.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from kvproof.spec.declarations.json_kinds import counters_to_json, group_to_json
from kvproof.spec.declarations.snapshots import snapshot_with

from ..groups.swapped_requests import SwappedRequests
from ..reading.arguments import refusal

if TYPE_CHECKING:
    from .cache_manager import CacheManager

__all__ = ["snapshot_of"]


def snapshot_of(manager: "CacheManager") -> dict[str, Any]:
    """The snapshot of a manager; see `CacheManager.snapshot`. O(pages and cached tokens)."""
    pool, coordinator = manager.page_pool, manager.coordinator
    _require_none_swapped(coordinator.swapped)
    _require_told(manager)
    state = {
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
        **pool.state(),
        "requests": [_request(manager, *live) for live in manager.coordinator.live.slot_of.items()],
        "known": list(manager.prefixes.known),
        "given_back": [[request_id, tokens] for request_id, tokens in manager.prefixes.given_back.items()],
        "pins": [
            {"id": pin_id, "num_tokens": num_tokens, "pages": [pages.tolist() for pages in hits]}
            for pin_id, (num_tokens, hits) in manager.prefixes.pinned.items()
        ],
        "next_pin_id": manager.prefixes.next_pin_id,
        "next_swap_id": coordinator.swapped.next_id,
        "copies": [[request_id, *copy] for request_id, copy in coordinator.copies],
        "counters": counters_to_json(manager.counters),
    }
    return snapshot_with(state)


def _require_none_swapped(swapped: SwappedRequests) -> None:
    """Refuses requests in host memory or on their way: that memory and those copies end with this process (SWAP-1)."""
    if swapped.by_id or swapped.flights:
        raise refusal(
            ValueError,
            "MAN-14",
            f"swapped out {list(swapped.by_id)}, under way {list(swapped.flights)}: no snapshot tells of host memory",
        )


def _require_told(manager: "CacheManager") -> None:
    """Refuses what calls on the pool did beside the manager's: no snapshot tells of it."""
    pool = manager.page_pool
    held = np.zeros(pool.num_pages, np.int64)
    for group in manager.coordinator.groups:
        for slot in manager.coordinator.live.slot_of.values():
            np.add.at(held, group.held(slot), 1)
    for _, hits in manager.prefixes.pinned.values():
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


# -- Requests -------------------------------------------------------------------------------------


def _request(manager: "CacheManager", request_id: str, slot: int) -> dict[str, Any]:
    live = manager.coordinator.live
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
