"""Faults that need size: of requests, lists, lives or batches of events. The worlds of most machines are small."""

from types import ModuleType, SimpleNamespace
from typing import Any

from .patching import with_part
from .registry import FORESEEN, seeded

__all__: list[str] = []


@seeded(FORESEEN, "POOL-5", "soak", also=("POOL-2", "POOL-6", "MAN-2", "R1", "R2"))
def references_counted_in_a_byte(fast: ModuleType) -> SimpleNamespace:
    """A page's references are counted in eight bits: the 256th request that shares a prefix makes its pages free."""
    counts = fast.pool.ref_counts.RefCounts

    def add(self: Any, pages: Any) -> Any:
        free = counts.add(self, pages)
        self.of[pages] &= 255
        return free

    def add_mentioned(self: Any, pages: Any) -> Any:
        free = counts.add_mentioned(self, pages)
        self.of[pages] &= 255
        return free

    return with_part(fast, "page_pool.counts", add=add, add_mentioned=add_mentioned)


@seeded(FORESEEN, "MAN-4", "soak", by="coordinator.publisher.unwritten")
def holders_among_the_first_64(fast: ModuleType, self: Any, *where: Any) -> Any:
    """Who holds withdrawn pages is kept in a mask of 64 bits: requests in later slots are not told of."""
    lost, holders = fast.groups.publishing.Publisher.unwritten(self, *where)
    return lost, holders and {slot for slot in holders if slot < 64}


@seeded(FORESEEN, "MAN-10", "soak", by="group.common_pages")
def common_pages_end_at_32(fast: ModuleType, self: Any, slot: int, others: Any) -> int:
    """Pages that all running requests share are counted in one block of 32 columns of the page table."""
    count: int = fast.groups.cache_group.CacheGroup.common_pages(self, slot, others)
    return min(count, 32)


@seeded(FORESEEN, "MAN-1", "soak", also=("MAN-2", "MAN-3", "MAN-7", "MAN-14", "SWAP-1"), by="page_pool.index.walk")
def hits_end_at_512_pages(fast: ModuleType, self: Any, tree: Any, tokens: Any, segments: Any, limit: int) -> Any:
    """A look-up goes 512 pages deep at most, so that long prompts are computed again from there on."""
    return fast.index.prefix_index.PrefixIndex.walk(self, tree, tokens, segments, min(limit, 512))


@seeded(FORESEEN, "MAN-12", "soak", by="page_pool.log.take_events")
def events_past_512_are_dropped(fast: ModuleType, self: Any) -> Any:
    """Events wait in a ring of 512: where more happen between two calls, the oldest are lost without a word."""
    return fast.pool.pool_log.PoolLog.take_events(self)[-512:]
