"""EVICT-1: the free pages of priority 0 in the order of a policy that watches contents, and what it knows of them.

It takes the place of the `FreeLog` in `FreeOrder`, and is told what happens to contents by the pool. What it knows of a
page stands in columns: its mark, the clock at which it became free, which queue it waits in. Pages are taken and
put back in array operations: a stretch of pages that one queue gives without another one's turn is a slice of it.
"""

from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvproof.spec.declarations.eviction import (
    CANDIDATES,
    MOST_HITS,
    NUM_LEVELS,
    REUSE,
    STALE_TURNOVERS,
    EvictionCounters,
    EvictionPolicy,
    QueuesState,
    SavedEviction,
    num_ghost_slots,
)

from ..index.runs import RunTree
from ..reading.extra_keys import ExtraSegment
from ..reading.tokens import TokenBytes
from .contents import SavedContents
from .marks import Marks
from .page_log import BatchLog, PageLog
from .shadows import Shadows

__all__ = ["ReuseOrder"]

_NOWHERE, _EMPTY, _FRONT, _LEVELS = range(4)
"""Where a page waits; levels have the numbers from ``_LEVELS`` on."""
_LEVEL_OF = tuple(number.bit_length() for number in range(MOST_HITS + 1))
"""The level of a page, by its number of hits."""
_LEVELS_OF: NDArray[np.int64] = np.array(_LEVEL_OF)
_LOW = 2**32 - 1
_FEW = 6
"""The most pages that are taken one by one: more cost less in array operations (measured)."""


