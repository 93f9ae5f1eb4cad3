"""PIN-1, PIN-2: fast's order of free pages by priority, what its pins and priorities cost, and its check()."""

from array import array
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvproof import fast
from kvproof.fast.pool.free_order import FreeOrder

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


# -- The order --------------------------------------------------------------------------------------


class OrderMachine(RuleBasedStateMachine):
    """The order by priority and arrival, against the same on a list that is sorted anew at every step."""

    @initialize(num_pages=st.integers(2, 12), front_room=st.booleans())
    def begin(self, num_pages: int, front_room: bool) -> None:
        self.cells = array("I", [1] * num_pages)
        self.order = FreeOrder(num_pages, self.cells, front_room)
        self.front_room = front_room
        self.free = list(range(1, num_pages))  # by arrival
        self.held: list[int] = []
        self.priority = dict.fromkeys(self.free, 0)
        self.ends: dict[int, int] = {}
        self.now = 0

    def _out_of(self, data: st.DataObject, pages: list[int]) -> list[int]:
        chosen = data.draw(st.lists(st.sampled_from(pages), unique=True) if pages else st.just([]))
        for page in chosen:
            pages.remove(page)
        return chosen

    def _sorted(self) -> list[int]:
        return sorted(self.free, key=self.priority.__getitem__)

    def _end(self, page: int) -> None:
        self.priority[page] = 0
        self.ends.pop(page, None)

    @rule(data=st.data(), how=st.sampled_from(["take_one", "take"]))
    def take(self, data: st.DataObject, how: str) -> None:
        count = min(1, len(self.free)) if how == "take_one" else data.draw(st.integers(0, len(self.free)))
        taken = self._sorted()[:count]
        if how == "take_one":
            assert [self.order.take_one() for _ in taken] == taken
        else:
            assert self.order.take(count).tolist() == taken
        for page in taken:
            self.free.remove(page)
            self._end(page)
        self.held += taken

    @rule(data=st.data(), how=st.sampled_from(["put_one", "put"]))
    def put(self, data: st.DataObject, how: str) -> None:
        pages = self._out_of(data, self.held)
        for page in pages:
            self.cells[page] = data.draw(st.integers(0, 1))
        ids = np.array(pages, np.int64)
        if how == "put_one":
            for page in pages:
                self.order.put_one(page)
        else:
            assert self.order.are_distinct(ids)
            self.order.put(ids)
        for page in pages:
            if not self.cells[page]:
                self._end(page)
        self.free += pages

    @precondition(lambda self: self.front_room)
    @rule(data=st.data())
    def put_front(self, data: st.DataObject) -> None:
        pages = self._out_of(data, self.held)
        self.order.put_front(np.array(pages, np.int64))
        for page in pages:
            self._end(page)
        self.free = pages + self.free

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        pages = self._out_of(data, self.free)
        self.order.remove(np.array(pages, np.int64))
        self.held += pages

    @rule(data=st.data(), priority=st.integers(-2, 2), lasting=st.none() | st.integers(1, 3))
    def rank(self, data: st.DataObject, priority: int, lasting: int | None) -> None:
        page = data.draw(st.sampled_from(sorted(self.free + self.held)))
        end = None if lasting is None else self.now + lasting
        self.order.set(page, priority, end, page in self.free)
        self._move(page, priority)
        self.ends.pop(page, None)
        if end is not None and priority:
            self.ends[page] = end

    def _move(self, page: int, priority: int) -> None:
        if page in self.free and self.priority[page] != priority:
            self.free.remove(page)
            self.free.append(page)
        self.priority[page] = priority

    @rule(later=st.integers(0, 2))
    def expire(self, later: int) -> None:
        self.now += later
        self.order.advance(self.now)
        for end, page in sorted((end, page) for page, end in self.ends.items()):
            if end <= self.now:
                self._move(page, 0)
                self._end(page)

    @invariant()
    def the_order_is_exact(self) -> None:
        if hasattr(self, "order"):
            self.order.check()
            assert self.order.order().tolist() == self._sorted()
            assert self.order.num_free == len(self.free)
            assert [self.order.priority(page) for page in self.priority] == list(self.priority.values())
            assert self.order.num_prioritised == sum(map(bool, self.priority.values()))


OrderMachine.TestCase.settings = settings(max_examples=60)
TestOrder = OrderMachine.TestCase


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
