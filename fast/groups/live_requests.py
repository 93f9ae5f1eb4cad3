"""The state of live requests: columns with one entry a request.

A request's number in the columns is its slot, the lowest one that was free when it was admitted. Scalars are read
and written through memoryviews of the columns (half of numpy's price); whole columns serve calls about many
requests.
"""

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvproof.spec.declarations import EngineRequest

from ..reading.arguments import refusal
from ..reading.extra_keys import ExtraSegment
from ..reading.request_reading import read_request_id
from .cache_group import CacheGroup

__all__ = ["DistinctIds", "LiveRequests", "Wanted"]

Wanted = tuple[CacheGroup, int, int]
"""A group's need for a request's next tokens: the group, the new length of the list, the number of pages to take."""

_FIRST_CAPACITY = 16
_NO_REQUEST = 1 << 62
"""The ``slots`` of an unused entry, above those of any request. Its ``computed`` is still larger, so that no count of
computed tokens is valid for it."""


_NO_POINTS = (0, 0)


class DistinctIds(NamedTuple):
    """Distinct numbers (slots, or rows of page tables) that an engine passed in one batched call.

    Attributes:
        data: the bytes of ``ids``.
        size: the bound that all of the numbers are below.
        ids: the numbers, `i64[n]`.
        where: an index for columns: the numbers, or a slice if they are consecutive.
    """

    data: bytes
    size: int
    ids: NDArray[np.int64]
    where: NDArray[np.int64] | slice


