"""Every public name of the seeds is in both packages, with the seeds' parameters first and in order.

The tables are kept by hand from the seeds' pages (page pool, page table, cache manager, page and hash utilities,
ragged pages cache) and from what later versions of the same system added to tables. A name that is missing, or means
something else, stands in `DIFFERENCES` with its reason and with a test that the difference is still there.
"""

import dataclasses
import inspect
import operator
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from kvproof import fast, spec

PACKAGES = pytest.mark.parametrize("package", [spec, fast], ids=["spec", "fast"])

CALLABLES: dict[str, str] = {
    # -- page pool
    "PagePool": "num_pages, enable_caching",
    "PagePool.cache_full_pages": "request, pages, page_hashes, num_cached_pages, num_full_pages, page_size, "
    "kv_cache_group_id",
    "PagePool.free_pages": "ordered_pages",
    "PagePool.get_cached_page": "page_hash, kv_cache_group_ids",
    "PagePool.get_new_pages": "num_pages",
    "PagePool.get_num_free_pages": "",
    "PagePool.get_usage": "",
    "PagePool.reset_prefix_cache": "",
    "PagePool.touch": "pages",
    "PagePool.allocate": "num_pages",
    "PagePool.free": "pages",
    # -- page table
    "MultiGroupPageTable": "max_num_reqs, max_model_len, max_num_batched_tokens, page_sizes",
    "MultiGroupPageTable.add_row": "page_ids, row_idx",
    "MultiGroupPageTable.append_row": "page_ids, row_idx",
    "MultiGroupPageTable.append_rows_batch": "page_ids_per_req, req_indices",
    "MultiGroupPageTable.clear": "",
    "MultiGroupPageTable.clear_row": "row_idx",
    "MultiGroupPageTable.commit": "num_reqs",
    "MultiGroupPageTable.move_row": "src, tgt",
    "MultiGroupPageTable.swap_row": "src, tgt",
    "PageTable": "max_num_reqs, max_num_pages_per_req, max_num_batched_tokens",
    "PageTable.add_row": "page_ids, row_idx",
    "PageTable.append_row": "page_ids, row_idx",
    "PageTable.clear": "",
    "PageTable.clear_row": "row_idx",
    "PageTable.commit": "num_reqs",
    "PageTable.get_cpu_tensor": "",
    "PageTable.get_device_tensor": "",
    "PageTable.move_row": "src, tgt",
    "PageTable.swap_row": "src, tgt",
    "cdiv": "a, b",
    # -- cache manager
    "CachePages": "pages",
    "CachePages.__add__": "other",
    "CachePages.get_page_ids": "",
    "CachePages.get_unhashed_page_ids": "",
    "CachePages.new_empty": "",
    "CacheManager": "num_pages, kv_cache_groups, max_model_len, enable_caching=True, use_eagle=False",
    "CacheManager.get_computed_pages": "request",
    "CacheManager.allocate_slots": "request, num_new_tokens, num_new_computed_tokens=0, new_computed_pages=None, "
    "num_lookahead_tokens=0, delay_cache_pages=False",
    "CacheManager.free": "request",
    "CacheManager.reset_prefix_cache": "",
    "CacheManager.get_num_common_prefix_pages": "request, num_scheduled_requests",
    "CacheManager.free_page_hashes": "request",
    "CacheManager.get_page_ids": "request_id",
    "CacheManager.cache_pages": "request, num_computed_tokens",
    "CacheManager.create_empty_page_list": "",
    "get_kv_cache_coordinator": "num_pages, kv_cache_groups, max_model_len, use_eagle, enable_caching",
    # -- page and hash utilities
    "PageHash": "hash_value, token_ids, extra_keys=None",
    "PageHashWithGroupId": "page_hash, group_id",
    "PageHashWithGroupId.get_hash_value": "",
    "CachePage": "page_id, ref_cnt=0, _page_hash=None, prev_free_page=None, next_free_page=None, is_null=False",
    "CachePage.incr_ref": "",
    "CachePage.decr_ref": "",
    "CachePage.reset_hash": "",
    "FreeCachePageQueue": "pages",
    "FreeCachePageQueue.popleft": "",
    "FreeCachePageQueue.popleft_n": "n",
    "FreeCachePageQueue.remove": "page",
    "FreeCachePageQueue.append": "page",
    "FreeCachePageQueue.append_n": "pages",
    "FreeCachePageQueue.get_all_free_pages": "",
    "init_none_hash": "",
    "hash_page_tokens": "hash_function, parent_page_hash, curr_page_token_ids, extra_keys=None",
    "hash_request_tokens": "hash_function, page_size, request",
    # -- ragged pages cache
    "RaggedPagesCache": "views",
    "RaggedPagesCache.init_cache": "mesh, metadata, partition_manager, quantizer=None",
    "RaggedPagesCache.init_empty": "",
    "RaggedPagesCache.replace": "",
    "RaggedPagesCache.to_dict": "",
    "RaggedPagesCache.from_dict": "data",
    "RaggedPagesCache.to_json": "",
    "RaggedPagesCache.from_json": "json_str",
    "RaggedPagesCacheMetaData": "num_hidden_layers, max_model_length, num_kv_heads, k_headdim, v_headdim, "
    "hbm_utilization=0.9, page_size=128, num_pages=-1, max_num_pages_per_req=-1, "
    "num_slices_per_kv_cache_update_page=-1, max_num_tokens=-1, max_num_reqs=-1, version='v3', _kvdtype_str='bf16'",
    "RaggedPagesCacheMetaData.create": "mesh, partition_manager, kvdtype, num_hidden_layers, num_kv_heads, "
    "max_model_length, kv_head_dim_size=None, k_headdim=None, v_headdim=None, hbm_utilization=0.9, page_size=128, "
    "version='v3'",
    "RaggedPagesCacheMetaData.get_max_num_seqs": "",
    "RaggedPagesCacheMetaData.get_padded_num_slices": "num_tokens=None, max_num_reqs=None",
    "RaggedPagesCacheMetaData.get_shape_and_axes": "",
    "RaggedPagesCacheMetaData.replace": "",
    "RaggedPagesCacheMetaData.to_dict": "",
    "RaggedPagesCacheMetaData.from_dict": "data",
    "RaggedPagesCacheMetaData.to_json": "",
    "RaggedPagesCacheMetaData.from_json": "json_str",
    "RaggedPagesCacheView": "metadata, layer_index, kv_pages, partition_manager=AxisRules()",
    "RaggedPagesCacheView.init": "mesh, metadata, layer_index, partition_manager, quantizer=None",
    "RaggedPagesCacheView.concatenate_to_cache": "key, value, cache_metadata",
    "RaggedPagesCacheView.flattened_kv_pages": "",
    "RaggedPagesCacheView.replace": "",
    "RaggedPagesCacheView.to_dict": "",
    "RaggedPagesCacheView.from_dict": "data",
    "RaggedPagesCacheView.to_json": "",
    "RaggedPagesCacheView.from_json": "json_str",
    "RaggedPagesMetadata": "pages_tables, context_lens, query_start_loc, num_seqs, slot_mapping=None, "
    "position_ids=None, request_distribution=None, num_kv_update_slices=None, version='v3', "
    "num_slices_per_kv_cache_update_page=None, page_size=128, prefill_chunk_size=512",
    "RaggedPagesMetadata.create_empty": "num_tokens, max_num_reqs, max_pages, page_size=128, version='v3'",
    "RaggedPagesMetadata.replace": "",
    "RaggedPagesMetadata.to_dict": "",
    "RaggedPagesMetadata.from_dict": "data",
    "RaggedPagesMetadata.to_json": "",
    "RaggedPagesMetadata.from_json": "json_str",
    "align_to_multiple": "value, multiple",
    "get_dtype_packing": "dtype",
    "get_num_slices_per_kv_cache_update_page": "page_size_bytes",
    "get_page_size_bytes": "page_size, num_kv_heads, head_size, kv_cache_dtype",
    "per_device_hbm_budget_bytes": "util=0.9, mode='free', safety_margin=268435456",
    "previous_power_of_2": "n",
}

