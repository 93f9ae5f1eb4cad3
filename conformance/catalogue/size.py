"""Faults that need size: of requests, lists, lives or batches of events. The worlds of most machines are small."""

from types import ModuleType, SimpleNamespace
from typing import Any

from .patching import backend_with, derived, with_part, with_pools
from .registry import FORESEEN, seeded

__all__: list[str] = []


def _with_groups(fast: ModuleType, **members: Any) -> SimpleNamespace:
    """A backend whose managers' groups have some members replaced."""

    def build(self: Any, *args: Any, **options: Any) -> None:
        fast.CacheManager.__init__(self, *args, **options)
        for group in self.coordinator.groups:
            group.__class__ = derived(type(group), {"__slots__": (), **members})

    return backend_with(fast, CacheManager=derived(fast.CacheManager, {"__init__": build}))


def _spoilt(thing: Any, **members: Any) -> None:
    """Replaces some members of an object of a pool: it stays, its class changes."""
    thing.__class__ = derived(type(thing), {"__slots__": (), **members})


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

    return with_pools(fast, lambda pool: _spoilt(pool.counts, add=add, add_mentioned=add_mentioned))


@seeded(FORESEEN, "MAN-4", "soak")
def holders_among_the_first_64(fast: ModuleType) -> SimpleNamespace:
    """Who holds withdrawn pages is kept in a mask of 64 bits: requests in later slots are not told of."""

    def unwritten(self: Any, *where: Any) -> Any:
        lost, holders = fast.groups.publishing.Publisher.unwritten(self, *where)
        return lost, holders and {slot for slot in holders if slot < 64}

    return with_part(fast, "coordinator.publisher", unwritten=unwritten)


@seeded(FORESEEN, "MAN-10", "soak")
def common_pages_end_at_32(fast: ModuleType) -> SimpleNamespace:
    """Pages that all running requests share are counted in one block of 32 columns of the page table."""

    def common_pages(self: Any, slot: int, others: Any) -> int:
        count: int = fast.groups.cache_group.CacheGroup.common_pages(self, slot, others)
        return min(count, 32)

    return _with_groups(fast, common_pages=common_pages)


@seeded(FORESEEN, "MAN-1", "soak", also=("MAN-2", "MAN-3", "MAN-7", "MAN-14"))
def hits_end_at_512_pages(fast: ModuleType) -> SimpleNamespace:
    """A look-up goes 512 pages deep at most, so that long prompts are computed again from there on."""

    def walk(self: Any, tree: Any, tokens: Any, segments: Any, limit: int) -> Any:
        return fast.index.prefix_index.PrefixIndex.walk(self, tree, tokens, segments, min(limit, 512))

    return with_pools(fast, lambda pool: _spoilt(pool.index, walk=walk))


@seeded(FORESEEN, "MAN-12", "soak")
def events_past_512_are_dropped(fast: ModuleType) -> SimpleNamespace:
    """Events wait in a ring of 512: where more happen between two calls, the oldest are lost without a word."""

    def take_events(self: Any) -> Any:
        return fast.pool.pool_log.PoolLog.take_events(self)[-512:]

    return with_pools(fast, lambda pool: _spoilt(pool.log, take_events=take_events))
