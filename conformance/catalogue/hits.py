"""Faults of the look-up over groups: a hit that some group cannot serve, one that is too short, or none."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from types import ModuleType, SimpleNamespace
from typing import Any

from .look_up import cached_pages, is_served, longest, no_hit, pages_of, right_hit, step_of, with_look_up
from .patching import with_manager
from .registry import seeded

__all__: list[str] = []


def _new_dict(_: Any) -> dict[str, int]:
    return {}


# -- Eagle ----------------------------------------------------------------------------------------


@seeded(29, "MAN-9", "window", also=("MAN-1", "MAN-7", "MAN-2"))
def window_short_of_the_dropped_page(fast: ModuleType) -> SimpleNamespace:
    """The Eagle page is dropped after the look-up, which leaves the window of what is left incomplete (vLLM 17398).

    The shorter prefix's window begins a page earlier, where nothing was looked for: a null page stands there.
    """

    def find(coordinator: Any, tokens: bytes, segments: Sequence[Any], most: int, eagle: bool) -> Any:
        cached, step = cached_pages(coordinator, tokens, segments), step_of(coordinator)
        dropped = step if eagle and any(group.is_eagle for group in coordinator.groups) else 0
        seen = longest(coordinator, cached, most + dropped, False)
        hits, length = pages_of(coordinator, cached, max(seen - dropped, 0), seen)
        return (hits, length) if any(pages.any() for pages in hits) else no_hit(coordinator)

    return with_look_up(fast, find)


@seeded(29, "MAN-9", "hybrid", also=("MAN-1", "MAN-7"))
def eagle_page_dropped_in_every_round(fast: ModuleType) -> SimpleNamespace:
    """The groups are asked in turn until they agree, and each round drops the Eagle page again (vLLM 32802, 33270).

    So that they agree on nothing at all.
    """

    def find(coordinator: Any, tokens: bytes, segments: Sequence[Any], most: int, eagle: bool) -> Any:
        cached = cached_pages(coordinator, tokens, segments)
        drops = eagle and any(group.is_eagle for group in coordinator.groups)
        if not drops or len(coordinator.groups) == 1:
            return right_hit(coordinator, cached, most, eagle)
        length, before = most, -1
        while length != before:
            before = length
            length = max(longest(coordinator, cached, length, False) - step_of(coordinator), 0)
        return no_hit(coordinator)

    return with_look_up(fast, find)


@seeded(30, "MAN-9", "hybrid", also=("MAN-1", "MAN-7"))
def full_miss_at_some_lengths(fast: ModuleType) -> SimpleNamespace:
    """Where the prompt ends too early for the Eagle page of its longest hit, nothing is hit at all (vLLM 51441).

    There the groups kept what this one length needs, and no shorter one was served.
    """

    def find(coordinator: Any, tokens: bytes, segments: Sequence[Any], most: int, eagle: bool) -> Any:
        cached = cached_pages(coordinator, tokens, segments)
        length = longest(coordinator, cached, most, False)
        served = all(
            is_served(group, pages, length, eagle) for group, pages in zip(coordinator.groups, cached, strict=True)
        )
        return pages_of(coordinator, cached, length, length) if served else no_hit(coordinator)

    return with_look_up(fast, find)


# -- Several groups -------------------------------------------------------------------------------


@seeded(30, "MAN-7", "hybrid", also=("MAN-1", "MAN-2", "MAN-9", "MAN-13", "R2"))
def hit_beyond_full_attention(fast: ModuleType) -> SimpleNamespace:
    """The hit is as long as the other groups say, a page longer than what full attention holds (vLLM 46281)."""

    def find(coordinator: Any, tokens: bytes, segments: Sequence[Any], most: int, eagle: bool) -> Any:
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
            pages[pages != 0] if group.rule.shares_prefixes else pages
            for group, pages in zip(groups, hits, strict=True)
        ]
        return held, longer

    return with_look_up(fast, find)


@seeded(17, "MAN-7", "hybrid", also=("R2", "HASH-2", "MAN-1", "MAN-2", "MAN-6", "MAN-9", "POOL-7"))
def coarse_pages_by_fine_keys(fast: ModuleType) -> SimpleNamespace:
    """A page is found by the key that the first group has at its place, whose pages are smaller (pegaflow, kvcached).

    EasyDeL too: such a key tells of the first tokens only, and another prompt's page is hit that goes on otherwise.
    """

    def find(coordinator: Any, tokens: bytes, segments: Sequence[Any], most: int, eagle: bool) -> Any:
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

    return with_look_up(fast, find)


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
