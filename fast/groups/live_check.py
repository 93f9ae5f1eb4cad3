"""Checks of the redundancies of live requests' columns and rows, and of the pool's counts against them."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ..pool.page_pool import PagePool
from .cache_group import CacheGroup
from .live_requests import LiveRequests
from .swapped_requests import SwappedRequests

__all__ = ["check_live"]


def check_live(
    pool: PagePool, groups: Sequence[CacheGroup], live: LiveRequests, swapped: SwappedRequests, max_model_len: int
) -> None:
    """Verifies that columns, rows and the pool's counts agree; O(pages held).

    The pool may count more references than are found here: those made by calls on the pool itself (POOL-3, POOL-6).

    Args:
        pool: the pool.
        groups: the cache groups, with the requests' rows.
        live: the live requests.
        swapped: the requests in host memory, and the pages referenced for their copies.
        max_model_len: the most tokens of a request.

    Raises:
        AssertionError: they don't; the message shows the request's columns and rows.
    """
    held = pool.pins.counts().copy()
    for request_id, slot in live.slot_of.items():
        state = partial(live.state, request_id)
        request = live.requests[slot]
        assert request is not None and live.ids[slot] == request_id, f"MAN-6: {state()}"  # noqa: PT018
        assert live.is_live[slot], state()
        assert live.num_computed[slot] <= live.num_slots[slot] <= max_model_len, f"MAN-8: {state()}"
        assert live.num_promised[slot] <= live.num_slots[slot], f"MAN-2: {state()}"
        for group in groups:
            wanted = group.rule.end(live.num_promised[slot], live.num_slots[slot])
            assert group.num_pages[slot] >= wanted, f"MAN-2: {state()}"
            unfrozen = [
                place
                for place, tokens in group.rule.states(live.num_computed[slot], live.num_promised[slot])
                if tokens % group.rule.page_size
            ]
            _check_row(pool, group, slot, unfrozen, state)
            np.add.at(held, group.held(slot), 1)
    for flight in swapped.flights.values():
        for pages in flight.pages:
            np.add.at(held, pages, 1)
    held[0] = 0
    counts = [pool.ref_count(page) for page in range(pool.num_pages)]
    assert (held <= counts).all(), f"POOL-2: pages are held {held.tolist()}, counted {counts}"
    assert swapped.by_id.keys().isdisjoint(live.slot_of), "SWAP-1: a request is live and swapped out"
    assert int(live.is_live.sum()) == len(live.slot_of), f"slots: {live.slot_of}"


def _check_row(pool: PagePool, group: CacheGroup, slot: int, unfrozen: list[int], state: Callable[[], str]) -> None:
    pages, published, gone = group.pages(slot), group.num_published[slot], group.num_given_back[slot]
    assert group.num_hits[slot] <= published, f"MAN-3: {state()}"
    assert published <= len(pages), f"MAN-3: {state()}"
    assert not pages[:gone].any(), f"MAN-8: {state()}"
    assert group.rule.has_states or pages[gone:].all(), f"MAN-8: a hole amid the pages: {state()}"
    private = np.concatenate([pages[published:], pages[unfrozen]])  # an unfinished state is still written (MAN-13)
    private = private[private != 0]
    assert not pool.index.cached(private).any(), f"MAN-3: {state()}"
    assert all(pool.ref_count(page) == 1 for page in private.tolist()), f"R2: {state()}"
