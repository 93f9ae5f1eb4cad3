"""EVICT-1: the shadow pools of ``adaptive``: each candidate of `CANDIDATES` on a sample of the pool's contents."""

from collections import OrderedDict, deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvproof.spec.declarations.eviction import (
    CANDIDATES,
    HALVED_AFTER,
    MOST_HITS,
    NUM_LEVELS,
    SHADOW_PAGES,
    STALE_TURNOVERS,
    Candidate,
    QueuesState,
    SavedEviction,
    candidate_to_follow,
    num_ghost_slots,
)

__all__ = ["Shadows"]

_LOW = 2**32 - 1
_MISSING: OrderedDict[int, int] = OrderedDict()
_ALL = 2**63


class _Shadow:
    """A small pool of contents, by one candidate.

    Args:
        size: the number of contents that it has room for.
        candidate: the rule.

    Attributes:
        at: each content in it, with the queue in which it waits; None for one in use.
        clock: the number of contents evicted so far.
    """

    __slots__ = (
        "_extends",
        "_front",
        "_ghosts",
        "_hits",
        "_levels",
        "_num_slots",
        "_size",
        "_turnovers",
        "_uses_ghosts",
        "at",
        "clock",
    )

    def __init__(self, size: int, candidate: Candidate) -> None:
        self._size = size
        self._turnovers, self._uses_ghosts, self._extends = candidate
        self._num_slots = num_ghost_slots(size)
        self.clock = 0
        self.at: dict[int, OrderedDict[int, int] | None] = {}
        self._levels: list[OrderedDict[int, int]] = [OrderedDict() for _ in range(NUM_LEVELS)]
        self._front: deque[OrderedDict[int, int]] = deque()
        """Batches of contents, each with its clock; those that lost all are passed over when they come to an end."""
        self._hits: dict[int, int] = {}
        self._ghosts: dict[int, int] = {}

    def asked(self, mark: int, num_held: int) -> bool:
        """A content was asked for, and is in use now; returns True if it was there. O(1) amortised.

        Args:
            mark: the content.
            num_held: the number of contents in use, this one among them.
        """
        queue = self.at.get(mark, _MISSING)
        if queue is not _MISSING:
            self._hits[mark] = min(self._hits.get(mark, 0) + 1, MOST_HITS)
            if queue is not None:
                del queue[mark]
                self.at[mark] = None
            return True
        if self._size <= len(self.at) >= num_held:  # full, and not all are in use
            self._evict()
        self.at[mark] = None
        if self._uses_ghosts and self._ghosts.get((mark & _LOW) * self._num_slots >> 32) == (mark >> 32) + 1:
            self._hits[mark] = 1
        return False

    def left(self, marks: Sequence[int], num_held: int, serves_parts: bool) -> None:
        """Contents left use, in this order. O(contents) amortised.

        Args:
            marks: the contents.
            num_held: the number of contents that still are in use.
            serves_parts: see `ReuseOrder`.
        """
        at, clock, hits, levels = self.at, self.clock, self._hits, self._levels
        rest = levels[0]
        if self._turnovers is None and clock:
            rest = OrderedDict()
        behind = int(serves_parts and self._extends and not hits.keys().isdisjoint(marks))
        for mark in marks:
            behind = max(behind, hits.get(mark, 0))
            queue = rest
            if behind:
                hits[mark] = behind
                queue = levels[behind.bit_length()]
            queue[mark] = clock
            at[mark] = queue
        if rest is not levels[0] and rest:
            self._front.append(rest)
        while self._size < len(at) > num_held:
            self._evict()

    def _evict(self) -> None:
        queue = self._next()
        mark, _ = queue.popitem(last=False)
        del self.at[mark]
        self.clock += 1
        self._ghosts[(mark & _LOW) * self._num_slots >> 32] = (mark >> 32) + 1
        self._hits.pop(mark, None)

    def _next(self) -> OrderedDict[int, int]:
        """The queue whose first content is evicted next."""
        front, levels, turnovers = self._front, self._levels, self._turnovers
        if turnovers is None:
            stale = self.clock - STALE_TURNOVERS * self._size
            while front and not front[0]:
                front.popleft()
            if front and _time(front[0]) < stale:
                return front[0]
            for level in levels:
                if level and _time(level) < stale:
                    return level
            while front and not front[-1]:
                front.pop()
            if front:
                return front[-1]
            if levels[0]:
                return levels[0]
        longer = 0 if turnovers is None else turnovers * self._size
        best, first = _MISSING, 0
        for number, level in enumerate(levels):
            if level:
                due = _time(level) + number * longer
                if best is _MISSING or due < first:
                    best, first = level, due
        return best

    def lost(self, mark: int) -> None:
        """A content is not to be found any more. O(1)."""
        queue = self.at.pop(mark, _MISSING)
        if queue is not None:
            queue.pop(mark, None)
        self._hits.pop(mark, None)

    def state(self) -> QueuesState:
        """What a snapshot has of it."""
        front = [(_time(batch), list(batch)) for batch in self._front if batch]
        levels = [list(level.items()) for level in self._levels]
        return QueuesState(front, levels, sorted(self._hits.items()), sorted(self._ghosts.items()))

    def restore(self, queues: QueuesState, clock: int, held: Sequence[int]) -> None:
        """Sets the state of a snapshot; ``held`` are the contents in use."""
        self.clock = clock
        self._front = deque(OrderedDict.fromkeys(batch, time) for time, batch in queues.front)
        self._levels = [OrderedDict(level) for level in queues.levels]
        self._hits, self._ghosts = dict(queues.hits), dict(queues.ghosts)
        self.at = dict.fromkeys(held)
        for queue in (*self._front, *self._levels):
            self.at.update(dict.fromkeys(queue, queue))

    def check(self, held: frozenset[int]) -> None:
        """Verifies that queues, contents and clocks agree; ``held`` are the contents in use."""
        queues = [*self._front, *self._levels]
        free = {mark: queue for queue in queues for mark in queue}
        assert len(free) == sum(map(len, queues)), "EVICT-1: a content waits twice in a shadow pool"
        assert {mark for mark, queue in self.at.items() if queue is None} == held, "EVICT-1: a shadow pool's holders"
        assert all(self.at.get(mark) is queue for mark, queue in free.items()), "EVICT-1: a shadow pool's queues"
        assert len(self.at) == len(free) + len(held), "EVICT-1: contents of a shadow pool"
        assert len(self.at) <= max(self._size, len(held)), "EVICT-1: a shadow pool is too full"
        assert self._hits.keys() <= self.at.keys(), "EVICT-1: a content that is gone has hits"
        for queue in queues:
            times = list(queue.values())
            assert times == sorted(times), f"EVICT-1: a shadow pool's queue, {times}"
            assert not times or times[-1] <= self.clock, f"EVICT-1: {times} after {self.clock} in a shadow pool"
            own = {self._levels[self._hits.get(mark, 0).bit_length()] is queue for mark in queue}
            is_batch = any(queue is batch for batch in self._front) and self._hits.keys().isdisjoint(queue)
            assert is_batch or own <= {True}, "EVICT-1: a content is on another's level"
        times = [_time(batch) for batch in self._front if batch]
        assert times == sorted(times), f"EVICT-1: a shadow pool's batches, {times}"
        assert all(0 <= slot < self._num_slots for slot in self._ghosts), "EVICT-1: a ghost in no slot"


