"""MAN-1, MAN-9: the longest prefix that every cache group can serve.

Each group is searched once for the cached page at each place of the request; everything else is arithmetic on arrays
over the candidate lengths (multiples of every page size). So the cost is one walk a group and O(places) array work for
every mix of groups, and the Eagle page is part of the candidates' condition rather than dropped afterwards.
"""

from collections.abc import Sequence
from math import lcm

import numpy as np
from numpy.typing import NDArray

from ..index.prefix_index import PrefixIndex
from ..reading.arguments import refusal
from ..reading.extra_keys import ExtraSegment
from ..reading.tokens import TokenBytes
from .cache_group import CacheGroup

__all__ = ["Hits", "check_hits", "longest_hit", "none_hit"]

Hits = list[NDArray[np.int64]]
"""For each group the pages of a hit, `i64[num_tokens // page_size]`, 0 where the group needs none."""


def none_hit(groups: Sequence[CacheGroup]) -> Hits:
    """The hit without any page."""
    return [np.empty(0, np.int64) for _ in groups]


def longest_hit(
    index: PrefixIndex,
    groups: Sequence[CacheGroup],
    tokens: TokenBytes,
    segments: Sequence[Sequence[ExtraSegment]],
    most: int,
    eagle: bool,
) -> tuple[Hits, int, int]:
    """The longest cached prefix of a request that all groups can serve.

    Args:
        index: the pages that are cached.
        groups: the groups, at least one.
        tokens: the request's token bytes.
        segments: its extra keys over its pages, for each group.
        most: the most tokens that may be hit.
        eagle: True if Eagle groups need the page after the hit as well (MAN-9).

    Returns:
        The pages, the number of their tokens, and the longest prefix that the groups that keep everything can serve; 0
        for that if there is no such group (RET-2).
    """
    known = len(tokens) // 4
    step = lcm(*(group.tree.page_bytes // 4 for group in groups))
    count = most // step
    if count <= 0 or not all(group.rule.publishes for group in groups):
        return none_hit(groups), 0, 0
    found: list[NDArray[np.int64]] = []
    for group, own in zip(groups, segments, strict=True):
        size = group.rule.page_size
        wanted = min(known, most + size if eagle and group.is_eagle else most) // size
        pages = index.first_pages(group.tree, tokens, own, wanted)
        if not group.rule.gives_back:
            pages = pages[: _leading(pages)]
            count = min(count, len(pages) * size // step)
        found.append(pages)
    if count <= 0:
        return none_hit(groups), 0, 0
    lengths = np.arange(1, count + 1) * step
    good = np.ones(count, bool)
    reached = np.ones(count, bool)
    needed = np.zeros(count, bool)
    for number, group in enumerate(groups):
        ends = lengths // group.rule.page_size
        # the longest candidate and the page after it: nothing is cached behind the end of the walk
        pages = found[number] = _padded(found[number], int(ends[-1]) + 1)
        if group.rule.gives_back:
            own_places = ends - group.rule.first_place(lengths)
            served_by = _runs(pages)[ends - 1] >= own_places
            needed |= own_places > 0
        else:
            served_by = np.ones(count, bool)
            needed[:] = True
        if eagle and group.is_eagle:
            served_by &= pages[ends] != 0
        good &= served_by
        if group.rule.shares_prefixes:
            reached &= served_by
    keeps = any(group.rule.shares_prefixes for group in groups) and reached.any()
    reach = int(lengths[np.flatnonzero(reached)[-1]]) if keeps else 0
    served = np.flatnonzero(good & needed)
    if not served.size:
        return none_hit(groups), 0, reach
    length = int(lengths[served[-1]])
    return [_cut(group, pages, length) for group, pages in zip(groups, found, strict=True)], length, reach


def check_hits(
    index: PrefixIndex,
    groups: Sequence[CacheGroup],
    tokens: TokenBytes,
    segments: Sequence[Sequence[ExtraSegment]],
    hits: Hits,
    length: int,
    ends_amid: bool = False,
) -> None:
    """Refuses pages that are not a request's prefix of ``length`` tokens (MAN-1, MAN-2). O(tokens compared).

    With ``ends_amid`` the last of these tokens are in further pages (MAN-17).
    """
    num_held = int(ends_amid)
    for group, own, pages in zip(groups, segments, hits, strict=True):
        first = group.rule.first_place(length) if group.rule.gives_back else 0
        if first and pages[:first].any():
            worst = pages[:first][pages[:first] != 0][0]
            raise refusal(
                ValueError,
                "MAN-2",
                f"new_computed_pages: page {worst} stands where group {group.group_id} needs none",
            )
        num_held += len(pages) - first
        # the usual case, a look-up made just before, costs a third of the general one
        found, is_whole = index.walk(group.tree, tokens, own, len(pages))
        given = pages.astype(np.int32).tobytes()
        if found[4 * first :] == given[4 * first :] and (is_whole or pages[first:].all()):
            continue
        good = index.holds(group.tree, tokens, own, pages)[first:]
        if not good.all():
            raise refusal(
                ValueError,
                "MAN-2",
                f"new_computed_pages: page {pages[first:][good.argmin()]} does not hold the request's prefix",
            )
    if not num_held:
        raise refusal(ValueError, "MAN-1", f"new_computed_pages: {length} tokens on null pages alone are no hit")


def _cut(group: CacheGroup, pages: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    hit = pages[: length // group.rule.page_size].copy()
    hit[: group.rule.first_place(length)] = 0
    return hit


def _padded(pages: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """The first ``length`` pages, 0 where there are fewer."""
    padded = np.zeros(length, np.int64)
    padded[: len(pages)] = pages[:length]
    return padded


def _leading(pages: NDArray[np.int64]) -> int:
    """The number of pages before the first hole."""
    holes = pages == 0
    return int(holes.argmax()) if holes.any() else len(pages)


def _runs(pages: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each place the number of consecutive pages that end there, `i64[len(pages)]`."""
    places = np.arange(len(pages))
    return places - np.maximum.accumulate(np.where(pages == 0, places, -1))
