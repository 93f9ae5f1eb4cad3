"""The production backend: what an inference engine imports.

The names and meanings are the specification's (`kvproof.spec`), each room under the same name; the code shares
nothing with it but the declarations of requests and cache groups.
"""

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
    MLAAttentionSpec,
    MultimodalItem,
    PageCopy,
    PageRemoved,
    PageStored,
    PromptEmbeddings,
    Request,
    SamplingParams,
    SlidingWindowSpec,
    WeightsVersion,
)

from .cache_manager import CacheManager, CachePages, PinnedPrefix
from .coordinator import CacheCoordinator
from .coordinator_kinds import (
    CacheCoordinatorNoPrefixCache,
    HybridCacheCoordinator,
    UnitaryCacheCoordinator,
    get_kv_cache_coordinator,
)
from .follower import CacheFollower
from .free_queue import FreeCachePageQueue
from .hashing import (
    NONE_HASH,
    PageHash,
    PageHashes,
    PageHashWithGroupId,
    hash_page_tokens,
    hash_request_tokens,
    init_none_hash,
    sha256,
)
from .page_pool import PagePool
from .page_table import MultiGroupPageTable, PageTable, cdiv
from .pages import CachePage, PageList
from .sharded_manager import ShardedCacheManager
from .slot_batch import SlotBatch

__all__ = [
    "NONE_HASH",
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
    "ExtraKey",
    "FreeCachePageQueue",
    "FullAttentionSpec",
    "HashFunction",
    "HybridCacheCoordinator",
    "LoraAdapter",
    "MLAAttentionSpec",
    "MambaSpec",
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
    "PinnedPrefix",
    "PromptEmbeddings",
    "Request",
    "SamplingParams",
    "ShardedCacheManager",
    "SlidingWindowSpec",
    "SlotBatch",
    "UnitaryCacheCoordinator",
    "WeightsVersion",
    "cdiv",
    "get_kv_cache_coordinator",
    "hash_page_tokens",
    "hash_request_tokens",
    "init_none_hash",
    "sha256",
]
