"""POOL-7, MAN-1: what fast's index costs depends on what is cached, not on what once was.

Requests that share a prefix for a while branch off it, and their branches are evicted: neither the number of runs nor
the price of a look-up may remember them. What is compared with is the same cache restored from its snapshot.
"""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from kvproof import fast
from kvproof.fast.index import prefix_index
from kvproof.fast.index.joining import part
from kvproof.fast.index.prefix_index import PrefixIndex
from kvproof.fast.index.runs import Run
from kvproof.fast.reading.extra_keys import extra_segments
from kvproof.fast.reading.tokens import token_view
from kvproof.spec.declarations import CacheSalt, MultimodalItem

from .counting import calls_of, instructions_of

PAGE_SIZE = 4
Tokens = NDArray[np.int32]


def manager_of(num_pages: int) -> fast.CacheManager:
    layers = fast.FullAttentionSpec(PAGE_SIZE, 1, 8, "float32")
    return fast.CacheManager(num_pages, [fast.CacheGroupSpec(layers)], max_model_len=1 << 20)


def serve(manager: fast.CacheManager, name: object, tokens: Tokens) -> None:
    """A request comes and goes."""
    request = fast.Request(str(name), tokens)
    pages, hit = manager.get_computed_pages(request)
    assert manager.allocate_slots(request, len(tokens) - hit, hit, pages) is not None
    manager.free(request)
    manager.free_page_hashes(request)


def look_up(manager: fast.CacheManager, tokens: Tokens) -> Callable[[], int]:
    """A look-up of cached tokens, and one more."""
    request = fast.Request("look-up", np.append(tokens, 1).astype(np.int32))

    def act() -> int:
        hit: int = manager.get_computed_pages(request)[1]
        manager.free_page_hashes(request)
        return hit

    return act


def restored(manager: fast.CacheManager) -> fast.CacheManager:
    return fast.CacheManager.restore(manager.snapshot(), [])


def num_runs(manager: fast.CacheManager) -> int:
    return manager.page_pool.index.num_runs


def require_no_more(old: fast.CacheManager, new: fast.CacheManager, prompts: list[Tokens], times: float) -> None:
    """A look-up in an old index costs no more than so many times what it costs in a new one."""
    for mine, theirs in zip(_costs(old, prompts), _costs(new, prompts), strict=True):
        assert mine <= times * theirs


def _costs(manager: fast.CacheManager, prompts: list[Tokens]) -> tuple[int, int]:
    """Calls and instructions of looking prompts up, all of which are cached."""
    acts = [look_up(manager, prompt) for prompt in prompts]
    for act, prompt in zip(acts, prompts, strict=True):
        assert act() == len(prompt) // PAGE_SIZE * PAGE_SIZE
    return sum(map(calls_of, acts)), sum(map(instructions_of, acts))


def grown_old(rng: np.random.Generator, requests: int) -> tuple[fast.CacheManager, list[Tokens]]:
    """A manager whose stems were left at random depths, and the stems."""
    stems = [rng.integers(0, 1_000, 32 * PAGE_SIZE).astype(np.int32) for _ in range(8)]
    manager = manager_of(600)
    for number in range(requests):
        stem, depth = stems[number % len(stems)], int(rng.integers(1, 32))
        own = rng.integers(0, 1_000, int(rng.integers(1, 8 * PAGE_SIZE))).astype(np.int32)
        serve(manager, number, np.concatenate([stem[: depth * PAGE_SIZE], own]))
    for number, stem in enumerate(stems):
        serve(manager, f"stem {number}", stem)
    return manager, stems


@pytest.mark.parametrize("seed", range(3))
def test_pool_7_an_old_index_is_as_good_as_the_restored_one(seed: int) -> None:
    manager, stems = grown_old(np.random.default_rng(seed), requests=600)
    new = restored(manager)
    assert num_runs(manager) <= 1.2 * num_runs(new)
    require_no_more(manager, new, stems, 1.5)


@pytest.mark.parametrize("seed", range(3))
def test_man_1_branches_leave_a_stem_almost_as_if_it_were_alone(seed: int) -> None:
    """While they are cached: a stem that grew at random depths is one run, but perhaps for its last pages."""
    manager, stems = grown_old(np.random.default_rng(seed), requests=600)
    young = manager_of(600)
    for number, stem in enumerate(stems):
        serve(young, number, stem)
    assert num_runs(manager) > 3 * len(stems)
    require_no_more(manager, young, stems, 1.5)


