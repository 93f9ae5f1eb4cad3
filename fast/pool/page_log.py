"""EVICT-1: queues of free pages of which several share one column of places: first in, first out, or in batches.

Like `FreeLog` a queue is a log of page ids in which 0 stands where a page was taken out of the middle. A pool has
several of them, no page in two at once, so that they share the column of places, and each has room for what it holds
and as much again.
"""

from array import array

import numpy as np
from numpy.typing import NDArray

__all__ = ["BatchLog", "PageLog"]

_LEAST = 64
_PLACE_BITS = 40
_PLACE = 2**_PLACE_BITS - 1
_MUCH = 4_096
"""A log longer than this is given up when it is taken empty: the pages wait in another one by then."""


class PageLog:
    """Free pages, the one that was put first in front. It trusts its caller.

    Args:
        positions: where each free page stands, `i64[num_pages]`, shared by several logs: its place in its log, and the
            number of that log above it, from bit `_PLACE_BITS` on.
        number: the number of this log.

    Attributes:
        num: the number of pages.
        head: the place of the first entry in use.
        tail: the place behind the last entry in use.
    """

    __slots__ = ("_cell", "_log", "_own", "_place_cell", "_places", "head", "num", "tail")

    def __init__(self, positions: "array[int]", number: int) -> None:
        self._place_cell = positions
        self._places: NDArray[np.int64] = np.frombuffer(positions, np.int64)
        self._own = number << _PLACE_BITS
        self._log: NDArray[np.int32] = np.zeros(_LEAST, np.int32)
        self._cell = self._log.data
        self.head = self.tail = self.num = 0

    @staticmethod
    def places(num_pages: int) -> "array[int]":
        """The column of places of a pool's pages."""
        return array("q", (0,)) * num_pages

    @staticmethod
    def numbers(places: NDArray[np.int64]) -> NDArray[np.int64]:
        """The numbers of the logs in which pages stand, by their entries in the column of places."""
        return places >> _PLACE_BITS

    @staticmethod
    def number(place: int) -> int:
        """`numbers` for one page."""
        return place >> _PLACE_BITS

    def first(self) -> int:
        """The first page; there must be one. O(1) amortised."""
        cell, head = self._cell, self.head
        page = cell[head]
        while not page:
            head += 1
            page = cell[head]
        self.head = head
        return page

    def peek(self, count: int) -> NDArray[np.int64]:
        """The first ``count`` pages, at most as many as there are, `i64[count]`. O(count) amortised."""
        width, head, tail = count, self.head, self.tail
        while True:
            window = self._log[head : min(head + width, tail)]
            live = window if tail - head == self.num else window[window != 0]
            if len(live) >= count:
                return live[:count].astype(np.int64)
            width = 2 * width + 64

    def drop_first(self, count: int) -> None:
        """Removes the first ``count`` pages, which `peek` just gave."""
        if self.tail - self.head == self.num:
            self.head += count
        elif count == self.num:
            self.head = self.tail
        else:
            last = self.peek(count + 1).item(-1)
            self.head = self._place_cell[last] & _PLACE
        self.num -= count
        if not self.num and len(self._log) > _MUCH:
            self._log = np.zeros(_LEAST, np.int32)
            self._cell = self._log.data
            self.head = self.tail = 0

    def take(self, count: int) -> NDArray[np.int64]:
        """Takes the first ``count`` pages, at most as many as there are, `i64[count]`. O(count) amortised."""
        pages = self.peek(count)
        self.drop_first(count)
        return pages

    def take_one(self) -> int:
        """Takes the first page; there must be one. O(1) amortised."""
        page = self.first()
        self.head += 1
        self.num -= 1
        return page

    def take_while(self, times: "memoryview[int]", bound: int, most: int) -> list[int]:
        """Takes the first pages, at most ``most`` of them, as long as their ``times`` are below ``bound``."""
        cell, head = self._cell, self.head
        pages: list[int] = []
        for _ in range(min(most, self.num)):
            page = cell[head]
            while not page:
                head += 1
                page = cell[head]
            if times[page] >= bound:
                break
            pages.append(page)
            head += 1
        self.head = head
        self.num -= len(pages)
        return pages

    def put_one(self, page: int) -> None:
        """Puts a page behind the last. O(1) amortised."""
        if self.tail == len(self._log):
            self._pack(1)
        self._cell[self.tail] = page
        self._place_cell[page] = self._own + self.tail
        self.tail += 1
        self.num += 1

    def put(self, pages: NDArray[np.int64]) -> None:
        """Puts distinct pages behind the last, in order. O(pages) amortised."""
        count = len(pages)
        if self.tail + count > len(self._log):
            self._pack(count)
        end = self.tail + count
        self._log[self.tail : end] = pages
        self._places[pages] = np.arange(self._own + self.tail, self._own + end)
        self.tail = end
        self.num += count

    def put_front(self, pages: NDArray[np.int64]) -> None:
        """Puts distinct pages before the first, in order. O(pages of the log)."""
        held = self.order()
        self.head = self.tail = self.num = 0
        self.put(pages)
        self.put(held)

    def remove(self, pages: NDArray[np.int64]) -> None:
        """Removes distinct pages from any places. O(pages)."""
        self._log[self._places[pages] & _PLACE] = 0
        self.num -= len(pages)

    def remove_one(self, page: int) -> None:
        """Removes a page from any place. O(1)."""
        self._cell[self._place_cell[page] & _PLACE] = 0
        self.num -= 1

    def order(self) -> NDArray[np.int64]:
        """The pages, the first one in front. O(log)."""
        window = self._log[self.head : self.tail]
        free: NDArray[np.int64] = window[window != 0].astype(np.int64)
        return free

    def _pack(self, more: int) -> None:
        """Moves the pages to the beginning of a log that has room for ``more``."""
        live = self.order()
        room = max(_LEAST, 2 * (len(live) + more))
        if room > len(self._log) or 4 * room < len(self._log):
            self._log = np.zeros(room, np.int32)
            self._cell = self._log.data
        self._log[: len(live)] = live
        self._places[live] = np.arange(self._own, self._own + len(live))
        self.head, self.tail = 0, len(live)

    def check(self) -> None:
        """Verifies that log, places and count agree.

        Raises:
            AssertionError: they don't; the message shows the log.
        """
        order = self.order()

        def state() -> str:
            return f"{self.num} pages, log[{self.head}:{self.tail}] = {self._log[self.head : self.tail].tolist()}"

        assert 0 <= self.head <= self.tail <= len(self._log), state()
        assert len(order) == self.num == len(np.unique(order)), f"POOL-2: {state()}"
        places = self._places[order]
        assert (self._log[places & _PLACE] == order).all(), f"POOL-2: places {places.tolist()}, {state()}"
        assert (self.numbers(places) == self.number(self._own)).all(), f"POOL-2: places {places.tolist()}, {state()}"


