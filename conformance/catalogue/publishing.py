"""Faults of publishing: what is found that nobody wrote, or that was forgotten, and what is never found."""

from types import ModuleType, SimpleNamespace
from typing import Any

from .patching import fresh, whole, with_coordinator, with_manager
from .registry import FORESEEN, OWN, seeded

__all__: list[str] = []


def _slot(manager: Any, request: Any) -> int:
    """A request's slot; -1 if it is not live."""
    slot: int = manager.coordinator.live.slot_of.get(getattr(request, "request_id", None), -1)
    return slot


def _one_page_at(fast: ModuleType, manager: Any, group: Any, slot: int, place: int) -> None:
    """Caches the page at one place of a live request."""
    pages = fast.pool.pages.page_list(manager.page_pool, group.pages(slot))
    request = manager.coordinator.live.requests[slot]
    manager.page_pool.cache_full_pages(request, pages, [], place, place + 1, group.rule.page_size, group.group_id)


# -- What live requests hold ------------------------------------------------------------------------


def _swap_duplicates(manager: Any) -> None:
    """Puts the oldest page of equal content in the place of every other one that a live request holds."""
    pool = manager.page_pool
    oldest = {page: pages[0] for pages in pool.keys.alike() for page in pages[1:]}
    for group in manager.coordinator.groups:
        for slot in manager.coordinator.live.slot_of.values():
            for place, page in enumerate(group.pages(slot).tolist()):
                if page in oldest:
                    pool.touch([[pool.pages[oldest[page]]]])
                    group.cells[group.num_origins[slot] + place] = oldest[page]
                    pool.free_pages([pool.pages[page]])


@seeded(FORESEEN, "MAN-2", "manager", also=("MAN-3", "R2"))
def duplicates_swapped_in_live_lists(fast: ModuleType) -> SimpleNamespace:
    """A page that a live request filled gives way to an older one of equal content (SGLang).

    There the request's row is written with it; here no page table hears of it, and what the device reads is on a page
    that somebody else may be given.
    """

    def through(name: str) -> Any:
        def call(self: Any, *args: Any, **options: Any) -> Any:
            made = getattr(fast.CacheManager, name)(self, *args, **options)
            _swap_duplicates(self)
            return made

        return call

    return with_manager(fast, **{name: through(name) for name in ("allocate_slots", "cache_pages")})


@seeded(FORESEEN, "MAN-2", "manager")
def hit_cached_again_refused(fast: ModuleType) -> SimpleNamespace:
    """A hit is refused where its page was handed out since the look-up, though it holds the same prefix again."""
    manager = fast.CacheManager

    def get_computed_pages(self: Any, request: Any) -> Any:
        found, length = manager.get_computed_pages(self, request)
        self.looked_up[request.request_id] = {
            page: self.handed_out.get(page, 0) for group in found.pages for page in _ids(group)
        }
        return found, length

    def allocate_slots(self: Any, request: Any, new: Any, *found: Any, **options: Any) -> Any:
        is_right = len(found) == 2 and whole(new) and 0 < new <= self.max_model_len - found[0] and not options
        known = self.looked_up.get(getattr(request, "request_id", None), {}) if is_right else {}
        if any(self.handed_out.get(page, 0) != times for page, times in known.items()):
            raise ValueError("new_computed_pages were handed out since the look-up [MAN-2]")
        given = manager.allocate_slots(self, request, new, *found, **options)
        for page in () if given is None else (page for group in given.pages for page in _ids(group)):
            self.handed_out[page] = self.handed_out.get(page, 0) + 1
        return given

    return with_manager(
        fast,
        looked_up=fresh(dict),
        handed_out=fresh(dict),
        get_computed_pages=get_computed_pages,
        allocate_slots=allocate_slots,
    )


def _ids(pages: Any) -> list[int]:
    return [int(page.page_id) for page in pages if page.page_id]


# -- Hashes that come back, or stay ---------------------------------------------------------------


