"""EVICT-1: fast's pools and managers evict by each policy what the specification's do, and remember the same of it."""

import itertools
import tracemalloc
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof import fast, spec
from kvproof.fast.pool.marks import Marks
from kvproof.fast.pool.page_log import BatchLog, PageLog
from kvproof.fast.reading.extra_keys import extra_segments
from kvproof.spec.declarations.eviction import CANDIDATES, EvictionPolicy
from kvproof.spec.pool.marks import Marks as SpecMarks
from kvproof.spec.pool.page_keys import PageKeys

from ..bench.eviction import families
from ..cache_groups import full, window
from ..strategies import PlainRequest

FAMILIES = families(seed=0)

EXTRAS: list[Any] = [(), (), (spec.CacheSalt("a"),), (spec.CacheSalt("b"), spec.MultimodalItem(b"a", 3, 4))]


def _alike(pools: Sequence[Any]) -> None:
    """The pools know the same of the contents, and check() holds."""
    for pool in pools:
        pool.check()
    assert pools[0].state() == pools[1].state()
    assert pools[0].eviction_counters == pools[1].eviction_counters


def _served(pool: Any, chains: Sequence[Sequence[int]], live: int) -> list[tuple[int, list[int]]]:
    """Of each request the number of pages that it hit, and the pages that it took; a page holds one token."""
    running: deque[list[Any]] = deque()
    told = []
    for chain in chains:
        request = PlainRequest("r", list(chain))
        keys = spec.hash_request_tokens(spec.sha256, 1, request, none_hash=pool.none_hash)
        while len(running) >= live:
            pool.free_pages(running.popleft()[::-1])
        while True:
            found: list[Any] = []
            while len(found) < len(keys) and (page := pool.get_cached_page(keys[len(found)], [0])) is not None:
                found += page
            free_hits = sum(page.ref_cnt == 0 for page in found)
            if len(chain) - len(found) <= pool.get_num_free_pages() - free_hits or not running:
                break
            pool.free_pages(running.popleft()[::-1])
        pool.touch([found])
        new = list(pool.get_new_pages(len(chain) - len(found)))
        pool.cache_full_pages(request, found + new, [], len(found), len(chain), 1, 0)
        running.append(found + new)
        told.append((len(found), [page.page_id for page in new]))
    for pages in running:
        pool.free_pages(pages[::-1])
    return told


def test_pools_evict_alike() -> None:
    """EVICT-1: pools live until candidates change, pages become stale, and shadow pools have ghosts of their own.

    The last pool also leaves a candidate that keeps pages (``turnovers=None``) for one that does not.
    """
    followed: dict[str, list[int]] = {}
    workloads = [("loop of many", 60, 240), ("chats, long gaps", 60, 160), ("zipf 1.2", 60, 100), ("phases", 24, 120)]
    for name, num_pages, number in workloads:
        chains = [chain for chain in FAMILIES[name] if len(chain) <= num_pages][:number]
        pools = [package.PagePool(num_pages + 1, True, eviction="adaptive", hash_seed=b"s") for package in (spec, fast)]
        followed[name] = []
        for start in range(0, number, 20):
            first, second = (_served(pool, chains[start : start + 20], 2) for pool in pools)
            assert first == second
            _alike(pools)
            followed[name].append(pools[0].eviction_counters.candidate)
    assert len({*itertools.chain(*followed.values())}) >= 3, f"only few candidates: {followed}"
    keeps = [CANDIDATES[candidate].turnovers is None for candidate in followed["phases"]]
    assert (True, False) in itertools.pairwise(keeps), f"none that keeps is left: {followed}"


@given(
    tokens=st.lists(st.integers(-(2**31), 2**31 - 1), max_size=24),
    extra=st.sampled_from(EXTRAS),
    size=st.integers(1, 5),
    group=st.integers(0, 3),
    start=st.integers(0, 4),
)
def test_marks_are_those_of_the_specification(
    tokens: list[int], extra: tuple[Any, ...], size: int, group: int, start: int
) -> None:
    keys = PageKeys(spec.sha256, b"a root of the keys")
    count = len(tokens) // size
    chain = keys.extend_chain([], tokens, extra, size, count)
    expected = [SpecMarks(keys).of(content, group) for _, content in chain]
    marks, segments = Marks(keys.none_hash), extra_segments(extra, size)
    text = np.array(tokens[: count * size], np.int32).tobytes()
    assert marks.chain(marks.root(group), size, text, segments, 0).tolist() == expected
    if start < count:  # behind a page that has its mark already
        before = expected[start - 1] if start else marks.root(group)
        assert marks.chain(before, size, text[4 * start * size :], segments, start).tolist() == expected[start:]
        segment = next(segment for segment in segments if start < segment.end)
        page = text[4 * start * size : 4 * (start + 1) * size]
        assert marks.next(before, start, page, segment.extra) == expected[start]


# -- The queues -------------------------------------------------------------------------------------


