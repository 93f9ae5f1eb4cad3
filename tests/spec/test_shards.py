"""POOL-12: a manager over shards is the managers of its shards, each request living on one."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof import spec
from kvproof.spec.declarations.placement import ShardLoad

from ..strategies import PlainRequest
from .driven_managers import full, group_lists, states, window


def _sharded(num_shards: int = 2, num_pages: int = 8, **options: Any) -> spec.ShardedCacheManager:
    return spec.ShardedCacheManager(num_shards, num_pages, [full(2)], 12, placement="prefix", **options)


def _come(manager: Any, request: PlainRequest, new: int) -> Any:
    """Looks a request up and admits it; the ids of its new pages."""
    request.num_computed_tokens = 0
    pages, found = manager.get_computed_pages(request)
    given = manager.allocate_slots(request, new, found, pages)
    manager.check()
    return given and given.get_page_ids()


def most_free(shards: Sequence[ShardLoad]) -> int:
    free = [shard.num_free_pages for shard in shards]
    return free.index(max(free))


@given(
    data=st.data(),
    groups=group_lists,
    num_shards=st.integers(1, 3),
    num_pages=st.integers(4, 16),
    names=st.lists(st.sampled_from("abcdef"), min_size=4, max_size=24),
    placement=st.sampled_from(["cost", "prefix", most_free]),
)
def test_every_call_is_the_one_of_the_requests_shard(
    data: st.DataObject, groups: Any, num_shards: int, num_pages: int, names: list[str], placement: Any
) -> None:
    """POOL-12: a request comes to the shard that the placement names.

    Beside the sharded manager stand managers of one shard each, which get the calls of the shard that is expected.
    """
    manager = spec.ShardedCacheManager(num_shards, num_pages, groups, 12, placement=placement, hash_seed=b"s")
    beside = [spec.CacheManager(num_pages, groups, 12, hash_seed=b"s") for _ in range(num_shards)]
    requests: dict[str, PlainRequest] = {}
    place: dict[str, int] = {}
    for name in names:
        if name in place:  # it goes, or goes on
            own, request = beside[place[name]], requests[name]
            if data.draw(st.booleans()) or manager.shards[place[name]].coordinator.live.by_id[name].num_promised >= 12:
                assert manager.free(request) == own.free(request)
                del place[name]
            else:
                request.num_computed_tokens = own.coordinator.live.by_id[name].num_promised
                request.grow([1])
                answers = [each.allocate_slots(request, 1) for each in (manager, own)]
                assert (answers[0] and answers[0].get_page_ids()) == (answers[1] and answers[1].get_page_ids())
        else:
            request = requests[name] = PlainRequest(
                name, data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=9))
            )
            hits = [each.prefixes.look_up(request) for each in beside]  # it is remembered only where it comes to
            free = [each.page_pool.get_num_free_pages() for each in beside]
            waits = [
                sum(live.request.num_tokens - live.num_computed for live in each.coordinator.live.by_id.values())
                for each in beside
            ]
            best = {
                "cost": min(range(num_shards), key=lambda shard: (waits[shard] - hits[shard][1], shard)),
                "prefix": min(range(num_shards), key=lambda shard: (-hits[shard][1], -free[shard], shard)),
                most_free: free.index(max(free)),
            }[placement]
            pages, found = beside[best].get_computed_pages(request)
            answer = beside[best].allocate_slots(request, 1, found, pages)
            assert _come(manager, request, 1) == (answer and answer.get_page_ids())
            assert manager.shard_of(name) == (None if answer is None else best)
            if answer is not None:
                place[name] = best
        manager.check()
        used = [each.num_pages - 1 - each.page_pool.get_num_free_pages() for each in beside]
        assert manager.usage == sum(used) / (num_shards * (num_pages - 1))
        for other in requests:
            shard = manager.shard_of(other)
            assert shard == place.get(other)
            assert manager.get_page_ids(other) == beside[shard or 0].get_page_ids(other)
    for shard in range(num_shards):
        assert manager.take_page_copies(shard) == beside[shard].take_page_copies()
        assert manager.shards[shard].snapshot() == beside[shard].snapshot()
    assert manager.reset_prefix_cache() == (not place)


def test_shards_have_pools_of_their_own_and_one_seed() -> None:
    """POOL-12, HASH-1: page ids are local; a drawn seed is one for all shards, and another for another manager."""
    manager, other = _sharded(3), _sharded(3)
    for name in "abc":
        assert _come(manager, PlainRequest(name, [ord(name)] * 4), 4) == ([1, 2],)
    assert [manager.shard_of(name) for name in "abc"] == [0, 1, 2]
    assert len({id(shard.page_pool.null_page) for shard in manager.shards}) == 3
    assert len({shard.page_pool.none_hash for shard in manager.shards}) == 1
    assert manager.shards[0].page_pool.none_hash != other.shards[0].page_pool.none_hash
    assert _sharded(hash_seed=b"s").shards[1].page_pool.none_hash == spec.init_none_hash(b"s")


def test_a_hit_keeps_a_request_on_its_shard() -> None:
    """POOL-12: longer hits go before free pages."""
    manager = _sharded()
    assert _come(manager, PlainRequest("a", [1, 2, 3, 4, 5]), 5) == ([1, 2, 3],)
    assert _come(manager, PlainRequest("b", [1, 2, 9]), 1) == ([4],)
    assert _come(manager, PlainRequest("c", [7, 8, 9]), 3) == ([1, 2],)
    assert [manager.shard_of(name) for name in "abcd"] == [0, 0, 1, None]
    assert manager.get_page_ids("d") == ([],)


def test_common_prefixes_are_those_of_the_shard() -> None:
    """MAN-10, POOL-12: the number given is of those that run on the request's shard."""
    manager = _sharded()
    requests = {name: PlainRequest(name, [1, 2, ord(name)]) for name in "ab"} | {"c": PlainRequest("c", [7])}
    for name, new in (("a", 3), ("b", 1), ("c", 1)):
        assert _come(manager, requests[name], new) is not None
    assert [manager.shard_of(name) for name in "abc"] == [0, 0, 1]
    assert manager.get_num_common_prefix_pages(requests["a"], 2) == [1]
    assert manager.get_num_common_prefix_pages(requests["a"], 3) == [0]
    assert manager.get_num_common_prefix_pages(requests["c"], 1) == [1]


