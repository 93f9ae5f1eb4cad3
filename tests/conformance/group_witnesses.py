"""Witnesses, as in `catalogue_witnesses`, of the seeded bugs that are about groups, hits, extra keys and events."""

from collections.abc import Callable
from typing import Any

import numpy as np

from kvproof.conformance.replay.groups import read_groups
from kvproof.spec.declarations import (
    CacheEvent,
    CacheSalt,
    EngineRequestStatus,
    ExtraKey,
    LoraAdapter,
    MultimodalItem,
    PageRemoved,
    PageStored,
    Request,
)
from kvproof.spec.declarations.keys import PageHash

from .catalogue_witnesses import SEED, cached, caching_pool, found, free, ids, manager_of, served, tried

__all__ = ["GROUP_WITNESSES"]


def manager_with(names: Any, groups: str, num_pages: int = 24, **options: Any) -> Any:
    return names.CacheManager(num_pages, read_groups(groups, 1), 32, hash_seed=SEED, **options)


def found_in_all(manager: Any, tokens: list[int]) -> object:
    pages, hits = manager.get_computed_pages(Request("looks up", tokens))
    return pages.get_page_ids(), hits


def grown(request: Request, *tokens: int) -> Request:
    """All tokens that a request had are computed, and it has some more."""
    request.num_computed_tokens = request.num_tokens
    for token in tokens:
        request.append(token)
    return request


# -- Batches --------------------------------------------------------------------------------------


def one_table_for_all_groups(names: Any) -> object:
    manager = manager_with(names, "full:2,mla:2")
    tables = names.MultiGroupPageTable(1, 8, 8, [2, 2])
    manager.allocate_slots(Request("a", [1, 2, 3]), 3)
    tables.add_row(manager.get_page_ids("a"), 0)
    manager.allocate_slots_batch([manager.slot_of("a")], [3], [2], tables=tables, rows=[0])
    return [np.array(tables[group].get_cpu_tensor()).tolist() for group in range(2)]


def pages_told_of_others(names: Any) -> object:
    manager = manager_with(names, "full:2")
    for name, length in (("a", 3), ("b", 2)):
        manager.allocate_slots(Request(name, list(range(length))), length)
    batch = manager.allocate_slots_batch([0, 1], [3, 2], 1)
    return [batch.get_page_ids(place) for place in (0, 1)]


def tail_of_a_window(names: Any) -> object:
    manager = manager_with(names, "window:2:4")
    request, tokens = Request("a", [0, 1, 2, 3]), list(range(4, 16))
    manager.allocate_slots(request, 4)
    for token in tokens:  # nothing that is cached is looked at
        request.append(token)
        manager.allocate_slots_batch([0], [request.num_tokens - 1], 1)
    return found_in_all(manager, [0, 1, 2, 3, *tokens])


def room_of_a_window(names: Any) -> object:
    manager = manager_with(names, "window:1:2")
    for name, length in (("a", 6), ("b", 3)):
        manager.allocate_slots(Request(name, list(range(length))), length)
    manager.allocate_slots_batch([0, 1], [6, 3], 2)
    return [manager.get_page_ids(name) for name in ("a", "b")]


def freed_slots_go_on(names: Any) -> object:
    manager = manager_with(names, "full:2")
    requests = [Request(name, [1, 2, 3]) for name in ("a", "b")]
    for request in requests:
        manager.allocate_slots(request, 3)
    manager.free(requests[1])
    return tried(lambda: manager.allocate_slots_batch([0, 1], [3, 3], 1).granted.tolist())


def room_made_list_by_list(names: Any) -> object:
    manager = names.CacheManager(400, read_groups("full:1", 1), 100, hash_seed=SEED)
    for name in "abcd":
        manager.allocate_slots(Request(name, [0]), 1)
    manager.allocate_slots_batch(range(4), [1] * 4, 40)
    return [manager.get_page_ids(name) for name in "abcd"]


