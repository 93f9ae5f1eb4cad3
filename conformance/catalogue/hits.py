"""Faults of the look-up over groups: a hit that some group cannot serve, one that is too short, or none."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from math import lcm
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from .patching import derived, with_coordinator, with_manager
from .registry import seeded

__all__: list[str] = []


def _new_dict(_: Any) -> dict[str, int]:
    return {}


# -- A look-up that can be told what to believe ---------------------------------------------------


def _cached(coordinator: Any, tokens: bytes, segments: Sequence[Any]) -> list[list[int]]:
    """For each group the page cached for each of the request's full pages, 0 where there is none."""
    index, found = coordinator.page_pool.index, []
    for group, own in zip(coordinator.groups, segments, strict=True):
        full = len(tokens) // 4 // group.rule.page_size
        pages = index.first_pages(group.tree, tokens, own, full).tolist()
        found.append(pages + [0] * (full - len(pages)))
    return found


def _step(coordinator: Any) -> int:
    """Every hit is a multiple of so many tokens."""
    return lcm(*(group.rule.page_size for group in coordinator.groups))


def _is_served(group: Any, pages: Sequence[int], length: int, after: bool) -> bool:
    """Whether a group has what a step reads behind ``length`` tokens, and the page after it if that is wanted."""
    size = group.rule.page_size
    end = length // size + (1 if after and group.is_eagle else 0)
    return end <= len(pages) and all(pages[group.rule.first_place(length) : end])


