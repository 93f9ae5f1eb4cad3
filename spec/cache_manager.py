"""MAN: which pages a request holds, from its first look-up to its end."""

from collections.abc import Sequence
from itertools import count as numbers_from

from .arguments import flag, integer, refusal
from .cache_pages import CachePages
from .coordinator import get_kv_cache_coordinator
from .declarations import CacheGroupSpec, EngineRequest, HashFunction, PageCopy
from .demand import Demand, read_hits
from .hashing import PageHash, hash_request_tokens, request_extra_keys, sha256
from .live_requests import Live, is_running, read_computed, read_tokens, request_id_of
from .manager_check import check_manager
from .pages import CachePage
from .request_keys import RequestKeys

__all__ = ["CacheManager", "CachePages"]


class CacheManager:
    """Gives requests their slots: finds cached prefixes, allocates, publishes full pages, frees.

    Not thread-safe: calls come from one thread at a time.

    Args:
        num_pages: pages of the pool, the null page included.
        kv_cache_groups: the cache groups, of any kinds and page sizes (MAN-7); none turns caching off.
        max_model_len: the most tokens that a request can have.
        enable_caching: whether prefixes are cached and found.
        use_eagle: whether an Eagle draft model runs, in the groups that are flagged, or in all of attention if
            none is (MAN-9).
        hash_seed: the seed of the keys; None draws one (HASH-1).
        hash_function: the hash of the keys, bytes in, bytes out.
        unhashed_first: see `PagePool` (POOL-13).
        enable_events: see `PagePool` (MAN-12).
        counter_sampling: see `PagePool` (MAN-12).
        max_pinned_pages: see `PagePool` (PIN-1).
        max_pinned_pages_per_salt: see `PagePool` (PIN-1).

    Attributes:
        coordinator: the groups at work.
        page_pool: the pool.
        page_size: tokens in a page of the first group; None with caching off.
    """

    def __init__(
        self,
        num_pages: int,
        kv_cache_groups: Sequence[CacheGroupSpec],
        max_model_len: int,
        enable_caching: bool = True,
        use_eagle: bool = False,
        *,
        hash_seed: bytes | None = None,
        hash_function: HashFunction = sha256,
        unhashed_first: bool = False,
        enable_events: bool = False,
        counter_sampling: int = 64,
        max_pinned_pages: int = 0,
        max_pinned_pages_per_salt: int | None = None,
    ) -> None:
        self.max_model_len = integer("max_model_len", max_model_len, minimum=1)
        self.use_eagle = flag("use_eagle", use_eagle)
        self.coordinator = get_kv_cache_coordinator(
            num_pages,
            kv_cache_groups,
            self.max_model_len,
            self.use_eagle,
            flag("enable_caching", enable_caching),
            hash_seed=hash_seed,
            hash_function=hash_function,
            unhashed_first=unhashed_first,
            enable_events=enable_events,
            counter_sampling=counter_sampling,
            max_pinned_pages=max_pinned_pages,
            max_pinned_pages_per_salt=max_pinned_pages_per_salt,
        )
        self.page_pool = self.coordinator.page_pool
        self.enable_caching = self.page_pool.enable_caching
        self.num_pages = self.page_pool.num_pages
        self.kv_cache_groups = self.coordinator.kv_cache_groups
        self.num_kv_cache_groups = len(self.kv_cache_groups)
        sizes = [rules.page_size for rules in self.coordinator.rules]
        self.page_size: int | None = sizes[0] if self.enable_caching else None
        self._has_states = any(rules.holds_states for rules in self.coordinator.rules)
        self._live: dict[str, Live] = {}
        self._known: dict[str, EngineRequest] = {}
        self._keys = RequestKeys(self.page_pool, sizes)

    @property
    def usage(self) -> float:
        """The share of pages in use, from 0.0 to 1.0 (POOL-10)."""
        return self.page_pool.get_usage()

    @property
    def req_to_page_hashes(self) -> dict[str, list[PageHash]]:
        """The keys of the full pages of each request looked up or admitted, until `free_page_hashes`.

        With several page sizes those of the first group's.
        """
        pool, size = self.page_pool, self.page_size
        if size is None:
            return {}
        return {
            request_id: list(hash_request_tokens(pool.hash_function, size, request, none_hash=pool.none_hash))
            for request_id, request in self._known.items()
        }

    def create_empty_page_list(self) -> CachePages:
        """No pages, in as many groups as the manager has."""
        return CachePages([] for _ in self.kv_cache_groups)

    # -- Finding ----------------------------------------------------------------------------------

    def get_computed_pages(self, request: EngineRequest) -> tuple[CachePages, int]:
        """The longest cached prefix of a request that every group can serve (MAN-1). Changes nothing in the pool.

        At least the last token is left to compute, since its logits are wanted.

        Args:
            request: a request that is to be admitted.

        Returns:
            Its cached pages, null pages where a group needs none, and how many tokens they stand for.
        """
        tokens = read_tokens(request)
        extra_keys = request_extra_keys(request)
        self._require_own_id(request)
        wants_logprobs = request.sampling_params is not None and request.sampling_params.prompt_logprobs is not None
        if not self.enable_caching or wants_logprobs:
            return self.create_empty_page_list(), 0
        chains = self._keys.chains(request.request_id, tokens, extra_keys, request.request_id in self._live)
        self._known[request.request_id] = request
        pages, found = self.coordinator.find_longest_cache_hit(chains, len(tokens) - 1)
        return CachePages(pages), found

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
        """Gives a request slots for new tokens (MAN-2) and publishes the pages that they fill (MAN-3).

        ::

            | computed | new computed | new | look-ahead |
            |<---------------- slots ------------------->|
            |<-------- published ------->|                 full pages, as far as the tokens are known

        First the pages that no group needs any more are given back (MAN-8). A state group has no slots for
        look-ahead; where it goes on in a new page, a copy is noted for `take_page_copies` (MAN-13).

        Args:
            request: the request; its ``num_computed_tokens`` are in the cache already.
            num_new_tokens: tokens to be computed, at least 1, tokens that come from elsewhere included.
            num_new_computed_tokens: tokens just found in the cache; only at admission.
            new_computed_pages: the pages that hold them, as `get_computed_pages` returned them.
            num_lookahead_tokens: speculative tokens to allocate for; never published.
            delay_cache_pages: leave publishing to `cache_pages` or to a later call, for pages whose content
                arrives in a later step.

        Returns:
            What was put behind the request's page list in each group: its new pages, and in a state group the
            null pages before them. None if the free pages don't suffice, and then nothing else has changed.

        Raises:
            ValueError: a count is impossible, the id is live for another request (MAN-6), computed tokens were
                never given slots or fell (MAN-8) or are not those of a state (MAN-13), a computed page is not
                the request's prefix (MAN-2).
        """
        new = integer("num_new_tokens", num_new_tokens, minimum=1)
        found = integer("num_new_computed_tokens", num_new_computed_tokens)
        lookahead = integer("num_lookahead_tokens", num_lookahead_tokens)
        delay = flag("delay_cache_pages", delay_cache_pages)
        demand = self._read_demand(request, new, lookahead, found=found, given=new_computed_pages)
        pages = self._meet(demand)
        if pages is None:
            return None
        if not delay:
            self._publish(demand)
        return CachePages(pages)

    def _read_demand(
        self,
        request: EngineRequest,
        new: int,
        lookahead: int,
        *,
        computed: int | None = None,
        found: int = 0,
        given: CachePages | None = None,
    ) -> Demand:
        """Reads what a call asks for one request, and refuses it before anything changes (R1).

        Args:
            request: the request.
            new: new tokens.
            lookahead: speculative tokens.
            computed: computed tokens; None: those that the request tells.
            found: tokens just found in the cache.
            given: the pages that hold them.
        """
        tokens = read_tokens(request)
        extra_keys = request_extra_keys(request)
        self._require_own_id(request)
        live = self._live.get(request.request_id)
        if computed is None:
            computed = read_computed("request.num_computed_tokens", request.num_computed_tokens, live, self._has_states)
        else:
            computed = read_computed("num_computed_tokens", computed, live, self._has_states)
        chains = self._keys.chains(request.request_id, tokens, extra_keys, live is not None)
        hits = read_hits(self.coordinator, request, live is not None, found, given, chains)
        promised = computed + found + new
        if promised > self.max_model_len:
            raise refusal(
                ValueError,
                "MAN-2",
                f"computed + num_new_tokens={promised} tokens exceed max_model_len={self.max_model_len}",
            )
        slots = min(promised + lookahead, self.max_model_len)
        return Demand(request, live, len(tokens), chains, computed, found, hits, promised, slots)

    def _meet(self, demand: Demand) -> list[list[CachePage]] | None:
        """Gives back what a request no longer needs, then takes what it asks for, or nothing if that is too much."""
        request_id, live = demand.request.request_id, demand.live
        if live is not None:
            live.num_computed = demand.computed  # also if there is no room: what is given back is not computed again
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
        """Makes a request live, in the lowest slot that is free (MAN-11), with its hits."""
        taken = {live.slot for live in self._live.values()}
        slot = next(number for number in numbers_from() if number not in taken)
        request_id = demand.request.request_id
        self._live[request_id] = Live(demand.request, slot)
        self._known[request_id] = demand.request
        self.coordinator.save_new_computed_pages(request_id, demand.hits)
        return self._live[request_id]

    def _publish(self, demand: Demand) -> None:
        """Publishes the full pages up to what a met demand promised, as far as the tokens are known (MAN-3)."""
        bound = min(demand.promised, demand.num_tokens)
        self.coordinator.cache_pages(demand.request.request_id, demand.chains, bound)

    def cache_pages(self, request: EngineRequest, num_computed_tokens: int) -> None:
        """Publishes a live request's full pages up to ``num_computed_tokens`` tokens (MAN-3).

        Args:
            request: a live request.
            num_computed_tokens: tokens whose K/V have come; as many as `allocate_slots` was told at most.

        Raises:
            ValueError: the request is not live, or the count exceeds its computed + new tokens.
        """
        count = integer("num_computed_tokens", num_computed_tokens)
        tokens = read_tokens(request)
        extra_keys = request_extra_keys(request)
        live = self._require_live(request)
        if count > live.num_promised:
            raise refusal(
                ValueError,
                "MAN-3",
                f"num_computed_tokens={count}: the request was given slots for {live.num_promised}",
            )
        chains = self._keys.chains(request.request_id, tokens, extra_keys, is_live=True)
        self.coordinator.cache_pages(request.request_id, chains, min(count, len(tokens)))

    def take_page_copies(self) -> list[PageCopy]:
        """The copies of states noted since the last call, in order: they are to be run before the step (MAN-13)."""
        return self.coordinator.take_page_copies()

    # -- Giving back ------------------------------------------------------------------------------

    def free(self, request: EngineRequest, num_written: int | None = None) -> list[str]:
        """Gives a request's pages back, the last page first, so that a prefix outlives what follows it (MAN-5).

        Args:
            request: the request; one that is not live is passed over.
            num_written: tokens whose K/V have been written or will be, where the request goes before its last
                step was dispatched; None if all are. What it promised beyond is withdrawn (MAN-4).

        Returns:
            The ids of the other live requests that hold a withdrawn page, in the order of their admission:
            what they computed from it is void, they are to be freed and scheduled anew. Empty for None.
        """
        written = None if num_written is None else integer("num_written", num_written)
        live = self._live.get(request_id_of(request))
        if live is None or live.request is not request:
            return []
        withdrawn = [] if written is None else self.coordinator.withdraw(request.request_id, written)
        del self._live[request.request_id]
        self.coordinator.free(request.request_id)
        lost = set(withdrawn)
        return [
            request_id
            for request_id in self._live
            if not lost.isdisjoint(page for pages in self.coordinator.get_pages(request_id) for page in pages)
        ]

    def free_page_hashes(self, request: EngineRequest) -> None:
        """Drops the keys computed for a request: when it is finished, not when it is preempted."""
        self._known.pop(request_id_of(request), None)
        self._keys.drop(request.request_id)

    def reset_prefix_cache(self) -> bool:
        """Forgets every cached prefix, if no page is in use (POOL-9). Returns whether it did."""
        return self.page_pool.reset_prefix_cache()

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
            num_scheduled_requests: how many requests are running; where it is not the number of live requests
                with that status, the engine's count and the manager's differ and the answer is 0.
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
        return self.coordinator.get_num_common_prefix_pages(request.request_id, running)

    # -- Inside -----------------------------------------------------------------------------------

    def _require_own_id(self, request: EngineRequest) -> None:
        live = self._live.get(request.request_id)
        if live is not None and live.request is not request:
            raise refusal(ValueError, "MAN-6", f"request_id={request.request_id!r} is live for another request")

    def _require_live(self, request: EngineRequest) -> Live:
        live = self._live.get(request_id_of(request))
        if live is None or live.request is not request:
            raise refusal(ValueError, "R1", f"request {request.request_id!r} is not live")
        return live

    def check(self) -> None:
        """Verifies every redundancy of the state; O(pages held).

        Raises:
            AssertionError: one does not hold; the message shows the whole state.
        """
        self.page_pool.check()
        check_manager(self.coordinator, self._live)
