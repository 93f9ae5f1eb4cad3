"""MAN-17: hits that end amid pages, in both packages: the workload that the clause is for, and what is refused."""

from types import ModuleType
from typing import Any

import jax
import numpy as np
import pytest

from kvproof import fast, spec

SIZES = (128, 4096, 32, 2, 8)


def _groups(package: ModuleType, sizes: tuple[int, ...] = SIZES) -> list[Any]:
    attention = {"num_kv_heads": 1, "head_size": 8, "dtype": "float32"}
    return [
        package.CacheGroupSpec(package.FullAttentionSpec(page_size=size, **attention), (f"layer {number}",))
        for number, size in enumerate(sizes)
    ]


def _served(package: ModuleType, unit: int | None, tokens: list[int]) -> Any:
    """A manager that has served a prompt."""
    manager = package.CacheManager(4000, _groups(package), 8192, match_unit=unit, hash_seed=b"")
    first = package.Request("first", tokens)
    manager.allocate_slots(first, len(tokens))
    manager.free(first)
    return manager


def test_a_prompt_comes_again_over_pages_of_five_sizes(package: ModuleType) -> None:
    """MAN-17: all tokens but the last two are hit, of which one must be computed; without a unit none is."""
    tokens = list(range(2048))
    for unit, expected in ((2, 2046), (1, 2047), (None, 0)):
        manager = _served(package, unit, tokens)
        again = package.Request("again", tokens)
        pages, found = manager.get_computed_pages(again)
        assert found == expected
        assert [len(own) for own in pages.get_page_ids()] == [expected // size for size in SIZES]
        free = manager.page_pool.get_num_free_pages()
        hits = sum(map(len, pages.get_page_ids()))
        new = manager.allocate_slots(again, 2048 - found, found, pages)
        copied = [(size, found % size) for size in SIZES if found % size]
        taken = sum(map(len, new.get_page_ids()))
        assert free - manager.page_pool.get_num_free_pages() == hits + taken + len(copied)  # sources are held
        copies = manager.take_page_copies()
        assert [(SIZES[copy.group_id], copy.num_tokens) for copy in copies] == copied
        assert free - manager.page_pool.get_num_free_pages() == hits + taken
        for copy in copies:
            assert manager.get_page_ids("again")[copy.group_id][found // SIZES[copy.group_id]] == copy.destination
            assert copy.source not in manager.get_page_ids("again")[copy.group_id]
        manager.check()


def test_what_follows_in_a_page_is_no_matter(package: ModuleType) -> None:
    """MAN-17: a prompt that parts amid pages hits up to there, in units, also from full pages."""
    tokens = list(range(2048))
    manager = _served(package, 2, tokens)
    for shared, expected in ((1000, 1000), (1001, 1000), (3, 2), (1, 0)):
        other = package.Request("other", [*tokens[:shared], *[9999] * 100])
        assert manager.get_computed_pages(other)[1] == expected
    salted = package.Request("salted", tokens, [package.CacheSalt("another")])
    assert manager.get_computed_pages(salted)[1] == 0


def test_a_hit_amid_a_page_that_is_gone_is_refused(package: ModuleType) -> None:
    """MAN-17, R1: the source may be evicted after the look-up; then nothing changes."""
    manager = package.CacheManager(20, _groups(package, (4,)), 64, match_unit=2, hash_seed=b"")
    first = package.Request("first", [1, 2, 3, 4, 5, 6])
    manager.allocate_slots(first, 6)
    (pages,) = manager.get_page_ids("first")
    manager.free(first)
    again = package.Request("again", [1, 2, 3, 4, 5, 6, 7])
    found, length = manager.get_computed_pages(again)
    assert (found.get_page_ids(), length) == (([pages[0]],), 6)
    manager.evict_pages([pages[1]])
    free = manager.page_pool.get_num_free_pages()
    with pytest.raises(ValueError, match=r"num_new_computed_tokens=6: no page of group 0 .*\[MAN-17\]$"):
        manager.allocate_slots(again, 1, length, found)
    assert manager.page_pool.get_num_free_pages() == free
    assert manager.take_page_copies() == []


@pytest.mark.parametrize(("computed", "takes"), [(3, False), (7, True)])
def test_what_was_computed_before_its_copies_is_not_swapped_out(
    package: ModuleType, computed: int, takes: bool
) -> None:
    """MAN-17, SWAP-1, R1: no step can have run behind a hit whose copy waits; what was hit may go, and all after it."""
    manager = package.CacheManager(20, _groups(package, (4, 2)), 64, match_unit=1, hash_seed=b"", num_host_pages=20)
    first = package.Request("first", [1, 2, 3, 4, 5, 6])
    manager.allocate_slots(first, 6)
    manager.free(first)
    again = package.Request("again", [1, 2, 3, 9, 9, 9, 9])
    found, length = manager.get_computed_pages(again)
    assert length == 3
    manager.allocate_slots(again, 4, length, found)
    before = manager.snapshot()
    for wrong in (4, 7):
        again.num_computed_tokens = wrong
        with pytest.raises(ValueError, match=rf"num_computed_tokens={wrong}: .* take_page_copies \[MAN-17\]$"):
            manager.swap_out(again)
        assert manager.snapshot() == before
    if takes:
        assert [copy.num_tokens for copy in manager.take_page_copies()] == [3, 1]
    again.num_computed_tokens = computed
    plan = manager.swap_out(again)
    assert plan.num_tokens == computed
    manager.swap_done(plan.swap_id)
    assert manager.take_page_copies() == []
    manager.check()


@pytest.mark.parametrize("unit", [0, -1, 3, 4])
def test_a_unit_that_does_not_divide_is_refused(package: ModuleType, unit: int) -> None:
    """MAN-17, R1: by name and value."""
    with pytest.raises(ValueError, match=rf"match_unit={unit!r} "):
        package.CacheManager(20, _groups(package, (8, 2)), 64, match_unit=unit)


@pytest.mark.parametrize("shards", [1, 2])
def test_man_17_caches_copy_so_many_slots_in_both_packages(shards: int) -> None:
    """MAN-17: each shard has ids and numbers of its own, and a wrong number changes nothing (R1)."""
    mesh = None if shards == 1 else jax.make_mesh((shards,), ("dp",), devices=jax.devices()[:shards])
    given = [[3, -1], [1, 2], [2, 1]] if shards == 1 else [[[3, 1], [2, 1]], [[1, 2], [3, 2]], [[2, 1], [1, 9]]]
    after = []
    for package in (spec, fast):
        names: Any = package
        metadata = names.RaggedPagesCacheMetaData(
            2, 32, 2, 8, 8, page_size=4, num_pages=5, version="v3", _kvdtype_str="f32", num_page_shards=shards
        )
        cache = names.RaggedPagesCache.init_cache(mesh, metadata, names.AxisRules())
        shape = cache.views[0].kv_pages.shape
        pages = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        place = getattr(cache.views[0].kv_pages, "sharding", None)
        kept = pages if place is None else jax.device_put(pages, place)
        cache = cache.replace(views=[view.replace(kv_pages=kept + layer) for layer, view in enumerate(cache.views)])
        for wrong, kind in (([1], ValueError), ([1.5, 1], TypeError), ([2**31, 1], ValueError)):
            with pytest.raises(kind, match="num_slots"):
                cache.copy_pages(*given[:2], wrong if shards == 1 else [wrong] * shards)
        after.append([np.asarray(view.kv_pages) for view in cache.copy_pages(*given).views])
        want = pages.copy()
        for shard in range(shards):
            rows = given if shards == 1 else [row[shard] for row in given]
            for source, target, end in zip(*rows, strict=True):
                if source >= 0:
                    want[5 * shard + target, :end] = pages[5 * shard + source, :end]
        assert np.array_equal(after[-1][0], want)
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(*after, strict=True))
