"""PIN-1, PIN-2: the order of the specification's free pages follows from the calls; what its check() sees."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis.stateful import invariant

from kvproof import spec

from ..contract.test_pins_and_priorities import free_ids, held_pool, pages_of
from .driven_pool import DrivenPool

# -- Any calls --------------------------------------------------------------------------------------


class OrderedPool(DrivenPool):
    """The eviction order and the priorities follow from the history; pins are references."""

    @invariant()
    def free_pages_stand_by_priority_and_then_by_arrival(self) -> None:
        place, priorities = _standing(self.history, self.pool.num_pages, self.pool.unhashed_first)
        assert free_ids(self.pool) == sorted(self.ids(held=False), key=place.__getitem__)
        assert [self.pool.get_priority(page.page_id) for page in self.pool.pages] == priorities
        assert self.pool.now == self.now

    @invariant()
    def pins_are_counted(self) -> None:
        assert [self.pool.pins_of(page.page_id) for page in self.pool.pages] == [
            self.pinned[page.page_id] for page in self.pool.pages
        ]
        assert self.pool.num_pinned_pages == len(+self.pinned)
        assert all(self.pool.pages[page_id].ref_cnt >= pins for page_id, pins in self.pinned.items())


def _standing(
    history: list[tuple[Any, ...]], num_pages: int, unhashed_first: bool
) -> tuple[dict[int, tuple[int, int]], list[int]]:
    """Each page's (priority, arrival), and each page's priority, as they follow from the history.

    Arrivals are numbered upwards, those before all others downwards from -1; a held page keeps its last one.
    """
    arrival = {page_id: page_id for page_id in range(num_pages)}
    priority = dict.fromkeys(arrival, 0)
    end: dict[int, float] = {}
    free = set(arrival) - {0}

    def arrive(page_id: int) -> None:
        arrival[page_id] = max(0, *arrival.values()) + 1

    def prioritise(page_id: int, value: int, until: float | None) -> None:
        end.pop(page_id, None)
        end.update({} if until is None else {page_id: until})
        if priority[page_id] != value:
            priority[page_id] = value
            arrive(page_id)  # that of a held page is told anew when it is freed

    for entry in history:
        match entry:
            case ("taken", ids):
                free -= set(ids)
                for page_id in ids:
                    prioritise(page_id, 0, None)
            case ("held", ids):
                free -= set(ids)
            case ("freed", pages):
                free |= {page_id for page_id, _ in pages}
                for page_id, cached in pages:
                    if not cached:
                        prioritise(page_id, 0, None)
                    arrive(page_id)
                if unhashed_first:
                    for page_id in reversed([page_id for page_id, cached in pages if not cached]):
                        arrival[page_id] = min(0, *arrival.values()) - 1
            case ("priority", ids, value, until):
                for page_id in ids:
                    prioritise(page_id, value, until)
            case ("time", now):
                for _, page_id in sorted((until, page_id) for page_id, until in end.items() if until <= now):
                    prioritise(page_id, 0, None)
    return {page_id: (priority[page_id], arrival[page_id]) for page_id in free}, list(priority.values())


TestAnOrderedPool = OrderedPool.TestCase
TestAnOrderedPool.settings = settings(max_examples=200)


# -- check() ----------------------------------------------------------------------------------------

DAMAGE: dict[str, tuple[Any, str]] = {
    "a pin without a reference": (lambda pool: pool.pins._count.update([1]), "PIN-1"),
    "a pin on a free page": (lambda pool: pool.pins._count.update([3]), "PIN-1"),
    "a pin noted as none": (lambda pool: pool.pins._count.update({4: 0}), "PIN-1"),
    "the null page pinned": (lambda pool: pool.pins._count.update([0]), "PIN-1"),
    "a page pinned that is none": (lambda pool: pool.pins._count.update([8]), "PIN-1"),
    "more pins than allowed": (lambda pool: setattr(pool.pins, "_max_pages", 0), "PIN-1"),
    "more pins of a salt": (lambda pool: setattr(pool.pins, "_max_per_salt", 0), "PIN-1"),
    "a page in another level": (lambda pool: pool.free_order._levels.update({1: {3: None}}), "PIN-2"),
    "an empty level": (lambda pool: pool.free_order._levels.update({1: {}}), "PIN-2"),
    "a priority that is not its place": (lambda pool: pool.free_order._priority.update({3: (1, None)}), "PIN-2"),
    "a priority of the null page": (lambda pool: pool.free_order._priority.update({0: (1, None)}), "PIN-2"),
    "a priority of no page": (lambda pool: pool.free_order._priority.update({8: (1, None)}), "PIN-2"),
    "a priority that all have": (lambda pool: pool.free_order._priority.update({1: (0, None)}), "PIN-2"),
    "a priority that has ended": (lambda pool: setattr(pool.free_order, "now", 8.0), "PIN-2"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_check_sees(damage: str) -> None:
    """Page 1 is pinned, 2 free, 3 free with a lower priority that lasts to 8."""
    pool = held_pool(spec)
    pool.free_pages(pages_of(pool, 2, 3, 1))
    pool.pin([pages_of(pool, 1)])
    pool.set_priority(pages_of(pool, 3), -1, expires_at=8.0)
    pool.advance_time(7.0)
    pool.check()
    damaging, clause = DAMAGE[damage]
    damaging(pool)
    with pytest.raises(AssertionError, match=rf"(?s)^{clause}.*priorities at .*pins: .*page 7: count"):
        pool.check()
