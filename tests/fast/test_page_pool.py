"""POOL: fast's pool beside the specification's, in bulk, with keys that nobody reads or that are read late."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .pool_lockstep import PoolLockstep


@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**32),
    num_pages=st.sampled_from([2, 3, 9, 60]),
    keys=st.sampled_from([0.0, 0.5, 1.0]),
    weak=st.booleans(),
    unhashed_first=st.booleans(),
)
def test_pool_fast_and_specification_in_lockstep(
    seed: int, num_pages: int, keys: float, weak: bool, unhashed_first: bool
) -> None:
    PoolLockstep(seed, num_pages, keys, weak, unhashed_first=unhashed_first).run(30)


@pytest.mark.parametrize("unhashed_first", [False, True], ids=["pool 3", "pool 13"])
@pytest.mark.parametrize("keys", [0.5, 1.0], ids=["keys from the middle on", "keys never read"])
def test_pool_in_bulk(keys: float, unhashed_first: bool) -> None:
    """Hundreds of pages a call, for long enough that all of what the steps are for happens."""
    happened: Counter[str] = Counter()
    for seed in range(4):
        lockstep = PoolLockstep(seed, 400, keys, False, unhashed_first=unhashed_first)
        lockstep.run(120)
        happened += lockstep.happened
    wanted = ["get", "free", "touch", "cache", "evict", "reset all", "duplicates in free_pages", "free pages touched"]
    wanted += ["refused get POOL-4", "refused free POOL-5", "refused touch POOL-6", "refused cache POOL-8"]
    wanted += ["refused evict R1"] + (["found by key"] if keys < 1.0 else [])
    assert [name for name in wanted if not happened[name]] == [], happened