@given(data=st.data())
def test_a_log_of_batches_is_a_stack_of_queues(data: st.DataObject) -> None:
    num_pages = 90
    cell = PageLog.places(num_pages)
    log, other = BatchLog(cell, 1), PageLog(cell, 2)
    times = np.zeros(num_pages, np.int64)
    batches: list[tuple[int, list[int]]] = []
    once: list[int] = []
    free = list(range(1, num_pages))
    for clock in range(data.draw(st.integers(1, 25))):
        act = data.draw(st.sampled_from(["batch", "batch", "once", "latest", "oldest", "remove", "first", "while"]))
        count = data.draw(st.integers(1, 12))
        if act in ("batch", "once") and len(free) >= count:
            pages, free = free[:count], free[count:]
            if act == "batch":
                log.put_batch(np.array(pages), clock)
                batches.append((clock, pages))
            else:
                other.put(np.array(pages))
                times[pages] = clock
                once += pages
        elif act in ("latest", "oldest") and batches:
            place = -1 if act == "latest" else 0
            batch = log.latest() if act == "latest" else log.oldest()
            assert batch[2] == batches[place][0]
            taken = log.take_of(batch, count).tolist()
            assert taken == batches[place][1][:count]
            del batches[place][1][:count]
            free += taken
        elif act == "remove" and batches:
            gone = [page for page in batches[count % len(batches)][1] if page % 2]
            log.remove(np.array(gone, np.int64))
            for _, pages in batches:
                pages[:] = [page for page in pages if page not in gone]
            free += gone
        elif act == "first" and once:
            count = min(count, len(once))
            assert other.peek(count).tolist() == once[:count]
            assert other.take(count).tolist() == once[:count]
            free, once = free + once[:count], once[count:]
        elif act == "while" and once:
            bound = data.draw(st.integers(0, clock))
            gone = [page for page in once[:count] if times[page] < bound]
            assert other.take_while(times.data, bound, count) == gone
            free, once = free + gone, once[len(gone) :]
        held = [page for _, pages in batches for page in pages]
        assert (PageLog.numbers(np.array(cell)[held]) == 1).all()
        assert (PageLog.numbers(np.array(cell)[once]) == 2).all()
        batches = [batch for batch in batches if batch[1]]
        assert log.in_batches() == batches
        assert other.order().tolist() == once
        log.check()
        other.check()


def _goes_on(manager: Any, request: PlainRequest) -> bool:
    """Gives a request slots for all of its tokens, behind its hits if it is not live."""
    if any(manager.get_page_ids(request.request_id)):
        return manager.allocate_slots(request, request.num_tokens - request.num_computed_tokens) is not None
    pages, hit = manager.get_computed_pages(request)
    return manager.allocate_slots(request, request.num_tokens - hit, hit, pages) is not None


@pytest.mark.parametrize("policy", ["reuse", "adaptive"])
@given(data=st.data())
def test_pages_of_windows_with_a_priority_are_remembered_alike(policy: EvictionPolicy, data: st.DataObject) -> None:
    """PIN-2, RET-3: a page that a live request lets go of as no hit needs it, and that a priority keeps.

    Another content may take its place in the same call, where the policy has yet to find out what stood behind it.
    """
    managers = [
        package.CacheManager(3, [window(1, 2)], 12, hash_seed=b"s", num_host_pages=9, eviction=policy)
        for package in (spec, fast)
    ]
    for number in range(4):
        request = PlainRequest(f"r{number}", [0] * data.draw(st.integers(2, 6)))
        comes = data.draw(st.booleans())
        for manager in managers:
            if comes and (plan := manager.receive_pages(request, len(request.all_token_ids))):
                manager.swap_done(plan.swap_id)
            manager.set_prefix_priority(request, 1)
        for _ in range(3):
            goes = [_goes_on(manager, request) for manager in managers]
            assert managers[0].snapshot() == managers[1].snapshot()
            if goes != [True, True]:
                break
            request.num_computed_tokens = request.num_tokens
            request.append(data.draw(st.integers(0, 1)))
        for manager in managers:
            manager.free(request)
            manager.check()
        assert managers[0].snapshot() == managers[1].snapshot()


@pytest.mark.parametrize("policy", ["reuse", "adaptive"])
@given(data=st.data())
def test_what_steps_publish_together_is_remembered_alike(policy: EvictionPolicy, data: st.DataObject) -> None:
    """MAN-11: requests with extra keys and without decode in batched steps, end, and come again after others.

    A page's mark is that of its content with its extra keys, whichever way it was published.
    """
    managers = [
        package.CacheManager(9, [full(1)], 6, hash_seed=b"s", counter_sampling=1, eviction=policy)
        for package in (spec, fast)
    ]
    for number in range(3):
        keys = data.draw(st.lists(st.sampled_from(EXTRAS), min_size=2, max_size=2))
        requests = [PlainRequest(f"r{number} {place}", [0, place], own) for place, own in enumerate(keys)]
        for request, manager in itertools.product(requests, managers):
            assert _goes_on(manager, request)
        for computed in (2, 3):
            for request in requests:
                request.append(data.draw(st.integers(0, 1)))
            for manager in managers:
                slots = [manager.slot_of(request.request_id) for request in requests]
                assert all(manager.allocate_slots_batch(slots, [computed, computed], 1).granted)
            assert managers[0].snapshot() == managers[1].snapshot()
        for request, manager in itertools.product(requests, managers):
            manager.free(request)
            manager.check()
        assert managers[0].snapshot() == managers[1].snapshot()


def test_what_a_policy_remembers_is_bounded_by_the_pages() -> None:
    """At most 20 bytes a page more than `lru` keeps, ghosts included, and 2 MiB for the shadow pools of any pool."""
    num_pages, chunk = 200_000, 5_000

    def kept(eviction: EvictionPolicy) -> int:
        tracemalloc.start()
        try:
            pool = fast.PagePool(num_pages, True, eviction=eviction, hash_seed=b"s")
            for start in range(0, 2 * num_pages, chunk):
                request = PlainRequest("r", list(range(start, start + chunk)))
                pages = pool.get_new_pages(chunk)
                pool.cache_full_pages(request, pages, [], 0, chunk, 1, 0)
                pool.free_pages(pages[::-1])
                del request, pages
            assert pool.get_num_free_pages() == num_pages - 1
            return tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()

    reuse = kept("reuse")
    assert (reuse - kept("lru")) / num_pages <= 20
    assert kept("adaptive") - reuse <= 2 << 20
