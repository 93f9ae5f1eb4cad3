"""POOL, PIN, MAN-12, EVICT-1: fast's pool beside the specification's, in bulk, with keys read late or by nobody.

What small pools show the suite's machines draw. Here are calls with hundreds of pages, which are arrays to fast.
"""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .pool_lockstep import PoolLockstep

ALL = [
    *("get", "free", "touch", "cache", "evict", "reset all", "duplicates in free_pages", "free pages touched"),
    *("refused get POOL-4", "refused free POOL-5", "refused touch POOL-6", "refused cache POOL-8", "refused evict R1"),
    *("pin", "unpin", "withdraw", "prioritise", "advance", "free pages pinned", "pinned pages withdrawn"),
    *("priorities ended by time", "refused pin PIN-1", "refused unpin PIN-1", "refused evict PIN-1"),
    *("refused prioritise PIN-2", "refused advance PIN-2"),
    *("PageStored", "PageRemoved", "CacheCleared", "lifetimes", "reuse gaps"),
]
"""What happens in a life of hundreds of pages."""


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32),
    num_pages=st.sampled_from([2, 3, 9, 60]),
    keys=st.sampled_from([0.0, 0.5, 1.0]),
    weak=st.booleans(),
    ranks=st.booleans(),
    eviction=st.sampled_from(["lru", "lru", "reuse", "adaptive"]),
    unhashed_first=st.booleans(),
    enable_events=st.booleans(),
    counter_sampling=st.integers(1, 4),
    max_pinned_pages=st.sampled_from([0, 1, 4, 100]),
    max_pinned_pages_per_salt=st.sampled_from([None, 0, 1, 3]),
)
def test_pool_fast_and_specification_in_lockstep(
    seed: int, num_pages: int, keys: float, weak: bool, ranks: bool, **options: Any
) -> None:
    lockstep = PoolLockstep(seed, num_pages, keys, weak, **options)
    if ranks:
        lockstep.moves += lockstep.pins_and_priorities
    lockstep.run(35)


@pytest.mark.parametrize("unhashed_first", [False, True], ids=["pool 3", "pool 13"])
@pytest.mark.parametrize("keys", [0.5, 1.0], ids=["keys from the middle on", "keys never read"])
def test_pool_in_bulk(keys: float, unhashed_first: bool) -> None:
    """For long enough that all of what the steps are for happens."""
    happened: Counter[str] = Counter()
    for seed, per_salt in enumerate([None, None, 20, 5]):
        options = {"enable_events": seed % 2 == 1, "counter_sampling": 1 + seed, "max_pinned_pages": 60}
        lockstep = PoolLockstep(
            seed, 300, keys, False, unhashed_first=unhashed_first, max_pinned_pages_per_salt=per_salt, **options
        )
        lockstep.moves += lockstep.pins_and_priorities
        lockstep.run(150)
        counters = lockstep.model.counters
        happened += lockstep.happened
        happened.update({"lifetimes": sum(counters.page_lifetimes), "reuse gaps": sum(counters.reuse_gaps)})
    assert [name for name in [*ALL, *["found by key"] * (keys < 1.0)] if not happened[name]] == [], happened
