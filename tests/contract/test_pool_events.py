"""MAN-12: the events and counters of a pool."""

from collections.abc import Iterable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from kvproof import spec
from kvproof.spec.declarations import NUM_BUCKETS, CacheCleared, CacheCounters, PageRemoved, PageStored

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


def test_a_stored_page_is_told_with_its_key_and_its_parents(package: ModuleType) -> None:
    pool = telling_pool(package)
    pool.get_new_pages(2)
    salt = (spec.CacheSalt("tenant"),)
    keys = cache_pages(pool, [1, 2], [1, 2, 3, 4, 5], extra_keys=salt)
    assert pool.take_events() == [
        PageStored(2, 1, keys[0].hash_value, None, (1, 2), salt),
        PageStored(2, 2, keys[1].hash_value, keys[0].hash_value, (3, 4), salt),
    ]
    assert pool.take_events() == []


def test_the_parent_is_the_page_before_in_the_request_cached_or_not(package: ModuleType) -> None:
    """A null page is passed over and is a parent all the same (HASH-3); so is one that the call does not cache."""
    pool = telling_pool(package)
    pool.get_new_pages(2)
    keys = cache_pages(pool, [0, 1, 0, 2], list(range(8)), first=1)
    assert [(event.page_id, event.parent_hash) for event in pool.take_events() if isinstance(event, PageStored)] == [
        (1, keys[0].hash_value),
        (2, keys[2].hash_value),
    ]


def test_handing_out_tells_of_the_hashes_that_go_in_queue_order(package: ModuleType) -> None:
    pool = telling_pool(package, 5)
    pool.get_new_pages(3)
    keys = cache_pages(pool, [1, 2], [1, 2, 3, 4])
    pool.free_pages([pool.pages[page_id] for page_id in (2, 3, 1)])
    pool.take_events()
    assert pool.get_new_pages(4).page_ids == [4, 2, 3, 1]
    assert pool.take_events() == [PageRemoved(2, 2, keys[1].hash_value), PageRemoved(2, 1, keys[0].hash_value)]


@pytest.mark.parametrize("order", [[1, 2, 3], [3, 1, 2], [2, 2, 1, 3, 1], [3, 0, 4, 2]])
def test_eviction_tells_in_the_order_given_each_page_once(package: ModuleType, order: list[int]) -> None:
    pool = telling_pool(package)
    pool.get_new_pages(3)
    keys = cache_pages(pool, [1, 2, 3], [1, 2, 3, 4, 5, 6])
    pool.take_events()
    pool.evict_pages(iter(order))
    wanted = [page_id for page_id in dict.fromkeys(order) if page_id in (1, 2, 3)]
    assert pool.take_events() == [PageRemoved(2, page_id, keys[page_id - 1].hash_value) for page_id in wanted]


def test_a_page_that_is_reset_or_withdrawn_is_told(package: ModuleType) -> None:
    pool = telling_pool(package, max_pinned_pages=1)
    pool.get_new_pages(3)
    keys = cache_pages(pool, [1, 2, 3], [1, 2, 3, 4, 5, 6])
    pool.pin([[pool.pages[2]]])
    pool.take_events()
    pool.pages[1].reset_hash()
    named = [3, 2, 3, 0]
    pool.withdraw([pool.pages[page_id] for page_id in named] if package is spec else np.array(named))
    assert pool.take_events() == [PageRemoved(2, page_id, keys[page_id - 1].hash_value) for page_id in (1, 3, 2)]
    pool.check()


def test_only_the_duplicate_that_goes_is_told(package: ModuleType) -> None:
    pool = telling_pool(package)
    pool.get_new_pages(2)
    keys = cache_pages(pool, [1], [1, 2])
    cache_pages(pool, [2], [1, 2])
    pool.take_events()
    pool.evict_pages([1])
    assert pool.take_events() == [PageRemoved(2, 1, keys[0].hash_value)]


def test_a_reset_tells_that_all_is_gone_also_where_nothing_was(package: ModuleType) -> None:
    pool = telling_pool(package)
    pages = pool.get_new_pages(2)
    cache_pages(pool, [1, 2], [1, 2, 3, 4])
    pool.take_events()
    assert not pool.reset_prefix_cache()
    assert pool.take_events() == []
    pool.free_pages(pages)
    assert pool.reset_prefix_cache()
    assert pool.reset_prefix_cache()
    assert pool.take_events() == [CacheCleared(), CacheCleared()]


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


def test_events_are_off_unless_asked_for(package: ModuleType) -> None:
    pool = package.PagePool(4, True)
    pages = pool.get_new_pages(2)
    cache_pages(pool, [1, 2], [1, 2, 3, 4])
    pool.evict_pages([1])
    pool.free_pages(pages)
    pool.get_new_pages(3)
    pool.free_pages(pool.pages[1:])
    assert pool.reset_prefix_cache()
    assert pool.take_events() == []
    assert not pool.enable_events
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


def test_a_pin_on_a_free_page_is_a_reuse(package: ModuleType) -> None:
    pool = telling_pool(package, 6, max_pinned_pages=1)
    pages = pool.get_new_pages(1)
    cache_pages(pool, [1], [1, 2])
    pool.free_pages(pages)
    pool.get_new_pages(4)
    pool.pin([pages])
    pool.touch([pages])
    assert pool.counters.reuse_gaps == histogram(4)


@pytest.mark.parametrize("sampling", [1, 2, 3, 64])
def test_the_histograms_count_sampled_pages_only(package: ModuleType, sampling: int) -> None:
    pool = telling_pool(package, 8, counter_sampling=sampling)
    pages = pool.get_new_pages(7)
    cache_pages(pool, pages.page_ids, list(range(14)))
    pool.free_pages(pages)
    pool.touch([pages])
    pool.free_pages(pages)
    pool.get_new_pages(7)
    sampled = [page_id for page_id in range(1, 8) if page_id % sampling == 0]
    assert pool.counters == CacheCounters(
        evictions=7,
        page_lifetimes=histogram(*(page_id - 1 for page_id in sampled)),
        reuse_gaps=histogram(*[0] * len(sampled)),
    )
    pool.check()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"enable_events": 1}, TypeError, r"enable_events=1.*\[R1\]"),
        ({"counter_sampling": 0}, ValueError, r"counter_sampling=0.*\[R1\]"),
        ({"counter_sampling": True}, TypeError, r"counter_sampling=True.*\[R1\]"),
    ],
)
def test_options_are_refused(package: ModuleType, options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        telling_pool(package, **options)
