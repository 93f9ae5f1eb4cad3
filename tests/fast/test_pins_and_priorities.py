"""PIN-1, PIN-2: fast's pool beside the specification's where pages are pinned and ranked; its pins and its order."""

from array import array
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvproof import fast, spec
from kvproof.fast.pool.free_order import FreeOrder

from ..strategies import PlainRequest
from .lockstep import both, pool_state
from .pool_lockstep import PoolLockstep

# -- Beside the specification -----------------------------------------------------------------------


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32),
    num_pages=st.sampled_from([2, 3, 9, 60]),
    keys=st.sampled_from([0.0, 1.0]),
    weak=st.booleans(),
    unhashed_first=st.booleans(),
    enable_events=st.booleans(),
    counter_sampling=st.integers(1, 3),
    max_pinned_pages=st.sampled_from([0, 1, 4, 100]),
    max_pinned_pages_per_salt=st.sampled_from([None, 0, 1, 3]),
)
def test_pin_fast_and_specification_in_lockstep(
    seed: int, num_pages: int, keys: float, weak: bool, **options: Any
) -> None:
    lockstep = PoolLockstep(seed, num_pages, keys, weak, **options)
    lockstep.moves += lockstep.pins_and_priorities
    lockstep.run(40)


@pytest.mark.parametrize("unhashed_first", [False, True], ids=["pool 3", "pool 13"])
def test_pin_in_bulk(unhashed_first: bool) -> None:
    """Hundreds of pages a call, for long enough that all of what the steps are for happens."""
    happened: Counter[str] = Counter()
    for seed, per_salt in enumerate([None, None, 20, 5]):
        lockstep = PoolLockstep(
            seed,
            300,
            1.0,
            False,
            unhashed_first=unhashed_first,
            counter_sampling=2,
            max_pinned_pages=60,
            max_pinned_pages_per_salt=per_salt,
        )
        lockstep.moves += lockstep.pins_and_priorities
        lockstep.run(150)
        happened += lockstep.happened
    wanted = ["pin", "unpin", "withdraw", "prioritise", "advance", "free pages pinned", "pinned pages withdrawn"]
    wanted += ["priorities ended by time", "refused pin PIN-1", "refused unpin PIN-1", "refused evict PIN-1"]
    wanted += ["refused free POOL-5", "refused prioritise PIN-2", "refused advance PIN-2"]
    assert [name for name in wanted if not happened[name]] == [], happened


# -- Refusals (R1) ----------------------------------------------------------------------------------


class Used:
    """A pool in use. Page 1 is pinned once, 1 and 2 have a priority, 2 and 3 are free, 5 is held without a hash."""

    def __init__(self, package: Any) -> None:
        self.pool = package.PagePool(8, True, hash_seed=b"s", max_pinned_pages=3, max_pinned_pages_per_salt=2)
        pages = self.pool.get_new_pages(5)
        for page in pages[:4]:
            self.pool.cache_full_pages(PlainRequest("r", [page.page_id]), [page], [], 0, 1, 1, 0)
        self.pool.pin([pages[:1]])
        self.pool.set_priority(pages[:2], 2, expires_at=8.0)
        self.pool.free_pages([pages[2], pages[1]])
        self.pool.advance_time(4)
        self.other = package.PagePool(8, True)

    def pages(self, *ids: int) -> list[Any]:
        return [self.pool.pages[page_id] for page_id in ids]


def _shown(used: Used) -> Any:
    pool = used.pool
    views = [(pool.get_priority(page_id), pool.pins_of(page_id)) for page_id in range(8)]
    return pool_state(pool, True), views, pool.num_pinned_pages, pool.now, pool.counters


REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "pin an unhashed page": (lambda at: at.pool.pin([at.pages(3, 5)]), ValueError, "PIN-1"),
    "pin a free unhashed page": (lambda at: at.pool.pin([at.pages(6)]), ValueError, "PIN-1"),
    "pin too many of no salt": (lambda at: at.pool.pin([at.pages(2), at.pages(4)]), ValueError, "PIN-1"),
    "pin too many": (lambda at: at.pool.pin([at.pages(1, 2, 3, 4)]), ValueError, "PIN-1"),
    "pin no groups": (lambda at: at.pool.pin(at.pages(1)), TypeError, "R1"),
    "pin ids": (lambda at: at.pool.pin([[1]]), TypeError, "R1"),
    "pin a stranger": (lambda at: at.pool.pin([at.pages(1), at.other.pages[1:2]]), ValueError, "R1"),
    "unpin what is not pinned": (lambda at: at.pool.unpin([at.pages(1, 2)]), ValueError, "PIN-1"),
    "unpin too often": (lambda at: at.pool.unpin([at.pages(1)] * 2), ValueError, "PIN-1"),
    "unpin no groups": (lambda at: at.pool.unpin(at.pages(1)), TypeError, "R1"),
    "unpin a stranger": (lambda at: at.pool.unpin([at.pages(1), at.other.pages[1:2]]), ValueError, "R1"),
    "pins of no page": (lambda at: at.pool.pins_of(8), IndexError, "R1"),
    "free a pin's reference": (lambda at: at.pool.free_pages(at.pages(1, 1)), ValueError, "POOL-5"),
    "free beside a pin's reference": (lambda at: at.pool.free_pages(at.pages(4, 5, 1, 1)), ValueError, "POOL-5"),
    "evict a pinned page": (lambda at: at.pool.evict_pages([2, 1]), ValueError, "PIN-1"),
    "evict a pinned page and none": (lambda at: at.pool.evict_pages([1, 8]), IndexError, "R1"),
    "reset a pinned page's hash": (lambda at: at.pages(1)[0].reset_hash(), ValueError, "PIN-1"),
    "rank an unhashed page": (lambda at: at.pool.set_priority(at.pages(1, 5), 1), ValueError, "PIN-2"),
    "rank groups": (lambda at: at.pool.set_priority([at.pages(1)], 1), TypeError, "R1"),
    "rank a stranger": (lambda at: at.pool.set_priority(at.other.pages[1:2], 1), ValueError, "R1"),
    "rank True": (lambda at: at.pool.set_priority(at.pages(1), True), TypeError, "R1"),
    "rank 1.0": (lambda at: at.pool.set_priority(at.pages(1), 1.0), TypeError, "R1"),
    "rank above int32": (lambda at: at.pool.set_priority([], 2**31), ValueError, "R1"),
    "rank below int32": (lambda at: at.pool.set_priority([], -(2**31) - 1), ValueError, "R1"),
    "rank until now": (lambda at: at.pool.set_priority([], 1, 4.0), ValueError, "PIN-2"),
    "rank until before": (lambda at: at.pool.set_priority([], 0, 3), ValueError, "PIN-2"),
    "rank until infinity": (lambda at: at.pool.set_priority([], 1, float("inf")), ValueError, "R1"),
    "rank until no number": (lambda at: at.pool.set_priority([], 1, float("nan")), ValueError, "R1"),
    "rank until a word": (lambda at: at.pool.set_priority([], 1, "5"), TypeError, "R1"),
    "time back": (lambda at: at.pool.advance_time(3.5), ValueError, "PIN-2"),
    "time True": (lambda at: at.pool.advance_time(np.True_), TypeError, "R1"),
    "time None": (lambda at: at.pool.advance_time(None), TypeError, "R1"),
    "time no number": (lambda at: at.pool.advance_time(np.float32("nan")), ValueError, "R1"),
    "time beyond floats": (lambda at: at.pool.advance_time(10**5000), ValueError, "R1"),
    "priority of -1": (lambda at: at.pool.get_priority(-1), IndexError, "R1"),
    "priority of a page": (lambda at: at.pool.get_priority(at.pool.pages[1]), TypeError, "R1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_r1_a_refused_call_changes_nothing(name: str) -> None:
    call, error, clause = REFUSED[name]
    sides = [Used(spec), Used(fast)]
    assert both(sides, call, _shown) == (False, (error, clause))
    for side in sides:
        side.pool.check()


@pytest.mark.parametrize("count", [0, 1, 2])
def test_r1_a_view_takes_no_pins_reference(count: int) -> None:
    sides = [Used(spec), Used(fast)]

    def set_count(at: Used) -> None:
        at.pages(1)[0].ref_cnt = count

    for side in sides:
        side.pool.pin([side.pages(1)])
        side.pages(1)[0].incr_ref()
    refused = {0: (ValueError, "POOL-2"), 1: (ValueError, "PIN-1")}
    assert both(sides, set_count, _shown) == (count == 2, refused.get(count))


@pytest.mark.parametrize("wrong", [-1, None, True, 1.0])
@pytest.mark.parametrize("name", ["max_pinned_pages", "max_pinned_pages_per_salt"])
def test_r1_bounds_are_read(name: str, wrong: Any) -> None:
    def build(package: Any) -> int:
        return int(package.PagePool(8, True, **{name: wrong}).num_pages)

    served, _ = both([spec, fast], build, bool)
    assert served == (wrong is None and name == "max_pinned_pages_per_salt")


def test_sec_2_no_refusal_names_a_salt() -> None:
    pool = fast.PagePool(4, True, max_pinned_pages=3, max_pinned_pages_per_salt=1)
    pages = pool.get_new_pages(2)
    salt = fast.CacheSalt("tenant")
    pool.cache_full_pages(PlainRequest("r", [1, 2], (salt,)), pages, [], 0, 2, 1, 0)
    with pytest.raises(ValueError, match=r"max_pinned_pages_per_salt=1 \[PIN-1\]") as refused:
        pool.pin([pages])
    assert not any(word in str(refused.value) for word in ("Salt", "tenant", salt.fingerprint.hex()))


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