def _longest(coordinator: Any, cached: Sequence[Sequence[int]], most: int, after: bool) -> int:
    """The longest length that every group serves."""
    if not coordinator.enable_caching or not all(group.rule.publishes for group in coordinator.groups):
        return 0
    step = _step(coordinator)
    for length in range(most // step * step, 0, -step):
        places = [(group, pages) for group, pages in zip(coordinator.groups, cached, strict=True)]
        if all(_is_served(group, pages, length, after) for group, pages in places) and any(
            any(pages[group.rule.first_place(length) : length // group.rule.page_size]) for group, pages in places
        ):
            return length
    return 0


def _pages_of(coordinator: Any, cached: Sequence[Sequence[int]], length: int, seen_from: int) -> tuple[Any, int]:
    """The hit of a length, with null pages where a step behind ``seen_from`` tokens needs none."""
    hits = []
    for group, pages in zip(coordinator.groups, cached, strict=True):
        hit = np.array(pages[: length // group.rule.page_size], np.int64)
        hit[: group.rule.first_place(seen_from)] = 0
        hits.append(hit)
    return hits, length


def _right(coordinator: Any, cached: Sequence[Sequence[int]], most: int, eagle: bool) -> tuple[Any, int]:
    """The hit that there is."""
    length = _longest(coordinator, cached, most, eagle)
    return _pages_of(coordinator, cached, length, length)


def _none(coordinator: Any) -> tuple[Any, int]:
    return [np.empty(0, np.int64) for _ in coordinator.groups], 0


Find = Callable[[Any, bytes, Sequence[Any], int, bool], tuple[Any, int]]


def _with_look_up(fast: ModuleType, find: Find) -> SimpleNamespace:
    """A backend with another look-up, whose hits are taken for right when they are handed back."""

    def look_up(
        self: Any, tokens: bytes, segments: Sequence[Any], max_cache_hit_length: int, *, eagle: bool = True
    ) -> Any:
        return find(self, tokens, segments, max_cache_hit_length, eagle) if self.enable_caching else _none(self)

    def check_hits(self: Any, tokens: bytes, segments: Sequence[Any], hits: Any, length: int) -> None:
        found, tokens_found = look_up(self, tokens, segments, len(tokens) // 4 - 1)
        own = tokens_found == length and all(map(np.array_equal, found, hits))
        if not own:
            fast.CacheCoordinator.check_hits(self, tokens, segments, hits, length)

    return with_coordinator(fast, find_longest_cache_hit=look_up, check_hits=check_hits)


# -- Eagle ----------------------------------------------------------------------------------------


@seeded(29, "MAN-9", "window", also=("MAN-1", "MAN-7", "MAN-2"))
def window_short_of_the_dropped_page(fast: ModuleType) -> SimpleNamespace:
    """The Eagle page is dropped after the look-up, which leaves the window of what is left incomplete (vLLM 17398).

    The window reaches as far back from the shorter prefix as from the longer one, by a page more than was looked
    for; null pages stand there.
    """

    def find(coordinator: Any, tokens: bytes, segments: Sequence[Any], most: int, eagle: bool) -> Any:
        cached, step = _cached(coordinator, tokens, segments), _step(coordinator)
        dropped = step if eagle and any(group.is_eagle for group in coordinator.groups) else 0
        seen = _longest(coordinator, cached, most + dropped, False)
        hits, length = _pages_of(coordinator, cached, max(seen - dropped, 0), seen)
        return (hits, length) if any(pages.any() for pages in hits) else _none(coordinator)

    return _with_look_up(fast, find)


@seeded(29, "MAN-9", "hybrid", also=("MAN-1", "MAN-7"))
def eagle_page_dropped_in_every_round(fast: ModuleType) -> SimpleNamespace:
    """The groups are asked in turn until they agree, and each round drops the Eagle page again (vLLM 32802, 33270).

    So that they agree on nothing at all.
    """

    def find(coordinator: Any, tokens: bytes, segments: Sequence[Any], most: int, eagle: bool) -> Any:
        cached = _cached(coordinator, tokens, segments)
        drops = eagle and any(group.is_eagle for group in coordinator.groups)
        if not drops or len(coordinator.groups) == 1:
            return _right(coordinator, cached, most, eagle)
        length, before = most, -1
        while length != before:
            before = length
            length = max(_longest(coordinator, cached, length, False) - _step(coordinator), 0)
        return _none(coordinator)

    return _with_look_up(fast, find)


@seeded(30, "MAN-9", "hybrid", also=("MAN-1", "MAN-7"))
def full_miss_at_some_lengths(fast: ModuleType) -> SimpleNamespace:
    """Where the prompt ends too early for the Eagle page of its longest hit, nothing is hit at all (vLLM 51441).

    There the groups kept what this one length needs, and no shorter one was served.
    """

    def find(coordinator: Any, tokens: bytes, segments: Sequence[Any], most: int, eagle: bool) -> Any:
        cached = _cached(coordinator, tokens, segments)
        length = _longest(coordinator, cached, most, False)
        served = all(
            _is_served(group, pages, length, eagle) for group, pages in zip(coordinator.groups, cached, strict=True)
        )
        return _pages_of(coordinator, cached, length, length) if served else _none(coordinator)

    return _with_look_up(fast, find)


# -- Several groups -------------------------------------------------------------------------------


@seeded(30, "MAN-7", "hybrid", also=("MAN-1", "MAN-2", "R2"))
def hit_beyond_full_attention(fast: ModuleType) -> SimpleNamespace:
    """The hit is as long as the other groups say, a page longer than what full attention holds (vLLM 46281)."""

    def find(coordinator: Any, tokens: bytes, segments: Sequence[Any], most: int, eagle: bool) -> Any:
        cached, groups = _cached(coordinator, tokens, segments), coordinator.groups
        length = _longest(coordinator, cached, most, eagle)
        if not length or all(group.rule.shares_prefixes for group in groups):
            return _right(coordinator, cached, most, eagle)
        others = [
            [page or -1 for page in pages] if group.rule.shares_prefixes else pages
            for group, pages in zip(groups, cached, strict=True)
        ]
        longer = min(_longest(coordinator, others, most, eagle), length + _step(coordinator))
        hits, _ = _pages_of(coordinator, cached, longer, longer)
        held = [
            pages[pages != 0] if group.rule.shares_prefixes else pages
            for group, pages in zip(groups, hits, strict=True)
        ]
        return held, longer

    return _with_look_up(fast, find)


@seeded(17, "MAN-7", "hybrid", also=("R2", "MAN-1", "MAN-2", "POOL-7"))
def coarse_pages_by_fine_keys(fast: ModuleType) -> SimpleNamespace:
    """A page is found by the key that the first group has at its place, whose pages are smaller (pegaflow, kvcached).

    EasyDeL too: such a key tells of the first tokens only, and another prompt's page is hit that goes on otherwise.
    """

    def find(coordinator: Any, tokens: bytes, segments: Sequence[Any], most: int, eagle: bool) -> Any:
        fine = coordinator.groups[0].rule.page_size
        cached = _cached(coordinator, tokens, segments)
        for number, group in enumerate(coordinator.groups):
            if group.rule.page_size > fine and not group.rule.has_states:
                known = dict(_fine_keys(coordinator, group, fine))
                cached[number] = [
                    known.get((place, tokens[: 4 * fine * (place + 1)]), 0) for place in range(len(cached[number]))
                ]
        length = _longest(coordinator, cached, most, eagle)
        return _pages_of(coordinator, cached, length, length)

    return _with_look_up(fast, find)


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


@seeded(28, "MAN-1", "window", also=("MAN-8",))
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
        num_known=cached_property(_new_dict),
        get_computed_pages=get_computed_pages,
        free_page_hashes=free_page_hashes,
    )


# -- Null pages -----------------------------------------------------------------------------------


@seeded(27, "MAN-8", "window", also=("POOL-1", "MAN-1", "MAN-7", "R2"))
def null_page_is_cached(fast: ModuleType) -> SimpleNamespace:
    """Pages published late are those of the whole list, and the null page gets the keys of those given back (EasyDeL).

    So it is found in the window of a later request, which reads from it what nobody wrote.
    """

    def find(coordinator: Any, tokens: bytes, segments: Sequence[Any], most: int, eagle: bool) -> Any:
        cached = _cached(coordinator, tokens, segments)
        for group, own, pages in zip(coordinator.groups, segments, cached, strict=True):
            for place in range(len(pages)):
                if not pages[place] and _content(group, own, tokens, place) in coordinator.nulls:
                    pages[place] = -1
        length = _longest(coordinator, cached, most, eagle)
        hits, _ = _pages_of(coordinator, cached, length, length)
        return [np.maximum(pages, 0) for pages in hits], length

    backend = _with_look_up(fast, find)
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
                    place for place in range(max(first, group.num_hits[slot]), end) if not group.rows[slot, place]
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
