"""EVICT-1: ``adaptive``: each candidate runs on a small shadow pool, and the pool follows the one that hits most there.

A shadow pool holds contents, by their marks, and no pages. Where the pool has more than `SHADOW_PAGES` pages, shadows
see a sample of the contents and are smaller than the pool by the same factor, so that hits there are to hits in the
pool as the sample is to all. The sample is drawn by marks: it differs for another seed, and no chance is in it.

Where requests change their ways, a shadow that was ahead says little about what comes next. So the pool's own hits are
compared with those of LRU's shadow, too, while it follows another rule. The difference is the pool's *credit*: 2 for
each hit that LRU did not have, -3 for each that LRU had and the pool lost by an eviction that is among its ghosts (3,
as some ghosts are overwritten by then); it is halved with the scores. While the credit is below
-16 - (contents asked for) / 500, the pool follows LRU, whatever the scores are.
"""

from collections.abc import Collection, Iterable, Sequence

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

    def asked(self, mark: int) -> bool:
        """A content was asked for, and is in use now; returns whether it was there."""
        if mark in self.mark_of:
            self.hit(mark)
            self.leave(mark)
            return True
        if len(self.mark_of) >= self.size and self.num_free:
            self._evict()
        self.published(mark, mark)
        return False

    def left(self, marks: Iterable[int], serves_parts: bool) -> None:
        """Contents left use, in this order; see `carry`."""
        own = [mark for mark in marks if mark in self.mark_of]
        self.carry(own, serves_parts)
        self.put(own)
        while len(self.mark_of) > self.size and self.num_free:  # those in use may be more than there is room for
            self._evict()

    def lost(self, mark: int) -> None:
        """A content is not to be found any more."""
        if mark in self.mark_of:
            self.leave(mark)
            self.forgotten(mark)

    def _evict(self) -> None:
        mark = self.next()
        self.leave(mark)
        self.evicted(mark)


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
        holders: number of pages in use that hold each of the sampled contents.
    """

    def __init__(self, num_pages: int) -> None:
        super().__init__(num_pages, CANDIDATES[0])
        size = min(num_pages - 1, SHADOW_PAGES)
        self.shadows = [Shadow(size, candidate) for candidate in CANDIDATES]
        self.scores = [0] * len(CANDIDATES)
        self.asked = self.recent = self.credit = 0
        self.holders: dict[int, int] = {}

    def _is_sampled(self, mark: int) -> bool:
        return (mark >> 32) * self.pages.size < SHADOW_PAGES << 31

    def _ask(self, mark: int, is_new_holder: bool, is_hit: bool) -> None:
        if not self._is_sampled(mark):
            return
        self.holders[mark] = self.holders.get(mark, 0) + is_new_holder
        hits = [shadow.asked(mark) for shadow in self.shadows]
        self.scores = [score + is_own for score, is_own in zip(self.scores, hits, strict=True)]
        now = CANDIDATES.index(self.pages.candidate)
        if now != 0 and is_hit and not hits[0]:
            self.credit += 2
        elif now != 0 and hits[0] and not is_hit and self.pages.is_ghost(mark):
            self.credit -= 3
        self.asked += 1
        self.recent += 1
        if self.asked % (HALVED_AFTER * self.shadows[0].size) == 0:
            self.scores = [score // 2 for score in self.scores]
            self.recent //= 2
            self.credit //= 2
        is_behind = 500 * (self.credit + 16) + self.asked < 0
        best = 0 if is_behind else candidate_to_follow(self.scores, now, self.recent, self.shadows[0].size)
        self.pages.candidate = CANDIDATES[best]

    def published(self, page: int, mark: int) -> None:
        """See `LruQueue.published`."""
        self._ask(mark, True, False)
        super().published(page, mark)

    def hit(self, page: int, was_free: bool) -> None:
        """See `LruQueue.hit`."""
        self._ask(self.pages.mark_of[page], was_free, True)
        super().hit(page, was_free)

    def released(self, pages: Sequence[int], freed: Collection[int]) -> None:
        """See `LruQueue.released`."""
        left: list[int] = []
        for page in pages:
            mark = self.pages.mark_of.get(page)
            if page in freed and mark is not None and self._is_sampled(mark) and self._holds_no_more(mark):
                left.append(mark)
        for shadow in self.shadows:
            shadow.left(left, self.serves_parts)
        super().released(pages, freed)

    def forgotten(self, page: int, is_free: bool) -> None:
        """See `LruQueue.forgotten`."""
        mark = self.pages.mark_of[page]
        if self._is_sampled(mark) and (self._holds_no_more(mark) if not is_free else mark not in self.holders):
            for shadow in self.shadows:
                shadow.lost(mark)
        super().forgotten(page, is_free)

    def _holds_no_more(self, mark: int) -> bool:
        """A page that holds a content left use, or lost it; returns whether none in use holds it now."""
        self.holders[mark] -= 1
        if not self.holders[mark]:
            del self.holders[mark]
        return mark not in self.holders

    def counters(self) -> EvictionCounters:
        """See `LruQueue.counters`."""
        return EvictionCounters(self.regrets, CANDIDATES.index(self.pages.candidate), tuple(self.scores))

    def saved(self) -> SavedEviction | None:
        """See `LruQueue.saved`."""
        saved = super().saved()
        assert saved is not None, "every policy but LRU has a state"
        saved.scores, saved.asked, saved.recent, saved.credit = list(self.scores), self.asked, self.recent, self.credit
        saved.holders = sorted(self.holders.items())
        saved.shadows = [(shadow.clock, shadow.state()) for shadow in self.shadows]
        return saved

    def restore(self, free: Sequence[int], saved: SavedEviction | None, clock: int) -> None:
        """See `LruQueue.restore`."""
        super().restore(free, saved, clock)
        assert saved is not None, "a snapshot with a policy has its state"
        self.scores, self.asked, self.recent = list(saved.scores), saved.asked, saved.recent
        self.credit, self.holders = saved.credit, dict(saved.holders)
        for shadow, (time, queues) in zip(self.shadows, saved.shadows, strict=True):
            shadow.restore(queues, time)
            shadow.mark_of = {mark: mark for mark in (*shadow.free_entries(), *self.holders)}

    def check(self, cached: Collection[int], counts: Sequence[int], evictions: int) -> None:
        """See `LruQueue.check`."""
        super().check(cached, counts, evictions)
        holders: dict[int, int] = {}
        for page, mark in self.pages.mark_of.items():
            if counts[page] and self._is_sampled(mark):
                holders[mark] = holders.get(mark, 0) + 1
        assert self.holders == holders, f"EVICT-1: holders {self.holders} of sampled contents, counted {holders}"
        for shadow in self.shadows:
            shadow.check()
            free = set(shadow.free_entries())
            assert shadow.mark_of.keys() == free | holders.keys(), "EVICT-1: contents of a shadow pool"
            assert free.isdisjoint(holders), "EVICT-1: a content in use is free in a shadow pool"
            assert len(shadow.mark_of) <= max(shadow.size, len(holders)), "EVICT-1: a shadow pool is too full"
            assert all(map(self._is_sampled, shadow.mark_of)), "EVICT-1: a content outside of the sample"
        assert all(0 <= score <= self.recent for score in self.scores), f"EVICT-1: {self.scores} of {self.recent}"
        assert self.recent <= self.asked, f"EVICT-1: scores of {self.recent} contents, asked for {self.asked}"
        assert abs(self.credit) <= 3 * self.asked, f"EVICT-1: a credit of {self.credit} by {self.asked} contents"