# -- Events ---------------------------------------------------------------------------------------


def stored_twice_is_followed(names: Any) -> object:
    follower = names.CacheFollower()
    follower.apply([PageStored(0, 1, b"1", None, (1,), None)])
    return tried(lambda: follower.apply([PageStored(0, 1, b"2", None, (2,), None)]))


def any_parent_is_followed(names: Any) -> object:
    wrong: Any = 5
    return tried(lambda: names.CacheFollower().apply([PageStored(0, 1, b"1", wrong, (1,), None)]))


def removed_while_a_duplicate_survives(names: Any) -> object:
    manager = manager_with(names, "full:2", num_pages=3, enable_events=True)
    first, second = Request("a", [1, 2]), Request("b", [1, 2])
    manager.allocate_slots(first, 2)
    manager.allocate_slots(second, 2)
    manager.free(first)
    manager.allocate_slots(Request("c", [3]), 1)
    return [(type(event).__name__, event.page_id) for event in manager.take_events()], cached(manager.page_pool)


def parent_never_announced(names: Any) -> object:
    manager = manager_with(names, "full:2", enable_events=True)
    manager.allocate_slots(Request("a", [1, 2, 3, 4]), 4)
    events = manager.take_events()
    return [event.parent_hash in (None, *(other.page_hash for other in events)) for event in events]


def _index(names: Any, *events: CacheEvent) -> Any:
    """A follower that was told events."""
    follower = names.CacheFollower()
    follower.apply(list(events))
    return follower


_KEYS = (PageHash(b"1", (1,)), PageHash(b"2", (2,)))
_PARENT = PageStored(0, 1, b"1", None, (1,), None)
_CHILD, _TWIN = (PageStored(0, page, b"2", b"1", (2,), None) for page in (2, 3))


def orphans_are_dropped(names: Any) -> object:
    return _index(names, _CHILD, _PARENT).num_cached_pages(_KEYS, [0])


def told_anew_once_a_key(names: Any) -> object:
    return _index(names, _PARENT, _CHILD, _TWIN).events()


def told_anew_behind_what_was_known(names: Any) -> object:
    return _index(names, _PARENT).events()


def twins_go_together(names: Any) -> object:
    return _index(names, _PARENT, _CHILD, _TWIN, PageRemoved(0, 2, b"2")).num_cached_pages(_KEYS, [0])


# -- Extra keys -----------------------------------------------------------------------------------


def shared(names: Any, one: ExtraKey, *others: ExtraKey) -> object:
    """What is found of a prompt that was served with one extra key by requests with others."""
    manager = manager_of(names)
    manager.allocate_slots(Request("a", [0, 0, 0, 0], (one,)), 4)
    prompts = [Request("b", [0, 0, 0, 0, 1], keys) for keys in (*[(other,) for other in others], (one,), ())]
    return [found(manager, prompt) for prompt in prompts]


def salt_ignored(names: Any) -> object:
    return shared(names, CacheSalt("one"), CacheSalt("other"))


def lora_ignored(names: Any) -> object:
    return shared(names, LoraAdapter("one"), LoraAdapter("other"))


def untagged_extra_keys(names: Any) -> object:
    return shared(names, LoraAdapter("one"), CacheSalt("one"))


def multimodal_without_offset(names: Any) -> object:
    return shared(names, MultimodalItem(b"image", 0, 1), MultimodalItem(b"image", 1, 1))


def sixteen_bits_of_an_image(names: Any) -> object:
    return shared(names, MultimodalItem(b"image", 0, 1), MultimodalItem(b"imagination", 0, 1))


def generated_pages_without_keys(names: Any) -> object:
    manager = manager_of(names)
    request = Request("a", [1], (LoraAdapter("one"),))
    manager.allocate_slots(request, 1)
    manager.allocate_slots(grown(request, 2), 1)
    return found(manager, Request("b", [1, 2, 3])), found(manager, Request("c", [1, 2, 3], (LoraAdapter("one"),)))


