"""MAN-3, MAN-11: publishing the pages that a batched step fills.

In most steps every request that fills a page fills one, right behind the page that it published last, and its tokens
lie in an int32 array. Which page that is, is worked out on arrays; for each request a slice of its tokens is read,
and one call extends the run that holds the page before. Where any request of the step needs more than that, all of
them go the way of the single call, in its order.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .cache_group import CacheGroup
from .coordinator import CacheCoordinator
from .extra_keys import PLAIN
from .publishing import Publishing
from .request_reading import plain_tokens

__all__ = ["Filled", "NextPages", "publish_filled", "read_filled"]


class NextPages(NamedTuple):
    """Pages of one group about to be published, each the next of its request; an entry for each request.

    Attributes:
        group: the group.
        places: the requests' places in the step, `i64[m]`.
        slots: their slots, `i64[m]`.
        first: the places of the pages, `i64[m]`.
        after: the cached pages before them.
        tokens: their token bytes.
        extra: the encodings of the extra keys that touch them.
    """

    group: CacheGroup
    places: NDArray[np.int64]
    slots: NDArray[np.int64]
    first: NDArray[np.int64]
    after: list[int]
    tokens: list[bytes]
    extra: list[bytes]


class Filled(NamedTuple):
    """What a step publishes: either ``next_pages`` of each group, or entries in the order of the single calls.

    Attributes:
        next_pages: the usual case, by groups.
        entries: a request's place in the step, its slot, and what was read of its pages.
    """

    next_pages: list[NextPages]
    entries: list[tuple[int, int, Publishing]]

    def of(self, granted: NDArray[np.bool_]) -> "Filled":
        """What of it is due to requests that were granted slots; one by one, since some were not."""
        entries: list[tuple[int, int, Publishing]] = [
            (int(place), int(slot), (group, int(start), after, int(start) + 1, tokens, None))
            for group, places, slots, first, after_all, tokens_all, _ in self.next_pages
            for place, slot, start, after, tokens in zip(places, slots, first, after_all, tokens_all, strict=True)
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
    """Reads what publishing takes, for the requests of a step that fill a page; changes nothing (R1).

    Args:
        coordinator: the groups at work.
        slots: the requests' slots, `i64[n]`.
        computed: their computed tokens, `i64[n]`.
        promised: these and their new tokens, `i64[n]`.
    """
    if coordinator.page_pool.keeps_keys:
        return Filled([], _entries(coordinator, slots, computed, promised))
    pages: list[NextPages] = []
    for group in coordinator.groups if coordinator.enable_caching else ():
        if not group.rule.publishes:
            continue
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
    """What is to be published if all of it is of the usual kind, else None; ``computed`` is of the whole step."""
    pool = coordinator.page_pool
    if not first.item(first.argmin()):
        return None  # a first page has none before it
    if group.rule.gives_back and np.count_nonzero(first <= group.rule.first_place(computed[places])):
        return None  # the page before is about to be given back
    if pool.num_withdrawals and np.count_nonzero(coordinator.live.withdrawals[slots] != pool.num_withdrawals):
        return None  # the page before may have lost its hash since
    after = group.rows[slots, first - 1]
    if np.count_nonzero(pool.index.cached(after)) < len(after):
        return None
    by_slot = slots.tolist()
    segments = [group.segments[slot] for slot in by_slot]
    extra = [b""] * len(segments)
    if segments.count(PLAIN) < len(segments):
        if any(len(own) > 1 for own in segments):
            return None
        extra = [own[0].extra for own in segments]
    requests, size = coordinator.live.requests, group.page_size
    tokens: list[bytes] = []
    for slot, begin in zip(by_slot, (first * size).tolist(), strict=True):
        values = plain_tokens(requests[slot], begin, begin + size)
        if values is None:
            return None
        tokens.append(values)
    return NextPages(group, places, slots, first, after.tolist(), tokens, extra)


def _entries(
    coordinator: CacheCoordinator, slots: NDArray[np.int64], computed: NDArray[np.int64], promised: NDArray[np.int64]
) -> list[tuple[int, int, Publishing]]:
    """What is to be published, read request by request."""
    entries = []
    columns = (column.tolist() for column in (slots, computed, promised))
    for place, (slot, done, end) in enumerate(zip(*columns, strict=True)):
        request = coordinator.live.requests[slot]
        assert request is not None, "a live slot has a request"
        for publishing in coordinator.publisher.read(request, slot, done, end, end):
            entries.append((place, slot, publishing))
    return entries


def publish_filled(coordinator: CacheCoordinator, filled: Filled) -> None:
    """Publishes what was read, in order."""
    publish = coordinator.publisher.publish
    for next_pages in filled.next_pages:
        _publish_next(coordinator, next_pages)
    for _, slot, publishing in filled.entries:
        publish(slot, publishing)


def _publish_next(coordinator: CacheCoordinator, new: NextPages) -> None:
    pool, group = coordinator.page_pool, new.group
    pages = group.rows[new.slots, new.first].astype(np.int64)
    columns = (new.slots.tolist(), pages.tolist(), new.after, new.first.tolist(), new.tokens, new.extra)
    entries = zip(*columns, strict=True)
    while (unusual := pool.index.publish_each(entries)) is not None:
        slot, _, after, first, tokens, _ = unusual
        coordinator.publisher.publish(slot, (group, first, after, first + 1, tokens, None))
    group.published[new.slots] = new.first + 1
    pool.note_keys(pages, None)
