"""POOL-7, PIN-2, MAN-12: what a page costs however many are like it.

Times, as what would grow is one call of the interpreter's own: CPU time of few pages beside that of many, the best of
some, with a wide margin for processor caches that hold the one and not the other.
"""

import gc
import time
from collections.abc import Callable

import numpy as np
import pytest

from kvproof import fast
from kvproof.fast.index.prefix_index import PrefixIndex
from kvproof.fast.reading.extra_keys import PLAIN
from kvproof.fast.reading.tokens import token_view
from kvproof.spec.declarations import PageRemoved, PageStored

FEW = 2_000

Ready = Callable[[int], Callable[[], object]]
"""Makes a world of so many pages, and gives what is timed."""


def evicted_duplicates(order: slice) -> Ready:
    def ready(count: int) -> Callable[[], object]:
        index = PrefixIndex(count + 1)
        tree, tokens = index.tree(0, 1), token_view("tokens", [0])
        for page in range(1, count + 1):
            index.publish(tree, tokens, PLAIN, np.array([page]))
        pages = np.arange(1, count + 1)[order].tolist()

        def act() -> None:
            for page in pages:
                index.evict_one(page)

        return act

    return ready


def keys_of_duplicates(order: slice) -> Ready:
    def ready(count: int) -> Callable[[], object]:
        pool = fast.PagePool(count + 1, True, counter_sampling=1 << 20)
        pages = pool.get_new_pages(count)
        request = fast.Request("r", [1])
        for page in pages:
            pool.cache_full_pages(request, [page], [], 0, 1, 1, 0)
        pool.get_cached_page(fast.hash_request_tokens(fast.sha256, 1, request)[0], [0])
        pool.free_pages(pages[order])
        return lambda: [pool.get_new_pages(1) for _ in range(count)]

    return ready


def followed_duplicates(count: int) -> Callable[[], object]:
    follower = fast.CacheFollower()
    digest = b"d" * 32
    events = [PageStored(0, page, digest, None, (1,), None) for page in range(1, count + 1)]
    gone = [PageRemoved(0, page, digest) for page in range(1, count + 1)]
    return lambda: follower.apply([*events, *gone])


def priorities(count: int) -> Callable[[], object]:
    """Each page gets a priority of its own, below all others, and is taken."""
    pool = fast.PagePool(count + 1, True, counter_sampling=1 << 20)
    pages = pool.get_new_pages(count)
    pool.cache_full_pages(fast.Request("r", np.arange(count, dtype=np.int32)), pages, [], 0, count, 1, 0)
    pool.free_pages(pages)
    views = [pages[place : place + 1] for place in np.random.default_rng(0).permutation(count).tolist()]

    def act() -> None:
        for priority, page in enumerate(views):
            pool.set_priority(page, count - priority)
        for _ in range(count):
            pool.get_new_pages(1)

    return act


@pytest.mark.parametrize(
    ("ready", "many"),
    [
        pytest.param(evicted_duplicates(slice(None)), 40_000, id="POOL-7: duplicates, first ones first"),
        pytest.param(evicted_duplicates(slice(None, None, -1)), 40_000, id="POOL-7: duplicates, last ones first"),
        pytest.param(keys_of_duplicates(slice(None, None, -1)), 40_000, id="POOL-7: keys of duplicates"),
        pytest.param(followed_duplicates, 40_000, id="MAN-12: duplicates followed"),
        pytest.param(priorities, 150_000, id="PIN-2: distinct priorities"),
    ],
)
def test_a_page_costs_the_same_however_many_are_like_it(ready: Ready, many: int) -> None:
    def per_page(count: int) -> float:
        act = ready(count)
        gc.collect()
        gc.disable()  # it goes through all objects that there are, more often the more are made
        try:
            start = time.thread_time_ns()
            act()
            return (time.thread_time_ns() - start) / count
        finally:
            gc.enable()

    of_few = min(per_page(FEW) for _ in range(3))
    of_many: list[float] = []
    while len(of_many) < 3 and not (of_many and of_many[-1] < 4 * of_few):  # again where something else was in the way
        of_many.append(per_page(many))
    assert min(of_many) < 4 * of_few, f"{of_few:.0f} ns a page of {FEW}, {min(of_many):.0f} ns of {many}"
