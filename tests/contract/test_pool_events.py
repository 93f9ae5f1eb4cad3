"""MAN-12: the clock of a pool's counters, and what its events show.

Which events there are after every call, and what is counted, the machines `pool` and `events` draw.
"""

from collections.abc import Iterable
from types import ModuleType
from typing import Any

import pytest

from kvproof import spec
from kvproof.spec.declarations import NUM_BUCKETS, CacheCounters

from ..strategies import PlainRequest


def telling_pool(package: ModuleType, num_pages: int = 8, **options: Any) -> Any:
    return package.PagePool(num_pages, True, hash_seed=b"s", **{"enable_events": True, "counter_sampling": 1} | options)


def cache_pages(pool: Any, ids: list[int], tokens: list[int], first: int = 0, extra_keys: Any = ()) -> list[Any]:
    """Caches pages in group 2, two tokens a page, those from ``first`` on; returns the keys of the request's pages."""
    request = PlainRequest("r", tokens, extra_keys)
    pool.cache_full_pages(request, [pool.pages[page_id] for page_id in ids], [], first, len(ids), 2, 2)
    return list(spec.hash_request_tokens(spec.sha256, 2, request, none_hash=pool.none_hash))


def histogram(*values: int) -> tuple[int, ...]:
    return tuple(sum(value.bit_length() == bucket for value in values) for bucket in range(NUM_BUCKETS))


# -- Events -----------------------------------------------------------------------------------------


def test_refused_calls_tell_nothing(package: ModuleType) -> None:
    pool = telling_pool(package, max_pinned_pages=1)
    pages = pool.get_new_pages(3)
    cache_pages(pool, [1, 2], [1, 2, 3, 4])
    pool.pin([pages[:1]])
    pool.take_events()
    before = pool.counters
    refused: Iterable[Any] = (
        lambda: pool.get_new_pages(99),
        lambda: pool.evict_pages([2, 1]),
        lambda: pool.evict_pages([2, 99]),
        lambda: cache_pages(pool, [3, 2], [1, 2, 3, 4]),
        pool.pages[1].reset_hash,
    )
    for call in refused:
        with pytest.raises((ValueError, IndexError)):
            call()
    assert pool.take_events() == []
    assert pool.counters == before
    pool.check()


def test_events_print_no_salt_and_no_tokens(package: ModuleType) -> None:
    """SEC-2."""
    pool = telling_pool(package)
    pool.get_new_pages(1)
    salt = spec.CacheSalt("tenant")
    cache_pages(pool, [1], [12345, 67890], extra_keys=[salt])
    shown = repr(pool.take_events())
    assert "tenant" not in shown
    assert repr(salt.fingerprint) not in shown
    assert salt.fingerprint.hex() not in shown
    assert "12345" not in shown


# -- Counters ---------------------------------------------------------------------------------------


def test_a_fresh_pool_has_counted_nothing(package: ModuleType) -> None:
    assert package.PagePool(4, True).counters == CacheCounters()


def test_times_are_counted_in_pages_handed_out(package: ModuleType) -> None:
    """Pages 1 and 2 are the 0th and 1st handed out and stored at 2; they are taken as the 7th and 9th."""
    pool = telling_pool(package, 6)
    pages = pool.get_new_pages(2)
    cache_pages(pool, [1, 2], [1, 2, 3, 4])
    assert pool.get_new_pages(1).page_ids == [3]
    pool.free_pages(pages)  # at 3
    pool.get_new_pages(2)  # 4, 5
    pool.touch([pages[:1]])  # page 1 was free from 3 to 5
    pool.free_pages(pages[:1])
    pool.touch([pages[:1]])  # and for no time
    pool.free_pages([*pool.pages[3:5], pool.pages[1]])
    assert pool.counters == CacheCounters(reuse_gaps=histogram(2, 0))
    assert pool.get_new_pages(3).page_ids == [2, 3, 4]  # page 2 is the 5th
    assert pool.counters == CacheCounters(evictions=1, page_lifetimes=histogram(5 - 2), reuse_gaps=histogram(2, 0))
    pool.get_new_pages(1)  # page 1 is the 8th
    assert pool.counters == CacheCounters(evictions=2, page_lifetimes=histogram(3, 6), reuse_gaps=histogram(2, 0))
