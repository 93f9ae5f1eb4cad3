"""EVICT-1: the free pages of priority 0 in the order of a policy that watches contents, and what it knows of them.

It takes the place of the `FreeLog` in `FreeOrder`, and is told what happens to contents by the pool. What it knows of a
page stands in columns: its mark, how often it was let go, the clock at which it became free. Pages are taken and put
back in array operations: a stretch of pages that one queue gives without another one's turn is a slice of it. What
a step publishes, few pages at a time, is only noted; the marks of all that was noted are computed together, before the
first of them is needed.
"""

import sys
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
)

from ..index.runs import RunTree
from ..reading.extra_keys import ExtraSegment
from ..reading.tokens import TokenBytes
from .contents import SavedContents
from .ghosts import Ghosts
from .marks import MARK, Marks
from .page_log import BatchLog, PageLog
from .shadows import Shadows

__all__ = ["ReuseOrder"]

_EMPTY, _FRONT, _LEVELS = range(3)
"""The numbers of the queues; levels have those from ``_LEVELS`` on."""
_NEW = 1
"""The number of uses of a cached page that was not let go yet; a page that was has one more, and one for each hit."""
_MOST_USES = MOST_HITS + 2
_LEVEL_OF = (0, 0, *(number.bit_length() for number in range(MOST_HITS + 1)))
"""The level of a page, by its number of uses."""
_LEVELS_OF: NDArray[np.int64] = np.array(_LEVEL_OF)
_FEW = 6
"""The most pages that are taken one by one: more cost less in array operations (measured)."""
_MOST_NOTED = 256
"""The most pages whose marks are still to be computed."""
_NOT_YET = -1
"""The mark of a page whose mark is still to be computed."""


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
        "_candidate",
        "_empty",
        "_freed_at",
        "_freed_cell",
        "_front",
        "_ghosts",
        "_levels",
        "_noted",
        "_place_cell",
        "_places",
        "_queues",
        "_regrets",
        "_run_of",
        "_size",
        "_turn",
        "_turnovers",
        "_uses",
        "_uses_cell",
        "clock",
        "mark_cell",
        "mark_of",
        "marks",
        "num_free",
        "policy",
        "serves_parts",
        "shadows",
    )

    def __init__(self, num_pages: int, run_cell: "memoryview[int]", policy: EvictionPolicy, none_hash: bytes) -> None:
        self.policy = policy
        self.serves_parts = False
        self.marks = Marks(none_hash)
        self._size = num_pages - 1
        self._run_of: NDArray[np.uint32] = np.frombuffer(run_cell, np.uint32)
        self.mark_of: NDArray[np.int64] = np.zeros(num_pages, np.int64)
        self._freed_at: NDArray[np.int64] = np.zeros(num_pages, np.int64)
        self._noted: list[tuple[int, int, int, bytes, bytes]] = []
        """What `note_next` was given of pages whose marks are still to be computed."""
        self._uses: NDArray[np.uint8] = np.zeros(num_pages, np.uint8)
        """0 for a page without a hash, `_NEW`, or two more than its number of hits for one that was let go."""
        self._ghosts = Ghosts(self._size)
        self.mark_cell, self._freed_cell = self.mark_of.data, self._freed_at.data
        self._uses_cell = self._uses.data
        self._place_cell = PageLog.places(num_pages)
        self._places: NDArray[np.int64] = np.frombuffer(self._place_cell, np.int64)
        self.shadows = Shadows(self._size) if policy == "adaptive" else None
        self.clock = self._regrets = 0
        self._candidate = 0 if policy == "adaptive" else CANDIDATES.index(REUSE)
        self._turnovers = CANDIDATES[self._candidate].turnovers
        self._clear_queues()
        self._empty.put(np.arange(1, num_pages))
        self.num_free = self._size

    def _clear_queues(self) -> None:
        self._empty, self._front = PageLog(self._place_cell, _EMPTY), BatchLog(self._place_cell, _FRONT)
        self._levels = [PageLog(self._place_cell, _LEVELS + level) for level in range(NUM_LEVELS)]
        self._turn: tuple[PageLog, int] | None = None
        """The level whose turn it is, and the clock before which its pages became free that go now; None: not known."""
        self._queues = (self._empty, self._front, *self._levels)
        """The queues by their numbers."""

    # -- Taking -----------------------------------------------------------------------------------

    def take_one(self) -> int:
        """Takes the next page; at least one must be free. O(1) amortised."""
        return self._take_few(1)[0]

    def _take_few(self, count: int) -> list[int]:
        """`take` in scalar operations."""
        self.num_free -= count
        pages: list[int] = []
        while len(pages) < count:
            if self._empty.num:
                pages.append(self._empty.take_one())
                continue
            left = count - len(pages)
            if self._front.num or self._turnovers is None:
                taken: list[int] = self._chunk(left).tolist()
            else:
                queue, bound = self._level_in_turn(self._turnovers * self._size)
                taken = queue.take_while(self._freed_cell, bound, left)
            self._evicted_few(taken)
            pages += taken
        return pages

    def evicted_one(self, page: int) -> None:
        """A free page, of this order or of another priority, is taken: its content, if it has one, becomes a ghost."""
        self._evicted_few((page,))

    def _evicted_few(self, pages: Sequence[int]) -> None:
        """`evicted` in scalar operations."""
        uses, marks, add = self._uses_cell, self.mark_cell, self._ghosts.add_one
        for page in pages:
            if uses[page]:
                add(marks[page])
                uses[page] = 0
                self.clock += 1

    def take(self, count: int) -> NDArray[np.int64]:
        """Takes the next ``count`` pages, `i64[count]`; at least ``count`` must be free. O(count) amortised."""
        num_empty = min(count, self._empty.num)
        if num_empty < count <= _FEW:
            return np.array(self._take_few(count), np.int64)
        self.num_free -= count
        parts = [self._empty.take(num_empty)] if num_empty or not count else []
        left = count - num_empty
        while left:
            pages = self._chunk(left)
            self.evicted(pages)
            parts.append(pages)
            left -= len(pages)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def evicted(self, pages: NDArray[np.int64]) -> None:
        """`evicted_one` for distinct pages, in order. O(pages)."""
        cached, *_ = self._split(pages)
        self._ghosts.add(self.mark_of[cached])
        self._uses[cached] = 0
        self.clock += len(cached)

    def _chunk(self, most: int) -> NDArray[np.int64]:
        """The next pages, at least one and at most ``most``, that one queue gives before it is another's turn."""
        if self._turnovers is None:
            return self._keeping_chunk(most)
        if self._front.num:
            return self._front.take_of(self._front.latest(), most)
        return self._take_of_level(most, self._turnovers * self._size)

    def _level_in_turn(self, longer: int) -> tuple[PageLog, int]:
        """`_next_level`, which seldom is another one than for the last page."""
        turn = self._turn
        if turn is None or not turn[0].num or self._freed_cell[turn[0].first()] >= turn[1]:
            turn = self._turn = self._next_level(longer)
        return turn

    def _next_level(self, longer: int) -> tuple[PageLog, int]:
        """The level that gives the next page, and up to which clock its pages go before the first of any other.

        Args:
            longer: how much longer a page stays than one of the level below.

        Returns:
            The queue, and the clock before which its pages became free that are taken before another level's turn.
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
        # of two that go at the same time the lower one goes
        bound = sys.maxsize if other < 0 else second - longer * best + (best < other)
        return self._levels[best], bound

    def _take_of_level(self, most: int, longer: int) -> NDArray[np.int64]:
        queue, bound = self._next_level(longer)
        return self._take_freed_before(queue, min(most, queue.num), bound)

    def _take_freed_before(self, queue: PageLog, most: int, bound: int) -> NDArray[np.int64]:
        """Takes those of the first ``most`` pages of a queue that became free before ``bound``, at least one."""
        pages = queue.peek(most)
        if self._freed_cell[pages.item(-1)] >= bound:
            pages = pages[: np.searchsorted(self._freed_at[pages], bound)]
        queue.drop_first(len(pages))
        return pages

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
                    return self._take_freed_before(queue, min(before, queue.num), stale)
                before = min(before, time - stale + 1)
        if front.num:
            return front.take_of(front.latest(), before)
        lowest = self._levels[0]
        return lowest.take(min(before, lowest.num)) if lowest.num else self._take_of_level(before, 0)

    # -- Coming and going -------------------------------------------------------------------------

    def put_one(self, page: int) -> None:
        """`put` for one page. O(1) amortised."""
        self.num_free += 1
        uses = self._uses_cell[page]
        if not uses:
            self._empty.put_one(page)
            return
        self._freed_cell[page] = self.clock
        level = _LEVEL_OF[uses]
        if not level and self._turnovers is None:
            self._front.put_batch(np.array((page,)), self.clock)
        else:
            self._level(level).put_one(page)

    def put(self, pages: NDArray[np.int64]) -> None:
        """Puts distinct pages that became free at once, in order. O(pages) amortised."""
        self.num_free += len(pages)
        cached, uses, others = self._split(pages)
        if others is not None:
            self._empty.put(others)
            if not len(cached):
                return
        self._freed_at[cached] = self.clock
        if np.count_nonzero(uses > _NEW + 1):
            levels = _LEVELS_OF[uses]
            for level in range(1, NUM_LEVELS):
                own = cached[levels == level]
                if len(own):
                    self._level(level).put(own)
            cached = cached[levels == 0]
            if not len(cached):
                return
        if self._turnovers is None:
            self._front.put_batch(cached, self.clock)
        else:
            self._level(0).put(cached)

    def _level(self, number: int) -> PageLog:
        """A level that is to get pages; where it has none, it may be its turn next."""
        level = self._levels[number]
        if not level.num:
            self._turn = None
        return level

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
        self._empty.put_front(pages)
        self.num_free += len(pages)

    def remove(self, pages: NDArray[np.int64]) -> None:
        """Removes distinct free pages from any places. O(pages)."""
        numbers = PageLog.numbers(self._places[pages])
        for number in set(numbers.tolist()):
            own = numbers == number
            num_own = np.count_nonzero(own)
            self._queues[number].remove(pages if num_own == len(pages) else pages[own])
        self.num_free -= len(pages)

    def remove_one(self, page: int) -> None:
        """Removes one free page from any place. O(1)."""
        self._queues[PageLog.number(self._place_cell[page])].remove_one(page)
        self.num_free -= 1

    def order(self, before: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """The free pages in the order in which they would be taken now, `i64[num_free]`. O(pages and ghosts).

        Args:
            before: the pages of lower priorities, which would be taken before; None: there are none.
        """
        trial = ReuseOrder(self._size + 1, self._run_of.data, "reuse", b"")
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
        before = self._mark_behind(tree, after)
        text = tokens[: len(pages) * tree.page_bytes]
        marks = self.marks.chain(before, tree.page_bytes // 4, text, segments, start)
        if np.count_nonzero(pages) < len(pages):
            held = pages.nonzero()[0]
            pages, marks = pages[held], marks[held]
        self.mark_of[pages] = marks
        self._uses[pages] = _NEW

    def _mark_behind(self, tree: RunTree, page: int) -> int:
        """The mark of a cached page; that before the first page of a tree for page 0."""
        if not page:
            return self.marks.root(tree.group_id)
        if self.mark_cell[page] == _NOT_YET:
            self.settle()
        return self.mark_cell[page]

    def note_next(self, page: int, after: int, place: int, tokens: bytes, extra: bytes) -> None:
        """`note_pages` for one page behind a cached one, with tokens of this page alone. O(1), and O(tokens) later."""
        self._noted.append((page, after, place, tokens, extra))
        self.mark_cell[page] = _NOT_YET
        self._uses_cell[page] = _NEW
        if len(self._noted) > _MOST_NOTED:
            self.settle()

    def note_part(self, tree: RunTree, page: int, after: int, place: int, tokens: bytes, extra: bytes) -> None:
        """`note_next` for a page that isn't full, which may be a request's first: then ``after`` is 0 (MAN-17)."""
        self.mark_cell[page] = self.marks.next(self._mark_behind(tree, after), place, tokens, extra)
        self._uses_cell[page] = _NEW

    def settle(self) -> None:
        """Computes the marks of what was noted, before such a page, or the one before it, is free. O(tokens)."""
        if not self._noted:
            return
        cell, noted, self._noted = self.mark_cell, self._noted, []
        pages, before, places, texts, extras = zip(*noted, strict=True)
        for page, after, step in zip(pages, before, self.marks.steps(places, texts, extras), strict=True):
            cell[page] = (cell[after] + step) & MARK

    def noted_pages(self) -> list[int]:
        """The pages whose marks are still to be computed, and those before them: none of them is free."""
        return [page for noted in self._noted for page in noted[:2]]

    def _split(self, pages: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.uint8], NDArray[np.int64] | None]:
        """The cached ones of pages, their numbers of uses, and the others; None if there are none."""
        uses = self._uses[pages]
        others = len(pages) - np.count_nonzero(uses)
        if not others:
            return pages, uses, None
        if np.count_nonzero(uses[:others]) == 0:  # a request's last page, which comes first, is seldom full
            return pages[others:], uses[others:], pages[:others]
        is_cached = uses != 0
        return pages[is_cached], uses[is_cached], pages[~is_cached]

    def released(self, pages: NDArray[np.int64]) -> None:
        """A request is about to let go of distinct pages, in this order, without those that no hit needs. O(pages)."""
        self.settle()
        cached, uses, others = self._split(pages)
        num_cached = len(cached)
        if not num_cached:
            return
        is_new = uses == _NEW
        num_new, is_ghost = np.count_nonzero(is_new), None
        looks = num_new and self._ghosts.any
        if looks or self.shadows is not None:
            marks = self.mark_of[cached]
            if looks:
                is_ghost = self._ghosts.contain(marks) & is_new
                num_ghosts = int(np.count_nonzero(is_ghost))
                self._regrets += num_ghosts
                is_ghost = is_ghost if num_ghosts else None
            if self.shadows is not None:
                self._ask(self.shadows, marks, is_new, is_ghost)
        candidate = CANDIDATES[self._candidate]
        if not candidate.uses_ghosts:
            is_ghost = None
        if num_new == num_cached and is_ghost is None:
            self._uses[cached] = _NEW + 1
            return
        uses += 1
        np.minimum(uses, _MOST_USES, out=uses)
        if is_ghost is not None:
            uses += is_ghost
        if self.serves_parts and candidate.extends and np.count_nonzero(uses > _NEW + 1):
            np.maximum(uses, _NEW + 2, out=uses)
        start = 0
        if others is not None and others[-1] != pages[len(others) - 1]:  # one without a hash, which needs none, is amid
            is_cached = self._uses[pages] != 0
            for end in (np.diff(is_cached.nonzero()[0]) > 1).nonzero()[0].tolist():
                np.maximum.accumulate(uses[start : end + 1], out=uses[start : end + 1])
                start = end + 1
        np.maximum.accumulate(uses[start:], out=uses[start:])
        self._uses[cached] = uses

    def _ask(
        self,
        shadows: Shadows,
        marks: NDArray[np.int64],
        is_new: NDArray[np.bool_],
        is_ghost: NDArray[np.bool_] | None,
    ) -> None:
        """`released` for the shadow pools, which may say that another rule is better; no ``is_ghost``: none is one."""
        places = shadows.sampled(marks)
        if not len(places):
            return
        own = marks[places]
        asked: list[int] = own.tolist()
        if len(set(asked)) < len(asked):  # pages of one content, of which the first one counts
            places = places[np.sort(np.unique(own, return_index=True)[1])]
            asked = marks[places].tolist()
        is_hit = (~is_new[places]).tolist()
        was_evicted = [False] * len(asked) if is_ghost is None else is_ghost[places].tolist()
        beside = self.num_free - self._empty.num if self.serves_parts else None
        candidate = shadows.ask(asked, is_hit, was_evicted, self._candidate, beside)
        if candidate != self._candidate:
            self._candidate, self._turnovers = candidate, CANDIDATES[candidate].turnovers
            self._turn = None

    def forgotten(self, pages: NDArray[np.int64]) -> None:
        """Distinct pages are about to lose the hashes that they have, not by eviction; they keep places. O(pages)."""
        self.settle()
        pages, *_ = self._split(pages)
        self._uses[pages] = 0
        if self.shadows is not None:
            marks = self.mark_of[pages]
            for mark in marks[self.shadows.sampled(marks)].tolist():
                self.shadows.lost(mark)

    def counters(self) -> EvictionCounters:
        """What the policy has seen."""
        scores = () if self.shadows is None else tuple(self.shadows.scores)
        return EvictionCounters(self._regrets, self._candidate, scores)

    # -- Snapshots (MAN-14) and check -------------------------------------------------------------

    def saved(self) -> SavedEviction:
        """What a snapshot has of the policy. O(pages and ghosts)."""
        levels = [self._with_times(queue) for queue in self._levels]
        used = (self._uses > _NEW).nonzero()[0]
        hits = list(zip(used.tolist(), (self._uses[used] - np.uint8(_NEW + 1)).tolist(), strict=True))
        queues = QueuesState(self._front.in_batches(), levels, hits, self._ghosts.state())
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
        self._uses[:] = np.where(self._run_of != 0, _NEW, 0)
        for page, number in saved.queues.hits:
            self._uses_cell[page] = _NEW + 1 + number
        self._ghosts.restore(saved.queues.ghosts)
        entries = [(_EMPTY, page, 0) for page in saved.empty]
        for number, level in enumerate(saved.queues.levels, _LEVELS):
            entries += [(number, *entry) for entry in level]
        for number, page, time in entries:
            self._freed_cell[page] = time
            self._queues[number].put_one(page)
        for time, batch in saved.queues.front:
            pages = np.array(batch, np.int64)
            self._freed_at[pages] = time
            self._front.put_batch(pages, time)
        self.num_free = sum(queue.num for queue in self._queues)
        if self.shadows is not None:
            self.shadows.restore(saved)

    def check(self) -> None:
        """Verifies every redundancy of queues, columns and ghosts. O(pages and ghosts).

        Raises:
            AssertionError: one does not hold.
        """
        free = np.zeros(len(self._uses), np.int64)
        is_cached, uses = self._run_of != 0, self._uses
        assert ((uses != 0) == is_cached).all(), f"EVICT-1: uses {uses.tolist()} of pages with a hash and without"
        assert uses.max() <= _MOST_USES, f"EVICT-1: uses {uses.tolist()}"
        for number, queue in enumerate(self._queues):
            queue.check()
            own = queue.order()
            free[own] += 1
            levels = _LEVELS_OF[uses[own[is_cached[own]]]]
            assert number != _EMPTY or not len(levels), "EVICT-1: a cached page is among those without a hash"
            assert (levels == max(number - _LEVELS, 0)).all(), "EVICT-1: a page is on another's level"
        assert (free <= 1).all(), "POOL-2: a page is free twice"
        assert self.num_free == free.sum(), f"POOL-2: {self.num_free} free pages, counted {free.sum()}"
        assert not free[self.noted_pages()].any(), f"EVICT-1: noted, and some of them free: {self.noted_pages()}"
        for queue in self._levels:
            times = self._freed_at[queue.order()]
            assert (np.diff(times) >= 0).all(), f"EVICT-1: {times.tolist()}"
            assert (times <= self.clock).all(), f"EVICT-1: pages freed at {times.tolist()}, after {self.clock}"
        batches = [time for time, _ in self._front.in_batches()]
        assert batches == sorted(batches), f"EVICT-1: batches of {batches}"
        assert all(time <= self.clock for time in batches), f"EVICT-1: batches of {batches}, after {self.clock}"

    def check_contents(self, evictions: int) -> None:
        """Verifies what depends on the pool's evictions, and the shadow pools. O(pages)."""
        assert self.clock == evictions, f"EVICT-1: {self.clock} at {evictions} evictions"
        missing = (self.mark_of == _NOT_YET).nonzero()[0].tolist()
        assert sorted({page for page, *_ in self._noted}) == missing, f"EVICT-1: pages {missing} have no marks"
        assert (self.mark_of >= _NOT_YET).all(), "EVICT-1: a mark below 0"
        if self.shadows is not None:
            self.shadows.check()
