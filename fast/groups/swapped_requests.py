"""SWAP-1: the requests that are in host memory or being copied, and their host pages.

All of it is empty while nothing is swapped, so that other calls check only that.
"""

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvproof.spec.declarations import EngineRequest

from ..reading.arguments import integer, refusal
from ..reading.extra_keys import ExtraSegment
from ..reading.request_reading import another

__all__ = ["Flight", "HostPages", "Swapped", "SwappedRequests"]


class HostPages:
    """The numbers of host pages: the lowest free one is taken first. Memory is proportional to the most ever in use.

    Args:
        num_pages: the number of host pages.

    Attributes:
        num_pages: the number of host pages.
        num_free: the number of free host pages.
    """

    __slots__ = ("_freed", "_next", "num_free", "num_pages")

    def __init__(self, num_pages: int) -> None:
        self.num_pages = self.num_free = num_pages
        self._next = 0
        self._freed: list[int] = []
        """A heap of free pages below ``_next``; from there on all are free."""

    def take(self, count: int) -> NDArray[np.int64]:
        """Takes the ``count`` lowest free pages; at least ``count`` must be free. O(count log pages)."""
        self.num_free -= count
        reused = [heappop(self._freed) for _ in range(min(count, len(self._freed)))]
        start, self._next = self._next, self._next + count - len(reused)
        return np.array([*reused, *range(start, self._next)], np.int64)

    def give_back(self, pages: NDArray[np.int64]) -> None:
        """Frees pages that are in use. O(pages log pages)."""
        self.num_free += len(pages)
        for page in pages.tolist():
            heappush(self._freed, page)

    def check(self, used: Sequence[int]) -> None:
        """Verifies that each page is either free or in ``used``."""
        assert sorted([*used, *self._freed]) == list(range(self._next)), (
            f"SWAP-1: host pages used {used}, freed {self._freed}, untouched from {self._next} on"
        )
        assert self._next <= self.num_pages, f"SWAP-1: host page {self._next - 1} of {self.num_pages}"
        assert self.num_free == self.num_pages - len(used), f"SWAP-1: {self.num_free} host pages counted as free"


class Swapped:
    """A request in host memory, or being copied to or from it.

    Attributes:
        request: the engine's object.
        request_id: its id, read when it was swapped out.
        tokens: the bytes of its computed tokens.
        extra: its extra keys, laid out over single tokens; used for comparison only.
        segments: its extra keys over its pages, for each group.
        first_places: for each group the first place that was copied; all places behind it were copied, too.
        host_pages: for each group the host pages of the places copied.
        swap_id: the id of the plan whose copies are running; -1 if there is none.
        points: see `LiveRequests`.
        is_received: True if its pages come from another process (SWAP-2); places among them then stand for host pages.
    """

    __slots__ = (
        "extra",
        "first_places",
        "host_pages",
        "is_received",
        "points",
        "request",
        "request_id",
        "segments",
        "swap_id",
        "tokens",
    )

    def __init__(
        self,
        request: EngineRequest,
        request_id: str,
        tokens: bytes,
        extra: Sequence[ExtraSegment],
        segments: Sequence[Sequence[ExtraSegment]],
        first_places: Sequence[int],
        host_pages: Sequence[NDArray[np.int64]],
        is_received: bool = False,
    ) -> None:
        self.request = request
        self.request_id = request_id
        self.tokens = tokens
        self.extra = extra
        self.segments = segments
        self.first_places = first_places
        self.host_pages = host_pages
        self.swap_id = -1
        self.points = (0, 0)
        self.is_received = is_received

    @property
    def num_tokens(self) -> int:
        """Its computed tokens."""
        return len(self.tokens) // 4


class Flight:
    """A plan whose copies are running.

    Attributes:
        swapped: the request whose pages are copied.
        is_out: True if the copies are from the device to the host.
        pages: the device pages referenced until the copies end: the request's list in each group, null pages as 0.
        fresh: for copies to the device, the same lists with 0 for pages that were hit.
        num_withdrawals: the pool's ``num_withdrawals`` when the hits were found, or -1 (see `LiveRequests`).
    """

    __slots__ = ("fresh", "is_out", "num_withdrawals", "pages", "swapped")

    def __init__(
        self,
        swapped: Swapped,
        is_out: bool,
        pages: Sequence[NDArray[np.int64]],
        fresh: Sequence[NDArray[np.int64]] = (),
        num_withdrawals: int = 0,
    ) -> None:
        self.swapped = swapped
        self.is_out = is_out
        self.pages = pages
        self.fresh = fresh
        self.num_withdrawals = num_withdrawals