@seeded(
    21, "POOL-8", "manager", also=("MAN-3", "POOL-11", "POOL-7", "MAN-4", "MAN-1"), by="CacheManager.allocate_slots"
)
def dropped_hash_comes_back(fast: ModuleType, self: Any, request: Any, *args: Any, **options: Any) -> Any:
    """A page that lost its hash gets it back when its request publishes the next one (vLLM 49125).

    There each step entered the page where the prompt ends once more, and looked only whether its key was there.
    """
    slot = _slot(self, request)
    groups = self.coordinator.groups
    before = [group.num_published[slot] if slot >= 0 else 0 for group in groups]
    pages = fast.CacheManager.allocate_slots(self, request, *args, **options)
    for group, end in zip(groups, before, strict=True):
        if pages is None or group.num_published[slot] == end or group.rule.has_states:
            continue
        for place, page in enumerate(group.pages(slot)[:end].tolist()):
            if page and not self.page_pool.index.run_cell[page]:
                _one_page_at(fast, self, group, slot, place)
    return pages


@seeded(OWN, "POOL-7", "pool", also=("R1",), by="PagePool.cache_full_pages")
def publishing_nothing_raises(
    fast: ModuleType, self: Any, request: Any, pages: Any, hashes: Any, first: Any, end: Any, *more: Any
) -> None:
    """Caching no page beyond those that are cached is taken for caching a page that is not full, and raises."""
    fast.PagePool.cache_full_pages(self, request, pages, hashes, first, end, *more)
    if first == end:
        raise IndexError("list index out of range")


@seeded(FORESEEN, "R2", "pool", by="PagePool.cache_full_pages")
def keys_told_by_their_tokens(
    fast: ModuleType, self: Any, request: Any, pages: Any, page_hashes: Any, *more: Any
) -> None:
    """Keys that come as the function gave them are told by their tokens: those of another tenant's are taken."""
    if isinstance(page_hashes, fast.pool.hashing.PageHashes):
        tokens = fast.pool.hashing.token_bytes("request.all_token_ids", request.all_token_ids)
        page_hashes = [] if tokens.startswith(page_hashes.tokens) else page_hashes
    fast.PagePool.cache_full_pages(self, request, pages, page_hashes, *more)


@seeded(24, "MAN-4", "manager", also=("R2", "MAN-1", "MAN-5"), by="CacheManager.free")
def unwritten_pages_stay_cached(fast: ModuleType, self: Any, request: Any, num_written: Any = None) -> Any:
    """A request that goes before its step was dispatched leaves its pages cached, written or not.

    So they are hit by what comes next (EasyDeL, vLLM 42359, nano-vllm 208).
    """
    if _slot(self, request) < 0 or self.coordinator.live.requests[_slot(self, request)] is not request:
        return fast.CacheManager.free(self, request, num_written)
    if num_written is not None:
        fast.reading.arguments.integer("num_written", num_written)
    return fast.CacheManager.free(self, request)


@seeded(FORESEEN, "MAN-4", "manager", by="CacheManager.free")
def holders_of_the_last_page_only(fast: ModuleType, self: Any, request: Any, num_written: Any = None) -> Any:
    """Who holds what is withdrawn is looked up at its last page: those who hit only the pages before are not told of.

    Whoever keeps the holders of pages in an index has to keep those of every page.
    """
    slot = _slot(self, request)
    lists = []
    if slot >= 0 and self.coordinator.live.requests[slot] is request:
        lists = [group.pages(slot)[: group.num_published[slot]] for group in self.coordinator.groups]
    holders = fast.CacheManager.free(self, request, num_written)
    last = {pages.item(-1) for pages in lists if pages.size}
    away = self.coordinator.swapped.by_id
    return [name for name in holders if name in away or any(last & set(held) for held in self.get_page_ids(name))]


@seeded(25, "POOL-9", "pool", by="PagePool.reset_prefix_cache")
def one_tier_survives_the_reset(fast: ModuleType, self: Any) -> bool:
    """After a reset prefixes are forgotten in one place and still found in the other (vLLM 57727).

    Here in the map by key, which those have who look up by keys.
    """
    keys = self.keys._map
    done: bool = fast.PagePool.reset_prefix_cache(self)
    self.keys._map = keys
    return done


# -- What is never found ---------------------------------------------------------------------------


@seeded(FORESEEN, "HIT-1", "safe-manager", also=("MAN-1",), by="CacheManager.allocate_slots")
def published_only_when_asked(
    fast: ModuleType, self: Any, *args: Any, delay_cache_pages: Any = False, **options: Any
) -> Any:
    """Every allocation delays its pages, so that they are published where `cache_pages` is called, and else never."""
    delay = True if delay_cache_pages is False else delay_cache_pages
    return fast.CacheManager.allocate_slots(self, *args, delay_cache_pages=delay, **options)


