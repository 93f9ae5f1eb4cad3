"""EVICT-1: ``adaptive``: each candidate runs on a small shadow pool, and the pool follows the one that hits most there.

A shadow pool holds contents, by their marks, and no pages: those that requests let go of, as if each request had asked
for its contents at that moment. It has room for as many as the pool has pages: as much as is in use while a request
runs is let go between its admission and its end. Where the pool has more than `SHADOW_PAGES` pages, shadows see a
sample of the contents and are smaller than the pool by the same factor, so that hits there are to hits in the pool as
the sample is to all. The sample is drawn by marks: it differs for another seed, and no chance is in it.

Where a group needs only part of a prefix two things differ. Requests need more pages for a while than they leave
behind, so that a shadow pool has room beside a request for as many contents as wait in the pool just then. And a hit
needs pages of each group: a request of whose contents a shadow pool evicted one lately is counted as not hit there.

Where requests change their ways, a shadow that was ahead says little about what comes next. So the pool's own hits are
compared with those of LRU's shadow, too, while it follows another rule. The difference is the pool's *credit*: 2 for
each hit that LRU did not have, -3 for each that LRU had and the pool lost by an eviction that is among its ghosts (3,
as some ghosts are overwritten by then). What was gained is halved with the scores, what was lost is not forgiven. While
the credit is below -16 - (contents asked for) / 500, the pool follows LRU, even against the scores: so it never loses
more than some hits and a thousandth of what is asked for.
"""

from collections.abc import Collection, Sequence

from ..declarations.eviction import (
    CANDIDATES,
    HALVED_AFTER,
    SHADOW_PAGES,
    EvictionCounters,
    SavedEviction,
    candidate_to_follow,
)
from .eviction import EvictionOrder, ReuseQueue

__all__ = ["AdaptiveQueue", "Shadow"]


class Shadow(EvictionOrder):
    """A small pool of contents, each an entry that is its own mark, by one candidate."""

    def ask(self, marks: Sequence[int], serves_parts: bool, room: int) -> list[bool]:
        """A request asked for contents, others being evicted for them, and let go of them, the last one first.

        Args:
            marks: the contents, all different.
            serves_parts: see `EvictionOrder.let_go`.
            room: the number of contents that there is room for now.

        Returns:
            For each content whether it was hit.
        """
        hits = [mark in self.mark_of for mark in marks]
        for mark in marks:
            self.leave(mark)
        self._evict_to(room - len(marks))
        if serves_parts and any(self.is_ghost(mark) for mark in marks if mark not in self.mark_of):
            hits = [False] * len(marks)
        for mark in marks:
            self.published(mark, mark)
        self.let_go(marks, serves_parts)
        self.put(marks)
        self._evict_to(room)
        return hits

    def _evict_to(self, room: int) -> None:
        while self.num_free > max(room, 0):
            mark = self.next()
            self.leave(mark)
            self.evicted(mark)

    def lost(self, mark: int) -> None:
        """A content is not to be found any more."""
        if mark in self.mark_of:
            self.leave(mark)
            self.forgotten(mark)