class SwappedRequests:
    """The requests of a manager that are in host memory or being copied.

    Args:
        num_host_pages: the number of pages that host memory has room for.

    Attributes:
        host: the host pages.
        by_id: the requests, by their ids, in the order in which they were swapped out.
        flights: the plans whose copies are running, by their ids.
        next_id: the id of the next plan.
    """

    __slots__ = ("by_id", "flights", "host", "next_id")

    def __init__(self, num_host_pages: int) -> None:
        self.host = HostPages(integer("num_host_pages", num_host_pages, below=2**63))
        self.by_id: dict[str, Swapped] = {}
        self.flights: dict[int, Flight] = {}
        self.next_id = 0

    @property
    def out(self) -> set[str]:
        """The ids of the requests that are swapped out or being swapped."""
        return {request_id for request_id, swapped in self.by_id.items() if not swapped.is_received}

    @property
    def is_idle(self) -> bool:
        """True if no request is swapped out and no copies are running."""
        return not self.by_id and not self.flights

    def begin(self, flight: Flight) -> int:
        """Records a plan whose copies are running; returns its id."""
        number = flight.swapped.swap_id = self.next_id
        self.flights[number] = flight
        self.next_id += 1
        return number

    def is_wanted(self, swapped: Swapped) -> bool:
        """True if a request has not been freed since it was swapped out."""
        return self.by_id.get(swapped.request_id) is swapped

    def free_host_pages(self, swapped: Swapped) -> None:
        """Frees the host pages of a request."""
        if not swapped.is_received:
            for pages in swapped.host_pages:
                self.host.give_back(pages)

    def require_none(self, request: EngineRequest) -> None:
        """Refuses to admit a request that is swapped out (SWAP-1), or another one of its id (MAN-6)."""
        if self.is_another(request):
            raise another(request)
        if request.request_id in self.by_id:
            raise refusal(
                ValueError, "SWAP-1", f"request {request.request_id!r} is swapped out: it is to be swapped in or freed"
            )

    def is_another(self, request: EngineRequest) -> bool:
        """True if another request of the same id is swapped out (MAN-6)."""
        swapped = self.by_id.get(request.request_id)
        return swapped is not None and swapped.request is not request

    def withdraw(self, pages: NDArray[np.int64]) -> list[str]:
        """Records that pages were withdrawn; returns the ids of requests being copied that have any, by plan (MAN-4).

        O(pages being copied).
        """
        flights = [
            flight
            for flight in self.flights.values()
            if self.is_wanted(flight.swapped)
            and not flight.swapped.is_received
            and any(np.isin(own, pages).any() for own in flight.pages)
        ]
        for flight in flights:
            flight.num_withdrawals = -1
        return [flight.swapped.request_id for flight in flights]

    def state(self) -> dict[str, Any]:
        """What a snapshot has of host memory (MAN-14).

        Raises:
            ValueError: a request is in host memory or on its way; that memory and those copies end with this process.
        """
        if not self.is_idle:
            raise refusal(
                ValueError,
                "MAN-14",
                f"swapped out {list(self.by_id)}, being copied {list(self.flights)}: host memory is in no snapshot",
            )
        return {"num_host_pages": self.host.num_pages, "next_swap_id": self.next_id}

    def check(self) -> None:
        """Verifies that host pages, requests and plans agree.

        Raises:
            AssertionError: they don't.
        """
        every = {id(swapped): swapped for swapped in self.by_id.values()}
        every |= {id(flight.swapped): flight.swapped for flight in self.flights.values()}
        swapped_out = [swapped for swapped in every.values() if not swapped.is_received]
        self.host.check([page for swapped in swapped_out for own in swapped.host_pages for page in own.tolist()])
        for request_id, swapped in self.by_id.items():
            assert swapped.request_id == request_id, f"MAN-6: {swapped.request_id!r} is recorded as {request_id!r}"
            assert swapped.swap_id < 0 or self.flights[swapped.swap_id].swapped is swapped, (
                f"SWAP-1: {request_id!r} waits for swap {swapped.swap_id}"
            )
