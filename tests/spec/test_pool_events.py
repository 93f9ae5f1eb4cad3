"""MAN-12: the events and counters of a pool."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis.stateful import invariant

from kvproof import spec
from kvproof.spec.declarations import NUM_BUCKETS, CacheCleared, CacheCounters, PageRemoved, PageStored

from ..strategies import PlainRequest
from .driven_pool import DrivenPool


def _pool(num_pages: int = 8, **options: Any) -> spec.PagePool:
    return spec.PagePool(num_pages, True, hash_seed=b"s", **{"enable_events": True, "counter_sampling": 1} | options)


def _cache(pool: spec.PagePool, ids: list[int], tokens: list[int], first: int = 0, extra_keys: Any = ()) -> list[Any]:
    """Caches pages in group 2, two tokens a page, those from ``first`` on; returns the keys of the request's pages."""
    request = PlainRequest("r", tokens, extra_keys)
    pool.cache_full_pages(request, [pool.pages[page_id] for page_id in ids], [], first, len(ids), 2, 2)
    return list(spec.hash_request_tokens(spec.sha256, 2, request, none_hash=pool.none_hash))


def _histogram(*values: int) -> tuple[int, ...]:
    return tuple(sum(value.bit_length() == bucket for value in values) for bucket in range(NUM_BUCKETS))


# -- Any calls --------------------------------------------------------------------------------------


class FollowedPool(DrivenPool):
    """A follower has the pool's map after every call, and the counters follow from the history."""

    @invariant()
    def the_follower_has_the_cached_map(self) -> None:
        self.follower = getattr(self, "follower", None) or spec.CacheFollower()
        self.follower.apply(self.pool.take_events())
        self.follower.check()
        cached = {key: pages.page_ids for key, pages in self.pool.cached_page_hash_to_page.items()}
        assert {key: list(ids) for key, ids in self.follower.cached_page_hash_to_page.items()} == cached
        assert self.pool.take_events() == []

    @invariant()
    def the_counters_follow_from_the_history(self) -> None:
        assert self.pool.counters == _counted(self.history, self.pool.counter_sampling)


def _counted(history: list[tuple[Any, ...]], sampling: int) -> CacheCounters:
    """What is to be counted: each page's story is told by the latest entries that name it."""
    told: dict[int, dict[str, int]] = {}
    clock, evictions = 0, 0
    lifetimes, gaps = [], []
    for what, pages, *_ in history:
        for page in pages if isinstance(pages, list) else []:
            page_id, cached = page if isinstance(page, tuple) else (page, True)
            story = told.setdefault(page_id, {})
            match what:
                case "taken":
                    if "stored" in story:
                        evictions += 1
                        lifetimes += [clock - story["stored"]] if page_id % sampling == 0 else []
                    told[page_id] = {}
                    clock += 1
                case "lost":
                    told[page_id] = {}
                case "stored":
                    story["stored"] = clock
                case "freed" if cached:
                    story["freed"] = clock
                case "held":
                    gaps += [clock - story["freed"]] if page_id % sampling == 0 else []
    return CacheCounters(evictions=evictions, page_lifetimes=_histogram(*lifetimes), reuse_gaps=_histogram(*gaps))


TestAFollowedPool = FollowedPool.TestCase


# -- Events -----------------------------------------------------------------------------------------


def test_a_stored_page_is_told_with_its_key_and_its_parents() -> None:
    pool = _pool()
    pool.get_new_pages(2)
    salt = (spec.CacheSalt("tenant"),)
    keys = _cache(pool, [1, 2], [1, 2, 3, 4, 5], extra_keys=salt)
    assert pool.take_events() == [
        PageStored(2, 1, keys[0].hash_value, None, (1, 2), salt),
        PageStored(2, 2, keys[1].hash_value, keys[0].hash_value, (3, 4), salt),
    ]
    assert pool.take_events() == []


def test_the_parent_is_the_page_before_in_the_request_cached_or_not() -> None:
    """A null page is passed over and is a parent all the same (HASH-3); so is one that the call does not cache."""
    pool = _pool()
    pool.get_new_pages(2)
    keys = _cache(pool, [0, 1, 0, 2], list(range(8)), first=1)
    assert [(event.page_id, event.parent_hash) for event in pool.take_events() if isinstance(event, PageStored)] == [
        (1, keys[0].hash_value),
        (2, keys[2].hash_value),
    ]


