"""The specification: what a correct backend does, made executable.

Slow and obviously correct, in dicts, lists and numpy. Read it to learn what is right: `clauses` holds the contract's
sentences, every other module the code that implements them, each under its label. ``spec/README.md`` says in which
order to read, shows how a request passes through pool, manager and table, and explains some 25 words beside those of
vLLM and SGLang.
"""

from .attention.attention import fused_ragged_paged_attention, ragged_paged_attention
from .attention.mla import mla_cache_update, mla_paged_attention
from .cache.cache_metadata import RaggedPagesCacheMetaData
from .cache.cache_view import RaggedPagesCacheView
from .cache.metadata_builder import MetadataBuilder, MultiGroupMetadataBuilder
from .cache.pool_size import per_device_hbm_budget_bytes, size_pool
from .cache.ragged_cache import RaggedPagesCache
from .cache.ragged_metadata import RaggedPagesMetadata
from .cache.slot_quantizer import SlotQuantizer
from .cache.state_pages import StatePages
from .clauses import CLAUSES, Clause
from .declarations import (
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
from .declarations.event_documents import events_from_json, events_to_json
from .declarations.event_wire import events_from_msgpack, events_to_msgpack
from .declarations.partitions import AxisRules
from .declarations.pool_size import PoolSize
from .declarations.prefix_files import ExportedPrefix
from .groups.cache_pages import CachePages
from .groups.coordinator import (
    CacheCoordinator,
    CacheCoordinatorNoPrefixCache,
    HybridCacheCoordinator,
    UnitaryCacheCoordinator,
    get_kv_cache_coordinator,
)
from .layout.cache_dtypes import ScaledPages
from .layout.cache_layout import (
    align_to_multiple,
    get_dtype_packing,
    get_num_slices_per_kv_cache_update_page,
    get_page_size_bytes,
    previous_power_of_2,
)
from .layout.cache_update import kv_cache_update
from .layout.states import copy_pages, export_pages, read_states, write_states
from .manager.cache_manager import CacheManager
from .manager.prefixes import PinnedPrefix
from .manager.sharded_manager import ShardedCacheManager
from .pool.free_queue import FreeCachePageQueue
from .pool.hashing import (
    NONE_HASH,
    PageHash,
    PageHashWithGroupId,
    hash_page_tokens,
    hash_request_tokens,
    init_none_hash,
    sha256,
)
from .pool.page_pool import PagePool
from .pool.pages import CachePage, PageList
from .saved.exported_prefix import export_prefix, import_prefix
from .saved.follower import CacheFollower
from .step.slot_batch import SlotBatch
from .table.multi_group_table import MultiGroupPageTable
from .table.page_table import PageTable, cdiv

__all__ = [
    "CLAUSES",
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
    "Clause",
    "EngineRequest",
    "EngineRequestStatus",
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


def __dir__() -> list[str]:
    """The public names; not those of the modules behind them."""
    return __all__