class LiveRequests:
    """The live requests of one manager, with their page lists. It trusts its caller.

    Args:
        groups: the cache groups, whose lists grow with the columns.

    Attributes:
        slot_of: each live request's slot, by id, in the order of admission.
        requests: the engine's object in each slot; None in a free one.
        is_live: True for each slot that has a request, `bool[capacity]`.
        promised: the number of tokens up to which pages may be published, which is the most computed + new tokens so
            far, `i64[capacity]`.
        slots: the number of tokens that have a cache slot, look-ahead included, `i64[capacity]`.
        computed: the number of computed tokens at the last call, at admission of hit tokens, `i64[capacity]` (MAN-8).
        needs_at: the number of slots below which a step needs no page, `i64[capacity]`; 0 if not computed yet.
        due_at: the number of promised tokens below which a step fills no page and frees none, `i64[capacity]`; 0 if not
            computed yet.
        withdrawals: the pool's ``num_withdrawals`` when the last published page was last known to be cached,
            `i64[capacity]`; -1 if that page may have been withdrawn since.
        any_withdrawn: True if ``withdrawals`` has ever had a -1.
        firsts: the tokens that the admission of each slot's request published: known, promised, not delayed (MAN-17).
        points: the end of the prompt and the junction of each slot's request, as lengths of hits; 0: none (RET-1).
        ids: the id of each slot's request, read at its admission; "" in a free slot.
        last_slots: the slots of the last batched step.
        last_rows: the rows of page tables of the last batched step that had tables.
        num_promised: ``promised``, for scalar access.
        num_slots: ``slots``, for scalar access.
        num_computed: ``computed``, for scalar access.
        num_needs_at: ``needs_at``, for scalar access.
        num_due_at: ``due_at``, for scalar access.
        num_withdrawals: ``withdrawals``, for scalar access.
    """

    __slots__ = (
        "_columns",
        "_free",
        "_groups",
        "_num_admitted",
        "_numbers",
        "any_withdrawn",
        "computed",
        "due_at",
        "firsts",
        "ids",
        "is_live",
        "last_rows",
        "last_slots",
        "needs_at",
        "num_computed",
        "num_due_at",
        "num_needs_at",
        "num_promised",
        "num_slots",
        "num_withdrawals",
        "points",
        "promised",
        "requests",
        "slot_of",
        "slots",
        "withdrawals",
    )

    def __init__(self, groups: Sequence[CacheGroup]) -> None:
        self._groups = groups
        self.any_withdrawn = False
        self.ids: list[str] = []
        self.points: list[tuple[int, int]] = []
        self.firsts: list[int] = []
        self._numbers: list[int] = []
        """The number of requests admitted before the one in each slot."""
        self._num_admitted = 0
        self.slot_of: dict[str, int] = {}
        self.requests: list[EngineRequest | None] = []
        self._free: list[int] = []
        self.is_live: NDArray[np.bool_] = np.zeros(0, bool)
        self._columns: NDArray[np.int64] = np.zeros((6, 0), np.int64)
        self._resize(_FIRST_CAPACITY)
        self.last_slots = self.last_rows = DistinctIds(b"", 0, np.empty(0, np.int64), slice(0, 0))

    def count_waiting(self) -> int:
        """Tokens of live requests that are known now and were not computed at the last call for each. O(requests)."""
        count = 0
        for slot in self.slot_of.values():
            request = self.requests[slot]
            assert request is not None
            count += max(request.num_tokens - self.num_computed[slot], 0)
        return count

    def _resize(self, capacity: int) -> None:
        """Makes room for ``capacity`` requests. After a MemoryError it can be called again."""
        for group in self._groups:
            group.resize(capacity)
        old = self._columns.shape[1]
        columns = np.zeros((6, capacity), np.int64)
        columns[:, :old] = self._columns
        is_live = np.concatenate([self.is_live, np.zeros(capacity - old, bool)])
        more: list[EngineRequest | None] = [None] * (capacity - old)
        self._columns, self.is_live = columns, is_live
        self.promised, self.slots, self.computed, self.needs_at, self.due_at, self.withdrawals = columns
        self.num_promised, self.num_slots, self.num_computed = self.promised.data, self.slots.data, self.computed.data
        self.num_needs_at, self.num_due_at = self.needs_at.data, self.due_at.data
        self.num_withdrawals = self.withdrawals.data
        self.slots[old:] = _NO_REQUEST
        self.computed[old:] = _NO_REQUEST + 1
        self.ids += [""] * (capacity - len(self.ids))
        self._numbers += [0] * (capacity - len(self._numbers))
        self.firsts += [0] * (capacity - len(self.firsts))
        self.points += [_NO_POINTS] * (capacity - len(self.points))
        self.requests += more
        for slot in range(old, capacity):
            heappush(self._free, slot)

    def admit(
        self,
        request: EngineRequest,
        request_id: str,
        segments: Sequence[Sequence[ExtraSegment]],
        pages: Sequence[NDArray[np.int64]],
        wanted: Sequence[Wanted] = (),
    ) -> int:
        """Puts a request into the lowest free slot; bounds are 0, counts not yet written. O(pages), O(log capacity).

        After a MemoryError nothing has changed.

        Args:
            request: the request.
            request_id: its id.
            segments: its extra keys over its pages, for each group.
            pages: its first pages, for each group, all of them cached.
            wanted: the pages that it is about to get, for which its lists get room.
        """
        if not self._free:
            self._resize(2 * len(self.requests))
        slot = self._free[0]
        try:
            for group, own, first in zip(self._groups, segments, pages, strict=True):
                group.admit(slot, own, first)
            for group, end, count in wanted:
                if end > group.num_limits[slot]:
                    group.make_room(slot, end, count)
        except BaseException:
            for group in self._groups:
                group.dismiss(slot)
            raise
        heappop(self._free)
        self._seat(request, request_id, slot)
        return slot

    def _seat(self, request: EngineRequest, request_id: str, slot: int) -> None:
        self.num_needs_at[slot] = self.num_due_at[slot] = 0
        self.requests[slot] = request
        self.ids[slot] = request_id
        self.points[slot] = _NO_POINTS
        self.firsts[slot] = 0
        self._numbers[slot] = self._num_admitted
        self._num_admitted += 1
        self.is_live[slot] = True
        self.slot_of[request_id] = slot

    def restore(self, live: Sequence[tuple[EngineRequest, str, int, Sequence[Sequence[ExtraSegment]]]]) -> None:
        """Puts requests into slots of an object without any; see `admit` (MAN-14).

        Args:
            live: in the order of admission, each request with its id, its slot and its extra keys over its pages.
        """
        while max((slot for _, _, slot, _ in live), default=0) >= len(self.requests):
            self._resize(2 * len(self.requests))
        no_pages = np.empty(0, np.int64)
        for request, request_id, slot, segments in live:
            self._seat(request, request_id, slot)
            for group, own in zip(self._groups, segments, strict=True):
                group.admit(slot, own, no_pages)
        self._free = (~self.is_live).nonzero()[0].tolist()  # sorted, so it is a heap

    def require(self, request: EngineRequest) -> int:
        """The slot of a request, which is refused unless it is live (R1). O(1)."""
        slot = self.slot_of.get(read_request_id(request), -1)
        if slot < 0 or self.requests[slot] is not request:
            raise refusal(ValueError, "R1", f"request {request.request_id!r} is not live")
        return slot

    def dismiss(self, slot: int) -> None:
        """Frees a slot. O(log capacity)."""
        del self.slot_of[self.ids[slot]]
        self.requests[slot] = None
        self.ids[slot] = ""
        self.is_live[slot] = False
        for group in self._groups:
            group.dismiss(slot)
        self.num_slots[slot] = _NO_REQUEST
        self.num_computed[slot] = _NO_REQUEST + 1
        heappush(self._free, slot)

    def withdraw(self, holders: Iterable[int]) -> list[str]:
        """Marks requests that reference withdrawn pages; returns their ids in the order of admission (MAN-4)."""
        slots = sorted(holders, key=self._numbers.__getitem__)
        for slot in slots:
            self.num_withdrawals[slot] = -1
            self.any_withdrawn = True
        return [self.ids[slot] for slot in slots]

    def state(self, request_id: str) -> str:
        """One request's columns and rows as text, for the message of a failing check."""
        slot = self.slot_of[request_id]
        rows = "; ".join(group.state(slot) for group in self._groups)
        return f"{request_id!r} in slot {slot}: {self._columns[:, slot].tolist()}; {rows}"
