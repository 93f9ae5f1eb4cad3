"""POOL-3, POOL-13: the pool's free order against a list, with the edges of its log at every turn."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvproof.fast.pool.free_log import FreeLog


class Log(FreeLog):
    """A log whose spare room was cut, so that writes run over its edges soon; it counts how often they do."""

    __slots__ = ("packs",)

    def __init__(self, num_pages: int, front_room: bool, slack: int) -> None:
        super().__init__(num_pages, front_room)
        self.capacity = self._front_room + 2 * num_pages + slack
        self._log = self._log[: self.capacity].copy()
        self._log_cell = self._log.data
        self.packs = 0

    def _pack(self) -> None:
        self.packs += 1
        super()._pack()


class LogMachine(RuleBasedStateMachine):
    """Take, put, put in front and remove, each in bulk and single, against the same on a list."""

    @initialize(num_pages=st.integers(2, 12), front_room=st.booleans(), slack=st.integers(0, 3))
    def begin(self, num_pages: int, front_room: bool, slack: int) -> None:
        self.log = Log(num_pages, front_room, slack)
        self.front_room = front_room
        self.free = list(range(1, num_pages))
        self.held: list[int] = []

    def _out_of(self, data: st.DataObject, pages: list[int]) -> list[int]:
        chosen = data.draw(st.lists(st.sampled_from(pages), unique=True) if pages else st.just([]))
        for page in chosen:
            pages.remove(page)
        return chosen

    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(0, len(self.free)))
        taken, self.free = self.free[:count], self.free[count:]
        assert self.log.take(count).tolist() == taken
        self.held += taken

    @precondition(lambda self: self.free)
    @rule()
    def take_one(self) -> None:
        assert self.log.take_one() == self.free[0]
        self.held.append(self.free.pop(0))

    @rule(data=st.data())
    def put(self, data: st.DataObject) -> None:
        pages = self._out_of(data, self.held)
        self.log.put(np.array(pages, np.int64))
        self.free += pages

    @rule(data=st.data(), times=st.integers(1, 3))
    def put_distinct(self, data: st.DataObject, times: int) -> None:
        pages = self._out_of(data, self.held)
        if pages:
            assert not self.log.are_distinct(np.array([*pages, pages[0]])), "a page named twice is seen"
        for _ in range(times):
            assert self.log.are_distinct(np.array(pages, np.int64))
        self.log.put(np.array(pages, np.int64))
        self.free += pages

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def put_one(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(self.held))
        self.held.remove(page)
        self.log.put_one(page)
        self.free.append(page)

    @precondition(lambda self: self.front_room)
    @rule(data=st.data())
    def put_front(self, data: st.DataObject) -> None:
        pages = self._out_of(data, self.held)
        self.log.put_front(np.array(pages, np.int64))
        self.free = pages + self.free

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        pages = self._out_of(data, self.free)
        self.log.remove(np.array(pages, np.int64))
        self.held += pages

    @precondition(lambda self: self.free)
    @rule(data=st.data())
    def remove_one(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(self.free))
        self.free.remove(page)
        self.log.remove_one(page)
        self.held.append(page)

    @invariant()
    def the_order_is_exact(self) -> None:
        """POOL-3, and the log agrees with itself."""
        if hasattr(self, "log"):
            self.log.check()
            assert self.log.order().tolist() == self.free
            assert self.log.num_free == len(self.free)


LogMachine.TestCase.settings = settings(max_examples=40)
TestLog = LogMachine.TestCase


@pytest.mark.parametrize("front_room", [False, True])
def test_pool_3_the_order_is_exact_across_many_packings(front_room: bool) -> None:
    """A long run of the same operations over both edges: each of them packs, with tombstones about."""
    source = random.Random(7)
    log = Log(9, front_room, slack=1)
    free, held = list(range(1, 9)), list[int]()
    packs_at = dict.fromkeys(["put", "put_one", "put_front"], 0)
    for _ in range(3_000):
        before = log.packs
        name = source.choice(["take", "put", "put_one", "remove", "put_front" if front_room else "put"])
        count = source.randrange(9)
        if name == "take":
            held += log.take(min(count, len(free))).tolist()
            del free[: min(count, len(free))]
        elif name == "remove":
            gone = source.sample(free, min(count, len(free)))
            log.remove(np.array(gone, np.int64))
            free = [page for page in free if page not in gone]
            held += gone
        else:
            source.shuffle(held)
            put, held = held[: 1 if name == "put_one" else count], held[1 if name == "put_one" else count :]
            if name == "put_one" and put:
                log.put_one(put[0])
            elif name != "put_one":
                getattr(log, name)(np.array(put, np.int64))
            free = put + free if name == "put_front" else free + put
        if log.packs > before:
            packs_at[name] += 1
        log.check()
        assert log.order().tolist() == free
        assert sorted(free + held) == list(range(1, 9))
    assert packs_at["put"] > 20
    assert packs_at["put_one"] > 5
    assert packs_at["put_front"] > 5 or not front_room


@given(num_pages=st.integers(2, 3_000), front_room=st.booleans())
def test_pool_3_a_fresh_order_is_by_id(num_pages: int, front_room: bool) -> None:
    log = FreeLog(num_pages, front_room)
    log.check()
    assert log.order().tolist() == list(range(1, num_pages))


DAMAGES: dict[str, Callable[[Any], object]] = {
    "a page twice": lambda log: log._log.__setitem__(log.head, 3),
    "a page lost": lambda log: log._log.__setitem__(log.head, 0),
    "a wrong count": lambda log: setattr(log, "num_free", 3),
    "a wrong position": lambda log: log._position.__setitem__(2, log.tail - 1),
    "the head past the tail": lambda log: setattr(log, "head", log.tail + 1),
    "the tail past the end": lambda log: setattr(log, "tail", log.capacity + 1),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_check_sees(damage: str) -> None:
    log = FreeLog(6)
    log.check()
    DAMAGES[damage](log)
    with pytest.raises(AssertionError):
        log.check()
