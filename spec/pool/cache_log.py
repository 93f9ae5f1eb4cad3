"""MAN-12: the events that a pool emits about its cache, and the counters of what became of its pages."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..declarations import NUM_BUCKETS, CacheCounters, CacheEvent, PoolOptions
from ..declarations.codec import Part
from ..declarations.json_kinds import counters_of, event_of, event_to_json
from ..reading.arguments import flag, integer
from .pages import CachePage

__all__ = ["CacheLog"]


class CacheLog:
    """Events and counters. The clock counts allocated pages: it stands at k when page k (from 0 on) is allocated.

    Args:
        options: the pool's.
    """

    def __init__(self, options: PoolOptions) -> None:
        self.enable_events = flag("enable_events", options["enable_events"])
        self.counter_sampling = integer("counter_sampling", options["counter_sampling"], minimum=1)
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
        """The events emitted since the last call, in order; none where ``enable_events`` is off (MAN-12)."""
        events, self._events = self._events, []
        return events

    @property
    def counters(self) -> CacheCounters:
        """The pool's counters: evictions, and the lifetimes and reuse gaps of sampled pages (MAN-12).

        Only a page that is allocated while it has a hash counts as evicted; one that loses its hash in another way
        counts nowhere.
        """
        return CacheCounters(
            evictions=self._evictions,
            page_lifetimes=tuple(self._page_lifetimes),
            reuse_gaps=tuple(self._reuse_gaps),
        )

    def _emit(self, event: CacheEvent) -> None:
        """Keeps an event for `take_events`, if events are on."""
        if self.enable_events:
            self._events.append(event)

    def _is_sampled(self, page: CachePage) -> bool:
        return page.page_id % self.counter_sampling == 0

    def _count_stored(self, page: CachePage) -> None:
        """Counts a page that was just cached."""
        if self._is_sampled(page):
            self._stored_at[page.page_id] = self._clock

    def _count_forgotten(self, page: CachePage) -> None:
        """Stops measuring a page that lost its hash."""
        self._stored_at.pop(page.page_id, None)
        self._freed_at.pop(page.page_id, None)

    def _count_freed(self, page: CachePage) -> None:
        """Counts a page that became free."""
        if self._is_sampled(page) and page.page_hash is not None:
            self._freed_at[page.page_id] = self._clock

    def _count_reused(self, page: CachePage) -> None:
        """Counts a free page that was hit and is referenced again."""
        if page.page_id in self._freed_at:
            self._reuse_gaps[_bucket(self._clock - self._freed_at.pop(page.page_id))] += 1

    def _count_allocated(self, page: CachePage) -> None:
        """Counts a page that is about to be allocated: an eviction, if it still has a hash."""
        if page.page_hash is not None:
            self._evictions += 1
            if page.page_id in self._stored_at:
                self._page_lifetimes[_bucket(self._clock - self._stored_at[page.page_id])] += 1
        self._clock += 1

    # -- Snapshots (MAN-14) -----------------------------------------------------------------------

    def log_state(self) -> dict[str, Any]:
        """What a snapshot has of the log, but for the counters, which are the manager's and the pool's together."""
        return {
            "events": [event_to_json(event) for event in self._events],
            "clock": self._clock,
            "stored_at": [list(entry) for entry in sorted(self._stored_at.items())],
            "freed_at": [list(entry) for entry in sorted(self._freed_at.items())],
        }

    def _restore_log(self, parts: Mapping[str, Part], sizes: Sequence[int], num_pages: int) -> None:
        """Sets events, counters and times.

        Args:
            parts: the snapshot's.
            sizes: tokens in a page of each group; 0 for a group that caches none.
            num_pages: pages of the pool.
        """
        counters = counters_of(parts["counters"])
        self._evictions = counters.evictions
        self._page_lifetimes, self._reuse_gaps = list(counters.page_lifetimes), list(counters.reuse_gaps)
        self._clock = parts["clock"].integer()
        self._events = [event_of(part, list(sizes), num_pages) for part in parts["events"].items()]
        for name, times in (("stored_at", self._stored_at), ("freed_at", self._freed_at)):
            times.clear()
            for part in parts[name].items():
                page_id, time = part.items(2)
                times[page_id.integer(1, num_pages)] = time.integer()

    def _check_log(self, pages: Iterable[CachePage]) -> None:
        """Verifies that exactly the measured pages have times, and that none is ahead of the clock."""
        cached = [page for page in pages if page.page_hash is not None and self._is_sampled(page)]
        free = [page for page in cached if page.ref_cnt == 0]
        assert self._stored_at.keys() == {page.page_id for page in cached}, "MAN-12: times stored and cached pages"
        assert self._freed_at.keys() == {page.page_id for page in free}, "MAN-12: times freed and free cached pages"
        for times in (self._stored_at, self._freed_at):
            assert all(0 <= time <= self._clock for time in times.values()), "MAN-12: a time ahead of the clock"
        for page_id, time in self._freed_at.items():
            assert self._stored_at[page_id] <= time, f"MAN-12: page {page_id} was freed before it was stored"
        assert sum(self._page_lifetimes) <= self._evictions <= self._clock, "MAN-12: more evictions than pages taken"
        assert self.enable_events or not self._events, "MAN-12: events are kept that nobody asked for"


def _bucket(value: int) -> int:
    """The bucket of a histogram into which a value falls, see `NUM_BUCKETS`."""
    return min(value.bit_length(), NUM_BUCKETS - 1)