_METADATA_FIELDS = (
    "num_hidden_layers",
    "max_model_length",
    "num_kv_heads",
    "k_headdim",
    "v_headdim",
    "hbm_utilization",
    "page_size",
    "num_pages",
    "max_num_pages_per_req",
    "num_slices_per_kv_cache_update_page",
    "max_num_tokens",
    "max_num_reqs",
    "version",
    "_kvdtype_str",
)

ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "PagePool": ("free_page_queue", "cached_page_hash_to_page"),
    "MultiGroupPageTable": ("page_tables",),
    "PageTable": (
        "max_num_reqs",
        "max_num_pages_per_req",
        "max_num_batched_tokens",
        "page_table",
        "page_table_cpu",
        "num_pages_per_row",
        "cpu_version",
    ),
    "CachePages": ("pages",),
    "CacheManager": (
        "num_pages",
        "kv_cache_groups",
        "max_model_len",
        "enable_caching",
        "use_eagle",
        "page_size",
        "coordinator",
        "num_kv_cache_groups",
        "page_pool",
        "req_to_page_hashes",
        "usage",
    ),
    "PageHash": ("hash_value", "token_ids", "extra_keys"),
    "PageHashWithGroupId": ("page_hash", "group_id"),
    "CachePage": ("page_id", "ref_cnt", "page_hash", "prev_free_page", "next_free_page", "is_null"),
    "FreeCachePageQueue": ("num_free_pages", "fake_free_list_head", "fake_free_list_tail"),
    "RaggedPagesCache": ("views", "metadata"),
    "RaggedPagesCacheMetaData": (
        *_METADATA_FIELDS,
        "is_v2",
        "is_v3",
        "kv_head_packing",
        "kvdtype",
        "storage_head_dim",
        "storage_num_combined_kv_heads",
        "storage_num_kv_groups",
    ),
    "RaggedPagesCacheView": (
        "metadata",
        "layer_index",
        "kv_pages",
        "partition_manager",
        "key_pages",
        "value_pages",
    ),
    "RaggedPagesMetadata": (
        "pages_tables",
        "context_lens",
        "query_start_loc",
        "num_seqs",
        "slot_mapping",
        "position_ids",
        "request_distribution",
        "num_kv_update_slices",
        "version",
        "num_slices_per_kv_cache_update_page",
        "page_size",
        "prefill_chunk_size",
    ),
}

