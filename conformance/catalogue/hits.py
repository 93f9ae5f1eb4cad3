"""Faults of the look-up over groups: a hit that some group cannot serve, one that is too short, or none."""

from collections.abc import Callable, Iterator, Sequence
from math import lcm
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from .patching import fresh, with_coordinator, with_manager
from .registry import FORESEEN, seeded

__all__ = ["cached_pages", "longest", "pages_of", "with_look_up"]


# -- A look-up that takes its list of cached pages from its caller, for variants that have a wrong one --------------

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


# -- Eagle ----------------------------------------------------------------------------------------


@seeded(29, "MAN-9", "window", also=("MAN-1", "MAN-7", "MAN-2"), by=with_look_up)
def window_short_of_the_dropped_page(
    coordinator: Any, tokens: bytes, segments: Sequence[Any], most: int, eagle: bool
) -> Any:
    """The Eagle page is dropped after the look-up, which leaves the window of what is left incomplete (vLLM 17398).

    The shorter prefix's window begins a page earlier, where nothing was looked for: a null page stands there.
    """
    cached, step = cached_pages(coordinator, tokens, segments), step_of(coordinator)
    dropped = step if eagle and any(group.is_eagle for group in coordinator.groups) else 0
    seen = longest(coordinator, cached, most + dropped, False)
    hits, length = pages_of(coordinator, cached, max(seen - dropped, 0), seen)
    return (hits, length) if any(pages.any() for pages in hits) else no_hit(coordinator)


@seeded(29, "MAN-9", "hybrid", also=("MAN-1", "MAN-7"), by=with_look_up)
def eagle_page_dropped_in_every_round(
    coordinator: Any, tokens: bytes, segments: Sequence[Any], most: int, eagle: bool
) -> Any:
    """The groups are asked in turn until they agree, and each round drops the Eagle page again (vLLM 32802, 33270).

    So that they agree on nothing at all.
    """
    cached = cached_pages(coordinator, tokens, segments)
    drops = eagle and any(group.is_eagle for group in coordinator.groups)
    if not drops or len(coordinator.groups) == 1:
        return right_hit(coordinator, cached, most, eagle)
    length, before = most, -1
    while length != before:
        before = length
        length = max(longest(coordinator, cached, length, False) - step_of(coordinator), 0)
    return no_hit(coordinator)


@seeded(30, "MAN-9", "hybrid", also=("MAN-1", "MAN-7"), by=with_look_up)
def full_miss_at_some_lengths(coordinator: Any, tokens: bytes, segments: Sequence[Any], most: int, eagle: bool) -> Any:
    """Where the prompt ends too early for the Eagle page of its longest hit, nothing is hit at all (vLLM 51441).

    There the groups kept what this one length needs, and no shorter one was served.
    """
    cached = cached_pages(coordinator, tokens, segments)
    length = longest(coordinator, cached, most, False)
    served = all(
        is_served(group, pages, length, eagle) for group, pages in zip(coordinator.groups, cached, strict=True)
    )
    return pages_of(coordinator, cached, length, length) if served else no_hit(coordinator)


# -- Several groups -------------------------------------------------------------------------------


@seeded(30, "MAN-7", "hybrid", also=("MAN-1", "MAN-2", "MAN-9", "MAN-13", "R2"), by=with_look_up)
def hit_beyond_full_attention(coordinator: Any, tokens: bytes, segments: Sequence[Any], most: int, eagle: bool) -> Any:
    """The hit is as long as the other groups say, a page longer than what full attention holds (vLLM 46281)."""
    cached, groups = cached_pages(coordinator, tokens, segments), coordinator.groups
    length = longest(coordinator, cached, most, eagle)
    if not length or all(group.rule.shares_prefixes for group in groups):
        return right_hit(coordinator, cached, most, eagle)
    others = [
        [page or -1 for page in pages] if group.rule.shares_prefixes else pages
        for group, pages in zip(groups, cached, strict=True)
    ]
    longer = min(longest(coordinator, others, most, eagle), length + step_of(coordinator))
    hits, _ = pages_of(coordinator, cached, longer, longer)
    held = [
        pages[pages != 0] if group.rule.shares_prefixes else pages for group, pages in zip(groups, hits, strict=True)
    ]
    return held, longer


@seeded(17, "MAN-7", "hybrid", also=("R2", "HASH-2", "MAN-1", "MAN-2", "MAN-6", "MAN-9", "POOL-7"), by=with_look_up)
def coarse_pages_by_fine_keys(coordinator: Any, tokens: bytes, segments: Sequence[Any], most: int, eagle: bool) -> Any:
    """A page is found by the key that the first group has at its place, whose pages are smaller (pegaflow, kvcached).

    EasyDeL too: such a key tells of the first tokens only, and another prompt's page is hit that goes on otherwise.
    """
    fine = coordinator.groups[0].rule.page_size
    cached = cached_pages(coordinator, tokens, segments)
    for number, group in enumerate(coordinator.groups):
        if group.rule.page_size > fine and not group.rule.has_states:
            known = dict(_fine_keys(coordinator, group, fine))
            cached[number] = [
                known.get((place, tokens[: 4 * fine * (place + 1)]), 0) for place in range(len(cached[number]))
            ]
    length = longest(coordinator, cached, most, eagle)
    return pages_of(coordinator, cached, length, length)


def _fine_keys(coordinator: Any, group: Any, fine: int) -> Iterator[tuple[tuple[int, bytes], int]]:
    """The cached pages of a group, each with its place and the tokens that a finer key at that place tells of."""
    for run, inner, pages in coordinator.page_pool.index.places():
        if run.tree is not group.tree:
            continue
        path, above = b"", run
        while above.parent is not None:
            path, above = bytes(above.tokens) + path, above.parent
        place = run.start + inner
        yield (place, path[: 4 * fine * (place + 1)]), pages[0]


@seeded(28, "MAN-1", "window", also=("MAN-8", "HIT-1"))
def window_looked_up_past_the_keys(fast: ModuleType) -> SimpleNamespace:
    """Keys are made at a request's first look-up, and are too few for a window once it has grown (EasyDeL).

    The look-up begins with the last page that the request has by then, and raises an IndexError.
    """
    manager = fast.CacheManager

    def get_computed_pages(self: Any, request: Any) -> Any:
        found = manager.get_computed_pages(self, request)
        sizes = [group.rule.page_size for group in self.coordinator.groups if hasattr(group.rule, "window")]
        known = self.num_known.setdefault(request.request_id, request.num_tokens)
        if self.enable_caching and any((request.num_tokens - 1) // size > known // size for size in sizes):
            raise IndexError("list index out of range")
        return found

    def free_page_hashes(self: Any, request: Any) -> None:
        manager.free_page_hashes(self, request)
        self.num_known.pop(request.request_id, None)

    return with_manager(
        fast,
        num_known=fresh(dict),
        get_computed_pages=get_computed_pages,
        free_page_hashes=free_page_hashes,
    )


@seeded(FORESEEN, "MAN-2", "manager", also=("R2",), by="page_pool.index.holds")
def a_sibling_passes_for_a_hit(fast: ModuleType, self: Any, *arguments: Any) -> Any:
    """Of two pages behind one prefix that nothing stands behind, either is taken where the other is a request's hit."""
    lone, self._lone = self._lone, {}
    try:
        return fast.index.prefix_index.PrefixIndex.holds(self, *arguments)
    finally:
        self._lone = lone
