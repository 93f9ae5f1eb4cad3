"""The specification's check() methods: each redundancy of its state, damaged by hand, is seen."""

from collections.abc import Callable
from typing import Any

import pytest

from kvproof import spec
from kvproof.spec import PageStored

from ..strategies import PlainRequest


def _pool() -> Any:
    """Pages 1 to 3 held, 1 and 2 cached, 4 free and cached, 5 and 6 free."""
    pool = spec.PagePool(7, True, hash_seed=b"s")
    pages = pool.get_new_pages(4)
    pool.cache_full_pages(PlainRequest("r", [1, 2, 3]), [*pages[:2], pages[3]], [], 0, 3, 1, 0)
    pool.free_pages(pages[3:])
    pool.check()
    return pool


def _key(pool: Any, page_id: int, group_id: int = 0) -> Any:
    return pool.pages[page_id].page_hash._replace(group_id=group_id)


POOL: dict[str, tuple[Callable[[Any], object], str]] = {
    "a held page in the queue": (lambda pool: pool.free_order.queue._free.update({3: None}), "POOL-2"),
    "a free page with a count": (lambda pool: pool.counts.of.__setitem__(5, 1), "POOL-2"),
    "a held page without a count": (lambda pool: pool.counts.of.__setitem__(3, 0), "POOL-2"),
    "a page lost from the queue": (lambda pool: pool.free_order.queue._free.popitem(), "POOL-2"),
    "the null page in the queue": (lambda pool: pool.free_order.queue._free.update({0: None}), "POOL-1"),
    "the null page held": (lambda pool: pool.counts.of.__setitem__(0, 1), "POOL-1"),
    "the null page cached": (lambda pool: pool.index.key_of.update({0: _key(pool, 1)}), "POOL-1"),
    "a hash that is not in the map": (lambda pool: pool.index.key_of.update({3: _key(pool, 1)}), "POOL-7"),
    "a page in the map without a hash": (lambda pool: pool.index.key_of.pop(4), "POOL-7"),
    "another hash than in the map": (lambda pool: pool.index.key_of.update({1: _key(pool, 2)}), "POOL-7"),
    "a page under two keys": (lambda pool: pool.index.pages_of[_key(pool, 2)].insert(0, 1), "POOL-[78]"),
    "a page under one key twice": (lambda pool: pool.index.pages_of[_key(pool, 2)].append(2), "POOL-8"),
    "a key without pages": (
        lambda pool: pool.index.pages_of.update({_key(pool, 2, 9): []}),
        "POOL-7",
    ),
    "a content lost": (lambda pool: pool.index.content_of.pop(4), "R2"),
    "a content of an unhashed page": (lambda pool: pool.index.content_of.update({3: 0}), "R2"),
}


@pytest.mark.parametrize("damage", POOL)
def test_the_pools_check_sees(damage: str) -> None:
    pool = _pool()
    damaging, clause = POOL[damage]
    damaging(pool)
    with pytest.raises(AssertionError, match=rf"(?s)^{clause}.*free: .*page 6: count"):
        pool.check()


TABLE: dict[str, Callable[[Any], object]] = {
    "a row longer than the table": lambda table: table._rows[1].extend([1] * 9),
    "a negative page": lambda table: table._rows[1].append(-1),
    "a page that no int32 holds": lambda table: table._rows[1].append(2**31),
}


@pytest.mark.parametrize("damage", TABLE)
@pytest.mark.parametrize("in_a_group", [False, True])
def test_the_tables_check_sees(damage: str, in_a_group: bool) -> None:
    tables = spec.MultiGroupPageTable(2, 8, 8, [4, 2])
    tables.append_row([[1], [2]], 1)
    tables.check()
    TABLE[damage](tables.page_tables[1])
    with pytest.raises(AssertionError, match="TAB-2: row 1"):
        (tables if in_a_group else tables.page_tables[1]).check()


@pytest.mark.parametrize(
    ("page_id", "stored"),
    [(0, PageStored(0, 1, b"a", None, (1, 2), None)), (2, PageStored(-1, 2, b"a", None, (1, 2), None))],
)
def test_the_followers_check_sees(page_id: int, stored: PageStored) -> None:
    follower = spec.CacheFollower()
    follower.apply([PageStored(0, 1, b"a", None, (1, 2), None)])
    follower.check()
    follower._stored[page_id] = stored
    with pytest.raises(AssertionError, match=r"(?s)^POOL-[17].*page_hash"):
        follower.check()
