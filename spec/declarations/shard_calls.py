"""POOL-12: the calls of a manager of shards, declared once: each is made on the manager of a request's shard.

Which shard that is, what belongs to it, and what is true of all shards together is written in each package, in
``manager/sharded_manager.py``.
"""

import os
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, TypeVar, Unpack

from .events import PageCopy, PartCopy
from .groups import CacheGroupSpec
from .manager_calls import ManagerCalls
from .options import ManagerOptions, takes_options
from .placement import Placement, read_placement
from .reading import index, integer, listed
from .requests import EngineRequest
from .showing import ShownShards
from .swaps import SwapPlan

__all__ = ["ShardCalls"]

Pages = TypeVar("Pages")


class ShardCalls(ShownShards, Generic[Pages]):
    """What an engine calls of a manager of shards; each package's `ShardedCacheManager` has the shards.

    Attributes:
        num_shards: the number of shards.
        shards: the shards' managers.
        placement: the argument.
    """

    shards: tuple[ManagerCalls[Pages, Any, Any, Any], ...]
    _of_a_shard: ClassVar[type[Any]]
    """The class of a shard's manager."""

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
        self.num_shards = integer("num_shards", num_shards, minimum=1, clause="POOL-12", below=2**31)
        self.placement = read_placement(placement)
        if options["hash_seed"] is None:
            options["hash_seed"] = os.urandom(32)
        groups = listed("kv_cache_groups", kv_cache_groups)
        self.shards = tuple(
            self._of_a_shard(num_pages, groups, max_model_len, enable_caching, use_eagle, **options)
            for _ in range(self.num_shards)
        )

    # -- The shard of a request -------------------------------------------------------------------

    def shard_of(self, request_id: str) -> int | None:
        """The shard on which a request is live, swapped out or being swapped; None if it is on none. O(shards)."""
        raise NotImplementedError

    def _own_number(self, request: EngineRequest) -> int | None:
        """The number of the shard that a request is on, whose id is read (R1)."""
        raise NotImplementedError

    def _place(self, request: EngineRequest) -> int:
        """The number of the shard to which a request comes that is on none.

        Raises:
            IndexError: the placement names no shard.
            TypeError: it gives no number.
        """
        raise NotImplementedError

    def _number_of_pages(self, pages: Pages | None) -> int | None:
        """The number of the shard that pages belong to; None if there are none (R1)."""
        raise NotImplementedError

    def _number(self, request: EngineRequest) -> int:
        """The number of the shard that a request is on, or else of the one to which it comes."""
        own = self._own_number(request)
        return self._place(request) if own is None else own

    def _home(self, request: EngineRequest) -> ManagerCalls[Pages, Any, Any, Any]:
        """The manager of a request's shard; if it is on none, the first, which refuses what needs a live request."""
        return self.shards[self._own_number(request) or 0]

    # -- Finding and allocating -------------------------------------------------------------------

    def create_empty_page_list(self) -> Pages:
        """An empty page list for each cache group."""
        return self.shards[0].create_empty_page_list()

    def get_computed_pages(self, request: EngineRequest) -> tuple[Pages, int]:
        """The longest cached prefix of a request on its own shard if it is on one, else on the one to which it comes.

        See `CacheManager.get_computed_pages`. The request is remembered on that shard only. A request that is on no
        shard is looked up on each.
        """
        return self.shards[self._number(request)].get_computed_pages(request)

    def get_num_hit_tokens(self, request: EngineRequest) -> int:
        """How many tokens `get_computed_pages` would find on that shard; see `CacheManager`."""
        return self.shards[self._number(request)].get_num_hit_tokens(request)

    def get_junction(self, request: EngineRequest) -> int:
        """The junction of a request on its shard, or on the one to which it comes; see `CacheManager`."""
        return self.shards[self._number(request)].get_junction(request)

    def allocate_slots(
        self,
        request: EngineRequest,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_pages: Pages | None = None,
        num_lookahead_tokens: int = 0,
        delay_cache_pages: bool = False,
    ) -> Pages | None:
        """Gives a request slots on its shard; see `CacheManager.allocate_slots`.

        A new request is admitted on the shard of ``new_computed_pages``, or without these on that of the placement. If
        it doesn't fit there, it is on no shard.

        Raises:
            ValueError: the pages belong to no shard, or to several.
        """
        number = self._own_number(request)
        if number is None:
            number = self._number_of_pages(new_computed_pages)
        if number is None:
            number = self._place(request)
        return self.shards[number].allocate_slots(
            request,
            num_new_tokens,
            num_new_computed_tokens,
            new_computed_pages,
            num_lookahead_tokens,
            delay_cache_pages,
        )

    def cache_pages(self, request: EngineRequest, num_computed_tokens: int) -> None:
        """Publishes a live request's full pages on its shard; see `CacheManager.cache_pages` (MAN-3)."""
        self._home(request).cache_pages(request, num_computed_tokens)

    def take_page_copies(self, shard: int) -> list[PageCopy | PartCopy]:
        """The copies of pages queued on a shard; see `CacheManager.take_page_copies` (MAN-13, MAN-17).

        Args:
            shard: its number.
        """
        return self.shards[index("shard", shard, self.num_shards, "POOL-12")].take_page_copies()

    # -- Host memory ------------------------------------------------------------------------------

    def swap_out(self, request: EngineRequest) -> SwapPlan | None:
        """Plans the copies of a live request to its shard's host memory; see `CacheManager.swap_out` (SWAP-1)."""
        number = self._own_number(request) or 0
        return self._renumbered(number, self.shards[number].swap_out(request))

    def swap_in(self, request: EngineRequest) -> SwapPlan | None:
        """Plans the copies of a request back to its shard's device; see `CacheManager.swap_in` (SWAP-1)."""
        number = self._own_number(request) or 0
        return self._renumbered(number, self.shards[number].swap_in(request))

    def _renumbered(self, shard: int, plan: SwapPlan | None) -> SwapPlan | None:
        """A shard's plan with the id that it has here."""
        raise NotImplementedError

    def swap_done(self, swap_id: int) -> None:
        """Declares the copies of a plan of any shard ended; see `CacheManager.swap_done` (SWAP-1).

        Args:
            swap_id: the plan's id, as `swap_out` or `swap_in` gave it.
        """
        raise NotImplementedError

    def get_host_page_ids(self, request_id: str) -> tuple[list[int], ...]:
        """The ids of a request's host pages on its shard; see `CacheManager.get_host_page_ids`."""
        return self.shards[self.shard_of(request_id) or 0].get_host_page_ids(request_id)

    # -- Freeing ----------------------------------------------------------------------------------

    def free(self, request: EngineRequest, num_written: int | None = None) -> list[str]:
        """Frees a request's pages on its shard; see `CacheManager.free` (MAN-4, MAN-5)."""
        return self._home(request).free(request, num_written)

    def free_page_hashes(self, request: EngineRequest) -> None:
        """Drops the request's keys on every shard; see `CacheManager.free_page_hashes`."""
        for shard in self.shards:
            shard.free_page_hashes(request)

    def reset_prefix_cache(self) -> bool:
        """Drops all hashes on every shard, if on none a page is in use or a request swapped out (POOL-9).

        Returns:
            True if it did, else False: then nothing changed.
        """
        raise NotImplementedError

    # -- Looking ----------------------------------------------------------------------------------

    @property
    def usage(self) -> float:
        """The share of all shards' pages in use, from 0.0 to 1.0; null pages count on neither side (POOL-10)."""
        raise NotImplementedError

    def get_page_ids(self, request_id: str) -> tuple[list[int], ...]:
        """The ids of a request's pages on its shard, a list for each group; empty lists if it is not live."""
        return self.shards[self.shard_of(request_id) or 0].get_page_ids(request_id)

    def get_num_common_prefix_pages(self, request: EngineRequest, num_scheduled_requests: int) -> list[int]:
        """How many leading pages all running requests of a request's shard share, for each group (MAN-10).

        Args:
            request: a live request whose status is ``RUNNING``.
            num_scheduled_requests: how many requests are running on its shard.
        """
        return self._home(request).get_num_common_prefix_pages(request, num_scheduled_requests)
