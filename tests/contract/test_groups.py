"""MAN-1, MAN-7, MAN-8, MAN-9, MAN-13: bounds and refusals of groups of every kind.

What they hold, serve, give back and publish, the machines `window`, `chunk`, `state` and `hybrid` draw.
"""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof import spec
from kvproof.spec import (
    FullAttentionSpec,
    MambaSpec,
)

from ..cache_groups import chunked, full, group_lists, states, window
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


def test_a_page_where_the_null_page_is_due_is_refused(package: ModuleType) -> None:
    """MAN-2, R1: each group's list is held against the request, and nothing changes."""
    manager = _manager(package, full(2), window(2, 2))
    _cached(manager, range(4))
    request = PlainRequest("r", list(range(6)))
    hits = [list(pages) for pages in manager.get_computed_pages(request)[0].pages]
    assert [[page.page_id for page in pages] for pages in hits] == [[1, 2], [0, 4]]
    before = manager.snapshot()
    wrong = package.CachePages([hits[0], [hits[0][0], hits[1][1]]])
    with pytest.raises(ValueError, match=r"new_computed_pages.*\[MAN-2\]$"):
        manager.allocate_slots(request, 1, 4, wrong)
    assert manager.snapshot() == before
    assert manager.allocate_slots(request, 1, 4, package.CachePages(hits)) is not None


# -- States (MAN-13) --------------------------------------------------------------------------------


def test_look_ahead_never_enters_a_state(package: ModuleType) -> None:
    """MAN-9, MAN-13: attention has slots for drafts, the state none; a draft that was rejected can't be undone."""
    manager = _manager(package, full(2), states(2))
    request = PlainRequest("r", list(range(20)))
    assert _step(manager, request, 0, 3, num_lookahead_tokens=4) == ([1, 2, 3, 4], [0, 5])
    for computed in (2, 4):
        with pytest.raises(ValueError, match=rf"num_computed_tokens={computed}: the state.* after 3 .*\[MAN-13\]$"):
            _step(manager, request, computed, 1)
    assert _step(manager, request, 3, 1) == ([], [])


# -- Groups that contradict themselves (R1) -----------------------------------------------------------

GROUPS: dict[str, tuple[Any, type[Exception], str]] = {
    "no kind": (spec.CacheGroupSpec(None), TypeError, "R1"),  # type: ignore[arg-type]
    "values of no size": (spec.CacheGroupSpec(FullAttentionSpec(2, 1, 1, "float32", 0)), ValueError, "MAN-7"),
    "no layers": (spec.CacheGroupSpec(full(2).kv_cache_spec, []), ValueError, "MAN-7"),
    "layers in a str": (spec.CacheGroupSpec(full(2).kv_cache_spec, "layer"), TypeError, "R1"),
    "a layer that is no str": (spec.CacheGroupSpec(full(2).kv_cache_spec, [1]), TypeError, "R1"),  # type: ignore[list-item]
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