def test_man_1_a_prompt_that_grows_turn_by_turn_is_looked_up_as_one_that_came_at_once() -> None:
    """Each turn repeats what came before and ends with pages that the next one replaces: no step for each turn."""

    def instructions(turns: int) -> int:
        manager, history = manager_of(1_000), np.arange(turns * PAGE_SIZE, dtype=np.int32)
        for turn in range(1, turns):
            own = np.full(3 * PAGE_SIZE, 1_000_000 + turn, np.int32)
            serve(manager, turn, np.concatenate([history[: turn * PAGE_SIZE], own]))
        serve(manager, "all", history)
        manager.check()
        act = look_up(manager, history)
        assert act() == len(history)
        return instructions_of(act)

    assert instructions(60) == instructions(20)


@pytest.mark.parametrize("seed", range(3))
def test_pool_7_an_exchange_moves_no_more_than_its_request_has_pages(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[int] = []

    def counted(run: Run, inner: int) -> Run:
        rest = part(run, inner)
        moved.append(len(rest.pages) + rest.num_attached)
        return rest

    monkeypatch.setattr(prefix_index, "part", counted)
    rng = np.random.default_rng(seed)
    stems = [rng.integers(0, 1_000, 32 * PAGE_SIZE).astype(np.int32) for _ in range(4)]
    manager = manager_of(400)
    for number in range(400):
        before, depth = len(moved), int(rng.integers(1, 32))
        own = rng.integers(0, 1_000, int(rng.integers(1, 8 * PAGE_SIZE))).astype(np.int32)
        tokens = np.concatenate([stems[number % 4][: depth * PAGE_SIZE], own])
        serve(manager, number, tokens)
        assert sum(moved[before:]) <= len(tokens) // PAGE_SIZE
    assert len(moved) > 5


@pytest.mark.parametrize("seed", range(3))
def test_pool_7_when_all_branches_are_evicted_one_run_a_prompt_is_left(seed: int) -> None:
    manager, stems = grown_old(np.random.default_rng(seed), requests=600)
    held = [fast.Request(f"held {number}", stem) for number, stem in enumerate(stems)]
    for request in held:
        pages, hit = manager.get_computed_pages(request)
        assert manager.allocate_slots(request, request.num_tokens - hit, hit, pages) is not None
    room = PAGE_SIZE * manager.page_pool.get_num_free_pages()
    serve(manager, "all that is free", np.arange(10_000, 10_000 + room, dtype=np.int32))
    manager.check()
    assert num_runs(manager) == len(stems) + 1
    young = manager_of(600)
    for number, stem in enumerate(stems):
        serve(young, number, stem)
    require_no_more(manager, young, stems, 1.2)


def stranger(pages: int) -> tuple[fast.CacheManager, Tokens]:
    """A manager with a cached prefix, and short requests that left it after each of its pages."""
    prefix = np.arange(pages * PAGE_SIZE, dtype=np.int32)
    manager = manager_of(4 * pages)
    serve(manager, "prefix", prefix)
    for depth in range(1, pages):
        own = np.full(2 * PAGE_SIZE, 1_000_000 + depth, np.int32)
        serve(manager, depth, np.concatenate([prefix[: depth * PAGE_SIZE], own]))
    return manager, prefix


def test_man_1_short_requests_along_a_prefix_leave_its_look_up_as_it_was() -> None:
    manager, prefix = stranger(150)
    young = manager_of(300)
    serve(young, "prefix", prefix)
    require_no_more(manager, young, [prefix], 1.2)
    require_no_more(manager, restored(manager), [prefix], 1.2)
    assert num_runs(manager) <= 150


def test_pool_7_a_page_of_a_branch_costs_the_same_wherever_it_branches_off() -> None:
    """A request that leaves a prefix amid, which others have left at every page."""

    def instructions(pages: int) -> int:
        manager, prefix = stranger(pages)
        own = np.full(2 * PAGE_SIZE, 2_000_000, np.int32)
        late = np.concatenate([prefix[: pages // 2 * PAGE_SIZE], own])
        return instructions_of(lambda: serve(manager, "late", late))

    assert instructions(200) <= 1.2 * instructions(50)


def test_pool_8_the_runs_above_go_however_many_they_are() -> None:
    """Each page of a request has other extra keys, and so a run of its own; the last one is evicted last."""
    pages = 2_000
    index = PrefixIndex(pages + 1)
    tree = index.tree(0, 1)
    segments = extra_segments(tuple(MultimodalItem(b"%d" % place, place, 1) for place in range(pages)), 1)
    index.publish(tree, token_view("tokens", [7] * pages), segments, np.arange(1, pages + 1))
    assert index.num_runs == pages
    index.evict(np.arange(1, pages))
    index.evict_one(pages)
    assert index.num_runs == 0
    index.check()


@pytest.mark.parametrize("first", [True, False], ids=["smaller run first", "larger run first"])
def test_pool_7_the_smaller_run_is_gone_through(first: bool) -> None:
    """Two runs are joined at the price of the smaller, whichever comes first."""
    short, long = (4, 4_000) if first else (4_000, 4)
    index = PrefixIndex(10_000)
    tree, plain = index.tree(0, 1), extra_segments((), 1)
    index.publish(tree, token_view("tokens", [0] * short + [1]), plain, np.arange(1, short + 2))
    below = np.arange(short + 2, short + 2 + long)
    index.publish(tree, token_view("tokens", [0] * short + [2] * long), plain, np.r_[np.zeros(short, int), below])
    branches = np.arange(9_000, 9_010)
    for depth, page in enumerate(branches.tolist(), max(short, long) // 2):  # of the larger one
        path = ([0] * short + [2] * long)[:depth]
        index.publish(tree, token_view("tokens", [*path, 3, 3]), plain, np.r_[np.zeros(depth, int), page, page + 20])
    kept = {id(index.place(page)[0]) for page in (1, below[0])}  # type: ignore[index]
    assert len(kept) == 2
    instructions = instructions_of(lambda: index.evict_one(short + 1))
    index.check()
    place = index.place(1)
    assert place is not None
    assert len(place[0].pages) == short + long
    assert instructions < 1_000
    assert index.num_runs == 1 + len(branches)


def test_pool_7_a_branch_that_ends_in_holes_is_joined_without_them() -> None:
    """One call evicts the ends of a run and of the branch that is joined to it, the latter in any order."""
    index = PrefixIndex(20)
    tree, plain = index.tree(0, 1), extra_segments((), 1)

    def publish(values: list[int], pages: list[int]) -> None:
        index.publish(tree, token_view("tokens", values), plain, np.array(pages))

    publish([0] * 6, [1, 2, 3, 4, 5, 6])
    publish([0] * 4 + [1, 1, 1], [0, 0, 0, 0, 7, 8, 9])
    publish([0] * 4 + [1, 2], [0, 0, 0, 0, 0, 10])
    index.evict(np.array([6, 5, 8, 9]))
    index.check()
    hit = index.match(tree, token_view("tokens", [0] * 4 + [1, 2]), plain, 6)
    assert hit.tolist() == [1, 2, 3, 4, 7, 10]
    assert index.num_runs == 1


def test_pool_7_branches_under_other_extra_keys_are_never_joined() -> None:
    index = PrefixIndex(20)
    tree = index.tree(0, 1)

    def publish(values: list[int], extra: tuple[object, ...], pages: list[int]) -> None:
        index.publish(tree, token_view("tokens", values), extra_segments(extra, 1), np.array(pages))

    publish([0, 0, 0, 0], (), [1, 2, 3, 4])
    publish([0, 0, 1, 1], (MultimodalItem(b"a", 2, 2),), [0, 0, 5, 6])
    publish([0, 0, 0, 0], (CacheSalt("s"),), [7, 8, 9, 10])
    index.evict(np.array([4, 3]))
    index.check()
    found = [index.place(page) for page in (2, 5, 8)]
    runs: set[Run] = {place[0] for place in found if place}
    assert len(runs) == 3
    hit = index.match(tree, token_view("tokens", [0, 0, 1, 1]), extra_segments((), 1), 4)
    assert hit.tolist() == [1, 2]
