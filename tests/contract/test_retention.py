"""RET-1 to RET-4: which pages of windows, chunks and states are kept when requests let go of them, and for how long.

That snapshots and shards keep junctions is tested in `test_snapshot` and `test_shards`; that level safe accepts
managers that keep more or fewer pages, in `tests/conformance/test_safe.py`.
"""

import json
from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest

from ..cache_groups import chunked, full, states, window
from ..strategies import PlainRequest

PROMPT = list(range(100, 109))


def _manager(package: ModuleType, *groups: Any, num_pages: int = 60, **options: Any) -> Any:
    return package.CacheManager(num_pages, groups or (full(2), window(2, 3)), 40, hash_seed=b"s", **options)


def _hit(manager: Any, tokens: list[int]) -> int:
    """The tokens that a prompt would hit."""
    hit: int = manager.get_computed_pages(PlainRequest("?", tokens))[1]
    return hit


def _serve(manager: Any, name: str, tokens: list[int], *ends: int) -> None:
    """Serves a request from its hits on, in steps that end at some lengths and at its end, and frees it."""
    request = PlainRequest(name, tokens)
    pages, hit = manager.get_computed_pages(request)
    stops = [end for end in (*ends, len(tokens)) if end > hit]
    assert manager.allocate_slots(request, stops[0] - hit, hit, pages) is not None
    for start, end in pairwise(stops):
        request.num_computed_tokens = start
        assert manager.allocate_slots(request, end - start) is not None
    request.num_computed_tokens = len(tokens)
    manager.free(request)
    manager.check()


def _others(manager: Any) -> list[Any]:
    """The requests that a manager knows and that are not live."""
    return [request for name, request in manager.prefixes.known.items() if not any(manager.get_page_ids(name))]


# -- Resume points (RET-1) ------------------------------------------------------------------------


@pytest.mark.parametrize("part", [window(2, 3), chunked(2, 4)], ids=["window", "chunk"])
def test_a_prompt_is_hit_again_and_so_is_its_next_turn(package: ModuleType, part: Any) -> None:
    manager = _manager(package, full(2), part)
    _serve(manager, "a", PROMPT, 4, 8)
    assert _hit(manager, PROMPT) == 8
    assert _hit(manager, [*PROMPT, 1, 2, 3]) == 8
    _serve(manager, "b", [*PROMPT, 1, 2, 3])
    assert _hit(manager, [*PROMPT, 1, 2, 3, 4]) == 12


def test_a_state_is_hit_where_a_step_ended(package: ModuleType) -> None:
    manager = _manager(package, full(2), states(2))
    _serve(manager, "a", PROMPT, 4, 8)
    assert _hit(manager, PROMPT) == 8
    assert _hit(manager, PROMPT[:6]) == 0, "no resume point"


@pytest.mark.parametrize(("interval", "hits"), [(0, [0, 0, 0, 8]), (4, [0, 4, 4, 8]), (None, [2, 4, 6, 8])])
def test_prompts_that_begin_alike_are_hit_where_the_interval_says(
    package: ModuleType, interval: int | None, hits: list[int]
) -> None:
    manager = _manager(package, retention_interval=interval)
    _serve(manager, "a", PROMPT, 2, 4, 6, 8)
    assert [_hit(manager, [*PROMPT[:length], 1]) for length in (2, 4, 6, 8)] == hits


def test_full_attention_keeps_everything(package: ModuleType) -> None:
    manager = _manager(package, full(2), retention_interval=0)
    _serve(manager, "a", PROMPT, 2, 4, 6, 8)
    assert [_hit(manager, [*PROMPT[:length], 1]) for length in (2, 4, 6, 8)] == [2, 4, 6, 8]


# -- Junctions (RET-2) ----------------------------------------------------------------------------


@pytest.mark.parametrize("part", [window(2, 3), states(2)], ids=["window", "state"])
def test_the_second_prompt_of_a_family_makes_a_junction_that_the_third_hits(package: ModuleType, part: Any) -> None:
    manager = _manager(package, full(2), part)
    _serve(manager, "a", PROMPT)
    second = PlainRequest("b", [*PROMPT[:4], 1, 2, 3, 4, 5])
    assert manager.get_computed_pages(second)[1] == 0
    assert manager.get_junction(second) == 4
    _serve(manager, "b", second.all_token_ids, 4, 8)
    third = PlainRequest("c", [*PROMPT[:4], 6, 7, 8])
    assert manager.get_computed_pages(third)[1] == 4
    assert manager.get_junction(third) == 0, "all groups hit as far"


