"""MAN-12: the events that a pool emits about its cache, and the counters of what became of its pages."""

from collections.abc import Mapping, Sequence, Set
from typing import Any

from ..declarations import NUM_BUCKETS, CacheCounters, CacheEvent
from ..declarations.codec import Part
from ..declarations.json_kinds import counters_of, event_of, event_to_json
from ..declarations.snapshots import unit_of

__all__ = ["PoolLog"]


class PoolLog:
    """Events and counters. The clock counts allocated pages: it stands at k when page k (from 0 on) is allocated.

    Args:
        enable_events: whether events are kept.
        counter_sampling: the histograms count the pages whose id is a multiple of this.
    """

    def __init__(self, enable_events: bool, counter_sampling: int) -> None:
        self._enable_events = enable_events
        self._sampling = counter_sampling
        self._events: list[CacheEvent] = []
        self._clock = 0
        self._stored_at: dict[int, int] = {}
        """Clock at which each sampled page that is cached was cached."""
        self._freed_at: dict[int, int] = {}
        """Clock at which each sampled page that is cached and free became free."""
        self._evictions = 0
        self._page_lifetimes = [0] * NUM_BUCKETS
        self._reuse_gaps = [0] * NUM_BUCKETS

    def take_events(self) -> list[CacheEvent]:
        """The events emitted since the last call, in order."""
        events, self._events = self._events, []
        return events

    def counters(self) -> CacheCounters:
        """The counters that a pool has: evictions, lifetimes and reuse gaps."""
        return CacheCounters(
            evictions=self._evictions,
            page_lifetimes=tuple(self._page_lifetimes),
            reuse_gaps=tuple(self._reuse_gaps),
        )

    def emit(self, event: CacheEvent) -> None:
        """Keeps an event, if events are on."""
        if self._enable_events:
            self._events.append(event)

    def stored(self, page: int) -> None:
        """Counts a page that was just cached."""
        if page % self._sampling == 0:
            self._stored_at[page] = self._clock

    def forgotten(self, page: int) -> None:
        """Stops measuring a page that lost its hash."""
        self._stored_at.pop(page, None)
        self._freed_at.pop(page, None)

    def freed(self, page: int) -> None:
        """Counts a page that became free."""
        if page in self._stored_at:
            self._freed_at[page] = self._clock

    def reused(self, page: int) -> None:
        """Counts a free page that was hit and is referenced again."""
        if page in self._freed_at:
            self._reuse_gaps[_bucket(self._clock - self._freed_at.pop(page))] += 1

    def allocated(self, page: int, is_cached: bool) -> None:
        """Counts a page that is being allocated: an eviction, if it is cached until now."""
        self._evictions += is_cached
        if page in self._stored_at:
            self._page_lifetimes[_bucket(self._clock - self._stored_at[page])] += 1
        self._clock += 1

    # -- Snapshots (MAN-14) and check -------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What a snapshot has of events and times; its counters are the manager's and the pool's together."""
        return {
            "events": [event_to_json(event) for event in self._events],
            "clock": self._clock,
            "stored_at": [list(entry) for entry in sorted(self._stored_at.items())],
            "freed_at": [list(entry) for entry in sorted(self._freed_at.items())],
        }

    def restore(self, parts: Mapping[str, Part], sizes: Sequence[int], num_pages: int) -> None:
        """Sets the state; `check` verifies that it fits the rest.

        Args:
            parts: the snapshot's.
            sizes: tokens in a page of each group; 0 for a group that caches none.
            num_pages: pages of the pool.

        Raises:
            ValueError: a part is damaged (MAN-14).
        """
        counters = counters_of(parts["counters"])
        self._evictions = counters.evictions
        self._page_lifetimes, self._reuse_gaps = list(counters.page_lifetimes), list(counters.reuse_gaps)
        self._clock = parts["clock"].integer()
        self._events = [event_of(part, list(sizes), num_pages, unit_of(parts)) for part in parts["events"].items()]
        for name, times in (("stored_at", self._stored_at), ("freed_at", self._freed_at)):
            times.clear()
            for part in parts[name].items():
                page, time = part.items(2)
                times[page.integer(1, num_pages)] = time.integer()

    def check(self, cached: Set[int], counts: Sequence[int]) -> None:
        """Verifies that exactly the measured pages have times, and that none is ahead of the clock.

        Args:
            cached: the cached pages.
            counts: reference counts by page.
        """
        sampled = {page for page in cached if page % self._sampling == 0}
        free = {page for page in sampled if counts[page] == 0}
        assert self._stored_at.keys() == sampled, "MAN-12: times stored and cached pages"
        assert self._freed_at.keys() == free, "MAN-12: times freed and free cached pages"
        for times in (self._stored_at, self._freed_at):
            assert all(0 <= time <= self._clock for time in times.values()), "MAN-12: a time ahead of the clock"
        for page, time in self._freed_at.items():
            assert self._stored_at[page] <= time, f"MAN-12: page {page} was freed before it was stored"
        assert sum(self._page_lifetimes) <= self._evictions <= self._clock, "MAN-12: more evictions than pages taken"
        assert self._enable_events or not self._events, "MAN-12: events are kept that nobody asked for"

    def __repr__(self) -> str:
        return f"clock: {self._clock}, stored at {self._stored_at}, freed at {self._freed_at}"


def _bucket(value: int) -> int:
    """The bucket of a histogram into which a value falls, see `NUM_BUCKETS`."""
    return min(value.bit_length(), NUM_BUCKETS - 1)
