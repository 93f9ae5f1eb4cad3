"""Faults of swapping: pages given back while they are copied, hits copied over, dead slots that leave the device."""

from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from .patching import backend_with, derived, with_manager
from .registry import FORESEEN, OWN, seeded

__all__: list[str] = []


@seeded(8, "SWAP-1", "swap", also=("R2", "POOL-2", "POOL-3", "MAN-2", "MAN-5"), by="CacheManager.swap_out")
def freed_before_the_fence(fast: ModuleType, self: Any, request: Any) -> Any:
    """What is swapped out is free at once: another request writes to pages while they are copied (as vLLM 45357)."""
    plan = fast.CacheManager.swap_out(self, request)
    if plan is not None:
        flight = self.coordinator.swapped.flights[plan.swap_id]
        for pages in flight.pages:
            self.page_pool.release(pages[pages != 0][::-1])
        flight.pages = [np.empty(0, np.int64) for _ in flight.pages]
    return plan


@seeded(FORESEEN, "SWAP-1", "swap", by="CacheManager.swap_in")
def hits_copied_over(fast: ModuleType, self: Any, request: Any) -> Any:
    """A request that comes back is copied whole: pages that it hit, which others read meanwhile, are written again."""
    plan = fast.CacheManager.swap_in(self, request)
    if plan is None:
        return None
    flight = self.coordinator.swapped.flights[plan.swap_id]
    firsts = flight.swapped.first_places
    whole = [own[first:] for own, first in zip(flight.pages, firsts, strict=True)]
    return plan._replace(copies=self.swaps.copies(flight.swapped, whole))


@seeded(FORESEEN, "SWAP-1", "swap", by="CacheManager.swap_out")
def dead_slots_leave(fast: ModuleType, self: Any, request: Any) -> Any:
    """Pages go to the host whole: what is left in the last one's dead slots, perhaps another tenant's, goes along."""
    plan = fast.CacheManager.swap_out(self, request)
    if plan is None:
        return None
    sizes = [group.rule.page_size for group in self.coordinator.groups]
    return plan._replace(copies=tuple(copy._replace(num_slots=sizes[copy.group_id]) for copy in plan.copies))


@seeded(FORESEEN, "SWAP-1", "swap", by="CacheManager.swap_in")
def host_freed_before_the_fence(fast: ModuleType, self: Any, request: Any) -> Any:
    """Host pages are free as soon as a way back is planned: the next request goes onto what is still being read."""
    plan = fast.CacheManager.swap_in(self, request)
    if plan is not None:
        swapped = self.coordinator.swapped.by_id[request.request_id]
        self.coordinator.swapped.free_host_pages(swapped)
        swapped.host_pages = [own[:0] for own in swapped.host_pages]
    return plan


@seeded(FORESEEN, "SWAP-1", "swap", by="swaps.abandon")
def aborted_on_the_host(fast: ModuleType, self: Any, request: Any, request_id: str) -> None:
    """A request that is aborted while it is swapped out keeps its host pages for ever."""
    swapped = self.coordinator.swapped.by_id.get(request_id)
    if swapped is not None and swapped.request is request and swapped.swap_id < 0:
        swapped.host_pages = [own[:0] for own in swapped.host_pages]
    fast.manager.swaps.Swaps.abandon(self, request, request_id)


@seeded(OWN, "MAN-14", "swap")
def back_in_part_of_a_page(fast: ModuleType) -> SimpleNamespace:
    """A manager refuses its own snapshot: what came back is noted by full pages, read as hits of one length."""

    def restore(cls: Any, snapshot: Any, *args: Any, **options: Any) -> Any:
        manager = fast.CacheManager.restore.__func__(cls, snapshot, *args, **options)
        sizes = [group.rule.page_size for group in manager.coordinator.groups]
        for request in snapshot["requests"]:
            hits = [group["num_hits"] * size for group, size in zip(request["groups"], sizes, strict=True)]
            if len(set(hits)) > 1:
                raise ValueError(f"request {request['id']!r}: hits of {hits} tokens")
        return manager

    return with_manager(fast, restore=classmethod(restore))


@seeded(OWN, "SWAP-1", "shards", also=("POOL-12", "R1"), by="ShardedCacheManager.free")
def freed_on_the_first_shard(_: ModuleType, self: Any, request: Any, num_written: Any = None) -> Any:
    """A shard loses host pages: a request that is swapped out is on no shard, so that the first shard frees it."""
    name = getattr(request, "request_id", None)
    live = (shard for shard in self.shards if name in shard.coordinator.live.slot_of)
    return next(live, self.shards[0]).free(request, num_written)


@seeded(FORESEEN, "POOL-12", "shards", also=("R1",))
def waiting_tokens_do_not_count(fast: ModuleType) -> SimpleNamespace:
    """All streams of a prompt come to the shard that has it cached, however many tokens wait there."""

    def place(self: Any, request: Any) -> int:
        hits = [shard.get_num_hit_tokens(request) for shard in self.shards]
        return int(hits.index(max(hits)))

    made = derived(fast.ShardedCacheManager, {"_place": place})
    return backend_with(fast, ShardedCacheManager=made)


