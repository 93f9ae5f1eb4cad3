"""What a person sees first: objects as one line, the names of a package, element types as one spells them."""

import inspect
import subprocess
import sys
from types import ModuleType
from typing import get_type_hints

import numpy as np
import pytest

import kvproof
from kvproof import fast, spec
from kvproof.conformance.calls.pool import POOL
from kvproof.spec.declarations import ManagerOptions, PoolOptions, defaults_of
from kvproof.spec.declarations.manager_calls import ManagerCalls

SHOWN_BY_POOL = {
    *("num_pages", "enable_caching", "hash_function", "none_hash", "eviction_counters", "check", "now"),
    *("pages", "null_page", "free_page_queue", "cached_page_hash_to_page"),
}
"""Names of a pool that are no rows of its table of calls: how it was made, its pages, what it says of itself."""

PACKAGES = pytest.mark.parametrize("package", [spec, fast], ids=["spec", "fast"])

SIZES = {"page_size": 4, "num_kv_heads": 2, "head_size": 128}


def shown(package: ModuleType) -> list[object]:
    """Every object that is shown, one after a request of 9 tokens was served and its prefix hit."""
    group = package.CacheGroupSpec(package.FullAttentionSpec(**SIZES, dtype="bf16"))
    manager = package.CacheManager(21, [group], max_model_len=64, num_host_pages=5)
    for name in ("first", "second"):
        request = package.Request(name, list(range(9)), [package.CacheSalt("a secret")])
        pages, hit = manager.get_computed_pages(request)
        manager.allocate_slots(request, 9 - hit, hit, pages)
    table = package.PageTable(8, 16, 32)
    table.add_row([1, 2, 3], row_idx=5)
    tables = package.MultiGroupPageTable(8, 64, 32, [4])
    metadata = package.RaggedPagesCacheMetaData.create(
        None, package.AxisRules(), "bf16", 3, 2, 64, 128, page_size=4, num_pages=7
    )
    cache = package.RaggedPagesCache.init_cache(None, metadata, package.AxisRules())
    shards = package.ShardedCacheManager(2, 4, [group], 64)
    builder = package.MetadataBuilder(page_size=4, max_num_reqs=8, max_pages=16, max_num_tokens=32)
    builders = package.MultiGroupMetadataBuilder([4, 8], 8, [16, 8], 32, token_sizes=[32])
    follower = package.CacheFollower()
    queue = package.FreeCachePageQueue([package.CachePage(page) for page in range(1, 4)])
    built = [builder, builders, follower, manager.page_pool.free_page_queue, queue]
    return [manager, manager.page_pool, table, tables, cache, cache.views[1], shards, *built]


@PACKAGES
def test_an_object_is_one_line(package: ModuleType) -> None:
    """SEC-2: nothing in it is anybody's."""
    assert [repr(thing) for thing in shown(package)] == [
        "<CacheManager: pages in use 4 of 20 (20.0%), host pages in use 0 of 5 (0.0%), 1 groups, 2 requests admitted, "
        "tokens hit 8 of 18 (44.4%)>",
        "<PagePool: pages in use 4 of 20 (20.0%), eviction lru>",
        "<PageTable: rows in use 1 of 8 (12.5%), 16 pages a row at most>",
        "<MultiGroupPageTable: 1 groups, group 0 rows in use 0 of 8 (0.0%)>",
        "<RaggedPagesCache: 3 layers, 7 pages, 4 slots a page, of bfloat16, layout v3>",
        "<RaggedPagesCacheView: layer 1 of 3, 7 pages, 4 slots a page, of bfloat16, layout v3>",
        "<ShardedCacheManager: shard 0 pages in use 0 of 3 (0.0%), shard 1 pages in use 0 of 3 (0.0%)>",
        "<MetadataBuilder: 8 rows, 16 pages a row at most, 4 tokens a page, 32 tokens a step at most, "
        "padded to 16 or 32>",
        "<MultiGroupMetadataBuilder: 2 groups, 8 rows, tokens a page by group 4, 8, 32 tokens a step at most, "
        "padded to 32>",
        "<CacheFollower: 0 cached pages>",
        "<PoolFreeQueue: 16 free pages>",
        "<FreeCachePageQueue: 3 free pages>",
    ]