class ReuseOrder:
    """The free pages of priority 0, and the contents of all cached pages (EVICT-1). It trusts its caller.

    Args:
        num_pages: pages of the pool; at first ``1 .. num_pages - 1`` are free, by id.
        run_cell: 0 for each page that is not cached.
        policy: ``reuse`` or ``adaptive``.
        none_hash: the root of the keys, which seeds the marks.

    Attributes:
        num_free: the number of free pages.
        clock: the number of pages evicted so far; what is taken without a hash does not count.
        mark_of: the mark of each cached page, `i64[num_pages]`.
        mark_cell: the same memory, for scalar access.
        marks: computes the marks.
        policy: see above.
        serves_parts: whether a group of the pool needs only part of a prefix; the manager says so.
        shadows: the shadow pools of ``adaptive``; None with ``reuse``.
    """

    __slots__ = (
        "_bound",
        "_candidate",
        "_empty",
        "_freed_at",
        "_freed_cell",
        "_front",
        "_ghost_cell",
        "_ghosts",
        "_hits",
        "_hits_cell",
        "_levels",
        "_num_slots",
        "_place_cell",
        "_queues",
        "_regrets",
        "_run_cell",
        "_run_of",
        "_size",
        "_turnovers",
        "_where",
        "_where_cell",
        "clock",
        "mark_cell",
        "mark_of",
        "marks",
        "num_free",
        "policy",
        "serves_parts",
        "shadows",
    )

    def __init__(self, num_pages: int, run_cell: "array[int]", policy: EvictionPolicy, none_hash: bytes) -> None:
        self.policy = policy
        self.serves_parts = False
        self.marks = Marks(none_hash)
        self._size = num_pages - 1
        self._run_cell = run_cell
        self._run_of: NDArray[np.uint32] = np.frombuffer(run_cell, np.uint32)
        self._num_slots = num_ghost_slots(self._size)
        self.mark_of: NDArray[np.int64] = np.zeros(num_pages, np.int64)
        self._freed_at: NDArray[np.int64] = np.zeros(num_pages, np.int64)
        self._hits: NDArray[np.uint8] = np.zeros(num_pages, np.uint8)
        """How often each cached page was hit, at most `MOST_HITS`."""
        self._where: NDArray[np.uint8] = np.zeros(num_pages, np.uint8)
        self._ghosts: NDArray[np.uint32] = np.zeros(self._num_slots, np.uint32)
        """The tag in each slot: one more than the upper bits of a mark, 0 where there is none."""
        self.mark_cell, self._freed_cell = self.mark_of.data, self._freed_at.data
        self._hits_cell, self._where_cell = self._hits.data, self._where.data
        self._ghost_cell = self._ghosts.data
        self._place_cell = PageLog.places(num_pages)
        self.shadows = Shadows(self._size) if policy == "adaptive" else None
        self._bound = 0 if self.shadows is None else self.shadows.bound
        self.clock = self._regrets = 0
        self._candidate = 0 if policy == "adaptive" else CANDIDATES.index(REUSE)
        self._turnovers = CANDIDATES[self._candidate].turnovers
        self._clear_queues()
        self._empty.put(np.arange(1, num_pages))
        self._where[1:] = _EMPTY
        self.num_free = self._size

    def _clear_queues(self) -> None:
        self._empty, self._front = PageLog(self._place_cell), BatchLog(self._place_cell)
        self._levels = [PageLog(self._place_cell) for _ in range(NUM_LEVELS)]
        self._queues = (self._empty, self._empty, self._front, *self._levels)
        """The queue of each number in ``_where``; the first number is no queue's."""

    # -- Taking -----------------------------------------------------------------------------------

    def take_one(self) -> int:
        """Takes the next page; at least one must be free. O(1) amortised."""
        self.num_free -= 1
        if self._empty.num:
            page = self._empty.take_one()
        elif self._front.num or self._turnovers is None:
            page = self._chunk(1).item()
        else:
            page = self._next_level(self._turnovers * self._size)[0].take_one()
        self._where_cell[page] = _NOWHERE
        self.evicted_one(page)
        return page

    def evicted_one(self, page: int) -> None:
        """A free page, of this order or of another priority, is taken: its content, if it has one, becomes a ghost."""
        if self._run_cell[page]:
            mark = self.mark_cell[page]
            self._ghost_cell[(mark & _LOW) * self._num_slots >> 32] = (mark >> 32) + 1
            self._hits_cell[page] = 0
            self.clock += 1

    def take(self, count: int) -> NDArray[np.int64]:
        """Takes the next ``count`` pages, `i64[count]`; at least ``count`` must be free. O(count) amortised."""
        if count <= _FEW:
            return np.array([self.take_one() for _ in range(count)], np.int64)
        self.num_free -= count
        parts: list[NDArray[np.int64]] = []
        num_empty = min(count, self._empty.num)
        if num_empty:
            parts.append(self._empty.take(num_empty))
            self._where[parts[0]] = _NOWHERE
        left = count - num_empty
        while left:
            pages = self._chunk(left)
            self._where[pages] = _NOWHERE
            self.evicted(pages)
            parts.append(pages)
            left -= len(pages)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def evicted(self, pages: NDArray[np.int64]) -> None:
        """`evicted_one` for distinct pages, in order. O(pages)."""
        cached = self._cached(pages)
        slots, tags = self._ghost(self.mark_of[cached])
        self._ghosts[slots] = tags
        self._hits[cached] = 0
        self.clock += len(cached)

    def _ghost(self, marks: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
        """The slots and the tags of marks."""
        slots = (marks & _LOW) * self._num_slots >> 32
        return slots, ((marks >> 32) + 1).astype(np.uint32)

    def _chunk(self, most: int) -> NDArray[np.int64]:
        """The next pages, at least one and at most ``most``, that one queue gives before it is another's turn."""
        if self._turnovers is None:
            return self._keeping_chunk(most)
        if self._front.num:
            return self._front.take_of(self._front.latest(), most)
        return self._take_of_level(most, self._turnovers * self._size)

    def _next_level(self, longer: int) -> tuple[PageLog, int | None]:
        """The level that gives the next page, and up to which clock its pages go before the first of any other.

        Args:
            longer: how much longer a page stays than one of the level below.

        Returns:
            The queue, and the clock before which its pages became free that are taken before another level's turn;
            None: no other level has pages.
        """
        best = other = -1
        first = second = 0
        for number, level in enumerate(self._levels):
            if level.num:
                due = self._freed_cell[level.first()] + longer * number
                if best < 0 or due < first:
                    best, first, other, second = number, due, best, first
                elif other < 0 or due < second:
                    other, second = number, due
        bound = None if other < 0 else second - longer * best + (best < other)  # at the same time the lower one goes
        return self._levels[best], bound

    def _take_of_level(self, most: int, longer: int) -> NDArray[np.int64]:
        queue, bound = self._next_level(longer)
        count = min(most, queue.num)
        if bound is not None:
            count = int(np.searchsorted(self._freed_at[queue.peek(count)], bound))
        return queue.take(count)

    def _keeping_chunk(self, most: int) -> NDArray[np.int64]:
        """`_chunk` by a candidate that keeps.

        Each page that is evicted may make another queue's first page stale, which then goes before: no more pages are
        taken at once than may be taken before that.
        """
        front, freed_at = self._front, self._freed_cell
        stale = self.clock - STALE_TURNOVERS * self._size
        before = most
        if front.num:
            batch = front.oldest()
            if batch[2] < stale:
                return front.take_of(batch, most)
            before = min(before, batch[2] - stale + 1)
        for queue in self._levels:
            if queue.num:
                time = freed_at[queue.first()]
                if time < stale:
                    times = self._freed_at[queue.peek(min(before, queue.num))]
                    return queue.take(int(np.searchsorted(times, stale)))
                before = min(before, time - stale + 1)
        if front.num:
            return front.take_of(front.latest(), before)
        lowest = self._levels[0]
        return lowest.take(min(before, lowest.num)) if lowest.num else self._take_of_level(before, 0)

    # -- Coming and going -------------------------------------------------------------------------

    def put_one(self, page: int) -> None:
        """`put` for one page. O(1) amortised."""
        self.num_free += 1
        if not self._run_cell[page]:
            self._where_cell[page] = _EMPTY
            self._empty.put_one(page)
            return
        self._freed_cell[page] = self.clock
        level = _LEVEL_OF[self._hits_cell[page]]
        if not level and self._turnovers is None and self.clock:
            self._where_cell[page] = _FRONT
            self._front.put_batch(np.array((page,)), self.clock)
        else:
            self._where_cell[page] = _LEVELS + level
            self._levels[level].put_one(page)

    def put(self, pages: NDArray[np.int64]) -> None:
        """Puts distinct pages that became free at once, in order. O(pages) amortised."""
        count = len(pages)
        self.num_free += count
        is_cached = self._run_of[pages] != 0
        if np.count_nonzero(is_cached) < count:
            empty, pages = pages[~is_cached], pages[is_cached]
            self._where[empty] = _EMPTY
            self._empty.put(empty)
            if not len(pages):
                return
        self._freed_at[pages] = self.clock
        hits = self._hits[pages]
        if np.count_nonzero(hits):
            levels = _LEVELS_OF[hits]
            for level in range(1, NUM_LEVELS):
                own = pages[levels == level]
                if len(own):
                    self._where[own] = _LEVELS + level
                    self._levels[level].put(own)
            pages = pages[hits == 0]
            if not len(pages):
                return
        if self._turnovers is None and self.clock:
            self._where[pages] = _FRONT
            self._front.put_batch(pages, self.clock)
        else:
            self._where[pages] = _LEVELS
            self._levels[0].put(pages)

    def num_leading(self, run_of: NDArray[np.uint32], most: int) -> int:  # noqa: ARG002 - they are known
        """How many of the first ``most`` pages had no hash when they became free, which go first. O(1)."""
        return min(self._empty.num, most)

    def are_distinct(self, pages: NDArray[np.int64]) -> bool:
        """True if no page is listed twice. O(pages log pages)."""
        return len(np.unique(pages)) == len(pages)

    def put_distinct(self, pages: NDArray[np.int64]) -> bool:
        """`put`, unless a page is listed twice; True if it was done. O(pages log pages)."""
        if not self.are_distinct(pages):
            return False
        self.put(pages)
        return True

    def put_front(self, pages: NDArray[np.int64]) -> None:
        """Puts distinct pages without a hash before the first, in order (POOL-13). O(pages without a hash)."""
        self._where[pages] = _EMPTY
        self._empty.put_front(pages)
        self.num_free += len(pages)

    def remove(self, pages: NDArray[np.int64]) -> None:
        """Removes distinct free pages from any places. O(pages)."""
        where = self._where[pages]
        for number in set(where.tolist()):
            own = where == number
            num_own = np.count_nonzero(own)
            if num_own:
                self._queues[number].remove(pages if num_own == len(pages) else pages[own])
        self._where[pages] = _NOWHERE
        self.num_free -= len(pages)

    def remove_one(self, page: int) -> None:
        """Removes one free page from any place. O(1)."""
        self._queues[self._where_cell[page]].remove_one(page)
        self._where_cell[page] = _NOWHERE
        self.num_free -= 1

    def order(self, before: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """The free pages in the order in which they would be taken now, `i64[num_free]`. O(pages and ghosts).

        Args:
            before: the pages of lower priorities, which would be taken before; None: there are none.
        """
        trial = ReuseOrder(self._size + 1, self._run_cell, "reuse", b"")
        saved = self.saved()
        saved.queues.ghosts = []
        num_before = 0 if before is None else int(np.count_nonzero(self._run_of[before]))
        trial.restore(saved, self.clock + num_before)
        trial.mark_of[:] = self.mark_of
        return trial.take(trial.num_free)

    # -- What happens to contents ------------------------------------------------------------------

    def note_pages(
        self,
        tree: RunTree,
        pages: NDArray[np.int64],
        tokens: TokenBytes,
        segments: Sequence[ExtraSegment],
        start: int = 0,
        after: int = 0,
    ) -> None:
        """Notes pages that were just published. Arguments as for `PrefixIndex.publish`. O(tokens)."""
        before = self.mark_cell[after] if after else self.marks.root(tree.group_id)
        text = tokens[: len(pages) * tree.page_bytes]
        marks = self.marks.chain(before, tree.page_bytes // 4, text, segments, start)
        held = pages.nonzero()[0]
        if held.size < len(pages):
            pages, marks = pages[held], marks[held]
        self.published(pages, marks)

    def note_next(self, page: int, after: int, place: int, tokens: bytes, extra: bytes) -> None:
        """`note_pages` for one page behind a cached one, with tokens of this page alone. O(tokens)."""
        self.published_one(page, self.marks.next(self.mark_cell[after], place, tokens, extra))

    def published(self, pages: NDArray[np.int64], marks: NDArray[np.int64]) -> None:
        """Distinct pages in use got hashes, in this order. O(pages).

        Args:
            pages: the pages.
            marks: the marks of their contents, `i64[len(pages)]`.
        """
        self.mark_of[pages] = marks
        slots, tags = self._ghost(marks)
        is_ghost = self._ghosts[slots] == tags
        self._regrets += int(np.count_nonzero(is_ghost))
        hits = is_ghost & CANDIDATES[self._candidate].uses_ghosts
        if self.shadows is not None:
            for place in self.shadows.sampled(marks):
                candidate = self.shadows.asked(marks.item(place), True, False, is_ghost.item(place), self._candidate)
                if candidate != self._candidate:  # pages before this one went by the rule before
                    self._follow(candidate)
                    hits[place:] = is_ghost[place:] & CANDIDATES[candidate].uses_ghosts
        self._hits[pages] = hits

    def published_one(self, page: int, mark: int) -> None:
        """`published` for one page. O(1)."""
        self.mark_cell[page] = mark
        is_ghost = self._ghost_cell[(mark & _LOW) * self._num_slots >> 32] == (mark >> 32) + 1
        if mark < self._bound:
            assert self.shadows is not None, "without shadow pools nothing is sampled"
            candidate = self.shadows.asked(mark, True, False, is_ghost, self._candidate)
            if candidate != self._candidate:
                self._follow(candidate)
        if is_ghost:
            self._regrets += 1
            self._hits_cell[page] = CANDIDATES[self._candidate].uses_ghosts

    def _follow(self, candidate: int) -> None:
        """Goes on by another rule."""
        self._candidate, self._turnovers = candidate, CANDIDATES[candidate].turnovers

    def hit(self, pages: NDArray[np.int64], counts: NDArray[np.int32], are_distinct: bool) -> None:
        """Pages are about to get references, in this order; those without a hash are no hits. O(pages).

        Args:
            pages: the pages, once for each reference.
            counts: the reference counts of all pages.
            are_distinct: True if no page is listed twice.
        """
        pages = self._cached(pages)
        if are_distinct:
            self._hits[pages] = np.minimum(self._hits[pages] + 1, MOST_HITS)
        else:
            for page in pages.tolist():
                self._hits_cell[page] = min(self._hits_cell[page] + 1, MOST_HITS)
        if self.shadows is not None:
            held: set[int] = set()
            marks = self.mark_of[pages]
            for place in self.shadows.sampled(marks):
                page = pages.item(place)
                is_new = not counts.item(page) and page not in held
                held.add(page)
                candidate = self.shadows.asked(marks.item(place), is_new, True, False, self._candidate)
                if candidate != self._candidate:
                    self._follow(candidate)

    def _cached(self, pages: NDArray[np.int64]) -> NDArray[np.int64]:
        """The cached ones of pages."""
        is_cached = self._run_of[pages] != 0
        return pages if np.count_nonzero(is_cached) == len(pages) else pages[is_cached]

    def released(self, pages: NDArray[np.int64], freed: NDArray[np.int64]) -> None:
        """Distinct pages lost references, in this order; ``freed`` are those left without any, in order. O(pages)."""
        if self.shadows is not None:
            marks = self.mark_of[self._cached(freed)]
            places = self.shadows.sampled(marks)
            if places:
                self.shadows.left(marks[places].tolist(), self.serves_parts)
        hits = self._hits[pages]
        if not np.count_nonzero(hits):
            return
        if self.serves_parts and CANDIDATES[self._candidate].extends:
            np.maximum(hits, self._run_of[pages] != 0, out=hits)
        is_cached = self._run_of[pages] != 0
        if np.count_nonzero(is_cached) == len(pages):
            self._hits[pages] = np.maximum.accumulate(hits)
            return
        start = 0
        for end in (*np.flatnonzero(~is_cached).tolist(), len(pages)):  # a page without a hash is needed by none
            np.maximum.accumulate(hits[start:end], out=hits[start:end])
            start = end + 1
        self._hits[pages] = hits

    def forgotten(self, pages: NDArray[np.int64], counts: NDArray[np.int32]) -> None:
        """Distinct pages are about to lose the hashes that they have, not by eviction; they keep places. O(pages).

        Args:
            pages: the pages.
            counts: the reference counts of all pages.
        """
        pages = self._cached(pages)
        self._hits[pages] = 0
        if self.shadows is not None:
            marks = self.mark_of[pages]
            for place in self.shadows.sampled(marks):
                self.shadows.forgotten(marks.item(place), not counts.item(pages.item(place)))

    def counters(self) -> EvictionCounters:
        """What the policy has seen."""
        scores = () if self.shadows is None else tuple(self.shadows.scores)
        return EvictionCounters(self._regrets, self._candidate, scores)

    # -- Snapshots (MAN-14) and check -------------------------------------------------------------

    def saved(self) -> SavedEviction:
        """What a snapshot has of the policy. O(pages and ghosts)."""
        levels = [self._with_times(queue) for queue in self._levels]
        slots = self._ghosts.nonzero()[0]
        ghosts = list(zip(slots.tolist(), self._ghosts[slots].tolist(), strict=True))
        hit = self._hits.nonzero()[0]
        hits = list(zip(hit.tolist(), self._hits[hit].tolist(), strict=True))
        queues = QueuesState(self._front.in_batches(), levels, hits, ghosts)
        empty: list[int] = self._empty.order().tolist()
        saved = SavedEviction(self._regrets, empty, queues, self._candidate)
        if self.shadows is not None:
            self.shadows.save(saved)
        return saved

    def _with_times(self, queue: PageLog) -> list[tuple[int, int]]:
        pages = queue.order()
        return list(zip(pages.tolist(), self._freed_at[pages].tolist(), strict=True))

    def restore_marks(self, none_hash: bytes, contents: SavedContents) -> None:
        """Computes the marks of the cached pages of a snapshot, and the seed of all others. O(cached tokens)."""
        self.marks = Marks(none_hash)
        for page, mark in contents.marks(self.marks):
            self.mark_cell[page] = mark

    def restore(self, saved: SavedEviction, clock: int) -> None:
        """Sets the state, but for the marks; `check` verifies that it fits the rest.

        Args:
            saved: what `saved` gave.
            clock: the number of evicted pages.
        """
        self.clock, self._regrets = clock, saved.regrets
        self._candidate, self._turnovers = saved.candidate, CANDIDATES[saved.candidate].turnovers
        self._clear_queues()
        self._where[:] = _NOWHERE
        self._hits[:] = 0
        for page, number in saved.queues.hits:
            self._hits_cell[page] = number
        for slot, tag in saved.queues.ghosts:
            self._ghosts[slot] = tag
        entries = [(_EMPTY, page, 0) for page in saved.empty]
        for number, level in enumerate(saved.queues.levels, _LEVELS):
            entries += [(number, *entry) for entry in level]
        for number, page, time in entries:
            self._where_cell[page], self._freed_cell[page] = number, time
            self._queues[number].put_one(page)
        for time, batch in saved.queues.front:
            pages = np.array(batch, np.int64)
            self._where[pages], self._freed_at[pages] = _FRONT, time
            self._front.put_batch(pages, time)
        self.num_free = sum(queue.num for queue in self._queues[1:])
        if self.shadows is not None:
            self.shadows.restore(saved)

    def check(self) -> None:
        """Verifies every redundancy of queues, columns and ghosts. O(pages and ghosts).

        Raises:
            AssertionError: one does not hold.
        """
        free = np.zeros(len(self._where), np.int64)
        for number, queue in list(enumerate(self._queues))[1:]:
            queue.check()
            own = queue.order()
            free[own] += 1
            assert (self._where[own] == number).all(), f"EVICT-1: queue {number} and where pages wait: {own.tolist()}"
        assert (free <= 1).all(), "POOL-2: a page is free twice"
        assert ((self._where != _NOWHERE) == (free == 1)).all(), "POOL-2: where pages wait"
        assert self.num_free == free.sum(), f"POOL-2: {self.num_free} free pages, counted {free.sum()}"
        is_cached, hits = self._run_of != 0, self._hits
        assert not hits[~is_cached].any(), "EVICT-1: a page without a hash has hits"
        assert hits.max() <= MOST_HITS, f"EVICT-1: hits {hits.tolist()}"
        assert not (is_cached & (self._where == _EMPTY)).any(), "EVICT-1: a cached page is among those without a hash"
        waits = is_cached & (self._where != _NOWHERE)
        own_level = np.where(self._where == _FRONT, _LEVELS, self._where) - _LEVELS
        assert (_LEVELS_OF[hits] == own_level)[waits].all(), "EVICT-1: a page is on another's level"
        for queue in self._levels:
            times = self._freed_at[queue.order()]
            assert (np.diff(times) >= 0).all(), f"EVICT-1: {times.tolist()}"
            assert (times <= self.clock).all(), f"EVICT-1: pages freed at {times.tolist()}, after {self.clock}"
        batches = [time for time, _ in self._front.in_batches()]
        assert batches == sorted(batches), f"EVICT-1: batches of {batches}"
        assert all(time <= self.clock for time in batches), f"EVICT-1: batches of {batches}, after {self.clock}"

    def check_contents(self, counts: NDArray[np.int32], evictions: int) -> None:
        """Verifies what depends on the pool's counts and evictions, and the shadow pools. O(pages)."""
        assert self.clock == evictions, f"EVICT-1: {self.clock} at {evictions} evictions"
        assert (self.mark_of >= 0).all(), "EVICT-1: a mark below 0"
        if self.shadows is not None:
            self.shadows.check(self.mark_of[(self._run_of != 0) & (counts > 0)])
