"""PIN-1, PIN-2: what check() of the specification's pool sees."""

from typing import Any

import pytest

from kvproof import spec

from ..contract.test_pins_and_priorities import held_pool, pages_of

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
