"""The production backend: what an inference engine imports.

The names and meanings are the specification's (`kvproof.spec`), each room under the same name; the code shares
nothing with it but its declarations: what requests, groups, options, documents and arguments look like.
"""

import importlib
from typing import Any

from kvproof.kernels import (
    ScaledPages,
    copy_pages,
    export_pages,
    fused_ragged_paged_attention,
    kv_cache_update,
    mla_cache_update,
    mla_paged_attention,
    ragged_paged_attention,
    read_states,
    write_states,
)
from kvproof.spec.declarations import (
    CacheCleared,
    CacheCounters,
    CacheEvent,
    CacheGroupSpec,
    CacheSalt,
    CacheSpec,
    ChunkedLocalAttentionSpec,
    EngineRequest,
    EngineRequestStatus,
    ExtraKey,
    FullAttentionSpec,
    HashFunction,
    LoraAdapter,
    MambaSpec,
    ManagerOptions,
    MLAAttentionSpec,
    MultimodalItem,
    PageCopy,
    PageRemoved,
    PageStored,
    PartCopy,
    PoolOptions,
    PromptEmbeddings,
    Request,
    SamplingParams,
    SlidingWindowSpec,
    SwapCopy,
    SwapPlan,
    WeightsVersion,
)
from kvproof.spec.declarations.event_documents import events_from_json, events_to_json
from kvproof.spec.declarations.event_wire import events_from_msgpack, events_to_msgpack
from kvproof.spec.declarations.pool_size import PoolSize
from kvproof.spec.declarations.prefix_files import ExportedPrefix

from .cache.cache_metadata import RaggedPagesCacheMetaData
from .cache.cache_view import RaggedPagesCacheView
from .cache.metadata_builder import MetadataBuilder, MultiGroupMetadataBuilder
from .cache.partitions import AxisRules
from .cache.pool_size import per_device_hbm_budget_bytes, size_pool
from .cache.ragged_cache import RaggedPagesCache
from .cache.ragged_metadata import RaggedPagesMetadata
from .cache.slot_quantizer import SlotQuantizer
from .cache.state_pages import StatePages
from .groups.coordinator import CacheCoordinator
from .groups.coordinator_kinds import (
    CacheCoordinatorNoPrefixCache,
    HybridCacheCoordinator,
    UnitaryCacheCoordinator,
    get_kv_cache_coordinator,
)
from .layout.cache_layout import (
    align_to_multiple,
    get_dtype_packing,
    get_num_slices_per_kv_cache_update_page,
    get_page_size_bytes,
    previous_power_of_2,
)
from .manager.cache_manager import CacheManager, CachePages, PinnedPrefix
from .manager.sharded_manager import ShardedCacheManager
from .pool.free_queue import FreeCachePageQueue
from .pool.hashing import (
    NONE_HASH,
    PageHash,
    PageHashes,
    PageHashWithGroupId,
    hash_page_tokens,
    hash_request_tokens,
    init_none_hash,
    sha256,
)
from .pool.page_pool import PagePool
from .pool.pages import CachePage, PageList
from .saved.event_stream import EventPublisher, EventSubscriber
from .saved.exported_prefix import export_prefix, import_prefix
from .saved.follower import CacheFollower
from .step.slot_batch import SlotBatch
from .table.multi_group_table import MultiGroupPageTable
from .table.page_table import PageTable, cdiv

__all__ = [
    "NONE_HASH",
    "AxisRules",
    "CacheCleared",
    "CacheCoordinator",
    "CacheCoordinatorNoPrefixCache",
    "CacheCounters",
    "CacheEvent",
    "CacheFollower",
    "CacheGroupSpec",
    "CacheManager",
    "CachePage",
    "CachePages",
    "CacheSalt",
    "CacheSpec",
    "ChunkedLocalAttentionSpec",
    "EngineRequest",
    "EngineRequestStatus",
    "EventPublisher",
    "EventSubscriber",
    "ExportedPrefix",
    "ExtraKey",
    "FreeCachePageQueue",
    "FullAttentionSpec",
    "HashFunction",
    "HybridCacheCoordinator",
    "LoraAdapter",
    "MLAAttentionSpec",
    "MambaSpec",
    "ManagerOptions",
    "MetadataBuilder",
    "MultiGroupMetadataBuilder",
    "MultiGroupPageTable",
    "MultimodalItem",
    "PageCopy",
    "PageHash",
    "PageHashWithGroupId",
    "PageHashes",
    "PageList",
    "PagePool",
    "PageRemoved",
    "PageStored",
    "PageTable",
    "PartCopy",
    "PinnedPrefix",
    "PoolOptions",
    "PoolSize",
    "PromptEmbeddings",
    "RaggedPagesCache",
    "RaggedPagesCacheMetaData",
    "RaggedPagesCacheView",
    "RaggedPagesMetadata",
    "Request",
    "SamplingParams",
    "ScaledPages",
    "ShardedCacheManager",
    "SlidingWindowSpec",
    "SlotBatch",
    "SlotQuantizer",
    "StatePages",
    "SwapCopy",
    "SwapPlan",
    "UnitaryCacheCoordinator",
    "WeightsVersion",
    "align_to_multiple",
    "cdiv",
    "copy_pages",
    "events_from_json",
    "events_from_msgpack",
    "events_to_json",
    "events_to_msgpack",
    "export_pages",
    "export_prefix",
    "fused_ragged_paged_attention",
    "get_dtype_packing",
    "get_kv_cache_coordinator",
    "get_num_slices_per_kv_cache_update_page",
    "get_page_size_bytes",
    "hash_page_tokens",
    "hash_request_tokens",
    "import_prefix",
    "init_none_hash",
    "kv_cache_update",
    "mla_cache_update",
    "mla_paged_attention",
    "per_device_hbm_budget_bytes",
    "previous_power_of_2",
    "ragged_paged_attention",
    "read_states",
    "sha256",
    "size_pool",
    "write_states",
]


def __getattr__(name: str) -> Any:
    """``tpu_kernels``, ``gpu_kernels``: interpreted, as `kvproof check` looks for them; imported when asked for."""
    if name not in ("tpu_kernels", "gpu_kernels"):
        raise AttributeError(f"module {__name__} has no {name}")
    return importlib.import_module(f"kvproof.kernels.{name.removesuffix('_kernels')}.interpreted")


def __dir__() -> list[str]:
    """The public names; not those of the modules behind them."""
    return __all__
