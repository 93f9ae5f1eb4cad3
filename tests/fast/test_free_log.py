"""POOL-3, POOL-13: the pool's free order against a list, with the edges of its log at every turn."""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

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


@pytest.mark.parametrize("front_room", [False, True])
@pytest.mark.parametrize(("num_pages", "slack"), [(9, 1), (2, 0), (4, 3), (13, 0)])
def test_pool_3_the_order_is_exact_across_many_packings(num_pages: int, slack: int, front_room: bool) -> None:
    """Every operation against the same on a list, for long, over both edges: each of them packs, with tombstones about.

    Pages are taken, put back, put in front and removed, in bulk and one by one; a page that is named twice is seen.
    """
    source = random.Random(7)
    log = Log(num_pages, front_room, slack)
    free, held = list(range(1, num_pages)), list[int]()
    packs_at: Counter[str] = Counter()
    acts = ["take", "take_one", "put", "put", "put_one", "remove", "remove_one", *["put_front"] * 2 * front_room]
    for _ in range(10_000):
        before = log.packs
        name = source.choice(acts)
        most = 1 if name.endswith("_one") else source.randrange(num_pages)
        if name.startswith("take"):
            taken = [log.take_one()] if name == "take_one" and free else log.take(min(most, len(free))).tolist()
            assert taken == free[: len(taken)]
            held += taken
            del free[: len(taken)]
        elif name.startswith("remove"):
            gone = source.sample(free, min(most, len(free)))
            if name == "remove_one" and gone:
                log.remove_one(gone[0])
            else:
                log.remove(np.array(gone, np.int64))
            free = [page for page in free if page not in gone]
            held += gone
        else:
            source.shuffle(held)
            put, held = held[:most], held[most:]
            if name == "put_one" and put:
                log.put_one(put[0])
            elif name != "put_one":
                for _ in range(source.randrange(3) if name == "put" else 0):
                    assert not put or not log.are_distinct(np.array([*put, put[0]]))
                    assert log.are_distinct(np.array(put, np.int64))
                getattr(log, name)(np.array(put, np.int64))
            free = put + free if name == "put_front" else free + put
        packs_at[name] += log.packs > before
        log.check()
        assert log.order().tolist() == free
        assert log.num_free == len(free)
    assert sorted(free + held) == list(range(1, num_pages))
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
