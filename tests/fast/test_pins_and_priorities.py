"""PIN-1, PIN-2: what fast's pins and priorities cost, and its check(); their order is held by `test_page_pool`."""

from typing import Any

import pytest

from kvproof import fast

from ..strategies import PlainRequest

# -- What costs those nothing who don't use it ------------------------------------------------------


def test_priorities_have_no_columns_until_one_is_given() -> None:
    pool = fast.PagePool(6, True)
    pages = pool.get_new_pages(2)
    pool.cache_full_pages(PlainRequest("r", [1, 2]), pages, [], 0, 2, 1, 0)
    appends = []
    for priority in (0, 1, 0):
        pool.set_priority(pages, priority)
        appends.append((pool.appends_only, len(pool.free_order._priority_cell)))
    assert appends == [(True, 0), (False, 6), (True, 6)]
    assert not fast.PagePool(6, True, unhashed_first=True).appends_only
    pool.check()


def test_pin_2_ends_that_are_set_anew_again_and_again_cost_no_room() -> None:
    """As for prefixes whose time is lengthened at every hit."""
    pool = fast.PagePool(4, True)
    pages = pool.get_new_pages(2)
    pool.cache_full_pages(PlainRequest("r", [1, 2]), pages, [], 0, 2, 1, 0)
    for end in range(1, 2_000):
        pool.set_priority(pages, 1, expires_at=end)
    order = pool.free_order
    assert len(order._ends) < 100
    pool.advance_time(1_998)
    assert [pool.get_priority(page.page_id) for page in pages] == [1, 1]
    pool.advance_time(1_999)
    assert [pool.get_priority(page.page_id) for page in pages] == [0, 0]
    pool.check()


def test_pin_2_levels_that_come_and_go_cost_no_room() -> None:
    pool = fast.PagePool(4, True)
    pages = pool.get_new_pages(2)
    pool.cache_full_pages(PlainRequest("r", [1, 2]), pages, [], 0, 2, 1, 0)
    pool.free_pages(pages)
    for priority in range(1, 2_000):
        pool.set_priority(pages, priority)
        pool.set_priority(pages[:1], -priority)
    order = pool.free_order
    assert len(order._level_heap) < 100
    assert pool.get_new_pages(3).page_ids == [pages[0].page_id, 3, pages[1].page_id]
    pool.check()


# -- check() ----------------------------------------------------------------------------------------


def _pins(change: Any) -> Any:
    return lambda pool: change(pool.pins)


def _order(change: Any) -> Any:
    return lambda pool: change(pool.free_order)


DAMAGE: dict[str, Any] = {
    "a pin without a reference": _pins(lambda pins: pins._count_of.__setitem__(1, 2)),
    "a pin that is not counted": _pins(lambda pins: pins._count_of.__setitem__(4, 1)),
    "a pin less than none": _pins(lambda pins: pins._count_of.__setitem__(4, -1)),
    "the null page pinned": _pins(lambda pins: pins._count_of.__setitem__(0, 1)),
    "more pins than allowed": _pins(lambda pins: setattr(pins, "_max_pages", 0)),
    "more pins of a salt": _pins(lambda pins: setattr(pins, "_max_per_salt", 0)),
    "a salt lost": _pins(lambda pins: pins._salts.clear()),
    "a salt counted twice": _pins(lambda pins: pins._per_salt.update([None])),
    "a page in no level": _order(lambda order: order._levels[-1].clear()),
    "a level not in order": _order(lambda order: order._level_heap.clear()),
    "levels that are no heap": _order(lambda order: order._level_heap.insert(0, 5)),
    "a page in another level": _order(lambda order: order._levels.update({-1: {2: None}})),
    "a wrong number of pages": _order(lambda order: setattr(order, "_num_in_levels", 2)),
    "a priority that is not its place": _order(lambda order: order._priority_of.__setitem__(2, 1)),
    "a priority that is not counted": _order(lambda order: order._priority_of.__setitem__(4, 1)),
    "a priority of the null page": _order(lambda order: order._priority_of.__setitem__(0, 1)),
    "an end of priority 0": _order(lambda order: order._end_of.update({2: 9.0})),
    "ends that are no heap": _order(lambda order: order._ends.insert(0, (9.0, 3))),
    "an end forgotten": _order(lambda order: order._ends.clear()),
    "an end that has passed": _order(lambda order: setattr(order, "now", 8.0)),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_check_sees(damage: str) -> None:
    """Page 1 is pinned, 2 free, 3 free with a lower priority that lasts to 8, 4 held."""
    pool = fast.PagePool(8, True, max_pinned_pages=3, max_pinned_pages_per_salt=2)
    pages = pool.get_new_pages(4)
    pool.cache_full_pages(PlainRequest("r", [1, 2, 3, 4]), pages, [], 0, 4, 1, 0)
    pool.pin([pages[:1]])
    pool.free_pages(pages[:3])
    pool.set_priority(pages[2:3], -1, expires_at=8.0)
    pool.check()
    DAMAGE[damage](pool)
    with pytest.raises(AssertionError, match=r"(?s)free: .*\ncounts: .*\npins: "):
        pool.check()
