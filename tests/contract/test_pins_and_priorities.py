"""PIN-1, PIN-2: pages that are pinned, and free pages that are taken by priority."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from kvproof import spec

from ..strategies import PlainRequest


def held_pool(package: ModuleType, num_pages: int = 8, held: int = 5, **options: Any) -> Any:
    """Pages 1 to ``held`` are held, all but the last of them cached; 2 and 4 carry salt a, 3 salt b."""
    pool = package.PagePool(num_pages, True, hash_seed=b"s", **{"max_pinned_pages": 3, "counter_sampling": 1} | options)
    pages = pool.get_new_pages(held)
    for page in pages[:-1]:
        salts = {2: "a", 3: "b", 4: "a"}
        salt = [spec.CacheSalt(salts[page.page_id])] if page.page_id in salts else []
        pool.cache_full_pages(PlainRequest("r", [page.page_id], salt), [page], [], 0, 1, 1, 0)
    return pool


def pages_of(pool: Any, *ids: int) -> list[Any]:
    return [pool.pages[page_id] for page_id in ids]


def _withdraw(pool: Any, page_id: int) -> None:
    """What the managers do, which say their pages in their own ways."""
    pool.withdraw(pages_of(pool, page_id) if isinstance(pool, spec.PagePool) else np.array([page_id]))


def _stranger(pool: Any) -> Any:
    return type(pool)(8, True).pages[1]


def free_ids(pool: Any) -> list[int]:
    return list(pool.free_page_queue.get_all_free_pages().page_ids)


def _cached_ids(pool: Any) -> list[int]:
    return [page.page_id for page in pool.pages if page.page_hash is not None]


def _shown(pool: Any) -> object:
    """All that a pool shows, for a refused call to leave alone (R1)."""
    return (
        [(page.ref_cnt, page.page_hash, pool.get_priority(page.page_id)) for page in pool.pages],
        [pool.pins_of(page.page_id) for page in pool.pages],
        free_ids(pool),
        pool.num_pinned_pages,
        pool.now,
        pool.counters,
    )


# -- Pins -------------------------------------------------------------------------------------------


def test_a_pin_is_a_reference_and_is_held_beside_others(package: ModuleType) -> None:
    pool = held_pool(package)
    pool.free_pages(pages_of(pool, 1, 2))
    pool.pin([pages_of(pool, 1, 0), pages_of(pool, 3, 3)])
    assert [page.ref_cnt for page in pool.pages] == [0, 1, 0, 3, 1, 1, 0, 0]
    assert free_ids(pool) == [6, 7, 2]
    assert pool.get_usage() == 4 / 7
    assert pool.num_pinned_pages == 2
    assert [pool.pins_of(page_id) for page_id in range(5)] == [0, 1, 0, 2, 0]
    pool.check()


def test_unpinned_pages_are_freed_in_the_order_given(package: ModuleType) -> None:
    pool = held_pool(package)
    pool.pin([pages_of(pool, 1, 2, 3)])
    pool.free_pages(pages_of(pool, 1, 2, 3))
    assert free_ids(pool) == [6, 7]
    pool.unpin([pages_of(pool, 3), pages_of(pool, 0, 1)])
    assert free_ids(pool) == [6, 7, 3, 1]
    assert pool.num_pinned_pages == 1
    assert pool.pages[3].page_hash is not None, "still found"
    pool.check()


def test_freeing_takes_no_pins_reference(package: ModuleType) -> None:
    pool = held_pool(package)
    pool.touch([pages_of(pool, 1)])
    pool.pin([pages_of(pool, 1)])
    with pytest.raises(ValueError, match=r"ordered_pages: page 1 mentioned 3 times, held 2 times.*\[POOL-5\]"):
        pool.free_pages(pages_of(pool, 1, 1, 1))
    pool.free_pages(pages_of(pool, 1, 1))
    assert pool.pages[1].ref_cnt == 1
    with pytest.raises(ValueError, match=r"page 1.*\[POOL-5\]"):
        pool.free_pages(pages_of(pool, 1))
    pool.check()


def test_a_view_takes_no_pins_reference(package: ModuleType) -> None:
    pool = held_pool(package)
    pool.pin([pages_of(pool, 1)] * 2)
    page = pool.pages[1]
    page.ref_cnt = 2
    lowerings: list[Callable[[], None]] = [page.decr_ref, lambda: setattr(page, "ref_cnt", 1)]
    for lower in lowerings:
        with pytest.raises(ValueError, match=r"ref_cnt=1 on page 1.*\[PIN-1\]"):
            lower()
    page.incr_ref()
    page.decr_ref()
    assert page.ref_cnt == 2
    pool.check()


def test_a_pinned_page_keeps_its_hash_unless_it_is_withdrawn(package: ModuleType) -> None:
    pool = held_pool(package)
    pool.pin([pages_of(pool, 2)])
    pool.free_pages(pages_of(pool, 1, 2, 3, 4, 5))
    assert not pool.reset_prefix_cache()
    evictions: list[Callable[[], None]] = [lambda: pool.evict_pages([1, 2]), pool.pages[2].reset_hash]
    for evict in evictions:
        with pytest.raises(ValueError, match=r"page 2 is pinned.*\[PIN-1\]"):
            evict()
    assert pool.get_new_pages(6).page_ids == [6, 7, 1, 3, 4, 5]
    assert _cached_ids(pool) == [2]
    _withdraw(pool, 2)
    assert _cached_ids(pool) == []
    assert pool.num_pinned_pages == 1
    with pytest.raises(ValueError, match=r"page 2 is pinned.*\[PIN-1\]"):
        pool.cache_full_pages(PlainRequest("r", [9]), pages_of(pool, 2), [], 0, 1, 1, 0)
    pool.check()
    pool.unpin([pages_of(pool, 2)])
    assert free_ids(pool) == [2]
    pool.check()


def test_an_evicted_pin_is_refused_with_or_without_a_hash(package: ModuleType) -> None:
    pool = held_pool(package)
    pool.pin([pages_of(pool, 2)])
    _withdraw(pool, 2)
    with pytest.raises(ValueError, match=r"\[PIN-1\]"):
        pool.evict_pages([2])


def test_pins_are_bounded_by_distinct_pages(package: ModuleType) -> None:
    pool = held_pool(package, max_pinned_pages=2)
    pool.pin([pages_of(pool, 1, 2), pages_of(pool, 1, 1, 0)])
    pool.pin([pages_of(pool, 2)])
    with pytest.raises(ValueError, match=r"3 pinned pages, max_pinned_pages=2 \[PIN-1\]"):
        pool.pin([pages_of(pool, 1, 3)])
    pool.unpin([pages_of(pool, 2, 2)])
    pool.pin([pages_of(pool, 3)])
    pool.check()


def test_nothing_can_be_pinned_unless_a_bound_is_given(package: ModuleType) -> None:
    pool = package.PagePool(3, True)
    pages = pool.get_new_pages(1)
    pool.cache_full_pages(PlainRequest("r", [1]), pages, [], 0, 1, 1, 0)
    pool.pin([[], [pool.null_page]])
    with pytest.raises(ValueError, match=r"max_pinned_pages=0 \[PIN-1\]"):
        pool.pin([pages])


@pytest.mark.parametrize(
    ("first", "second", "allowed"),
    [
        ([2], [3, 1], True),  # salts a, b and none: each is bounded by itself
        ([2], [4], False),
        ([1], [6], False),  # pages without a salt count together
        ([2, 2], [2], True),
        ([], [2, 4], False),
    ],
)
def test_pins_are_bounded_for_each_salt(
    package: ModuleType, first: list[int], second: list[int], allowed: bool
) -> None:
    pool = held_pool(package, held=7, max_pinned_pages=5, max_pinned_pages_per_salt=1)
    pool.pin([pages_of(pool, *first)])
    before = _shown(pool)
    if allowed:
        pool.pin([pages_of(pool, *second)])
    else:
        with pytest.raises(ValueError, match=r"2 pinned pages of one salt, max_pinned_pages_per_salt=1 \[PIN-1\]"):
            pool.pin([pages_of(pool, *second)])
        assert _shown(pool) == before
    pool.check()


def test_a_withdrawn_page_is_of_no_salt_any_more(package: ModuleType) -> None:
    pool = held_pool(package, max_pinned_pages=2, max_pinned_pages_per_salt=1)
    pool.pin([pages_of(pool, 2)])
    _withdraw(pool, 2)
    pool.pin([pages_of(pool, 4)])
    pool.check()
    with pytest.raises(ValueError, match=r"max_pinned_pages=2"):
        pool.pin([pages_of(pool, 1)])


def test_a_salt_is_in_no_refusal(package: ModuleType) -> None:
    """SEC-2."""
    pool = held_pool(package, max_pinned_pages=1, max_pinned_pages_per_salt=1)
    for ids in ([2, 4], [2, 3]):
        with pytest.raises(ValueError, match="pinned") as refused:
            pool.pin([pages_of(pool, *ids)])
        assert "Salt" not in str(refused.value)


# -- Priorities -------------------------------------------------------------------------------------


def test_pages_of_a_low_priority_are_taken_first(package: ModuleType) -> None:
    pool = held_pool(package)
    pool.set_priority(pages_of(pool, 1), 1)
    pool.set_priority(pages_of(pool, 2, 0), -1)
    pool.free_pages(pages_of(pool, 1, 2, 3, 4))
    assert free_ids(pool) == [2, 6, 7, 3, 4, 1]
    pool.set_priority(pages_of(pool, 4), 1)
    assert free_ids(pool) == [2, 6, 7, 3, 1, 4]
    assert [pool.get_priority(page_id) for page_id in range(6)] == [0, 1, -1, 0, 1, 0]
    assert pool.get_new_pages(5).page_ids == [2, 6, 7, 3, 1]
    pool.check()


def test_a_priority_that_it_has_moves_no_page_but_may_last_longer(package: ModuleType) -> None:
    pool = held_pool(package)
    pool.free_pages(pages_of(pool, 1, 2, 3, 4))
    pool.set_priority(pages_of(pool, 1, 2), 1, expires_at=5.0)
    pool.set_priority(pages_of(pool, 1), 1, expires_at=9.0)
    assert free_ids(pool) == [6, 7, 3, 4, 1, 2]
    pool.advance_time(5)
    assert free_ids(pool) == [6, 7, 3, 4, 2, 1]
    assert (pool.get_priority(1), pool.get_priority(2)) == (1, 0)
    pool.set_priority(pages_of(pool, 1), 1)
    pool.advance_time(100.0)
    assert pool.get_priority(1) == 1
    pool.check()


def test_priorities_end_in_the_order_of_their_ends_and_then_of_pages(package: ModuleType) -> None:
    pool = held_pool(package)
    pool.free_pages(pages_of(pool, 1, 2, 3, 4))
    pool.set_priority(pages_of(pool, 4, 3), 7, expires_at=3.0)
    pool.set_priority(pages_of(pool, 1), 2, expires_at=2.0)
    pool.set_priority(pages_of(pool, 2), -2, expires_at=2.5)
    now: Any = np.float32(3)
    pool.advance_time(now)
    assert free_ids(pool) == [6, 7, 1, 2, 3, 4]
    assert pool.now == 3.0
    pool.check()


def test_priority_0_ends_never(package: ModuleType) -> None:
    """What it would fall back to is the same: the page's priority does not change, so it stays (PIN-2)."""
    pool = held_pool(package)
    pool.free_pages(pages_of(pool, 1, 2))
    pool.set_priority(pages_of(pool, 1), 5, expires_at=2.0)
    pool.set_priority(pages_of(pool, 1, 2), 0, expires_at=3.0)
    assert free_ids(pool) == [6, 7, 2, 1]
    pool.set_priority(pages_of(pool, 2), 0)
    pool.advance_time(3.0)
    assert free_ids(pool) == [6, 7, 2, 1]
    pool.check()


