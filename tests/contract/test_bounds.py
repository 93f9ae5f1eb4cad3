"""R1: what is too large, and what is copied, is refused by both packages; messages name the value that was given."""

import copy
import pickle
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from kvproof import fast, spec
from kvproof.conformance.replay.groups import read_groups
from kvproof.spec.declarations import Request


def manager_of(package: ModuleType, groups: str = "full:2,window:2:3", length: int = 32) -> Any:
    return package.CacheManager(20, read_groups(groups, 1), length, num_host_pages=8, hash_seed=b"s")


# -- Copies ---------------------------------------------------------------------------------------

WHOLE: dict[str, Callable[[ModuleType], Any]] = {
    "PagePool": lambda package: package.PagePool(4, True),
    "CacheManager": manager_of,
    "CacheManager of no group": lambda package: package.CacheManager(4, [], 8),
    "CacheCoordinator": lambda package: manager_of(package).coordinator,
    "ShardedCacheManager": lambda package: package.ShardedCacheManager(2, 4, [], 8),
    "PageTable": lambda package: package.PageTable(2, 4, 8),
    "MultiGroupPageTable": lambda package: package.MultiGroupPageTable(2, 8, 8, [2, 4]),
    "FreeCachePageQueue": lambda package: package.FreeCachePageQueue([package.CachePage(1)]),
    "PoolFreeQueue": lambda package: package.PagePool(4, True).free_page_queue,
}

COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    **{f"pickle {number}": lambda whole, number=number: pickle.dumps(whole, number) for number in (0, 2, 5)},  # type: ignore[misc]
}


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("name", WHOLE)
def test_r1_nothing_that_holds_pages_is_copied(package: ModuleType, name: str, way: str) -> None:
    """A second one would go on with the first one's pages; a manager goes by its snapshot."""
    whole = WHOLE[name](package)
    kind = type(whole).__name__
    with pytest.raises(TypeError, match=rf"^{kind} is not copied or pickled: .*snapshot and restore .*\[R1\]$"):
        COPIES[way](whole)


def test_r1_what_goes_with_a_pool_is_not_copied_deeply(package: ModuleType) -> None:
    manager = manager_of(package)
    pages = manager.allocate_slots(Request("a", [1, 2, 3]), 3)
    for part in (pages, pages.pages[0][0]):
        with pytest.raises(TypeError, match=r"^PagePool is not copied or pickled"):
            copy.deepcopy(part)
    manager.check()


# -- Bounds ---------------------------------------------------------------------------------------

LARGE: dict[str, Callable[[ModuleType, int], Any]] = {
    "PagePool(num_pages)": lambda package, number: package.PagePool(number, True),
    "CacheManager(num_pages)": lambda package, number: package.CacheManager(number, [], 8),
    "ShardedCacheManager(num_pages)": lambda package, number: package.ShardedCacheManager(2, number, [], 8),
    "ShardedCacheManager(num_shards)": lambda package, number: package.ShardedCacheManager(number, 4, [], 8),
    "PageTable(max_num_reqs)": lambda package, number: package.PageTable(number, 2, 2),
    "PageTable(max_num_pages_per_req)": lambda package, number: package.PageTable(2, number, 2),
    "PageTable(max_num_batched_tokens)": lambda package, number: package.PageTable(2, 2, number),
    "MultiGroupPageTable(max_num_reqs)": lambda package, number: package.MultiGroupPageTable(number, 8, 8, [2]),
    "MultiGroupPageTable(max_model_len)": lambda package, number: package.MultiGroupPageTable(2, number, 8, [2]),
}


@pytest.mark.parametrize("number", [2**31, 2**63, 2**70])
@pytest.mark.parametrize("name", LARGE)
def test_r1_sizes_are_below_2_to_the_31(package: ModuleType, name: str, number: int) -> None:
    """Ids of pages and numbers of rows are int32; nothing is allocated before that is looked at."""
    with pytest.raises(ValueError, match=rf"={number} must be less than 2147483648 \[(POOL-1|POOL-12|R1)\]$"):
        LARGE[name](package, number)


def test_r1_a_longest_request_is_an_int64(package: ModuleType) -> None:
    """One state holds any number of tokens, so that nothing but the number's own size bounds it."""
    with pytest.raises(ValueError, match=rf"max_model_len={2**63} must be less than {2**63} \[R1\]$"):
        manager_of(package, "mamba:2", 2**63)
    manager = manager_of(package, "mamba:2", 2**63 - 1)
    assert manager.allocate_slots(Request("a", [1, 2, 3]), 3, num_lookahead_tokens=2**70).get_page_ids() == ([1],)
    manager.check()


def _group(package: ModuleType, kind: str, **fields: Any) -> Any:
    """A cache group of pages of two tokens, but for some fields."""
    usual: dict[str, Any] = {"page_size": 2, "num_kv_heads": 1, "head_size": 8, "dtype": "float32"}
    if kind == "MambaSpec":
        usual = {"page_size": 2, "shapes": ((4,),), "dtypes": ("float32",), "mamba_cache_mode": "align"}
    return package.CacheGroupSpec(getattr(package, kind)(**(usual | fields)))


