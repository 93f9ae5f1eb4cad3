"""The two free queues side by side: linked pages (`FreeCachePageQueue`) and the log of ids (`FreeLog`)."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kvproof import fast
from kvproof.fast.pool.free_log import FreeLog

from .workloads import POOL

CYCLES = 2_000
BULK = 1_000


def _linked(shuffled: bool) -> fast.FreeCachePageQueue:
    pages = [fast.CachePage(page_id) for page_id in range(1, POOL)]
    if shuffled:
        pages = [pages[i] for i in np.random.default_rng(0).permutation(POOL - 1)]
    return fast.FreeCachePageQueue(pages)


def _log(shuffled: bool) -> FreeLog:
    log = FreeLog(POOL)
    if shuffled:
        log.put(np.random.default_rng(0).permutation(log.take(POOL - 1)))
    return log


def _one(queue: Any) -> Callable[[], None]:
    take, put = (queue.popleft, queue.append) if hasattr(queue, "popleft") else (queue.take_one, queue.put_one)

    def cycles() -> None:
        for _ in range(CYCLES):
            put(take())

    return cycles


def _bulk(queue: Any) -> Callable[[], None]:
    take, put = (queue.popleft_n, queue.append_n) if hasattr(queue, "popleft_n") else (queue.take, queue.put)
    return lambda: put(take(BULK)[::-1])


KINDS = pytest.mark.parametrize("make", [_linked, _log], ids=["linked", "log"])


@KINDS
def test_take_one_put_one(benchmark: Any, make: Callable[[bool], Any]) -> None:
    benchmark.extra_info["calls per round"] = CYCLES
    benchmark.pedantic(_one(make(False)), rounds=30, warmup_rounds=2)


@pytest.mark.parametrize("shuffled", [False, True], ids=["by id", "shuffled"])
@KINDS
def test_take_and_put_a_thousand(benchmark: Any, make: Callable[[bool], Any], shuffled: bool) -> None:
    benchmark.pedantic(_bulk(make(shuffled)), rounds=200, warmup_rounds=5)


@KINDS
def test_build(benchmark: Any, make: Callable[[bool], Any]) -> None:
    benchmark.pedantic(make, args=(False,), rounds=5, warmup_rounds=1)
