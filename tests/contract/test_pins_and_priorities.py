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


def test_r1_what_is_refused_changes_nothing(package: ModuleType) -> None:
    """Page 1 is pinned once, 1 and 2 have a priority, 2 and 3 are free; it is 4 o'clock."""
    pool = held_pool(package)
    pool.pin([pages_of(pool, 1)])
    pool.set_priority(pages_of(pool, 1, 2), 2, expires_at=8.0)
    pool.free_pages(pages_of(pool, 3, 2))
    pool.advance_time(4)
    before = _shown(pool)
    with pytest.raises(ValueError, match=r"page 1 belongs.*\[R1\]"):
        pool.unpin([[_stranger(pool)]])
    with pytest.raises(ValueError, match=r"page 1.*\[PIN-1\]"):
        pool.pages[1].reset_hash()
    with pytest.raises(ValueError, match=r"page 5 is not cached \[PIN-2\]"):
        pool.set_priority(pages_of(pool, 1, 5), 1)
    assert _shown(pool) == before
    pool.check()