CONSTANTS = ("NONE_HASH",)


def _objects(package: ModuleType) -> dict[str, Any]:
    """One object of every class that has attributes."""
    group = package.CacheGroupSpec(package.FullAttentionSpec(2, 1, 1, "float32"))
    key = package.PageHash(b"", (1, 2), None)
    pages = [package.CachePage(page_id) for page_id in range(3)]
    metadata = package.RaggedPagesCacheMetaData(2, 16, 1, 64, 64, page_size=4, num_pages=3)
    cache = package.RaggedPagesCache.init_cache(None, metadata, package.AxisRules())
    return {
        "PagePool": package.PagePool(4, True),
        "MultiGroupPageTable": package.MultiGroupPageTable(2, 8, 8, [2]),
        "PageTable": package.PageTable(2, 4, 8),
        "CachePages": package.CachePages([[]]),
        "CacheManager": package.CacheManager(4, [group], 8),
        "PageHash": key,
        "PageHashWithGroupId": package.PageHashWithGroupId(key, 0),
        "CachePage": pages[0],
        "FreeCachePageQueue": package.FreeCachePageQueue(pages),
        "RaggedPagesCache": cache,
        "RaggedPagesCacheMetaData": metadata,
        "RaggedPagesCacheView": cache.views[0],
        "RaggedPagesMetadata": package.RaggedPagesMetadata.create_empty(4, 2, 4, page_size=4),
    }


class Difference(NamedTuple):
    """Where a seed's name is missing or means something else.

    Attributes:
        reason: why.
        holds: whether a package still differs so; a reason that no longer holds fails.
        missing: whether the name is missing.
    """

    reason: str
    holds: Callable[[ModuleType], bool]
    missing: bool = False


def _read_only(class_name: str, attribute: str) -> Callable[[ModuleType], bool]:
    def holds(package: ModuleType) -> bool:
        owner = _objects(package)[class_name]
        try:
            setattr(owner, attribute, getattr(owner, attribute))
        except AttributeError:
            return True
        return False

    return holds


def _lacks(class_name: str, attribute: str) -> Callable[[ModuleType], bool]:
    return lambda package: not hasattr(_objects(package)[class_name], attribute)


def _is_made_when_read(package: ModuleType) -> bool:
    manager = _objects(package)["CacheManager"]
    return manager.req_to_page_hashes["nobody"] == [] and "nobody" not in manager.req_to_page_hashes


