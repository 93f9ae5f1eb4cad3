"""POOL, R1: what the pools of both packages refuse, and the views and lists of pages that they give out."""

import operator
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof import fast, spec

from ..pool_state import pool_state
from ..strategies import PlainRequest


def test_pool_1_the_null_page_is_one_object(package: ModuleType) -> None:
    pool = package.PagePool(3, True)
    assert pool.null_page is pool.null_page
    assert (pool.null_page, pool.null_page.is_null) == (pool.pages[0], True)


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ((7, (1, 2), None), "hash_value must be bytes, is int"),
        (("7", (1, 2), None), "hash_value must be bytes, is str"),
        ((b"7", [1, 2], None), "token_ids must be tuple, is list"),
        (7, "must be a PageHash, not int"),
    ],
)
def test_hash_1_a_foreign_key_is_refused_by_what_is_foreign(package: ModuleType, key: Any, told: str) -> None:
    """A manager of another system's has keys that are ints: the refusal says which field is wrong."""
    pool = package.PagePool(3, True)
    pages = pool.get_new_pages(1)
    known = package.PageHash(*key) if isinstance(key, tuple) else key
    with pytest.raises(TypeError, match=rf"{told} \[R1\]$"):
        pool.get_cached_page(known, [0])
    with pytest.raises(TypeError, match=rf"{told} \[R1\]$"):
        pool.cache_full_pages(PlainRequest("r", [1, 2]), pages, [known], 0, 1, 2, 0)
    assert pages[0].page_hash is None


# -- Refusals (R1) --------------------------------------------------------------------------------


class Pools(NamedTuple):
    """A pool in use, and a fresh one beside it."""

    pool: Any
    other: Any


def _used_pool(package: ModuleType) -> Pools:
    """Pages 1 and 2 held and cached, 3 held, 4 free and cached, 5 and 6 free."""
    pool = package.PagePool(7, True, hash_seed=b"s")
    pages = pool.get_new_pages(4)
    pool.cache_full_pages(PlainRequest("r", [1, 2, 3]), [*pages[:2], pages[3]], [], 0, 3, 1, 0)
    pool.free_pages(pages[3:])
    return Pools(pool, package.PagePool(7, True))


def test_r1_what_is_cached_is_a_requests_and_each_page_once(package: ModuleType) -> None:
    pool, _ = _used_pool(package)
    before = pool_state(pool)
    with pytest.raises(ValueError, match=r"pages.*\[POOL-8\]$"):
        pool.cache_full_pages(PlainRequest("new", [8, 9]), [pool.pages[3]] * 2, [], 0, 2, 1, 0)
    with pytest.raises(TypeError, match=r"request.*\[R1\]$"):
        pool.cache_full_pages(None, pool.pages[3:4], [], 0, 1, 1, 0)
    assert pool_state(pool) == before
    pool.check()


def test_r1_a_count_beyond_what_is_kept_is_refused_by_name(package: ModuleType) -> None:
    """A count is an int32."""
    pool, _ = _used_pool(package)
    page = pool.pages[3]
    with pytest.raises(ValueError, match="ref_cnt=1099511627776"):
        page.ref_cnt = 2**40
    assert page.ref_cnt == 1


def test_r1_caching_off_refuses_to_cache(package: ModuleType) -> None:
    pool = package.PagePool(4, False)
    pages = pool.get_new_pages(1)
    with pytest.raises(ValueError, match=r"enable_caching=False.*\[R1\]"):
        pool.cache_full_pages(PlainRequest("r", [1]), pages, [], 0, 1, 1, 0)


def test_r1_what_is_no_hash_function_is_refused_by_name(package: ModuleType) -> None:
    with pytest.raises(TypeError, match="hash_function"):
        package.PagePool(4, True, hash_function=5)


@pytest.mark.parametrize("num_tokens", [0, 1, 2])
def test_r2_keys_that_are_not_compared_are_not_refused(package: ModuleType, num_tokens: int) -> None:
    """The list may be short or empty: keys of a request with other extra keys say nothing about pages not named."""
    pool = package.PagePool(4, True, hash_seed=b"s")
    pages = pool.get_new_pages(2)
    keys = package.hash_request_tokens(
        package.sha256, 2, PlainRequest("plain", [1] * num_tokens), none_hash=pool.none_hash
    )
    salted = PlainRequest("salted", [1, 2, 3, 4], (spec.CacheSalt("a"),))
    pool.cache_full_pages(salted, pages, keys, 0, 0, 2, 0)
    pool.cache_full_pages(salted, pages, keys[:0] if num_tokens == 2 else keys, 0, 2, 2, 0)
    assert all(page.page_hash is not None for page in pages)


