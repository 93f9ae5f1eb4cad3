"""Faults of who holds which page: hits taken too late, pages given back too early or twice, pages that leak."""

from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from .patching import fresh, with_coordinator, with_manager, with_pool
from .registry import seeded

__all__: list[str] = []


# -- Hits and new pages ---------------------------------------------------------------------------


def _publishing_last(fast: ModuleType) -> Any:
    """An admission that looks at its hits again before it publishes what follows: they may be gone by then."""

    def admit(self: Any, request: Any, *args: Any) -> Any:
        *rest, promised, slots, delay = args
        pages = fast.CacheCoordinator.admit(self, request, *rest, promised, slots, True)
        if pages is not None and not delay:
            self.cache_pages(request, self.live.slot_of[request.request_id], promised)
        return pages

    return admit


@seeded(6, "MAN-2", "manager", also=("R2", "POOL-3", "MAN-3"))
def allocated_before_touch(fast: ModuleType) -> SimpleNamespace:
    """New pages are taken before the hits are held: a request evicts its own hits and gets them twice (vLLM 10507)."""

    def save_new_computed_pages(self: Any, hits: Any) -> None:
        self.pending = hits

    def allocate_new_pages(self: Any, *args: Any) -> Any:
        pages = fast.CacheCoordinator.allocate_new_pages(self, *args)
        for hits in self.pending:
            self.page_pool.hold(hits[hits != 0])
        self.pending = []
        return pages

    return with_coordinator(
        fast,
        pending=(),
        admit=_publishing_last(fast),
        save_new_computed_pages=save_new_computed_pages,
        allocate_new_pages=allocate_new_pages,
    )


@seeded(6, "MAN-2", "hybrid", also=("R2", "POOL-3", "MAN-3", "MAN-7", "MAN-13"))
def groups_allocated_one_by_one(fast: ModuleType) -> SimpleNamespace:
    """Each group holds its hits and takes its pages before the next one does, whose hits it may evict (vLLM 33775)."""

    def save_new_computed_pages(self: Any, hits: Any) -> None:
        self.pending = dict(zip(self.groups, hits, strict=True))

    def allocate_new_pages(self: Any, slot: int, wanted: Any, computed: int) -> Any:
        pending, self.pending = self.pending, {}
        if not pending:
            return fast.CacheCoordinator.allocate_new_pages(self, slot, wanted, computed)
        new = []
        for group, hits in pending.items():
            self.page_pool.hold(hits[hits != 0])
            own = [one for one in wanted if one[0] is group]
            new.append(fast.CacheCoordinator.allocate_new_pages(self, slot, own, computed)[group.group_id])
        return new

    return with_coordinator(
        fast,
        pending={},
        admit=_publishing_last(fast),
        save_new_computed_pages=save_new_computed_pages,
        allocate_new_pages=allocate_new_pages,
    )


# -- Pages that are somebody else's ---------------------------------------------------------------


def _is_orphan(pool: Any, page: int) -> bool:
    """Whether a cached page's predecessor in its prefix is no longer cached."""
    found = pool.index.place(page)
    if found is None:
        return False
    run, place = found
    if place:
        return not run.pages[place - 1]
    return run.parent.parent is not None and not run.parent.pages[-1]


@seeded(7, "POOL-3", "manager", also=("R2", "POOL-2", "POOL-8", "MAN-1", "MAN-2", "MAN-3"))
def orphan_keeps_its_content(fast: ModuleType) -> SimpleNamespace:
    """A page whose predecessor was evicted is out of the tree's reach and is not evicted from it (TensorRT-LLM 15018).

    It is allocated again with what it was known for, and hit when the predecessor's content is back.
    """

    def evict(self: Any, pages: Any) -> Any:
        kept = np.array([not self.forgets and _is_orphan(self, page) for page in pages.tolist()], bool)
        return fast.PagePool._evict(self, pages[~kept])

    def evict_one(self: Any, page: int) -> None:
        if not _is_orphan(self, page):
            fast.PagePool._evict_one(self, page)

    def forget(self: Any, pages: Any) -> None:  # what is dropped on purpose is dropped
        self.forgets = True
        fast.PagePool.forget_hashes(self, pages)
        self.forgets = False

    return with_pool(fast, forgets=False, _evict=evict, _evict_one=evict_one, forget_hashes=forget)


@seeded(7, "POOL-2", "manager", also=("R2", "POOL-7", "MAN-2", "MAN-3"), by="PagePool.note_keys")
def duplicate_freed_in_use(fast: ModuleType, self: Any, pages: Any, keys: Any) -> None:
    """A page whose content is cached already is freed when it fills up; the request's list still names it.

    So in mini-sglang 142, where the page table was not told of the page that stayed.
    """
    fast.PagePool.note_keys(self, pages, keys)
    for page in map(int, pages):
        found = self.index.place(page) if page else None
        if found is not None and found[0].pages[found[1]] != page:
            self._evict_one(page)
            self.release(np.array([page]))


