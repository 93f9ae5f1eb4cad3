"""The specification: what a correct backend does, made executable.

Slow and obviously correct, in dicts, lists and numpy. Read it to learn what is right: `clauses` holds the
contract's sentences, every other module the code that they describe, each under its label. Start with
`page_pool`; `cache_manager` stands on it, `page_table` beside it.
"""

from .batch import SlotBatch
from .cache_manager import CacheManager
from .cache_pages import CachePages
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
    WeightsVersion,
)
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
from .page_pool import PagePool
from .page_table import MultiGroupPageTable, PageTable, cdiv
from .pages import CachePage, PageList
from .prefix_manager import PinnedPrefix
from .sharded_manager import ShardedCacheManager

__all__ = [
    "CLAUSES",
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
    "Clause",
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