# -- Views and lists ------------------------------------------------------------------------------


def test_pool_2_views_are_live_hashable_and_equal_for_one_page(package: ModuleType) -> None:
    pool, other = _used_pool(package)
    page, again = pool.pages[3], pool.free_page_queue.fake_free_list_head
    same = pool.pages[1:4][2]
    assert page == same
    assert hash(page) == hash(same)
    assert len({page, same, pool.pages[2], other.pages[3]}) == 3
    assert page != pool.pages[2]
    assert page != other.pages[3]
    assert page != 3
    assert again.page_id == -1
    pool.touch([[same]])
    assert page.ref_cnt == 2
    page.decr_ref()
    assert same.ref_cnt == 1
    pool.cache_full_pages(PlainRequest("r", [5]), [same], [], 0, 1, 1, 0)
    assert page.page_hash is not None
    same.reset_hash()
    assert page.page_hash is None
    pool.free_pages([same])
    assert (page.prev_free_page, page.next_free_page) == (pool.pages[4], pool.free_page_queue.fake_free_list_tail)


def test_pool_2_links_of_a_pools_pages_follow_the_queue(package: ModuleType) -> None:
    pool, _ = _used_pool(package)
    queue = pool.free_page_queue
    row = [queue.fake_free_list_head, *queue.get_all_free_pages(), queue.fake_free_list_tail]
    assert [page.page_id for page in row] == [-1, 5, 6, 4, -1]
    for place, page in enumerate(row):
        assert page.prev_free_page == (row[place - 1] if place else None)
        assert page.next_free_page == (row[place + 1] if place + 1 < len(row) else None)
    assert pool.pages[1].prev_free_page is pool.pages[1].next_free_page is None
    pool.get_new_pages(3)
    assert queue.fake_free_list_head.next_free_page == queue.fake_free_list_tail
    assert queue.fake_free_list_tail.prev_free_page == queue.fake_free_list_head


def test_pool_1_the_null_page_is_untouched_by_reference_counting(package: ModuleType) -> None:
    pool, _ = _used_pool(package)
    null = pool.null_page
    before = pool_state(pool)
    pool.touch([[null, null]])
    pool.free_pages([null] * 3)
    pool.evict_pages([0])
    null.incr_ref()
    null.decr_ref()
    null.ref_cnt = 4
    assert pool_state(pool) == before
    assert null == pool.pages[0]
    assert null.is_null
    assert not pool.pages[1].is_null


@given(st.lists(st.integers(0, 6), max_size=5), st.lists(st.integers(0, 6), max_size=5), st.data())
def test_page_lists_are_immutable_sequences_equal_to_and_addable_with_lists(
    package: ModuleType, mine: list[int], theirs: list[int], data: st.DataObject
) -> None:
    pool = package.PagePool(7, True)
    own, others = [pool.pages[i] for i in mine], [pool.pages[i] for i in theirs]
    pages = package.CachePages([own]).pages[0]
    other = package.CachePages([others]).pages[0]
    assert (pages == other) == (pages == others) == (others == pages) == (mine == theirs)
    assert (pages != other) == (mine != theirs)
    assert pages != tuple(own)
    assert type(own + other) is list
    assert own + other == own + others
    for total in (pages + other, pages + others, pool.pages[:0] + pages + other):
        assert type(total) is package.PageList
        assert total.page_ids == [page.page_id for page in total] == mine + theirs
    assert len(pages) == len(mine)
    assert [page.page_id for page in reversed(pages)] == mine[::-1]
    part = data.draw(st.slices(len(mine)))
    assert type(pages[part]) is package.PageList
    assert pages[part] == own[part]
    assert [pages[place] for place in range(-len(mine), len(mine))] == own * 2
    with pytest.raises(IndexError):
        pages[len(mine)]
    if own:
        assert own[0] in pages
        assert pages.index(own[-1]) == mine.index(mine[-1])
    for change in ("__setitem__", "__delitem__", "__iadd__", "append", "extend", "sort"):
        assert not hasattr(pages, change)
    with pytest.raises(TypeError):
        operator.add(pages, (1,))


