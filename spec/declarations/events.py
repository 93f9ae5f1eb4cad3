"""MAN-12, MAN-13: what a manager tells of its cache: events, counters, and copies that are to be run."""

from dataclasses import dataclass
from typing import NamedTuple

from .extra_keys import ExtraKey

__all__ = ["NUM_BUCKETS", "CacheCleared", "CacheCounters", "CacheEvent", "PageCopy", "PageRemoved", "PageStored"]

NUM_BUCKETS = 48
"""Buckets of a histogram: bucket b counts the values v with ``v.bit_length() == b``, the last one all above too."""


class PageStored(NamedTuple):
    """A page was cached. Printed it shows no token ids (SEC-2).

    Events are named tuples: an engine is told of some hundred thousand a second, and these are the cheapest to make.

    Attributes:
        group_id: the cache group.
        page_id: the page.
        page_hash: the digest of its key.
        parent_hash: the digest of the key of the page before it in the request, whether or not that one is cached;
            None for a first page.
        token_ids: the page's tokens.
        extra_keys: the extra keys that touch it, or None.
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


class PageRemoved(NamedTuple):
    """A page lost its hash. Others that were cached under the same key stay (POOL-7).

    Attributes:
        group_id: the cache group.
        page_id: the page.
        page_hash: the digest of the key that it had.
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
    """What was counted since a manager or a pool was made. Times are counted in pages handed out.

    Attributes:
        requests: admissions with caching on.
        queried_tokens: tokens of those requests.
        hit_tokens: tokens among them that were found in the cache.
        evictions: pages that lost their hash because they were handed out.
        preemptions: admissions of requests that had been live before.
        preempted_tokens: tokens up to which those had been given slots when they were freed.
        page_lifetimes: of sampled pages, from being cached to being evicted: a histogram, see `NUM_BUCKETS`.
        reuse_gaps: of sampled pages, from becoming free to being hit again: a histogram.
    """

    requests: int = 0
    queried_tokens: int = 0
    hit_tokens: int = 0
    evictions: int = 0
    preemptions: int = 0
    preempted_tokens: int = 0
    page_lifetimes: tuple[int, ...] = (0,) * NUM_BUCKETS
    reuse_gaps: tuple[int, ...] = (0,) * NUM_BUCKETS


class PageCopy(NamedTuple):
    """A copy of one state page onto another, to be run before the step (MAN-13).

    Attributes:
        group_id: the cache group.
        source: the page that holds the state.
        destination: the page that is advanced from it.
    """

    group_id: int
    source: int
    destination: int
