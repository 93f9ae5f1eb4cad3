"""POOL-12: a manager over shards is the managers of its shards, each request living on one.

What both packages' sharded managers do in step, the machine `shards` draws.
"""

from collections import Counter
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest

from kvproof import fast
from kvproof.spec.declarations.placement import ShardLoad

from ..cache_groups import full, states, window
from ..strategies import PlainRequest

FULL, WINDOW = full(2), window(2, 9)


def _sharded(package: ModuleType, num_shards: int = 2, num_pages: int = 8, **options: Any) -> Any:
    groups = options.pop("groups", [FULL])
    return package.ShardedCacheManager(num_shards, num_pages, groups, 12, **{"hash_seed": b"s"} | options)


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


def test_a_placement_of_ones_own_is_told_what_shards_have(package: ModuleType) -> None:
    """POOL-12."""
    manager = _sharded(package, placement=most_free)
    for name, new in (("a", 3), ("b", 1), ("c", 3)):
        assert _come(manager, PlainRequest(name, [1, 2, 3]), new) is not None
    assert [manager.shard_of(name) for name in "abc"] == [0, 1, 1]


def test_shards_have_pools_of_their_own_and_one_seed(package: ModuleType) -> None:
    """POOL-12, HASH-1: page ids are local; a drawn seed is one for all shards, and another for another manager."""
    manager, other = (
        _sharded(package, 3, placement="prefix", hash_seed=None),
        _sharded(package, 3, placement="prefix", hash_seed=None),
    )
    for name in "abc":
        assert _come(manager, PlainRequest(name, [ord(name)] * 4), 4) == ([1, 2],)
    assert [manager.shard_of(name) for name in "abc"] == [0, 1, 2]
    assert len({id(shard.page_pool.null_page) for shard in manager.shards}) == 3
    assert len({shard.page_pool.none_hash for shard in manager.shards}) == 1
    assert manager.shards[0].page_pool.none_hash != other.shards[0].page_pool.none_hash
    assert _sharded(package).shards[1].page_pool.none_hash == package.init_none_hash(b"s")


def test_keys_are_dropped_on_every_shard(package: ModuleType) -> None:
    """MAN-6: a request is remembered on the shard to which it comes, and may have been looked up on another."""
    manager = _sharded(package, placement="prefix")
    request = PlainRequest("a", [1, 2, 3])
    assert manager.get_computed_pages(request) == (manager.create_empty_page_list(), 0)
    assert ["a" in shard.req_to_page_hashes for shard in manager.shards] == [True, False]
    manager.shards[1].get_computed_pages(request)
    manager.free_page_hashes(request)
    assert not any(shard.req_to_page_hashes for shard in manager.shards)


def test_an_id_is_live_for_one_object_on_all_shards(package: ModuleType) -> None:
    """MAN-6: a namesake is refused where the request lives, and freeing it does nothing."""
    manager = _sharded(package, placement="prefix")
    requests = [PlainRequest(name, [ord(name)]) for name in "ab"]
    for request in requests:
        _come(manager, request, 1)
    namesake = PlainRequest("b", [1])
    for call in (manager.get_computed_pages, lambda request: manager.allocate_slots(request, 1)):
        with pytest.raises(ValueError, match=r"live for another request \[MAN-6\]$"):
            call(namesake)
    assert manager.free(namesake) == []
    assert manager.shard_of("b") == 1


def test_pool_12_streams_are_spread(package: ModuleType) -> None:
    """Two prompts, eight streams of each at once, four shards: four streams on each, of one prompt."""
    manager = package.ShardedCacheManager(4, 200, [FULL], 60, hash_seed=b"s")
    hits: Counter[tuple[int, int]] = Counter()
    for number in range(16):
        request = PlainRequest(f"r{number}", [number % 2] * 40)
        pages, found = manager.get_computed_pages(request)
        assert manager.allocate_slots(request, min(20, 40 - found), found, pages) is not None
        shard = manager.shard_of(request.request_id)
        hits[shard, number % 2] += 1
        assert (found > 0) == (hits[shard, number % 2] > 1), "all but a shard's first"
    assert sorted(hits.values()) == [4, 4, 4, 4]