@seeded(7, "MAN-5", "manager", also=("POOL-2", "POOL-5"))
def freed_by_two_paths(fast: ModuleType) -> SimpleNamespace:
    """A request that is aborted once it is finished is freed twice, whoever has its pages by then (sglang-jax 982)."""

    def free(self: Any, request: Any, num_written: Any = None) -> Any:
        name = getattr(request, "request_id", None)
        slot = self.coordinator.live.slot_of.get(name, -1)
        ends = slot >= 0 and self.coordinator.live.requests[slot] is request
        held = [group.held(slot)[::-1] for group in self.coordinator.groups] if ends else []
        losers = fast.CacheManager.free(self, request, num_written)
        if ends:
            self.freed[name] = (request, held)
        elif name in self.freed and self.freed[name][0] is request:
            for pages in self.freed.pop(name)[1]:
                self.page_pool.release(pages[self.page_pool.counts.of[pages] > 0])
        return losers

    return with_manager(fast, freed=fresh(dict), free=free)


# -- Pages of the step in flight ------------------------------------------------------------------


@seeded(8, "MAN-2", "manager", also=("R2", "MAN-9"), by="CacheManager.allocate_slots")
def lookahead_given_back(fast: ModuleType, self: Any, request: Any, *args: Any, **options: Any) -> Any:
    """Pages for look-ahead go back to the pool at once, while the step writes its drafts to them (vLLM 45357)."""
    pages = fast.CacheManager.allocate_slots(self, request, *args, **options)
    if pages is not None:
        slot = self.coordinator.live.slot_of[request.request_id]
        promised = self.coordinator.live.num_promised[slot]
        for group in self.coordinator.groups:
            end = -(-promised // group.rule.page_size)
            if not group.rule.has_states and end < group.num_pages[slot]:
                ahead = group.pages(slot)[end:]
                group.num_cells -= group.num_pages[slot] - end
                group.num_pages[slot] = end
                self.page_pool.release(ahead[::-1])
    return pages


@seeded(8, "MAN-8", "window", also=("R2", "MAN-2", "MAN-3"), by="CacheCoordinator.advance")
def window_of_the_next_step(fast: ModuleType, self: Any, slot: int, computed: int, promised: int, slots: int) -> Any:
    """What the step after this one cannot read any more goes back before this one has read it.

    The same fault as vLLM 45357 seen from the other side: the page is another request's while the step is in flight.
    """
    new = fast.CacheCoordinator.advance(self, slot, computed, promised, slots)
    for group in self.groups:
        if new is not None and group.rule.gives_back and not group.rule.has_states:
            pages = group.give_back(slot, min(group.rule.first_place(promised), group.num_pages[slot]))
            if len(pages):
                self.page_pool.release(pages)
    return new


# -- Pages that leak, and counts that mislead -----------------------------------------------------


@seeded(31, "R1", "state", also=("MAN-2", "MAN-13"), by="CacheManager.allocate_slots")
def states_longer_than_a_page_leak(
    fast: ModuleType, self: Any, request: Any, num_new_tokens: Any, *args: Any, **options: Any
) -> Any:
    """More tokens than a page of states stands for fail after the pages for them were taken, which leak (EasyDeL)."""
    pages = fast.CacheManager.allocate_slots(self, request, num_new_tokens, *args, **options)
    for group in self.coordinator.groups:
        if pages is not None and group.rule.has_states and num_new_tokens > group.rule.page_size:
            lost = -(-num_new_tokens // group.rule.page_size)
            self.page_pool.get_new_pages(min(lost, self.page_pool.get_num_free_pages()))
            raise AssertionError(f"{lost} pages for one state")
    return pages


def _counting(fast: ModuleType, shared: Any) -> SimpleNamespace:
    """A backend that counts common pages by how often they are held."""

    def get_num_common_prefix_pages(self: Any, request: Any, num_scheduled_requests: int) -> list[int]:
        right = fast.CacheManager.get_num_common_prefix_pages(self, request, num_scheduled_requests)
        slot, pool, counts = self.slot_of(request.request_id), self.page_pool, []
        for group, own in zip(self.coordinator.groups, right, strict=True):
            held = group.pages(slot).tolist() if group.rule.shares_prefixes else []
            apart = [
                place for place, page in enumerate(held) if not shared(pool.ref_count(page), num_scheduled_requests)
            ]
            counts.append([*apart, len(held)][0] if group.rule.shares_prefixes else own)
        return counts

    return with_manager(fast, get_num_common_prefix_pages=get_num_common_prefix_pages)


@seeded(32, "MAN-10", "manager")
def common_if_held_often_enough(fast: ModuleType) -> SimpleNamespace:
    """A page counts as common if it is held by at least as many as run, whoever holds it (EasyDeL)."""
    return _counting(fast, lambda held, running: held >= running)


@seeded(32, "MAN-10", "manager")
def common_if_held_as_often(fast: ModuleType) -> SimpleNamespace:
    """A page counts as common if it is held as often as requests run, by those too that don't (vLLM 23130, 55227)."""
    return _counting(fast, lambda held, running: held == running)
