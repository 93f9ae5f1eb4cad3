"""Rows c, d, e, e2 and f, and decode steps in single calls: keys and the cache manager."""

import hashlib
from collections import deque
from typing import Any

import numpy as np
import pytest

from kvproof import fast

from .workloads import group, manager, tokens

LONG = 32_769


@pytest.mark.parametrize("page_size", [16, 64])
@pytest.mark.parametrize("what", ["keys", "bare digests"])
def test_row_d_keys(benchmark: Any, page_size: int, what: str) -> None:
    request = fast.Request("r", tokens(LONG - 1))
    data = request.all_token_ids.tobytes()

    def bare() -> None:
        digest = bytes(32)
        for start in range(0, len(data), 4 * page_size):
            digest = hashlib.sha256(digest + data[start : start + 4 * page_size]).digest()

    def keys() -> None:
        fast.hash_request_tokens(fast.sha256, page_size, request)

    benchmark.pedantic(keys if what == "keys" else bare, rounds=40, warmup_rounds=2)


def _cached_prompt(splits: int) -> tuple[fast.CacheManager, fast.Request]:
    """A manager that has cached a long prompt, split by requests that part from it at ``splits`` places."""
    served = manager()
    prompt = tokens(LONG)
    first = fast.Request("first", prompt)
    served.allocate_slots(first, LONG)
    served.free(first)
    for place in range(1, splits):
        parting = prompt[: 512 * place + 17].copy()
        parting[512 * place :] += 1
        request = fast.Request(f"split {place}", parting)
        pages, hit = served.get_computed_pages(request)
        served.allocate_slots(request, request.num_tokens - hit, hit, pages)
        served.free(request)
    return served, fast.Request("second", prompt)


@pytest.mark.parametrize("splits", [0, 64])
def test_row_e_look_up(benchmark: Any, splits: int) -> None:
    served, request = _cached_prompt(splits)
    assert served.get_computed_pages(request)[1] == LONG - 1
    benchmark.pedantic(served.get_computed_pages, args=(request,), rounds=300, warmup_rounds=5)


def test_row_e2_look_up_admit_free(benchmark: Any) -> None:
    served, request = _cached_prompt(0)

    def life() -> None:
        pages, hit = served.get_computed_pages(request)
        served.allocate_slots(request, 1, hit, pages)
        served.free(request)

    benchmark.pedantic(life, rounds=200, warmup_rounds=5)


def test_row_f_life_cycle(benchmark: Any) -> None:
    prefixes = [tokens(1_536, seed) for seed in range(8)]
    requests = [fast.Request(str(i), np.concatenate([prefixes[i % 8], tokens(512, 100 + i)])) for i in range(2_400)]
    served = manager(20_000)
    live: deque[fast.Request] = deque()
    waiting = iter(requests)

    def next_request() -> None:
        request = next(waiting)
        pages, hit = served.get_computed_pages(request)
        served.allocate_slots(request, request.num_tokens - hit, hit, pages)
        live.append(request)
        if len(live) > 64:
            oldest = live.popleft()
            served.free(oldest)
            served.free_page_hashes(oldest)

    benchmark.pedantic(next_request, rounds=2_000, warmup_rounds=400)


def _running(num: int, groups: list[fast.CacheGroupSpec] | None = None) -> tuple[fast.CacheManager, list[fast.Request]]:
    """A manager with ``num`` requests that have just been prefilled."""
    served = manager(max(100_000, 50 * num), groups=groups)
    requests = [fast.Request(str(i), tokens(512 + i % 16, i)) for i in range(num)]
    for request in requests:
        served.allocate_slots(request, request.num_tokens)
    return served, requests


def _grow(requests: list[fast.Request]) -> None:
    """Every request has one token more, all before it being computed."""
    for request in requests:
        request.num_computed_tokens = request.num_tokens
        request.append(7)


@pytest.mark.parametrize("running", [256, 1024, 8192])
def test_row_c_batched_decode_step(benchmark: Any, running: int) -> None:
    served, requests = _running(running)
    slots = np.array([served.slot_of(request.request_id) for request in requests])
    computed = np.array([request.num_tokens for request in requests])

    def grow() -> None:
        _grow(requests)
        computed[:] = [request.num_computed_tokens for request in requests]

    def step() -> None:
        served.allocate_slots_batch(slots, computed, 1)

    benchmark.pedantic(step, setup=grow, rounds=64, warmup_rounds=2)


@pytest.mark.parametrize("running", [256])
def test_row_c_look_ups_right_after_the_step(benchmark: Any, running: int) -> None:
    served, requests = _running(running)
    slots = np.array([served.slot_of(request.request_id) for request in requests])

    def step() -> None:
        _grow(requests)
        served.allocate_slots_batch(slots, np.array([request.num_computed_tokens for request in requests]), 1)

    def look_ups() -> None:
        for request in requests:
            served.get_computed_pages(request)

    benchmark.pedantic(look_ups, setup=step, rounds=32, warmup_rounds=2)


HYBRID = [group(), fast.CacheGroupSpec(fast.SlidingWindowSpec(16, 8, 128, "float32", 128))]


@pytest.mark.parametrize("groups", [[group()], HYBRID], ids=["full", "full and window"])
def test_decode_step_in_single_calls(benchmark: Any, groups: list[fast.CacheGroupSpec]) -> None:
    served, requests = _running(256, groups)

    def step() -> None:
        allocate = served.allocate_slots
        for request in requests:
            allocate(request, 1)

    benchmark.pedantic(step, setup=lambda: _grow(requests), rounds=64)


def test_look_up_over_a_window_as_well(benchmark: Any) -> None:
    served = manager(groups=HYBRID)
    prompt = tokens(LONG)
    first = fast.Request("first", prompt)
    served.allocate_slots(first, LONG)
    served.free(first)
    second = fast.Request("second", prompt)
    assert served.get_computed_pages(second)[1] == LONG - 1
    benchmark.pedantic(served.get_computed_pages, args=(second,), rounds=300, warmup_rounds=5)
