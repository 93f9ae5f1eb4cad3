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


# -- Refusals (R1) ----------------------------------------------------------------------------------

WRONG_PARENT: Any = (5, (1, 2), None)
UNHASHABLE: Any = (None, (1, 2), [1])

REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "a parent's hash of a wrong type": ([PageStored(0, 2, A, *WRONG_PARENT)], TypeError, r"parent_hash=5 .*\[R1\]"),
    "a key that can't be hashed": ([PageStored(0, 2, A, *UNHASHABLE)], TypeError, r"page 2 .*unhashable \[R1\]"),
    "stored twice": ([_stored(1)], ValueError, r"page 1 .*\[MAN-12\]"),
    "stored twice under another hash": ([_stored(1, B)], ValueError, r"page 1 .*\[MAN-12\]"),
    "stored twice for another group": ([_stored(1, group_id=1)], ValueError, r"page 1 .*\[MAN-12\]"),
    "stored twice at once": ([_stored(2), _stored(2)], ValueError, r"page 2 .*\[MAN-12\]"),
    "removed and not stored": ([PageRemoved(0, 2, A)], ValueError, r"page 2 .*\[MAN-12\]"),
    "removed twice": ([PageRemoved(0, 1, A)] * 2, ValueError, r"page 1 .*\[MAN-12\]"),
    "removed after a clearing": ([CacheCleared(), PageRemoved(0, 1, A)], ValueError, r"page 1 .*\[MAN-12\]"),
    "removed under another hash": ([PageRemoved(0, 1, B)], ValueError, r"page 1 .*another hash \[MAN-12\]"),
    "removed from another group": ([PageRemoved(1, 1, A)], ValueError, r"page 1 .*another hash \[MAN-12\]"),
    "the null page": ([_stored(0)], ValueError, r"page_id=0.*\[POOL-1\]"),
    "a negative group": ([_stored(2, group_id=-1)], ValueError, r"group_id=-1.*\[R1\]"),
    "no event": ([CacheCleared], TypeError, r"events has .*\[R1\]"),
    "None": ([None], TypeError, r"events has None.*\[R1\]"),
    "no list": (CacheCleared(), TypeError, r"events=.*\[R1\]"),
    "a page that is no number": ([_stored("2")], TypeError, r"page_id='2'.*\[R1\]"),  # type: ignore[arg-type]
    "a digest that is no bytes": ([_stored(2, "a")], TypeError, r"page_hash.*\[R1\]"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_events_change_nothing_nor_do_those_before_them(package: ModuleType, name: str) -> None:
    follower = _following(package, _stored(1), _stored(9, C))
    given, error, message = REFUSED[name]
    good: list[CacheEvent] = [_stored(7), PageRemoved(0, 9, C), _stored(9)]
    before = dict(follower.cached_page_hash_to_page)
    for events in (given, [*good, *given] if isinstance(given, list) else given):
        with pytest.raises(error, match=message):
            follower.apply(events)
        assert follower.cached_page_hash_to_page == before
    follower.apply(good)
    assert follower.cached_page_hash_to_page == {_key(A): (1, 7, 9)}


@pytest.mark.parametrize(
    ("page_hashes", "groups", "error", "message"),
    [
        ([A], [0], TypeError, r"page_hashes.*\[R1\]"),
        (A, [0], TypeError, r"page_hashes=.*\[R1\]"),
        ([_key(A).page_hash], [-1], ValueError, r"kv_cache_group_ids=-1.*\[R1\]"),
        ([_key(A).page_hash], 0, TypeError, r"kv_cache_group_ids=0.*\[R1\]"),
    ],
)
def test_look_ups_are_refused(
    package: ModuleType, page_hashes: Any, groups: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        _following(package, _stored(1)).num_cached_pages(page_hashes, groups)
