"""What a step leaves behind: nothing for the garbage collector to look at, and nothing for it to find.

A collection costs what there is to look at, so that objects which every step leaves behind make later steps pause;
``python -m tests.bench.pauses`` measures it.
"""

import gc
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from kvproof import fast

RUNNING, PAGE_SIZE, PAGES = 16, 16, 5_000


@contextmanager
def collector_off() -> Iterator[None]:
    """Collects once, and no more within."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def left_behind(act: Callable[[], object], times: int) -> int:
    """How many more objects the collector knows after so many times."""
    with collector_off():
        before = len(gc.get_objects())
        for _ in range(times):
            act()
        return len(gc.get_objects()) - before


class Serving:
    """Requests that decode together, a token a step, in a pool with room for all of it."""

    def __init__(self) -> None:
        layers = fast.FullAttentionSpec(PAGE_SIZE, 1, 8, "float32")
        self.manager = fast.CacheManager(PAGES, [fast.CacheGroupSpec(layers)], 1 << 14)
        self.tables = fast.MultiGroupPageTable(RUNNING, 1 << 14, 64, [PAGE_SIZE])
        self.requests: deque[fast.Request] = deque()
        self.count = 0
        for row in range(RUNNING):
            self.arrive(100 + row)
            self.tables.add_row(self.manager.get_page_ids(str(row)), row)
        self.slots = np.array([self.manager.slot_of(request.request_id) for request in self.requests])
        self.computed = np.array([request.num_tokens for request in self.requests])
        self.rows = np.arange(RUNNING)

    def arrive(self, length: int) -> None:
        """A request comes, its first two pages known."""
        tokens = np.arange(length, dtype=np.int32)
        tokens[2 * PAGE_SIZE :] += self.count * 100_000
        request = fast.Request(str(self.count), tokens)
        pages, hit = self.manager.get_computed_pages(request)
        assert self.manager.allocate_slots(request, length - hit, hit, pages) is not None
        self.requests.append(request)
        self.count += 1

    def step(self) -> None:
        """One batched step, pages published as they fill."""
        for request in self.requests:
            request.append(7)
        batch = self.manager.allocate_slots_batch(self.slots, self.computed, 1, tables=self.tables, rows=self.rows)
        assert batch.num_granted == RUNNING
        self.computed += 1

    def single_calls(self) -> None:
        """The same in a call for each request."""
        for request in self.requests:
            request.num_computed_tokens = request.num_tokens
            request.append(7)
            assert self.manager.allocate_slots(request, 1) is not None

    def life(self) -> None:
        """A request comes, and the oldest goes."""
        self.arrive(200)
        oldest = self.requests.popleft()
        self.manager.free(oldest)
        self.manager.free_page_hashes(oldest)


def test_a_batched_step_leaves_no_object_to_the_collector() -> None:
    """Published pages lengthen their request's run, whose tokens and ids are plain buffers."""
    serving = Serving()
    for _ in range(2 * PAGE_SIZE):
        serving.step()
    assert left_behind(serving.step, 1_000) == 0
    assert serving.manager.page_pool.get_num_free_pages() < PAGES - RUNNING * 1_000 // PAGE_SIZE, "pages were taken"


def test_single_calls_leave_no_object_to_the_collector() -> None:
    serving = Serving()
    for _ in range(2 * PAGE_SIZE):
        serving.single_calls()
    assert left_behind(serving.single_calls, 200) == 0


def test_requests_that_come_and_go_leave_their_runs() -> None:
    """One run of cached pages a request and what it holds, until the pool is full: then as many are evicted."""
    serving = Serving()
    assert 0 < left_behind(serving.life, 200) <= 3 * 200
    while serving.count < 700:
        serving.life()
    assert left_behind(serving.life, 200) == 0


def test_nothing_is_left_in_circles() -> None:
    """What is dropped goes at once, by its reference count: the collector finds nothing."""
    serving = Serving()
    with collector_off():
        for _ in range(100):
            serving.step()
        for _ in range(700):
            serving.life()
        assert gc.collect() == 0
