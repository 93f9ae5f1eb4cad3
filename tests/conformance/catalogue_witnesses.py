"""For each seeded bug a handful of calls after which the faulty backend shows something else than the others.

A witness takes a backend's public names and returns what it saw: the specification and the fast backend see the
same, the bug's backend does not. So a bug that the suite misses is the suite's fault and not the variant's.
"""

import os
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np

from kvproof.conformance.calls.deviation import attempt
from kvproof.spec.declarations import CacheGroupSpec, FullAttentionSpec, MultimodalItem, Request

__all__ = ["WITNESSES"]

SEED = b"kvproof"


def tried(act: Callable[[], Any]) -> object:
    """What a call returns, or the kind of error it raises."""
    outcome = attempt(act)
    return outcome.value if outcome.error is None else type(outcome.error).__name__


def ids(pages: Any) -> list[int]:
    return [page.page_id for page in pages]


def free(pool: Any) -> list[int]:
    return ids(pool.free_page_queue.get_all_free_pages())


def queue_of(names: Any, num_pages: int) -> Any:
    return names.FreeCachePageQueue([names.CachePage(page_id) for page_id in range(num_pages)])


def caching_pool(names: Any, *prompts: list[int], num_pages: int = 6) -> tuple[Any, list[Any]]:
    """A pool that holds prompts of two tokens a page; and their pages."""
    pool = names.PagePool(num_pages, True, hash_seed=SEED)
    pages = []
    for tokens in prompts:
        full = len(tokens) // 2
        pages.append(pool.get_new_pages(full))
        pool.cache_full_pages(Request("r", tokens), pages[-1], [], 0, full, 2, 0)
    return pool, pages


def cached(pool: Any) -> list[list[int]]:
    return sorted(ids(pages) for pages in pool.cached_page_hash_to_page.values() if len(pages))


def publishing_nothing_raises(names: Any) -> object:
    pool, (pages,) = caching_pool(names, [1, 2, 3, 4])
    return tried(lambda: pool.cache_full_pages(Request("r", [1, 2, 3, 4]), pages, [], 2, 2, 2, 0))


def manager_of(names: Any, page_size: int = 2, num_pages: int = 12) -> Any:
    group = CacheGroupSpec(FullAttentionSpec(page_size, 1, 8, "float32"), ("layer",))
    return names.CacheManager(num_pages, [group], 32, hash_seed=SEED)


def served(manager: Any, request_id: str, tokens: list[int]) -> Request:
    """Admits a request with what it hits, and frees it."""
    request = Request(request_id, tokens)
    pages, hits = manager.get_computed_pages(request)
    manager.allocate_slots(request, len(tokens) - hits, hits, pages)
    manager.free(request)
    return request


def found(manager: Any, request: Request) -> tuple[list[int], int]:
    pages, hits = manager.get_computed_pages(request)
    return ids(pages.pages[0]), hits


def table_of(names: Any, *rows: list[int]) -> Any:
    table = names.PageTable(3, 3, 8)
    for row_idx, pages in enumerate(rows):
        table.add_row(pages, row_idx)
    return table


def host(table: Any) -> object:
    return np.array(table.get_cpu_tensor()).tolist(), np.array(table.num_pages_per_row).tolist()


# -- Queue and pool -------------------------------------------------------------------------------


def negative_get_new_pages(names: Any) -> object:
    pool = names.PagePool(3, True)
    seen = tried(lambda: ids(pool.get_new_pages(-1)))
    return seen, pool.get_num_free_pages(), tried(lambda: ids(pool.get_new_pages(3)))


def negative_popleft_n(names: Any) -> object:
    queue = queue_of(names, 2)
    return tried(lambda: ids(queue.popleft_n(-1))), queue.num_free_pages, tried(lambda: ids(queue.popleft_n(3)))


def double_mention(names: Any) -> object:
    pool = names.PagePool(3, True)
    page = pool.get_new_pages(1)[0]
    pool.touch([[page]])
    pool.free_pages([page, page])
    return free(pool)


def count_below_zero(names: Any) -> object:
    pool = names.PagePool(3, True)
    page = pool.get_new_pages(1)[0]
    pool.free_pages([page])
    return tried(lambda: pool.free_pages([page])), page.ref_cnt


def null_page_count_drifts(names: Any) -> object:
    pool = names.PagePool(3, True)
    pool.free_pages([pool.null_page])
    return pool.null_page.ref_cnt


def counted_before_refusal(names: Any) -> object:
    queue = queue_of(names, 2)
    return tried(lambda: queue.popleft_n(3)), queue.num_free_pages


