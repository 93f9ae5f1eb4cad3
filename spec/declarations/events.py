"""MAN-12, MAN-13: what a manager reports: events, counters, and the copies of states to run before a step."""

from dataclasses import dataclass
from typing import NamedTuple

from .extra_keys import ExtraKey
from .reading import integer, refusal

__all__ = [
    "NUM_BUCKETS",
    "CacheCleared",
    "CacheCounters",
    "CacheEvent",
    "PageCopy",
    "PageRemoved",
    "PageStored",
    "PartCopy",
    "read_stored",
]

NUM_BUCKETS = 48
"""Number of buckets of a histogram: bucket b counts values of ``bit_length() == b``, the last all larger ones, too."""


class PageStored(NamedTuple):
    """A page was cached. Printed it shows no token ids (SEC-2).

    Events are named tuples, the cheapest objects to make: an engine may get a hundred thousand a second.

    Attributes:
        group_id: the cache group.
        page_id: the page.
        page_hash: the digest of its key.
        parent_hash: the digest of the key of the previous page of the request, cached or not; None for a first page.
        token_ids: the page's tokens.
        extra_keys: the extra keys that touch the page; None if there are none.
    """

    group_id: int
    page_id: int
    page_hash: bytes
    parent_hash: bytes | None
    token_ids: tuple[int, ...]
    extra_keys: tuple[ExtraKey, ...] | None

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._fields if name != "token_ids")
        return f"PageStored({shown})"


def read_stored(event: PageStored) -> tuple[int, int]:
    """Reads a stored page of an event that anybody may have made (R1). Whether its key is one is not looked at.

    Returns:
        The page, and its group.

    Raises:
        TypeError: a field is of a wrong type, or holds something unhashable.
        ValueError: no page of a pool, or a negative group.
    """
    page_id = integer("events page_id", event.page_id, minimum=1, clause="POOL-1")
    group_id = integer("events group_id", event.group_id)
    if event.parent_hash is not None and not isinstance(event.parent_hash, bytes):
        raise refusal(TypeError, "R1", f"events parent_hash={event.parent_hash!r} must be bytes or None")
    try:
        hash((event.page_hash, event.token_ids, event.extra_keys))
    except TypeError:
        raise refusal(TypeError, "R1", f"events: the key of page {page_id} holds something unhashable") from None
    return page_id, group_id


class PageRemoved(NamedTuple):
    """A page lost its hash. Other pages cached under the same key stay (POOL-7).

    Attributes:
        group_id: the cache group.
        page_id: the page.
        page_hash: the digest of the page's former key.
    """

    group_id: int
    page_id: int
    page_hash: bytes


@dataclass(frozen=True)
class CacheCleared:
    """Every page lost its hash (POOL-9)."""


CacheEvent = PageStored | PageRemoved | CacheCleared
"""One event."""


@dataclass(frozen=True)
class CacheCounters:
    """The counters of a manager or a pool since it was made. Times are measured in allocated pages.

    Hits are told by two reasons that an admission shows. What else was hit (`hit_tokens` without both) was left by
    other requests: the turn before in a conversation, or whoever had the same beginning. Which of them it was would
    take a note of its writer on every page, so it is left to ``kvproof replay``, which knows the trace. Pages that
    were evicted too early, or let go as no hit can need them, are in `PagePool.eviction_counters`.

    Attributes:
        requests: number of admissions with caching on.
        queried_tokens: number of tokens of the requests counted in ``requests``.
        hit_tokens: number of tokens of these requests that were found in the cache.
        evictions: number of pages that lost their hash because they were allocated again.
        preemptions: number of admissions of requests that had been live before.
        preempted_tokens: number of tokens that preempted requests had promised when they were freed.
        page_lifetimes: histogram of the times from caching to eviction of sampled pages, see `NUM_BUCKETS`.
        reuse_gaps: histogram of the times for which sampled pages were free before they were hit again.
        resumed_hit_tokens: number of ``hit_tokens`` at the admissions counted in ``preemptions``.
        junction_hit_tokens: number of ``hit_tokens`` at other admissions where, in some group, the page that holds the
            last of them was kept for a junction or the retention interval (RET-3).
    """

    requests: int = 0
    queried_tokens: int = 0
    hit_tokens: int = 0
    evictions: int = 0
    preemptions: int = 0
    preempted_tokens: int = 0
    page_lifetimes: tuple[int, ...] = (0,) * NUM_BUCKETS
    reuse_gaps: tuple[int, ...] = (0,) * NUM_BUCKETS
    resumed_hit_tokens: int = 0
    junction_hit_tokens: int = 0


class PageCopy(NamedTuple):
    """A copy of one state page onto another, to be run before the step (MAN-13).

    Attributes:
        group_id: the cache group.
        source: the page that holds the state.
        destination: the page that gets the copy, which the step advances.
    """

    group_id: int
    source: int
    destination: int


class PartCopy(NamedTuple):
    """A copy of the first tokens of one page onto another, to be run before the step (MAN-17).

    Attributes:
        group_id: the cache group.
        source: the page that holds the tokens.
        destination: the request's own page, to which it writes what follows.
        num_tokens: how many slots are copied, from the first on.
    """

    group_id: int
    source: int
    destination: int
    num_tokens: int
