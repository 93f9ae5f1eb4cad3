"""Faults of null pages: one is taken for a page that holds something, or for the beginning of a request."""

from collections.abc import Callable, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from .hits import cached_pages, longest, pages_of, with_look_up
from .patching import derived, fresh, whole, with_manager
from .registry import seeded

__all__: list[str] = []


@seeded(27, "MAN-8", "window", also=("POOL-1", "MAN-1", "MAN-7", "MAN-9", "R2"))
def null_page_is_cached(fast: ModuleType) -> SimpleNamespace:
    """Pages published late are those of the whole list, and the null page gets the keys of those given back (EasyDeL).

    So it is found in the window of a later request, which reads from it what nobody wrote.
    """

    def find(coordinator: Any, tokens: bytes, segments: Sequence[Any], most: int, eagle: bool) -> Any:
        cached = cached_pages(coordinator, tokens, segments)
        for group, own, pages in zip(coordinator.groups, segments, cached, strict=True):
            for place in range(len(pages)):
                if not pages[place] and _content(group, own, tokens, place) in coordinator.nulls:
                    pages[place] = -1
        length = longest(coordinator, cached, most, eagle)
        hits, _ = pages_of(coordinator, cached, length, length)
        return [np.maximum(pages, 0) for pages in hits], length

    backend = with_look_up(fast, find)
    manager = backend.CacheManager

    def published(self: Any, request: Any) -> list[int]:
        live = self.coordinator.live
        slot = live.slot_of.get(getattr(request, "request_id", None), -1)
        return [0 if slot < 0 else int(group.num_published[slot]) for group in self.coordinator.groups]

    def note_nulls(self: Any, request: Any, before: list[int]) -> None:
        coordinator = self.coordinator
        tokens = np.asarray(request.all_token_ids, "<i4").tobytes()
        slot = coordinator.live.slot_of[request.request_id]
        for group, first, end in zip(coordinator.groups, before, published(self, request), strict=True):
            if hasattr(group.rule, "window"):
                places = [
                    place for place in range(max(first, group.num_hits[slot]), end) if not group.page_at(slot, place)
                ]
                coordinator.nulls |= {_content(group, group.segments[slot], tokens, place) for place in places}

    def allocate_slots(self: Any, request: Any, *args: Any, **options: Any) -> Any:
        before = published(self, request)
        pages = manager.allocate_slots(self, request, *args, **options)
        if pages is not None:
            note_nulls(self, request, before)
        return pages

    def cache_pages(self: Any, request: Any, num_computed_tokens: Any) -> None:
        before = published(self, request)
        manager.cache_pages(self, request, num_computed_tokens)
        note_nulls(self, request, before)

    def build(self: Any, *args: Any, **options: Any) -> None:
        manager.__init__(self, *args, **options)
        self.coordinator.nulls = set()

    members = {"__init__": build, "allocate_slots": allocate_slots, "cache_pages": cache_pages}
    backend.CacheManager = derived(manager, members)
    return backend


def _content(group: Any, segments: Sequence[Any], tokens: bytes, place: int) -> tuple[int, bytes, bytes]:
    """What stands for the content of a request's page: its group, all tokens up to its end, its extra keys."""
    extra = next(segment.extra for segment in segments if place < segment.end)
    return group.group_id, tokens[: 4 * group.rule.page_size * (place + 1)], extra


_BEHIND_NULLS = ("R2", "HASH-1", "HASH-2", "MAN-1", "MAN-3", "MAN-6", "POOL-7")
"""By these clauses a chain that begins behind null pages shows as well."""


@seeded(26, "HASH-3", "chunk", also=_BEHIND_NULLS)
def chain_begins_behind_null_pages(fast: ModuleType) -> SimpleNamespace:
    """A chunk's page behind null pages is hashed like a first page, so that another prompt hits it (EasyDeL)."""
    return _beginning_anew(fast, lambda rule: hasattr(rule, "chunk"))


@seeded(26, "HASH-3", "window", also=_BEHIND_NULLS)
def chain_begins_behind_a_small_window(fast: ModuleType) -> SimpleNamespace:
    """So is the page that follows null pages where a window is smaller than a page (EasyDeL)."""
    return _beginning_anew(fast, lambda rule: hasattr(rule, "window") and rule.window < rule.page_size)


def _beginning_anew(fast: ModuleType, affected: Callable[[Any], bool]) -> SimpleNamespace:
    """A backend that forgets what stood before null pages, in groups whose rule is affected."""

    def cache_pages(self: Any, request: Any, num_computed_tokens: Any) -> None:
        live, count = self.coordinator.live, num_computed_tokens
        slot = live.slot_of.get(getattr(request, "request_id", None), -1)
        if slot >= 0 and live.requests[slot] is request and whole(count) and count <= live.num_promised[slot]:
            for group in self.coordinator.groups:
                if self.enable_caching and affected(group.rule):
                    begin_anew(self, request, group, slot, min(count, request.num_tokens) // group.rule.page_size)
        fast.CacheManager.cache_pages(self, request, count)

    def begin_anew(self: Any, request: Any, group: Any, slot: int, end: int) -> None:
        size, first, pages = group.rule.page_size, group.num_published[slot], group.pages(slot)
        roots = self.roots.setdefault((request.request_id, group.group_id), [])
        if end > first and first and not pages[first - 1]:
            roots.append(first)
        if end > first and roots:
            root = roots[-1]
            rest = fast.Request("rest", request.all_token_ids[root * size :], request.extra_keys)
            page_list = fast.pool.pages.page_list(self.page_pool, pages[root:end])
            self.page_pool.cache_full_pages(rest, page_list, [], first - root, end - root, size, group.group_id)
            group.num_published[slot] = end

    def allocate_slots(
        self: Any,
        request: Any,
        num_new_tokens: Any,
        num_new_computed_tokens: Any = 0,
        new_computed_pages: Any = None,
        num_lookahead_tokens: Any = 0,
        delay_cache_pages: Any = False,
    ) -> Any:
        fast.reading.arguments.flag("delay_cache_pages", delay_cache_pages)
        options = (num_new_computed_tokens, new_computed_pages, num_lookahead_tokens, True)
        pages = fast.CacheManager.allocate_slots(self, request, num_new_tokens, *options)
        if pages is not None and not delay_cache_pages:
            cache_pages(self, request, request.num_computed_tokens + num_new_computed_tokens + num_new_tokens)
        return pages

    def free(self: Any, request: Any, *args: Any) -> Any:
        for key in [key for key in self.roots if key[0] == getattr(request, "request_id", None)]:
            del self.roots[key]
        return fast.CacheManager.free(self, request, *args)

    return with_manager(fast, roots=fresh(dict), allocate_slots=allocate_slots, cache_pages=cache_pages, free=free)