@seeded(FORESEEN, "POOL-9", "shards", also=("POOL-12",), by="ShardedCacheManager.reset_prefix_cache")
def shards_forget_who_is_away(_: ModuleType, self: Any) -> bool:
    """Prefixes are forgotten where no page is in use: only the shard of a request in host memory keeps its own."""
    if self.usage > 0:
        return False
    for shard in self.shards:
        shard.reset_prefix_cache()
    return True


@seeded(FORESEEN, "SWAP-2", "cache", by="export_pages")
def pages_exported_whole(fast: ModuleType, pages: Any, page_ids: Any, num_slots: Any, **options: Any) -> Any:
    """Pages leave the device as they are: with them goes what an earlier tenant left behind the last live slot."""
    whole = np.full_like(num_slots, np.iinfo(np.int32).max) if isinstance(num_slots, np.ndarray) else num_slots
    return fast.export_pages(pages, page_ids, whole, **options)


@seeded(FORESEEN, "SWAP-2", "sharded", by="RaggedPagesCache.import_pages")
def first_rows_of_all_shards(fast: ModuleType, self: Any, page_ids: Any, block: Any) -> Any:
    """Of a block with more rows than are written the first are taken: of all shards together, not of each."""
    count = self.metadata.num_page_shards * fast.cache.page_copies.padded_size(np.shape(page_ids)[-1])
    return fast.RaggedPagesCache.import_pages(self, page_ids, [rows[:count] for rows in block])


@seeded(FORESEEN, "SWAP-2", "soak", by="import_prefix")
def imported_in_order(
    fast: ModuleType, manager: Any, request: Any, caches: Any, model: Any, exported: Any
) -> list[Any] | None:
    """The first pages of a file are written for those that lack: wrong where a page before them is cached still."""

    def receive_pages(*arguments: Any) -> Any:
        plan = manager.receive_pages(*arguments)
        if plan is None:
            return None
        starts = np.cumsum([0, *map(len, exported.header["keys"])]).tolist()
        next_rows = [iter(range(start, starts[-1])) for start in starts]
        return plan._replace(copies=[copy._replace(host_page=next(next_rows[copy.group_id])) for copy in plan.copies])

    shown = ("page_pool", "kv_cache_groups", "num_kv_cache_groups", "coordinator", "swap_done")
    planning = SimpleNamespace(receive_pages=receive_pages, **{name: getattr(manager, name) for name in shown})
    imported: list[Any] | None = fast.import_prefix(planning, request, caches, model, exported)
    return imported


@seeded(FORESEEN, "SWAP-2", "soak", by="import_prefix")
def another_prefix_counts_as_no_room(fast: ModuleType, *arguments: Any) -> list[Any] | None:
    """That a file is of other tokens than the request's is told as if too few pages were free: it is tried for ever."""
    try:
        imported: list[Any] | None = fast.import_prefix(*arguments)
    except ValueError as error:
        if "its keys are not those" not in str(error):
            raise
        return None
    return imported


@seeded(FORESEEN, "SWAP-2", "soak", by="import_prefix")
def an_end_is_not_imported(fast: ModuleType, manager: Any, request: Any, *more: Any) -> list[Any] | None:
    """A file is refused for a request that ends with its prefix, as if a token had to be left to be computed."""
    if request.num_tokens <= more[-1].header["num_tokens"]:
        raise ValueError(f"request: of its {request.num_tokens} tokens none is left to be computed")
    imported: list[Any] | None = fast.import_prefix(manager, request, *more)
    return imported


@seeded(FORESEEN, "MAN-4", "swap", by="coordinator.swapped.withdraw")
def what_is_received_is_to_be_scheduled_again(fast: ModuleType, self: Any, pages: Any) -> list[str]:
    """A request whose pages come from elsewhere is named as a holder of what is withdrawn: nobody scheduled it yet."""
    received = [flight.swapped for flight in self.flights.values() if flight.swapped.is_received]
    for swapped in received:
        swapped.is_received = False
    try:
        named: list[str] = fast.groups.swapped_requests.SwappedRequests.withdraw(self, pages)
    finally:
        for swapped in received:
            swapped.is_received = True
    return named


@seeded(FORESEEN, "SEC-2", "secrets", by="CacheManager.swap_in")
def refusal_shows_tokens(fast: ModuleType, self: Any, request: Any) -> Any:
    """The refusal to take back a request that changed in host memory shows its first tokens."""
    try:
        return fast.CacheManager.swap_in(self, request)
    except ValueError as error:
        if "changed in host memory" not in str(error):
            raise
        raise ValueError(f"{error}: {request.all_token_ids[:4].tolist()}") from None