def eviction_takes_too_much(names: Any) -> object:
    pool, (first, second) = caching_pool(names, [1, 2], [3, 4], num_pages=3)
    pool.free_pages([*first, *second])
    pool.get_new_pages(1)
    return cached(pool)


# -- Keys -----------------------------------------------------------------------------------------


def python_hash_keys(names: Any) -> object:
    manager = manager_of(names, page_size=1)
    served(manager, "a", [-1, 5])
    served(manager, "b", [-2, 6])
    return found(manager, Request("c", [-2, 5, 7]))


def zero_parent_is_root(names: Any) -> object:
    def key(parent: bytes | None) -> Any:
        return names.hash_page_tokens(names.sha256, parent, [1], none_hash=b"root").hash_value

    return key(bytes(32)) == key(None)


def fixed_root(names: Any) -> object:
    return names.init_none_hash() == names.init_none_hash()


def root_ignores_seed(names: Any) -> object:
    return names.init_none_hash(b"1") == names.init_none_hash(b"2")


def root_of_the_process(names: Any) -> object:
    pool, _ = caching_pool(names, [1, 2])
    return names.init_none_hash(SEED), [key.get_hash_value() for key in pool.cached_page_hash_to_page]


def root_from_the_environment(names: Any) -> object:
    with patch.dict(os.environ, PYTHONHASHSEED="random"):
        return tried(lambda: len(names.init_none_hash()))


# -- The cached map -------------------------------------------------------------------------------


def hash_kept_on_eviction(names: Any) -> object:
    pool, (pages,) = caching_pool(names, [1, 2], num_pages=2)
    pool.free_pages(pages)
    return pool.get_new_pages(1)[0].page_hash, cached(pool)


def evicted_page_stays_in_map(names: Any) -> object:
    pool, (pages,) = caching_pool(names, [1, 2], num_pages=2)
    key = pages[0].page_hash.page_hash
    pool.free_pages(pages)
    pool.get_new_pages(1)
    return pool.get_cached_page(key, [0]) is None, pages[0].page_hash, cached(pool)


def duplicates_collapse(names: Any) -> object:
    pool, (_, second) = caching_pool(names, [1, 2], [1, 2])
    return cached(pool), second[0].page_hash is None


def hash_without_entry(names: Any) -> object:
    pool, (first, second) = caching_pool(names, [1, 2], [1, 2])
    key = first[0].page_hash.page_hash
    pool.evict_pages(first.page_ids)
    return second[0].page_hash is None, pool.get_cached_page(key, [0]) is None


# -- Manager --------------------------------------------------------------------------------------


def deferred_free_reversed(names: Any) -> object:
    manager = manager_of(names, num_pages=6)
    served(manager, "a", [1, 2, 3, 4])
    return free(manager.page_pool)


def reused_id_keeps_keys(names: Any) -> object:
    manager = manager_of(names)
    served(manager, "a", [1, 2, 3, 4])
    return found(manager, Request("a", [5, 6, 7, 8, 9]))


def second_request_of_a_live_id(names: Any) -> object:
    manager = manager_of(names)
    manager.allocate_slots(Request("a", [1, 2]), 2)
    return tried(lambda: manager.allocate_slots(Request("a", [3, 4, 5]), 1).get_page_ids())


def smaller_count_raises(names: Any) -> object:
    manager = manager_of(names)
    request = Request("a", [1, 2, 3, 4])
    manager.allocate_slots(request, 4)
    return tried(lambda: manager.cache_pages(request, 2))


def missing_pages_counted_as_cached(names: Any) -> object:
    manager = manager_of(names)
    request = Request("a", [1, 2, 3, 4])
    manager.allocate_slots(request, 4)
    seen = tried(lambda: manager.cache_pages(request, 6))
    request.num_computed_tokens = 4
    for token in (5, 6):
        request.append(token)
    manager.allocate_slots(request, 2)
    return seen, found(manager, Request("b", [1, 2, 3, 4, 5, 6, 7]))


# -- Tables ---------------------------------------------------------------------------------------


def page_lost_but_counted(names: Any) -> object:
    table = table_of(names, [1, 2, 3])
    return tried(lambda: table.append_row([4], 0)), host(table)


def counted_before_raising(names: Any) -> object:
    table = table_of(names, [1, 2, 3])
    return tried(lambda: table.append_row([4, 5], 0)), host(table)


def negative_rows_wrap(names: Any) -> object:
    table = table_of(names, [1], [2])
    calls = [
        lambda: table.append_row([4], -1),
        lambda: table.add_row([5], -2),
        lambda: table.clear_row(-3),
        lambda: table.move_row(-1, 0),
        lambda: table.swap_row(0, -1),
    ]
    return [tried(call) for call in calls], host(table)