def test_a_priority_of_a_held_page_ends_by_time_too(package: ModuleType) -> None:
    pool = held_pool(package)
    pool.set_priority(pages_of(pool, 1, 2), 3, expires_at=1.0)
    pool.set_priority(pages_of(pool, 3), 3)
    pool.advance_time(1.0)
    pool.free_pages(pages_of(pool, 3, 1))
    assert free_ids(pool) == [6, 7, 1, 3]
    pool.check()


def test_a_priority_ends_when_the_page_is_handed_out_or_freed_without_a_hash(package: ModuleType) -> None:
    pool = held_pool(package)
    pool.set_priority(pages_of(pool, 1, 2, 3), 3)
    pool.evict_pages([1])
    assert pool.get_priority(1) == 3
    pool.free_pages(pages_of(pool, 1, 2, 3))
    assert free_ids(pool) == [6, 7, 1, 2, 3]
    assert [pool.get_priority(page_id) for page_id in (1, 2, 3)] == [0, 3, 3]
    pool.get_new_pages(4)
    assert [pool.get_priority(page_id) for page_id in (1, 2, 3)] == [0, 0, 3]
    pool.check()


def test_a_free_page_that_loses_its_hash_keeps_its_place(package: ModuleType) -> None:
    pool = held_pool(package)
    pool.set_priority(pages_of(pool, 1), 3, expires_at=2.0)
    pool.set_priority(pages_of(pool, 2), 4)
    pool.free_pages(pages_of(pool, 1, 2, 3))
    pool.evict_pages([2, 1])
    assert (free_ids(pool), pool.get_priority(1)) == ([6, 7, 3, 1, 2], 3)
    pool.free_pages(pages_of(pool, 4, 5))
    assert pool.reset_prefix_cache()
    assert (free_ids(pool), pool.get_priority(2)) == ([6, 7, 3, 4, 5, 1, 2], 4)
    pool.advance_time(2.0)
    assert (free_ids(pool), pool.get_priority(1)) == ([6, 7, 3, 4, 5, 1, 2], 0)
    pool.check()


