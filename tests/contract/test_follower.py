"""MAN-12: a follower of a pool's events. That it has any pool's map, the machine `events` draws."""

from types import ModuleType
from typing import Any

import pytest

from kvproof import spec
from kvproof.spec import CacheCleared, CacheEvent, PageHash, PageHashWithGroupId, PageRemoved, PageStored

from ..strategies import PlainRequest

A, B, C = b"a" * 32, b"b" * 32, b"c" * 32


def _stored(page_id: int, digest: bytes = A, group_id: int = 0, parent: bytes | None = None) -> PageStored:
    return PageStored(group_id, page_id, digest, parent, (1, 2), None)


def _key(digest: bytes, group_id: int = 0) -> PageHashWithGroupId:
    return PageHashWithGroupId(PageHash(digest, (1, 2), None), group_id)


def _following(package: ModuleType, *events: Any) -> Any:
    follower = package.CacheFollower()
    follower.apply(events)
    follower.check()
    return follower


# -- The map ----------------------------------------------------------------------------------------


def test_duplicates_stand_in_the_order_in_which_they_were_cached(package: ModuleType) -> None:
    follower = _following(package, _stored(3), _stored(1), _stored(2, B), _stored(4, group_id=1), _stored(5))
    assert follower.cached_page_hash_to_page == {_key(A): (3, 1, 5), _key(B): (2,), _key(A, 1): (4,)}
    follower.apply([PageRemoved(0, 3, A)])
    more: list[CacheEvent] = [_stored(3), PageRemoved(0, 2, B)]
    follower.apply(iter(more))
    assert follower.cached_page_hash_to_page == {_key(A): (1, 5, 3), _key(A, 1): (4,)}


def test_a_page_may_come_back_under_another_hash_in_one_call(package: ModuleType) -> None:
    follower = _following(package, _stored(1), PageRemoved(0, 1, A), _stored(1, B, 2))
    assert follower.cached_page_hash_to_page == {_key(B, 2): (1,)}


def test_a_clearing_forgets_all(package: ModuleType) -> None:
    follower = _following(package, _stored(1), _stored(2, B), CacheCleared(), _stored(2))
    assert follower.cached_page_hash_to_page == {_key(A): (2,)}
    follower.apply([CacheCleared(), CacheCleared()])
    assert follower.cached_page_hash_to_page == {}


def test_a_parent_need_not_be_cached(package: ModuleType) -> None:
    assert len(_following(package, _stored(1, B, parent=A)).cached_page_hash_to_page) == 1


def test_the_map_is_read_only(package: ModuleType) -> None:
    follower = _following(package, _stored(1))
    pages: Any = follower.cached_page_hash_to_page
    with pytest.raises(TypeError):
        pages[_key(B)] = (2,)
    with pytest.raises(AttributeError):
        pages[_key(A)].append(2)


def test_its_keys_are_the_pools(package: ModuleType) -> None:
    pool = package.PagePool(5, True, enable_events=True)
    pages = pool.get_new_pages(2)
    salt = (spec.CacheSalt("a"),)
    pool.cache_full_pages(PlainRequest("r", [1, 2, 3, 4, 5], salt), pages, [], 0, 2, 2, 1)
    follower = _following(package, *pool.take_events())
    assert follower.cached_page_hash_to_page == {
        key: tuple(page.page_id for page in pages) for key, pages in pool.cached_page_hash_to_page.items()
    }


# -- Looking up -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("digests", "groups", "found"),
    [
        ([A, B, C], [0], 3),
        ([A, B, C], [1], 2),
        ([A, B, C], [0, 1], 2),
        ([A, B, C], [0, 1, 2], 0),
        ([B, A], [1, 0], 2),
        ([b"d", A], [0], 0),
        ([A, b"d", B], [0], 1),
        ([], [0], 0),
        ([A, b"d"], [], 2),  # there is no group that lacks it
    ],
)
def test_leading_pages_are_counted_that_every_group_has(
    package: ModuleType, digests: list[bytes], groups: list[int], found: int
) -> None:
    """Group 0 has A, B and C, group 1 A and B; none of them is the parent of another."""
    follower = _following(package, _stored(1), _stored(2, B), _stored(3, C), _stored(4, A, 1), _stored(5, B, 1))
    assert follower.num_cached_pages((_key(digest).page_hash for digest in digests), iter(groups)) == found


def test_a_key_is_more_than_its_digest(package: ModuleType) -> None:
    """A weak hash function's collisions are told apart by tokens and extra keys, as far as a page shows them (R2)."""
    follower = _following(package, _stored(1))
    assert follower.num_cached_pages([PageHash(A, (1, 2), None)], [0]) == 1
    assert follower.num_cached_pages([PageHash(A, (1, 3), None)], [0]) == 0
    assert follower.num_cached_pages([PageHash(A, (1, 2), (spec.CacheSalt("a"),))], [0]) == 0
