"""Seeded bugs of hits that end amid a page, and of the copies by which a request gets their last tokens (MAN-17)."""

from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from .patching import with_coordinator, with_part
from .registry import FORESEEN, OWN, seeded

__all__: list[str] = []


@seeded(FORESEEN, "MAN-17", "amid", by="CacheCoordinator.take_page_copies")
def the_last_slot_is_not_copied(fast: ModuleType, self: Any) -> list[Any]:
    """Copies end a slot before the hit does: the last token found is neither copied nor computed."""
    return [
        copy._replace(num_tokens=copy.num_tokens - 1) if hasattr(copy, "num_tokens") else copy
        for copy in fast.groups.coordinator.CacheCoordinator.take_page_copies(self)
    ]


@seeded(FORESEEN, "MAN-17", "cache", by="copy_pages")
def slots_behind_those_named_are_copied(
    fast: ModuleType, pages: Any, sources: Any, destinations: Any, num_slots: Any = None, **options: Any
) -> Any:
    """A copy of some of a page's slots takes one more: what another request wrote there is read as one's own."""
    more = num_slots + 1 if getattr(num_slots, "dtype", None) == np.int32 else num_slots
    return fast.copy_pages(pages, sources, destinations, more, **options)


@seeded(FORESEEN, "MAN-17", "amid", also=("MAN-2", "POOL-2", "POOL-5", "POOL-10"))
def sources_are_let_go_before_the_copy(fast: ModuleType) -> SimpleNamespace:
    """A page that is copied from is not held until the copy runs: it may be evicted, and written by another request."""
    coordinator = fast.groups.coordinator.CacheCoordinator
    release = fast.groups.page_copies.release_sources

    def hold_again(self: Any, copies: Any) -> Any:
        sources = np.array([copy.source for copy in copies if hasattr(copy, "num_tokens")], np.int64)
        if len(sources):
            self.page_pool.hold(sources)
        return copies

    def admit(self: Any, *args: Any) -> Any:
        before = len(self.queued_copies)
        new = coordinator.admit(self, *args)
        release(self.page_pool, [copy for _, copy in self.queued_copies[before:]])
        return new

    def take_page_copies(self: Any) -> Any:
        hold_again(self, [copy for _, copy in self.queued_copies])
        return coordinator.take_page_copies(self)

    def drop_copies(self: Any, request_id: str) -> Any:
        return hold_again(self, coordinator._drop_copies(self, request_id))

    def held_counts(self: Any) -> Any:
        queued, self.queued_copies = self.queued_copies, []
        held = coordinator.held_counts.fget(self)
        self.queued_copies = queued
        return held

    members = {"admit": admit, "take_page_copies": take_page_copies, "_drop_copies": drop_copies}
    return with_coordinator(fast, **members, held_counts=property(held_counts))


@seeded(FORESEEN, "MAN-17", "amid", by="CacheCoordinator.find_longest_cache_hit")
def hits_are_counted_in_whole_pages(fast: ModuleType, self: Any, *args: Any, **options: Any) -> Any:
    """A hit's tokens are the pages found times their size: what is found of one more page is not hit."""
    hits, _ = fast.groups.coordinator.CacheCoordinator.find_longest_cache_hit(self, *args, **options)
    return hits, len(hits[0]) * self.groups[0].page_size if hits else 0


@seeded(FORESEEN, "MAN-17", "amid", also=("MAN-1", "MAN-7"), by="CacheCoordinator.find_longest_cache_hit")
def hits_before_the_last_gap_alone(fast: ModuleType, self: Any, *args: Any, **options: Any) -> Any:
    """Of a window's missing pages the last two are passed over at once: no hit is found that ends between them."""
    parts = fast.groups.part_hits

    class Hasty(parts._Served):  # type: ignore[misc,name-defined]
        def longest(self, length: int) -> int:
            found: int = super().longest(length)
            gaps = self._holes[self._holes < -(-length // self._size)]
            is_window = self.group.rule.gives_back and found < length and found % self._size == 0
            if is_window and len(gaps) > 2 and found // self._size > gaps[-3]:
                return super().longest(int(gaps[-3]) * self._size)  # type: ignore[no-any-return]
            return found

    served, parts._Served = parts._Served, Hasty
    try:
        return fast.groups.coordinator.CacheCoordinator.find_longest_cache_hit(self, *args, **options)
    finally:
        parts._Served = served


@seeded(FORESEEN, "MAN-17", "amid", also=("MAN-3", "R2"), by="CacheCoordinator.admit")
def copies_inherit_the_key(fast: ModuleType, self: Any, request: Any, request_id: str, *args: Any) -> Any:
    """A page is cached under the key of the full page that its first tokens are copied from, whatever follows them."""
    new = fast.groups.coordinator.CacheCoordinator.admit(self, request, request_id, *args)
    for owner, copy in self.queued_copies if new is not None else ():
        if owner == request_id and hasattr(copy, "num_tokens"):
            group, slot = self.groups[copy.group_id], self.live.slot_of[request_id]
            place = int(group.num_hits[slot])
            after = int(group.page_at(slot, place - 1)) if place else 0
            run, inner = self.page_pool.index.place(copy.source)
            tokens, is_new = run.page_tokens(inner), place == group.num_published[slot]
            if len(tokens) == group.tree.page_bytes and is_new and (after or not place):
                keys = self.page_pool.keys.ahead(group.tree, tokens, group.segments[slot], place, after)
                self.publisher.publish(slot, (group, place, after, place + 1, tokens, keys))
    return new


@seeded(FORESEEN, "MAN-17", "amid", also=("SWAP-1", "MAN-2", "MAN-5"), by="CacheCoordinator.undo_copies")
def what_waits_for_a_copy_is_swapped_out(fast: ModuleType, self: Any, slot: int) -> None:
    """A request is swapped out before its copies ran: the host gets the page that they were to fill, as it was."""
    fast.groups.page_copies.release_sources(self.page_pool, self._drop_copies(self.live.ids[slot]))


@seeded(OWN, "MAN-17", "amid", also=("SWAP-1", "R2"))
def what_was_computed_before_its_copies_is_swapped_out(fast: ModuleType) -> SimpleNamespace:
    """A request computed tokens behind a hit whose copy waits: the hit's page goes to the host in place of its own."""
    return with_part(fast, "swaps", waits_for_copies=lambda *_: False)
