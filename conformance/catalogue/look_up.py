"""A look-up over groups that takes its list of cached pages from its caller, for variants that have a wrong one."""

from collections.abc import Callable, Sequence
from math import lcm
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from .patching import with_coordinator

__all__ = ["cached_pages", "is_served", "longest", "no_hit", "pages_of", "right_hit", "step_of", "with_look_up"]

Find = Callable[[Any, bytes, Sequence[Any], int, bool], tuple[Any, int]]
"""Finds a hit, given a coordinator, token bytes, extra keys by group, the most tokens, and whether Eagle counts."""


def cached_pages(coordinator: Any, tokens: bytes, segments: Sequence[Any]) -> list[list[int]]:
    """For each group the page cached for each of the request's full pages, 0 where there is none."""
    index, found = coordinator.page_pool.index, []
    for group, own in zip(coordinator.groups, segments, strict=True):
        full = len(tokens) // 4 // group.rule.page_size
        pages = index.first_pages(group.tree, tokens, own, full).tolist()
        found.append(pages + [0] * (full - len(pages)))
    return found


def step_of(coordinator: Any) -> int:
    """Every hit is a multiple of this number of tokens."""
    return lcm(*(group.rule.page_size for group in coordinator.groups))


def is_served(group: Any, pages: Sequence[int], length: int, after: bool) -> bool:
    """Whether a group has what a step reads behind ``length`` tokens, and the page after it if that is wanted."""
    size = group.rule.page_size
    end = length // size + (1 if after and group.is_eagle else 0)
    return end <= len(pages) and all(pages[group.rule.first_place(length) : end])


def longest(coordinator: Any, cached: Sequence[Sequence[int]], most: int, after: bool) -> int:
    """The longest length that every group serves."""
    if not coordinator.enable_caching or not all(group.rule.publishes for group in coordinator.groups):
        return 0
    step = step_of(coordinator)
    for length in range(most // step * step, 0, -step):
        places = list(zip(coordinator.groups, cached, strict=True))
        if all(is_served(group, pages, length, after) for group, pages in places) and any(
            any(pages[group.rule.first_place(length) : length // group.rule.page_size]) for group, pages in places
        ):
            return length
    return 0


def pages_of(coordinator: Any, cached: Sequence[Sequence[int]], length: int, seen_from: int) -> tuple[Any, int]:
    """The hit of a length, with null pages where a step behind ``seen_from`` tokens needs none."""
    hits = []
    for group, pages in zip(coordinator.groups, cached, strict=True):
        hit = np.array(pages[: length // group.rule.page_size], np.int64)
        hit[: group.rule.first_place(seen_from)] = 0
        hits.append(hit)
    return hits, length


def right_hit(coordinator: Any, cached: Sequence[Sequence[int]], most: int, eagle: bool) -> tuple[Any, int]:
    """The hit that there is."""
    length = longest(coordinator, cached, most, eagle)
    return pages_of(coordinator, cached, length, length)


def no_hit(coordinator: Any) -> tuple[Any, int]:
    """Nothing is hit."""
    return [np.empty(0, np.int64) for _ in coordinator.groups], 0


def with_look_up(fast: ModuleType, find: Find) -> SimpleNamespace:
    """A backend with another look-up, whose hits are taken for right when they are handed back."""

    def look_up(
        self: Any, tokens: Any, segments: Sequence[Any], max_cache_hit_length: int, *, eagle: bool = True
    ) -> Any:
        if not self.enable_caching:
            return no_hit(self)
        return find(self, bytes(tokens), segments, max_cache_hit_length, eagle)

    def check_hits(self: Any, tokens: Any, segments: Sequence[Any], hits: Any, length: int) -> Any:
        found, tokens_found = look_up(self, tokens, segments, len(tokens) // 4 - 1)
        own = tokens_found == length and all(map(np.array_equal, found, hits))
        return [] if own else fast.CacheCoordinator.check_hits(self, tokens, segments, hits, length)

    return with_coordinator(fast, find_longest_cache_hit=look_up, check_hits=check_hits)