def test_page_lists_stay_when_the_pool_goes_on(package: ModuleType) -> None:
    """A list that a call returned names the same pages for ever."""
    pool = package.PagePool(8, True)
    taken = pool.get_new_pages(4)
    free = pool.free_page_queue.get_all_free_pages()
    pool.free_pages(taken)
    pool.get_new_pages(5)
    assert taken.page_ids == [1, 2, 3, 4]
    assert free.page_ids == [5, 6, 7]


def test_r1_page_lists_take_pages_only(package: ModuleType) -> None:
    pages = package.PagePool(4, True).get_new_pages(1)
    with pytest.raises(TypeError, match="1"):
        operator.add(pages, [1])
    with pytest.raises(TypeError, match="1"):
        package.CachePages([[1]])


@pytest.mark.parametrize("num_cached", [0, 1])
def test_pool_7_publishing_no_page_changes_nothing(package: ModuleType, num_cached: int) -> None:
    """Where keys are kept as well: no page is not a page that is not full (MAN-17)."""
    pool = package.PagePool(4, True, enable_events=True, hash_seed=b"s")
    pages = pool.get_new_pages(num_cached)
    request = PlainRequest("r", [1, 2, 3])
    pool.cache_full_pages(request, pages, [], 0, num_cached, 2, 0)
    before = pool_state(pool)
    assert len(pool.take_events()) == num_cached
    pool.cache_full_pages(request, pages, [], num_cached, num_cached, 2, 0)
    assert pool.take_events() == []
    assert pool_state(pool) == before
    pool.check()


def test_pool_7_the_cached_map_is_read_only(package: ModuleType) -> None:
    pool, _ = _used_pool(package)
    (key, pages), *_ = pool.cached_page_hash_to_page.items()
    assert pool.cached_page_hash_to_page[key] == pages
    assert not hasattr(pool.cached_page_hash_to_page, "__setitem__")
    assert not hasattr(pages, "clear"), "page lists are immutable"
    with pytest.raises(KeyError):
        pool.cached_page_hash_to_page[key._replace(group_id=9)]


@pytest.mark.parametrize("late", [False, True])
def test_hash_1_a_pools_keys_are_the_requests_whenever_they_are_read(late: bool) -> None:
    """Digests are computed when first wanted, over splits and holes that came before or come after."""
    pool = fast.PagePool(20, True, hash_seed=b"s")
    pages = pool.get_new_pages(12)
    first, second = PlainRequest("a", [1, 2, 3, 4, 5, 6]), PlainRequest("b", [1, 2, 3, 9, 9, 9])
    for request, part in ((first, pages[:6]), (second, pages[6:])):
        pool.cache_full_pages(request, part, [], 0, 6, 1, 0)
        if not late:
            assert [key and key.page_hash for key in (page.page_hash for page in part)] == _own_keys(pool, request)
    pool.evict_pages([2, 8])
    for request, part in ((first, pages[:6]), (second, pages[6:])):
        wanted = [
            key if page.page_id not in (2, 8) else None
            for key, page in zip(_own_keys(pool, request), part, strict=True)
        ]
        assert [key and key.page_hash for key in (page.page_hash for page in part)] == wanted


def _own_keys(pool: Any, request: PlainRequest) -> list[Any]:
    return list(fast.hash_request_tokens(fast.sha256, 1, request, none_hash=pool.none_hash))


@pytest.mark.parametrize("count", [1, 2])
def test_pool_5_the_list_that_a_call_returned_is_freed_as_it_is(package: ModuleType, count: int) -> None:
    """POOL-2, POOL-5: an engine hands back the very list that it was given, which need not be read again."""
    pool = package.PagePool(7, True, hash_seed=b"s")
    taken = pool.get_new_pages(count)
    pool.free_pages(taken)
    assert [page.ref_cnt for page in taken] == [0] * count
    assert pool.get_usage() == 0.0
    with pytest.raises(ValueError, match=r"pages.*1.*\[POOL-5\]"):
        pool.free_pages(taken)
    pool.check()