def test_handing_out_tells_of_the_hashes_that_go_in_queue_order() -> None:
    pool = _pool(5)
    pool.get_new_pages(3)
    keys = _cache(pool, [1, 2], [1, 2, 3, 4])
    pool.free_pages([pool.pages[page_id] for page_id in (2, 3, 1)])
    pool.take_events()
    assert pool.get_new_pages(4).page_ids == [4, 2, 3, 1]
    assert pool.take_events() == [PageRemoved(2, 2, keys[1].hash_value), PageRemoved(2, 1, keys[0].hash_value)]


@pytest.mark.parametrize("order", [[1, 2, 3], [3, 1, 2], [2, 2, 1, 3, 1], [3, 0, 4, 2]])
def test_eviction_tells_in_the_order_given_each_page_once(order: list[int]) -> None:
    pool = _pool()
    pool.get_new_pages(3)
    keys = _cache(pool, [1, 2, 3], [1, 2, 3, 4, 5, 6])
    pool.take_events()
    pool.evict_pages(iter(order))
    wanted = [page_id for page_id in dict.fromkeys(order) if page_id in (1, 2, 3)]
    assert pool.take_events() == [PageRemoved(2, page_id, keys[page_id - 1].hash_value) for page_id in wanted]


def test_a_page_that_is_reset_or_withdrawn_is_told() -> None:
    pool = _pool(max_pinned_pages=1)
    pool.get_new_pages(3)
    keys = _cache(pool, [1, 2, 3], [1, 2, 3, 4, 5, 6])
    pool.pin([[pool.pages[2]]])
    pool.take_events()
    pool.pages[1].reset_hash()
    pool.withdraw([pool.pages[3], pool.pages[2], pool.pages[3], pool.null_page])
    assert pool.take_events() == [PageRemoved(2, page_id, keys[page_id - 1].hash_value) for page_id in (1, 3, 2)]
    pool.check()


def test_only_the_duplicate_that_goes_is_told() -> None:
    pool = _pool()
    pool.get_new_pages(2)
    keys = _cache(pool, [1], [1, 2])
    _cache(pool, [2], [1, 2])
    pool.take_events()
    pool.evict_pages([1])
    assert pool.take_events() == [PageRemoved(2, 1, keys[0].hash_value)]


def test_a_reset_tells_that_all_is_gone_also_where_nothing_was() -> None:
    pool = _pool()
    pages = pool.get_new_pages(2)
    _cache(pool, [1, 2], [1, 2, 3, 4])
    pool.take_events()
    assert not pool.reset_prefix_cache()
    assert pool.take_events() == []
    pool.free_pages(pages)
    assert pool.reset_prefix_cache()
    assert pool.reset_prefix_cache()
    assert pool.take_events() == [CacheCleared(), CacheCleared()]


def test_refused_calls_tell_nothing() -> None:
    pool = _pool(max_pinned_pages=1)
    pages = pool.get_new_pages(3)
    _cache(pool, [1, 2], [1, 2, 3, 4])
    pool.pin([pages[:1]])
    pool.take_events()
    before = pool.counters
    refused: Iterable[Any] = (
        lambda: pool.get_new_pages(99),
        lambda: pool.evict_pages([2, 1]),
        lambda: pool.evict_pages([2, 99]),
        lambda: _cache(pool, [3, 2], [1, 2, 3, 4]),
        pool.pages[1].reset_hash,
    )
    for call in refused:
        with pytest.raises((ValueError, IndexError)):
            call()
    assert pool.take_events() == []
    assert pool.counters == before
    pool.check()


def test_events_are_off_unless_asked_for() -> None:
    pool = spec.PagePool(4, True)
    pages = pool.get_new_pages(2)
    _cache(pool, [1, 2], [1, 2, 3, 4])
    pool.evict_pages([1])
    pool.free_pages(pages)
    pool.get_new_pages(3)
    pool.free_pages(pool.pages[1:])
    assert pool.reset_prefix_cache()
    assert pool.take_events() == []
    assert not pool.enable_events
    pool.check()


def test_events_print_no_salt_and_no_tokens() -> None:
    """SEC-2."""
    pool = _pool()
    pool.get_new_pages(1)
    salt = spec.CacheSalt("tenant")
    _cache(pool, [1], [12345, 67890], extra_keys=[salt])
    shown = repr(pool.take_events())
    assert "tenant" not in shown
    assert repr(salt.fingerprint) not in shown
    assert salt.fingerprint.hex() not in shown
    assert "12345" not in shown


# -- Counters ---------------------------------------------------------------------------------------


def test_a_fresh_pool_has_counted_nothing() -> None:
    assert spec.PagePool(4, True).counters == CacheCounters()


