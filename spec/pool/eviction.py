"""EVICT-1: the order in which free pages of priority 0 are evicted, by ``lru`` and by ``reuse``.

The pool tells a queue what happens to its pages, one call each. What a policy learns of contents it learns when a
request lets go of them, so that one that runs costs nothing: a page that is let go again with the content that it had
then was hit since. It learns of the pages of all groups at once: a hit needs pages of each, so that those of a window
are worth nothing without the prefix that they end. By ``reuse`` free pages wait in several queues. *empty*: pages
without a hash, which hold nothing. *levels*: pages by the number of their hits, none, 1, 2 or 3, and more; a page whose
content was evicted lately counts as hit once when it is let go for the first time. *front*: what is taken at once. A
candidate (`Candidate`) says which of them goes next. Times are counted in evicted pages; a turnover is as many as the
pool has pages.
"""

from collections import OrderedDict
from collections.abc import Collection, Container, Iterable, Sequence
from itertools import takewhile

from ..declarations.eviction import (
    CANDIDATES,
    MOST_HITS,
    NUM_LEVELS,
    REUSE,
    STALE_TURNOVERS,
    Candidate,
    EvictionCounters,
    QueuesState,
    SavedEviction,
    num_ghost_slots,
)

__all__ = ["EvictionOrder", "LruQueue", "ReuseQueue"]


class LruQueue:
    """The free pages of priority 0, the one freed first in front. It is the queue of `lru`, which watches no contents.

    Args:
        num_pages: pages of the pool; all but the null page are free at first.
    """

    watches = False
    """Whether the pool has to pass on what happens to contents."""
    serves_parts = False
    """Whether a group of the pool needs only part of a prefix; the manager says so."""

    def __init__(self, num_pages: int) -> None:
        self._free = OrderedDict.fromkeys(range(1, num_pages))

    def order(self, before: Iterable[int] = ()) -> list[int]:  # noqa: ARG002 - LRU has no clock
        """The free pages in the order in which they would be taken now, after the pages ``before``."""
        return list(self._free)

    def __len__(self) -> int:
        return len(self._free)

    def __contains__(self, page: int) -> bool:
        return page in self._free

    def num_empty(self, cached: Container[int]) -> int:
        """How many pages stand in front that hold nothing, none of them among ``cached``."""
        return sum(1 for _ in takewhile(lambda page: page not in cached, self._free))

    def take(self) -> int:
        """Takes the next page."""
        return self._free.popitem(last=False)[0]

    def remove(self, page: int) -> None:
        """Takes a page out of the middle."""
        del self._free[page]

    def put(self, pages: Iterable[int]) -> None:
        """Adds pages that became free at once, in this order."""
        self._free.update(OrderedDict.fromkeys(pages))

    def put_front(self, pages: Iterable[int]) -> None:
        """Adds pages without a hash in front of all others, in this order (POOL-13)."""
        self._free = OrderedDict.fromkeys([*pages, *self._free])

    # -- What happens to contents ------------------------------------------------------------------

    def published(self, page: int, mark: int) -> None:
        """A page in use got a hash; ``mark`` stands for its content, see `Marks`."""

    def released(self, pages: Sequence[int]) -> None:
        """A request is about to let go of pages, in this order; those that no hit needs are left out (RET-3)."""

    def forgotten(self, page: int) -> None:
        """A page lost its hash in another way than by eviction."""

    def evicted(self, page: int) -> None:
        """A page was taken from this queue, or from that of another priority; its hash, if it has one, goes."""

    def counters(self) -> EvictionCounters:
        """What the policy has seen."""
        return EvictionCounters()

    # -- Snapshots (MAN-14) and check --------------------------------------------------------------

    def saved(self) -> SavedEviction | None:
        """What a snapshot has of the queue; None: the free pages in their order are all."""
        return None

    def restore(self, free: Sequence[int], saved: SavedEviction | None, clock: int) -> None:  # noqa: ARG002 - as above
        """Sets the state; `check` verifies that it fits the rest.

        Args:
            free: the free pages of priority 0, in order.
            saved: what `saved` gave.
            clock: the number of evicted pages.
        """
        self._free = OrderedDict.fromkeys(free)

    def check(self, cached: Collection[int], counts: Sequence[int], evictions: int) -> None:
        """Verifies what the queue knows of contents against the pool's cached pages, counts and evictions."""


