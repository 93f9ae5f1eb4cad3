"""MAN-17: the longest prefix that every cache group can serve, where hits may end amid pages.

Each group says the longest length up to a bound that it can serve; they are asked in turn, with what the others could,
until all agree. So the cost is a walk for each group, and for each place at which one is asked for part of a page
another walk and a look at the branches that leave there; no array has an entry for each token.
"""

from collections.abc import Sequence
from math import lcm

import numpy as np
from numpy.typing import NDArray

from ..index.parts import find_part, longest_part
from ..index.prefix_index import PrefixIndex
from ..reading.arguments import refusal
from ..reading.extra_keys import ExtraSegment
from ..reading.tokens import TokenBytes
from .cache_group import CacheGroup
from .longest_hit import Hits, none_hit

__all__ = ["longest_amid", "require_parts"]


class _Served:
    """What one group can serve of a request.

    Args:
        index: the pages that are cached.
        group: the group.
        tokens: the request's token bytes.
        segments: its extra keys over its pages.
    """

    def __init__(
        self, index: PrefixIndex, group: CacheGroup, tokens: TokenBytes, segments: Sequence[ExtraSegment]
    ) -> None:
        self.group = group
        self._request = tokens, segments
        self._size, self._known = group.page_size, len(tokens) // 4
        self.pages = index.first_pages(group.tree, tokens, segments, self._known // self._size)
        self._holes: NDArray[np.int64] = np.flatnonzero(self.pages == 0)
        self._parts: dict[int, int] = {}

    def _part(self, place: int) -> int:
        """How many tokens of the page at a place are cached."""
        if place > len(self.pages):
            return 0
        if place < len(self.pages) and self.pages[place]:
            return self._size
        if place not in self._parts:
            most = min(self._known - place * self._size, self._size)
            self._parts[place] = longest_part(self.group.tree, *self._request, place, most, self.group.unit)
        return self._parts[place]

    def longest(self, length: int) -> int:
        """The longest length of a hit, at most ``length``, that the group can serve."""
        group, size = self.group, self._size
        if group.rule.has_states:
            held = self.pages[: length // size].nonzero()[0]
            return size * (held.item(-1) + 1) if held.size else 0
        after = group.unit if group.is_eagle else 0
        end = length + after
        while end > after:
            place, amid = divmod(end, size)
            if amid > self._part(place):
                end = place * size + self._part(place)
                continue
            first = group.rule.first_place(end - after)
            if place > len(self.pages) and first < place:  # nothing is cached behind the walk
                end = max(len(self.pages) * size + self._part(len(self.pages)), self._free_before(end, after))
                continue
            hole = int(np.searchsorted(self._holes, place)) - 1
            if first >= place or hole < 0 or self._holes[hole] < first:
                return end - after
            while hole > 0 and self._holes[hole - 1] >= group.rule.first_place(
                (self._holes.item(hole) + 1) * size - 1 - after
            ):
                hole -= 1  # nothing that ends in that page is served either, without asking for part of it
            last = self._holes.item(hole)
            end = last * size + self._part(last)
        return 0

    def _free_before(self, end: int, after: int) -> int:
        """The longest length below ``end`` at which the group needs no page, as a window or a chunk begins there."""
        if after or not self.group.rule.gives_back:
            return 0
        ends = np.arange(1, -(-end // self._size))
        free = ends[self.group.rule.first_place(ends * self._size) >= ends]
        return free.item(-1) * self._size if free.size else 0


def longest_amid(
    index: PrefixIndex,
    groups: Sequence[CacheGroup],
    tokens: TokenBytes,
    segments: Sequence[Sequence[ExtraSegment]],
    most: int,
) -> tuple[Hits, int, int]:
    """The longest cached prefix with which a request can be admitted, see `longest_hit`.

    Args:
        index: the pages that are cached.
        groups: the groups, at least one.
        tokens: the request's token bytes.
        segments: its extra keys over its pages, for each group.
        most: the most tokens that may be hit.

    Returns:
        The full pages, the number of tokens, and the longest prefix that the groups that keep everything can serve.
    """
    step = lcm(*(group.unit for group in groups))
    if most < step or not all(group.rule.publishes for group in groups):
        return none_hit(groups), 0, 0
    served = [_Served(index, group, tokens, own) for group, own in zip(groups, segments, strict=True)]
    keeping = [own for own in served if own.group.rule.shares_prefixes]
    reach = _agreed(keeping, most, step) if keeping else 0
    length = _agreed(served, reach if keeping else most, step)
    while length:
        hits = [_cut(own.group, own.pages, length) for own in served]
        # with windows of one token or chunks that begin there, a hit needs no page
        if any(pages.any() for pages in hits) or any(length % own.group.page_size for own in served):
            return hits, length, reach
        length = _agreed(served, length - step, step)
    return none_hit(groups), 0, reach


def require_parts(
    groups: Sequence[CacheGroup], tokens: TokenBytes, segments: Sequence[Sequence[ExtraSegment]], length: int
) -> list[int]:
    """For each group the page from which the last tokens of a hit are copied; 0 where it ends with a page.

    Raises:
        ValueError: no page of a group holds these tokens any more (MAN-17).
    """
    parts = []
    for group, own in zip(groups, segments, strict=True):
        place, count = divmod(length, group.page_size)
        parts.append(find_part(group.tree, tokens, own, place, count) if count else 0)
        if count and not parts[-1]:
            raise refusal(
                ValueError,
                "MAN-17",
                f"num_new_computed_tokens={length}: no page of group {group.group_id} has the last of them",
            )
    return parts


def _agreed(served: Sequence[_Served], length: int, step: int) -> int:
    """The longest length, a multiple of ``step``, that all can serve."""
    length = length // step * step
    while length > 0:
        least = min(own.longest(length) for own in served) // step * step
        if least == length:
            return length
        length = least
    return 0


def _cut(group: CacheGroup, pages: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """A hit's full pages: 0 where the group needs none."""
    hit = np.zeros(length // group.page_size, np.int64)
    first = group.rule.first_place(length)
    hit[first:] = pages[first : len(hit)]
    return hit