def test_times_are_counted_in_pages_handed_out() -> None:
    """Pages 1 and 2 are the 0th and 1st handed out and stored at 2; they are taken as the 7th and 9th."""
    pool = _pool(6)
    pages = pool.get_new_pages(2)
    _cache(pool, [1, 2], [1, 2, 3, 4])
    assert pool.get_new_pages(1).page_ids == [3]
    pool.free_pages(pages)  # at 3
    pool.get_new_pages(2)  # 4, 5
    pool.touch([pages[:1]])  # page 1 was free from 3 to 5
    pool.free_pages(pages[:1])
    pool.touch([pages[:1]])  # and for no time
    pool.free_pages([*pool.pages[3:5], pool.pages[1]])
    assert pool.counters == CacheCounters(reuse_gaps=_histogram(2, 0))
    assert pool.get_new_pages(3).page_ids == [2, 3, 4]  # page 2 is the 5th
    assert pool.counters == CacheCounters(evictions=1, page_lifetimes=_histogram(5 - 2), reuse_gaps=_histogram(2, 0))
    pool.get_new_pages(1)  # page 1 is the 8th
    assert pool.counters == CacheCounters(evictions=2, page_lifetimes=_histogram(3, 6), reuse_gaps=_histogram(2, 0))


def test_a_pin_on_a_free_page_is_a_reuse() -> None:
    pool = _pool(6, max_pinned_pages=1)
    pages = pool.get_new_pages(1)
    _cache(pool, [1], [1, 2])
    pool.free_pages(pages)
    pool.get_new_pages(4)
    pool.pin([pages])
    pool.touch([pages])
    assert pool.counters.reuse_gaps == _histogram(4)


@pytest.mark.parametrize("sampling", [1, 2, 3, 64])
def test_the_histograms_count_sampled_pages_only(sampling: int) -> None:
    pool = _pool(8, counter_sampling=sampling)
    pages = pool.get_new_pages(7)
    _cache(pool, pages.page_ids, list(range(14)))
    pool.free_pages(pages)
    pool.touch([pages])
    pool.free_pages(pages)
    pool.get_new_pages(7)
    sampled = [page_id for page_id in range(1, 8) if page_id % sampling == 0]
    assert pool.counters == CacheCounters(
        evictions=7,
        page_lifetimes=_histogram(*(page_id - 1 for page_id in sampled)),
        reuse_gaps=_histogram(*[0] * len(sampled)),
    )
    pool.check()


def test_a_time_beyond_the_last_bucket_counts_in_it() -> None:
    pool = _pool(3)
    pages = pool.get_new_pages(1)
    _cache(pool, [1], [1, 2])
    pool.log._clock = 2**60
    pool.free_pages(pages)
    pool.log._clock = 2**61
    pool.touch([pages])
    pool.free_pages(pages)
    pool.get_new_pages(2)
    last = (*[0] * (NUM_BUCKETS - 1), 1)
    assert (pool.counters.page_lifetimes, pool.counters.reuse_gaps) == (last, last)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"enable_events": 1}, TypeError, r"enable_events=1.*\[R1\]"),
        ({"counter_sampling": 0}, ValueError, r"counter_sampling=0.*\[R1\]"),
        ({"counter_sampling": True}, TypeError, r"counter_sampling=True.*\[R1\]"),
    ],
)
def test_options_are_refused(options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        _pool(**options)


# -- check() ----------------------------------------------------------------------------------------

DAMAGE: dict[str, Any] = {
    "a time lost": lambda pool: pool.log._stored_at.clear(),
    "a time of an unhashed page": lambda pool: pool.log._stored_at.__setitem__(3, 0),
    "a free time lost": lambda pool: pool.log._freed_at.clear(),
    "a free time of a held page": lambda pool: pool.log._freed_at.__setitem__(1, 2),
    "a time to come": lambda pool: pool.log._stored_at.__setitem__(1, 4),
    "a time below 0": lambda pool: pool.log._stored_at.__setitem__(1, -1),
    "freed before it was stored": lambda pool: pool.log._freed_at.__setitem__(2, 1),
    "a page that was never evicted": lambda pool: pool.log._page_lifetimes.__setitem__(0, 1),
    "more evictions than pages": lambda pool: setattr(pool.log, "_evictions", 4),
    "events unasked for": lambda pool: setattr(pool.log, "_enable_events", False),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_check_sees(damage: str) -> None:
    """Pages 1 and 2 were stored at 3, 2 is free again; 3 is held."""
    pool = _pool(5)
    pages = pool.get_new_pages(3)
    _cache(pool, [1, 2], [1, 2, 3, 4])
    pool.free_pages(pages[1:2])
    pool.check()
    DAMAGE[damage](pool)
    with pytest.raises(AssertionError, match=r"(?s)^MAN-12.*stored at.*page 4: count"):
        pool.check()