def test_unhashed_pages_go_before_the_others_of_priority_0(package: ModuleType) -> None:
    """POOL-13: but behind those of a lower priority."""
    pool = held_pool(package, unhashed_first=True)
    pool.set_priority(pages_of(pool, 1), -1)
    pool.set_priority(pages_of(pool, 2), 1)
    pool.evict_pages([4])
    pool.free_pages(pages_of(pool, 3, 1, 2))
    pool.free_pages(pages_of(pool, 5, 4))
    assert free_ids(pool) == [1, 5, 4, 6, 7, 3, 2]
    pool.check()


def test_priorities_below_0_are_told_apart(package: ModuleType) -> None:
    pool = held_pool(package)
    pool.set_priority(pages_of(pool, 1), -1)
    pool.set_priority(pages_of(pool, 2), -2)
    pool.set_priority(pages_of(pool, 3), 0, expires_at=1.0)
    pool.free_pages(pages_of(pool, 3, 1, 2))
    assert free_ids(pool) == [2, 1, 6, 7, 3]
    pool.set_priority(pages_of(pool, 3), -1)
    assert free_ids(pool) == [2, 1, 3, 6, 7]
    pool.check()


def test_a_touched_page_comes_back_with_its_priority(package: ModuleType) -> None:
    pool = held_pool(package)
    pool.set_priority(pages_of(pool, 1), -3)
    pool.free_pages(pages_of(pool, 1, 2))
    pool.touch([pages_of(pool, 1)])
    assert free_ids(pool) == [6, 7, 2]
    pool.free_pages(pages_of(pool, 1))
    assert free_ids(pool) == [1, 6, 7, 2]


