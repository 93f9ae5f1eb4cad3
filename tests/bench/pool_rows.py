"""Rows a, a2, b, b2 and i: the page pool."""

from typing import Any

from .implementation import Implementation, Pool
from .samples import Row, Sample
from .workloads import PAGE_SIZE, POOL, tokens

__all__ = ["POOL_ROWS", "take_and_free_one"]

CYCLES = 2_000
BULK = 1_000


def take_and_free_one(implementation: Implementation, num_pages: int = POOL) -> Sample:
    """`get_new_pages(1)` and `free_pages`, nothing cached."""
    pool = implementation.pool(num_pages)

    def cycles() -> None:
        get, free = pool.get, pool.free
        for _ in range(CYCLES):
            free(get(1))

    return Sample(cycles, per=CYCLES, rounds=40)


class _Prompts:
    """The requests whose pages fill a whole pool: one long one, or one for every page."""

    def __init__(self, implementation: Implementation, own_prefixes: bool, num_pages: int) -> None:
        self._num_pages = num_pages
        self._own_prefixes = own_prefixes
        all_tokens = tokens(num_pages * PAGE_SIZE)
        # lists first: a request of a peer converts no token again
        given = implementation.tokens(all_tokens)
        self._requests = (
            [
                implementation.request(str(place), given[place * PAGE_SIZE : (place + 1) * PAGE_SIZE])
                for place in range(num_pages)
            ]
            if own_prefixes
            else [implementation.request("r", given)]
        )

    def publish(self, pool: Pool, pages: Any) -> None:
        """Caches pages under these prompts."""
        publish = pool.publish
        if self._own_prefixes:
            for request, page in zip(self._requests, pages, strict=True):
                publish(request, [page], 1)
        else:
            publish(self._requests[0], pages, self._num_pages)


def _hashed(implementation: Implementation, own_prefixes: bool) -> tuple[Pool, _Prompts]:
    """A pool all of whose pages are free and cached."""
    prompts = _Prompts(implementation, own_prefixes, POOL - 1)
    pool = implementation.pool(POOL)
    _fill(pool, prompts)
    return pool, prompts


def _fill(pool: Pool, prompts: _Prompts) -> None:
    pages = pool.get(POOL - 1)
    prompts.publish(pool, pages)
    pool.free(pages[::-1])


def _take_one_evicting(own_prefixes: bool) -> Any:
    def make(implementation: Implementation) -> Sample:
        pool, _ = _hashed(implementation, own_prefixes)

        def takes() -> None:
            get = pool.get
            for _ in range(CYCLES):
                get(1)

        return Sample(takes, per=CYCLES, rounds=40)  # 80,000 of the pool's pages: each is evicted

    return make


def _take_a_thousand(as_array: bool) -> Any:
    def make(implementation: Implementation) -> Sample:
        pool = implementation.pool(POOL)
        ids_of = pool.id_array if as_array else pool.ids

        def cycle() -> None:
            pages = pool.get(BULK)
            assert len(ids_of(pages)) == BULK
            pool.free(pages[::-1])

        return Sample(cycle, rounds=300)

    return make


def _take_a_thousand_evicting(own_prefixes: bool) -> Any:
    def make(implementation: Implementation) -> Sample:
        pool, _ = _hashed(implementation, own_prefixes)
        return Sample(lambda: pool.get(BULK), rounds=90)

    return make


def _publish_a_thousand(implementation: Implementation) -> Sample:
    prompt = _Prompts(implementation, False, BULK)
    ready: list[tuple[Pool, Any]] = []

    def fresh() -> None:
        pool = implementation.pool(2 * BULK)
        ready[:] = [(pool, pool.get(BULK))]

    fresh()
    prompt.publish(*ready[0])  # keys that a package computes once are known from here on
    return Sample(lambda: prompt.publish(*ready[0]), fresh, rounds=100)


def _build(implementation: Implementation) -> Sample:
    return Sample(lambda: implementation.pool(POOL), rounds=30)


def _reset(own_prefixes: bool) -> Any:
    def make(implementation: Implementation) -> Sample:
        pool, prompts = _hashed(implementation, own_prefixes)
        empty: list[bool] = []

        def fill_again() -> None:
            if empty:
                _fill(pool, prompts)

        def reset() -> None:
            empty.append(True)
            assert pool.reset()

        return Sample(reset, fill_again, rounds=6)

    return make


RUNS, PREFIXES = "one long prefix", "every page a prefix of its own"

POOL_ROWS = [
    Row("a", "take one page, free it", take_and_free_one),
    Row("a2", f"take one page of a pool all cached, evicting: {RUNS}", _take_one_evicting(False)),
    Row("a2_own", f"the same, {PREFIXES}", _take_one_evicting(True)),
    Row("b_array", "take 1,000 pages, read their ids as an array, free them in reverse", _take_a_thousand(True)),
    Row("b_list", "the same, ids as a list", _take_a_thousand(False)),
    Row("b2_take", f"take 1,000 cached pages, evicting: {RUNS}", _take_a_thousand_evicting(False)),
    Row("b2_take_own", f"the same, {PREFIXES}", _take_a_thousand_evicting(True)),
    Row("b2_publish", "publish 1,000 full pages of a request, keys known", _publish_a_thousand),
    Row("i_build", "build a pool of 100,000", _build),
    Row("i_reset", f"forget all its prefixes: {RUNS}", _reset(False)),
    Row("i_reset_own", f"the same, {PREFIXES}", _reset(True)),
]