class EvictionOrder:
    """Free entries in the order in which they are evicted by a candidate, and what is known of the contents.

    The entries are the pages of a pool, or the contents of a shadow pool, which are their own marks.

    Args:
        size: the number of entries that there is room for, which makes a turnover.
        candidate: the rule.
    """

    def __init__(self, size: int, candidate: Candidate) -> None:
        self.size = size
        self.candidate = candidate
        self.clock = 0
        """Entries evicted so far. Those taken without a hash do not count, as they push nothing out."""
        self.front: list[tuple[int, dict[int, None]]] = []
        """Batches of entries to be taken at once, with the clock when they became free: the last batch goes first."""
        self.levels: list[dict[int, int]] = [{} for _ in range(NUM_LEVELS)]
        """The other free entries by level, in the order in which they became free, with the clock at that time."""
        self.mark_of: dict[int, int] = {}
        """The mark of each cached entry."""
        self.hits: dict[int, int] = {}
        """The number of hits of cached entries that were let go, at most `MOST_HITS`; see `let_go`."""
        self.ghosts: dict[int, int] = {}
        """Tags of evicted contents, by the slots that their marks give; a later one takes a slot over."""

    @property
    def num_free(self) -> int:
        """The number of free entries."""
        return sum(len(batch) for _, batch in self.front) + sum(map(len, self.levels))

    def free_entries(self) -> list[int]:
        """The free entries."""
        entries = [entry for _, batch in self.front for entry in batch]
        return [*entries, *(entry for level in self.levels for entry in level)]

    def next(self) -> int:
        """The entry to be taken next."""
        turnovers = self.candidate.turnovers
        firsts = [(number, *next(iter(level.items()))) for number, level in enumerate(self.levels) if level]
        if turnovers is None:  # what nobody asked for during this time is no part of what comes round
            stale = self.clock - STALE_TURNOVERS * self.size
            # the oldest batch before the levels, lower levels before higher ones: they may need what stands there
            if self.front and self.front[0][0] < stale:
                return next(iter(self.front[0][1]))
            for _, entry, clock in firsts:
                if clock < stale:
                    return entry
        if self.front:
            return next(iter(self.front[-1][1]))
        if turnovers is None:
            _, entry, _ = min(firsts, key=lambda first: (first[0] > 0, first[2]))
        else:
            _, entry, _ = min(firsts, key=lambda first: first[2] + turnovers * self.size * first[0])
        return entry

    def leave(self, entry: int) -> None:
        """Takes an entry out of its queue, if it is in one."""
        for level in self.levels:
            level.pop(entry, None)
        for place, (_, batch) in enumerate(self.front):
            if entry in batch:
                del batch[entry]
                if not batch:
                    del self.front[place]
                return

    def evicted(self, entry: int) -> None:
        """An entry that was free was taken: its content, if it has one, becomes a ghost."""
        mark = self.mark_of.pop(entry, None)
        if mark is not None:
            self.clock += 1
            slot, tag = self._ghost(mark)
            self.ghosts[slot] = tag
            self.hits.pop(entry, None)

    def forgotten(self, entry: int) -> None:
        """A cached entry lost its content in another way; where it is free, it keeps its place."""
        del self.mark_of[entry]
        self.hits.pop(entry, None)

    def published(self, entry: int, mark: int) -> None:
        """An entry in use got a content."""
        self.mark_of[entry] = mark

    def is_ghost(self, mark: int) -> bool:
        """Whether a content was evicted lately."""
        slot, tag = self._ghost(mark)
        return self.ghosts.get(slot) == tag

    def marks(self, entries: Iterable[int]) -> list[tuple[int, int]]:
        """Those of entries that have contents, with their marks."""
        return [(entry, self.mark_of[entry]) for entry in entries if entry in self.mark_of]

    def _ghost(self, mark: int) -> tuple[int, int]:
        """The slot and the tag of a mark."""
        return (mark % 2**32) * num_ghost_slots(self.size) >> 32, (mark >> 32) + 1

    def let_go(self, entries: Sequence[int], serves_parts: bool) -> None:
        """A request let go of entries: those that were let go before, with the same contents, were hit by it.

        What an entry needs for its hits counts as hit as often: what follows it here, up to one without a content. By
        a candidate that extends, all that the request computed behind an entry that was hit counts as hit once, if it
        is known that a group needs only part of a prefix.

        Args:
            entries: entries of one request, the last one first.
            serves_parts: whether there is such a group.
        """
        cached = self.marks(entries)
        for entry, mark in cached:
            if entry in self.hits:
                self.hits[entry] = min(self.hits[entry] + 1, MOST_HITS)
            else:
                self.hits[entry] = int(self.candidate.uses_ghosts and self.is_ghost(mark))
        if serves_parts and self.candidate.extends and any(self.hits[entry] for entry, _ in cached):
            for entry, _ in cached:
                self.hits[entry] = max(self.hits[entry], 1)
        behind = 0
        for entry in entries:
            behind = max(behind, self.hits[entry]) if entry in self.mark_of else 0
            if behind:
                self.hits[entry] = behind

    def put(self, entries: Iterable[int]) -> None:
        """Adds entries that became free at once: those with a content."""
        batch: dict[int, None] = {}
        for entry in entries:
            level = self.hits.get(entry, 0).bit_length()
            if self.candidate.turnovers is None and level == 0:
                batch[entry] = None
            else:
                self.levels[level][entry] = self.clock
        if batch:
            self.front.append((self.clock, batch))

    # -- Snapshots (MAN-14) and check --------------------------------------------------------------

    def state(self) -> QueuesState:
        """What a snapshot has of the queues."""
        front = [(clock, list(batch)) for clock, batch in self.front]
        levels = [list(level.items()) for level in self.levels]
        return QueuesState(front, levels, sorted(self.hits.items()), sorted(self.ghosts.items()))

    def restore(self, queues: QueuesState, clock: int) -> None:
        """Sets the queues of a snapshot; `check` verifies that they fit the rest."""
        self.clock = clock
        self.front = [(time, dict.fromkeys(batch)) for time, batch in queues.front]
        self.levels = [dict(level) for level in queues.levels]
        self.hits, self.ghosts = dict(queues.hits), dict(queues.ghosts)

    def check(self) -> None:
        """Verifies that the queues, their clocks and the numbers of hits agree."""
        batches = [list(batch) for _, batch in self.front]
        free = self.free_entries()
        assert len(set(free)) == len(free), "EVICT-1: an entry is free twice"
        assert all(batches), "EVICT-1: an empty batch"
        for times in ([time for time, _ in self.front], *(list(level.values()) for level in self.levels)):
            assert times == sorted(times), "EVICT-1: an entry stands before one that became free earlier"
            assert not times or times[-1] <= self.clock, "EVICT-1: an entry became free ahead of the clock"
        assert self.hits.keys() <= self.mark_of.keys(), "EVICT-1: an entry without a content has hits"
        assert all(0 <= number <= MOST_HITS for number in self.hits.values()), f"EVICT-1: hits {self.hits}"
        for number, level in enumerate(self.levels):
            for entry in level.keys() & self.mark_of.keys():
                assert self.hits.get(entry, 0).bit_length() == number, f"EVICT-1: entry {entry} is on another's level"
        assert not any(self.hits.get(entry) for batch in batches for entry in batch), "EVICT-1: hits in a batch"
        for slot, tag in self.ghosts.items():
            assert 0 <= slot < num_ghost_slots(self.size), f"EVICT-1: no slot {slot}"
            assert 1 <= tag <= 2**31, f"EVICT-1: no mark has the tag {tag}"


