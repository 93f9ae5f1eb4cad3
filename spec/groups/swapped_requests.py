"""SWAP-1: who is swapped out, which host pages that takes, and which copies have not ended."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count as numbers_from
from itertools import islice

from ..declarations import EngineRequest, ExtraKey
from ..pool.pages import CachePage
from ..reading.arguments import integer, refusal
from .live_requests import request_id_of

__all__ = ["Flight", "Swapped", "SwappedRequests"]


@dataclass
class Swapped:
    """A request that is swapped out, or on its way out or back.

    Attributes:
        request: the engine's object.
        request_id: its id, as it was read when it went.
        tokens: its computed tokens, which the host pages hold.
        extra_keys: its extra keys.
        host_pages: for each group the host page of each place that was copied.
        swap_id: the plan whose copies have not ended; None if there is none.
        is_received: whether its pages come from elsewhere: then host pages are places in what comes, and nothing here.
    """

    request: EngineRequest
    request_id: str
    tokens: tuple[int, ...]
    extra_keys: tuple[ExtraKey, ...]
    host_pages: list[dict[int, int]]
    swap_id: int | None = None
    is_received: bool = False

    @property
    def held_host_pages(self) -> list[list[int]]:
        """The host pages that it takes, for each group."""
        return [[] if self.is_received else list(own.values()) for own in self.host_pages]


@dataclass(frozen=True)
class Flight:
    """A plan whose copies have not ended.

    Attributes:
        swapped: whose copies they are.
        is_out: whether they leave the device.
        pages: the device pages that are held until then: the request's list in each group.
        copied: on the way back for each group the places that are copied, the others being hits or null pages.
    """

    swapped: Swapped
    is_out: bool
    pages: list[list[CachePage]]
    copied: list[list[int]]


class SwappedRequests:
    """The host pages of a manager and what is on them.

    Args:
        num_host_pages: how many pages host memory has room for; 0: none is ever swapped out.

    Attributes:
        num_host_pages: as given.
        by_id: what is swapped out or on its way, by the requests' ids, in the order in which they went.
        flights: the plans whose copies have not ended, by their ids.
        next_swap_id: the id of the next plan.
    """

    def __init__(self, num_host_pages: int) -> None:
        self.num_host_pages = integer("num_host_pages", num_host_pages)
        self.by_id: dict[str, Swapped] = {}
        self.flights: dict[int, Flight] = {}
        self.next_swap_id = 0
        self._used: set[int] = set()

    @property
    def out(self) -> set[str]:
        """The ids of the requests that are swapped out or on their way."""
        return {request_id for request_id, swapped in self.by_id.items() if not swapped.is_received}

    @property
    def num_free(self) -> int:
        """How many host pages hold nothing."""
        return self.num_host_pages - len(self._used)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is swapped out or on its way."""
        return not self.by_id and not self.flights

    def take(self, count: int) -> list[int]:
        """Takes the free host pages of the lowest numbers; there must be so many."""
        taken = list(islice((page for page in numbers_from() if page not in self._used), count))
        self._used.update(taken)
        return taken

    def give_back(self, swapped: Swapped) -> None:
        """Frees the host pages of a request."""
        self._used.difference_update(page for own in swapped.held_host_pages for page in own)

    def begin(self, flight: Flight) -> int:
        """Notes that copies are to be run; returns the plan's id."""
        swap_id = flight.swapped.swap_id = self.next_swap_id
        self.flights[swap_id] = flight
        self.next_swap_id += 1
        return swap_id

    def require_none(self, request: EngineRequest) -> None:
        """Refuses a request that is swapped out: it is to be swapped in or freed first; and another one of its id."""
        swapped = self.by_id.get(request_id_of(request))
        if swapped is not None and swapped.request is not request:
            raise refusal(ValueError, "MAN-6", f"request_id={request.request_id!r} is live for another request")
        if swapped is not None:
            raise refusal(ValueError, "SWAP-1", f"request {request.request_id!r} is swapped out: swap it in or free it")

    def require(self, request: EngineRequest) -> Swapped:
        """What is known of a request that is swapped out, no copies of its being under way."""
        swapped = self.by_id.get(request_id_of(request))
        if swapped is None or swapped.request is not request:
            raise refusal(ValueError, "SWAP-1", f"request {request.request_id!r} is not swapped out")
        if swapped.swap_id is not None:
            raise refusal(
                ValueError, "SWAP-1", f"request {request.request_id!r}: the copies of swap {swapped.swap_id} come first"
            )
        return swapped

    def holders_of(self, pages: Sequence[CachePage]) -> list[str]:
        """The requests on their way that hold any of some pages, in the order of their plans (MAN-4)."""
        return [
            flight.swapped.request_id
            for flight in self.flights.values()
            if self.by_id.get(flight.swapped.request_id) is flight.swapped
            and not flight.swapped.is_received
            and any(page in pages for own in flight.pages for page in own)
        ]

    def check(self) -> None:
        """Verifies that each host page is free or one request's, and that plans and requests agree.

        Raises:
            AssertionError: they don't.
        """
        holders = list(self.by_id.values())
        holders += [flight.swapped for flight in self.flights.values() if flight.swapped not in holders]  # aborted
        used = [page for swapped in holders for own in swapped.held_host_pages for page in own]
        assert sorted(used) == sorted(self._used), f"SWAP-1: host pages {used} in use, noted {sorted(self._used)}"
        assert all(page < self.num_host_pages for page in used), f"SWAP-1: of {self.num_host_pages} host pages {used}"
        for request_id, swapped in self.by_id.items():
            assert swapped.request_id == request_id, f"MAN-6: {swapped.request_id!r} is noted as {request_id!r}"
            assert swapped.swap_id is None or self.flights[swapped.swap_id].swapped is swapped, (
                f"SWAP-1: {request_id!r} waits for swap {swapped.swap_id}"
            )
