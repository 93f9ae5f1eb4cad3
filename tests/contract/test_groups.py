"""MAN-1, MAN-7, MAN-8, MAN-9, MAN-13: what groups of every kind hold, serve, give back and publish."""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof import spec
from kvproof.spec import (
    FullAttentionSpec,
    MambaSpec,
    MLAAttentionSpec,
    PageCopy,
)

from ..cache_groups import chunked, full, group_lists, latent, states, window
from ..strategies import PlainRequest


def _manager(package: ModuleType, *groups: spec.CacheGroupSpec, **options: Any) -> Any:
    return package.CacheManager(
        options.pop("num_pages", 30), groups, 40, hash_seed=b"s", **({"retention_interval": None} | options)
    )


def _step(manager: Any, request: PlainRequest, computed: int, new: int, **more: Any) -> Any:
    """The ids of the pages that a request gets, None if there is no room."""
    request.num_computed_tokens = computed
    given = manager.allocate_slots(request, new, **more)
    manager.check()
    return given and given.get_page_ids()


# -- What a step reads (MAN-8) --------------------------------------------------------------------


@given(data=st.data(), groups=group_lists, look_ahead=st.integers(0, 5))
def test_no_request_holds_more_than_its_groups_declare(
    package: ModuleType, data: st.DataObject, groups: Any, look_ahead: int
) -> None:
    """MAN-8: `max_num_pages`, by which engines size their pools, bounds the pages held."""
    manager = _manager(package, *groups, num_pages=200)
    request = PlainRequest("r", list(range(40)))
    computed = 0
    while computed < 40:
        new = data.draw(st.integers(1, min(6, 40 - computed)))
        _step(manager, request, computed, new, num_lookahead_tokens=look_ahead)
        for group, ids in zip(groups, manager.get_page_ids("r"), strict=True):
            assert sum(map(bool, ids)) <= group.kv_cache_spec.max_num_pages(40, 6 + look_ahead)
        computed += new


def test_a_window_gives_its_pages_back_in_place_and_tail_first(package: ModuleType) -> None:
    """MAN-8: of position 6 a window of 3 reads 4 to 6: two pages of two go, and stand last in the queue."""
    manager = _manager(package, window(2, 3), num_pages=7)
    request = PlainRequest("r", list(range(12)))
    assert _step(manager, request, 0, 6) == ([1, 2, 3],)
    assert _step(manager, request, 6, 2) == ([4],)
    assert manager.get_page_ids("r") == ([0, 0, 3, 4],)
    assert [page.page_id for page in manager.page_pool.free_page_queue.get_all_free_pages()] == [5, 6, 2, 1]


def test_pages_are_given_back_also_where_there_is_no_room(package: ModuleType) -> None:
    """MAN-2, MAN-8: None is the answer, the released pages are free, and what was computed can't be fewer again."""
    manager = _manager(package, window(2, 3), num_pages=6)
    request = PlainRequest("r", list(range(40)))
    assert _step(manager, request, 0, 6) == ([1, 2, 3],)
    assert _step(manager, request, 6, 10) is None
    assert manager.get_page_ids("r") == ([0, 0, 3],)
    with pytest.raises(ValueError, match=r"fell from 6 \[MAN-8\]$"):
        _step(manager, request, 5, 1)
    assert _step(manager, request, 6, 8) == ([4, 5, 2, 1],)


def test_groups_give_back_one_after_the_other(package: ModuleType) -> None:
    """MAN-5: group by group, each tail first."""
    manager = _manager(package, full(2), latent(4), num_pages=9)
    request = PlainRequest("r", list(range(8)))
    assert _step(manager, request, 0, 8) == ([1, 2, 3, 4], [5, 6])
    manager.free(request)
    assert [page.page_id for page in manager.page_pool.free_page_queue.get_all_free_pages()] == [7, 8, 4, 3, 2, 1, 6, 5]


