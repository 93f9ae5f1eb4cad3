"""What `record` costs: the same calls plain and recorded, everything that is written later included.

Each round ends with what was noted being written; the share is ``recorded / plain - 1`` of the minima.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvproof import fast
from kvproof.conformance import record

from .workloads import group, tokens

STEPS = 64
PAGES = 100_000


@pytest.fixture(params=["plain", "recorded"])
def managers(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Makes a manager, recorded or not; what it is and a function that writes what was noted."""
    made: list[Any] = []

    def make() -> tuple[Any, Any]:
        manager: Any = fast.CacheManager(PAGES, [group()], max_model_len=1 << 20)
        if request.param == "plain":
            return manager, lambda: None
        made.append(record(manager, tmp_path / f"{len(made)}.log", states_every=0))
        return made[-1], made[-1].flush

    yield make
    for manager in made:
        manager.close()


def _running(manager: Any, num: int) -> list[fast.Request]:
    requests = [fast.Request(str(place), tokens(512 + place % 16, place)) for place in range(num)]
    for request in requests:
        manager.allocate_slots(request, request.num_tokens)
    return requests


def _grow(requests: list[fast.Request]) -> None:
    for request in requests:
        request.num_computed_tokens = request.num_tokens
        request.append(7)


def test_single_decode_calls(benchmark: Any, managers: Any) -> None:
    """4,096 calls a round, as many as are written together: sixteen tokens of 256 requests, appended in it, too."""
    manager, write = managers()
    requests = _running(manager, 256)
    write()

    def calls() -> None:
        for _ in range(16):
            _grow(requests)
            allocate = manager.allocate_slots
            for request in requests:
                allocate(request, 1)
        write()

    benchmark.pedantic(calls, rounds=24, warmup_rounds=1)


@pytest.mark.parametrize("running", [256, 1024])
@pytest.mark.parametrize("commits", [False, True], ids=["alone", "with commit"])
def test_batched_decode_step(benchmark: Any, managers: Any, running: int, commits: bool) -> None:
    """One step a round, written within it every `STEPS` steps."""
    manager, write = managers()
    tables = fast.MultiGroupPageTable(running, 2048, running, [16])
    if write.__name__ == "flush":
        tables = record(tables, manager)
    requests = _running(manager, running)
    for row, request in enumerate(requests):
        tables.append_row(manager.get_page_ids(request.request_id), row)
    slots = np.array([manager.slot_of(request.request_id) for request in requests])
    rows, computed = np.arange(running), np.zeros(running, np.int64)
    write()
    steps = 0

    def grow() -> None:
        _grow(requests)
        computed[:] = [request.num_computed_tokens for request in requests]

    def step() -> None:
        nonlocal steps
        manager.allocate_slots_batch(slots, computed, 1, tables=tables, rows=rows)
        if commits:
            tables.commit(running)
        steps += 1
        if steps % STEPS == 0:
            write()

    benchmark.pedantic(step, setup=grow, rounds=8 * STEPS, warmup_rounds=2)


@pytest.mark.parametrize("length", [1024, 8192])
def test_a_new_prompt(benchmark: Any, managers: Any, length: int) -> None:
    """Sixteen prompts a round, four calls each, and what is written of them."""
    manager, write = managers()
    prompts = iter(fast.Request(str(place), tokens(length, place)) for place in range(16 * 40))

    def lives(requests: list[fast.Request]) -> None:
        for request in requests:
            pages, found = manager.get_computed_pages(request)
            manager.allocate_slots(request, request.num_tokens - found, found, pages)
            manager.free(request)
            manager.free_page_hashes(request)
        write()

    benchmark.pedantic(lives, setup=lambda: (([next(prompts) for _ in range(16)],), {}), rounds=32, warmup_rounds=2)
