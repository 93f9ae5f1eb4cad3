"""Rows a, a2, b, b2 and i: the page pool."""

from typing import Any

import pytest

from kvproof import fast

from .workloads import PAGE_SIZE, POOL, hashed_pool, tokens

KINDS = pytest.mark.parametrize("own_prefixes", [False, True], ids=["runs", "own prefixes"])
CYCLES = 2_000


def test_row_a_get_one_free_one(benchmark: Any) -> None:
    pool = fast.PagePool(POOL, enable_caching=True)

    def cycles() -> None:
        get, free = pool.get_new_pages, pool.free_pages
        for _ in range(CYCLES):
            free(get(1))

    benchmark.extra_info["calls per round"] = CYCLES
    benchmark.pedantic(cycles, rounds=30, warmup_rounds=2)


@KINDS
def test_row_a2_get_one_evicting(benchmark: Any, own_prefixes: bool) -> None:
    pool = hashed_pool(own_prefixes)

    def takes() -> None:
        get = pool.get_new_pages
        for _ in range(CYCLES):
            get(1)

    benchmark.extra_info["calls per round"] = CYCLES
    benchmark.pedantic(takes, rounds=30)  # 60,000 of the pool's pages: each get evicts


@pytest.mark.parametrize("form", ["array", "list"])
def test_row_b_get_and_free_a_thousand(benchmark: Any, form: str) -> None:
    pool = fast.PagePool(POOL, enable_caching=True)

    def cycle() -> None:
        pages = pool.get_new_pages(1_000)
        ids = pages.id_array if form == "array" else pages.page_ids
        assert len(ids) == 1_000
        pool.free_pages(pages[::-1])

    benchmark.pedantic(cycle, rounds=300, warmup_rounds=5)


@KINDS
def test_row_b2_get_a_thousand_evicting(benchmark: Any, own_prefixes: bool) -> None:
    pool = hashed_pool(own_prefixes)
    benchmark.pedantic(pool.get_new_pages, args=(1_000,), rounds=90)


def test_row_b2_publish_a_thousand(benchmark: Any) -> None:
    request = fast.Request("r", tokens(1_000 * PAGE_SIZE))

    def fresh() -> tuple[tuple[Any, ...], dict[str, Any]]:
        pool = fast.PagePool(2_000, enable_caching=True)
        return (pool, pool.get_new_pages(1_000)), {}

    def publish(pool: fast.PagePool, pages: fast.PageList) -> None:
        pool.cache_full_pages(request, pages, [], 0, 1_000, PAGE_SIZE, 0)

    benchmark.pedantic(publish, setup=fresh, rounds=100)


def test_row_i_build(benchmark: Any) -> None:
    benchmark.pedantic(fast.PagePool, args=(POOL, True), rounds=30, warmup_rounds=2)


@KINDS
def test_row_i_reset(benchmark: Any, own_prefixes: bool) -> None:
    def hashed() -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (hashed_pool(own_prefixes),), {}

    benchmark.pedantic(fast.PagePool.reset_prefix_cache, setup=hashed, rounds=3)