def test_pages_of_no_shard_or_of_two_are_refused() -> None:
    """POOL-12, R1."""
    manager = spec.ShardedCacheManager(2, 8, [full(2), window(2, 9)], 12, hash_seed=b"s")
    pages = []
    for shard in manager.shards:
        request = PlainRequest("before", [1, 2, 3])
        shard.allocate_slots(request, 2)
        shard.free(request)
        pages.append(shard.get_computed_pages(request)[0].pages)
    stranger = spec.PagePool(3, True).get_new_pages(1)
    request = PlainRequest("r", [1, 2, 3])
    for lists in ([pages[0][0], pages[1][1]], [stranger, stranger], [pages[0][0], stranger]):
        with pytest.raises(ValueError, match=r"are not of one shard \[POOL-12\]$"):
            manager.allocate_slots(request, 1, 2, spec.CachePages(lists))
    assert manager.allocate_slots(request, 1, 2, spec.CachePages(pages[1])) is not None
    assert manager.shard_of("r") == 1
    request.num_computed_tokens = 3
    with pytest.raises(ValueError, match=r"belongs to another pool \[R1\]$"):
        manager.allocate_slots(request, 1, 2, spec.CachePages(pages[0]))


def test_a_reset_is_of_all_shards_or_of_none() -> None:
    """POOL-9, POOL-12."""
    manager = _sharded(enable_events=True)
    requests = [PlainRequest(name, [ord(name)] * 4) for name in "ab"]
    for request in requests:
        _come(manager, request, 4)
    manager.free(requests[0])
    assert not manager.reset_prefix_cache()
    assert manager.get_computed_pages(requests[0])[1] == 2
    manager.free(requests[1])
    assert manager.reset_prefix_cache()
    assert [shard.take_events()[-1] for shard in manager.shards] == [spec.CacheCleared()] * 2
    assert manager.get_computed_pages(requests[0])[1] == 0


def test_keys_are_dropped_on_every_shard() -> None:
    """MAN-6: a request is remembered on the shard to which it comes, and may have been looked up on another."""
    manager = _sharded()
    request = PlainRequest("a", [1, 2, 3])
    assert manager.get_computed_pages(request) == (manager.create_empty_page_list(), 0)
    assert ["a" in shard.req_to_page_hashes for shard in manager.shards] == [True, False]
    manager.shards[1].get_computed_pages(request)
    manager.free_page_hashes(request)
    assert not any(shard.req_to_page_hashes for shard in manager.shards)


def test_an_id_is_live_for_one_object_on_all_shards() -> None:
    """MAN-6: a namesake is refused where the request lives, and freeing it does nothing."""
    manager = _sharded()
    requests = [PlainRequest(name, [ord(name)]) for name in "ab"]
    for request in requests:
        _come(manager, request, 1)
    namesake = PlainRequest("b", [1])
    for call in (manager.get_computed_pages, lambda request: manager.allocate_slots(request, 1)):
        with pytest.raises(ValueError, match=r"live for another request \[MAN-6\]$"):
            call(namesake)
    assert manager.free(namesake) == []
    assert manager.shard_of("b") == 1


def test_what_is_no_argument_is_refused() -> None:
    """R1."""
    manager = _sharded()
    request = PlainRequest("r", [1])
    with pytest.raises(ValueError, match=r"num_shards=0 must be at least 1 \[POOL-12\]$"):
        _sharded(0)
    with pytest.raises(TypeError, match=r"kv_cache_groups=5 must be an iterable \[R1\]$"):
        spec.ShardedCacheManager(2, 8, 5, 12)  # type: ignore[arg-type]
    with pytest.raises(IndexError, match=r"shard=2 must be in \[0, 2\) \[POOL-12\]$"):
        manager.take_page_copies(2)
    with pytest.raises(TypeError, match=r"request_id=1 must be a str \[R1\]$"):
        manager.shard_of(1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"new_computed_pages=\[\] must be CachePages \[R1\]$"):
        manager.allocate_slots(request, 1, 0, [])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"'r' is not live \[R1\]$"):
        manager.cache_pages(request, 0)
    assert manager.free(request) == []


def test_its_check_sees_a_request_on_two_shards() -> None:
    """POOL-12."""
    manager = spec.ShardedCacheManager(2, 8, [states(2)], 12)
    request = PlainRequest("r", [1])
    for shard in manager.shards:
        shard.allocate_slots(request, 1)
    with pytest.raises(AssertionError, match=r"^POOL-12: a request lives on two shards"):
        manager.check()
