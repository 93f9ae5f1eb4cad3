"""SWAP-1: the requests that are swapped out, their host pages, and the plans whose copies have not ended."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count as numbers_from
from itertools import islice
from typing import Any

from ..declarations import EngineRequest, ExtraKey
from ..pool.pages import CachePage
from ..reading.arguments import integer, refusal
from .live_requests import request_id_of

__all__ = ["Flight", "Swapped", "SwappedRequests"]


@dataclass
class Swapped:
    """A request that is swapped out or being swapped, or whose pages are being received.

    Attributes:
        request: the engine's object.
        request_id: id of the request, as it was read at `swap_out`.
        tokens: computed tokens of the request, whose K/V the host pages hold.
        extra_keys: extra keys of the request.
        host_pages: host page of each copied place, by place, for each group.
        prompt_end: see `Live`.
        junction: see `Live`.
        swap_id: id of the plan whose copies have not ended; None if there is none.
        is_received: whether the pages come from elsewhere (`receive_pages`); then ``host_pages`` are places in the
            received block, and no host page is in use.
    """

    request: EngineRequest
    request_id: str
    tokens: tuple[int, ...]
    extra_keys: tuple[ExtraKey, ...]
    host_pages: list[dict[int, int]]
    prompt_end: int = 0
    junction: int = 0
    swap_id: int | None = None
    is_received: bool = False

    @property
    def held_host_pages(self) -> list[list[int]]:
        """The host pages that are in use for the request, for each group."""
        return [[] if self.is_received else list(own.values()) for own in self.host_pages]


@dataclass(frozen=True)
class Flight:
    """A plan whose copies have not ended.

    Attributes:
        swapped: the request whose pages are copied.
        is_out: whether the copies go from the device to the host.
        pages: device pages that stay allocated until the copies end: the request's page list in each group.
        copied: places whose pages are copied to the device, for each group; the other places are hits or null pages.
            Empty on the way out.
    """

    swapped: Swapped
    is_out: bool
    pages: list[list[CachePage]]
    copied: list[list[int]]


class SwappedRequests:
    """The host pages of a manager, and the requests that use them.

    Args:
        num_host_pages: how many pages host memory has room for; 0: none is ever swapped out.

    Attributes:
        num_host_pages: number of pages of host memory.
        by_id: requests that are swapped out or being swapped, by id, oldest first.
        flights: plans whose copies have not ended, by id.
        next_swap_id: id of the next plan.
    """

    def __init__(self, num_host_pages: int) -> None:
        self.num_host_pages = integer("num_host_pages", num_host_pages, below=2**63)
        self.by_id: dict[str, Swapped] = {}
        self.flights: dict[int, Flight] = {}
        self.next_swap_id = 0
        self._used: set[int] = set()

    @property
    def out(self) -> set[str]:
        """The ids of the requests that are swapped out or being swapped."""
        return {request_id for request_id, swapped in self.by_id.items() if not swapped.is_received}

    @property
    def num_free(self) -> int:
        """How many host pages are free."""
        return self.num_host_pages - len(self._used)

    @property
    def is_idle(self) -> bool:
        """Whether no request is swapped out and no copy is under way."""
        return not self.by_id and not self.flights

    def take(self, count: int) -> list[int]:
        """Allocates the ``count`` free host pages with the lowest numbers; at least ``count`` must be free."""
        taken = list(islice((page for page in numbers_from() if page not in self._used), count))
        self._used.update(taken)
        return taken

    def give_back(self, swapped: Swapped) -> None:
        """Frees the host pages of a request."""
        self._used.difference_update(page for own in swapped.held_host_pages for page in own)

    def begin(self, flight: Flight) -> int:
        """Records a new plan; returns its id."""
        swap_id = flight.swapped.swap_id = self.next_swap_id
        self.flights[swap_id] = flight
        self.next_swap_id += 1
        return swap_id

    def require_none(self, request: EngineRequest) -> None:
        """Refuses a request that is swapped out, which must be swapped in or freed first, or any other of its id."""
        swapped = self.by_id.get(request_id_of(request))
        if swapped is not None and swapped.request is not request:
            raise refusal(ValueError, "MAN-6", f"request_id={request.request_id!r} is live for another request")
        if swapped is not None:
            raise refusal(ValueError, "SWAP-1", f"request {request.request_id!r} is swapped out: swap it in or free it")

    def require(self, request: EngineRequest) -> Swapped:
        """The record of a swapped-out request; refused while its copies are under way."""
        swapped = self.by_id.get(request_id_of(request))
        if swapped is None or swapped.request is not request:
            raise refusal(ValueError, "SWAP-1", f"request {request.request_id!r} is not swapped out")
        if swapped.swap_id is not None:
            raise refusal(
                ValueError, "SWAP-1", f"request {request.request_id!r}: the copies of swap {swapped.swap_id} come first"
            )
        return swapped

    def holders_of(self, pages: Sequence[CachePage]) -> list[str]:
        """The ids of the requests being swapped that hold any of some pages, in the order of their plans (MAN-4)."""
        return [
            flight.swapped.request_id
            for flight in self.flights.values()
            if self.by_id.get(flight.swapped.request_id) is flight.swapped
            and not flight.swapped.is_received
            and any(page in pages for own in flight.pages for page in own)
        ]

    def state(self) -> dict[str, Any]:
        """What a snapshot has of host memory (MAN-14).

        Raises:
            ValueError: a request is swapped out or on its way. What was copied lies in the memory of this process, and
                a copy under way ends nowhere else: who restored the manager would wait for fences that never come, and
                bring back pages that hold nothing (SWAP-1).
        """
        if not self.is_idle:
            raise refusal(
                ValueError,
                "MAN-14",
                f"requests {list(self.by_id)} are swapped out, copies of swaps {list(self.flights)} under way: host "
                f"memory is in no snapshot",
            )
        return {"num_host_pages": self.num_host_pages, "next_swap_id": self.next_swap_id}

    def check(self) -> None:
        """Verifies that each host page in use belongs to one request, and that plans and requests agree.

        Raises:
            AssertionError: they don't.
        """
        holders = list(self.by_id.values())
        holders += [flight.swapped for flight in self.flights.values() if flight.swapped not in holders]  # aborted
        used = [page for swapped in holders for own in swapped.held_host_pages for page in own]
        assert sorted(used) == sorted(self._used), f"SWAP-1: host pages {used} in use, recorded {sorted(self._used)}"
        assert all(page < self.num_host_pages for page in used), f"SWAP-1: of {self.num_host_pages} host pages {used}"
        for request_id, swapped in self.by_id.items():
            assert swapped.request_id == request_id, f"MAN-6: {swapped.request_id!r} is recorded as {request_id!r}"
            assert swapped.swap_id is None or self.flights[swapped.swap_id].swapped is swapped, (
                f"SWAP-1: {request_id!r} waits for swap {swapped.swap_id}"
            )
