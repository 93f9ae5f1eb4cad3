"""MAN-14: a manager's whole state as JSON. What a snapshot looks like stands in `declarations.snapshots`."""

from collections import Counter
from typing import TYPE_CHECKING, Any

from ..declarations.json_kinds import counters_to_json, group_to_json
from ..declarations.snapshots import snapshot_with
from ..reading.arguments import refusal

if TYPE_CHECKING:
    from .cache_manager import CacheManager

__all__ = ["snapshot_of"]


def snapshot_of(manager: "CacheManager") -> dict[str, Any]:
    """The snapshot of a manager; see `CacheManager.snapshot`."""
    pool = manager.page_pool
    _require_none_swapped(manager)
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
        "num_host_pages": manager.num_host_pages,
        "none_hash": pool.none_hash.hex(),
        "groups": [group_to_json(group) for group in manager.kv_cache_groups],
        **pool.state(),
        "requests": [_request(manager, request_id) for request_id in manager.coordinator.live.by_id],
        "known": list(manager.prefixes.known),
        "given_back": [[request_id, tokens] for request_id, tokens in manager.prefixes.given_back.items()],
        "pins": [
            {"id": pin.pin_id, "num_tokens": pin.num_tokens, "pages": list(pin.pages.get_page_ids())}
            for pin in manager.prefixes.pinned.values()
        ],
        "next_pin_id": manager.prefixes.next_pin_id,
        "next_swap_id": manager.coordinator.swapped.next_swap_id,
        "copies": [[request_id, *copy] for request_id, copy in manager.coordinator.noted_copies],
        "counters": counters_to_json(manager.counters),
    }
    return snapshot_with(state)


def _require_none_swapped(manager: "CacheManager") -> None:
    """Refuses requests that are swapped out or on their way (SWAP-1).

    What was copied lies in the memory of this process, and a copy under way ends nowhere else: who restored the manager
    would wait for fences that never come, and bring back pages that hold nothing.
    """
    swapped = manager.coordinator.swapped
    if not swapped.is_idle:
        raise refusal(
            ValueError,
            "MAN-14",
            f"requests {list(swapped.by_id)} are swapped out, copies of swaps {list(swapped.flights)} under way: host "
            f"memory is in no snapshot",
        )


def _require_told(manager: "CacheManager") -> None:
    """Refuses pages that are held otherwise than by requests and pinned prefixes: nobody could restore them."""
    lists = [list(own.pages) for groups in manager.coordinator.held.values() for own in groups]
    lists += [list(pages) for pin in manager.prefixes.pinned.values() for pages in pin.pages.pages]
    holders = Counter(page.page_id for pages in lists for page in pages)
    for page in manager.page_pool.pages[1:]:
        if page.ref_cnt != holders[page.page_id]:
            raise refusal(
                ValueError,
                "MAN-14",
                f"page {page.page_id} is held {page.ref_cnt} times, by requests and pinned prefixes "
                f"{holders[page.page_id]} times: what calls on the pool hold is in no snapshot",
            )


def _request(manager: "CacheManager", request_id: str) -> dict[str, Any]:
    live = manager.coordinator.live.by_id[request_id]
    return {
        "id": request_id,
        "slot": live.slot,
        "num_promised": live.num_promised,
        "num_slots": live.num_slots,
        "num_computed": live.num_computed,
        "groups": [
            {
                "pages": [page.page_id for page in held.pages],
                "num_hits": held.num_hits,
                "num_published": held.num_published,
                "states": [list(state) for state in sorted(held.states.items())],
            }
            for held in manager.coordinator.held[request_id]
        ],
    }