# -- Hits -----------------------------------------------------------------------------------------


def window_short_of_the_dropped_page(names: Any) -> object:
    manager = manager_with(names, "window:1:2", use_eagle=True)
    served(manager, "a", [1, 2, 3, 4, 5])
    return found_in_all(manager, [1, 2, 3, 4, 5, 6])


def eagle_page_dropped_in_every_round(names: Any) -> object:
    manager = manager_with(names, "full:1,mla:1", use_eagle=True)
    served(manager, "a", [1, 2, 3, 4])
    return found_in_all(manager, [1, 2, 3, 4, 5])


def full_miss_at_some_lengths(names: Any) -> object:
    manager = manager_with(names, "full:2,mla:2", use_eagle=True)
    served(manager, "a", [1, 2, 3, 4])
    return found_in_all(manager, [1, 2, 3, 4, 5])


def hit_beyond_full_attention(names: Any) -> object:
    manager = manager_with(names, "full:1,window:1:1")
    request = Request("a", [1, 2, 3])
    manager.allocate_slots(request, 3)
    manager.page_pool.evict_pages(manager.get_page_ids("a")[0][2:])
    return found_in_all(manager, [1, 2, 3, 4])


def coarse_pages_by_fine_keys(names: Any) -> object:
    manager = manager_with(names, "full:1,full:2")
    served(manager, "a", [1, 2])
    served(manager, "b", [1, 9])
    return found_in_all(manager, [1, 2, 7]), found_in_all(manager, [1, 9, 7])


def window_looked_up_past_the_keys(names: Any) -> object:
    manager = manager_with(names, "window:2:4")
    request = Request("a", [1, 2, 3])
    manager.get_computed_pages(request)
    grown(request, 4, 5)
    return tried(lambda: found(manager, request))


def null_page_is_cached(names: Any) -> object:
    manager = manager_with(names, "window:1:2")
    request = Request("a", [1, 2, 3])
    manager.allocate_slots(request, 3, delay_cache_pages=True)
    manager.allocate_slots(grown(request, 4), 1)
    return found_in_all(manager, [1, 9])


# -- Ownership ------------------------------------------------------------------------------------


def allocated_before_touch(names: Any) -> object:
    manager = manager_of(names, num_pages=4)
    served(manager, "a", [1, 2])
    served(manager, "b", [3, 4, 5, 6])  # which leaves the other's page to be taken next
    request = Request("c", [1, 2, 7, 8])
    pages, hits = manager.get_computed_pages(request)
    manager.allocate_slots(request, 2, hits, pages)
    return manager.get_page_ids("c")


def groups_allocated_one_by_one(names: Any) -> object:
    manager = manager_with(names, "full:2,mla:2", num_pages=6)
    served(manager, "a", [1, 2])
    served(manager, "b", [3, 4])
    manager.page_pool.get_new_pages(1)
    request = Request("c", [1, 2, 7])
    pages, hits = manager.get_computed_pages(request)
    manager.allocate_slots(request, 1, hits, pages)
    return manager.get_page_ids("c")


def orphan_keeps_its_content(names: Any) -> object:
    manager = manager_of(names, page_size=1, num_pages=3)
    request = served(manager, "a", [1, 2])
    manager.page_pool.evict_pages([1])
    return [page.page_hash for page in manager.page_pool.get_new_pages(2)], found(manager, request)


def duplicate_freed_in_use(names: Any) -> object:
    manager = manager_of(names)
    for request_id in ("a", "b"):
        manager.allocate_slots(Request(request_id, [1, 2]), 2)
    return [(page_id, page_id in free(manager.page_pool)) for page_id in manager.get_page_ids("b")[0]]


def freed_by_two_paths(names: Any) -> object:
    manager = manager_of(names, num_pages=2)
    request = served(manager, "a", [1])
    manager.allocate_slots(Request("b", [2]), 1)
    manager.free(request)
    return manager.get_page_ids("b"), free(manager.page_pool)


