"""MAN-2: which hits are taken at an admission, and what of a live request's page list may change."""

from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof.spec.declarations import CacheGroupSpec, FullAttentionSpec, Request, SlidingWindowSpec

prompts = st.lists(st.integers(0, 1), min_size=3, max_size=6)


def manager_of(package: ModuleType, num_pages: int, *windows: int) -> Any:
    groups = [CacheGroupSpec(FullAttentionSpec(2, 1, 8, "float32"), ("full",))]
    groups += [CacheGroupSpec(SlidingWindowSpec(2, 1, 8, "float32", size), (f"window {size}",)) for size in windows]
    return package.CacheManager(num_pages, groups, 12, hash_seed=b"s")


@given(tokens=prompts, other=prompts)
def test_man_2_a_hit_is_taken_if_it_holds_the_prefix_again(
    package: ModuleType, tokens: list[int], other: list[int]
) -> None:
    """Found, evicted, and perhaps cached again on the same pages: what counts is what they hold at the admission."""
    manager = manager_of(package, 4)
    late = Request("late", tokens)
    for name, served in (("a", tokens), ("b", other), ("c", tokens)):
        request = Request(name, served)
        pages, hits = manager.get_computed_pages(request)
        assert manager.allocate_slots(request, len(served) - hits, hits, pages) is not None
        manager.free(request)
        if name == "a":
            found, length = manager.get_computed_pages(late)
    now, _ = manager.get_computed_pages(late)
    assert length == (len(tokens) - 1) // 2 * 2
    if found.get_page_ids() == now.get_page_ids():
        assert manager.allocate_slots(late, len(tokens) - length, length, found) is not None
        assert manager.get_page_ids("late")[0][: length // 2] == found.get_page_ids()[0]
    else:
        with pytest.raises(ValueError, match=r"\[MAN-2\]$"):
            manager.allocate_slots(late, len(tokens) - length, length, found)


@given(several=st.lists(prompts, min_size=2, max_size=3), windows=st.sampled_from([(), (3,), (1, 4)]))
def test_man_2_a_table_is_told_all_by_what_the_calls_return(
    package: ModuleType, several: list[list[int]], windows: tuple[int, ...]
) -> None:
    """Requests compute alike prompts side by side, so that pages of equal content are cached: nobody's list changes."""
    manager = manager_of(package, 40, *windows)
    requests = [Request(str(number), tokens) for number, tokens in enumerate(several)]
    tables: dict[str, list[list[int]]] = {}
    for step in range(6):
        for request in requests:
            if step >= request.num_tokens:
                request.append(0)
            request.num_computed_tokens = step
            new = manager.allocate_slots(request, 1).get_page_ids()
            rows = tables.setdefault(request.request_id, [[] for _ in new])
            for row, pages in zip(rows, new, strict=True):
                row += pages
            for name, lists in tables.items():
                for row, held in zip(lists, manager.get_page_ids(name), strict=True):
                    assert [page or was for was, page in zip(row, held, strict=True)] == row
