"""MAN-3, MAN-11: publishing the pages that a batched step fills.

Most requests that fill a page fill one, right behind the page that they published last, and the index has that page
at the end of a run. Which requests these are is worked out on arrays; for each of them a slice of its tokens is
read, and one entry made. Everything else goes the way of the single call.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvproof.spec.declarations import EngineRequest

from .cache_group import CacheGroup
from .coordinator import CacheCoordinator
from .publishing import Publishing

__all__ = ["Filled", "publish_filled", "read_filled"]


Filled = tuple[int, int, int, Publishing]
"""One request's pages of one group about to be published: its place in the step, the group's number, the request's
slot, and what was read. Entries sort in the order of the single calls. Plain tuples for the reason of `Publishing`.
"""


def read_filled(
    coordinator: CacheCoordinator,
    slots: NDArray[np.int64],
    computed: NDArray[np.int64],
    promised: NDArray[np.int64],
) -> list[Filled]:
    """Reads what publishing takes, for the requests of a step that fill a page; changes nothing (R1).

    Args:
        coordinator: the groups at work.
        slots: the requests' slots, `i64[n]`.
        computed: their computed tokens, `i64[n]`.
        promised: these and their new tokens, `i64[n]`.
    """
    filled: list[Filled] = []
    publishing_groups = [group for group in coordinator.groups if group.rule.publishes]
    if not coordinator.enable_caching:
        return filled
    for group in publishing_groups:
        first = group.published[slots]
        places = (promised // group.rule.page_size > first).nonzero()[0]
        if places.size:
            filled += _read_group(coordinator, group, places, slots[places], computed[places], promised[places])
    if len(publishing_groups) > 1:
        filled.sort(key=_in_order)
    return filled


def _in_order(entry: Filled) -> tuple[int, int]:
    return entry[:2]


def _read_group(
    coordinator: CacheCoordinator,
    group: CacheGroup,
    places: NDArray[np.int64],
    slots: NDArray[np.int64],
    computed: NDArray[np.int64],
    promised: NDArray[np.int64],
) -> list[Filled]:
    live, size, group_id = coordinator.live, group.rule.page_size, group.group_id
    requests, segments = live.requests, group.segments
    first = group.published[slots]
    after = coordinator.publisher.anchors(group, slots, computed)
    follows = (promised // size == first + 1) & coordinator.page_pool.index.cached(after)
    if group.rule.has_states or coordinator.page_pool.keeps_keys:
        follows[:] = False
    entries: list[Filled] = []
    columns = (places, slots, first, after, follows, computed, promised)
    for place, slot, start, page, is_next, done, end in zip(*(column.tolist() for column in columns), strict=True):
        request = requests[slot]
        assert request is not None, "a live slot has a request"
        if is_next and len(segments[slot]) == 1:
            tokens = _page_tokens(request, start * size, (start + 1) * size)
            if tokens:
                entries.append((place, group_id, slot, (group, start, page, start + 1, tokens, None)))
                continue
        for publishing in coordinator.publisher.read(request, slot, done, end, end, (group,)):
            entries.append((place, group_id, slot, publishing))
    return entries


def _page_tokens(request: EngineRequest, start: int, stop: int) -> bytes:
    """The bytes of one page's tokens; none where they are not all there, or not in an int32 array."""
    tokens = request.all_token_ids
    if not isinstance(tokens, np.ndarray) or tokens.dtype != np.int32 or tokens.ndim != 1:
        return b""
    return tokens[start:stop].tobytes() if stop <= len(tokens) == request.num_tokens else b""


def publish_filled(coordinator: CacheCoordinator, filled: Sequence[Filled], granted: NDArray[np.bool_]) -> None:
    """Publishes the pages of the requests that were granted slots, in order."""
    for place, _, slot, publishing in filled:
        if granted[place]:
            coordinator.publisher.publish(slot, publishing)