@pytest.mark.parametrize("unit", [None, 2])
def test_hits_at_a_junction_are_counted(package: ModuleType, unit: int | None) -> None:
    """MAN-12: those of a request that came back are its own wherever they end; a snapshot has both (MAN-14)."""
    manager = _manager(package, full(4), window(4, 6), match_unit=unit, max_pinned_pages=9)
    prompt = list(range(100, 118))
    parted = 10 if unit else 8
    _serve(manager, "a", prompt)
    _serve(manager, "b", [*prompt[:parted], 1, 2, 3, 4, 5, 6, 7])
    assert (manager.counters.junction_hit_tokens, manager.counters.resumed_hit_tokens) == (0, 0)
    before = manager.counters.hit_tokens
    third = PlainRequest("c", [*prompt[:parted], 7, 8, 9])
    pages, hit = manager.get_computed_pages(third)
    assert hit == parted
    manager.allocate_slots(third, 3, hit, pages)
    assert (manager.counters.junction_hit_tokens, manager.counters.resumed_hit_tokens) == (hit, 0)
    manager.free(third)
    pages, again = manager.get_computed_pages(third)
    manager.allocate_slots(third, 3 + hit - again, again, pages)
    _serve(manager, "d", [*prompt, 1])
    told = manager.counters
    assert (told.junction_hit_tokens, told.resumed_hit_tokens) == (hit, again)
    assert told.hit_tokens > before + hit + again, "the rest is the hit of d: a's prompt comes again"
    restored = package.CacheManager.restore(json.loads(json.dumps(manager.snapshot())), [third, *_others(manager)])
    assert restored.counters == told
    restored.check()


def test_a_request_that_was_not_computed_past_its_junction_keeps_nothing_there(package: ModuleType) -> None:
    manager = _manager(package)
    _serve(manager, "a", PROMPT)
    second = PlainRequest("b", [*PROMPT[:6], 1, 2, 3])
    assert manager.get_junction(second) == 6
    assert manager.allocate_slots(second, 4) is not None
    second.num_computed_tokens = 4
    manager.free(second)
    assert _hit(manager, [*PROMPT[:6], 9]) == 4, "its own end"


# -- Letting go (RET-3) ---------------------------------------------------------------------------


@pytest.mark.parametrize("eviction", ["lru", "reuse", "adaptive"])
def test_what_no_hit_needs_loses_its_hash_and_is_taken_first(package: ModuleType, eviction: str) -> None:
    """Of a window of 3 positions 8 tokens need two pages of two at their end; the other two pages are taken next."""
    manager = _manager(package, num_pages=12, eviction=eviction)
    _serve(manager, "a", PROMPT, 2, 4, 6, 8)
    assert manager.page_pool.eviction_counters.unreachable == 3
    taken = manager.page_pool.get_new_pages(5)
    assert _hit(manager, PROMPT) == 8, "those held nothing that anybody could use"
    manager.page_pool.free_pages(taken)


@pytest.mark.parametrize("eviction", ["lru", "reuse", "adaptive"])
def test_the_end_of_a_passed_prompt_goes_before_what_its_request_left(package: ModuleType, eviction: str) -> None:
    manager = _manager(package, num_pages=24, eviction=eviction)
    _serve(manager, "a", [*PROMPT, 1, 2, 3, 4, 5, 6, 7], 9, 12, 14)
    turn = [*PROMPT, 1, 2, 3, 4, 5, 6, 7, 8]
    assert _hit(manager, turn) == 16
    held = []
    while _hit(manager, turn) == 16:  # one page at a time until something is lost
        held += manager.page_pool.get_new_pages(1)
    assert _hit(manager, PROMPT) == 0, "the prompt's end went before"


# -- By what it is decided (RET-4) ----------------------------------------------------------------


def test_the_same_calls_keep_the_same(package: ModuleType) -> None:
    snapshots = []
    for _ in range(2):
        manager = _manager(package, full(2), window(2, 3), states(2), eviction="adaptive", num_pages=20)
        for number in range(6):
            _serve(manager, f"r{number}", [*PROMPT[: 2 + number], number, 1, 2, 3], 2)
        snapshots.append({name: part for name, part in manager.snapshot().items() if name not in ("freed_at", "now")})
    assert snapshots[0] == snapshots[1]