@PACKAGES
def test_a_notebook_shows_a_table(package: ModuleType) -> None:
    for thing in shown(package):
        html = thing._repr_html_()  # type: ignore[attr-defined]
        assert html.count("<tr>") == html.count("</tr>") >= 1
        assert type(thing).__name__ in html


@PACKAGES
def test_what_is_not_made_yet_is_shown_all_the_same(package: ModuleType) -> None:
    """As a debugger does in a constructor that has raised."""
    assert "PagePool object at" in repr(object.__new__(package.PagePool))


@PACKAGES
def test_a_package_lists_its_public_names(package: ModuleType) -> None:
    assert dir(package) == sorted(package.__all__)


def test_a_package_is_imported_when_it_is_named() -> None:
    code = "import sys, kvproof; assert 'jax' not in sys.modules; print(kvproof.fast.PagePool(3, True))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("<PagePool: ")
    assert {"fast", "spec"} <= set(dir(kvproof))
    with pytest.raises(AttributeError, match="slow"):
        kvproof.slow  # noqa: B018


@PACKAGES
@pytest.mark.parametrize(
    ("spelling", "dtype"), [("f32", "float32"), ("bf16", "bfloat16"), ("fp8_e4m3", "float8_e4m3fn")]
)
def test_element_types_are_spelled_as_one_likes(package: ModuleType, spelling: str, dtype: str) -> None:
    """MAN-7: groups take the codes that caches take; equal layers are equal."""
    layers = package.FullAttentionSpec(**SIZES, dtype=spelling)
    assert layers == package.FullAttentionSpec(**SIZES, dtype=dtype)
    assert package.MambaSpec(4, ((2, 2),), (spelling,)).dtypes == (dtype,)
    assert package.CacheManager(4, [package.CacheGroupSpec(layers)], 8).num_pages == 4


@PACKAGES
@pytest.mark.parametrize("version", ["v2", "v3"])
def test_a_cache_of_a_number_of_pages(package: ModuleType, version: str) -> None:
    """CACHE-1: it is what a budget of so many pages gives; R1 and POOL-1 otherwise."""
    create = package.RaggedPagesCacheMetaData.create
    given = (None, package.AxisRules(), np.float32, 3, 2, 64, 128)
    made = create(*given, version=version, page_size=4, num_pages=9)
    assert made.num_pages == 9
    assert made == create(*given, version=version, page_size=4, budget_bytes=9 * made.page_bytes)
    for wrong, error, said in ((1, ValueError, "POOL-1"), (2.0, TypeError, "R1"), (True, TypeError, "R1")):
        with pytest.raises(error, match=rf"num_pages={wrong}.*\[{said}\]"):
            create(*given, num_pages=wrong)
    with pytest.raises(ValueError, match="num_pages=3 and budget_bytes=9"):
        create(*given, num_pages=3, budget_bytes=9)


@PACKAGES
def test_dir_of_a_pool_shows_its_contract(package: ModuleType) -> None:
    """The names of the calls table and no part of the pool; the same ones in both packages."""
    names = {name for name in dir(package.PagePool(4, True)) if not name.startswith("_")}
    calls = {row.name for row in POOL} - {"PagePool"}
    assert calls <= names | {name for name in calls if name.startswith("__")}
    assert names <= calls | {*defaults_of(PoolOptions), *SHOWN_BY_POOL}
    assert all(hasattr(package.PagePool(4, True), name) for name in names)
    of_class = {name for name in dir(package.PagePool) if not name.startswith("_")}
    assert of_class == {name for name in names if hasattr(package.PagePool, name)}


@PACKAGES
def test_dir_of_a_manager_shows_its_contract_and_its_parts(package: ModuleType) -> None:
    names = {name for name in dir(package.CacheManager(4, [], 8)) if not name.startswith("_")}
    declared = {name for name in vars(ManagerCalls) if not name.startswith("_")} | set(get_type_hints(ManagerCalls))
    made = {*inspect.signature(package.CacheManager).parameters} - defaults_of(ManagerOptions).keys()
    assert names == declared | made | {"num_kv_cache_groups", "page_size"}