NUMBERS: dict[str, Callable[[ModuleType, int], dict[str, Any]]] = {
    **{
        name: lambda _, number, name=name: {name: number}  # type: ignore[misc]
        for name in ("num_host_pages", "counter_sampling", "max_pinned_pages", "max_pinned_pages_per_salt")
    },
    "retention_interval": lambda _, number: {"retention_interval": number},
    "page_size": lambda package, number: {"groups": [_group(package, "FullAttentionSpec", page_size=number)]},
    "num_kv_heads": lambda package, number: {"groups": [_group(package, "MLAAttentionSpec", num_kv_heads=number)]},
    "head_size": lambda package, number: {"groups": [_group(package, "FullAttentionSpec", head_size=number)]},
    "head_size_v": lambda package, number: {"groups": [_group(package, "FullAttentionSpec", head_size_v=number)]},
    "sliding_window": lambda package, number: {"groups": [_group(package, "SlidingWindowSpec", sliding_window=number)]},
    "attention_chunk_size": lambda package, number: {
        "groups": [_group(package, "ChunkedLocalAttentionSpec", attention_chunk_size=number)]
    },
    "page_size of states": lambda package, number: {"groups": [_group(package, "MambaSpec", page_size=number)]},
    "shapes": lambda package, number: {"groups": [_group(package, "MambaSpec", shapes=((number,),))]},
    "page_size_padded": lambda package, number: {"groups": [_group(package, "MambaSpec", page_size_padded=number)]},
}
"""Options of a manager that a snapshot holds, with a number of any size."""


@pytest.mark.parametrize("number", [2**31, 2**62, 2**63, 2**70])
@pytest.mark.parametrize("name", NUMBERS)
def test_man_14_a_manager_that_can_be_made_is_restored_from_its_snapshot(
    package: ModuleType, name: str, number: int
) -> None:
    """A number that no snapshot may hold is refused when the manager is to be made, by its name and value."""
    given = {"groups": [_group(package, "FullAttentionSpec")], **NUMBERS[name](package, number)}
    groups = given.pop("groups")
    if number >= 2**63:
        with pytest.raises(ValueError, match=rf"{name.split()[0]}={number} must be less than {2**63} \[[A-Z]+-?\d+\]$"):
            package.CacheManager(20, groups, 100, **given)
        return
    manager = package.CacheManager(20, groups, 100, **given)
    request = Request("a", list(range(9)))
    manager.allocate_slots(request, 9)
    for other in (spec, fast):
        restored = other.CacheManager.restore(manager.snapshot(), [request])
        restored.check()
        assert restored.snapshot() == manager.snapshot()


@pytest.mark.parametrize("token", [2**31, -(2**31) - 1, 2**70])
def test_r1_a_token_that_is_appended_is_an_int32(token: int) -> None:
    request = Request("a", [1])
    with pytest.raises(ValueError, match=r"^token_id=.* must fit an int32$"):
        request.append(token)
    with pytest.raises(TypeError):
        request.append(1.5)  # type: ignore[arg-type]
    assert request.all_token_ids.tolist() == [1]


class Used:
    """A manager and its live request, which has computed 7 tokens."""

    def __init__(self, package: ModuleType) -> None:
        self.manager = manager_of(package)
        self.live = Request("a", list(range(7)))
        self.manager.allocate_slots(self.live, 7)
        self.live.num_computed_tokens = 7


CALLS: dict[str, Callable[[Used, int], Any]] = {
    "new tokens": lambda at, number: at.manager.allocate_slots(at.live, number),
    "new tokens of a batch": lambda at, number: at.manager.allocate_slots_batch([0], [7], [number]),
    "new tokens for all of a batch": lambda at, number: at.manager.allocate_slots_batch([0], [7], number),
    "computed tokens of a batch": lambda at, number: at.manager.allocate_slots_batch([0], [number], 1),
    "published tokens": lambda at, number: at.manager.cache_pages(at.live, number),
    "evicted pages": lambda at, number: at.manager.evict_pages([number]),
    "the end of a swap": lambda at, number: at.manager.swap_done(number),
    "a pin": lambda at, number: at.manager.unpin_prefix(number),
    "a priority": lambda at, number: at.manager.set_prefix_priority(at.live, number),
}


@pytest.mark.parametrize("number", [2**31, 2**41, 2**63 - 1, 2**63, 2**70])
@pytest.mark.parametrize("name", CALLS)
def test_r1_a_refusal_names_the_number_that_was_given(package: ModuleType, name: str, number: int) -> None:
    """Whatever it is cut to inside: no OverflowError, and nothing changed."""
    at = Used(package)
    before = at.manager.snapshot()
    with pytest.raises((ValueError, IndexError), match=rf"\b{number}\b.*\[[A-Z]+-?\d+\]$"):
        CALLS[name](at, number)
    assert at.manager.snapshot() == before


def test_r1_a_time_that_no_float_holds_is_named(package: ModuleType) -> None:
    with pytest.raises(ValueError, match=rf"now={10**400} must be finite \[R1\]$"):
        manager_of(package).advance_time(10**400)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    "name", [*CALLS, "pages", "look-ahead", "hits", "computed tokens", "a page", "a time", "written tokens"]
)
def test_r1_a_number_that_python_does_not_write_is_refused_by_its_length(
    package: ModuleType, name: str, sign: int
) -> None:
    """Python raises an error of its own where an int of more than 4,300 digits is written into a message."""
    at = Used(package)
    others: dict[str, Callable[[Used, int], Any]] = {
        "pages": lambda at, number: at.manager.page_pool.get_new_pages(number),
        "look-ahead": lambda at, number: at.manager.allocate_slots(at.live, 1, num_lookahead_tokens=number),
        "hits": lambda at, number: at.manager.allocate_slots(at.live, 1, number),
        "computed tokens": lambda at, number: at.manager.receive_pages(at.live, number),
        "a page": lambda at, number: at.manager.page_pool.get_priority(number),
        "a time": lambda at, number: at.manager.advance_time(number),
        "written tokens": lambda at, number: at.manager.free(at.live, number),
    }
    before = at.manager.snapshot()
    with pytest.raises((ValueError, IndexError), match=r"<an int of 16610 bits>.*\[[A-Z]+-?\d+\]$"):
        (CALLS | others)[name](at, sign * 10**5000)
    assert at.manager.snapshot() == before
