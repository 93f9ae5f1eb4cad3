"""MAN-1, MAN-2, HASH-3, R2: what a manager of one group finds, holds, shows and publishes."""

from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof import fast, spec

from ..pool_state import pool_state
from ..strategies import PlainRequest, page_sizes, short_token_lists


def _group(page_size: int) -> Any:
    return spec.CacheGroupSpec(spec.FullAttentionSpec(page_size, 1, 1, "float32"))


def _manager(
    package: ModuleType, num_pages: int = 8, page_size: int = 2, max_model_len: int = 40, **options: Any
) -> Any:
    return package.CacheManager(num_pages, [_group(page_size)], max_model_len, hash_seed=b"s", **options)


# -- Without keys, groups or caching --------------------------------------------------------------


@given(values=short_token_lists, lookahead=st.integers(0, 50))
def test_man_2_without_a_group_nothing_needs_a_page(package: ModuleType, values: list[int], lookahead: int) -> None:
    manager = package.CacheManager(3, [], 14)
    assert (manager.enable_caching, manager.page_size, manager.num_kv_cache_groups) == (False, None, 0)
    request = PlainRequest("r", values)
    assert manager.get_computed_pages(request) == (package.CachePages([]), 0)
    given_slots = manager.allocate_slots(request, len(values), 0, manager.create_empty_page_list(), lookahead)
    assert given_slots == package.CachePages([])
    assert manager.get_page_ids("r") == ()
    assert manager.get_num_common_prefix_pages(request, 1) == []
    manager.cache_pages(request, len(values))
    assert manager.req_to_page_hashes == {}
    assert manager.usage == 0.0
    assert manager.free(request, 0) == []
    manager.check()


@given(values=short_token_lists, page_size=page_sizes)
def test_man_1_with_caching_off_nothing_is_published_and_nothing_hit(
    package: ModuleType, values: list[int], page_size: int
) -> None:
    manager = _manager(package, 40, page_size, enable_caching=False)
    request = PlainRequest("r", values)
    assert manager.allocate_slots(request, len(values)) is not None
    manager.cache_pages(request, len(values))
    assert manager.get_computed_pages(PlainRequest("s", values))[1] == 0
    assert not manager.page_pool.cached_page_hash_to_page
    assert (manager.page_size, dict(manager.req_to_page_hashes)) == (None, {})
    assert manager.free(request, 0) == []
    manager.check()


@given(values=short_token_lists, lookahead=st.integers(0, 60), page_size=page_sizes)
def test_man_2_lookahead_is_cut_at_max_model_len(
    package: ModuleType, values: list[int], lookahead: int, page_size: int
) -> None:
    manager = _manager(package, 40, page_size, max_model_len=len(values) + 3)
    request = PlainRequest("r", values)
    pages = manager.allocate_slots(request, len(values), num_lookahead_tokens=lookahead)
    assert len(pages.pages[0]) == -(-min(len(values) + lookahead, len(values) + 3) // page_size)
    request.num_computed_tokens = len(values)
    with pytest.raises(ValueError, match=rf"num_new_tokens=4: .* \+ new={len(values) + 4} .*\[MAN-2\]"):
        manager.allocate_slots(request, 4)
    assert manager.allocate_slots(request, 3) is not None
    manager.check()


# -- A page published by hand ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "group"),
    [([1, 2], 5), ([7, 7], 0)],
    ids=["the same content for another group", "other content"],
)
def test_r2_a_requests_pages_are_published_under_its_own_prefix(other: list[int], group: int) -> None:
    """Even if the page before was evicted and cached by hand, for another group or with other tokens."""
    shown = []
    for package in (spec, fast):
        manager = _manager(package)
        request = PlainRequest("r", [1, 2, 3, 4, 5])
        manager.allocate_slots(request, 2)
        page = manager.page_pool.pages[manager.get_page_ids("r")[0][0]]
        manager.page_pool.evict_pages([page.page_id])
        manager.page_pool.cache_full_pages(PlainRequest("other", other), [page], [], 0, 1, 2, group)
        request.num_computed_tokens = 2
        manager.allocate_slots(request, 2)
        manager.check()
        shown.append(pool_state(manager.page_pool))
    assert shown[0] == shown[1]


@pytest.mark.parametrize("replaced", [True, 1.0])
def test_r1_a_list_that_was_read_before_is_read_again(package: ModuleType, replaced: Any) -> None:
    """Numbers that are equal are no ints for that."""
    manager, request = _manager(package, 20), PlainRequest("a", [1, 2, 3])
    manager.get_computed_pages(request)
    request.all_token_ids[0] = replaced
    with pytest.raises(TypeError, match=r"all_token_ids\[0\].*\[R1\]"):
        manager.get_computed_pages(request)


def test_r2_a_prompt_that_changes_between_its_look_up_and_its_admission(package: ModuleType) -> None:
    """What was found is refused (MAN-2), and what is admitted without it is published as it is now."""
    manager = _manager(package, 20)
    manager.allocate_slots(PlainRequest("first", [1, 2, 3, 4, 5]), 5)
    request = PlainRequest("second", [1, 2, 3, 4, 9])
    pages, hit = manager.get_computed_pages(request)
    assert hit == 4
    request.all_token_ids[1] = 7
    with pytest.raises(ValueError, match="MAN-2"):
        manager.allocate_slots(request, 1, hit, pages)
    manager.allocate_slots(request, 5)
    assert manager.get_computed_pages(PlainRequest("third", [1, 7, 3, 4, 0]))[1] == 4
    assert manager.get_computed_pages(PlainRequest("fourth", [1, 2, 3, 4, 0]))[1] == 4
    manager.check()