def test_man_7_bytes_of_a_page_and_of_a_request() -> None:
    full = spec.FullAttentionSpec(16, 8, 128, "float16", head_size_v=64)
    assert full.page_size_bytes == 16 * 8 * (128 + 64) * 2
    assert spec.MLAAttentionSpec(64, 1, 576, "float16").page_size_bytes == 64 * 576 * 2
    states = spec.MambaSpec(512, ((4, 3), (8, 16, 2)), ("float16", "float32"), "align")
    assert states.page_size_bytes == 12 * 2 + 256 * 4
    assert spec.MambaSpec(512, ((4, 3),), ("float16",), page_size_padded=4096).page_size_bytes == 4096
    window = spec.SlidingWindowSpec(16, 8, 128, "float16", 1024)
    assert window.max_num_pages(1 << 20, 512) == -(-(1023 + 512 + 15) // 16)
    assert spec.CacheGroupSpec(window, ("a", "b", "c")).max_memory_usage_bytes(1 << 20, 512) == (
        3 * window.max_num_pages(1 << 20, 512) * window.page_size_bytes
    )


# -- Hits of several groups (MAN-1, MAN-7, MAN-9) -----------------------------------------------------


def _cached(manager: Any, tokens: Sequence[int], *steps: int) -> None:
    """A request computes its tokens in steps of the given sizes, and is freed."""
    request = PlainRequest("before", list(tokens))
    computed = 0
    for step in steps or (len(tokens),):
        assert _step(manager, request, computed, step) is not None
        computed += step
    manager.free(request)


def _hit(manager: Any, tokens: Sequence[int]) -> tuple[Any, int]:
    pages, found = manager.get_computed_pages(PlainRequest("after", list(tokens)))
    return pages.get_page_ids(), found


def test_a_hit_is_a_multiple_of_every_page_size(package: ModuleType) -> None:
    """MAN-7: keys of one page size are never taken for those of another."""
    manager = _manager(package, full(2), full(3))
    _cached(manager, range(20))
    for length in range(1, 22):
        pages, found = _hit(manager, range(length))
        assert found == max(length - 1, 0) // 6 * 6
        assert list(map(len, pages)) == [found // 2, found // 3]


def test_null_pages_alone_are_no_hit(package: ModuleType) -> None:
    """MAN-1: at the beginning of a chunk nothing is read, and nothing is found."""
    manager = _manager(package, chunked(2, 4))
    assert _hit(manager, range(9)) == (([],), 0)
    _cached(manager, range(6))
    assert _hit(manager, range(9)) == (([0, 0, 3],), 6)
    with pytest.raises(ValueError, match=r"null pages alone.*\[MAN-1\]$"):
        manager.allocate_slots(
            PlainRequest("r", list(range(9))), 1, 4, package.CachePages([[manager.page_pool.null_page] * 2])
        )


def test_the_chain_of_keys_runs_over_null_pages(package: ModuleType) -> None:
    """HASH-3: behind null pages a page is found by those who have the same tokens before it, and by no others."""
    manager = _manager(package, window(2, 2))
    _cached(manager, [1, 2, 3, 4, 5, 6], 2, 2, 2)
    manager.evict_pages([1, 2])
    assert _hit(manager, [1, 2, 3, 4, 5, 6, 7]) == (([0, 0, 3],), 6)
    assert _hit(manager, [9, 2, 3, 4, 5, 6, 7]) == (([],), 0)


def test_eagle_is_decided_once(package: ModuleType) -> None:
    """MAN-9: the page after the hit is demanded of the prefix that is returned, not dropped again and again."""
    groups = [full(2, is_eagle=True), window(4, 5), chunked(4, 8)]
    manager, plain = _manager(package, *groups, use_eagle=True), _manager(package, *groups)
    for each in (manager, plain):
        _cached(each, range(12))
    assert _hit(plain, range(13))[1] == 12
    assert _hit(manager, range(13))[1] == 8
    assert _hit(manager, range(10))[1] == 8, "the page after 8 tokens is cached, and its tokens are known"
    assert _hit(manager, range(9))[1] == 4, "its tokens are not known"


def test_without_a_flag_all_groups_of_attention_are_eagles(package: ModuleType) -> None:
    """MAN-9: state groups never are."""
    manager = _manager(package, full(2), latent(4), states(4), use_eagle=True)
    _cached(manager, range(12), 4, 4, 4)
    assert _hit(manager, range(13))[1] == 8


def test_only_full_attention_and_mla_have_common_prefixes(package: ModuleType) -> None:
    """MAN-10: windows, chunks and states count 0."""
    manager = _manager(package, full(2), window(2, 40), chunked(2, 40), latent(2), states(2))
    first, second = PlainRequest("a", [1, 2, 3, 4, 5]), PlainRequest("b", [1, 2, 3, 4, 6])
    _step(manager, first, 0, 4)
    pages, found = manager.get_computed_pages(second)
    assert found == 4
    _step(manager, second, 0, 1, num_new_computed_tokens=found, new_computed_pages=pages)
    assert manager.get_num_common_prefix_pages(first, 2) == [2, 0, 0, 2, 0]
    assert manager.get_num_common_prefix_pages(first, 1) == [0] * 5


HITS: dict[str, Callable[[Any, Any], list[list[Any]]]] = {
    "pages of the other group": lambda _, hits: [hits[1], hits[0]],
    "a page where the null page is due": lambda _, hits: [hits[0], [hits[0][0], hits[1][1]]],
    "a null page where one is read": lambda null, hits: [[null, hits[0][1]], hits[1]],
    "another order": lambda _, hits: [hits[0][::-1], hits[1]],
    "a shorter list": lambda _, hits: [hits[0], hits[1][:1]],
    "a group less": lambda _, hits: [hits[0]],
}


@pytest.mark.parametrize("fault", HITS)
def test_hits_that_are_not_the_requests_are_refused(package: ModuleType, fault: str) -> None:
    """MAN-2, R1: each group's list is held against the request, and nothing changes."""
    manager = _manager(package, full(2), window(2, 2))
    _cached(manager, range(4))
    request = PlainRequest("r", list(range(6)))
    hits = [list(pages) for pages in manager.get_computed_pages(request)[0].pages]
    assert [[page.page_id for page in pages] for pages in hits] == [[1, 2], [0, 4]]
    before = manager.snapshot()
    wrong = package.CachePages(HITS[fault](manager.page_pool.null_page, hits))
    with pytest.raises(ValueError, match=r"new_computed_pages.*\[MAN-2\]$"):
        manager.allocate_slots(request, 1, 4, wrong)
    assert manager.snapshot() == before
    assert manager.allocate_slots(request, 1, 4, package.CachePages(hits)) is not None


# -- States (MAN-13) --------------------------------------------------------------------------------


def test_states_at_page_boundaries_are_published_and_copied_on(package: ModuleType) -> None:
    """MAN-13: states after 4 and 8 tokens are cached, that after 6 is not; each goes on in a page of its own."""
    manager = _manager(package, states(4))
    request = PlainRequest("r", list(range(20)))
    assert _step(manager, request, 0, 4) == ([1],)
    assert manager.take_page_copies() == []
    assert _step(manager, request, 4, 2) == ([2],)
    assert manager.take_page_copies() == [PageCopy(0, 1, 2)]
    assert _step(manager, request, 6, 2) == ([],), "the state is advanced where it is"
    assert manager.take_page_copies() == []
    assert _step(manager, request, 8, 1) == ([3],)
    assert manager.take_page_copies() == [PageCopy(0, 2, 3)]
    assert manager.get_page_ids("r") == ([0, 2, 3],)
    assert [page.page_id for page in manager.page_pool.pages if page.page_hash] == [1, 2]
    assert _hit(manager, range(9)) == (([0, 2],), 8)
    assert _hit(manager, range(8)) == (([1],), 4)


def test_a_state_left_amid_a_page_is_never_published(package: ModuleType) -> None:
    """MAN-13: the step from 6 to 10 tokens passes 8 by."""
    manager = _manager(package, states(4))
    request = PlainRequest("r", list(range(20)))
    _step(manager, request, 0, 6)
    assert manager.get_page_ids("r") == ([0, 1],)
    assert _step(manager, request, 6, 4) == ([2],)
    assert _step(manager, request, 10, 6) == ([3],)
    manager.cache_pages(request, 16)
    assert [page.page_id for page in manager.page_pool.pages if page.page_hash] == [3]
    assert manager.take_page_copies() == [PageCopy(0, 1, 2), PageCopy(0, 2, 3)]


def test_a_hit_goes_on_from_a_copy(package: ModuleType) -> None:
    """MAN-13: the published state stays as it is for others."""
    manager = _manager(package, full(2), states(4))
    _cached(manager, range(8), 4, 4)
    request = PlainRequest("r", list(range(30)))
    pages, found = manager.get_computed_pages(request)
    assert (pages.get_page_ids(), found) == (([1, 2, 4, 5], [0, 6]), 8)
    manager.take_page_copies()
    assert _step(manager, request, 0, 9, num_new_computed_tokens=8, new_computed_pages=pages) == (
        [7, 8, 9, 10, 11],
        [0, 0, 12],
    )
    assert manager.take_page_copies() == [PageCopy(1, 6, 12)]


def test_copies_of_a_request_that_goes_are_dropped(package: ModuleType) -> None:
    """MAN-13: nobody advances its state; another request's copies stay."""
    manager = _manager(package, states(2))
    requests = [PlainRequest(name, list(range(10))) for name in "ab"]
    for request in requests:
        _step(manager, request, 0, 2)
        _step(manager, request, 2, 2)
    manager.free(requests[0], 2)
    assert manager.take_page_copies() == [PageCopy(0, 3, 4)]


def test_look_ahead_never_enters_a_state(package: ModuleType) -> None:
    """MAN-9, MAN-13: attention has slots for drafts, the state none; a draft that was rejected can't be undone."""
    manager = _manager(package, full(2), states(2))
    request = PlainRequest("r", list(range(20)))
    assert _step(manager, request, 0, 3, num_lookahead_tokens=4) == ([1, 2, 3, 4], [0, 5])
    for computed in (2, 4):
        with pytest.raises(ValueError, match=rf"num_computed_tokens={computed}: the state.* after 3 .*\[MAN-13\]$"):
            _step(manager, request, computed, 1)
    assert _step(manager, request, 3, 1) == ([], [])


def test_mode_none_has_one_page_and_no_hits(package: ModuleType) -> None:
    """MAN-13: any mix with it hits nothing."""
    manager = _manager(package, full(2), states(4, "none"))
    request = PlainRequest("r", list(range(30)))
    assert _step(manager, request, 0, 9) == ([1, 2, 3, 4, 5], [6])
    assert _step(manager, request, 9, 9) == ([7, 8, 9, 10], [])
    assert manager.take_page_copies() == []
    assert _hit(manager, range(30)) == (([], []), 0)
    assert manager.free(request, 0) == []


def test_a_withdrawn_state_is_withdrawn_from_all_who_hit_it(package: ModuleType) -> None:
    """MAN-4, MAN-13: the state after 4 tokens was promised and is never written."""
    manager = _manager(package, full(4), states(4))
    first, second = PlainRequest("a", list(range(9))), PlainRequest("b", list(range(9)))
    _step(manager, first, 0, 4)
    pages, found = manager.get_computed_pages(second)
    assert found == 4
    _step(manager, second, 0, 5, num_new_computed_tokens=4, new_computed_pages=pages)
    assert manager.free(first, 3) == ["b"]
    assert _hit(manager, range(9))[1] == 0
    manager.check()


# -- Groups that contradict themselves (R1) -----------------------------------------------------------

GROUPS: dict[str, tuple[Any, type[Exception], str]] = {
    "no group": ("full", TypeError, "R1"),
    "a layer": (FullAttentionSpec(2, 1, 1, "float32"), TypeError, "R1"),
    "no kind": (spec.CacheGroupSpec(None), TypeError, "R1"),  # type: ignore[arg-type]
    "a page size of 0": (full(0), ValueError, "MAN-7"),
    "a page size of 2.0": (full(2.0), TypeError, "R1"),  # type: ignore[arg-type]
    "a page size that is a bool": (states(True), TypeError, "R1"),
    "no heads": (spec.CacheGroupSpec(FullAttentionSpec(2, 0, 1, "float32")), ValueError, "MAN-7"),
    "no head size": (spec.CacheGroupSpec(MLAAttentionSpec(2, 1, 0, "float32")), ValueError, "MAN-7"),
    "values of no size": (spec.CacheGroupSpec(FullAttentionSpec(2, 1, 1, "float32", 0)), ValueError, "MAN-7"),
    "an unknown dtype": (spec.CacheGroupSpec(FullAttentionSpec(2, 1, 1, "float33")), TypeError, "R1"),
    "no dtype": (spec.CacheGroupSpec(FullAttentionSpec(2, 1, 1, None)), TypeError, "R1"),  # type: ignore[arg-type]
    "bytes": (spec.CacheGroupSpec(FullAttentionSpec(2, 1, 1, "S4")), TypeError, "R1"),
    "a name that numpy is giving up": (spec.CacheGroupSpec(FullAttentionSpec(2, 1, 1, "a")), TypeError, "R1"),
    "no window": (window(2, 0), ValueError, "MAN-7"),
    "no chunk": (chunked(2, 0), ValueError, "MAN-7"),
    "no layers": (spec.CacheGroupSpec(full(2).kv_cache_spec, []), ValueError, "MAN-7"),
    "layers in a str": (spec.CacheGroupSpec(full(2).kv_cache_spec, "layer"), TypeError, "R1"),
    "a layer that is no str": (spec.CacheGroupSpec(full(2).kv_cache_spec, [1]), TypeError, "R1"),  # type: ignore[list-item]
    "a layer twice": (spec.CacheGroupSpec(full(2).kv_cache_spec, ["a", "a"]), ValueError, "MAN-7"),
    "a flag that is no bool": (spec.CacheGroupSpec(full(2).kv_cache_spec, None, 1), TypeError, "R1"),  # type: ignore[arg-type]
    "an unknown mode": (states(2, "all"), ValueError, "MAN-13"),
    "a mode that is no str": (states(2, None), TypeError, "R1"),
    "no states": (spec.CacheGroupSpec(MambaSpec(2, (), ())), ValueError, "MAN-7"),
    "a shape without a dtype": (spec.CacheGroupSpec(MambaSpec(2, ((1,),), ())), ValueError, "MAN-7"),
    "a size below 1": (spec.CacheGroupSpec(MambaSpec(2, ((0,),), ("float32",))), ValueError, "MAN-7"),
    "shapes that are ints": (spec.CacheGroupSpec(MambaSpec(2, (1,), ("float32",))), TypeError, "R1"),  # type: ignore[arg-type]
    "padding that cuts": (
        spec.CacheGroupSpec(MambaSpec(2, ((2,),), ("float32",), "align", 7)),
        ValueError,
        "MAN-7",
    ),
}


@pytest.mark.parametrize("fault", GROUPS)
def test_groups_that_contradict_themselves_are_refused(package: ModuleType, fault: str) -> None:
    """R1, MAN-7: before a pool is made."""
    group, kind, clause = GROUPS[fault]
    with pytest.raises(kind, match=rf"kv_cache_groups.*\[{clause}\]$"):
        _manager(package, full(1), group)


def test_a_layer_is_in_one_group(package: ModuleType) -> None:
    """R1, MAN-7."""
    groups = [spec.CacheGroupSpec(full(2).kv_cache_spec, names) for names in (["a", "b"], ["c", "a"])]
    with pytest.raises(ValueError, match=r"'a' is named twice \[MAN-7\]$"):
        _manager(package, *groups)


def test_a_state_group_is_no_eagles(package: ModuleType) -> None:
    """R1, MAN-9: with Eagle; without it flags mean nothing."""
    flagged = spec.CacheGroupSpec(states(2).kv_cache_spec, None, True)
    with pytest.raises(ValueError, match=r"kv_cache_groups\[1\].*\[MAN-9\]$"):
        _manager(package, full(2), flagged, use_eagle=True)
    assert _manager(package, full(2), flagged).use_eagle is False


@given(groups=group_lists, caching=st.booleans())
def test_the_coordinator_is_the_one_of_the_groups(package: ModuleType, groups: Sequence[Any], caching: bool) -> None:
    """MAN-7: none, one or several groups; the first one's page size is the manager's."""
    manager = _manager(package, *groups, enable_caching=caching)
    kinds = {1: package.UnitaryCacheCoordinator} if caching else {}
    kind = kinds.get(len(groups), package.HybridCacheCoordinator if caching else package.CacheCoordinatorNoPrefixCache)
    assert type(manager.coordinator) is kind
    assert manager.page_size == (groups[0].kv_cache_spec.page_size if caching else None)
    assert manager.create_empty_page_list().get_page_ids() == tuple([] for _ in groups)
    assert type(_manager(package).coordinator) is package.CacheCoordinatorNoPrefixCache


@given(group_lists)
def test_keys_are_shown_in_the_first_groups_page_size(package: ModuleType, groups: Sequence[Any]) -> None:
    """HASH-3: of the requests looked up or admitted, until they are dropped."""
    manager = _manager(package, *groups)
    request = PlainRequest("r", list(range(12)))
    manager.get_computed_pages(request)
    size = groups[0].kv_cache_spec.page_size
    assert [key.token_ids for key in manager.req_to_page_hashes["r"]] == [
        tuple(range(start, start + size)) for start in range(0, 12 - size + 1, size)
    ]
    manager.free_page_hashes(request)
    assert manager.req_to_page_hashes == {}