def commit_of_minus_one(names: Any) -> object:
    table = table_of(names, [1], [2], [3])
    return tried(lambda: table.commit(-1)), np.array(table.get_device_tensor()).tolist()


def batch_half_applied(names: Any) -> object:
    table = table_of(names, [1], [1, 2, 3])
    return tried(lambda: table.append_rows_batch([[4], [4]], [0, 1])), host(table)


def stale_ids_after_add(names: Any) -> object:
    table = table_of(names, [1, 2, 3])
    table.add_row([4], 0)
    return host(table)


def stale_ids_after_move(names: Any) -> object:
    table = table_of(names, [1], [1, 2, 3])
    table.move_row(0, 1)
    return host(table)


def host_change_leaks_into_commit(names: Any) -> object:
    table = table_of(names, [1])
    table.commit(1)
    table.append_row([2], 0)
    return np.array(table.get_device_tensor()).tolist()


def program_for_each_count(names: Any) -> object:
    import jax
    import jax.monitoring

    compiled: list[str] = []

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        del duration_secs, kwargs
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(event)

    forget: Callable[[], None] = jax.clear_caches
    forget()
    table = names.PageTable(6, 2, 8)
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        for count in range(1, 7):
            table.add_row([count], count - 1)
            table.commit(count)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    return len(compiled) <= 4


def published_only_when_asked(names: Any) -> object:
    manager = manager_of(names)
    served(manager, "a", [1, 2, 3, 4])
    return found(manager, Request("b", [1, 2, 3, 4, 5]))


def forgotten_when_freed(names: Any) -> object:
    manager = manager_of(names)
    request = Request("a", [1, 2, 3, 4])
    manager.allocate_slots(request, 4)
    live = found(manager, Request("b", [1, 2, 3, 4, 5]))
    manager.free(request)
    return live, found(manager, Request("b", [1, 2, 3, 4, 5]))


def joined_across_extra_keys(names: Any) -> object:
    """All that is left behind a page is an image; text of its placeholder tokens is looked up."""
    manager = manager_of(names)
    served(manager, "text", [1, 1, 2, 2, 3, 3])
    image = Request("image", [1, 1, 7, 7, 7, 7], (MultimodalItem(b"image", 2, 4),))
    pages, hits = manager.get_computed_pages(image)
    manager.allocate_slots(image, 6 - hits, hits, pages)
    manager.free(image)
    manager.allocate_slots(Request("evicting", list(range(10, 26))), 16)
    return found(manager, Request("again", [1, 1, 7, 7, 7, 7, 8]))


def branch_ends_in_holes(names: Any) -> object:
    """One call evicts the end of a prefix and, not last page first, that of the branch that leaves it there."""
    pool = names.PagePool(8, True, hash_seed=b"seed")
    pages = pool.get_new_pages(5)
    pool.cache_full_pages(Request("a", [0, 0, 0]), pages[:3], [], 0, 3, 1, 0)
    pool.cache_full_pages(Request("b", [0, 0, 1, 1]), [*pages[:2], *pages[3:]], [], 2, 4, 1, 0)
    pool.evict_pages([3, 4, 5])
    return tried(pool.check)


WITNESSES: dict[str, Callable[[Any], object]] = {
    witness.__name__: witness
    for witness in (
        joined_across_extra_keys,
        branch_ends_in_holes,
        negative_get_new_pages,
        negative_popleft_n,
        publishing_nothing_raises,
        double_mention,
        count_below_zero,
        null_page_count_drifts,
        counted_before_refusal,
        eviction_takes_too_much,
        python_hash_keys,
        zero_parent_is_root,
        fixed_root,
        root_ignores_seed,
        root_of_the_process,
        root_from_the_environment,
        hash_kept_on_eviction,
        evicted_page_stays_in_map,
        duplicates_collapse,
        hash_without_entry,
        deferred_free_reversed,
        reused_id_keeps_keys,
        second_request_of_a_live_id,
        smaller_count_raises,
        missing_pages_counted_as_cached,
        page_lost_but_counted,
        counted_before_raising,
        negative_rows_wrap,
        commit_of_minus_one,
        batch_half_applied,
        stale_ids_after_add,
        stale_ids_after_move,
        host_change_leaks_into_commit,
        program_for_each_count,
        published_only_when_asked,
        forgotten_when_freed,
    )
}
"""The witness of each seeded bug, by the bug's name."""
