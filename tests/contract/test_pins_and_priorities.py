"""PIN-1, PIN-2: what pins and priorities of both packages' pools refuse.

Which pages are held, found and taken first, the machine `pool_pins` draws.
"""

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


def _stranger(pool: Any) -> Any:
    return type(pool)(8, True).pages[1]


def free_ids(pool: Any) -> list[int]:
    return list(pool.free_page_queue.get_all_free_pages().page_ids)


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


def test_a_salt_is_in_no_refusal(package: ModuleType) -> None:
    """SEC-2."""
    pool = held_pool(package, max_pinned_pages=1, max_pinned_pages_per_salt=1)
    for ids in ([2, 4], [2, 3]):
        with pytest.raises(ValueError, match="pinned") as refused:
            pool.pin([pages_of(pool, *ids)])
        assert "Salt" not in str(refused.value)


# -- Priorities -------------------------------------------------------------------------------------


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
