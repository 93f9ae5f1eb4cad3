"""MAN-2 to MAN-5: slots for the steps of requests: allocated, published, and freed at the end."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from ..declarations import EngineRequest
from ..groups.cache_pages import CachePages
from ..groups.coordinator import CacheCoordinator
from ..groups.live_requests import is_running, read_computed, read_id, read_tokens, request_id_of
from ..pool.pages import CachePage
from ..reading.arguments import flag, integer, refusal
from ..step.demand import Demand, read_hits
from ..step.slot_batch import SlotBatch, batch_of, read_counts, read_rows, read_slots, require_room
from ..table.multi_group_table import MultiGroupPageTable
from .prefixes import Prefixes
from .swaps import Swaps

__all__ = ["Steps"]


class Steps:
    """Allocates a manager's slots to requests, step by step, publishes the pages that they fill, and frees them.

    Args:
        coordinator: the manager's groups and requests.
        prefixes: the manager's prefixes, for the keys of requests; they count admissions.
        swaps: the manager's swaps, which forget a swapped-out request that is freed.
    """

    def __init__(self, coordinator: CacheCoordinator, prefixes: Prefixes, swaps: Swaps) -> None:
        self._coordinator = coordinator
        self._prefixes = prefixes
        self._swaps = swaps
        self._live = coordinator.live

    # -- Allocating -------------------------------------------------------------------------------

    def allocate(
        self, request: EngineRequest, new: int, found: int, found_pages: CachePages | None, lookahead: int, delay: bool
    ) -> CachePages | None:
        """Allocates slots for one request, then publishes; see `CacheManager.allocate_slots`."""
        new = integer("num_new_tokens", new, minimum=1)
        found = integer("num_new_computed_tokens", found)
        lookahead = integer("num_lookahead_tokens", lookahead)
        delay = flag("delay_cache_pages", delay)
        demand = self.read(request, new, lookahead, found=found, found_pages=found_pages)
        pages = self.meet(demand)
        if pages is None:
            return None
        if not delay:
            self.publish(demand)
        return CachePages(pages)

    def allocate_batch(
        self,
        slots: Iterable[int] | NDArray[np.int64],
        computed: Iterable[int] | NDArray[np.int64],
        new: Iterable[int] | NDArray[np.int64] | int,
        lookahead: Iterable[int] | NDArray[np.int64] | int,
        delay: bool,
        tables: MultiGroupPageTable | None,
        rows: Iterable[int] | NDArray[np.int64] | None,
    ) -> SlotBatch:
        """Reads all that is asked, allocates for each request in order, then publishes; see `CacheManager`."""
        num_groups = len(self._coordinator.rules)
        requests = read_slots(slots, {live.slot: live.request for live in self._live.by_id.values()})
        counts = read_counts("num_computed_tokens", computed, len(requests), 0, one_for_all=False)
        news = read_counts("num_new_tokens", new, len(requests), 1)
        lookaheads = read_counts("num_lookahead_tokens", lookahead, len(requests), 0)
        delay = flag("delay_cache_pages", delay)
        row_ids = read_rows(tables, rows, len(requests), num_groups)
        demands = []
        for place, request in enumerate(requests):
            demand = self.read(request, news[place], lookaheads[place], computed=counts[place])
            if tables is not None:
                held = [len(pages) for pages in self._coordinator.get_pages(demand.request_id)]
                lacking = self._coordinator.get_num_new_places(
                    demand.request_id, demand.promised, demand.slots, demand.hits
                )
                require_room(tables, row_ids[place], held, lacking)
            demands.append(demand)
        taken = [self.meet(demand) for demand in demands]
        granted = [place for place, pages in enumerate(taken) if pages is not None]
        if not delay:
            for place in granted:
                self.publish(demands[place])
        batch = batch_of(taken, num_groups)
        if tables is not None:
            tables.append_rows_batch(
                [batch.get_page_ids(place) for place in granted], [row_ids[place] for place in granted]
            )
        return batch

    def read(
        self,
        request: EngineRequest,
        new: int,
        lookahead: int,
        *,
        computed: int | None = None,
        found: int = 0,
        found_pages: CachePages | None = None,
    ) -> Demand:
        """Reads what a call asks for one request; refuses faults before anything changes (R1).

        Args:
            request: the request.
            new: new tokens.
            lookahead: speculative tokens.
            computed: computed tokens; None: ``request.num_computed_tokens``.
            found: tokens just found in the cache.
            found_pages: the pages that hold them.
        """
        coordinator = self._coordinator
        tokens = read_tokens(request)
        chains = self._prefixes.chains(request, tokens)
        coordinator.swapped.require_none(request)
        request_id = request_id_of(request)
        live = self._live.by_id.get(request_id)
        has_states = any(rules.holds_states for rules in coordinator.rules)
        hits, parts = read_hits(coordinator, request, live is not None, found, found_pages, chains)
        if computed is None:
            computed = read_computed("request.num_computed_tokens", request.num_computed_tokens, live, has_states)
        else:
            computed = read_computed("num_computed_tokens", computed, live, has_states)
        promised, most = computed + found + new, coordinator.max_model_len
        if promised > most:
            raise refusal(
                ValueError,
                "MAN-2",
                f"num_new_tokens={new}: computed + new={promised} tokens exceed max_model_len={most}",
            )
        slots = min(promised + lookahead, most)
        return Demand(request, request_id, live, len(tokens), chains, computed, found, hits, parts, promised, slots)

    def meet(self, demand: Demand) -> list[list[CachePage]] | None:
        """Frees what a request no longer needs, then allocates the pages that it asks for; None if too few are free."""
        coordinator, request_id, live = self._coordinator, demand.request_id, demand.live
        if live is not None:
            live.num_computed = demand.computed  # also if there is no room: the pages freed next are not computed again
            coordinator.remove_skipped_pages(request_id, demand.computed)
        wanted = coordinator.get_num_pages_to_allocate(
            request_id, demand.promised, demand.slots, demand.hits, demand.parts
        )
        if wanted > coordinator.page_pool.get_num_free_pages():
            return None
        if live is None:
            point = coordinator.retention.prompt_end(demand.num_tokens)
            junction = coordinator.find_junction(demand.chains, demand.num_tokens)
            live = self._live.admit(demand.request, request_id, demand.found)
            live.prompt_end, live.junction = point, junction
            self._prefixes.admitted(demand.request, request_id, demand.num_tokens, demand.found, demand.hit_ends)
            coordinator.save_new_computed_pages(request_id, demand.hits, demand.parts)
        live.num_promised = max(live.num_promised, demand.promised)
        live.num_slots = max(live.num_slots, demand.slots)
        reached = demand.computed + demand.found
        return coordinator.allocate_new_pages(request_id, reached, demand.promised, demand.slots, demand.parts)

    def publish(self, demand: Demand) -> None:
        """Publishes the full pages up to the promised tokens, as far as the tokens are known (MAN-3)."""
        bound = min(demand.promised, demand.num_tokens)
        self._coordinator.cache_pages(demand.request_id, demand.chains, bound)
        if demand.live is None and self._coordinator.page_pool.enable_caching:
            self._live.by_id[demand.request_id].num_first = bound

    def cache_pages(self, request: EngineRequest, num_computed_tokens: int) -> None:
        """Publishes a live request's full pages that are written; see `CacheManager.cache_pages`."""
        count = integer("num_computed_tokens", num_computed_tokens)
        tokens = read_tokens(request)
        live = self._live.require(request)
        chains = self._prefixes.chains(request, tokens)
        if count > live.num_promised:
            raise refusal(
                ValueError,
                "MAN-3",
                f"num_computed_tokens={count}: the request was given slots for {live.num_promised}",
            )
        self._coordinator.cache_pages(request_id_of(request), chains, min(count, len(tokens)))

    # -- Freeing ----------------------------------------------------------------------------------

    def free(self, request: EngineRequest, num_written: int | None) -> list[str]:
        """Frees a request's pages, withdraws the unwritten ones and names their other holders; see `CacheManager`."""
        written = None if num_written is None else integer("num_written", num_written)
        request_id = request_id_of(request)
        live = self._live.find(request, request_id)
        if live is None:
            self._swaps.abandon(request, request_id)
            return []
        chains = None
        if self._coordinator.match_unit is not None and self._coordinator.page_pool.enable_caching and written is None:
            chains = self._prefixes.chains(request, read_tokens(request))
        withdrawn = [] if written is None else self._coordinator.withdraw(request_id, written)
        if chains is not None:
            self._coordinator.cache_last_pages(request_id, chains)
        del self._live.by_id[request_id]
        self._prefixes.freed(request_id, live.num_promised)
        self._coordinator.free(request_id, live, written)
        lost = set(withdrawn)
        holders = [
            other
            for other in self._live.by_id
            if not lost.isdisjoint(self._coordinator.sources_of(other))
            or not lost.isdisjoint(page for pages in self._coordinator.get_pages(other) for page in pages)
        ]
        return holders + self._coordinator.swapped.holders_of(withdrawn)

    # -- Looking ----------------------------------------------------------------------------------

    def slot_of(self, request_id: str) -> int:
        """The slot of a live request; see `CacheManager.slot_of`."""
        live = self._live.by_id.get(read_id(request_id))
        if live is None:
            raise refusal(ValueError, "R1", f"request_id={request_id!r} is not live")
        return live.slot

    def get_page_ids(self, request_id: str) -> tuple[list[int], ...]:
        """The ids of a request's pages in each group; see `CacheManager.get_page_ids`."""
        return CachePages(self._coordinator.get_pages(read_id(request_id))).get_page_ids()

    def get_num_common_prefix_pages(self, request: EngineRequest, num_running: int) -> list[int]:
        """The number of leading pages that all running requests share; see `CacheManager`."""
        count = integer("num_scheduled_requests", num_running)
        self._live.require(request)
        if not is_running(request):
            raise refusal(
                ValueError,
                "MAN-10",
                f"request {request.request_id!r} has status {request.status}, not RUNNING",
            )
        running = [request_id for request_id, live in self._live.by_id.items() if is_running(live.request)]
        if count != len(running):
            return [0 for _ in self._coordinator.rules]
        return self._coordinator.get_num_common_prefix_pages(request_id_of(request), running)
