"""MAN-11: a batched step in which few requests need or fill a page, and none more than one.

Every decode step of some hundred requests is of this kind. Up to some dozens of pages, a loop over them is quicker
than the array operations of `batched_step`, which cost what a call costs whatever their length: 27 against 68 us for 16
requests of which one needs and one fills a page, 47 against 77 for 64 (measured side by side); past `FEW` it no longer
pays. All is read before anything changes (R1), and anything unusual is left to the arrays.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .cache_group import CacheGroup
from .coordinator import CacheCoordinator
from .group_rules import NEVER
from .growth import Growth
from .request_reading import plain_tokens

__all__ = ["FEW", "SmallStep", "read_small_step"]

FEW = 48
"""So many requests of a step may need or fill a page, together."""


class SmallStep(NamedTuple):
    """What few requests need and fill, one page each.

    Attributes:
        takes: pages to be taken, request by request and group by group: the request's place among those that need
            pages, its slot, the group, and how long its list is.
        fills: pages to be published: the group, the request's slot, the page's place in its list, the cached page
            before it, its token bytes, and the encoding of the extra keys that touch it.
        needs: the slots of the requests that were to need pages, and how many slots make each need one again.
        due: the slots of those that were to fill pages, and how many tokens make each fill one again.
    """

    takes: list[tuple[int, int, CacheGroup, int]]
    fills: list[tuple[CacheGroup, int, int, int, bytes, bytes]]
    needs: list[tuple[int, int]]
    due: list[tuple[int, int]]

    def growths(self, coordinator: CacheCoordinator) -> list[Growth]:
        """What is to be taken as arrays, for each group: what tables are written by."""
        found = []
        for group in coordinator.groups:
            own = [(place, slot, held) for place, slot, taker, held in self.takes if taker is group]
            places, slots, held = np.array(own, np.int64).reshape(-1, 3).T
            found.append(Growth(group, places, slots, held, held + 1, np.ones(len(own), np.int64), len(own), True))
        return found

    def places(self, coordinator: CacheCoordinator) -> list[NDArray[np.int64]]:
        """For each group which of those that were to need pages take one, `i64[m]`: not all do, nor in all groups."""
        if len(coordinator.groups) == 1:
            return [np.array([take[0] for take in self.takes], np.int64)]
        return [
            np.array([place for place, _, taker, _ in self.takes if taker is group], np.int64)
            for group in coordinator.groups
        ]

    def serve(self, coordinator: CacheCoordinator) -> list[list[int]]:
        """Takes and publishes the pages, and works out when their requests have something to do again.

        Returns:
            The ids of each group's new pages.
        """
        live, pool = coordinator.live, coordinator.page_pool
        new: list[list[int]] = [[] for _ in coordinator.groups]
        take_one = pool.take_one
        for _, slot, group, held in self.takes:
            page = take_one()
            new[group.group_id].append(page)
            group.add_page(slot, page, held + 1)
        publish_next, sampling = pool.index.publish_next, pool.counter_sampling
        for group, slot, first, after, tokens, extra in self.fills:
            page = group.row_cell[slot, first]
            if not publish_next(page, after, first, tokens, extra):
                coordinator.publisher.publish(slot, (group, first, after, first + 1, tokens, None))
            elif not page % sampling:
                pool.note_keys((page,), None)
            group.num_published[slot] = first + 1
        num_needs_at, num_due_at = live.num_needs_at, live.num_due_at
        for slot, bound in self.needs:
            num_needs_at[slot] = bound
        for slot, bound in self.due:
            num_due_at[slot] = bound
        return new


def read_small_step(
    coordinator: CacheCoordinator,
    takers: tuple[list[int], list[int]],
    doers: tuple[list[int], list[int]],
) -> SmallStep | None:
    """Reads a step, if it is of this kind; changes nothing (R1).

    Args:
        coordinator: the groups at work.
        takers: the slots of the requests that need pages, and how many tokens of each are to have a slot.
        doers: the slots of those that may fill pages, and the tokens of each up to which they will.

    Returns:
        What there is to do, or None if that is more than a page for any request, or pages are given back, don't
        suffice, hold states, need keys or may have lost them (MAN-4).
    """
    pool = coordinator.page_pool
    if coordinator.gives_back or coordinator.has_states or pool.keeps_keys:
        return None
    takes: list[tuple[int, int, CacheGroup, int]] = []
    needs: list[tuple[int, int]] = []
    most = coordinator.most_slots - 1
    for place, (slot, slots) in enumerate(zip(*takers, strict=True)):
        least = most
        for group in coordinator.groups:
            held, size = group.num_pages[slot], group.rule.page_size
            room = held * size
            if slots > room:
                takes.append((place, slot, group, held))
                room += size
                if slots > room:
                    return None
            if room < least:
                least = room
        needs.append((slot, least + 1))
    if len(takes) > pool.get_num_free_pages():
        return None
    fills: list[tuple[CacheGroup, int, int, int, bytes, bytes]] = []
    due: list[tuple[int, int]] = []
    num_withdrawals = coordinator.live.num_withdrawals
    for slot, promised in zip(*doers, strict=True):
        request = coordinator.live.requests[slot]
        assert request is not None, "a live slot has a request"
        if num_withdrawals[slot] != pool.num_withdrawals:
            return None
        soonest = NEVER
        for group in coordinator.groups:
            first, size = group.num_published[slot], group.rule.page_size
            end = (first + 1) * size
            if promised >= end:
                after, segments = group.row_cell[slot, first - 1], group.segments[slot]
                if promised >= end + size or not first or len(segments) > 1 or not pool.index.run_cell[after]:
                    return None
                tokens = plain_tokens(request, end - size, end)
                if tokens is None:
                    return None
                fills.append((group, slot, first, after, tokens, segments[0].extra))
                end += size
            if end < soonest:
                soonest = end
        due.append((slot, soonest))
    return SmallStep(takes, fills, needs, due)