class ReuseQueue(LruQueue):
    """The free pages of priority 0 in the order of ``reuse``: what was hit stays longer than what was not (EVICT-1).

    Args:
        num_pages: pages of the pool; all but the null page are free at first.
        candidate: the rule.

    Attributes:
        pages: the free pages that were cached when they became free, and the contents.
        regrets: see `EvictionCounters`.
    """

    watches = True

    def __init__(self, num_pages: int, candidate: Candidate = REUSE) -> None:
        self.pages = EvictionOrder(num_pages - 1, candidate)
        self.regrets = 0
        self._empty = OrderedDict.fromkeys(range(1, num_pages))
        """Free pages that had no hash when they became free: they go before all others."""

    def order(self, before: Iterable[int] = ()) -> list[int]:
        """See `LruQueue.order`. O(free pages)."""
        trial = EvictionOrder(self.pages.size, self.pages.candidate)
        trial.restore(self.pages.state(), self.pages.clock + sum(page in self.pages.mark_of for page in before))
        trial.mark_of = dict(self.pages.mark_of)
        taken = list(self._empty)
        for _ in range(trial.num_free):
            taken.append(trial.next())
            trial.leave(taken[-1])
            trial.evicted(taken[-1])
        return taken

    def num_empty(self, cached: Container[int]) -> int:  # noqa: ARG002 - they are known
        """See `LruQueue.num_empty`: those that had no hash when they became free."""
        return len(self._empty)

    def __len__(self) -> int:
        return len(self._empty) + self.pages.num_free

    def __contains__(self, page: int) -> bool:
        waits = page in self._empty or any(page in level for level in self.pages.levels)
        return waits or any(page in batch for _, batch in self.pages.front)

    def take(self) -> int:
        """See `LruQueue.take`."""
        page = next(iter(self._empty)) if self._empty else self.pages.next()
        self.remove(page)
        return page

    def remove(self, page: int) -> None:
        """See `LruQueue.remove`."""
        self._empty.pop(page, None)
        self.pages.leave(page)

    def put(self, pages: Iterable[int]) -> None:
        """See `LruQueue.put`."""
        cached = []
        for page in pages:
            if page in self.pages.mark_of:
                cached.append(page)
            else:
                self._empty[page] = None
        self.pages.put(cached)

    def put_front(self, pages: Iterable[int]) -> None:
        """See `LruQueue.put_front`."""
        self._empty = OrderedDict.fromkeys([*pages, *self._empty])

    def published(self, page: int, mark: int) -> None:
        """See `LruQueue.published`."""
        self.pages.published(page, mark)

    def released(self, pages: Sequence[int]) -> None:
        """See `LruQueue.released`."""
        new = [mark for page, mark in self.pages.marks(pages) if page not in self.pages.hits]
        self.regrets += sum(map(self.pages.is_ghost, new))
        self.pages.let_go(pages, self.serves_parts)

    def forgotten(self, page: int) -> None:
        """See `LruQueue.forgotten`."""
        self.pages.forgotten(page)

    def evicted(self, page: int) -> None:
        """See `LruQueue.evicted`."""
        self.pages.evicted(page)

    def counters(self) -> EvictionCounters:
        """See `LruQueue.counters`."""
        return EvictionCounters(self.regrets, CANDIDATES.index(self.pages.candidate))

    def saved(self) -> SavedEviction | None:
        """See `LruQueue.saved`."""
        candidate = CANDIDATES.index(self.pages.candidate)
        return SavedEviction(self.regrets, list(self._empty), self.pages.state(), candidate)

    def restore(self, free: Sequence[int], saved: SavedEviction | None, clock: int) -> None:  # noqa: ARG002
        """See `LruQueue.restore`; the pages are published before, and ``free`` follows from the rest."""
        assert saved is not None, "a snapshot with a policy has its state"
        self.regrets = saved.regrets
        self._empty = OrderedDict.fromkeys(saved.empty)
        self.pages.candidate = CANDIDATES[saved.candidate]
        self.pages.restore(saved.queues, clock)

    def check(self, cached: Collection[int], counts: Sequence[int], evictions: int) -> None:  # noqa: ARG002
        """See `LruQueue.check`."""
        self.pages.check()
        assert self._empty.keys().isdisjoint(self.pages.mark_of), "EVICT-1: a cached page is among those without a hash"
        assert self.pages.mark_of.keys() == set(cached), "EVICT-1: contents and hashes differ"
        assert self.pages.clock == evictions, f"EVICT-1: {self.pages.clock} at {evictions} evictions"
