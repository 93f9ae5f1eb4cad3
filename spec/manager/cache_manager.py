"""MAN: the cache manager: which pages a request holds, from its first look-up until it is freed."""

from collections.abc import Iterable, Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ..declarations import EngineRequest, HashFunction, PageCopy
from ..groups.cache_pages import CachePages
from ..groups.live_requests import Live, is_running, read_computed, read_tokens, request_id_of
from ..pool.hashing import sha256
from ..pool.pages import CachePage
from ..reading.arguments import flag, integer, refusal
from ..step.demand import Demand, read_hits
from ..step.slot_batch import SlotBatch, batch_of, read_counts, read_rows, read_slots, require_room
from ..table.multi_group_table import MultiGroupPageTable
from .manager_check import check_manager
from .prefix_manager import PinnedPrefix
from .restore import restored
from .snapshot import snapshot_of
from .swapping import SwapManager

__all__ = ["CacheManager", "CachePages", "PinnedPrefix", "SlotBatch"]


class CacheManager(SwapManager):
    """Gives requests their slots: finds cached prefixes, allocates, publishes full pages, frees.

    Not thread-safe: calls come from one thread at a time.

    Args:
        num_pages: pages of the pool, the null page included.
        kv_cache_groups: the cache groups, of any kinds and page sizes (MAN-7); none turns caching off.
        max_model_len: the most tokens that a request can have.
        enable_caching: whether prefixes are cached and found.
        use_eagle: whether an Eagle draft model runs, in the groups that are flagged, or in all of attention if
            none is (MAN-9).
        options: see `ManagerOptions`.

    Attributes:
        coordinator: each live request's pages in every group.
        page_pool: the pool that all groups share.
        page_size: tokens in a page of the first group; None with caching off.
    """

    # -- Allocating -------------------------------------------------------------------------------

    def allocate_slots(
        self,
        request: EngineRequest,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_pages: CachePages | None = None,
        num_lookahead_tokens: int = 0,
        delay_cache_pages: bool = False,
    ) -> CachePages | None:
        """Allocates slots for a request's new tokens (MAN-2) and publishes the pages that they fill (MAN-3).

        ::

            | computed | new computed | new | look-ahead |
            |<---------------- slots ------------------->|
            |<-------- published ------->|                 full pages, as far as the tokens are known

        First each group's pages that no later step reads are freed (MAN-8). A state group has no slots for look-ahead;
        where its state goes on in a new page, a copy is queued for `take_page_copies` (MAN-13).

        Args:
            request: the request; its ``num_computed_tokens`` are in the cache already.
            num_new_tokens: tokens that need slots, at least 1: to be computed, or received from elsewhere.
            num_new_computed_tokens: tokens just found in the cache; only at admission.
            new_computed_pages: the pages that hold them, as `get_computed_pages` returned them.
            num_lookahead_tokens: speculative tokens to allocate for; never published.
            delay_cache_pages: whether publishing is left to `cache_pages` or to a later call, for pages whose
                content arrives in a later step.

        Returns:
            The pages appended to the request's page list in each group: its new pages, in a state group with null
            pages before them. None if too few pages are free: then nothing changed but for the pages freed first.

        Raises:
            ValueError: a count is impossible; the id is live for another request (MAN-6); computed tokens have no
                slots, fell (MAN-8) or are not those of a state (MAN-13); a computed page does not hold the request's
                prefix (MAN-2).
        """
        new = integer("num_new_tokens", num_new_tokens, minimum=1)
        found = integer("num_new_computed_tokens", num_new_computed_tokens)
        lookahead = integer("num_lookahead_tokens", num_lookahead_tokens)
        delay = flag("delay_cache_pages", delay_cache_pages)
        demand = self._read_demand(request, new, lookahead, found=found, found_pages=new_computed_pages)
        pages = self._meet(demand)
        if pages is None:
            return None
        if not delay:
            self._publish(demand)
        return CachePages(pages)

    def allocate_slots_batch(
        self,
        slots: Iterable[int] | NDArray[np.int64],
        num_computed_tokens: Iterable[int] | NDArray[np.int64],
        num_new_tokens: Iterable[int] | NDArray[np.int64] | int,
        num_lookahead_tokens: Iterable[int] | NDArray[np.int64] | int = 0,
        *,
        delay_cache_pages: bool = False,
        tables: MultiGroupPageTable | None = None,
        rows: Iterable[int] | NDArray[np.int64] | None = None,
    ) -> SlotBatch:
        """`allocate_slots` for n live requests, in order; where one does not fit, the later ones go on (MAN-11).

        All arguments are read before anything changes: one faulty request refuses the whole call. Pages are published
        after all are allocated, so that the step's removal events come first, and a page's lifetime counts from there
        (MAN-12).

        Args:
            slots: the requests' slots, each once, `i64[n]`; see `slot_of`.
            num_computed_tokens: computed tokens of each request, `i64[n]`; the requests' own numbers are not read.
            num_new_tokens: tokens that need slots, at least 1, `i64[n]` or one number for all.
            num_lookahead_tokens: speculative tokens to allocate for, `i64[n]` or one number for all.
            delay_cache_pages: see `allocate_slots`.
            tables: page tables, one for each group, to whose rows the new pages are appended; None: to no table.
            rows: the requests' rows, each once, `i64[n]`. A row must have the length of its request's page lists, and
                room for the pages that the request asks for, even where they are not granted.

        Returns:
            Which requests got slots, and the new pages of each group.

        Raises:
            IndexError: no live request has a slot, or there is no such row (TAB-2).
            ValueError: a slot or row is named twice, lengths differ, tables and rows don't go together or with the
                requests, a row has no room (TAB-2), or what `allocate_slots` refuses.
        """
        requests = read_slots(slots, {live.slot: live.request for live in self._live.values()})
        computed = read_counts("num_computed_tokens", num_computed_tokens, len(requests), 0, one_for_all=False)
        new = read_counts("num_new_tokens", num_new_tokens, len(requests), 1)
        lookahead = read_counts("num_lookahead_tokens", num_lookahead_tokens, len(requests), 0)
        delay = flag("delay_cache_pages", delay_cache_pages)
        row_ids = read_rows(tables, rows, len(requests), self.num_kv_cache_groups)
        demands = []
        for place, request in enumerate(requests):
            demand = self._read_demand(request, new[place], lookahead[place], computed=computed[place])
            if tables is not None:
                held = [len(pages) for pages in self.coordinator.get_pages(demand.request_id)]
                lacking = self.coordinator.get_num_new_places(
                    demand.request_id, demand.promised, demand.slots, demand.hits
                )
                require_room(tables, row_ids[place], held, lacking)
            demands.append(demand)
        taken = [self._meet(demand) for demand in demands]
        granted = [place for place, pages in enumerate(taken) if pages is not None]
        if not delay:
            for place in granted:
                self._publish(demands[place])
        batch = batch_of(taken, self.num_kv_cache_groups)
        if tables is not None:
            tables.append_rows_batch(
                [batch.get_page_ids(place) for place in granted], [row_ids[place] for place in granted]
            )
        return batch

    def slot_of(self, request_id: str) -> int:
        """A live request's slot: the lowest number that was free at its admission (MAN-11).

        Raises:
            ValueError: the request is not live.
        """
        if not isinstance(request_id, str):
            raise refusal(TypeError, "R1", f"request_id={request_id!r} must be a str")
        if request_id not in self._live:
            raise refusal(ValueError, "R1", f"request_id={request_id!r} is not live")
        return self._live[request_id].slot

    def _read_demand(
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
        tokens = read_tokens(request)
        chains = self._chains(request, tokens)
        self._swapped.require_none(request)
        request_id = request_id_of(request)
        live = self._live.get(request_id)
        has_states = any(rules.holds_states for rules in self.coordinator.rules)
        hits = read_hits(self.coordinator, request, live is not None, found, found_pages, chains)
        if computed is None:
            computed = read_computed("request.num_computed_tokens", request.num_computed_tokens, live, has_states)
        else:
            computed = read_computed("num_computed_tokens", computed, live, has_states)
        promised = computed + found + new
        if promised > self.max_model_len:
            raise refusal(
                ValueError,
                "MAN-2",
                f"num_new_tokens={new}: computed + new={promised} tokens exceed max_model_len={self.max_model_len}",
            )
        slots = min(promised + lookahead, self.max_model_len)
        return Demand(request, request_id, live, len(tokens), chains, computed, found, hits, promised, slots)

    def _meet(self, demand: Demand) -> list[list[CachePage]] | None:
        """Frees what a request no longer needs, then allocates the pages that it asks for; None if too few are free."""
        request_id, live = demand.request_id, demand.live
        if live is not None:
            live.num_computed = demand.computed  # also if there is no room: the pages freed next are not computed again
            self.coordinator.remove_skipped_pages(request_id, demand.computed)
        wanted = self.coordinator.get_num_pages_to_allocate(request_id, demand.promised, demand.slots, demand.hits)
        if wanted > self.page_pool.get_num_free_pages():
            return None
        if live is None:
            live = self._admit(demand)
        live.num_promised = max(live.num_promised, demand.promised)
        live.num_slots = max(live.num_slots, demand.slots)
        reached = demand.computed + demand.found
        return self.coordinator.allocate_new_pages(request_id, reached, demand.promised, demand.slots)

    def _admit(self, demand: Demand) -> Live:
        """Makes a request live with its hits, in the lowest free slot (MAN-11)."""
        request_id = demand.request_id
        self._live[request_id] = Live(demand.request, self._lowest_free_slot(), num_computed=demand.found)
        self._remember(demand.request, request_id)
        self._count_admission(request_id, demand.num_tokens, demand.found)
        self.coordinator.save_new_computed_pages(request_id, demand.hits)
        return self._live[request_id]

    def _publish(self, demand: Demand) -> None:
        """Publishes the full pages up to the promised tokens, as far as the tokens are known (MAN-3)."""
        bound = min(demand.promised, demand.num_tokens)
        self.coordinator.cache_pages(demand.request_id, demand.chains, bound)

    def cache_pages(self, request: EngineRequest, num_computed_tokens: int) -> None:
        """Publishes a live request's full pages up to ``num_computed_tokens`` tokens (MAN-3).

        Args:
            request: a live request.
            num_computed_tokens: leading tokens whose K/V are written; at most those that `allocate_slots` promised.

        Raises:
            ValueError: the request is not live, or the count exceeds its computed + new tokens.
        """
        count = integer("num_computed_tokens", num_computed_tokens)
        tokens = read_tokens(request)
        live = self._require_live(request)
        chains = self._chains(request, tokens)
        if count > live.num_promised:
            raise refusal(
                ValueError,
                "MAN-3",
                f"num_computed_tokens={count}: the request was given slots for {live.num_promised}",
            )
        self.coordinator.cache_pages(request_id_of(request), chains, min(count, len(tokens)))

    def take_page_copies(self) -> list[PageCopy]:
        """The copies of states queued since the last call, in order, to run before the step (MAN-13)."""
        return self.coordinator.take_page_copies()

    # -- Freeing ----------------------------------------------------------------------------------

    def free(self, request: EngineRequest, num_written: int | None = None) -> list[str]:
        """Frees a request's pages, the last one first, so that the tail is evicted before the prefix it needs (MAN-5).

        The pages keep their hashes until they are allocated again, so that the same prompt hits them (HIT-1).

        Args:
            request: the request. A swapped-out one is forgotten (SWAP-1); any other that is not live is skipped.
            num_written: tokens whose K/V are written or will be, for a request freed before its last step was
                dispatched; None: all of them. Pages published beyond are withdrawn: they lose their hashes (MAN-4).

        Returns:
            The ids of the other requests that hold a withdrawn page: live ones in the order of their admission, then
            those being swapped, in the order of their plans. What they computed from the page is void: free them and
            schedule them again. Empty if ``num_written`` is None.
        """
        written = None if num_written is None else integer("num_written", num_written)
        request_id = request_id_of(request)
        live = self._live.get(request_id)
        if live is None or live.request is not request:
            self._abandon(request, request_id)
            return []
        withdrawn = [] if written is None else self.coordinator.withdraw(request_id, written)
        del self._live[request_id]
        if request_id in self._known:
            self._given_back[request_id] = live.num_promised
        self.coordinator.free(request_id)
        lost = set(withdrawn)
        holders = [
            other
            for other in self._live
            if not lost.isdisjoint(page for pages in self.coordinator.get_pages(other) for page in pages)
        ]
        return holders + self._swapped.holders_of(withdrawn)

    def free_page_hashes(self, request: EngineRequest) -> None:
        """Drops the keys computed for a request; call it when the request is finished, not when it is preempted."""
        request_id = request_id_of(request)
        self._known.pop(request_id, None)
        self._given_back.pop(request_id, None)
        self._keys.drop(request_id)

    # -- Looking ----------------------------------------------------------------------------------

    def get_page_ids(self, request_id: str) -> tuple[list[int], ...]:
        """The ids of the pages that a request holds, a list for each group; empty lists if it is not live."""
        if not isinstance(request_id, str):
            raise refusal(TypeError, "R1", f"request_id={request_id!r} must be a str")
        return CachePages(self.coordinator.get_pages(request_id)).get_page_ids()

    def get_num_common_prefix_pages(self, request: EngineRequest, num_scheduled_requests: int) -> list[int]:
        """How many leading pages all running requests share, for each group (MAN-10).

        Args:
            request: a live request whose status is ``RUNNING``.
            num_scheduled_requests: how many requests the engine runs. If the manager has another number of live
                requests with that status, the result is 0 for every group.
        """
        count = integer("num_scheduled_requests", num_scheduled_requests)
        self._require_live(request)
        if not is_running(request):
            raise refusal(
                ValueError,
                "MAN-10",
                f"request {request.request_id!r} has status {request.status}, not RUNNING",
            )
        running = [request_id for request_id, live in self._live.items() if is_running(live.request)]
        if count != len(running):
            return [0 for _ in self.kv_cache_groups]
        return self.coordinator.get_num_common_prefix_pages(request_id_of(request), running)

    # -- Snapshots --------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """The whole state as a document for JSON; the module `snapshot` describes its format (MAN-14).

        It has token ids and no salts. The engine keeps the requests' objects.

        Raises:
            ValueError: a page is held by direct calls on the pool, and by no request or pinned prefix; a request is
                swapped out or being swapped (SWAP-1).
        """
        return snapshot_of(self)

    @classmethod
    def restore(
        cls,
        snapshot: Mapping[str, Any],
        requests: Iterable[EngineRequest] = (),
        *,
        hash_function: HashFunction = sha256,
    ) -> Self:
        """A manager with the state of a snapshot, which behaves the same in every later call (MAN-14).

        Args:
            snapshot: the result of `snapshot`, by this package or another backend.
            requests: the engine's objects; at least those of the requests that were live, or known by their keys.
            hash_function: the hash function of the manager that was saved.

        Raises:
            TypeError: ``snapshot`` is no mapping, or ``requests`` are none.
            ValueError: the snapshot is damaged, or does not fit the requests.
        """
        return restored(cls, snapshot, requests, hash_function)

    # -- Inside -----------------------------------------------------------------------------------

    def check(self) -> None:
        """Verifies every redundancy of the state; O(pages held).

        Raises:
            AssertionError: one does not hold; the message has the whole state.
        """
        self.page_pool.check()
        check_manager(self.coordinator, self._live, self._pinned.values(), self._swapped)
        assert self._given_back.keys() <= self._known.keys() - self._live.keys() - self._swapped.out, (
            f"MAN-12: given back {list(self._given_back)}, known {list(self._known)}, live {list(self._live)}"
        )