DIFFERENCES: dict[str, Difference] = {
    "PagePool.allocate": Difference(
        "only in the example at the head of the seed's page; its class has get_new_pages",
        _lacks("PagePool", "allocate"),
        missing=True,
    ),
    "PagePool.free": Difference(
        "only in the example at the head of the seed's page; its class has free_pages",
        _lacks("PagePool", "free"),
        missing=True,
    ),
    "CacheManager.req_to_page_hashes": Difference(
        "it is made when read: what is changed in it changes nothing in the manager", _is_made_when_read
    ),
    "PageHash.hash_value": Difference(
        "bytes, as SHA-256 gives them, and no int: an int's own hash collides (HASH-1)",
        lambda package: package.PageHash.__annotations__["hash_value"] is bytes,
    ),
    "NONE_HASH": Difference(
        "the root of the free functions only, bytes, another in every process; a pool has its own (HASH-1)",
        lambda package: (
            isinstance(package.NONE_HASH, bytes) and package.PagePool(2, True).none_hash != package.NONE_HASH
        ),
    ),
    "init_none_hash": Difference(
        "it returns a root and changes no module's state, since the seed belongs to the manager (HASH-1)",
        lambda package: package.init_none_hash(b"s") == package.init_none_hash(b"s") != package.NONE_HASH,
    ),
    "hash_page_tokens": Difference(
        "the root can be given, and the hash takes bytes and returns bytes (HASH-1)",
        lambda package: "none_hash" in inspect.signature(package.hash_page_tokens).parameters,
    ),
    "hash_request_tokens": Difference(
        "the root can be given, and the hash takes bytes and returns bytes (HASH-1)",
        lambda package: "none_hash" in inspect.signature(package.hash_request_tokens).parameters,
    ),
    "CachePage.prev_free_page": Difference(
        "read-only: a link set by hand breaks the queue (POOL-2)", _read_only("CachePage", "prev_free_page")
    ),
    "CachePage.next_free_page": Difference(
        "read-only: a link set by hand breaks the queue (POOL-2)", _read_only("CachePage", "next_free_page")
    ),
    "CachePage.page_id": Difference("read-only: a page stays what it is (POOL-2)", _read_only("CachePage", "page_id")),
    "CachePage.is_null": Difference("read-only: a page stays what it is (POOL-1)", _read_only("CachePage", "is_null")),
    "FreeCachePageQueue.num_free_pages": Difference(
        "read-only: a count set by hand breaks the queue (POOL-2)", _read_only("FreeCachePageQueue", "num_free_pages")
    ),
}

NAMES = sorted({*CALLABLES, *CONSTANTS, *(f"{owner}.{name}" for owner, names in ATTRIBUTES.items() for name in names)})


def _is_there(package: ModuleType, name: str) -> bool:
    owner, _, attribute = name.partition(".")
    if attribute in ATTRIBUTES.get(owner, ()):
        return hasattr(_objects(package)[owner], attribute)
    return hasattr(package, owner) and (not attribute or hasattr(getattr(package, owner), attribute))


@PACKAGES
@pytest.mark.parametrize("name", NAMES)
def test_every_name_of_the_seeds_is_there_or_has_a_reason(package: ModuleType, name: str) -> None:
    difference = DIFFERENCES.get(name)
    assert _is_there(package, name) != (difference is not None and difference.missing)
    if "." not in name and difference is None:
        assert name in package.__all__, "a name of the seeds is exported"


@PACKAGES
@pytest.mark.parametrize("name", sorted(set(CALLABLES) - {name for name, why in DIFFERENCES.items() if why.missing}))
def test_parameters_are_the_seeds_first_and_in_order(package: ModuleType, name: str) -> None:
    called = operator.attrgetter(name)(package)
    ours = [
        parameter
        for parameter in inspect.signature(called).parameters.values()
        if parameter.name not in ("self", "_cls")
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    ]
    seeds = list(_parsed(CALLABLES[name], package))
    for own, parameter in zip(ours, seeds, strict=False):
        assert own.name == parameter.name
        assert _default(called, own) == parameter.default
        assert own.kind is parameter.POSITIONAL_OR_KEYWORD
    assert len(ours) >= len(seeds)
    for added in ours[len(seeds) :]:
        assert added.default is not added.empty, f"{added.name} is ours, so that a caller of the seeds' omits it"


def _default(called: Any, parameter: inspect.Parameter) -> Any:
    """A parameter's default; where a dataclass makes one for each object, the one that it makes."""
    made = {field.name: field.default_factory for field in dataclasses.fields(called)} if _is_dataclass(called) else {}
    factory = made.get(parameter.name, dataclasses.MISSING)
    return parameter.default if factory is dataclasses.MISSING else factory()


def _is_dataclass(called: Any) -> bool:
    return isinstance(called, type) and dataclasses.is_dataclass(called)


def _parsed(parameters: str, package: ModuleType) -> Any:
    """The parameters that a signature names; its defaults may be made of a package's classes."""
    scope: dict[str, Any] = {"AxisRules": package.AxisRules}
    exec(f"def seed({parameters}): ...", scope)
    return inspect.signature(scope["seed"]).parameters.values()


@PACKAGES
@pytest.mark.parametrize("name", sorted(DIFFERENCES))
def test_every_reason_still_holds(package: ModuleType, name: str) -> None:
    assert name in NAMES, "a reason is about a name in the tables"
    assert DIFFERENCES[name].reason
    assert DIFFERENCES[name].holds(package)


def test_the_packages_export_the_same_names() -> None:
    """What one has beyond the other: the clauses are the specification's; the lazy list of keys and sockets, fast's."""
    of_sockets = {"EventPublisher", "EventSubscriber"}  # the specification has its standard library only
    assert set(spec.__all__) ^ set(fast.__all__) == {"CLAUSES", "Clause", "PageHashes", *of_sockets}