class AdaptiveQueue(ReuseQueue):
    """The free pages of priority 0 in the order of the candidate that hits most in its shadow pool (EVICT-1).

    Args:
        num_pages: pages of the pool; all but the null page are free at first.

    Attributes:
        shadows: a shadow pool for each candidate.
        scores: the hits of each, halved again and again (`HALVED_AFTER`).
        asked: number of sampled contents that were asked for.
        recent: number of those that the scores are of: halved with them.
        credit: see above.
    """

    def __init__(self, num_pages: int) -> None:
        super().__init__(num_pages, CANDIDATES[0])
        size = min(num_pages - 1, SHADOW_PAGES)
        self.shadows = [Shadow(size, candidate) for candidate in CANDIDATES]
        self.scores = [0] * len(CANDIDATES)
        self.asked = self.recent = self.credit = 0

    def _is_sampled(self, mark: int) -> bool:
        return (mark >> 32) * self.pages.size < SHADOW_PAGES << 31

    def released(self, pages: Sequence[int]) -> None:
        """See `LruQueue.released`."""
        page_of: dict[int, int] = {}
        for page, mark in self.pages.marks(pages):
            if self._is_sampled(mark):
                page_of.setdefault(mark, page)
        if page_of:
            self._ask(page_of)
        super().released(pages)

    def _ask(self, page_of: dict[int, int]) -> None:
        """Sampled contents were asked for, each on a page."""
        size, now = self.shadows[0].size, CANDIDATES.index(self.pages.candidate)
        beside = self.pages.num_free * size // self.pages.size
        room = min(size, beside + len(page_of)) if self.serves_parts else size
        hits = [shadow.ask(list(page_of), self.serves_parts, room) for shadow in self.shadows]
        self.scores = [score + sum(own) for score, own in zip(self.scores, hits, strict=True)]
        for (mark, page), is_hit_by_lru in zip(page_of.items(), hits[0], strict=True):
            is_hit = page in self.pages.hits
            if now != 0 and is_hit and not is_hit_by_lru:
                self.credit += 2
            elif now != 0 and is_hit_by_lru and not is_hit and self.pages.is_ghost(mark):
                self.credit -= 3
        self.asked += len(page_of)
        self.recent += len(page_of)
        period = HALVED_AFTER * size
        if self.asked // period > (self.asked - len(page_of)) // period:
            self.scores = [score // 2 for score in self.scores]
            self.recent //= 2
            self.credit = min(self.credit, self.credit // 2)
        is_behind = 500 * (self.credit + 16) + self.asked < 0
        best = 0 if is_behind else candidate_to_follow(self.scores, now, self.recent, size)
        self.pages.candidate = CANDIDATES[best]

    def forgotten(self, page: int) -> None:
        """See `LruQueue.forgotten`."""
        for shadow in self.shadows:
            shadow.lost(self.pages.mark_of[page])
        super().forgotten(page)

    def counters(self) -> EvictionCounters:
        """See `LruQueue.counters`."""
        return EvictionCounters(self.regrets, CANDIDATES.index(self.pages.candidate), tuple(self.scores))

    def saved(self) -> SavedEviction | None:
        """See `LruQueue.saved`."""
        saved = super().saved()
        assert saved is not None, "every policy but LRU has a state"
        saved.scores, saved.asked, saved.recent, saved.credit = list(self.scores), self.asked, self.recent, self.credit
        saved.shadows = [(shadow.clock, shadow.state()) for shadow in self.shadows]
        return saved

    def restore(self, free: Sequence[int], saved: SavedEviction | None, clock: int) -> None:
        """See `LruQueue.restore`."""
        super().restore(free, saved, clock)
        assert saved is not None, "a snapshot with a policy has its state"
        self.scores, self.asked, self.recent = list(saved.scores), saved.asked, saved.recent
        self.credit = saved.credit
        for shadow, (time, queues) in zip(self.shadows, saved.shadows, strict=True):
            shadow.restore(queues, time)
            shadow.mark_of = {mark: mark for mark in shadow.free_entries()}

    def check(self, cached: Collection[int], counts: Sequence[int], evictions: int) -> None:
        """See `LruQueue.check`."""
        super().check(cached, counts, evictions)
        for shadow in self.shadows:
            shadow.check()
            assert shadow.mark_of.keys() == set(shadow.free_entries()), "EVICT-1: contents of a shadow pool"
            assert shadow.hits.keys() == shadow.mark_of.keys(), (
                "EVICT-1: a content of a shadow pool that was not let go"
            )
            assert len(shadow.mark_of) <= shadow.size, "EVICT-1: a shadow pool is too full"
            assert all(map(self._is_sampled, shadow.mark_of)), "EVICT-1: a content outside of the sample"
        assert all(0 <= score <= self.recent for score in self.scores), f"EVICT-1: {self.scores} of {self.recent}"
        assert self.recent <= self.asked, f"EVICT-1: scores of {self.recent} contents, asked for {self.asked}"
        assert abs(self.credit) <= 3 * self.asked, f"EVICT-1: a credit of {self.credit} by {self.asked} contents"
