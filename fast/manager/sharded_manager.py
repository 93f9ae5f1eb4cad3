"""POOL-12: a cache manager over the shards of data parallelism, each with pages of its own.

No state is kept here beside the shards: a request is on the shard where it is live, and pages belong to the shard of
their pool.
"""

import os
from collections.abc import Sequence
from typing import Unpack

from kvproof.spec.declarations import (
    CacheGroupSpec,
    EngineRequest,
    ManagerOptions,
    PageCopy,
    PartCopy,
    SwapPlan,
    takes_options,
)
from kvproof.spec.declarations.placement import Placement, ShardLoad, read_placement
from kvproof.spec.declarations.showing import ShownShards

from ..groups.cache_pages import CachePages
from ..reading.arguments import index, integer, listed, refusal
from ..reading.request_reading import read_id, read_request_id
from .cache_manager import CacheManager

__all__ = ["ShardedCacheManager"]


class ShardedCacheManager(ShownShards):
    """The cache managers of several shards. A request lives on one of them, which the placement names (POOL-12).

    Page ids and host page ids are local to a shard: a request is swapped out on its shard and comes back to it. For
    batched steps, events, pins, priorities and received pages call ``shards[number]``. The plan with id k of shard i
    has the id ``k * num_shards + i`` here.

    Not thread-safe: calls come from one thread at a time.

    Args:
        num_shards: how many shards, at least 1.
        num_pages: pages of each shard's pool, its null page included.
        kv_cache_groups: the cache groups of every shard; see `CacheManager`, as for all that follow.
        max_model_len: the most tokens that a request can have.
        enable_caching: whether prefixes are cached and found.
        use_eagle: whether an Eagle draft model is served (MAN-9).
        placement: which shard a request comes to, see `Placement`; asked at its look-up, and at an admission with
            no pages.
        options: see `ManagerOptions`; they are each shard's, with one seed for all.

    Attributes:
        num_shards: the number of shards.
        shards: the manager of each shard.
        placement: the argument.
    """

    @takes_options
    def __init__(
        self,
        num_shards: int,
        num_pages: int,
        kv_cache_groups: Sequence[CacheGroupSpec],
        max_model_len: int,
        enable_caching: bool = True,
        use_eagle: bool = False,
        placement: Placement = "cost",
        **options: Unpack[ManagerOptions],
    ) -> None:
        self.num_shards = integer("num_shards", num_shards, minimum=1, clause="POOL-12")
        self.placement = read_placement(placement)
        groups = listed("kv_cache_groups", kv_cache_groups)
        if options["hash_seed"] is None:
            options["hash_seed"] = os.urandom(32)
        self.shards = tuple(
            CacheManager(num_pages, groups, max_model_len, enable_caching, use_eagle, **options)
            for _ in range(self.num_shards)
        )

    # -- Looking ----------------------------------------------------------------------------------

    @property
    def usage(self) -> float:
        """The share of all shards' pages in use, from 0.0 to 1.0; null pages count on neither side (POOL-10)."""
        pools = [shard.page_pool for shard in self.shards]
        pages = sum(pool.num_pages - 1 for pool in pools)
        return (pages - sum(pool.get_num_free_pages() for pool in pools)) / pages

    def shard_of(self, request_id: str) -> int | None:
        """The number of the shard on which a request is live, swapped out or on its way; None: on none. O(shards)."""
        wanted = read_id(request_id)
        for number, shard in enumerate(self.shards):
            if wanted in shard.coordinator.live.slot_of or wanted in shard.coordinator.swapped.by_id:
                return number
        return None

    def _home(self, request_id: str) -> CacheManager:
        """The manager that answers for a request: that of its shard, or any, if it is on none."""
        return self.shards[self.shard_of(request_id) or 0]

    def create_empty_page_list(self) -> CachePages:
        """An empty list for each group of the managers."""
        return self.shards[0].create_empty_page_list()

    def get_page_ids(self, request_id: str) -> tuple[list[int], ...]:
        """The ids of a request's pages on its shard, a list for each group; empty lists if it is not live."""
        return self._home(request_id).get_page_ids(request_id)

    def get_num_common_prefix_pages(self, request: EngineRequest, num_scheduled_requests: int) -> list[int]:
        """The number of leading pages that all running requests of a request's shard share, for each group (MAN-10).

        Args:
            request: a live request that runs.
            num_scheduled_requests: the number of requests that run on its shard.
        """
        return self._home(read_request_id(request)).get_num_common_prefix_pages(request, num_scheduled_requests)

    # -- Requests ---------------------------------------------------------------------------------

    def get_computed_pages(self, request: EngineRequest) -> tuple[CachePages, int]:
        """The longest cached prefix of a request on its shard, or if it is on none on that to which it comes (MAN-1).

        Args:
            request: a request that is to be admitted.

        Returns:
            The cached pages, all of one shard, and the number of their tokens. Costs a look-up on each shard.
        """
        return self.shards[self._number_of(request)].get_computed_pages(request)

    def _number_of(self, request: EngineRequest) -> int:
        """The number of a request's shard; if it is on none, of that to which it comes. O(tokens and live requests).

        Raises:
            IndexError: the placement names no shard (POOL-12).
            TypeError: it gives no number.
        """
        number = self.shard_of(read_request_id(request))
        if number is not None:
            return number
        hits = [shard.prefixes.hit_length(request) for shard in self.shards]
        num_tokens = request.num_tokens
        if self.placement == "prefix":
            free = [shard.page_pool.get_num_free_pages() for shard in self.shards]
            return max(range(len(free)), key=lambda shard: (hits[shard], free[shard], -shard))
        waiting = [shard.coordinator.live.count_waiting() for shard in self.shards]
        if self.placement == "cost":
            costs = [tokens - hit for hit, tokens in zip(hits, waiting, strict=True)]
            return costs.index(min(costs))
        loads = [
            ShardLoad(num_tokens - hit, tokens, shard.page_pool.get_num_free_pages())
            for hit, tokens, shard in zip(hits, waiting, self.shards, strict=True)
        ]
        return index("the shard of placement", self.placement(loads), self.num_shards, "POOL-12")

    def get_junction(self, request: EngineRequest) -> int:
        """The junction of a request on its shard, or on the one to which it comes (RET-2)."""
        return self.shards[self._number_of(request)].get_junction(request)

    def allocate_slots(
        self,
        request: EngineRequest,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_pages: CachePages | None = None,
        num_lookahead_tokens: int = 0,
        delay_cache_pages: bool = False,
    ) -> CachePages | None:
        """Allocates slots for new tokens of a request on its shard; arguments as of `CacheManager.allocate_slots`.

        A request that is not live is admitted on the shard of its computed pages; without any, on that of the
        placement. If it doesn't fit there it is on no shard.

        Raises:
            ValueError: as in `CacheManager.allocate_slots`; or computed pages are of several shards (POOL-12).
        """
        number = self.shard_of(read_request_id(request))
        if number is None:
            number = self._shard_for(request, new_computed_pages)
        return self.shards[number].allocate_slots(
            request,
            num_new_tokens,
            num_new_computed_tokens,
            new_computed_pages,
            num_lookahead_tokens,
            delay_cache_pages,
        )

    def _shard_for(self, request: EngineRequest, given: CachePages | None) -> int:
        """The number of the shard on which to admit a request with these computed pages."""
        if given is not None and not isinstance(given, CachePages):
            raise refusal(TypeError, "R1", f"new_computed_pages={given!r} must be CachePages")
        pools = {pool for pages in given.pages for pool in pages.pools} if given is not None else set()
        if not pools:
            return self._number_of(request)
        owners = [number for number, shard in enumerate(self.shards) if shard.page_pool in pools]
        if len(pools) != 1 or not owners:
            raise refusal(ValueError, "POOL-12", "new_computed_pages are not of one shard")
        return owners[0]

    def cache_pages(self, request: EngineRequest, num_computed_tokens: int) -> None:
        """Publishes a live request's full pages on its shard; see `CacheManager.cache_pages` (MAN-3)."""
        self._home(read_request_id(request)).cache_pages(request, num_computed_tokens)

    def swap_out(self, request: EngineRequest) -> SwapPlan | None:
        """Plans the copies of a live request to its shard's host memory; see `CacheManager.swap_out` (SWAP-1)."""
        number = self.shard_of(read_request_id(request)) or 0
        return self._renumbered(number, self.shards[number].swap_out(request))

    def swap_in(self, request: EngineRequest) -> SwapPlan | None:
        """Plans the copies of a swapped-out request back to its shard; see `CacheManager.swap_in` (SWAP-1)."""
        number = self.shard_of(read_request_id(request)) or 0
        return self._renumbered(number, self.shards[number].swap_in(request))

    def _renumbered(self, shard: int, plan: SwapPlan | None) -> SwapPlan | None:
        """A shard's plan with an id that no other shard's plan has."""
        return None if plan is None else plan._replace(swap_id=plan.swap_id * self.num_shards + shard)

    def swap_done(self, swap_id: int) -> None:
        """Declares the copies of a plan ended, by its id here; see `CacheManager.swap_done` (SWAP-1)."""
        number = integer("swap_id", swap_id, minimum=None)
        own, shard = divmod(number, self.num_shards)
        if own not in self.shards[shard].coordinator.swapped.flights:
            raise refusal(ValueError, "SWAP-1", f"swap_id={number} is no plan whose copies are under way")
        self.shards[shard].swap_done(own)

    def get_host_page_ids(self, request_id: str) -> tuple[list[int], ...]:
        """The host pages of a request in its shard's host memory; see `CacheManager.get_host_page_ids`."""
        return self._home(request_id).get_host_page_ids(request_id)

    def free(self, request: EngineRequest, num_written: int | None = None) -> list[str]:
        """Frees a request's pages on its shard; see `CacheManager.free` (MAN-4, MAN-5)."""
        return self._home(read_request_id(request)).free(request, num_written)

    def free_page_hashes(self, request: EngineRequest) -> None:
        """Drops what the shards recorded of a request. Call it when it is finished, not when it is preempted."""
        for shard in self.shards:
            shard.free_page_hashes(request)

    def take_page_copies(self, shard: int) -> list[PageCopy | PartCopy]:
        """A shard's copies recorded since its last call, to be run in order before its step (MAN-13, MAN-17)."""
        return self.shards[index("shard", shard, len(self.shards), "POOL-12")].take_page_copies()

    def reset_prefix_cache(self) -> bool:
        """Forgets every shard's cached prefixes, if no shard has a page in use or a request swapped out (POOL-9).

        Returns:
            True if it did.
        """
        if self.usage > 0 or not all(shard.coordinator.swapped.is_idle for shard in self.shards):
            return False
        for shard in self.shards:
            shard.reset_prefix_cache()
        return True

    def check(self) -> None:
        """Verifies every shard, and that each request is on at most one of them.

        Raises:
            AssertionError: a check fails; the message shows which.
        """
        for shard in self.shards:
            shard.check()
        live = [{*shard.coordinator.live.slot_of, *shard.coordinator.swapped.by_id} for shard in self.shards]
        assert len(set().union(*live)) == sum(map(len, live)), f"POOL-12: a request lives on two shards: {live}"
        roots = {shard.page_pool.none_hash for shard in self.shards}
        assert len(roots) == 1, f"POOL-12: {len(roots)} roots of keys"
