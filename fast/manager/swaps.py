"""SWAP-1: swapping requests to host memory and back.

The manager plans copies and references the pages; the engine runs the copies and calls `swap_done` when they have
ended. Pages copied back are published only then. Publishing them earlier, as full pages of a step are (MAN-4), would be
wrong: nothing orders another request's reads behind the copy, as a step's writes come before its reads (ATT-5).
"""

import numpy as np
from numpy.typing import NDArray

from kvproof.spec.declarations import EngineRequest, PartCopy, SwapCopy, SwapPlan

from ..groups.coordinator import CacheCoordinator
from ..groups.swapped_requests import Flight, Swapped
from ..pool.pool_log import KeyStretch
from ..reading.arguments import attribute, integer, refusal
from ..reading.extra_keys import extra_segments
from ..reading.request_reading import read_id, read_request_id, read_tokens
from .prefixes import Prefixes

__all__ = ["Swaps"]


class Swaps:
    """Swaps a manager's requests to host memory and back, and lets pages from elsewhere into its cache.

    A request is live; from `swap_out` on it is being copied to the host; from `swap_done` on it is swapped out; from
    `swap_in` on it is being copied back; from the next `swap_done` on it is live again. `free` aborts it at any of
    these. Pages on both sides stay referenced while they are read or written; no call waits.

    Args:
        coordinator: the manager's groups and requests.
        prefixes: the manager's prefixes, which count a request that is forgotten as one that may come back.
    """

    def __init__(self, coordinator: CacheCoordinator, prefixes: Prefixes) -> None:
        self.coordinator = coordinator
        self._prefixes = prefixes
        self._pool = coordinator.page_pool
        self._live = coordinator.live
        self._swapped = coordinator.swapped

    # -- Planning ---------------------------------------------------------------------------------

    def swap_out(self, request: EngineRequest) -> SwapPlan | None:
        """Plans the copies of a live request to the host; see `CacheManager.swap_out`."""
        slot = self._live.require(request)
        request_id = self._live.ids[slot]
        tokens = bytes(read_tokens(request))
        extra = extra_segments(attribute(request, "extra_keys"), 1)
        coordinator, swapped = self.coordinator, self._swapped
        segments = coordinator.segments_of(request.extra_keys)
        computed = integer("request.num_computed_tokens", attribute(request, "num_computed_tokens"))
        coordinator.require_step(slot, computed, computed)
        if not 0 < computed <= len(tokens) // 4:
            raise refusal(
                ValueError,
                "SWAP-1",
                f"request.num_computed_tokens={computed}: must be at least 1, of {len(tokens) // 4} tokens",
            )
        if self.waits_for_copies(slot, computed):
            raise refusal(
                ValueError,
                "MAN-17",
                f"request.num_computed_tokens={computed}: copies that its first step needs wait for take_page_copies",
            )
        bounds = [
            (group.rule.first_place(computed), group.rule.end(computed, computed)) for group in coordinator.groups
        ]
        if sum(end - first for first, end in bounds) > swapped.host.num_free:
            return None
        coordinator.undo_copies(slot)  # a step that would run them does not come
        pages = [group.pages(slot) for group in coordinator.groups]
        host_pages = [swapped.host.take(end - first) for first, end in bounds]
        going = Swapped(
            request, request_id, tokens[: 4 * computed], extra, segments, [first for first, _ in bounds], host_pages
        )
        going.points = coordinator.live.points[slot]
        swapped.by_id[request_id] = going
        number = swapped.begin(Flight(going, True, pages))
        coordinator.live.dismiss(slot)
        needed = [own[first:end] for own, (first, end) in zip(pages, bounds, strict=True)]
        return SwapPlan(number, request_id, "out", computed, self.copies(going, needed))

    def swap_in(self, request: EngineRequest) -> SwapPlan | None:
        """Plans a request's way back: hits first, copies for the rest; see `CacheManager.swap_in`."""
        coming = self._swapped.by_id.get(read_request_id(request))
        tokens = bytes(read_tokens(request))
        extra = extra_segments(attribute(request, "extra_keys"), 1)
        if coming is None or coming.request is not request:
            raise refusal(ValueError, "SWAP-1", f"request {request.request_id!r} is not swapped out")
        if coming.swap_id >= 0:
            raise refusal(
                ValueError, "SWAP-1", f"request {request.request_id!r}: the copies of swap {coming.swap_id} have to end"
            )
        if not tokens.startswith(coming.tokens) or extra != coming.extra:
            raise refusal(
                ValueError, "MAN-6", f"request {request.request_id!r}: tokens or extra keys changed in host memory"
            )
        return self._plan_in(coming)

    def receive_pages(self, request: EngineRequest, num_tokens: int) -> SwapPlan | None:
        """Plans the copies of pages from elsewhere into the cache; see `CacheManager.receive_pages`."""
        request_id, count = read_request_id(request), integer("num_tokens", num_tokens, minimum=1)
        tokens = bytes(read_tokens(request))
        extra = extra_segments(attribute(request, "extra_keys"), 1)
        coordinator, swapped = self.coordinator, self._swapped
        swapped.require_none(request)
        if request_id in self._live.slot_of:
            raise refusal(ValueError, "SWAP-1", f"request {request_id!r} is live")
        most = min(len(tokens) // 4, coordinator.max_model_len)
        if count > most or any(count % group.rule.page_size for group in coordinator.groups):
            raise refusal(ValueError, "SWAP-2", f"num_tokens={count} must be whole pages of at most {most} tokens")
        if not self._pool.enable_caching or not all(group.rule.publishes for group in coordinator.groups):
            raise refusal(ValueError, "SWAP-2", f"num_tokens={count}: there is a group whose pages are never cached")
        firsts = [group.rule.first_place(count) for group in coordinator.groups]
        lengths = [
            group.rule.end(count, count) - first for group, first in zip(coordinator.groups, firsts, strict=True)
        ]
        ends = np.cumsum(lengths)
        block = [np.arange(end - length, end) for end, length in zip(ends.tolist(), lengths, strict=True)]
        segments = coordinator.segments_of(request.extra_keys)
        coming = Swapped(request, request_id, tokens[: 4 * count], extra, segments, firsts, block, is_received=True)
        plan = self._plan_in(coming)
        if plan is not None:
            swapped.by_id[request_id] = coming
        return plan

    def waits_for_copies(self, slot: int, computed: int) -> bool:
        """Whether tokens were computed behind hits amid a page whose copy is still recorded (MAN-17)."""
        request_id, groups = self._live.ids[slot], self.coordinator.groups
        return any(
            other == request_id
            and isinstance(copy, PartCopy)
            and computed > groups[copy.group_id].num_hits[slot] * groups[copy.group_id].page_size + copy.num_tokens
            for other, copy in self.coordinator.queued_copies
        )

    def _plan_in(self, coming: Swapped) -> SwapPlan | None:
        """Takes the device pages of copies to the device, hits first; None if too few are free."""
        coordinator, pool = self.coordinator, self._pool
        hits = [self._cached(coming, number) for number in range(len(coordinator.groups))]
        total = sum(np.count_nonzero(own == 0) + pool.counts.num_free(own[own != 0]) for own in hits)
        if total > pool.get_num_free_pages():
            return None
        for own in hits:
            pool.hold(own[own != 0])
        pages, fresh = [], []
        for own, first in zip(hits, coming.first_places, strict=True):
            missing = np.flatnonzero(own == 0)
            new = np.zeros(first + len(own), np.int64)
            if len(missing):
                new[first + missing] = pool.take(len(missing))
            fresh.append(new)
            pages.append(new + np.concatenate([np.zeros(first, np.int64), own]))
        number = coordinator.swapped.begin(Flight(coming, False, pages, fresh, pool.num_withdrawals))
        copied = [own[first:] for own, first in zip(fresh, coming.first_places, strict=True)]
        return SwapPlan(number, coming.request_id, "in", coming.num_tokens, self.copies(coming, copied))

    def _cached(self, coming: Swapped, number: int) -> NDArray[np.int64]:
        """For each copied place of a group the page cached for it, 0 where there is none."""
        group, first = self.coordinator.groups[number], coming.first_places[number]
        found = np.zeros(len(coming.host_pages[number]), np.int64)
        if self._pool.enable_caching and group.rule.publishes:
            full = coming.num_tokens // group.rule.page_size
            pages = self._pool.index.first_pages(group.tree, coming.tokens, coming.segments[number], full)[first:]
            found[: len(pages)] = pages
        return found

    def copies(self, swapped: Swapped, needed: list[NDArray[np.int64]]) -> tuple[SwapCopy, ...]:
        """A copy for each page that is not 0; the places are those that were copied to the host."""
        copies = []
        for group, first, pages, host in zip(
            self.coordinator.groups, swapped.first_places, needed, swapped.host_pages, strict=True
        ):
            size = group.rule.page_size
            places = np.arange(first, first + len(pages))
            live = np.minimum(swapped.num_tokens - places * size, size)
            if group.rule.has_states:
                live[:] = size
            for page, host_page, slots in zip(pages.tolist(), host.tolist(), live.tolist(), strict=True):
                if page:
                    copies.append(SwapCopy(group.group_id, page, host_page, slots))
        return tuple(copies)

    def swap_done(self, swap_id: int) -> None:
        """Frees what a plan held, and publishes what it brought; see `CacheManager.swap_done`."""
        number = integer("swap_id", swap_id, minimum=None)
        swapped = self._swapped
        flight = swapped.flights.get(number)
        if flight is None:
            raise refusal(ValueError, "SWAP-1", f"swap_id={number} is no plan whose copies are under way")
        comes, is_wanted = flight.swapped, swapped.is_wanted(flight.swapped)
        if is_wanted and not flight.is_out:
            self._arrive(flight)
        if comes.is_received or flight.is_out or not is_wanted:
            for pages in flight.pages:
                self._pool.release(pages[pages != 0][::-1])
        del swapped.flights[number]
        comes.swap_id = -1
        if not (is_wanted and flight.is_out):
            swapped.free_host_pages(comes)

    def _arrive(self, flight: Flight) -> None:
        """Makes a request that was swapped in live, and publishes the pages copied to the device; see `swap_done`."""
        comes, pool, groups = flight.swapped, self._pool, self.coordinator.groups
        keys: list[KeyStretch | None] = []
        ends, texts = [], []
        for group, segments in zip(groups, comes.segments, strict=True):
            is_cached = self._pool.enable_caching and group.rule.publishes
            ends.append(comes.num_tokens // group.rule.page_size if is_cached else 0)
            texts.append(comes.tokens[: ends[-1] * group.tree.page_bytes])
            # a hash function that raises does so before anything has changed (R1)
            keys.append(pool.keys.ahead(group.tree, texts[-1], segments) if ends[-1] else None)
        del self._swapped.by_id[comes.request_id]
        if not comes.is_received:
            self._resume(flight, ends)
        for number, group in enumerate(groups):
            if ends[number]:
                fresh = flight.fresh[number][: ends[number]]
                pool.index.publish(group.tree, texts[number], comes.segments[number], fresh)
                pool.note_keys(fresh, keys[number])
                if pool.policy is not None:
                    pool.policy.note_pages(group.tree, fresh, texts[number], comes.segments[number])

    def _resume(self, flight: Flight, ends: list[int]) -> None:
        """Makes a request live with its device pages, of which ``ends`` leading places of each group are published."""
        comes, live = flight.swapped, self.coordinator.live
        slot = live.admit(comes.request, comes.request_id, comes.segments, flight.pages)
        live.num_promised[slot] = live.num_slots[slot] = live.num_computed[slot] = comes.num_tokens
        live.num_withdrawals[slot] = flight.num_withdrawals
        live.points[slot] = comes.points
        for number, group in enumerate(self.coordinator.groups):
            group.num_hits[slot] = group.num_published[slot] = ends[number]
            if group.rule.gives_back:
                group.num_given_back[slot] = comes.first_places[number]

    # -- Looking ----------------------------------------------------------------------------------

    @property
    def num_host_pages(self) -> int:
        """The number of pages that host memory has room for."""
        return self._swapped.host.num_pages

    @property
    def num_free_host_pages(self) -> int:
        """The number of free host pages. O(1)."""
        return self._swapped.host.num_free

    def get_host_page_ids(self, request_id: str) -> tuple[list[int], ...]:
        """The host pages in use for a request; see `CacheManager.get_host_page_ids`."""
        swapped = self._swapped.by_id.get(read_id(request_id))
        if swapped is None or swapped.is_received:
            return tuple([] for _ in self.coordinator.groups)
        return tuple(pages.tolist() for pages in swapped.host_pages)

    # -- Forgetting -------------------------------------------------------------------------------

    def abandon(self, request: EngineRequest, request_id: str) -> None:
        """Forgets a request in host memory; running copies keep its pages until `swap_done`."""
        swapped = self._swapped
        going = swapped.by_id.get(request_id)
        if going is None or going.request is not request:
            return
        del swapped.by_id[request_id]
        if not going.is_received:
            self._prefixes.freed(request_id, going.num_tokens)
        if going.swap_id < 0:
            swapped.free_host_pages(going)
