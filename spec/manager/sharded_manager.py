"""POOL-12: the cache manager under data parallelism: a `CacheManager` for each shard."""

from ..declarations import EngineRequest, SwapPlan
from ..declarations.placement import ShardLoad
from ..declarations.shard_calls import ShardCalls
from ..groups.cache_pages import CachePages
from ..groups.live_requests import read_id, request_id_of
from ..reading.arguments import index, integer, refusal
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
        return next((number for number, shard in enumerate(self.shards) if wanted in _ids_on(shard)), None)

    def _own_number(self, request: EngineRequest) -> int | None:
        return self.shard_of(request_id_of(request))

    def _place(self, request: EngineRequest) -> int:
        loads = [
            ShardLoad(
                request.num_tokens - shard.get_num_hit_tokens(request),
                shard.coordinator.live.num_waiting,
                shard.page_pool.get_num_free_pages(),
            )
            for shard in self.shards
        ]
        if self.placement == "cost":
            return min(
                range(self.num_shards),
                key=lambda number: (loads[number].num_to_compute + loads[number].num_waiting, number),
            )
        if self.placement == "prefix":
            return min(
                range(self.num_shards),
                key=lambda number: (loads[number].num_to_compute, -loads[number].num_free_pages, number),
            )
        return index("the shard of placement", self.placement(loads), self.num_shards, "POOL-12")

    def _number_of_pages(self, pages: CachePages | None) -> int | None:
        if not isinstance(pages, CachePages) or not any(pages.pages):
            return None
        pools = {page.pool for group in pages.pages for page in group}
        owners = [number for number, shard in enumerate(self.shards) if shard.page_pool in pools]
        if len(owners) != 1 or len(pools) != 1:
            raise refusal(ValueError, "POOL-12", f"new_computed_pages={pages!r} are not of one shard")
        return owners[0]

    # -- All shards together ----------------------------------------------------------------------

    def _renumbered(self, shard: int, plan: SwapPlan | None) -> SwapPlan | None:
        return None if plan is None else plan._replace(swap_id=plan.swap_id * self.num_shards + shard)

    def swap_done(self, swap_id: int) -> None:
        """Declares the copies of a plan of any shard ended; see `CacheManager.swap_done` (SWAP-1)."""
        number = integer("swap_id", swap_id, minimum=None)
        own, shard = divmod(number, self.num_shards)
        if own not in self.shards[shard].coordinator.swapped.flights:
            raise refusal(ValueError, "SWAP-1", f"swap_id={number} is no plan whose copies are to end")
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
        num_pages = sum(shard.num_pages - 1 for shard in self.shards)
        return (num_pages - sum(shard.page_pool.get_num_free_pages() for shard in self.shards)) / num_pages

    def check(self) -> None:
        """Verifies every shard's state, and that no request is on two shards.

        Raises:
            AssertionError: something does not hold; the message shows the shard's state.
        """
        for shard in self.shards:
            shard.check()
        live = [request_id for shard in self.shards for request_id in _ids_on(shard)]
        assert len(set(live)) == len(live), f"POOL-12: a request lives on two shards: {live}"
        roots = {shard.page_pool.none_hash for shard in self.shards}
        assert len(roots) == 1, "HASH-1: the shards' keys have different roots"


def _ids_on(shard: CacheManager) -> list[str]:
    """The ids of the requests that are live on a shard, swapped out or being swapped."""
    return [*shard.coordinator.live.by_id, *shard.coordinator.swapped.by_id]
