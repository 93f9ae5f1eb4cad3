"""MAN-12: times of the specification's pool that are out of the ordinary; what its check() sees."""

from typing import Any

import pytest

from kvproof import spec
from kvproof.spec.declarations import NUM_BUCKETS

from ..contract.test_pool_events import cache_pages, telling_pool

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
