"""POOL, PIN, MAN-12, EVICT-1: the suite's machines of pools with hundreds of pages, which are arrays to fast.

What small pools show the suite itself draws. Here the same steps name many pages in a call, and keys are read late or
by nobody but the last look.
"""

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.conformance.backends.loading import load_backend
from kvproof.conformance.calls.datum import Call
from kvproof.conformance.machines.base import Both
from kvproof.conformance.machines.draws import Drawing
from kvproof.conformance.machines.pool import PoolPins
from kvproof.conformance.machines.session import Session
from kvproof.spec.clauses import CLAUSES


class Chance(Drawing):
    """Decisions by a seed, for calls that name many pages."""

    def __init__(self, seed: int, times: int) -> None:
        super().__init__(None)
        self._random = random.Random(seed)
        self.times = times

    def integer(self, least: int, most: int) -> int:
        return self._random.randint(least, most)


class Late(PoolPins):
    """Pools whose keys nobody reads while states are not compared; fast writes them down when somebody does."""

    def learn(self, call: Call, both: Both) -> None:
        if not self.hurrying or call.method != "cache_full_pages":
            super().learn(call, both)


class Unranked(Late):
    """Pools without pins and priorities."""

    capability = ""


def live(num_pages: int, options: dict[str, Any], seed: int, steps: int, unread: float) -> Counter[str]:
    """A life of a pool beside the specification's; returns what was drawn.

    Args:
        num_pages: of both pools.
        options: of both pools.
        seed: of the calls.
        steps: how many steps it has.
        unread: the share of them, from the first on, after which no state is read.
    """
    session = Session(load_backend("kvproof.fast"), CLAUSES)
    kind = Late if "max_pinned_pages" in options else Unranked
    pool, chance = type(kind.name, (kind,), {"session": session})(), Chance(seed, 1 + num_pages // 8)
    pool.build_pool(num_pages, True, **options)
    pool.now = 0.0
    for step in range(steps):
        pool.hurrying = step < unread * steps
        pool.take_step_of(chance.one_of([*pool.possible_steps(), *["misuse"] * 4]), chance)
        pool.backend.pool.check()
    pool.hurrying, pool.closing = False, True
    pool.compare_states({})
    pool.end()
    return session.drawn


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32),
    num_pages=st.sampled_from([3, 9, 60]),
    unread=st.sampled_from([0.0, 0.5, 1.0]),
    eviction=st.sampled_from(["lru", "lru", "reuse", "adaptive"]),
    unhashed_first=st.booleans(),
    tells=st.booleans(),
    counter_sampling=st.integers(1, 4),
    pinned=st.sampled_from([{}, *({"max_pinned_pages": most} for most in (0, 4, 100))]),
    salted=st.sampled_from([{}, *({"max_pinned_pages_per_salt": most} for most in (0, 1, 3))]),
)
def test_pools_of_any_options(
    seed: int, num_pages: int, unread: float, tells: bool, pinned: dict[str, int], salted: dict[str, int], **more: Any
) -> None:
    options = {"enable_events": tells, **pinned, **(salted if pinned else {}), **more}
    live(num_pages, options, seed, 35, unread)


@pytest.mark.parametrize("unhashed_first", [False, True], ids=["pool 3", "pool 13"])
@pytest.mark.parametrize("unread", [0.5, 1.0], ids=["keys from the middle on", "keys never read"])
def test_pool_in_bulk(unread: float, unhashed_first: bool) -> None:
    """For long enough that every method is called, and most of them with something wrong."""
    drawn: Counter[str] = Counter()
    for seed, per_salt in enumerate([None, None, 20, 5]):
        options: dict[str, Any] = {"enable_events": True, "counter_sampling": 1 + seed, "max_pinned_pages": 60}
        options |= {"unhashed_first": unhashed_first, "max_pinned_pages_per_salt": per_salt}
        drawn += live(300, options, seed, 100, unread)
    called = {row.name for row in Late.rows() if row.form != "build" and (row.weight or row.spoils)}
    called -= {"get_cached_page"} if unread == 1.0 else set()  # whose keys nobody has seen
    assert not [name for name in called if not drawn[f"pool.{name}"]]
    refused = {
        row.name for row in Late.rows() if any(drawn[f"pool.{row.name}({name}) wrong"] for name in row.arguments)
    }
    assert len(refused) >= 8, refused
