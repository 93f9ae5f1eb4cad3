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
        at: each content in it, with the queue in which it waits.
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
        self.at: dict[int, OrderedDict[int, int]] = {}
        self._levels: list[OrderedDict[int, int]] = [OrderedDict() for _ in range(NUM_LEVELS)]
        self._front: deque[OrderedDict[int, int]] = deque()
        """Batches of contents, each with its clock; those that lost all are passed over when they come to an end."""
        self._hits: dict[int, int] = {}
        """The number of hits of contents that have any."""
        self._ghosts: dict[int, int] = {}

    def ask(self, marks: Sequence[int], serves_parts: bool, room: int) -> list[bool]:
        """A request asked for contents, for which others go, and let go of them, the last first. O(contents) amortised.

        Args:
            marks: the contents, all different.
            serves_parts: see `ReuseOrder`.
            room: the number of contents that there is room for now.

        Returns:
            For each content whether it was hit.
        """
        at, hits, levels = self.at, self._hits, self._levels
        queues = list(map(at.get, marks))
        is_hit = [queue is not None for queue in queues]
        num_hits = sum(is_hit)
        for mark, queue in zip(marks, queues, strict=True) if num_hits else ():
            if queue is not None:
                del queue[mark]
        for _ in range(len(at) - num_hits - max(room - len(marks), 0)):
            self._evict()
        if serves_parts and any(map(self._is_ghost, (mark for mark in marks if mark not in at))):
            is_hit = [False] * len(marks)
        rest, clock = OrderedDict() if self._turnovers is None else levels[0], self.clock
        behind = int(serves_parts and self._extends and num_hits > 0)
        for mark, queue in zip(marks, queues, strict=True):
            if queue is not None:
                number = min(hits.get(mark, 0) + 1, MOST_HITS)
            else:
                number = int(self._uses_ghosts and self._is_ghost(mark))
            if number > behind:
                behind = number
            if behind:
                hits[mark] = behind
                queue = levels[behind.bit_length()]
            else:
                queue = rest
            queue[mark] = clock
            at[mark] = queue
        if rest is not levels[0] and rest:
            self._front.append(rest)
        while len(at) > room:
            self._evict()
        return is_hit

    def _is_ghost(self, mark: int) -> bool:
        return self._ghosts.get((mark & _LOW) * self._num_slots >> 32) == (mark >> 32) + 1

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
        queue = self.at.pop(mark, None)
        if queue is not None:
            del queue[mark]
            self._hits.pop(mark, None)

    def state(self) -> QueuesState:
        """What a snapshot has of it."""
        front = [(_time(batch), list(batch)) for batch in self._front if batch]
        levels = [list(level.items()) for level in self._levels]
        hits = [(mark, self._hits.get(mark, 0)) for mark in sorted(self.at)]
        return QueuesState(front, levels, hits, sorted(self._ghosts.items()))

    def restore(self, queues: QueuesState, clock: int) -> None:
        """Sets the state of a snapshot."""
        self.clock = clock
        self._front = deque(OrderedDict.fromkeys(batch, time) for time, batch in queues.front)
        self._levels = [OrderedDict(level) for level in queues.levels]
        self._hits = {mark: number for mark, number in queues.hits if number}
        self._ghosts = dict(queues.ghosts)
        self.at = {mark: queue for queue in (*self._front, *self._levels) for mark in queue}

    def check(self) -> None:
        """Verifies that queues, contents and clocks agree."""
        queues = [*self._front, *self._levels]
        free = {mark: queue for queue in queues for mark in queue}
        assert len(free) == sum(map(len, queues)), "EVICT-1: a content waits twice in a shadow pool"
        assert all(self.at.get(mark) is queue for mark, queue in free.items()), "EVICT-1: a shadow pool's queues"
        assert len(self.at) == len(free) <= self._size, "EVICT-1: contents of a shadow pool"
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

    __slots__ = ("_asked", "_credit", "_num_pages", "_recent", "_shadows", "_size", "bound", "scores")

    def __init__(self, num_pages: int) -> None:
        self.bound = min(-(-(SHADOW_PAGES << 31) // num_pages) << 32, _ALL)
        self._num_pages, self._size = num_pages, min(num_pages, SHADOW_PAGES)
        self._shadows = [_Shadow(self._size, candidate) for candidate in CANDIDATES]
        self.scores = [0] * len(CANDIDATES)
        self._asked = 0
        self._recent = 0
        """The number of contents that the scores are of."""
        self._credit = 0
        """What the pool has gained on LRU, see `kvproof.spec.pool.shadows`."""

    def sampled(self, marks: NDArray[np.int64]) -> NDArray[np.int64]:
        """The places of the marks of sampled contents. O(marks)."""
        if self.bound == _ALL:
            return np.arange(len(marks))
        return (marks < self.bound).nonzero()[0]

    def ask(
        self,
        marks: Sequence[int],
        is_hit: Sequence[bool],
        is_ghost: Sequence[bool],
        now: int,
        beside: int | None,
    ) -> int:
        """A request asked for sampled contents, and lets go of them. O(contents) amortised.

        Args:
            marks: the contents, all different, the last one first.
            is_hit: for each whether the pool had it.
            is_ghost: for each that the pool had not whether it evicted it lately.
            now: the place of the candidate in force.
            beside: the number of contents that wait in the pool; None: no group needs only part of a prefix.

        Returns:
            The place of the candidate to follow.
        """
        size, count, scores = self._size, len(marks), self.scores
        serves_parts = beside is not None
        room = size if beside is None else min(size, beside * size // self._num_pages + count)
        by_lru, *others = (shadow.ask(marks, serves_parts, room) for shadow in self._shadows)
        for place, hits in enumerate((by_lru, *others)):
            scores[place] += sum(hits)
        if now:
            for is_own, is_by_lru, was_evicted in zip(is_hit, by_lru, is_ghost, strict=True):
                if is_own > is_by_lru:
                    self._credit += 2
                elif was_evicted and is_by_lru > is_own:
                    self._credit -= 3
        self._asked += count
        self._recent += count
        if self._asked % (HALVED_AFTER * size) < count:
            self.scores = scores = [score // 2 for score in scores]
            self._recent //= 2
            self._credit = min(self._credit, self._credit // 2)
        if 500 * (self._credit + 16) + self._asked < 0:
            return 0
        return candidate_to_follow(scores, now, self._recent, size)

    def lost(self, mark: int) -> None:
        """A sampled content is not to be found any more."""
        for shadow in self._shadows:
            shadow.lost(mark)

    # -- Snapshots (MAN-14) and check -------------------------------------------------------------

    def save(self, saved: SavedEviction) -> None:
        """Writes the state into what a snapshot has of the policy."""
        saved.scores, saved.asked = list(self.scores), self._asked
        saved.recent, saved.credit = self._recent, self._credit
        saved.shadows = [(shadow.clock, shadow.state()) for shadow in self._shadows]

    def restore(self, saved: SavedEviction) -> None:
        """Sets the state; `check` verifies that it fits the rest."""
        self.scores, self._asked = list(saved.scores), saved.asked
        self._recent, self._credit = saved.recent, saved.credit
        for shadow, (clock, queues) in zip(self._shadows, saved.shadows, strict=True):
            shadow.restore(queues, clock)

    def check(self) -> None:
        """Verifies every redundancy.

        Raises:
            AssertionError: one does not hold.
        """
        for shadow in self._shadows:
            shadow.check()
            assert all(mark < self.bound for mark in shadow.at), "EVICT-1: a content outside of the sample"
        assert all(0 <= score <= self._recent for score in self.scores), f"EVICT-1: {self.scores} of {self._recent}"
        assert self._recent <= self._asked, f"EVICT-1: scores of {self._recent} contents, asked for {self._asked}"
        assert abs(self._credit) <= 3 * self._asked, f"EVICT-1: a credit of {self._credit} by {self._asked} contents"
