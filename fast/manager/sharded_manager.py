"""POOL-12: a cache manager over the shards of data parallelism, each with pages of its own.

No state is kept here beside the shards: a request is on the shard where it is live, and pages belong to the shard of
their pool.
"""

from kvproof.spec.declarations import EngineRequest, SwapPlan
from kvproof.spec.declarations.placement import ShardLoad
from kvproof.spec.declarations.shard_calls import ShardCalls

from ..groups.cache_pages import CachePages
from ..reading.arguments import index, integer, refusal
from ..reading.request_reading import read_id, read_request_id
from .cache_manager import CacheManager

__all__ = ["ShardedCacheManager"]


class ShardedCacheManager(ShardCalls[CachePages]):
    """A `CacheManager` for each shard, each with a pool, a null page and page ids of its own.

    A request is admitted on the shard that the placement names. It stays there, also while it is swapped out: its host
    pages are in that shard's host memory. Events, counters, pins, priorities, batched steps and received pages have no
    methods here: call them on ``shards[i]``. Its calls are declared in `ShardCalls`. Not thread-safe: calls come from
    one thread at a time.

    The plan with the id k on shard i has the id ``k * num_shards + i`` here, so that `swap_done` needs no shard.

    Args:
        num_shards: how many shards.
        num_pages: pages of each shard's pool, the null page included.
        kv_cache_groups: the cache groups, the same in every shard; see `CacheManager`, as for the arguments below.
        max_model_len: the most tokens that a request can have.
        enable_caching: whether prefixes are cached and found.
        use_eagle: whether an Eagle draft model runs.
        placement: which shard a request comes to, see `Placement`. It is asked by each call about a request that is on
            no shard, unless the call brings pages of one.
        options: see `ManagerOptions`; they are each shard's, with one seed for all.
    """

    shards: tuple[CacheManager, ...]
    _of_a_shard = CacheManager

    # -- The shard of a request -------------------------------------------------------------------

    def shard_of(self, request_id: str) -> int | None:
        """The shard on which a request is live, swapped out or being swapped; None if it is on none."""
        wanted = read_id(request_id)
        for number, shard in enumerate(self.shards):
            if wanted in shard.coordinator.live.slot_of or wanted in shard.coordinator.swapped.by_id:
                return number
        return None

    def _own_number(self, request: EngineRequest) -> int | None:
        return self.shard_of(read_request_id(request))

    def _place(self, request: EngineRequest) -> int:
        hits = [shard.get_num_hit_tokens(request) for shard in self.shards]
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

    def _number_of_pages(self, pages: CachePages | None) -> int | None:
        if pages is not None and not isinstance(pages, CachePages):
            raise refusal(TypeError, "R1", f"new_computed_pages={pages!r} must be CachePages")
        pools = {pool for own in pages.pages for pool in own.pools} if pages is not None else set()
        if not pools:
            return None
        owners = [number for number, shard in enumerate(self.shards) if shard.page_pool in pools]
        if len(pools) != 1 or not owners:
            raise refusal(ValueError, "POOL-12", "new_computed_pages are not of one shard")
        return owners[0]

    # -- All shards together ----------------------------------------------------------------------

    def _renumbered(self, shard: int, plan: SwapPlan | None) -> SwapPlan | None:
        return None if plan is None else plan._replace(swap_id=plan.swap_id * self.num_shards + shard)

    def swap_done(self, swap_id: int) -> None:
        """Declares the copies of a plan of any shard ended; see `CacheManager.swap_done` (SWAP-1)."""
        number = integer("swap_id", swap_id, minimum=None)
        own, shard = divmod(number, self.num_shards)
        if own not in self.shards[shard].coordinator.swapped.flights:
            raise refusal(ValueError, "SWAP-1", f"swap_id={number} is no plan whose copies are under way")
        self.shards[shard].swap_done(own)

    def reset_prefix_cache(self) -> bool:
        """Drops all hashes, if on no shard a page is in use or a request swapped out (POOL-9). Whether it did."""
        if self.usage > 0 or not all(shard.coordinator.swapped.is_idle for shard in self.shards):
            return False
        for shard in self.shards:
            shard.reset_prefix_cache()
        return True

    @property
    def usage(self) -> float:
        """The share of all shards' pages in use, from 0.0 to 1.0; null pages count on neither side (POOL-10)."""
        pools = [shard.page_pool for shard in self.shards]
        pages = sum(pool.num_pages - 1 for pool in pools)
        return (pages - sum(pool.get_num_free_pages() for pool in pools)) / pages

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
