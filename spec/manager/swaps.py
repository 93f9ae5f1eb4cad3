"""SWAP-1: requests that leave the device for host memory and come back."""

from itertools import count as numbers_from

from ..declarations import EngineRequest, PartCopy, SwapCopy, SwapPlan
from ..groups.coordinator import CacheCoordinator
from ..groups.group_rules import GroupRules
from ..groups.live_requests import GroupPages, read_computed, read_id, read_tokens, request_id_of
from ..groups.swapped_requests import Flight, Swapped
from ..pool.hashing import PageHash, request_extra_keys
from ..pool.pages import CachePage
from ..reading.arguments import integer, refusal
from .prefixes import Prefixes

__all__ = ["Swaps"]


class Swaps:
    """Swaps a manager's requests out to host memory and back in, and lets pages from elsewhere into its cache.

    The manager plans the copies, the engine runs them (`export_pages`, `import_pages`), and `swap_done` is the fence:
    by it the engine says that the copies have ended, or that all it will dispatch is ordered behind them. No call
    waits. A request goes through four stages, in each of which `free` can abort it::

        live  -- swap_out -->  on its way out  -- swap_done -->  out  -- swap_in -->  on its way back  -- swap_done -->

    Until the fence the pages on both sides stay allocated: on the way out the device's pages, so that no other request
    writes to them before they are read; on the way back both, as neither side is complete. The pages that came back
    are published only at the fence. MAN-4 lets pages be published before they are written because a step writes all
    its tokens before it reads any (ATT-5), but a copy may take several steps. For the same reason the request is live
    again only at the fence.

    Args:
        coordinator: the manager's groups and requests.
        prefixes: the manager's prefixes, which count a request that is forgotten as one that may come back.
    """

    def __init__(self, coordinator: CacheCoordinator, prefixes: Prefixes) -> None:
        self._coordinator = coordinator
        self._prefixes = prefixes
        self._pool = coordinator.page_pool
        self._live = coordinator.live
        self._swapped = coordinator.swapped

    # -- Planning ---------------------------------------------------------------------------------

    def swap_out(self, request: EngineRequest) -> SwapPlan | None:
        """Plans the copies of a live request to the host; see `CacheManager.swap_out`."""
        tokens = read_tokens(request)
        extra_keys = request_extra_keys(request)
        live = self._live.require(request)
        has_states = any(rules.holds_states for rules in self._coordinator.rules)
        computed = read_computed("request.num_computed_tokens", request.num_computed_tokens, live, has_states)
        if not 1 <= computed <= len(tokens):
            raise refusal(
                ValueError,
                "SWAP-1",
                f"request.num_computed_tokens={computed} must be in [1, {len(tokens)}] to be copied",
            )
        request_id = request_id_of(request)
        if computed > self._most_computed(request_id):
            raise refusal(
                ValueError,
                "MAN-17",
                f"request.num_computed_tokens={computed}: copies that its first step needs wait for take_page_copies",
            )
        places = [list(_needed(rules, computed)) for rules in self._coordinator.rules]
        if sum(map(len, places)) > self._swapped.num_free:
            return None
        self._coordinator.undo_copies(request_id)  # a step that would run them does not come
        pages = self._coordinator.get_pages(request_id)
        host = [dict(zip(own, self._swapped.take(len(own)), strict=True)) for own in places]
        points = live.prompt_end, live.junction
        swapped = Swapped(request, request_id, tuple(tokens[:computed]), extra_keys, host, *points)
        self._swapped.by_id[request_id] = swapped
        swap_id = self._swapped.begin(Flight(swapped, True, pages, []))
        del self._live.by_id[request_id]
        self._coordinator.forget(request_id)
        return SwapPlan(swap_id, request_id, "out", computed, self._copies(swapped, pages, places))

    def swap_in(self, request: EngineRequest) -> SwapPlan | None:
        """Plans a request's way back: hits first, copies for the rest; see `CacheManager.swap_in`."""
        tokens = read_tokens(request)
        extra_keys = request_extra_keys(request)
        swapped = self._swapped.require(request)
        computed = len(swapped.tokens)
        if tuple(tokens[:computed]) != swapped.tokens or extra_keys != swapped.extra_keys:
            raise refusal(
                ValueError, "MAN-6", f"request {request.request_id!r} was swapped out with other tokens or extra keys"
            )
        return self._plan_in(swapped)

    def receive_pages(self, request: EngineRequest, num_tokens: int) -> SwapPlan | None:
        """Plans the copies of pages from elsewhere into the cache; see `CacheManager.receive_pages`."""
        tokens = read_tokens(request)
        extra_keys = request_extra_keys(request)
        count = integer("num_tokens", num_tokens, minimum=1)
        self._swapped.require_none(request)
        request_id = request_id_of(request)
        if request_id in self._live.by_id:
            raise refusal(ValueError, "SWAP-1", f"request {request.request_id!r} is live")
        if count > min(len(tokens), self._coordinator.max_model_len):
            raise refusal(ValueError, "SWAP-2", f"num_tokens={count}: the request can have {len(tokens)} tokens")
        if any(count % rules.page_size for rules in self._coordinator.rules):
            raise refusal(ValueError, "SWAP-2", f"num_tokens={count} must be a multiple of every page size")
        if not self._pool.enable_caching or not all(rules.num_publishable(count) for rules in self._coordinator.rules):
            raise refusal(ValueError, "SWAP-2", f"num_tokens={count}: a group's pages are never cached")
        numbers = numbers_from()
        block = [{place: next(numbers) for place in _needed(rules, count)} for rules in self._coordinator.rules]
        received = Swapped(request, request_id, tuple(tokens[:count]), extra_keys, block, is_received=True)
        plan = self._plan_in(received)
        if plan is not None:
            self._swapped.by_id[request_id] = received
        return plan

    def _most_computed(self, request_id: str) -> int:
        """The most tokens that a request can have computed: what it hit, while a copy amid a page waits (MAN-17)."""
        held, rules = self._coordinator.held[request_id], self._coordinator.rules
        ends = [
            held[copy.group_id].num_hits * rules[copy.group_id].page_size + copy.num_tokens
            for other, copy in self._coordinator.queued_copies
            if other == request_id and isinstance(copy, PartCopy)
        ]
        return min(ends, default=self._coordinator.max_model_len)

    def _plan_in(self, swapped: Swapped) -> SwapPlan | None:
        """Allocates pages for what comes to the device, after its hits are referenced; None if too few are free."""
        hits: list[dict[int, CachePage]] = []
        copied: list[list[int]] = []
        computed = len(swapped.tokens)
        for rules in self._coordinator.rules:
            needed = _needed(rules, computed)
            chain = self._chain(swapped, rules)
            found = {
                place: self._coordinator.cached_page(*chain[place], rules.group_id)
                for place in needed
                if place < len(chain)
            }
            hits.append({place: page for place, page in found.items() if page is not None})
            copied.append([place for place in needed if place not in hits[-1]])
        wanted = sum(map(len, copied)) + sum(page.ref_cnt == 0 for own in hits for page in own.values())
        if wanted > self._pool.get_num_free_pages():
            return None
        self._pool.touch(own.values() for own in hits)
        pages = []
        for rules, own, places in zip(self._coordinator.rules, hits, copied, strict=True):
            all_pages = own | dict(zip(places, self._pool.get_new_pages(len(places)), strict=True))
            length = rules.num_places(computed, computed)
            pages.append([all_pages.get(place, self._pool.null_page) for place in range(length)])
        swap_id = self._swapped.begin(Flight(swapped, False, pages, copied))
        return SwapPlan(swap_id, swapped.request_id, "in", computed, self._copies(swapped, pages, copied))

    def swap_done(self, swap_id: int) -> None:
        """Frees what a plan held, and publishes what it brought; see `CacheManager.swap_done`."""
        number = integer("swap_id", swap_id, minimum=None)
        if number not in self._swapped.flights:
            raise refusal(ValueError, "SWAP-1", f"swap_id={number} is no plan whose copies are to end")
        flight = self._swapped.flights[number]
        swapped = flight.swapped
        chains = [self._chain(swapped, rules) for rules in self._coordinator.rules]  # before anything changes (R1)
        del self._swapped.flights[number]
        swapped.swap_id = None
        request_id = swapped.request_id
        is_wanted = self._swapped.by_id.get(request_id) is swapped
        if is_wanted and not flight.is_out:
            del self._swapped.by_id[request_id]
            if not swapped.is_received:
                self._resume(flight, chains)
            self._publish_copied(flight, chains)
        if flight.is_out or not is_wanted or swapped.is_received:
            for pages in flight.pages:
                self._pool.free_pages(reversed(pages))
        if not flight.is_out or not is_wanted:
            self._swapped.give_back(swapped)

    def _resume(self, flight: Flight, chains: list[list[tuple[PageHash, int]]]) -> None:
        """Makes a request live with the pages that came back."""
        swapped = flight.swapped
        request_id, computed = swapped.request_id, len(swapped.tokens)
        live = self._live.admit(swapped.request, request_id, computed, computed)
        live.prompt_end, live.junction = swapped.prompt_end, swapped.junction
        held = []
        for rules, pages, chain in zip(self._coordinator.rules, flight.pages, chains, strict=True):
            states = {len(pages) - 1: computed} if rules.copies_states else {}
            held.append(GroupPages(pages, len(chain), len(chain), states))  # all is written, and never withdrawn
        self._coordinator.held[request_id] = held

    def _publish_copied(self, flight: Flight, chains: list[list[tuple[PageHash, int]]]) -> None:
        """Publishes the full pages among those that were copied to the device (MAN-3)."""
        computed = len(flight.swapped.tokens)
        for rules, pages, copied, chain in zip(
            self._coordinator.rules, flight.pages, flight.copied, chains, strict=True
        ):
            states = {len(pages) - 1: computed} if rules.copies_states else {}
            fresh = [
                page if place in copied and rules.is_publishable(place, states) else self._pool.null_page
                for place, page in enumerate(pages[: len(chain)])
            ]
            self._pool.publish(fresh, chain, rules.group_id)

    def _chain(self, swapped: Swapped, rules: GroupRules) -> list[tuple[PageHash, int]]:
        """Key and content id of each page that a group can publish (HASH-3); empty with caching off."""
        if not self._pool.enable_caching:
            return []
        end = rules.num_publishable(len(swapped.tokens))
        return self._pool.keys.extend_chain([], swapped.tokens, swapped.extra_keys, rules.page_size, end)

    def _copies(self, swapped: Swapped, pages: list[list[CachePage]], places: list[list[int]]) -> tuple[SwapCopy, ...]:
        """The copies for some places of each group."""
        computed = len(swapped.tokens)
        return tuple(
            SwapCopy(
                rules.group_id,
                pages[rules.group_id][place].page_id,
                swapped.host_pages[rules.group_id][place],
                rules.page_size if rules.holds_states else min(computed - place * rules.page_size, rules.page_size),
            )
            for rules, own in zip(self._coordinator.rules, places, strict=True)
            for place in own
        )

    # -- Looking ----------------------------------------------------------------------------------

    @property
    def num_host_pages(self) -> int:
        """How many pages host memory has room for."""
        return self._swapped.num_host_pages

    @property
    def num_free_host_pages(self) -> int:
        """How many host pages are free."""
        return self._swapped.num_free

    def get_host_page_ids(self, request_id: str) -> tuple[list[int], ...]:
        """The host pages in use for a request; see `CacheManager.get_host_page_ids`."""
        swapped = self._swapped.by_id.get(read_id(request_id))
        return tuple([] for _ in self._coordinator.rules) if swapped is None else tuple(swapped.held_host_pages)

    # -- Forgetting -------------------------------------------------------------------------------

    def abandon(self, request: EngineRequest, request_id: str) -> None:
        """Forgets a swapped-out request and frees its host pages, if copies are under way only at the fence."""
        swapped = self._swapped.by_id.get(request_id)
        if swapped is None or swapped.request is not request:
            return
        del self._swapped.by_id[request_id]
        if not swapped.is_received:
            self._prefixes.freed(request_id, len(swapped.tokens))
        if swapped.swap_id is None:
            self._swapped.give_back(swapped)


def _needed(rules: GroupRules, computed: int) -> range:
    """The places whose pages a step after ``computed`` computed tokens can read."""
    return range(rules.first_place(computed), rules.num_places(computed, computed))