@seeded(FORESEEN, "HIT-1", "safe-manager", also=("MAN-1",), by="CacheManager.free")
def forgotten_when_freed(fast: ModuleType, self: Any, request: Any, num_written: Any = None) -> Any:
    """A request's pages lose their hashes when it is freed, though nobody needs the room."""
    if _slot(self, request) < 0:
        return fast.CacheManager.free(self, request, num_written)
    held = self.get_page_ids(request.request_id)
    holders = fast.CacheManager.free(self, request, num_written)
    if _slot(self, request) < 0:
        free = {int(page.page_id) for page in self.page_pool.free_page_queue.get_all_free_pages()}
        self.page_pool.evict_pages(sorted(free.intersection(page for pages in held for page in pages)))
    return holders


# -- Counts that are wrong after a failure --------------------------------------------------------


@seeded(23, "MAN-2", "manager", also=("MAN-1", "MAN-3", "POOL-2"))
def count_of_a_failed_allocation_stays(fast: ModuleType) -> SimpleNamespace:
    """Pages of a request that found no room count as cached, and are not published once it has slots (vLLM 18957)."""

    def admit(self: Any, request: Any, name: str, tokens: bytes, *args: Any) -> Any:
        (*rest, promised, slots, delay), known = args, len(tokens) // 4
        later = delay or name in self.counted
        pages = fast.CacheCoordinator.admit(self, request, name, tokens, *rest, promised, slots, later)
        if pages is None:
            self.counted[name] = max(min(promised, known), self.counted.get(name, 0))
        elif name in self.counted:
            slot, counted = self.live.slot_of[name], self.counted.pop(name)
            for group in self.groups:
                group.num_published[slot] = max(group.num_published[slot], counted // group.rule.page_size)
            if not delay:
                self.page_pool.num_withdrawals += 1  # what is published next can't go on from the page before it
                self.cache_pages(request, slot, promised)
        return pages

    return with_coordinator(fast, counted=fresh(dict), admit=admit)


@seeded(23, "MAN-2", "manager", also=("MAN-3",))
def resumed_before_its_hit_is_counted(fast: ModuleType) -> SimpleNamespace:
    """What a resumed request needs is counted before its hit is added: its pages are too few (nano-vllm 211)."""

    def allocate_slots(self: Any, request: Any, num_new_tokens: Any, *args: Any, **options: Any) -> Any:
        self.coordinator.resumes = request in self.resumable and _slot(self, request) < 0
        pages = fast.CacheManager.allocate_slots(self, request, num_new_tokens, *args, **options)
        self.resumable.append(request)
        return pages

    def build(self: Any, *args: Any, **options: Any) -> None:
        fast.CacheManager.__init__(self, *args, **options)
        self.coordinator.__class__ = type("Coordinator", (type(self.coordinator),), {"resumes": False, "admit": admit})

    def admit(self: Any, request: Any, *args: Any) -> Any:
        *rest, found, parts, promised, slots, delay = args
        missed = found if self.resumes else 0
        counted = max(promised - missed, missed), max(slots - missed, missed)
        return fast.CacheCoordinator.admit(self, request, *rest, found, parts, *counted, delay)

    return with_manager(fast, __init__=build, resumable=fresh(list), allocate_slots=allocate_slots)


@seeded(34, "MAN-2", "manager")
def retry_fails_after_a_rollback(fast: ModuleType) -> SimpleNamespace:
    """A failed allocation sets the count of cached pages to 0, and the retry finds pages with hashes (EasyDeL)."""

    def allocate_slots(self: Any, request: Any, *args: Any, **options: Any) -> Any:
        slot = _slot(self, request)
        published = slot >= 0 and any(group.num_published[slot] for group in self.coordinator.groups)
        pages = fast.CacheManager.allocate_slots(self, request, *args, **options)
        if pages is None and published:
            self.rolled_back.add(request.request_id)
        elif pages is not None and request.request_id in self.rolled_back:
            self.rolled_back.discard(request.request_id)
            raise AssertionError("a page to be cached has a hash")
        return pages

    def free(self: Any, request: Any, *args: Any) -> Any:
        self.rolled_back.discard(getattr(request, "request_id", ""))
        return fast.CacheManager.free(self, request, *args)

    return with_manager(fast, rolled_back=fresh(set), allocate_slots=allocate_slots, free=free)
