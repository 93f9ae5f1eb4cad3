"""What the manager knows of live requests: columns with one entry a request, and their pages as rows of one table.

A request's number in the columns is its slot. Scalars are read and written through memoryviews of the columns
(half of numpy's price); whole columns serve calls about many requests.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from kvproof.spec.declarations import EngineRequest

from .extra_keys import PLAIN, ExtraSegment
from .page_pool import PagePool

__all__ = ["LiveRequests"]

_FIRST_CAPACITY = 16
_FIRST_WIDTH = 16


class LiveRequests:
    """The live requests of one manager. It trusts its caller.

    Attributes:
        slot_of: each live request's slot, by id, in the order of admission.
        requests: the engine's object in each slot; None in a free one.
        segments: each request's extra keys over its pages.
        num_pages: pages held, by slot; scalar access, as for the others.
        num_hits: leading pages that were found in the cache.
        num_published: leading pages that are published (MAN-3).
        num_promised: tokens up to which pages may be published: the most computed + new tokens so far.
        num_slots: tokens that have a slot, look-ahead included.
        num_computed: computed tokens at the last call (MAN-8).
        num_withdrawals: the pool's count when the last published page was seen to be in its place.
    """

    __slots__ = (
        "_columns",
        "_free",
        "_pages",
        "_width",
        "num_computed",
        "num_hits",
        "num_pages",
        "num_promised",
        "num_published",
        "num_slots",
        "num_withdrawals",
        "requests",
        "segments",
        "slot_of",
    )

    def __init__(self) -> None:
        self.slot_of: dict[str, int] = {}
        self.requests: list[EngineRequest | None] = []
        self.segments: list[Sequence[ExtraSegment]] = []
        self._free: list[int] = []
        self._width = _FIRST_WIDTH
        self._columns: NDArray[np.int64] = np.zeros((7, 0), np.int64)
        self._pages: NDArray[np.int32] = np.zeros((0, _FIRST_WIDTH), np.int32)
        self._resize(_FIRST_CAPACITY)

    def _resize(self, capacity: int) -> None:
        old = self._columns.shape[1]
        columns = np.zeros((7, capacity), np.int64)
        columns[:, :old] = self._columns
        pages = np.zeros((capacity, self._width), np.int32)
        pages[:old, : self._pages.shape[1]] = self._pages
        self._columns, self._pages = columns, pages
        cells = [column.data for column in columns]
        self.num_pages, self.num_hits, self.num_published, self.num_promised = cells[:4]
        self.num_slots, self.num_computed, self.num_withdrawals = cells[4:]
        self.requests += [None] * (capacity - old)
        self.segments += [PLAIN] * (capacity - old)
        self._free += reversed(range(old, capacity))

    def admit(self, request: EngineRequest, segments: Sequence[ExtraSegment]) -> int:
        """Gives a request a slot, its counts 0. O(1) amortised."""
        if not self._free:
            self._resize(2 * len(self.requests))
        slot = self._free.pop()
        self._columns[:, slot] = 0
        self.requests[slot] = request
        self.segments[slot] = segments
        self.slot_of[request.request_id] = slot
        return slot

    def dismiss(self, slot: int, request_id: str) -> None:
        """Frees a slot. O(1)."""
        del self.slot_of[request_id]
        self.requests[slot] = None
        self.segments[slot] = PLAIN
        self._free.append(slot)

    def pages(self, slot: int) -> NDArray[np.int64]:
        """A request's pages, `i64[num_pages]`, its own copy."""
        return self._pages[slot, : self.num_pages[slot]].astype(np.int64)

    def page(self, slot: int, place: int) -> int:
        """The page at one place."""
        return int(self._pages[slot, place])

    def add_pages(self, slot: int, pages: NDArray[np.int64]) -> None:
        """Adds pages behind a request's last. O(pages) amortised."""
        held = self.num_pages[slot]
        end = held + len(pages)
        if end > self._width:
            self._widen(end)
        self._pages[slot, held:end] = pages
        self.num_pages[slot] = end

    def add_page(self, slot: int, page: int) -> None:
        """Adds one page behind a request's last. O(1) amortised."""
        held = self.num_pages[slot]
        if held == self._width:
            self._widen(held + 1)
        self._pages[slot, held] = page
        self.num_pages[slot] = held + 1

    def _widen(self, width: int) -> None:
        self._width = max(2 * self._width, width)
        self._resize(len(self.requests))

    def common_pages(self, slot: int, others: Sequence[int]) -> int:
        """How many leading pages a request and the ones in ``others`` all hold at the same place (MAN-10)."""
        count = min(self.num_pages[other] for other in others)
        same = (self._pages[list(others), :count] == self._pages[slot, :count]).all(axis=0)
        same &= self._pages[slot, :count] != 0
        return count if same.all() else int(same.argmin())

    def holders(self, pages: NDArray[np.int64]) -> Iterator[str]:
        """The ids of the live requests that hold any of ``pages``, in the order of admission. O(pages held)."""
        for request_id, slot in self.slot_of.items():
            if np.isin(self.pages(slot), pages).any():
                yield request_id

    def check(self, pool: PagePool, page_size: int, max_model_len: int) -> None:
        """Verifies that columns, rows and the pool's counts agree; O(pages held).

        Args:
            pool: the pool that the pages are of.
            page_size: tokens in a page; 0 without a cache group.
            max_model_len: the most tokens of a request.

        Raises:
            AssertionError: they don't; the message shows the columns.
        """
        held = np.zeros(pool.num_pages, np.int64)
        for request_id, slot in self.slot_of.items():
            state = f"{request_id!r} in slot {slot}: {self._columns[:, slot].tolist()}, {self.pages(slot).tolist()}"
            request = self.requests[slot]
            assert request is not None and request.request_id == request_id, f"MAN-6: {state}"  # noqa: PT018
            assert self.num_hits[slot] <= self.num_published[slot] <= self.num_pages[slot], f"MAN-3: {state}"
            assert self.num_promised[slot] <= self.num_slots[slot] <= max_model_len, f"MAN-2: {state}"
            assert not page_size or self.num_pages[slot] * page_size >= self.num_slots[slot], f"MAN-2: {state}"
            np.add.at(held, self.pages(slot), 1)
            private = self.pages(slot)[self.num_published[slot] :]
            assert not pool.index.cached(private).any(), f"MAN-3: {state}"
            assert all(pool.ref_count(page) == 1 for page in private.tolist()), f"R2: {state}"
        counts = [pool.ref_count(page) for page in range(pool.num_pages)]
        assert held.tolist() == counts, f"POOL-2: pages are held {held.tolist()}, counted {counts}"
        assert len(self._free) + len(self.slot_of) == len(self.requests), f"slots: {self.slot_of}, {self._free}"
