"""A second figure for rows of the performance table: the same row on a manager that has had a life.

    python -m tests.bench.ages                  # fresh and after a life, in one process and in turn

A life is 20,000 requests of mixed lengths that leave shared stems at random depths; some are aborted, some go to host
memory and come back, and the cache is reset a few times. And the life of a stranger, who sends a short request for each
page of a known prefix. What costs more than 1.5 times of what it costs on a fresh manager has aged.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from kvproof import fast

from .compare import on_a_cpu, shown
from .samples import Sample, interleaved
from .workloads import PAGE_SIZE, group, tokens

__all__ = ["AGES", "Age", "lived", "main", "strange"]

STEMS, STEM_PAGES, REQUESTS = 50, 256, 20_000
NUM_PAGES = 60_000


def _manager() -> fast.CacheManager:
    return fast.CacheManager(NUM_PAGES, [group()], max_model_len=1 << 20, num_host_pages=1_000)


def _serve(manager: fast.CacheManager, request: Any) -> None:
    pages, hit = manager.get_computed_pages(request)
    assert manager.allocate_slots(request, request.num_tokens - hit, hit, pages) is not None
    request.num_computed_tokens = request.num_tokens


def _done(manager: fast.CacheManager, request: Any) -> None:
    manager.free(request)
    manager.free_page_hashes(request)


def _stems() -> list[Any]:
    return [tokens(STEM_PAGES * PAGE_SIZE, seed) for seed in range(STEMS)]


def _fresh(manager: fast.CacheManager) -> fast.CacheManager:
    """Caches the stems, which rows are about."""
    for number, stem in enumerate(_stems()):
        request = fast.Request(f"stem {number}", stem)
        _serve(manager, request)
        _done(manager, request)
    return manager


def lived(requests: int = REQUESTS) -> fast.CacheManager:
    """A manager that has served so many requests, and has the stems cached."""
    manager, stems, rng = _manager(), _stems(), np.random.default_rng(1)
    for number in range(requests):
        depth = int(rng.integers(1, STEM_PAGES)) * PAGE_SIZE
        own = tokens(int(rng.integers(1, 600)), STEMS + number)
        request = fast.Request(str(number), np.concatenate([stems[number % STEMS][:depth], own]))
        _serve(manager, request)
        if number % 7 == 0:  # to host memory and back
            plan = manager.swap_out(request)
            assert plan is not None
            manager.swap_done(plan.swap_id)
            plan = manager.swap_in(request)
            assert plan is not None
            manager.swap_done(plan.swap_id)
        if number % 5 == 0:  # an abort before its step was dispatched
            manager.free(request, num_written=depth)
            manager.free_page_hashes(request)
        else:
            _done(manager, request)
        if number % 5_000 == 2_500:
            assert manager.reset_prefix_cache()
    return _fresh(manager)


def strange() -> fast.CacheManager:
    """A manager with a prefix of all stems in a row, and short requests that left it at each of 4,000 pages."""
    manager = _fresh(_manager())
    prefix = np.concatenate(_stems())
    _serve(manager, known := fast.Request("known", prefix))
    _done(manager, known)
    for page in range(1, 4_000):
        request = fast.Request(str(page), np.concatenate([prefix[: page * PAGE_SIZE], tokens(17, page)]))
        _serve(manager, request)
        _done(manager, request)
    return manager


class Age(NamedTuple):
    """A row, to be run on managers of different ages.

    Attributes:
        text: the workload.
        make: makes it ready on a manager.
    """

    text: str
    make: Callable[[fast.CacheManager], Sample]


def _look_ups(manager: fast.CacheManager) -> Sample:
    requests = [fast.Request(f"e {number}", np.append(stem, 1)) for number, stem in enumerate(_stems())]

    def run() -> None:
        for request in requests:
            manager.get_computed_pages(request)

    return Sample(run, rounds=100, per=STEMS)


def _lives(own: int, admitted: int) -> Callable[[fast.CacheManager], Sample]:
    """Look up a stem, admit it with so many own tokens, free it."""

    def make(manager: fast.CacheManager) -> Sample:
        stems = _stems()
        count = 0
        arriving: list[Any] = []

        def arrive() -> None:
            nonlocal count
            arriving.clear()
            for stem in stems:
                count += 1
                prompt = np.concatenate([stem[: admitted * PAGE_SIZE], tokens(own, 100_000 + count)])
                arriving.append(fast.Request(f"f {count}", prompt))

        def run() -> None:
            for request in arriving:
                _serve(manager, request)
                _done(manager, request)

        return Sample(run, arrive, rounds=40, per=STEMS)

    return make


def _steps(manager: fast.CacheManager) -> Sample:
    requests = [fast.Request(f"c {number}", tokens(512 + number % 16, 10_000 + number)) for number in range(256)]
    for request in requests:
        _serve(manager, request)
    slots = np.array([manager.slot_of(request.request_id) for request in requests])
    computed = np.array([request.num_tokens for request in requests]) - 1

    def grow() -> None:
        nonlocal computed
        for request in requests:
            request.num_computed_tokens = request.num_tokens
            request.append(7)
        computed = computed + 1

    return Sample(lambda: manager.allocate_slots_batch(slots, computed, 1), grow, rounds=64)


AGES = {
    "e": Age("look up a cached stem of 256 pages", _look_ups),
    "e2": Age("look up, admit, free a stem", _lives(1, STEM_PAGES)),
    "f": Age("life of a request, half a stem and 512 own tokens", _lives(512, STEM_PAGES // 2)),
    "c": Age("decode step of 256 requests", _steps),
}
"""The rows, by their letters."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the rows; returns 1 if one has aged."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.ages", description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default=",".join(AGES), help="rows, separated by commas (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long to time each row (default: %(default)s)")
    options = parser.parse_args(arguments)
    on_a_cpu()
    print("| row | workload | fresh | after a life | after a stranger |\n|---|---|---|---|---|")
    has_aged = False
    for name in options.rows.split(","):
        age = AGES[name]
        samples = [age.make(manager) for manager in (_fresh(_manager()), lived(), strange())]
        fresh, *old = (median(times.warm) for times in interleaved(samples, "cpu", options.seconds))
        has_aged |= max(old) > 1.5 * fresh
        cells = [shown(fresh), *(f"{shown(took)} ({took / fresh:.2f}x)" for took in old)]
        print(f"| {name} | {age.text} | {' | '.join(cells)} |", flush=True)
    return int(has_aged)


if __name__ == "__main__":
    sys.exit(main())