@pytest.mark.parametrize("value", [-(2**31), 2**31 - 1, np.int64(5)])
def test_a_priority_is_any_int32(package: ModuleType, value: Any) -> None:
    pool = held_pool(package)
    pool.set_priority(pages_of(pool, 1), value)
    assert pool.get_priority(1) == value
    pool.check()


# -- Refusals (R1) ----------------------------------------------------------------------------------


REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "pin an unhashed page": (lambda pool: pool.pin([pages_of(pool, 3, 5)]), ValueError, r"page 5.*\[PIN-1\]"),
    "pin a free unhashed page": (lambda pool: pool.pin([pages_of(pool, 6)]), ValueError, r"page 6.*\[PIN-1\]"),
    "pin too many": (lambda pool: pool.pin([pages_of(pool, 2, 3, 4)]), ValueError, r"\[2, 3, 4\].*\[PIN-1\]"),
    "pin no groups": (lambda pool: pool.pin(pages_of(pool, 1)), TypeError, r"pages=.*\[R1\]"),
    "pin ids": (lambda pool: pool.pin([[1]]), TypeError, r"pages has 1.*\[R1\]"),
    "pin a stranger": (lambda pool: pool.pin([[_stranger(pool)]]), ValueError, r"page 1 belongs.*\[R1\]"),
    "unpin what is not pinned": (lambda pool: pool.unpin([pages_of(pool, 1, 2)]), ValueError, r"page 2.*\[PIN-1\]"),
    "unpin too often": (lambda pool: pool.unpin([pages_of(pool, 1)] * 2), ValueError, r"page 1.*2 times.*\[PIN-1\]"),
    "unpin no groups": (lambda pool: pool.unpin(pages_of(pool, 1)), TypeError, r"pages=.*\[R1\]"),
    "unpin a stranger": (
        lambda pool: pool.unpin([[_stranger(pool)]]),
        ValueError,
        r"page 1 belongs.*\[R1\]",
    ),
    "free beside a pin's reference": (
        lambda pool: pool.free_pages(pages_of(pool, 4, 5, 1, 1)),
        ValueError,
        r"page 1.*\[POOL-5\]",
    ),
    "evict a pinned page": (lambda pool: pool.evict_pages([2, 1]), ValueError, r"page 1.*\[PIN-1\]"),
    "evict a pinned page and none": (lambda pool: pool.evict_pages([1, 8]), IndexError, r"page_ids=8.*\[R1\]"),
    "reset a pinned page's hash": (lambda pool: pool.pages[1].reset_hash(), ValueError, r"page 1.*\[PIN-1\]"),
    "pins of no page": (lambda pool: pool.pins_of(8), IndexError, r"page_id=8.*\[R1\]"),
    "prefer an unhashed page": (
        lambda pool: pool.set_priority(pages_of(pool, 1, 5), 1),
        ValueError,
        r"page 5 is not cached \[PIN-2\]",
    ),
    "prefer groups": (lambda pool: pool.set_priority([pages_of(pool, 1)], 1), TypeError, r"pages has .*\[R1\]"),
    "prefer a stranger": (
        lambda pool: pool.set_priority([_stranger(pool)], 1),
        ValueError,
        r"page 1 belongs",
    ),
    "priority True": (lambda pool: pool.set_priority(pages_of(pool, 1), True), TypeError, r"priority=True.*\[R1\]"),
    "priority 1.0": (lambda pool: pool.set_priority(pages_of(pool, 1), 1.0), TypeError, r"priority=1\.0.*\[R1\]"),
    "priority 2**31": (lambda pool: pool.set_priority([], 2**31), ValueError, r"priority=2147483648.*\[R1\]"),
    "priority below int32": (lambda pool: pool.set_priority([], -(2**31) - 1), ValueError, r"priority=-214.*\[R1\]"),
    "an end now": (lambda pool: pool.set_priority([], 1, 4.0), ValueError, r"expires_at=4\.0.*now=4\.0 \[PIN-2\]"),
    "an end before": (lambda pool: pool.set_priority([], 1, 3), ValueError, r"expires_at=3\.0.*\[PIN-2\]"),
    "an end never": (lambda pool: pool.set_priority([], 1, float("inf")), ValueError, r"expires_at=inf.*\[R1\]"),
    "no end": (lambda pool: pool.set_priority([], 1, float("nan")), ValueError, r"expires_at=nan.*\[R1\]"),
    "an end in words": (lambda pool: pool.set_priority([], 1, "5"), TypeError, r"expires_at='5'.*\[R1\]"),
    "time back": (lambda pool: pool.advance_time(3.5), ValueError, r"now=3\.5.*\[PIN-2\]"),
    "time True": (lambda pool: pool.advance_time(True), TypeError, r"now=True.*\[R1\]"),
    "time None": (lambda pool: pool.advance_time(None), TypeError, r"now=None.*\[R1\]"),
    "time nan": (lambda pool: pool.advance_time(np.float64("nan")), ValueError, r"now=nan.*\[R1\]"),
    "time beyond floats": (lambda pool: pool.advance_time(10**5000), ValueError, r"now=<an int of 16610 bits>.*\[R1\]"),
    "priority of -1": (lambda pool: pool.get_priority(-1), IndexError, r"page_id=-1.*\[R1\]"),
    "priority of none": (lambda pool: pool.get_priority(8), IndexError, r"page_id=8.*\[R1\]"),
    "priority of a page": (lambda pool: pool.get_priority(pool.pages[1]), TypeError, r"page_id=.*\[R1\]"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_call_changes_nothing(package: ModuleType, name: str) -> None:
    """Page 1 is pinned once, 1 and 2 have a priority, 2 and 3 are free; it is 4 o'clock."""
    pool = held_pool(package)
    pool.pin([pages_of(pool, 1)])
    pool.set_priority(pages_of(pool, 1, 2), 2, expires_at=8.0)
    pool.free_pages(pages_of(pool, 3, 2))
    pool.advance_time(4)
    act, error, message = REFUSED[name]
    before = _shown(pool)
    with pytest.raises(error, match=message):
        act(pool)
    assert _shown(pool) == before
    pool.check()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"max_pinned_pages": -1}, ValueError, r"max_pinned_pages=-1.*\[R1\]"),
        ({"max_pinned_pages": None}, TypeError, r"max_pinned_pages=None.*\[R1\]"),
        ({"max_pinned_pages_per_salt": -1}, ValueError, r"max_pinned_pages_per_salt=-1.*\[R1\]"),
        ({"max_pinned_pages_per_salt": True}, TypeError, r"max_pinned_pages_per_salt=True.*\[R1\]"),
    ],
)
def test_options_are_refused(package: ModuleType, options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        held_pool(package, **options)
