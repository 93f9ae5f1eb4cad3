"""MAN: the cache manager: which pages a request holds, from its first look-up until it is freed."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..declarations import CacheGroupSpec, EngineRequest, ManagerOptions
from ..declarations.codec import Part
from ..declarations.manager_calls import ManagerCalls
from ..groups.cache_pages import CachePages
from ..groups.coordinator import CacheCoordinator, get_kv_cache_coordinator
from ..groups.live_requests import request_id_of
from ..pool.page_pool import PagePool
from ..step.slot_batch import SlotBatch
from ..table.multi_group_table import MultiGroupPageTable
from .prefixes import PinnedPrefix, Prefixes
from .steps import Steps
from .swaps import Swaps

__all__ = ["CacheManager", "CachePages", "PinnedPrefix", "SlotBatch"]


class CacheManager(ManagerCalls[CachePages, PinnedPrefix, MultiGroupPageTable, SlotBatch]):
    """Gives requests their slots: finds cached prefixes, allocates, publishes full pages, frees.

    Its calls are declared in `ManagerCalls`, which hands each to the part that carries it out. Not thread-safe: calls
    come from one thread at a time.

    Args:
        num_pages: pages of the pool, the null page included.
        kv_cache_groups: the cache groups, of any kinds and page sizes (MAN-7); none turns caching off.
        max_model_len: the most tokens that a request can have.
        enable_caching: whether prefixes are cached and found.
        use_eagle: whether an Eagle draft model runs, in the groups that are flagged, or in all of attention if
            none is (MAN-9).
        options: see `ManagerOptions`.
    """

    page_pool: PagePool
    coordinator: CacheCoordinator
    prefixes: Prefixes
    swaps: Swaps
    steps: Steps

    def _make_parts(
        self, num_pages: int, groups: Sequence[CacheGroupSpec], enable_caching: bool, options: ManagerOptions
    ) -> None:
        self.coordinator = get_kv_cache_coordinator(
            num_pages, groups, self.max_model_len, self.use_eagle, enable_caching, **options
        )
        self.page_pool = self.coordinator.page_pool
        self.prefixes = Prefixes(self.coordinator)
        self.swaps = Swaps(self.coordinator, self.prefixes)
        self.steps = Steps(self.coordinator, self.prefixes, self.swaps)

    # -- Snapshots (MAN-14) -----------------------------------------------------------------------

    _read_id = staticmethod(request_id_of)

    def _state(self) -> dict[str, Any]:
        coordinator = self.coordinator.state(self.prefixes.pinned_pages)
        return {**self.page_pool.state(), **coordinator, **self.prefixes.state()}

    def _restore(self, parts: Mapping[str, Part], objects: Mapping[str, EngineRequest]) -> None:
        pool, coordinator, prefixes = self.page_pool, self.coordinator, self.prefixes
        pool.restore_cached(parts, coordinator.cached_sizes)
        coordinator.restore(parts, objects)
        prefixes.restore(parts, objects)
        pool.restore_held(parts, coordinator.held_pages, prefixes.pinned_pages)
        pool.restore_log(parts, coordinator.cached_sizes)
