"""MAN-3, MAN-11: publishing the pages that a batched step fills.

In most steps every request that fills a page fills one, right behind the page that it published last, and its tokens
lie in an int32 array. These pages are found by array operations, or in a loop where there are few (`small_step`), and a
slice of tokens is read for each request. The first such page of a request lengthens the run of the page before, later
ones are added to a tail of that run (`GrowingTail`). If any request of the step needs more than that, all of them are
published by the code of the single call, in its order.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..groups.cache_group import CacheGroup
from ..groups.coordinator import CacheCoordinator
from ..groups.publishing import Publishing
from ..pool.pool_log import KeyStretch
from ..reading.request_reading import plain_tokens

__all__ = ["Filled", "NextPage", "NextPages", "publish_filled", "publish_next_pages", "read_filled"]


NextPage = tuple[int, int, int, bytes, bytes]
"""A page about to be published behind another: its request's slot, its id, its position in the request, its token
bytes, and the encoding of the extra keys that touch it."""


class NextPages(NamedTuple):
    """The next pages of one group's requests, as read before anything changes, an entry for each.

    Attributes:
        group: the group.
        places: the requests' positions in the step, `i64[m]`.
        slots: the requests' slots, `i64[m]`.
        first: the positions of the pages in their requests, `i64[m]`.
        after: the cached pages before these pages.
        tokens: the token bytes of the pages.
        extra: the encodings of the extra keys that touch the pages.
        keys: their keys, each by itself; empty where none are kept.
    """

    group: CacheGroup
    places: NDArray[np.int64]
    slots: NDArray[np.int64]
    first: NDArray[np.int64]
    after: list[int]
    tokens: list[bytes]
    extra: list[bytes]
    keys: list[KeyStretch | None]


class Filled(NamedTuple):
    """The pages that a step publishes: ``next_pages`` of each group, or ``entries`` in the order of single calls.

    Attributes:
        next_pages: for each group the next pages of its requests, if all pages of the step are of this kind.
        entries: in all other cases (position in the step, slot, pages as read) for each request and group.
    """

    next_pages: list[NextPages]
    entries: list[tuple[int, int, Publishing]]

    def of(self, granted: NDArray[np.bool_]) -> "Filled":
        """The pages of the requests that were granted slots; as ``entries``, since some were not."""
        entries: list[tuple[int, int, Publishing]] = [
            (place, slot, (group, first, after, first + 1, text, keys[number] if keys else None))
            for group, places, slots, firsts, before, tokens, _, keys in self.next_pages
            for number, (place, slot, first, after, text) in enumerate(
                zip(places.tolist(), slots.tolist(), firsts.tolist(), before, tokens, strict=True)
            )
        ]
        kept = [entry for entry in [*entries, *self.entries] if granted[entry[0]]]
        return Filled([], sorted(kept, key=_in_order))


def _in_order(entry: tuple[int, int, Publishing]) -> tuple[int, int]:
    place, _, (group, *_) = entry
    return place, group.group_id


def read_filled(
    coordinator: CacheCoordinator,
    slots: NDArray[np.int64],
    computed: NDArray[np.int64],
    promised: NDArray[np.int64],
) -> Filled:
    """Reads all that is needed to publish the pages that a step fills; changes nothing (R1).

    Args:
        coordinator: the groups at work.
        slots: the requests' slots, `i64[n]`.
        computed: their computed tokens, `i64[n]`.
        promised: these and their new tokens, `i64[n]`.
    """
    groups = coordinator.publishing
    if coordinator.page_pool.keys.kept and len(groups) > 1:
        return Filled([], _entries(coordinator, slots, computed, promised))
    pages: list[NextPages] = []
    for group in groups:
        first = group.published[slots]
        num_new = promised // group.page_size - first
        places = (num_new > 0).nonzero()[0]
        if not places.size:
            continue
        usual = not group.rule.has_states and not (num_new > 1).nonzero()[0].size
        own = (slots, first) if len(places) == len(slots) else (slots[places], first[places])
        next_pages = _next_pages(coordinator, group, places, *own, computed) if usual else None
        if next_pages is None:
            return Filled([], _entries(coordinator, slots, computed, promised))
        pages.append(next_pages)
    return Filled(pages, [])


def _next_pages(
    coordinator: CacheCoordinator,
    group: CacheGroup,
    places: NDArray[np.int64],
    slots: NDArray[np.int64],
    first: NDArray[np.int64],
    computed: NDArray[np.int64],
) -> NextPages | None:
    """The next pages of the requests, None if any is of another kind; ``computed`` is of the whole step."""
    pool = coordinator.page_pool
    if not first.item(first.argmin()):
        return None  # a first page has none before it
    if group.rule.gives_back and np.count_nonzero(first <= group.rule.first_place(computed[places])):
        return None  # the page before is about to be freed
    live = coordinator.live
    if (pool.num_withdrawals or live.any_withdrawn) and (live.withdrawals[slots] != pool.num_withdrawals).any():
        return None  # the page before may have lost its hash since
    after = group.cells[group.origins[slots] + (first - 1)]
    if pool.index.num_cached(after) < len(after):
        return None
    by_slot, segments = slots.tolist(), group.segments
    extra = [b""] * len(by_slot)
    if not group.is_plain:
        if any(len(segments[slot]) > 1 for slot in by_slot):
            return None
        extra = [segments[slot][0].extra for slot in by_slot]
    requests, size = live.requests, group.page_size
    tokens: list[bytes] = []
    for slot, begin in zip(by_slot, (first * size).tolist(), strict=True):
        text = plain_tokens(requests[slot], begin, begin + size)
        if text is None:
            return None
        tokens.append(text)
    next_pages = NextPages(group, places, slots, first, after.tolist(), tokens, extra, [])
    if pool.keys.kept:
        for slot, place, before, text in zip(by_slot, first.tolist(), next_pages.after, tokens, strict=True):
            next_pages.keys.append(pool.keys.ahead(group.tree, text, segments[slot], place, before))
    return next_pages


def _entries(
    coordinator: CacheCoordinator, slots: NDArray[np.int64], computed: NDArray[np.int64], promised: NDArray[np.int64]
) -> list[tuple[int, int, Publishing]]:
    """The pages to be published, read request by request."""
    entries = []
    columns = (column.tolist() for column in (slots, computed, promised))
    for place, (slot, done, end) in enumerate(zip(*columns, strict=True)):
        request = coordinator.live.requests[slot]
        assert request is not None, "a live slot has a request"
        for publishing in coordinator.publisher.read(request, slot, done, end, end):
            entries.append((place, slot, publishing))
    return entries


def publish_filled(coordinator: CacheCoordinator, filled: Filled) -> None:
    """Publishes the pages read, in order."""
    pool = coordinator.page_pool
    for group, _, slots, first, after, tokens, extra, keys in filled.next_pages:
        pages = group.cells[group.origins[slots] + first].astype(np.int64)
        numbers = group.tail_runs[slots]
        if np.count_nonzero(numbers) == len(numbers):  # of different runs: their order makes no difference
            tails = group.tails
            for slot, text in zip(slots.tolist(), tokens, strict=True):
                tails[slot].tokens += text
            group.published[slots] = first + 1
            pool.index.lengthen(numbers, pages, first)
            pool.note_keys(pages, None)
            if pool.policy is not None:
                for entry in zip(pages.tolist(), after, first.tolist(), tokens, extra, strict=True):
                    pool.policy.note_next(*entry)
        else:
            entries = zip(slots.tolist(), pages.tolist(), first.tolist(), tokens, extra, strict=True)
            publish_next_pages(coordinator, group, entries, keys)
    for _, slot, publishing in filled.entries:
        coordinator.publisher.publish(slot, publishing)


def publish_next_pages(
    coordinator: CacheCoordinator, group: CacheGroup, pages: Iterable[NextPage], keys: Sequence[KeyStretch | None]
) -> None:
    """Publishes the next pages of requests, in order, and records their keys if keys are kept.

    Args:
        coordinator: the groups at work.
        group: the pages' group.
        pages: the pages.
        keys: their keys, each by itself; empty where none are kept.
    """
    pool, index = coordinator.page_pool, coordinator.page_pool.index
    sampling = pool.counter_sampling
    published, tail_runs, tails = group.num_published, group.num_tail_runs, group.tails
    policy, cell, origins = pool.policy, group.cell, group.num_origins
    for number, (slot, page, first, tokens, extra) in enumerate(pages):
        if tail_runs[slot]:
            tails[slot].tokens += tokens
            published[slot] = first + 1
            index.lengthen(tail_runs[slot], page, first)
            if not page % sampling:
                pool.note_keys((page,), None)
            if policy is not None:
                policy.note_next(page, cell[origins[slot] + first - 1], first, tokens, extra)
            continue
        after, key = cell[origins[slot] + first - 1], keys[number] if keys else None
        if index.publish_next(page, after, first, tokens, extra):
            published[slot] = first + 1
            if keys or not page % sampling:
                pool.note_keys((page,), key)
            if policy is not None:
                policy.note_next(page, after, first, tokens, extra)
        else:
            coordinator.publisher.publish(slot, (group, first, after, first + 1, tokens, key))
        coordinator.publisher.begin_tail(group, slot)
