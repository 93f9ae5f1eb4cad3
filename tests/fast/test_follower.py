"""MAN-12: fast's follower of events beside the specification's."""

from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof import fast, spec
from kvproof.spec.declarations import CacheCleared, CacheSalt, PageRemoved, PageStored

from .lockstep import both

A, B = b"a" * 32, b"b" * 32
TOKENS = (1, 2)
KEY = spec.PageHash(A, TOKENS)

stored = st.builds(
    PageStored,
    group_id=st.integers(0, 1),
    page_id=st.integers(1, 3),
    page_hash=st.sampled_from([A, B]),
    parent_hash=st.sampled_from([None, A]),
    token_ids=st.just(TOKENS),
    extra_keys=st.sampled_from([None, (CacheSalt("a"),)]),
)
removed = st.builds(
    PageRemoved, group_id=st.integers(0, 1), page_id=st.integers(1, 3), page_hash=st.sampled_from([A, B])
)
wrong: st.SearchStrategy[Any] = st.sampled_from(
    [
        None,
        CacheCleared,
        "event",
        PageStored(0, 0, A, None, TOKENS, None),
        PageStored(0, -1, A, None, TOKENS, None),
        PageStored(-1, 1, A, None, TOKENS, None),
        PageStored(0, True, A, None, TOKENS, None),
        PageStored(0, 1, "a", None, TOKENS, None),  # type: ignore[arg-type]
        PageStored(0, 1, A, None, [1, 2], None),  # type: ignore[arg-type]
        PageStored(0, 1, A, 5, TOKENS, None),  # type: ignore[arg-type]
        PageStored(0, 1, A, None, TOKENS, [1]),  # type: ignore[arg-type]
        PageRemoved(0, 0, A),
        PageRemoved(0, "1", A),  # type: ignore[arg-type]
    ]
)
event = stored | stored | removed | removed | st.just(CacheCleared()) | wrong


def _map(follower: Any) -> Any:
    follower.check()
    return {key: tuple(pages) for key, pages in follower.cached_page_hash_to_page.items()}


def _apply_to_both(followers: list[Any], events: list[Any]) -> None:
    both(followers, lambda follower: follower.apply(iter(events)), _map)


@given(calls=st.lists(st.lists(event, max_size=6), max_size=8))
def test_man_12_fast_and_specification_in_lockstep(calls: list[list[Any]]) -> None:
    """Events of all kinds, most of which contradict those before: a call that has one of them changes nothing (R1)."""
    followers = [spec.CacheFollower(), fast.CacheFollower()]
    for events in calls:
        _apply_to_both(followers, events)
        for one in events:  # those that are in order are applied, so that something is cached at times
            _apply_to_both(followers, [one])


@given(events=st.lists(stored, max_size=6), digests=st.lists(st.sampled_from([A, B]), max_size=4), data=st.data())
def test_man_12_both_count_the_same_leading_pages(events: list[Any], digests: list[bytes], data: Any) -> None:
    groups = data.draw(st.lists(st.integers(0, 2), max_size=3))
    salt = data.draw(st.sampled_from([None, (CacheSalt("a"),)]))
    found = []
    for package in (spec, fast):
        follower = package.CacheFollower()
        for event in {event.page_id: event for event in events}.values():
            follower.apply([event])
        keys = [package.PageHash(digest, TOKENS, salt) for digest in digests]
        found.append(follower.num_cached_pages(iter(keys), iter(groups)))
        cached = follower.cached_page_hash_to_page
        with_group = [[package.PageHashWithGroupId(key, group) for group in groups] for key in keys]
        misses = [place for place, same in enumerate(with_group) if not all(key in cached for key in same)]
        assert found[-1] == min(misses, default=len(keys))
    assert found[0] == found[1]


UNREADABLE: dict[str, Any] = {
    "a digest alone": lambda follower: follower.num_cached_pages([A], [0]),
    "no list of keys": lambda follower: follower.num_cached_pages(A, [0]),
    "group -1": lambda follower: follower.num_cached_pages([KEY], [-1]),
    "group True": lambda follower: follower.num_cached_pages([KEY], [True]),
    "no list of groups": lambda follower: follower.num_cached_pages([KEY], 0),
    "an event alone": lambda follower: follower.apply(CacheCleared()),
    "text": lambda follower: follower.apply("events"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_r1_what_is_no_list_of_keys_groups_or_events_is_refused(name: str) -> None:
    served, (error, clause) = both([spec.CacheFollower(), fast.CacheFollower()], UNREADABLE[name], _map)
    assert (served, clause) == (False, "R1")
    assert error is (ValueError if name == "group -1" else TypeError)


@pytest.mark.parametrize(
    "event",
    [
        PageStored(0, 1, A, "parent", TOKENS, None),  # type: ignore[arg-type]
        PageStored(0, 1, A, None, ([1],), None),  # type: ignore[arg-type]
        PageStored(0, 1, A, None, TOKENS, ([],)),  # type: ignore[arg-type]
    ],
)
def test_r1_an_event_with_a_field_of_the_wrong_type_is_refused_before_anything_is_applied(event: PageStored) -> None:
    follower = fast.CacheFollower()
    with pytest.raises(TypeError, match=r"events.*\[R1\]"):
        follower.apply([PageStored(0, 2, A, None, TOKENS, None), event])
    assert _map(follower) == {}


@pytest.mark.parametrize("package", [spec, fast], ids=["spec", "fast"])
def test_man_12_the_map_is_live_and_read_only(package: ModuleType) -> None:
    follower = package.CacheFollower()
    cached = follower.cached_page_hash_to_page
    key = package.PageHashWithGroupId(package.PageHash(A, TOKENS), 0)
    follower.apply([PageStored(0, page_id, A, None, TOKENS, None) for page_id in (2, 1)])
    assert list(follower.cached_page_hash_to_page[key]) == [2, 1]
    with pytest.raises(TypeError):
        cached[key] = (3,)
    with pytest.raises(AttributeError):
        follower.cached_page_hash_to_page[key].append(3)


OTHER = fast.PageHashWithGroupId(fast.PageHash(A, TOKENS), 3)


def _of(page_id: int, group_id: int) -> PageStored:
    return PageStored(group_id, page_id, A, None, TOKENS, None)


DAMAGE: dict[str, Any] = {
    "a page without a key": lambda follower: follower._stored.pop(1),
    "a page with another key": lambda follower: follower._stored.update({1: _of(1, 3)}),
    "a page twice": lambda follower: follower._pages.update({fast.PageHashWithGroupId(OTHER.page_hash, 0): (1, 1)}),
    "a key without a page": lambda follower: follower._pages.update({OTHER: ()}),
    "the null page": lambda follower: (follower._pages.update({OTHER: (0,)}), follower._stored.update({0: _of(0, 3)})),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_check_sees(damage: str) -> None:
    follower = fast.CacheFollower()
    follower.apply([PageStored(0, 1, A, None, TOKENS, None)])
    follower.check()
    DAMAGE[damage](follower)
    with pytest.raises(AssertionError, match="POOL-"):
        follower.check()