def _time(queue: OrderedDict[int, int]) -> int:
    """The clock of the first content of a queue."""
    return queue[next(iter(queue))]


class Shadows:
    """A shadow pool for each candidate.

    Args:
        num_pages: pages of the pool, the null page not counted.

    Attributes:
        bound: contents whose marks are below it are sampled.
        scores: the hits of each shadow pool, halved again and again (`HALVED_AFTER`).
    """

    __slots__ = ("_asked", "_credit", "_holders", "_recent", "_shadows", "_size", "bound", "scores")

    def __init__(self, num_pages: int) -> None:
        self.bound = min(-(-(SHADOW_PAGES << 31) // num_pages) << 32, _ALL)
        self._size = min(num_pages, SHADOW_PAGES)
        self._shadows = [_Shadow(self._size, candidate) for candidate in CANDIDATES]
        self.scores = [0] * len(CANDIDATES)
        self._asked = 0
        self._recent = 0
        """The number of contents that the scores are of."""
        self._credit = 0
        """What the pool has gained on LRU, see `kvproof.spec.pool.shadows`."""
        self._holders: dict[int, int] = {}
        """The number of pages in use that hold each of the sampled contents."""

    def sampled(self, marks: NDArray[np.int64]) -> list[int]:
        """The places of the marks of sampled contents. O(marks)."""
        if self.bound == _ALL:
            return list(range(len(marks)))
        places: list[int] = (marks < self.bound).nonzero()[0].tolist()
        return places

    def asked(self, mark: int, is_new_holder: bool, is_hit: bool, is_ghost: bool, now: int) -> int:
        """A sampled content was asked for. O(1) amortised.

        Args:
            mark: the content.
            is_new_holder: True if a page holds it now that was not in use with it before.
            is_hit: True if the pool had it.
            is_ghost: True if the pool had it and evicted it lately.
            now: the place of the candidate in force.

        Returns:
            The place of the candidate to follow.
        """
        if is_new_holder:
            self._holders[mark] = self._holders.get(mark, 0) + 1
        scores, num_held = self.scores, len(self._holders)
        before = scores[0]
        for place, shadow in enumerate(self._shadows):
            if shadow.asked(mark, num_held):
                scores[place] += 1
        if now:
            if scores[0] == before:
                self._credit += 2 * is_hit
            elif is_ghost:
                self._credit -= 3
        self._asked += 1
        self._recent += 1
        if not self._asked % (HALVED_AFTER * self._size):
            self.scores = scores = [score // 2 for score in scores]
            self._recent //= 2
            self._credit //= 2
        if 500 * (self._credit + 16) + self._asked < 0:
            return 0
        return candidate_to_follow(scores, now, self._recent, self._size)

    def left(self, marks: Sequence[int], serves_parts: bool) -> None:
        """Pages that hold sampled contents became free, in this order; ``serves_parts``: see `ReuseOrder`."""
        gone = [mark for mark in marks if self._holds_no_more(mark)]
        if gone:
            for shadow in self._shadows:
                shadow.left(gone, len(self._holders), serves_parts)

    def forgotten(self, mark: int, is_free: bool) -> None:
        """A page lost its hash, and the sampled content with it."""
        if mark not in self._holders if is_free else self._holds_no_more(mark):
            for shadow in self._shadows:
                shadow.lost(mark)

    def _holds_no_more(self, mark: int) -> bool:
        """A page in use lost a content; returns True if none does now."""
        holders = self._holders
        if holders[mark] > 1:
            holders[mark] -= 1
            return False
        del holders[mark]
        return True

    # -- Snapshots (MAN-14) and check -------------------------------------------------------------

    def save(self, saved: SavedEviction) -> None:
        """Writes the state into what a snapshot has of the policy."""
        saved.scores, saved.asked, saved.holders = list(self.scores), self._asked, sorted(self._holders.items())
        saved.recent, saved.credit = self._recent, self._credit
        saved.shadows = [(shadow.clock, shadow.state()) for shadow in self._shadows]

    def restore(self, saved: SavedEviction) -> None:
        """Sets the state; `check` verifies that it fits the rest."""
        self.scores, self._asked, self._holders = list(saved.scores), saved.asked, dict(saved.holders)
        self._recent, self._credit = saved.recent, saved.credit
        for shadow, (clock, queues) in zip(self._shadows, saved.shadows, strict=True):
            shadow.restore(queues, clock, list(self._holders))

    def check(self, marks: NDArray[np.int64]) -> None:
        """Verifies every redundancy.

        Args:
            marks: those of the cached pages in use, `i64[n]`.

        Raises:
            AssertionError: one does not hold.
        """
        held, counts = np.unique(marks[self.sampled(marks)], return_counts=True)
        holders = dict(zip(held.tolist(), counts.tolist(), strict=True))
        assert self._holders == holders, f"EVICT-1: holders {self._holders} of sampled contents, counted {holders}"
        for shadow in self._shadows:
            shadow.check(frozenset(holders))
            assert all(mark < self.bound for mark in shadow.at), "EVICT-1: a content outside of the sample"
        assert all(0 <= score <= self._recent for score in self.scores), f"EVICT-1: {self.scores} of {self._recent}"
        assert self._recent <= self._asked, f"EVICT-1: scores of {self._recent} contents, asked for {self._asked}"
        assert abs(self._credit) <= 3 * self._asked, f"EVICT-1: a credit of {self._credit} by {self._asked} contents"