def lookahead_given_back(names: Any) -> object:
    manager = manager_of(names)
    manager.allocate_slots(Request("a", [1]), 1, num_lookahead_tokens=3)
    return manager.get_page_ids("a"), free(manager.page_pool)


def window_of_the_next_step(names: Any) -> object:
    manager = manager_with(names, "window:1:2")
    request = Request("a", [1, 2])
    manager.allocate_slots(request, 2)
    manager.allocate_slots(grown(request, 3, 4), 2)
    return manager.get_page_ids("a")


def states_longer_than_a_page_leak(names: Any) -> object:
    manager = manager_with(names, "mamba:2")
    return tried(lambda: manager.allocate_slots(Request("a", [1, 2, 3]), 3).get_page_ids()), free(manager.page_pool)


def common_to_one_that_waits(names: Any, waiting: int) -> object:
    """How many pages two running requests have in common, one of which shares a page with some that don't run."""
    manager = manager_of(names)
    requests = [Request(str(number), [1, 2, 3]) for number in range(1 + waiting)]
    for request in [*requests, Request("last", [4, 5])]:
        pages, hits = manager.get_computed_pages(request)
        manager.allocate_slots(request, request.num_tokens - hits, hits, pages)
        request.status = EngineRequestStatus.RUNNING
    for request in requests[1:]:
        request.status = EngineRequestStatus.PREEMPTED
    return manager.get_num_common_prefix_pages(requests[0], 2)


def common_if_held_often_enough(names: Any) -> object:
    return common_to_one_that_waits(names, waiting=2)


def common_if_held_as_often(names: Any) -> object:
    return common_to_one_that_waits(names, waiting=1)


# -- Publishing -----------------------------------------------------------------------------------


def duplicates_swapped_in_live_lists(names: Any) -> object:
    """The page of the second of two requests that compute the same at the same time."""
    manager = manager_with(names, "full:2")
    for name in ("a", "b"):
        manager.allocate_slots(Request(name, [1, 2, 3]), 3)
    return manager.get_page_ids("b")


def hit_cached_again_refused(names: Any) -> object:
    """A hit whose page was taken by another request, and then holds the same prefix again."""
    manager = manager_with(names, "full:2", num_pages=3)
    for name, tokens in (("a", [1, 2]), ("b", [3, 4, 5]), ("c", [1, 2])):
        request = Request(name, tokens)
        manager.allocate_slots(request, len(tokens))
        manager.free(request)
        if name == "a":
            late = Request("late", [1, 2, 3])
            pages, hits = manager.get_computed_pages(late)
    return tried(lambda: manager.allocate_slots(late, 1, hits, pages).get_page_ids())


def dropped_hash_comes_back(names: Any) -> object:
    manager = manager_of(names, page_size=1)
    request = Request("a", [1])
    manager.allocate_slots(request, 1)
    manager.page_pool.evict_pages(manager.get_page_ids("a")[0])
    manager.allocate_slots(grown(request, 2), 1)
    return cached(manager.page_pool)


def unwritten_pages_stay_cached(names: Any) -> object:
    manager = manager_of(names)
    request = Request("a", [1, 2])
    manager.allocate_slots(request, 2)
    manager.free(request, 0)
    return found(manager, Request("b", [1, 2, 3]))


def holders_of_the_last_page_only(names: Any) -> object:
    manager = manager_of(names)
    going, staying = Request("a", [1, 2, 3, 4]), Request("b", [1, 2, 5])
    manager.allocate_slots(going, 4)
    pages, hits = manager.get_computed_pages(staying)
    manager.allocate_slots(staying, 3 - hits, hits, pages)
    return manager.free(going, 0)


def one_tier_survives_the_reset(names: Any) -> object:
    pool, (pages,) = caching_pool(names, [1, 2])
    key = pages[0].page_hash.page_hash
    pool.free_pages(pages)
    before = ids(pool.get_cached_page(key, [0]))
    return before, pool.reset_prefix_cache(), pool.get_cached_page(key, [0]) is None


