"""The redundancies between live requests, their pages and the pool, which hold after every call."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from ..groups.coordinator import CacheCoordinator, GroupPages
from ..groups.group_rules import GroupRules
from ..groups.live_requests import Live
from ..groups.swapped_requests import SwappedRequests
from .prefix_manager import PinnedPrefix

__all__ = ["check_manager"]


def check_manager(
    coordinator: CacheCoordinator,
    live_requests: Mapping[str, Live],
    pinned: Collection[PinnedPrefix],
    swapped: SwappedRequests,
) -> None:
    """Verifies every redundancy of a manager's state; O(pages held).

    Args:
        coordinator: the manager's groups.
        live_requests: its live requests, by id.
        pinned: its pinned prefixes.
        swapped: its requests that are swapped out, and the copies under way.

    Raises:
        AssertionError: one does not hold; the message has the whole state.
    """
    try:
        assert coordinator.held.keys() == live_requests.keys(), "MAN-5: pages are held by requests that are not live"
        slots = [live.slot for live in live_requests.values()]
        assert len(set(slots)) == len(slots), "MAN-11: two requests in one slot"
        for request_id, live in live_requests.items():
            assert live.num_computed <= live.num_slots, "MAN-8: computed tokens without slots"
            assert 1 <= live.num_promised <= live.num_slots <= coordinator.max_model_len, "MAN-2: slots"
            if any(rules.holds_states for rules in coordinator.rules):
                assert live.num_computed <= live.num_promised, "MAN-13: computed tokens that no state was promised for"
            for rules, held in zip(coordinator.rules, coordinator.held[request_id], strict=True):
                _check_list(rules, held, live)
                assert coordinator.page_pool.enable_caching or not held.num_published, "MAN-3: published, caching off"
            _check_hits(coordinator.rules, coordinator.held[request_id], live)
        swapped.check()
        assert swapped.by_id.keys().isdisjoint(live_requests), "SWAP-1: a request is live and swapped out"
        _check_counts(coordinator, live_requests, swapped)
        _check_pins(coordinator, pinned)
    except AssertionError as error:
        state = "\n".join(
            f"{request_id}: {live}, {coordinator.held.get(request_id)}" for request_id, live in live_requests.items()
        )
        raise AssertionError(f"{error}\n{state}") from None


def _check_hits(rules: Sequence[GroupRules], held: Sequence[GroupPages], live: Live) -> None:
    """Verifies that a request's hits have the same number of tokens in every group (MAN-1, SWAP-1)."""
    tokens = max((own.num_hits * rule.page_size for rule, own in zip(rules, held, strict=True)), default=0)
    assert tokens <= live.num_computed, "MAN-1: hits that are not computed"
    for rule, own in zip(rules, held, strict=True):
        assert own.num_hits == rule.num_publishable(tokens), f"MAN-1: hits of another length in group {rule.group_id}"


def _check_list(rules: GroupRules, held: GroupPages, live: Live) -> None:
    """Verifies a request's page list in one group: its length, and null pages where nothing is read."""
    assert held.num_hits <= held.num_published <= len(held.pages), "MAN-3: more published than held"
    assert held.num_published <= rules.num_publishable(live.num_promised), "MAN-3: more published than promised"
    assert len(held.pages) == rules.num_places(live.num_promised, live.num_slots), "MAN-2: a list of another length"
    first = rules.first_place(live.num_computed)
    for place, page in enumerate(held.pages):
        if rules.copies_states:
            is_held = place in held.states
        else:
            is_held = place >= first
        assert page.is_null != is_held, f"MAN-8: page {page.page_id} at place {place} of group {rules.group_id}"
        if place >= held.num_published or not rules.is_publishable(place, held.states):
            assert page.page_hash is None, f"MAN-3: page {page.page_id} has a hash and is not published"
    if rules.copies_states:
        wanted = {rules.first_place(tokens): tokens for tokens in (live.num_computed, live.num_promised) if tokens}
        assert held.states == wanted, "MAN-13: other states than the one that a step began with, and its last"
    else:
        assert not held.states, "MAN-13: states in a group that keeps none"


def _check_counts(coordinator: CacheCoordinator, live_requests: Mapping[str, Live], swapped: SwappedRequests) -> None:
    """Verifies that no count is below the page's known holders (POOL-2), and that unpublished pages have one (R2).

    A count may be higher: pages may also be held by direct calls on the pool, which the manager does not know of.
    """
    lists = [pages for request_id in live_requests for pages in coordinator.get_pages(request_id)]
    lists += [pages for flight in swapped.flights.values() for pages in flight.pages]
    holders = Counter(page.page_id for pages in lists for page in pages if not page.is_null)
    for page in coordinator.page_pool.pages[1:]:
        pins = coordinator.page_pool.pins_of(page.page_id)
        times = holders[page.page_id] + pins
        assert times <= page.ref_cnt, f"POOL-2: page {page.page_id} is held {times} times, counted {page.ref_cnt}"
    for request_id in live_requests:
        for rules, held in zip(coordinator.rules, coordinator.held[request_id], strict=True):
            for place, page in enumerate(held.pages):
                is_private = place >= held.num_published or not rules.is_publishable(place, held.states)
                if is_private and not page.is_null:
                    assert page.ref_cnt == 1, f"R2: page {page.page_id} is written and shared"


def _check_pins(coordinator: CacheCoordinator, pinned: Collection[PinnedPrefix]) -> None:
    """Verifies that every pinned prefix pins its pages (PIN-1); direct calls on the pool may pin others."""
    for prefix in pinned:
        for rules, pages in zip(coordinator.rules, prefix.pages.pages, strict=True):
            assert len(pages) * rules.page_size == prefix.num_tokens > 0, f"PIN-1: tokens and pages of {prefix}"
            first = rules.first_place(prefix.num_tokens)
            is_null = [page.is_null for page in pages]
            assert is_null == [place < first for place in range(len(pages))], f"PIN-1: null pages of {prefix}"
        assert any(not page.is_null for pages in prefix.pages.pages for page in pages), f"PIN-1: no page in {prefix}"
    pins = Counter(
        page.page_id for prefix in pinned for pages in prefix.pages.pages for page in pages if not page.is_null
    )
    for page_id, count in pins.items():
        assert count <= coordinator.page_pool.pins_of(page_id), f"PIN-1: page {page_id} is pinned by {count} prefixes"
