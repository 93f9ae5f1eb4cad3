"""POOL-12: the cache manager under data parallelism: a `CacheManager` for each shard."""

import os
from collections.abc import Sequence
from typing import Unpack

from ..declarations import CacheGroupSpec, EngineRequest, ManagerOptions, PageCopy, PartCopy, SwapPlan, takes_options
from ..declarations.placement import Placement, ShardLoad, read_placement
from ..declarations.showing import ShownShards
from ..groups.cache_pages import CachePages
from ..groups.live_requests import read_id, request_id_of
from ..reading.arguments import index, integer, listed, refusal
from .cache_manager import CacheManager

__all__ = ["ShardedCacheManager"]


class ShardedCacheManager(ShownShards):
    """A `CacheManager` for each shard, each with a pool, a null page and page ids of its own.

    A request is admitted on the shard that the placement names. It stays there, also while it is swapped out: its host
    pages are in that shard's host memory. Events, counters, pins, priorities, batched steps and received pages have no
    methods here: call them on ``shards[i]``.

    The plan with the id k on shard i has the id ``k * num_shards + i`` here, so that `swap_done` needs no shard.

    Args:
        num_shards: how many shards.
        num_pages: pages of each shard's pool, the null page included.
        kv_cache_groups: see `CacheManager`, as for the others, each of which is every shard's.
        max_model_len: the most tokens that a request can have.
        enable_caching: whether prefixes are cached and found.
        use_eagle: whether an Eagle draft model runs.
        placement: which shard a request comes to, see `Placement`. It is asked by each call about a request that is on
            no shard, unless the call brings pages of one.
        options: see `ManagerOptions`; they are each shard's, with one seed for all.

    Attributes:
        shards: the shards' managers.
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
        if options["hash_seed"] is None:
            options["hash_seed"] = os.urandom(32)
        groups = listed("kv_cache_groups", kv_cache_groups)
        self.shards = tuple(
            CacheManager(num_pages, groups, max_model_len, enable_caching, use_eagle, **options)
            for _ in range(self.num_shards)
        )

    @property
    def usage(self) -> float:
        """The share of all shards' pages in use, from 0.0 to 1.0 (POOL-10)."""
        num_pages = sum(shard.num_pages - 1 for shard in self.shards)
        return (num_pages - sum(shard.page_pool.get_num_free_pages() for shard in self.shards)) / num_pages

    def create_empty_page_list(self) -> CachePages:
        """An empty page list for each cache group."""
        return self.shards[0].create_empty_page_list()

    def shard_of(self, request_id: str) -> int | None:
        """The shard on which a request is live, swapped out or being swapped; None if it is on none."""
        wanted = read_id(request_id)
        return next((number for number, shard in enumerate(self.shards) if wanted in _ids_on(shard)), None)

    def _home(self, request_id: str) -> CacheManager:
        """The manager of a request's shard; if it is on none, the first, which refuses what needs a live request."""
        return self.shards[self.shard_of(request_id) or 0]

    def _place(self, request: EngineRequest) -> int:
        """The number of the shard to which a request comes that is on none (POOL-12).

        Raises:
            IndexError: the placement names no shard.
            TypeError: it gives no number.
        """
        loads = [
            ShardLoad(
                request.num_tokens - shard.prefixes.look_up(request)[1],
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

    # -- Finding and allocating -------------------------------------------------------------------

    def get_computed_pages(self, request: EngineRequest) -> tuple[CachePages, int]:
        """The longest cached prefix of a request on its own shard if it is on one, else on the one to which it comes.

        See `CacheManager.get_computed_pages`. The request is remembered on that shard only.
        """
        return self._home_or_place(request).get_computed_pages(request)

    def _home_or_place(self, request: EngineRequest) -> CacheManager:
        number = self.shard_of(request_id_of(request))
        return self.shards[self._place(request) if number is None else number]

    def get_junction(self, request: EngineRequest) -> int:
        """The junction of a request on its shard, or on the one to which it comes; see `CacheManager`."""
        return self._home_or_place(request).get_junction(request)

    def allocate_slots(
        self,
        request: EngineRequest,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_pages: CachePages | None = None,
        num_lookahead_tokens: int = 0,
        delay_cache_pages: bool = False,
    ) -> CachePages | None:
        """Gives a request slots on its shard; see `CacheManager.allocate_slots`.

        A new request is admitted on the shard of ``new_computed_pages``, or without these on that of the placement.

        Raises:
            ValueError: the pages belong to no shard, or to several.
        """
        is_new = self.shard_of(request_id_of(request)) is None
        if is_new and isinstance(new_computed_pages, CachePages) and any(new_computed_pages.pages):
            shard = self._shard_of_pages(new_computed_pages)
        else:
            shard = self._home_or_place(request)
        return shard.allocate_slots(
            request,
            num_new_tokens,
            num_new_computed_tokens,
            new_computed_pages,
            num_lookahead_tokens,
            delay_cache_pages,
        )

    def _shard_of_pages(self, pages: CachePages) -> CacheManager:
        """The manager of the shard that pages belong to (R1)."""
        pools = {page.pool for group in pages.pages for page in group}
        owners = [shard for shard in self.shards if shard.page_pool in pools]
        if len(owners) != 1 or len(pools) != 1:
            raise refusal(ValueError, "POOL-12", f"new_computed_pages={pages!r} are not of one shard")
        return owners[0]

    def cache_pages(self, request: EngineRequest, num_computed_tokens: int) -> None:
        """See `CacheManager.cache_pages`."""
        self._home(request_id_of(request)).cache_pages(request, num_computed_tokens)

    def take_page_copies(self, shard: int) -> list[PageCopy | PartCopy]:
        """The copies of pages queued on a shard; see `CacheManager.take_page_copies` (MAN-13, MAN-17).

        Args:
            shard: its number.
        """
        return self.shards[index("shard", shard, self.num_shards, "POOL-12")].take_page_copies()

    # -- Host memory ------------------------------------------------------------------------------

    def swap_out(self, request: EngineRequest) -> SwapPlan | None:
        """Plans the copies of a live request to its shard's host memory; see `CacheManager.swap_out` (SWAP-1)."""
        number = self.shard_of(request_id_of(request)) or 0
        return self._numbered(number, self.shards[number].swap_out(request))

    def swap_in(self, request: EngineRequest) -> SwapPlan | None:
        """Plans the copies of a request back to its shard's device; see `CacheManager.swap_in` (SWAP-1)."""
        number = self.shard_of(request_id_of(request)) or 0
        return self._numbered(number, self.shards[number].swap_in(request))

    def _numbered(self, shard: int, plan: SwapPlan | None) -> SwapPlan | None:
        """A shard's plan with the id that it has here."""
        return None if plan is None else plan._replace(swap_id=plan.swap_id * self.num_shards + shard)

    def swap_done(self, swap_id: int) -> None:
        """The fence of a plan of any shard; see `CacheManager.swap_done` (SWAP-1).

        Args:
            swap_id: the plan's id, as `swap_out` or `swap_in` gave it.
        """
        number = integer("swap_id", swap_id, minimum=None)
        own, shard = divmod(number, self.num_shards)
        if own not in self.shards[shard].coordinator.swapped.flights:
            raise refusal(ValueError, "SWAP-1", f"swap_id={number} is no plan whose copies are to end")
        self.shards[shard].swap_done(own)

    def get_host_page_ids(self, request_id: str) -> tuple[list[int], ...]:
        """The ids of a request's host pages on its shard; see `CacheManager.get_host_page_ids`."""
        return self._home(request_id).get_host_page_ids(request_id)

    # -- Giving back ------------------------------------------------------------------------------

    def free(self, request: EngineRequest, num_written: int | None = None) -> list[str]:
        """See `CacheManager.free`."""
        return self._home(request_id_of(request)).free(request, num_written)

    def free_page_hashes(self, request: EngineRequest) -> None:
        """Drops the request's keys on every shard; see `CacheManager.free_page_hashes`."""
        for shard in self.shards:
            shard.free_page_hashes(request)

    def reset_prefix_cache(self) -> bool:
        """Drops all hashes on every shard, if on none a page is in use or a request swapped out (POOL-9).

        Returns:
            True if it did, else False: then nothing changed.
        """
        if self.usage > 0 or not all(shard.coordinator.swapped.is_idle for shard in self.shards):
            return False
        for shard in self.shards:
            shard.reset_prefix_cache()
        return True

    # -- Looking ----------------------------------------------------------------------------------

    def get_page_ids(self, request_id: str) -> tuple[list[int], ...]:
        """The ids of a request's pages on its shard, a list for each group; empty lists if it is not live."""
        return self._home(request_id).get_page_ids(request_id)

    def get_num_common_prefix_pages(self, request: EngineRequest, num_scheduled_requests: int) -> list[int]:
        """How many leading pages all running requests of a request's shard share, for each group (MAN-10).

        Args:
            request: a live request whose status is ``RUNNING``.
            num_scheduled_requests: how many requests are running on its shard.
        """
        return self._home(request_id_of(request)).get_num_common_prefix_pages(request, num_scheduled_requests)

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