def count_of_a_failed_allocation_stays(names: Any) -> object:
    manager = manager_of(names, num_pages=3)
    blocks, request = Request("a", [1, 2, 3, 4]), Request("b", [5, 6])
    manager.allocate_slots(blocks, 4)
    refused = manager.allocate_slots(request, 2)
    manager.free(blocks)
    manager.allocate_slots(request, 2)
    return refused, found(manager, Request("c", [5, 6, 7]))


def resumed_before_its_hit_is_counted(names: Any) -> object:
    manager = manager_of(names)
    request = served(manager, "a", [1, 2, 3])
    pages, hits = manager.get_computed_pages(request)
    manager.allocate_slots(request, 1, hits, pages)
    return manager.get_page_ids("a")


def retry_fails_after_a_rollback(names: Any) -> object:
    manager = manager_of(names, num_pages=3)
    request, blocks = Request("a", [1, 2]), Request("b", [3])
    manager.allocate_slots(request, 2)
    manager.allocate_slots(blocks, 1)
    grown(request, 4)
    refused = manager.allocate_slots(request, 1)
    manager.free(blocks)
    return refused, tried(lambda: manager.allocate_slots(request, 1).get_page_ids())


def chain_begins_behind_null_pages(names: Any) -> object:
    manager = manager_with(names, "chunk:1:2")
    request = Request("a", [1, 2])
    manager.allocate_slots(request, 2)
    manager.allocate_slots(grown(request, 3, 4), 2)
    return found_in_all(manager, [3, 9]), found_in_all(manager, [1, 2, 3, 9])


def chain_begins_behind_a_small_window(names: Any) -> object:
    manager = manager_with(names, "window:3:2")
    request = Request("a", [1, 2, 3])
    manager.allocate_slots(request, 3)
    manager.allocate_slots(grown(request, 4), 1)
    manager.allocate_slots(grown(request, 5, 6), 2)
    return found_in_all(manager, [4, 5, 6, 9])


GROUP_WITNESSES: dict[str, Callable[[Any], object]] = {
    witness.__name__: witness
    for witness in (
        one_table_for_all_groups,
        pages_told_of_others,
        tail_of_a_window,
        room_of_a_window,
        freed_slots_go_on,
        stored_twice_is_followed,
        any_parent_is_followed,
        room_made_list_by_list,
        removed_while_a_duplicate_survives,
        parent_never_announced,
        orphans_are_dropped,
        told_anew_once_a_key,
        told_anew_behind_what_was_known,
        twins_go_together,
        salt_ignored,
        lora_ignored,
        untagged_extra_keys,
        multimodal_without_offset,
        sixteen_bits_of_an_image,
        generated_pages_without_keys,
        window_short_of_the_dropped_page,
        eagle_page_dropped_in_every_round,
        full_miss_at_some_lengths,
        hit_beyond_full_attention,
        coarse_pages_by_fine_keys,
        window_looked_up_past_the_keys,
        null_page_is_cached,
        allocated_before_touch,
        groups_allocated_one_by_one,
        orphan_keeps_its_content,
        duplicate_freed_in_use,
        freed_by_two_paths,
        lookahead_given_back,
        window_of_the_next_step,
        states_longer_than_a_page_leak,
        common_if_held_often_enough,
        common_if_held_as_often,
        duplicates_swapped_in_live_lists,
        hit_cached_again_refused,
        dropped_hash_comes_back,
        unwritten_pages_stay_cached,
        holders_of_the_last_page_only,
        one_tier_survives_the_reset,
        count_of_a_failed_allocation_stays,
        resumed_before_its_hit_is_counted,
        retry_fails_after_a_rollback,
        chain_begins_behind_null_pages,
        chain_begins_behind_a_small_window,
    )
}
"""The witness of each of these bugs, by the bug's name."""
