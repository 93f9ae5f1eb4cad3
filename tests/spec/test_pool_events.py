"""MAN-12: the events and counters of the specification's pool follow from the calls; what its check() sees."""

from typing import Any

import pytest
from hypothesis.stateful import invariant

from kvproof import spec
from kvproof.spec.declarations import NUM_BUCKETS, CacheCounters

from ..contract.test_pool_events import cache_pages, histogram, telling_pool
from .driven_pool import DrivenPool

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
    return CacheCounters(evictions=evictions, page_lifetimes=histogram(*lifetimes), reuse_gaps=histogram(*gaps))


TestAFollowedPool = FollowedPool.TestCase


# -- Times ------------------------------------------------------------------------------------------


def test_a_time_beyond_the_last_bucket_counts_in_it() -> None:
    pool = telling_pool(spec, 3)
    pages = pool.get_new_pages(1)
    cache_pages(pool, [1], [1, 2])
    pool.log._clock = 2**60
    pool.free_pages(pages)
    pool.log._clock = 2**61
    pool.touch([pages])
    pool.free_pages(pages)
    pool.get_new_pages(2)
    last = (*[0] * (NUM_BUCKETS - 1), 1)
    assert (pool.counters.page_lifetimes, pool.counters.reuse_gaps) == (last, last)


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
    pool = telling_pool(spec, 5)
    pages = pool.get_new_pages(3)
    cache_pages(pool, [1, 2], [1, 2, 3, 4])
    pool.free_pages(pages[1:2])
    pool.check()
    DAMAGE[damage](pool)
    with pytest.raises(AssertionError, match=r"(?s)^MAN-12.*stored at.*page 4: count"):
        pool.check()
