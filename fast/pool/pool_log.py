"""MAN-12: the events that a pool emits about its cached pages, in order, and the counters of what became of its pages.

A call records one entry for all of its pages; the events are built from the entries when they are taken. Only the
digests are computed at once, since they can't be computed later.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import chain, repeat
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvproof.spec.declarations import CacheCleared, CacheCounters, CacheEvent, PageRemoved, PageStored
from kvproof.spec.declarations.codec import Part, plain
from kvproof.spec.declarations.json_kinds import counters_of, event_of, event_to_json
from kvproof.spec.declarations.snapshots import unit_of

from ..reading.extra_keys import ExtraSegment
from .hashing import PageHash, PageHashWithGroupId, token_tuples
from .sampling import Sampling

__all__ = ["KeyStretch", "PoolLog"]

_LATEST = 1 << 62
"""The bound of a clock in a snapshot: it goes on."""


_Removed = tuple[int, int, bytes]
"""A page that lost its hash: (group, page, digest)."""


class KeyStretch(NamedTuple):
    """The keys of pages in a row of one request, worked out before the pages are published.

    Attributes:
        group_id: the cache group.
        before: the digest of the page before the first, cached or not; None if there is none.
        digests: the pages' digests.
        tokens: the token bytes of the pages.
        segments: the request's extra keys over its pages.
        start: the place of the first page in the request.
    """

    group_id: int
    before: bytes | None
    digests: list[bytes]
    tokens: bytes
    segments: Sequence[ExtraSegment]
    start: int

    def extra_keys(self) -> list[tuple[Any, ...] | None]:
        """The extra keys that touch each page."""
        place, end = self.start, self.start + len(self.digests)
        extra_keys: list[tuple[Any, ...] | None] = []
        for segment in self.segments:
            extra_keys += [segment.extra_keys] * (min(segment.end, end) - place)
            place = max(place, min(segment.end, end))
        return extra_keys

    def keys(self) -> list[PageHashWithGroupId]:
        """The keys. O(tokens)."""
        parts = zip(self.digests, token_tuples(self.tokens, len(self.digests)), self.extra_keys(), strict=True)
        return [PageHashWithGroupId(PageHash(*part), self.group_id) for part in parts]


class _Stored(NamedTuple):
    """An entry: ``pages``, without null pages, were cached under the keys at the same positions."""

    pages: Sequence[int]
    keys: KeyStretch


class PoolLog:
    """Events and counters. It trusts its caller: each change is recorded when it happens.

    Args:
        num_pages: pages of the pool.
        enable_events: True if events are kept.
        counter_sampling: the interval of the pages whose ages are measured, see `Sampling`.

    Attributes:
        keeps_events: True if events are kept.
        clock: the number of pages ever allocated.
        evictions: the number of pages that were allocated while they were cached.
        ages: the times of sampled pages.
    """

    __slots__ = ("_entries", "ages", "clock", "evictions", "keeps_events")

    def __init__(self, num_pages: int, enable_events: bool, counter_sampling: int) -> None:
        self.keeps_events = enable_events
        self._entries: list[_Stored | list[_Removed] | CacheEvent] = []
        self.ages = Sampling(num_pages, counter_sampling)
        self.clock = 0
        self.evictions = 0

    # -- Events -----------------------------------------------------------------------------------

    def stored(self, pages: Sequence[int], keys: KeyStretch) -> None:
        """Records that pages were cached under the keys; null pages are skipped. O(1)."""
        self._entries.append(_Stored(pages, keys))

    def removed(self, gone: list[_Removed]) -> None:
        """Records that pages lost their hashes, in order. O(1)."""
        if gone:
            self._entries.append(gone)

    def cleared(self) -> None:
        """Records that every page lost its hash."""
        self.ages.cleared()
        if self.keeps_events:
            self._entries.append(CacheCleared())

    def take_events(self) -> list[CacheEvent]:
        """The events since the last call, in order. O(events)."""
        events = self._waiting()
        self._entries = []
        return events

    def _waiting(self) -> list[CacheEvent]:
        events: list[CacheEvent] = []
        for entry in self._entries:
            if isinstance(entry, _Stored):
                events += _stored_events(*entry)
            elif isinstance(entry, list):
                events += _removed_events(entry)
            else:
                events.append(entry)
        return events

    # -- Counters ---------------------------------------------------------------------------------

    def evicted(self, pages: NDArray[np.int64], num_cached: int) -> None:
        """Counts pages that are being allocated, the first at the clock's time, ``num_cached`` of them cached."""
        self.evictions += num_cached
        self.ages.evicted(pages, self.clock)

    def counters(self) -> CacheCounters:
        """The counters that a pool has: evictions, lifetimes and reuse gaps."""
        return CacheCounters(
            evictions=self.evictions,
            page_lifetimes=tuple(self.ages.lifetimes),
            reuse_gaps=tuple(self.ages.reuse_gaps),
        )

    # -- Snapshots (MAN-14) and check -------------------------------------------------------------

    def state(self, is_free: NDArray[np.bool_]) -> dict[str, Any]:
        """What a snapshot has of events and times; its counters are the manager's and the pool's together.

        Args:
            is_free: True for each page with a reference count of 0, `bool[num_pages]`.
        """
        events = [event_to_json(event) for event in self._waiting()]
        return {"events": events, "clock": self.clock, **self.ages.state(is_free)}

    def restore(self, parts: Mapping[str, Part], sizes: Sequence[int], is_free: NDArray[np.bool_]) -> None:
        """Sets events, counters, the clock and times.

        Args:
            parts: the snapshot's.
            sizes: tokens in a page of each group; 0 for a group that caches none.
            is_free: as for `state`.

        Raises:
            ValueError: a part is damaged, or times are of other pages than the sampled cached ones (MAN-14).
        """
        num_pages = len(is_free)
        events = [event_of(part, list(sizes), num_pages, unit_of(parts)) for part in parts["events"].items()]
        if events and not self.keeps_events:
            raise parts["events"].damaged("must be empty: events are off")
        self._entries = list(events)
        counters = counters_of(parts["counters"])
        self.evictions = counters.evictions
        self.ages.lifetimes[:] = counters.page_lifetimes
        self.ages.reuse_gaps[:] = counters.reuse_gaps
        self.clock = parts["clock"].integer(below=_LATEST)
        self.ages.restore(*(parts[name].table(num_pages, self.clock + 1) for name in ("stored_at", "freed_at")))
        if any(plain(parts[name].value) != times for name, times in self.ages.state(is_free).items()):
            problem = "and freed_at must name the sampled pages that are cached, and free, by page"
            raise parts["stored_at"].damaged(problem)

    def check(self, is_cached: NDArray[np.bool_], is_free: NDArray[np.bool_]) -> None:
        """Verifies events, times and histograms; arguments as for `Sampling.check`.

        Raises:
            AssertionError: they contradict each other.
        """
        self.ages.check(is_cached, is_free, self.clock, self.evictions)
        assert self.keeps_events or not self._entries, "MAN-12: events are kept that nobody asked for"


# A named tuple's own constructor is a Python function: 0.58 us for a stored page, where `map` over the tuple's takes
# 0.20. A request of row r comes to 1,400 events.

_new_stored = partial(tuple.__new__, PageStored)
_new_removed = partial(tuple.__new__, PageRemoved)


def _stored_events(pages: Sequence[int], keys: KeyStretch) -> Iterable[CacheEvent]:
    digests = keys.digests
    events = zip(
        repeat(keys.group_id),
        pages,
        digests,
        chain((keys.before,), digests),
        token_tuples(keys.tokens, len(pages)),
        keys.extra_keys(),
        strict=False,  # ``repeat`` never ends
    )
    return map(_new_stored, events if all(pages) else [fields for fields in events if fields[1]])


def _removed_events(gone: list[_Removed]) -> Iterable[CacheEvent]:
    return map(_new_removed, gone)
