"""The specification: what a correct backend does, made executable.

Slow and obviously correct, in dicts, lists and numpy. Read it to learn what is right: `clauses` holds the
contract's sentences, every other module the code that they describe, each under its label. Start with
`page_pool`; `cache_manager` stands on it, `page_table` beside it. What is in the pages, and what attention makes
of it, is in `cache_update` and `attention`.
"""

from .attention import fused_ragged_paged_attention, ragged_paged_attention
from .batch import SlotBatch
from .cache_dtypes import ScaledPages
from .cache_layout import (
    align_to_multiple,
    get_dtype_packing,
    get_num_slices_per_kv_cache_update_page,
    get_page_size_bytes,
    previous_power_of_2,
)
from .cache_manager import CacheManager
from .cache_metadata import RaggedPagesCacheMetaData
from .cache_pages import CachePages
from .cache_update import kv_cache_update
from .cache_view import RaggedPagesCacheView
from .clauses import CLAUSES, Clause
from .coordinator import (
    CacheCoordinator,
    CacheCoordinatorNoPrefixCache,
    HybridCacheCoordinator,
    UnitaryCacheCoordinator,
    get_kv_cache_coordinator,
)
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
    MLAAttentionSpec,
    MultimodalItem,
    PageCopy,
    PageRemoved,
    PageStored,
    PromptEmbeddings,
    Request,
    SamplingParams,
    SlidingWindowSpec,
    SwapCopy,
    SwapPlan,
    WeightsVersion,
)
from .event_documents import events_from_json, events_to_json
from .exported_prefix import ExportedPrefix, export_prefix, import_prefix
from .follower import CacheFollower
from .free_queue import FreeCachePageQueue
from .hashing import (
    NONE_HASH,
    PageHash,
    PageHashWithGroupId,
    hash_page_tokens,
    hash_request_tokens,
    init_none_hash,
    sha256,
)
from .metadata_builder import MetadataBuilder, MultiGroupMetadataBuilder
from .mla import mla_cache_update, mla_paged_attention
from .page_pool import PagePool
from .page_table import MultiGroupPageTable, PageTable, cdiv
from .pages import CachePage, PageList
from .partitions import AxisRules
from .pool_size import PoolSize, per_device_hbm_budget_bytes, size_pool
from .prefix_manager import PinnedPrefix
from .ragged_cache import RaggedPagesCache
from .ragged_metadata import RaggedPagesMetadata
from .sharded_manager import ShardedCacheManager
from .slot_quantizer import SlotQuantizer
from .state_pages import StatePages
from .states import copy_pages, export_pages, read_states, write_states

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
    "PinnedPrefix",
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
    "events_to_json",
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