def test_ret_2_a_junction_that_is_asked_for_changes_nothing(package: ModuleType) -> None:
    manager = _sharded(package, groups=[FULL, WINDOW])
    before = [shard.snapshot() for shard in manager.shards]
    assert manager.get_junction(PlainRequest("r", [1, 2, 3])) == 0
    assert [shard.snapshot() for shard in manager.shards] == before


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (2, IndexError, r"the shard of placement=2 must be in \[0, 2\) \[POOL-12\]"),
        (-1, IndexError, r"the shard of placement=-1 "),
        (None, TypeError, r"the shard of placement=None "),
        (True, TypeError, r"the shard of placement=True "),
    ],
)
def test_pool_12_a_placement_that_returns_no_shard_is_refused(
    package: ModuleType, given: Any, error: Any, message: str
) -> None:
    manager = _sharded(package, placement=lambda _: given)
    before = [shard.snapshot() for shard in manager.shards]
    request = PlainRequest("r", [1, 2, 3])
    for call in (manager.get_computed_pages, manager.get_junction, lambda own: manager.allocate_slots(own, 1)):
        with pytest.raises(error, match=message):
            call(request)
        assert [shard.snapshot() for shard in manager.shards] == before


def test_pool_12_options_are_those_of_every_shard(package: ModuleType) -> None:
    options = {"unhashed_first": True, "enable_events": True, "counter_sampling": 3}
    options |= {"max_pinned_pages": 5, "max_pinned_pages_per_salt": 2}
    manager = _sharded(package, 2, **options, hash_function=lambda message: message[:4])
    assert [shard.num_host_pages for shard in _sharded(package, 2, num_host_pages=6).shards] == [6, 6]
    for shard in manager.shards:
        pool = shard.page_pool
        assert {name: getattr(pool, name) for name in options} == options
        assert len(pool.none_hash) == 4
    assert [shard.enable_caching for shard in package.ShardedCacheManager(2, 8, [FULL], 12, False).shards] == [
        False
    ] * 2
    assert [shard.use_eagle for shard in package.ShardedCacheManager(2, 8, [FULL], 12, True, True).shards] == [True] * 2


def test_pool_12_a_shards_own_calls_are_seen(package: ModuleType) -> None:
    """A batched step or an admission on the shard itself: nothing is noted beside the shards that could be stale."""
    manager = _sharded(package)
    request = PlainRequest("r", [1, 2, 3])
    assert manager.shards[1].allocate_slots(request, 3) is not None
    assert manager.shard_of("r") == 1
    manager.shards[1].allocate_slots_batch([manager.shards[1].slot_of("r")], [3], 2)
    assert manager.get_page_ids("r") == ([1, 2, 3],)
    manager.shards[1].free(request)
    assert manager.shard_of("r") is None
    manager.check()


# -- Refusals (R1) ----------------------------------------------------------------------------------


class Used:
    """Two shards, each with a cached prefix of its own; request `r` is not live, `live` is on shard 0."""

    def __init__(self, package: ModuleType) -> None:
        self.package = package
        self.manager = _sharded(package, groups=[FULL, WINDOW])
        self.pages = []
        for shard in self.manager.shards:
            before = PlainRequest("before", [1, 2, 3])
            shard.allocate_slots(before, 2)
            shard.free(before)
            self.pages.append(shard.get_computed_pages(before)[0].pages)
        self.request = PlainRequest("r", [1, 2, 3])
        self.manager.allocate_slots(PlainRequest("live", [7]), 1)

    def admit(self, *lists: Any) -> Any:
        return self.manager.allocate_slots(self.request, 1, 2, self.package.CachePages(lists))


def test_pages_of_a_shard_bring_a_request_there(package: ModuleType) -> None:
    """POOL-12, R1: where it goes on, those of another shard are refused."""
    at = Used(package)
    assert at.admit(*at.pages[1]) is not None
    assert at.manager.shard_of("r") == 1
    at.request.num_computed_tokens = 3
    with pytest.raises(ValueError, match=r"belongs to another pool \[R1\]$"):
        at.admit(*at.pages[0])


def test_groups_are_read_once(package: ModuleType) -> None:
    manager = package.ShardedCacheManager(3, 8, iter([FULL, WINDOW]), 12)
    assert [len(shard.kv_cache_groups) for shard in manager.shards] == [2, 2, 2]


# -- check() ----------------------------------------------------------------------------------------


def test_check_sees_a_request_on_two_shards(package: ModuleType) -> None:
    manager = _sharded(package, groups=[states(2)])
    request = PlainRequest("r", [1])
    for shard in manager.shards:
        shard.allocate_slots(request, 1)
    with pytest.raises(AssertionError, match="POOL-12: a request lives on two shards"):
        manager.check()


def test_fasts_check_sees_another_root() -> None:
    manager = _sharded(fast)
    manager.shards[1].page_pool.keys.none_hash = b"other"
    with pytest.raises(AssertionError, match="POOL-12: 2 roots"):
        manager.check()


def test_fasts_check_sees_what_is_wrong_on_a_shard() -> None:
    manager = _sharded(fast)
    manager.shards[1].page_pool.counts.cell[3] = 1
    with pytest.raises(AssertionError, match="POOL-2"):
        manager.check()
