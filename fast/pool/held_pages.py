"""POOL-2, POOL-3: the reference counts of a pool's pages, and the order of those that are free.

Arguments and results are page ids, and callers are trusted: `PagePool`, which reads its arguments and refuses, and
the cache manager, which takes hundreds of pages at once and tracks which it references. A call changes whole arrays;
one about one page takes a scalar path through the same structures.
"""

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvproof.spec.declarations import PoolOptions
from kvproof.spec.declarations.codec import Part, plain

from ..reading.arguments import flag, integer, refusal
from .cached_pages import CachedPages
from .free_log import FreeLog
from .pins import Pins
from .priorities import PriorityOrder

__all__ = ["HeldPages"]

_ZERO: NDArray[np.int32] = np.zeros((), np.int32)
_ONE: NDArray[np.int32] = np.ones((), np.int32)
"""Arrays, since numpy takes half a microsecond to convert a Python number: half of a short operation."""


class HeldPages(CachedPages):
    """The pages of a pool; see `PagePool`, whose arguments these are.

    Attributes:
        unhashed_first: True if freed pages that carry no hash go to the front of the queue (POOL-13).
        max_pinned_pages: the most pages that may be pinned (PIN-1).
        max_pinned_pages_per_salt: the most pages of one cache salt that may be pinned; None: no such bound.
        now: the last time passed to `advance_time` (PIN-2); None before the first.
    """

    def __init__(self, num_pages: int, enable_caching: bool, options: PoolOptions) -> None:
        super().__init__(num_pages, enable_caching, options)
        self.unhashed_first = flag("unhashed_first", options["unhashed_first"])
        self.max_pinned_pages = integer("max_pinned_pages", options["max_pinned_pages"])
        per_salt = options["max_pinned_pages_per_salt"]
        self.max_pinned_pages_per_salt = None if per_salt is None else integer("max_pinned_pages_per_salt", per_salt)
        self._free: FreeLog | PriorityOrder = FreeLog(self.num_pages, front_room=self.unhashed_first)
        self._count_cell = array("i", bytes(4 * self.num_pages))
        self._count_of: NDArray[np.int32] = np.frombuffer(self._count_cell, np.int32)
        self._freed_cell = self._sampling.freed_cell
        self._pins = Pins(self.num_pages, self.max_pinned_pages, self.max_pinned_pages_per_salt, self.salt_of)
        self._note_pins()
        self.now: float | None = None

    # -- Looking ----------------------------------------------------------------------------------

    def get_num_free_pages(self) -> int:
        """The number of pages that can be handed out. O(1)."""
        return self._free.num_free

    def get_usage(self) -> float:
        """The share of pages in use, from 0.0 to 1.0; the null page counts on neither side (POOL-10). O(1)."""
        return (self.num_pages - 1 - self._free.num_free) / (self.num_pages - 1)

    def num_free_of(self, pages: NDArray[np.int64]) -> int:
        """The number of ``pages`` that are free. O(pages)."""
        return len(pages) - int(np.count_nonzero(self._count_of[pages]))

    def free_order(self) -> NDArray[np.int64]:
        """The ids of the free pages in eviction order, `i64[free]` (POOL-3). O(free pages)."""
        return self._free.order()

    @property
    def appends_only(self) -> bool:
        """True if freed pages always go to the back of the queue: none goes to the front, none has a priority."""
        free = self._free
        return not self.unhashed_first and not (isinstance(free, PriorityOrder) and free.num_prioritised)

    def ref_count(self, page_id: int) -> int:
        """A page's reference count, its pins included. O(1)."""
        return self._count_cell[page_id]

    def set_ref_count(self, page_id: int, count: int) -> None:
        """Sets the count of a page in use.

        Raises:
            ValueError: the page would leave or enter the free queue (POOL-2), or lose a pin's reference (PIN-1).
        """
        if page_id == 0:
            return  # POOL-1
        held, pins = self._count_cell[page_id], self._pins.of(page_id)
        if (count == 0) != (held == 0):
            raise refusal(ValueError, "POOL-2", f"ref_cnt={count} on page {page_id} at {held}: use touch or free_pages")
        if count < pins:
            raise refusal(ValueError, "PIN-1", f"ref_cnt={count} on page {page_id}, which is pinned {pins} times")
        self._count_cell[page_id] = count

    @property
    def num_pinned_pages(self) -> int:
        """The number of distinct pinned pages."""
        return self._pins.num_pinned

    def pin_counts(self) -> NDArray[np.int64]:
        """The number of pins of each page, `i64[num_pages]`. O(pages)."""
        return self._pins.counts().copy()

    def _note_pins(self) -> None:
        # True if freeing a page only lowers its count and appends it to the queue; read wherever a page is freed
        self._is_plain = not self.unhashed_first and not self._pins.num_pinned

    # -- Handing out ------------------------------------------------------------------------------

    def take_one(self) -> int:
        """`PagePool.get_new_pages` of one page; at least one must be free. Returns its id."""
        page = self._free.take_one()
        self._count_cell[page] = 1
        if self._run_cell[page]:
            self._evict_one(page)
        self.clock += 1
        return page

    def take(self, count: int) -> NDArray[np.int64]:
        """`PagePool.get_new_pages`; at least ``count`` pages must be free. Returns their ids, `i64[count]`."""
        pages = self._free.take(count)
        self._count_of[pages] = _ONE
        self._evict(pages)
        self.clock += count
        return pages

    def take_few(self, count: int) -> list[int]:
        """`take` for up to some dozens of pages, in a plain loop. Returns their ids."""
        ids = self._free.take_few(count)
        clock, count_cell, run_cell = self.clock, self._count_cell, self._run_cell
        for place, page in enumerate(ids):
            count_cell[page] = 1
            if run_cell[page]:
                self.clock = clock + place
                self._evict_one(page)
        self.clock = clock + count
        return ids

    def unpinned_counts(self, pages: NDArray[np.int64]) -> NDArray[np.int64]:
        """The reference counts of some pages, their pins left out. O(pages)."""
        counts = self._count_of[pages].astype(np.int64)
        return counts - self._pins.counts()[pages] if self._pins.num_pinned else counts

    def hold(self, pages: NDArray[np.int64]) -> None:
        """`PagePool.touch` for distinct pages that are in use or cached. O(pages)."""
        counts = self._count_of[pages]
        num_held = np.count_nonzero(counts)
        if num_held < len(pages):
            self._leave_queue(pages[counts == _ZERO] if num_held else pages)
        self._count_of[pages] = counts + _ONE

    def hold_mentioned(self, pages: NDArray[np.int64]) -> None:
        """`PagePool.touch` for pages that are in use or cached, once per mention. O(pages), O(free log free)."""
        free = np.unique(pages[self._count_of[pages] == 0])
        if len(free):
            self._leave_queue(free)
        np.add.at(self._count_of, pages, 1)

    def _leave_queue(self, free: NDArray[np.int64]) -> None:
        self._free.remove(free)
        self._sampling.reused(free, self.clock)

    # -- Taking back ------------------------------------------------------------------------------

    def release(self, pages: NDArray[np.int64], mentions: NDArray[np.integer] | int = _ONE) -> None:
        """`PagePool.free_pages` for distinct pages in use, each mentioned ``mentions`` times. O(pages).

        Those at 0 are freed in the order given.
        """
        counts = self._count_of[pages] - mentions
        self._count_of[pages] = counts
        self._put_back(pages[counts == _ZERO] if np.count_nonzero(counts) else pages)

    def _put_back(self, pages: NDArray[np.int64]) -> None:
        self._sampling.freed(pages, self.clock)
        if self.unhashed_first:
            cached = self.index.cached(pages)
            self._free.put_front(pages[~cached])
            pages = pages[cached]
        self._free.put(pages)

    # -- Losing hashes ----------------------------------------------------------------------------

    def withdraw(self, pages: NDArray[np.int64]) -> None:
        """Drops the hashes of distinct pages, pinned ones too, whose content no longer matches them (MAN-4).

        Pages without a hash are skipped; the others get an event each, in the order given. O(pages).
        """
        if (self.index.cached(pages) & (self._count_of[pages] > 0)).any():
            self.num_withdrawals += 1
        self.forget_hashes(pages)

    def forget_hashes(self, pages: NDArray[np.int64]) -> None:
        """`withdraw` for pages whose users the caller updates itself: `num_withdrawals` stays as it is."""
        self._pins.forget_salts(pages)
        self._forget(pages)

    def reset_prefix_cache(self) -> bool:
        """Forgets every hash, if no page is in use (POOL-9).

        Returns:
            True if it did.
        """
        if self._free.num_free != self.num_pages - 1:
            return False
        self._clear()
        return True

    # -- Snapshots (MAN-14) -----------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What a snapshot has of the pool beside its options; reference counts and pins follow from their holders.

        O(pages and cached tokens).
        """
        free = self._free
        stored, freed = self._sampled_times()
        return {
            "now": self.now,
            "free": free.order().tolist(),
            "priorities": [list(given) for given in free.given()] if isinstance(free, PriorityOrder) else [],
            "stored_at": stored,
            "freed_at": freed,
            **self.cached_state(),
            **self.log_state(),
        }

    def _sampled_times(self) -> tuple[list[list[int]], list[list[int]]]:
        # [page, time], by page: when sampled cached pages were stored, and when the free ones became free
        stored = self._sampling.stored_times()
        pages = np.array([page for page, _ in stored], np.int64)
        return stored, self._sampling.freed_times(pages[self._count_of[pages] == 0])

    def restore_held(self, parts: Mapping[str, Part], held: NDArray[np.int64], pinned: NDArray[np.int64]) -> None:
        """Sets counts, pins, the free queue, priorities and the time of a pool without pages in use.

        Args:
            parts: the snapshot's.
            held: times that requests hold each page, `i64[num_pages]`; 0 for the null page.
            pinned: the number of pins of each page, `i64[num_pages]`; 0 for the null page.
        """
        counts, free = held + pinned, parts["free"].integers(1, self.num_pages)
        if sorted(free.tolist()) != (1 + (counts[1:] == 0).nonzero()[0]).tolist():
            raise parts["free"].damaged("must name once each page that nobody holds, and no other")
        self._count_of[:] = counts
        self._pins.restore(pinned, self.index.cached(np.arange(self.num_pages)))
        self._note_pins()
        self.now = parts["now"].optional_time()
        log = FreeLog(self.num_pages, front_room=self.unhashed_first)
        log.take(log.num_free)
        log.put(free)
        self._free = log
        of_page = _read_priorities(parts["priorities"], self.num_pages, self.now)
        if of_page:
            self._free = ranked = PriorityOrder(log, self._run_cell)
            for page in [*free.tolist(), *counts.nonzero()[0].tolist()]:
                if page in of_page:
                    ranked.set(page, *of_page[page], not counts[page])
        if (self._free.order() != free).any():
            raise parts["free"].damaged("must name pages of a low priority first")

    def restore_log(self, parts: Mapping[str, Part], sizes: Sequence[int]) -> None:
        """Sets the events that wait, the counters and the clock; ``sizes`` as for `restore_cached`."""
        self._restore_log(parts, sizes)
        stored, freed = self._sampled_times()
        if any(plain(parts[name].value) != times for name, times in (("stored_at", stored), ("freed_at", freed))):
            problem = "and freed_at must name the sampled pages that are cached, and free, by page"
            raise parts["stored_at"].damaged(problem)

    def check(self) -> None:
        """Verifies every redundancy of the state; O(pages and cached tokens).

        Raises:
            AssertionError: a check fails; the message shows the whole state.
        """
        pins, counts = self._pins.counts(), self._count_of
        try:
            self._free.check()
            free = np.zeros(self.num_pages, bool)
            free[self._free.order()] = True
            self.check_cached(free)
            assert not free[0], "POOL-1: the null page is free"
            assert counts[0] == 0, "POOL-1: the null page is held"
            assert not self._run_cell[0], "POOL-1: the null page is cached"
            assert (counts >= 0).all(), "POOL-5: a count below 0"
            assert (free[1:] == (counts[1:] == 0)).all(), "POOL-2: free pages and counts differ"
            self._pins.check(self.index.cached(np.arange(self.num_pages)))
            assert (pins <= counts).all(), "PIN-1: more pins than references"
            if isinstance(self._free, PriorityOrder) and self.now is not None:
                ended = self._free.have_ended(self.now)
                assert not ended, f"PIN-2: priorities of pages {ended} have ended by {self.now}"
            assert self._is_plain == (not self.unhashed_first and not self._pins.num_pinned), "PIN-1: plain or not"
        except AssertionError as error:
            order = self._free.order().tolist()
            raise AssertionError(f"{error}\nfree: {order}\ncounts: {counts.tolist()}\npins: {pins.tolist()}") from None


def _read_priorities(part: Part, num_pages: int, now: float | None) -> dict[int, tuple[int, float | None]]:
    """The priorities of a snapshot and their ends, by page."""
    priorities: dict[int, tuple[int, float | None]] = {}
    last = 0
    for item in part.items():
        page, priority, end = item.items(3)
        until = end.optional_time()
        if until is not None and now is not None and until <= now:
            raise end.damaged("has passed")
        if priority.value == 0:
            raise priority.damaged("must not be 0, which every page has")
        last = page.integer(last + 1, num_pages)
        priorities[last] = priority.integer(-(2**31), 2**31), until
    return priorities
