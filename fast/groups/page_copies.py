"""MAN-13, MAN-17: the copies of pages that a step begins with, and the pages that are held for them until then."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from kvproof.spec.declarations import PageCopy, PartCopy
from kvproof.spec.declarations.codec import Part

from ..pool.page_pool import PagePool
from .cache_group import CacheGroup
from .live_requests import LiveRequests

__all__ = ["QueuedCopy", "check_copies", "part_copies", "read_copies", "release_sources", "undo_parts"]

QueuedCopy = tuple[str, PageCopy | PartCopy]
"""A copy with the id of its request."""


def part_copies(
    request_id: str,
    groups: Sequence[CacheGroup],
    new: Iterable[tuple[int, ...] | NDArray[np.int64]],
    parts: Sequence[int],
    found: int,
) -> list[QueuedCopy]:
    """The copies of the last tokens of a hit that ends amid pages (MAN-17).

    Args:
        request_id: the request that hits.
        groups: the cache groups.
        new: the pages that it got behind its hits, for each group.
        parts: the pages that hold these tokens, 0 where the hit ends with a page.
        found: the number of tokens of the hit.
    """
    return [
        (request_id, PartCopy(group.group_id, part, int(pages[0]), found % group.page_size))
        for group, pages, part in zip(groups, new, parts, strict=True)
        if part
    ]


def release_sources(pool: PagePool, copies: Iterable[PageCopy | PartCopy]) -> None:
    """Lets go of the pages that were held for copies, in order."""
    for copy in copies:
        if isinstance(copy, PartCopy):
            pool.release(np.array([copy.source]))


def undo_parts(pool: PagePool, groups: Sequence[CacheGroup], slot: int, dropped: Iterable[PageCopy | PartCopy]) -> None:
    """Puts what a request was to copy amid a page into its list, in place of the page that waits (MAN-17)."""
    for copy in dropped:
        if isinstance(copy, PartCopy):
            group = groups[copy.group_id]
            waits = group.page_at(slot, group.num_hits[slot]) == copy.destination
            if waits:
                group.cell[group.num_origins[slot] + group.num_hits[slot]] = copy.source
            pool.release(np.array([copy.destination if waits else copy.source]))


def read_copies(copies: Part, groups: Sequence[CacheGroup], live: LiveRequests, num_pages: int) -> list[QueuedCopy]:
    """Reads the copies of a snapshot (MAN-14).

    Raises:
        ValueError: one is damaged.
    """
    read: list[QueuedCopy] = []
    for part in copies.items():
        fields = part.items()
        if len(fields) not in (4, 5):
            raise part.damaged("is no copy of a state or of part of a page")
        id_part, group_part, *numbers = fields
        if id_part.text() not in live.slot_of:
            raise id_part.damaged(f"is {id_part.value!r}, which is not live")
        number = group_part.integer(below=len(groups))
        group = groups[number]
        source, destination = (page.integer(1, num_pages) for page in numbers[:2])
        if len(numbers) > 2:
            amid = numbers[2].integer(1, group.page_size)
            if amid % group.unit:
                raise numbers[2].damaged(f"must be a multiple of {group.unit}")
            read.append((id_part.text(), PartCopy(number, source, destination, amid)))
            continue
        if not (group.rule.has_states and group.rule.gives_back):
            raise group_part.damaged(f"is {number}, a group whose states are not copied")
        read.append((id_part.text(), PageCopy(number, source, destination)))
    return read


def check_copies(
    pool: PagePool,
    groups: Sequence[CacheGroup],
    live: LiveRequests,
    queued: Iterable[QueuedCopy],
    held: NDArray[np.int64],
) -> None:
    """Verifies that what is copied amid a page is held, and goes to a page that its request writes (MAN-17).

    Args:
        pool: the pool.
        groups: the cache groups.
        live: the live requests.
        queued: the copies.
        held: the number of references to each page, in lists and for copies, `i64[num_pages]`.

    Raises:
        AssertionError: it isn't, or doesn't.
    """
    counts = pool.counts.of
    assert (held <= counts).all(), f"MAN-17: held {held.tolist()}, counted {counts.tolist()}"
    for request_id, copy in queued:
        if isinstance(copy, PartCopy):
            group, slot = groups[copy.group_id], live.slot_of[request_id]
            place, state = group.num_hits[slot], f"MAN-17: {copy}: {live.state(request_id)}"
            assert copy.num_tokens % group.unit == 0 < copy.num_tokens < group.page_size, state
            assert place * group.page_size + copy.num_tokens <= live.num_computed[slot], state
            # who goes on before the copies are taken may give the page back (MAN-8)
            given_back = place < group.num_given_back[slot]
            assert given_back or group.holds(slot, place, copy.destination), state