class BatchLog(PageLog):
    """Free pages in batches, of which the last is taken first, each from its first page on.

    Attributes:
        batches: of each batch that may have pages [first place, place behind its last, clock], the oldest in front.
    """

    __slots__ = ("batches",)

    def __init__(self, positions: "array[int]", number: int) -> None:
        super().__init__(positions, number)
        self.batches: list[list[int]] = []

    def put_batch(self, pages: NDArray[np.int64], clock: int) -> None:
        """Puts distinct pages, at least one, as the last batch."""
        self.put(pages)
        self.batches.append([self.tail - len(pages), self.tail, clock])

    def _narrow(self, place: int) -> bool:
        """Lets a batch begin at its first page; drops it and returns False if it has none."""
        batch, cell = self.batches[place], self._cell
        begin, end, _ = batch
        while begin < end and not cell[begin]:
            begin += 1
        batch[0] = begin
        if begin < end:
            return True
        del self.batches[place]
        self.tail = self.batches[-1][1] if self.batches else 0
        return False

    def oldest(self) -> list[int]:
        """The oldest batch with pages; there must be one. O(1) amortised."""
        while not self._narrow(0):
            pass
        return self.batches[0]

    def latest(self) -> list[int]:
        """The last batch with pages; there must be one. O(1) amortised."""
        while not self._narrow(-1):
            pass
        return self.batches[-1]

    def take_of(self, batch: list[int], count: int) -> NDArray[np.int64]:
        """Takes the first pages of a batch, ``count`` of them or all."""
        begin, end, _ = batch
        window = self._log[begin:end]
        places = window.nonzero()[0][:count]
        pages = window[places].astype(np.int64)
        window[places] = 0
        batch[0] = begin + places.item(-1) + 1
        self.num -= len(pages)
        return pages

    def _pack(self, more: int) -> None:
        kept = [(self._log[begin:end], clock) for begin, end, clock in self.batches]
        live = [(pages[pages != 0], clock) for pages, clock in kept]
        self.batches = []
        super()._pack(more)
        begin = 0
        for pages, clock in live:
            if len(pages):
                self.batches.append([begin, begin + len(pages), clock])
                begin += len(pages)

    def in_batches(self) -> list[tuple[int, list[int]]]:
        """(clock, pages) of each batch, the oldest in front. O(log)."""
        kept = ((clock, self._log[begin:end]) for begin, end, clock in self.batches)
        return [(clock, pages[pages != 0].tolist()) for clock, pages in kept if pages.any()]

    def check(self) -> None:
        """See `PageLog.check`."""
        super().check()
        assert self.head == 0, f"EVICT-1: batches from {self.head}"
        places = [place for begin, end, _ in self.batches for place in (begin, end)]
        assert places == sorted(places), f"EVICT-1: batches {self.batches}"
        assert sum(len(pages) for _, pages in self.in_batches()) == self.num, f"EVICT-1: batches {self.batches}"
